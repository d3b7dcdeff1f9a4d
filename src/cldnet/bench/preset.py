"""Settings of methods on streams, each with the story of how it was chosen.

They live in files ``STREAM.toml``: those that come with the library, and those of a folder of your own, which go first.
``[common]`` holds what all methods share, ``[methods.NAME]`` what one method has of its own. A method's table is the first
one that there is, and so is each common setting: whoever's table a method has, the budget is the same for all.
``validation`` and ``provenance`` tell how settings were chosen, and change no run.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from cldnet.bench.run import RunSpec
from cldnet.data.spec import StreamSpec
from cldnet.data.streams import SOURCES
from cldnet.methods import read_method
from cldnet.names import nearest_names

__all__ = ["SETTINGS", "common_settings", "for_method", "load_presets", "preset", "preset_name"]

_TABLE, _TEXT, _WHOLE = (Mapping, "a table"), (str, "a text"), (int, "a whole number of at least 1")
#: What a preset may say of a run, and of which type it is.
SETTINGS: Mapping[str, tuple[Any, str]] = {
    "epochs": _WHOLE,
    "batch_size": _WHOLE,
    "options": _TABLE,
    "backbone": _TEXT,
    "backbone_options": _TABLE,
    "augment": _TEXT,
    "normalise": _TEXT,
    "outside": _TEXT,
}
_STORY: Mapping[str, tuple[Any, str]] = {"validation": ((int, float), "a number"), "provenance": _TABLE}


def preset_name(stream: str) -> str:
    """Name the file, without its ending, that holds a stream's presets. Options behind the stream's name make no difference.

    Examples
    --------
    >>> preset_name("split-digits,online=10"), preset_name("folder:/home/me/my pets,size=64")
    ('split-digits', 'folder-my-pets')
    """
    spec = StreamSpec.parse(stream, SOURCES)
    name = spec.name if spec.path is None else f"{spec.name}-{Path(spec.path).expanduser().resolve().name}"
    return re.sub(r"[^\w.-]", "-", name)


def load_presets(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Read all presets of one file, by its name without the ending; an empty table if there is no such file.

    Parameters
    ----------
    name : str
    folder : Path, optional
        Where to look; by default among the presets that come with the library.

    Examples
    --------
    >>> load_presets("split-digits")["common"], "cldnet" in load_presets("split-digits")["methods"]
    ({'epochs': 10, 'batch_size': 16}, True)
    """
    path: Traversable = (files("cldnet.bench") / "presets" if folder is None else folder) / f"{name}.toml"
    if not path.is_file():
        return {}
    try:
        presets = copy.deepcopy(_parsed(path.read_text("utf-8")))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ValueError(f"{path} cannot be read as TOML: {error}.") from error
    _check(path, "", presets, dict.fromkeys(("common", "methods"), _TABLE))
    _check(path, "common.", presets.get("common", {}), SETTINGS)
    methods = presets.get("methods", {})
    _check(path, "methods.", methods, dict.fromkeys(methods, _TABLE))
    for method, table in methods.items():
        _check(path, f"methods.{method}.", table, {**SETTINGS, **_STORY})
    return presets


@lru_cache(maxsize=8)
def _parsed(text: str) -> dict[str, Any]:
    """Parse a text once: every cell of a bench asks for its preset, and the stories in it are long."""
    return tomllib.loads(text)


def common_settings(name: str, folder: Path | None = None) -> dict[str, Any]:
    """Give what holds for all methods of a stream, each setting from the first place that has it.

    Parameters
    ----------
    name : str
        Of the preset file, without its ending.
    folder : Path, optional
        A folder of presets that go before those of the library.

    Examples
    --------
    >>> common_settings("split-digits")
    {'epochs': 10, 'batch_size': 16}
    """
    last_first = reversed([presets.get("common", {}) for presets in _places(name, folder)])
    return {key: value for common in last_first for key, value in common.items()}


def _places(name: str, folder: Path | None) -> list[dict[str, Any]]:
    """All preset files of one name, the first one first."""
    return [load_presets(name, place) for place in dict.fromkeys((folder, None))]


def preset(stream: str, method: str, seed: int, threads: int | None = None, folder: Path | None = None) -> RunSpec:
    """Make the specification of a run from the preset of a method on a stream, or from the method's own defaults.

    Options behind the stream's name change nothing: a variant takes the preset of the stream that it is made from. Outside
    data that ``[common]`` names are for the methods that learn from such.

    Parameters
    ----------
    stream, method : str
    seed : int
    threads : int, optional
    folder : Path, optional
        A folder of presets that go before those of the library: a method that it has no settings of in its file of the
        stream takes the library's. What its ``[common]`` says holds for that method as well.

    Examples
    --------
    >>> preset("split-digits", "finetune", seed=1).seed
    1
    """
    name = preset_name(stream)
    tables = (presets.get("methods", {}) for presets in _places(name, folder))
    special: Mapping[str, Any] = next((table[method] for table in tables if method in table), {})
    settings = {**for_method(method, common_settings(name, folder)), **special}
    chosen = {key: value for key, value in settings.items() if key in SETTINGS}
    return RunSpec(method=method, seed=seed, threads=threads, **chosen)


def for_method(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give those of the settings for all methods that are for this one too: outside data are only for those that take them.

    Examples
    --------
    >>> for_method("ewc", {"epochs": 3, "outside": "fmnist"}), for_method("dmc", {"outside": "fmnist"})
    ({'epochs': 3}, {'outside': 'fmnist'})
    """
    takes = "outside" not in settings or read_method(method).traits.outside_data
    return {key: value for key, value in settings.items() if key != "outside" or takes}


def _check(path: Traversable, where: str, table: Mapping[str, Any], known: Mapping[str, tuple[Any, str]]) -> None:
    """Refuse keys that mean nothing here, and values that cannot be meant."""
    for key, value in table.items():
        if key not in known:
            raise ValueError(f"{path} has {where}{key}, which no preset has. {nearest_names(key, known)}")
        kind, expected = known[key]
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 1):
            raise ValueError(f"{path} has {where}{key} = {value!r}; expected {expected}.")
