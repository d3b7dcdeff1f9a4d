"""The tables of the page: a row for every ratio, with whatever else its part has noted about it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.speed import say
from benchmarks.speed.record import Curve, Finding, NotRun
from benchmarks.speed.result import together

from cldnet.bench.report.svg import text
from cldnet.bench.report.tables import Column, html_table

_SECONDS = "Seconds, both sides"
_WORDS = 14  # letters that fit into a column of figures
_CLASSES = {True: "met", False: "missed", None: "none"}


def targets_table(findings: Sequence[Finding]) -> str:
    """Every target, with what was measured and whether it is met."""
    aimed = together(one for one in findings if one.target is not None)
    columns = [*_figures(), _column("Target", 5, say.target), Column("", 6, _verdict, lambda one: one.met or 0)]
    return html_table("all-targets", "Targets", columns, aimed) if aimed else ""


def findings_table(part: str, findings: Sequence[Finding]) -> str:
    """All ratios of a part, each with the seconds of both sides and what the part has noted."""
    noted = {one.name: dict(_notes(one.details)) for one in findings}
    names = list(dict.fromkeys(name for notes in noted.values() for name in notes))

    def column(name: str) -> Column[Finding]:
        longest = max(len(notes.get(name, "")) for notes in noted.values())
        width, kind = (14.0, "words") if longest > _WORDS else (7.5, "")
        return _column(name, width, lambda one: noted[one.name].get(name, "–"), kind)

    if not findings:
        return ""
    table = html_table(f"{part}-ratios", "Ratios", [*_figures(), *map(column, names)], together(findings))
    # What stands in the plots already need not be in the way of those who read on.
    more = set(names) - {_SECONDS}
    return table if more else f"<details><summary>The same as numbers</summary>\n{table}</details>"


def curves_table(part: str, curves: Sequence[Curve]) -> str:
    """All curves of a part, with the exponents and the points."""

    def points(curve: Curve) -> str:
        return ", ".join(f"{say.quantity(x)}: {say.quantity(y)}" for x, y in curve.points)

    columns: list[Column[Curve]] = [
        _column("Growth", 18, lambda one: one.title),
        _column("Exponent", 5, lambda one: f"{round(one.exponent, 2) + 0.0:.2f}"),
        _column("Expected", 5, lambda one: "–" if one.expected is None else f"{one.expected:g}"),
        _column("From", 10, lambda one: f"{one.up} over {one.across}", "words"),
        _column("Points", 24, points, "words"),
    ]
    return html_table(f"{part}-growth", "Growth", columns, curves) if curves else ""


def limits_table(limits: Mapping[str, Any]) -> str:
    """What the machine can do, a row for each number of threads."""
    names = {
        "sgemm": "Matrix products, float32",
        "dgemm": "Matrix products, float64",
        "memory": "Memory, read and written",
    }
    known = dict.fromkeys(name for rates in limits.values() for name in rates)

    def column(name: str) -> Column[str]:
        def show(count: str) -> str:
            rate = limits[count][name]
            low, high = (say.rate(name, rate[side]).split(" ")[0] for side in ("low", "high"))
            return f"{say.rate(name, rate['median'])} ({low}–{high})"

        return _column(names.get(name, name), 13, show)

    columns = [_column("Threads", 6, lambda count: say.thread_count(int(count))), *map(column, known)]
    return html_table("limits-table", "Limits", columns, list(limits)) if limits else ""


def not_run_table(missing: Sequence[NotRun]) -> str:
    """What was not measured, and why."""
    columns: list[Column[NotRun]] = [
        _column("What", 24, lambda one: one.title),
        _column("Why", 30, lambda one: one.reason, "words"),
    ]
    return html_table("missing", "Not run", columns, missing) if missing else ""


def _figures() -> list[Column[Finding]]:
    return [
        _column("Ratio", 20, lambda one: one.title),
        _column("Threads", 4.5, lambda one: str(one.threads)),
        _column("By the clock", 11, lambda one: say.spread(one.ratio)),
        _column("By CPU time", 11, say.cpu),
    ]


def _column(title: str, width: float, show: Callable[[Any], str], kind: str = "") -> Column[Any]:
    return Column(text(title), width, lambda row: text(show(row)), show, kind=kind)


def _verdict(finding: Finding) -> str:
    return f'<span class="{_CLASSES[finding.met]}">{say.VERDICTS[finding.met]}</span>'


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
