"""Published figures from ``published.toml``, each with its source, and with a note if it is doubtful."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from cldnet.bench.validation import StrictTable, validate
from cldnet.methods import display_name

Reading = Literal["class-il", "task-il"]


def _percentage(value: Any) -> Decimal:
    if not isinstance(value, int | Decimal) or not 0 <= value <= 100:
        raise ValueError(f"is {value}; expected a number from 0 to 100.")
    return Decimal(value)


Percentage = Annotated[Decimal, PlainValidator(_percentage)]
Text = Annotated[str, Field(min_length=1)]


class _Figure(StrictTable):
    stream: Text  # our name for it, as for the method
    method: Text
    mean: Percentage  # average accuracy after the last task in per cent, as printed (a Decimal keeps the digits)
    std: Percentage | None = None
    what: str = ""  # how it differs from others of the method, as "buffer 200", or the name of a configuration
    note: str = ""  # why it cannot be compared directly
    reading: Reading = "class-il"  # whether the task was given at test time
    capacity: Percentage | None = None  # growth of the model, as the CLDNet paper counts it
    where: dict[str, Any] = {}  # noqa: RUF012  options of the method that our run must have to stand beside it


class Published(_Figure):
    """One published figure."""

    name: str  # of the method, as people write it
    source: str  # authors, venue and table, or a repository and its file


class _Source(StrictTable):
    source: Text
    figures: list[_Figure] = Field(default_factory=list)


class _File(StrictTable):
    names: dict[str, str] = Field(default_factory=dict)
    notes: dict[str, str] = Field(default_factory=dict)
    sources: list[_Source] = Field(default_factory=list)


@cache
def published_figures() -> tuple[Published, ...]:
    """All published figures that come with the library, in the order of the file."""
    return read_published((files("cldnet.bench") / "published.toml").read_text("utf-8"))


def read_published(text: str) -> tuple[Published, ...]:
    """Read figures from TOML of the layout that ``published.toml`` describes."""
    content = validate(_File, tomllib.loads(text, parse_float=Decimal))
    notes = {"": "", **content.notes}
    figures = []
    for source in content.sources:
        for figure in source.figures:
            name = content.names.get(figure.method, display_name(figure.method))
            more = {"name": name, "source": source.source, "note": notes[figure.note]}
            figures.append(Published(**{**figure.model_dump(), **more}))
    return tuple(figures)
