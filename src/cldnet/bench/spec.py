"""A bench as a person writes it: methods × streams × seeds × configurations in one small TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cldnet.bench.cell import Cell
from cldnet.bench.preset import SETTINGS, for_method, preset
from cldnet.bench.recording import Record
from cldnet.bench.run import RunSpec
from cldnet.bench.wording import display_name
from cldnet.data.spec import StreamSpec
from cldnet.data.streams import SOURCES, STREAMS
from cldnet.methods import read_method
from cldnet.names import nearest_names

__all__ = ["Configuration", "Spec", "read_spec"]

_TABLES = ("options", "backbone_options")


@dataclass(frozen=True)
class Configuration:
    """Settings under a name, for some methods and streams or for all (none named)."""

    name: str
    settings: Mapping[str, Any]
    methods: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()

    def applies(self, method: str, stream: str) -> bool:
        """Whether the configuration is for a method on a stream."""
        return (not self.methods or method in self.methods) and (not self.streams or stream in self.streams)


@dataclass(frozen=True)
class Spec:
    """A bench: what is run with what.

    Attributes
    ----------
    name, title : str
    streams, methods : tuple of str
    seeds : tuple of int
    settings : mapping
        Settings of every run, over those of the presets; outside data only of runs of a method that takes them.
    configurations : tuple of Configuration
        A method runs in each configuration that is for it, or once as it is if there is none.
    record : Record
    presets : Path, optional
        Folder of presets that come before the bundled ones.
    """

    name: str
    title: str
    streams: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    configurations: tuple[Configuration, ...] = ()
    record: Record = Record()
    presets: Path | None = None

    def cells(self) -> list[Cell]:
        """List every cell: stream by stream, method by method, seed by seed.

        Examples
        --------
        >>> spec = Spec("s", "", ("split-digits",), ("ewc", "owm"), (0, 1))
        >>> [cell.name for cell in spec.cells()][:2]
        ['split-digits/ewc/seed0', 'split-digits/ewc/seed1']
        """
        return [
            Cell(stream, self._run(stream, method, configuration, seed), _label(method, configuration), self.record)
            for stream in self.streams
            for method in self.methods
            for configuration in self._configurations(method, stream)
            for seed in self.seeds
        ]

    def _configurations(self, method: str, stream: str) -> Sequence[Configuration]:
        own = [one for one in self.configurations if one.applies(method, stream)]
        return own or [Configuration("", {})]

    def _run(self, stream: str, method: str, configuration: Configuration, seed: int) -> RunSpec:
        run = preset(stream, method, seed, folder=self.presets)
        for settings in (for_method(method, self.settings), configuration.settings):
            run = _over(run, settings)
        return run


def read_spec(path: Path) -> Spec:
    """Read a specification, and say what is wrong with it before anything is run.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "small.toml"
    ...     _ = path.write_text('streams = ["split-digits"]; methods = ["exact"]; seeds = [0, 1]'.replace("; ", chr(10)))
    ...     read_spec(path).name, len(read_spec(path).cells())
    ('small', 2)
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"There is no file {str(path)!r}. Name a TOML file, such as specs/quick.toml.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}.") from error
    try:
        return _spec(path, table)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _spec(path: Path, table: Mapping[str, Any]) -> Spec:
    known = ("title", "streams", "seeds", "methods", "presets", "run", "record", "configurations")
    _refuse_unknown(table, known, "A bench")
    presets = None if "presets" not in table else path.parent / _text(table, "presets")
    if presets is not None and not presets.is_dir():
        raise ValueError(f"presets={table['presets']!r} should be a folder beside the file; there is no {presets}.")
    streams, methods = _texts(table, "streams"), _texts(table, "methods")
    for stream in streams:
        _check_stream(stream)
    for method in methods:
        read_method(method)
    spec = Spec(
        name=path.stem,
        title=_text(table, "title") if "title" in table else path.stem,
        streams=streams,
        methods=methods,
        seeds=_seeds(table.get("seeds", [0])),
        settings=_settings(_table(table, "run"), "[run]"),
        configurations=_configurations(table.get("configurations", []), streams, methods),
        record=_record(_table(table, "record")),
        presets=presets,
    )
    cells = spec.cells()
    for run in {repr(run): run for cell in cells for run in [replace(cell.spec, seed=0)]}.values():
        run.check()
    names = [cell.name for cell in cells]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{twice} is there twice: give every configuration of a method, and every folder of data, a name of its own."
        )
    return spec


def _configurations(tables: Any, streams: tuple[str, ...], methods: tuple[str, ...]) -> tuple[Configuration, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise ValueError("configurations should be tables, each under a line [[configurations]].")
    found = []
    for table in tables:
        _refuse_unknown(table, ("name", "methods", "streams", *SETTINGS), "A configuration")
        name = _text(table, "name")
        chosen = {}
        for what, known in (("methods", methods), ("streams", streams)):
            chosen[what] = _texts(table, what) if what in table else ()
            for one in chosen[what]:
                if one not in known:
                    raise ValueError(f"The configuration {name!r} is for {one!r}, which is none of the bench's {what}.")
        settings = {key: value for key, value in table.items() if key in SETTINGS}
        found.append(Configuration(name, _settings(settings, f"The configuration {name!r}"), **chosen))
    return tuple(found)


def _settings(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    _refuse_unknown(table, tuple(SETTINGS), where)
    for name, value in table.items():
        kind, expected = SETTINGS[name]
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 1):
            raise ValueError(f"{where} has {name} = {value!r}; expected {expected}.")
    return dict(table)


def _over(run: RunSpec, settings: Mapping[str, Any]) -> RunSpec:
    """Lay settings over a run's own; tables are joined, but another backbone has no use for the options of the first."""
    changed = {name: value for name, value in settings.items() if name not in _TABLES}
    same = settings.get("backbone", run.backbone) == run.backbone
    kept = {"options": run.options, "backbone_options": run.backbone_options if same else {}}
    joined = {name: {**kept[name], **settings.get(name, {})} for name in _TABLES}
    together: dict[str, Any] = {**changed, **joined}
    return replace(run, **together)


def _label(method: str, configuration: Configuration) -> str:
    return f"{display_name(method)}, {configuration.name}" if configuration.name else ""


def _check_stream(text: str) -> None:
    spec = StreamSpec.parse(text, SOURCES)
    if spec.path is None and spec.name not in STREAMS:
        raise ValueError(f"There is no stream {spec.name!r}. {nearest_names(spec.name, [*STREAMS, *SOURCES])}")


def _seeds(value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list) and value and all(type(seed) is int and 0 <= seed < 2**63 for seed in value)
    if not whole or len(set(value)) < len(value):
        raise ValueError(f"seeds={value!r} should be different whole numbers, as [0, 1, 2].")
    return tuple(value)


def _record(table: Mapping[str, Any]) -> Record:
    _refuse_unknown(table, [one.name for one in fields(Record)], "[record]")
    return Record(**table)


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = table.get(name, {})
    if not isinstance(inner, Mapping):
        raise ValueError(f"{name}={inner!r} should be a table, under a line [{name}].")
    return inner


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        raise ValueError(f'{name}={value!r} should be text, as {name} = "…".')
    return value


def _texts(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = table.get(name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise ValueError(f'{name}={values!r} should be a list of names, as {name} = ["…", "…"].')
    if len(set(values)) < len(values):
        raise ValueError(f"{name} names something twice: {values!r}.")
    return tuple(values)


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], whose: str) -> None:
    for name in table:
        if name not in known:
            raise ValueError(f"{whose} has no {name!r}. {nearest_names(name, known)}")
