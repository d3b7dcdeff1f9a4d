"""What others published: figures out of ``published.toml``, each with its source, and with a doubt where there is one."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from cldnet.bench.wording import display_name

__all__ = ["Printed", "Published", "Reading", "published_figures", "published_for", "read_published"]

Reading = Literal["class-il", "task-il"]
_NUMBERS = ("mean", "std", "capacity")
_TEXTS = ("stream", "method", "what", "note", "reading")


class Printed(float):
    """A number that keeps the digits that it was printed with.

    Examples
    --------
    >>> Printed("91.60") - 1, Printed("91.60").text
    (90.6, '91.60')
    """

    text: str

    def __new__(cls, text: str) -> Printed:
        """Take a number as its digits."""
        number = super().__new__(cls, text)
        number.text = text
        return number


@dataclass(frozen=True)
class Published:
    """One published figure.

    Attributes
    ----------
    stream, method : str
        Our names for both.
    name : str
        The method's name as people write it.
    mean, std : Printed, Printed or None
        Average accuracy after the last task in per cent, as printed, and its standard deviation.
    source : str
        Authors, venue and table, or a repository and its file.
    what : str
        What sets the figure apart from others of the same method, such as the size of a buffer; a configuration of that
        name stands beside it.
    note : str
        Why it is not to be compared without a second thought.
    reading : "class-il" or "task-il"
        Whether the task was told at test.
    capacity : Printed or None
        Growth of the model, as the CLDNet paper counts it.
    where : mapping
        Options of the method that a run of ours must have to stand beside it.
    """

    stream: str
    method: str
    name: str
    mean: Printed
    source: str
    std: Printed | None = None
    what: str = ""
    note: str = ""
    reading: Reading = "class-il"
    capacity: Printed | None = None
    where: Mapping[str, Any] = field(default_factory=dict)


@cache
def published_figures() -> tuple[Published, ...]:
    """All published figures that come with the library, in the order of the file.

    Examples
    --------
    >>> published_figures()[0].mean, published_figures()[0].source
    (36.52, 'Li et al., AAAI-24 (arXiv 2401.09067), Table 1')
    """
    return read_published((files("cldnet.bench") / "published.toml").read_text("utf-8"))


def published_for(stream: str, method: str) -> tuple[Published, ...]:
    """Published figures of a method on a stream. Options behind the stream's name make no difference.

    Examples
    --------
    >>> [(figure.what, figure.mean) for figure in published_for("split-cifar100,order=sorted", "er")]
    [('buffer 200', 18.09), ('buffer 500', 28.25), ('buffer 2000', 43.18)]
    """
    base = stream.partition(",")[0].strip()
    return tuple(figure for figure in published_figures() if (figure.stream, figure.method) == (base, method))


def read_published(text: str) -> tuple[Published, ...]:
    """Read figures from TOML of the layout that ``published.toml`` describes.

    Raises
    ------
    ValueError
        If a figure lacks something, has something that no figure has, or refers to a note that is not there; and if there
        is a name or a note that no figure has.
    """
    content = tomllib.loads(text, parse_float=Printed)
    names, notes = content.get("names", {}), content.get("notes", {})
    figures = [
        _figure(entry, _source(source), names, notes)
        for source in content.get("sources", [])
        for entry in source.get("figures", [])
    ]
    _refuse_unused(content)
    seen: set[tuple[str, ...]] = set()
    for figure in figures:
        key = figure.stream, figure.method, figure.what, figure.source
        if key in seen:
            raise ValueError(f"Published figures have {', '.join(filter(None, key))} twice: say what sets them apart.")
        seen.add(key)
    return tuple(figures)


def _refuse_unused(content: Mapping[str, Any]) -> None:
    """A name or a note without a figure was forgotten, or its figure was."""
    figures = [entry for source in content.get("sources", []) for entry in source.get("figures", [])]
    for table, key in (("names", "method"), ("notes", "note")):
        unused = {*content.get(table, {})} - {entry.get(key) for entry in figures}
        if unused:
            raise ValueError(
                f"Published figures have {min(unused)!r} among their {table}, and no figure of it: delete it."
            )


def _source(table: Mapping[str, Any]) -> str:
    source = table.get("source")
    if not isinstance(source, str) or not source.strip():
        raise ValueError("Published figures need a source: authors, venue and table.")
    return source


def _figure(entry: Mapping[str, Any], source: str, names: Mapping[str, str], notes: Mapping[str, str]) -> Published:
    where = f"A published figure of {source} ({entry.get('method')!r} on {entry.get('stream')!r})"
    unknown = {*entry} - {*_NUMBERS, *_TEXTS, "where"}
    if unknown:
        raise ValueError(f"{where} has {min(unknown)!r}, which no figure has.")
    for key in _TEXTS:
        if not isinstance(entry.get(key, ""), str) or (key in ("stream", "method") and not entry.get(key)):
            raise ValueError(f"{where} has {key} = {entry.get(key)!r}; expected a text.")
    for key in _NUMBERS:
        value = entry.get(key, None if key == "mean" else 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise ValueError(f"{where} has {key} = {value!r}; expected a number from 0 to 100.")
    if entry.get("reading", "class-il") not in get_args(Reading):
        raise ValueError(f"{where} has reading = {entry['reading']!r}; expected one of {get_args(Reading)}.")
    if not isinstance(entry.get("where", {}), Mapping):
        raise ValueError(f"{where} has where = {entry['where']!r}; expected a table of options.")
    if "note" in entry and entry["note"] not in notes:
        raise ValueError(f"{where} refers to a note {entry['note']!r} that is not there.")
    method = entry["method"]
    name = names.get(method, display_name(method))
    if name == method:
        raise ValueError(f"{where} is of a method without a name: add it to [names].")
    numbers = {key: _printed(entry[key]) for key in _NUMBERS if key in entry}
    told = {"name": name, "source": source, "note": notes.get(entry.get("note", ""), "")}
    return Published(**{**entry, **numbers, **told})


def _printed(number: float) -> Printed:
    return number if isinstance(number, Printed) else Printed(str(number))  # a whole number is read as it is
