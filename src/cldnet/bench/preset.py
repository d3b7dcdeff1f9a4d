"""Settings of methods on streams, each with the story of how it was chosen. They live in ``presets/*.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from cldnet.bench.run import RunSpec

__all__ = ["load_presets", "preset"]


def load_presets(stream: str) -> dict[str, Any]:
    """Read all presets of a stream; an empty table if there are none.

    Examples
    --------
    >>> sorted(load_presets("split-digits")["methods"])
    ['cldnet', 'er', 'ewc', 'exact', 'finetune', 'joint', 'owm', 'pnn']
    """
    path = files("cldnet.bench") / "presets" / f"{stream}.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def preset(stream: str, method: str, seed: int, threads: int | None = None) -> RunSpec:
    """Make the specification of a run from the preset of a method on a stream, or from the method's own defaults.

    Options behind the stream's name change nothing: a variant takes the preset of the stream that it is made from.

    Examples
    --------
    >>> preset("split-digits", "finetune", seed=1).seed
    1
    """
    base = stream.partition(",")[0]
    presets = {} if ":" in base else load_presets(base)
    common: Mapping[str, Any] = presets.get("common", {})
    special: Mapping[str, Any] = presets.get("methods", {}).get(method, {})
    chosen = {name: value for name, value in {**common, **special}.items() if name in RunSpec.__dataclass_fields__}
    return RunSpec(**{**chosen, "method": method, "seed": seed, "threads": threads})
