"""The tables of the page: a row for every ratio, with whatever else its part has noted about it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.speed import say
from benchmarks.speed.record import Curve, Finding, NotRun
from benchmarks.speed.result import together
from markupsafe import Markup

_SECONDS = "Seconds, both sides"
_WORDS = 14  # letters that fit into a column of figures
_CLASSES = {True: "met", False: "missed", None: "none"}


class Column(NamedTuple):
    """A column: its title, its width in rem, what it shows of a row, and a class for the style sheet."""

    title: str
    width: float
    show: Callable[[Any], str]
    kind: str = ""


class Table(NamedTuple):
    """A table of the page; columns are titles, widths, orders (nothing sorts here) and classes."""

    name: str
    caption: str
    columns: list[tuple[str, float, str, str]]
    rows: list[list[str]]
    folded: bool = False


def targets_table(findings: Sequence[Finding]) -> list[Table]:
    """Every target, with what was measured and whether it is met."""
    aimed = together(one for one in findings if one.target is not None)
    columns = [*_figures(), Column("Target", 9, say.target), Column("", 6, _verdict)]
    return _table("all-targets", "Targets", columns, aimed)


def findings_table(part: str, findings: Sequence[Finding]) -> list[Table]:
    """All ratios of a part, each with the seconds of both sides and what the part has noted."""
    noted = {one.name: dict(_notes(one.details)) for one in findings}
    names = list(dict.fromkeys(name for notes in noted.values() for name in notes))

    def column(name: str) -> Column:
        longest = max(len(notes.get(name, "")) for notes in noted.values())
        width, kind = (14.0, "words") if longest > _WORDS else (7.5, "")
        return Column(name, width, lambda one: noted[one.name].get(name, "–"), kind)

    # What stands in the plots already need not be in the way of those who read on.
    folded = not set(names) - {_SECONDS}
    return _table(f"{part}-ratios", "Ratios", [*_figures(), *map(column, names)], together(findings), folded)


def curves_table(part: str, curves: Sequence[Curve]) -> list[Table]:
    """All curves of a part, with the exponents and the points."""

    def points(curve: Curve) -> str:
        return ", ".join(f"{say.quantity(x)}: {say.quantity(y)}" for x, y in curve.points)

    columns: list[Column] = [
        Column("Growth", 18, lambda one: one.title),
        Column("Exponent", 5, lambda one: f"{round(one.exponent, 2) + 0.0:.2f}"),
        Column("Expected", 5, lambda one: "–" if one.expected is None else f"{one.expected:g}"),
        Column("From", 10, lambda one: f"{one.up} over {one.across}", "words"),
        Column("Points", 24, points, "words"),
    ]
    return _table(f"{part}-growth", "Growth", columns, curves)


def limits_table(limits: Mapping[str, Any]) -> list[Table]:
    """What the machine can do, a row for each number of threads."""
    names = {
        "sgemm": "Matrix products, float32",
        "dgemm": "Matrix products, float64",
        "memory": "Memory, read and written",
    }
    known = dict.fromkeys(name for rates in limits.values() for name in rates)

    def column(name: str) -> Column:
        def show(count: str) -> str:
            rate = limits[count][name]
            low, high = (say.rate(name, rate[side]).split(" ")[0] for side in ("low", "high"))
            return f"{say.rate(name, rate['median'])} ({low}–{high})"

        return Column(names.get(name, name), 13, show)

    columns = [Column("Threads", 6, lambda count: say.thread_count(int(count))), *map(column, known)]
    return _table("limits-table", "Limits", columns, list(limits))


def not_run_table(missing: Sequence[NotRun]) -> list[Table]:
    """What was not measured, and why."""
    columns: list[Column] = [
        Column("What", 24, lambda one: one.title),
        Column("Why", 30, lambda one: one.reason, "words"),
    ]
    return _table("missing", "Not run", columns, missing)


def _figures() -> list[Column]:
    return [
        Column("Ratio", 20, lambda one: one.title),
        Column("Threads", 4.5, lambda one: str(one.threads)),
        Column("By the clock", 11, lambda one: say.spread(one.ratio)),
        Column("By CPU time", 11, say.cpu),
    ]


def _table(
    name: str, caption: str, columns: Sequence[Column], rows: Sequence[Any], folded: bool = False
) -> list[Table]:
    """The table, or nothing if it has no rows."""
    heads = [(column.title, column.width, "", column.kind) for column in columns]
    cells = [[column.show(row) for column in columns] for row in rows]
    return [Table(name, caption, heads, cells, folded)] if rows else []


def _verdict(finding: Finding) -> str:
    return Markup('<span class="{}">{}</span>').format(_CLASSES[finding.met], say.VERDICTS[finding.met])


def _notes(details: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Everything with a name and one value; lists are left to the file, but for the seconds of both sides."""
    for name, value in details.items():
        words = f"{above}{name}".replace("_", " ")
        title = words[:1].upper() + words[1:]
        if name == "seconds" and isinstance(value, Mapping) and {"above", "below"} <= set(value):
            both = (say.figure(statistics.median(value[side]["wall"])) for side in ("above", "below"))
            yield _SECONDS, " / ".join(both)
        elif isinstance(value, Mapping):
            yield from _notes(value, f"{words} ")
        elif isinstance(value, bool) or value is None:
            yield title, {True: "yes", False: "no", None: "–"}[value]
        elif isinstance(value, int | float):
            yield title, say.quantity(value)
        elif isinstance(value, str):
            yield title, value
