"""The specification of a bench: methods × streams × seeds × configurations in one small TOML file."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from cldnet.bench.cell import Cell
from cldnet.bench.preset import Settings, for_method, override, preset
from cldnet.bench.run import Record
from cldnet.bench.validation import StrictTable, validate
from cldnet.data.streams import SOURCES, STREAMS, StreamSpec
from cldnet.methods import display_name, read_method
from cldnet.text import nearest_names


def _different(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError(f"has something twice: {values!r}.")
    return values


Names = Annotated[list[str], Field(min_length=1), AfterValidator(_different)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Configuration(Settings):
    """Settings under a name, for some methods and streams, or for all if none are named."""

    name: str = Field(min_length=1)
    methods: Names | None = None
    streams: Names | None = None

    def applies(self, method: str, stream: str) -> bool:
        """Whether the configuration applies to a method on a stream."""
        return method in (self.methods or [method]) and stream in (self.streams or [stream])


class Spec(StrictTable):
    """A bench: what is run with what.

    A method runs in each configuration that applies to it, or once with its own settings if none does.
    """

    name: str
    title: str
    streams: Names
    methods: Names
    seeds: Annotated[list[Seed], Field(min_length=1), AfterValidator(_different)] = [0]  # noqa: RUF012  (frozen)
    run: Settings = Settings()  # of every run, over those of the presets
    configurations: list[Configuration] = []  # noqa: RUF012
    record: Record = Record()
    presets: Path | None = None  # a folder of presets that take precedence over the library's

    def cells(self) -> list[Cell]:
        """List every cell: stream by stream, method by method, seed by seed."""
        cells = []
        for stream, method in product(self.streams, self.methods):
            own = [one for one in self.configurations if one.applies(method, stream)]
            for configuration in own or (None,):
                label = "" if configuration is None else f"{display_name(method)}, {configuration.name}"
                for seed in self.seeds:
                    run = preset(stream, method, seed, folder=self.presets)
                    run = override(run, for_method(method, self.run.given()))
                    if configuration is not None:
                        run = override(run, configuration.given())
                    cells.append(Cell(stream, run, label, self.record))
        return cells


def read_spec(path: Path) -> Spec:
    r"""Read a specification, and refuse what could not run before anything runs."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"There is no file {str(path)!r}. Name a TOML file, such as specs/quick.toml.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}.") from error
    try:
        if "name" in table:
            raise ValueError("A bench is named after its file: leave name out.")
        if isinstance(table.get("presets"), str):
            table["presets"] = path.parent / table["presets"]
        spec = validate(Spec, {"name": path.stem, "title": path.stem, **table})
        _check(spec)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return spec


def _check(spec: Spec) -> None:
    """Refuse unknown streams, methods and options, and cells that would have the same name."""
    if spec.presets is not None and not spec.presets.is_dir():
        raise ValueError(f"presets should be a folder relative to the file, but {spec.presets} does not exist.")
    for text in spec.streams:
        stream = StreamSpec.parse(text, SOURCES)
        if stream.path is None and stream.name not in STREAMS:
            raise ValueError(f"There is no stream {stream.name!r}. {nearest_names(stream.name, [*STREAMS, *SOURCES])}")
    for method in spec.methods:
        read_method(method)
    for one in spec.configurations:
        for what, named, known in (("methods", one.methods, spec.methods), ("streams", one.streams, spec.streams)):
            for name in named or ():
                if name not in known:
                    raise ValueError(
                        f"The configuration {one.name!r} is for {name!r}, which is not among the bench's {what}."
                    )
    cells = spec.cells()
    for run in {repr(run): run for cell in cells for run in [replace(cell.spec, seed=0)]}.values():
        run.check()
    name, count = Counter(cell.name for cell in cells).most_common(1)[0]
    if count > 1:
        raise ValueError(
            f"There are two cells {name}: give every configuration of a method, and every folder of data, its own name."
        )


def demo_spec() -> Spec:
    """Split Digits in three class orders, with the two bounds, two rivals and both CLDNet solvers."""
    return Spec(
        name="demo",
        title="CLDNet demo: ten digits, two at a time",
        streams=["split-digits"],
        methods=["finetune", "ewc", "owm", "cldnet", "exact", "joint"],  # from the lower bound to the upper one
        seeds=[0, 1, 2],
    )
