"""Presets: settings of methods on streams, with a record of how they were chosen.

They are files named ``STREAM.toml``: some come with the library, and those in a folder of your own take precedence.
``[common]`` holds what all methods share, ``[methods.NAME]`` what one method has of its own. A method's table comes
from the first file that has one, and so does each common setting: the budget is the same for all methods.
``validation`` and ``provenance`` say how settings were chosen; they do not affect runs.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import Field, PositiveInt

from cldnet.bench.run import RunSpec
from cldnet.bench.validation import StrictTable, validate
from cldnet.data.streams import SOURCES, StreamSpec
from cldnet.methods import read_method


class Settings(StrictTable):
    """What a preset, or a bench's specification, may say of a run; see `cldnet.bench.run.RunSpec`."""

    epochs: PositiveInt | None = None
    batch_size: PositiveInt | None = None
    options: dict[str, Any] | None = None
    backbone: str | None = None
    backbone_options: dict[str, Any] | None = None
    augment: str | None = None
    normalise: str | None = None
    outside: str | None = None

    def given(self) -> dict[str, Any]:
        """The settings that were given."""
        return {name: getattr(self, name) for name in Settings.model_fields if name in self.model_fields_set}


class _Preset(Settings):
    validation: float | None = None
    provenance: dict[str, Any] | None = None


class _PresetFile(StrictTable):
    common: Settings = Settings()
    methods: dict[str, _Preset] = Field(default_factory=dict)


def preset_name(stream: str) -> str:
    """Name of a stream's preset file, without its extension. Options of the stream are ignored."""
    spec = StreamSpec.parse(stream, SOURCES)
    name = spec.name if spec.path is None else f"{spec.name}-{Path(spec.path).expanduser().resolve().name}"
    return re.sub(r"[^\w.-]", "-", name)


def load_presets(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Read all presets of one file; an empty table if there is no such file.

    Parameters
    ----------
    name : str
        The file's name, without its extension.
    folder : Path, optional
        Where to look; by default among the presets that come with the library.

    Examples
    --------
    >>> load_presets("split-digits")["common"], "cldnet" in load_presets("split-digits")["methods"]
    ({'epochs': 10, 'batch_size': 16}, True)
    """
    path: Traversable = (files("cldnet.bench") / "presets" if folder is None else folder) / f"{name}.toml"
    try:
        return copy.deepcopy(_parse(path.read_text("utf-8"))) if path.is_file() else {}
    except ValueError as error:  # not TOML, not UTF-8, or not a preset
        raise ValueError(f"{path} is not a file of presets: {error}") from error


@lru_cache(maxsize=8)
def _parse(text: str) -> dict[str, Any]:
    """Parse and check a file once: every cell of a bench asks for its preset."""
    presets = tomllib.loads(text)
    validate(_PresetFile, presets)
    return presets


def common_settings(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Settings for all methods of a preset file, each from the folder's file if that has it, else from the library's."""
    own = {} if folder is None else load_presets(name, folder)
    return {**load_presets(name).get("common", {}), **own.get("common", {})}


def preset(stream: str, method: str, seed: int, threads: int | None = None, folder: Path | None = None) -> RunSpec:
    """Make the specification of a run from the preset of a method on a stream, or from the method's own defaults.

    Parameters
    ----------
    stream, method : str
        Options of the stream are ignored. Outside data in ``[common]`` apply only to methods that use them.
    seed : int
    threads : int, optional
    folder : Path, optional
        A folder of presets that take precedence over the library's.

    Examples
    --------
    >>> preset("split-digits", "finetune", seed=1).seed
    1
    """
    name = preset_name(stream)
    tables = [load_presets(name, place).get("methods", {}) for place in dict.fromkeys((folder, None))]
    own: Mapping[str, Any] = next((table[method] for table in tables if method in table), {})
    settings = {**for_method(method, common_settings(name, folder)), **own}
    chosen = {key: value for key, value in settings.items() if key in Settings.model_fields}
    return RunSpec(method=method, seed=seed, threads=threads, **chosen)


def for_method(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select the settings for all methods that apply to this one: outside data are only for methods that use them."""
    uses = "outside" not in settings or read_method(method).traits.outside_data
    return {key: value for key, value in settings.items() if key != "outside" or uses}


def override(run: RunSpec, settings: Mapping[str, Any]) -> RunSpec:
    """Apply settings to a run. Options are merged, but another backbone does not get those of the first."""
    same = settings.get("backbone", run.backbone) == run.backbone
    options = {
        "options": {**run.options, **settings.get("options", {})},
        "backbone_options": {**(run.backbone_options if same else {}), **settings.get("backbone_options", {})},
    }
    return replace(run, **{**settings, **options})


def with_methods(text: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Add or replace tables of methods in the text of a preset file; comments elsewhere stay."""
    import tomlkit  # noqa: PLC0415  (only a search writes presets)

    def inline(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        table = tomlkit.inline_table()
        table.update({key: inline(item) for key, item in value.items()})
        return table

    document = tomlkit.parse(text)
    methods: Any = document.setdefault("methods", tomlkit.table(is_super_table=True))
    for method, settings in tables.items():
        table = tomlkit.table()
        table.update({key: inline(value) for key, value in settings.items() if key != "provenance"})
        if "provenance" in settings:
            table["provenance"] = provenance = tomlkit.table()
            provenance.update({key: inline(value) for key, value in settings["provenance"].items()})
        methods[method] = table
    return tomlkit.dumps(document)
