"""The two tables of the page, one row a method and one row a run, as HTML and as keys to sort and filter by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from cldnet.bench.report.figures import BOUNDS
from cldnet.bench.report.reading import LARGEST, legible, number
from cldnet.bench.report.svg import clean, text
from cldnet.bench.summary import Result, Summary
from cldnet.bench.table.parts import NO_FIGURE
from cldnet.bench.wording import NEEDS_THE_TASK, NOT_RUN, human_bytes, percent, yes_no

__all__ = [
    "Row",
    "best_accuracies",
    "html_table",
    "link",
    "needs_the_task",
    "results_columns",
    "runs_columns",
    "sort_keys",
]

Key = float | str | None


@dataclass(frozen=True)
class Row:
    """A run with its summary; no result where it was not run, and then perhaps the reason why it failed."""

    summary: Summary
    seed: int
    result: Result | None
    failure: str = ""


T = TypeVar("T")


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column: its title, its width in rem, what it shows (HTML) and what it sorts by.

    A key that is None comes last in any order; `first` is the order of a first click, `kind` a class for the style sheet.
    """

    title: str
    width: float
    show: Callable[[T], str]
    key: Callable[[T], Key]
    first: str = "ascending"
    kind: str = ""


def results_columns(summaries: Sequence[Summary]) -> list[Column[Summary]]:
    """Return the columns of the table with one row a method (and configuration) and stream."""
    best = best_accuracies(summaries)

    def accuracy(s: Summary) -> str:
        words = text(s.accuracy_text) if s.accuracy is not None else _why_not(s)
        first = s.accuracy is not None and s.method not in BOUNDS and s.accuracy == best.get(s.stream)
        return f"<strong>{words}</strong>" if first else words

    def score(
        value: Callable[[Summary], float | None], why_not: Callable[[Summary], str] = _why_not
    ) -> tuple[Callable[[Summary], str], Callable[[Summary], Key]]:
        return (lambda s: why_not(s) if (found := value(s)) is None else percent(found)), value

    def told(s: Summary) -> str:
        return NO_FIGURE if s.runs else NOT_RUN

    def known(show: Callable[[Summary], str]) -> Callable[[Summary], str]:
        return lambda s: show(s) if s.runs else "–"

    columns = [
        Column[Summary]("Method", 13, lambda s: text(s.marked_name), lambda s: s.name),
        Column[Summary]("Stream", 8, lambda s: text(s.stream), lambda s: s.stream, kind="words"),
        Column("Accuracy", 8.5, accuracy, lambda s: s.accuracy, "descending"),
        Column("Incremental accuracy", 6.7, *score(lambda s: s.incremental_accuracy), "descending"),
        Column("Forgetting", 6.7, *score(lambda s: s.forgetting)),
        Column("Task-IL accuracy", 6.7, *score(lambda s: s.task_il_accuracy, told), "descending"),
        Column[Summary]("Seconds", 5.2, known(lambda s: f"{s.seconds or 0:,.1f}"), lambda s: s.seconds),
        Column[Summary]("Bytes kept", 5.5, known(lambda s: human_bytes(s.bytes_kept or 0)), lambda s: s.bytes_kept),
        Column("Grows?", 4.5, known(lambda s: yes_no(s.grows)), lambda s: yes_no(s.grows) if s.runs else None),
        Column(
            "Keeps data?",
            4.5,
            known(lambda s: yes_no(s.keeps_data)),
            lambda s: yes_no(s.keeps_data) if s.runs else None,
        ),
        Column("Runs", 4.5, _runs_text, lambda s: s.runs, "descending"),
    ]
    return _without_stream(columns, {s.stream for s in summaries})


def runs_columns(rows: Sequence[Row], link_to: Callable[[str], str]) -> list[Column[Row]]:
    """Return the columns of the table with one row a run."""

    def score(name: str) -> tuple[Callable[[Row], str], Callable[[Row], Key]]:
        def value(row: Row) -> float | None:
            return None if row.result is None else row.result["scores"][name]

        def show(row: Row) -> str:
            if row.result is None:
                return "failed" if row.failure else NOT_RUN
            return _no_figure([row.result]) if (found := value(row)) is None else percent(found)

        return show, value

    def fact(of: Callable[[Result], float | None], say: Callable[[float], str]) -> tuple[Any, Any]:
        def value(row: Row) -> float | None:
            if row.result is None:
                return None
            with legible(row.result, "figures"):
                found = of(row.result)
                return None if found is None else number(found, 0, LARGEST)

        return (lambda row: "–" if (found := value(row)) is None else say(found)), value

    columns: list[Column[Row]] = [
        Column("Method", 15, lambda row: text(row.summary.marked_name), lambda row: row.summary.name),
        Column("Stream", 9.5, lambda row: text(row.summary.stream), lambda row: row.summary.stream, kind="words"),
        Column("Seed", 4, lambda row: str(row.seed), lambda row: row.seed),
        Column("Accuracy", 7.5, *score("average_accuracy"), "descending"),
        Column("Forgetting", 7.5, *score("forgetting")),
        Column("Seconds", 5.5, *fact(lambda r: r["seconds"]["total"], "{:,.1f}".format)),
        Column("Peak memory", 5.5, *fact(lambda r: r.get("peak_rss"), human_bytes)),
        Column("Bytes kept", 5.5, *fact(lambda r: sum(r["bytes"].values()), human_bytes)),
        Column("Threads", 5, *fact(lambda r: r.get("threads"), "{:.0f}".format)),
        Column(
            "File", 4, lambda row: _file(row, link_to), lambda row: None if row.result is None else row.result["file"]
        ),
    ]
    return _without_stream(columns, {row.summary.stream for row in rows})


def html_table(name: str, caption: str, columns: Sequence[Column[T]], rows: Sequence[T]) -> str:
    """Return a table in a region of its own, which scrolls by itself."""
    widths = "".join(f'<col style="width:{column.width}rem">' for column in columns)
    head = "".join(
        f'<th scope="col" class="{column.kind}" data-first="{column.first}">{column.title}</th>' for column in columns
    )
    body = "\n".join(_html_row(columns, row) for row in rows)
    tall = " tall" if len(rows) > 40 else ""
    return (
        f'<div class="scroll {name}{tall}" role="region" aria-label="{caption}" tabindex="0">\n'
        f'<table id="{name}" class="sorted" style="min-width:{sum(column.width for column in columns)}rem">\n'
        f"<caption>{caption}</caption>\n<colgroup>{widths}</colgroup>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def sort_keys(columns: Sequence[Column[T]], rows: Sequence[T]) -> list[list[Key]]:
    """Return what each row sorts by, a list a row."""
    return [[_compact(column.key(row)) for column in columns] for row in rows]


def link(href: str, words: str) -> str:
    """Return a link to a file near the page; the name of a file cannot lead elsewhere.

    Examples
    --------
    >>> link("javascript:x", "a")
    '<a href="./javascript%3Ax">a</a>'
    """
    # "./" and quoted colons keep the link on this site: no "javascript:", no "//elsewhere".
    return f'<a href="./{text(quote(href, safe="/", errors="replace"))}">{text(words)}</a>'


def best_accuracies(summaries: Sequence[Summary]) -> dict[str, float]:
    """Return the highest accuracy of each stream, the bounds left out, where there are several to compare."""
    rivals: dict[str, list[float]] = {}
    for s in summaries:
        if s.accuracy is not None and s.method not in BOUNDS:
            rivals.setdefault(s.stream, []).append(s.accuracy)
    return {stream: max(values) for stream, values in rivals.items() if len(values) > 1}


def needs_the_task(results: Sequence[Result]) -> bool:
    """Tell whether runs have no class-incremental accuracy at all, since their method must be told the task."""
    return bool(results) and all(result["scores"]["average_accuracy"] is None for result in results)


def _no_figure(results: Sequence[Result]) -> str:
    # Without forgetting alone, a method needs no task: there is nothing to forget after a single one.
    return NEEDS_THE_TASK if needs_the_task(results) else NO_FIGURE


def _why_not(summary: Summary) -> str:
    return _no_figure(summary.results) if summary.runs else NOT_RUN


def _runs_text(summary: Summary) -> str:
    planned = summary.runs + len(summary.missing)
    return f"{summary.runs} of {planned}" if summary.missing else str(summary.runs)


def _file(row: Row, link_to: Callable[[str], str]) -> str:
    return "–" if row.result is None else link(link_to(str(row.result["file"])), "JSON")


def _without_stream(columns: list[Column[T]], streams: set[str]) -> list[Column[T]]:
    return columns if len(streams) > 1 else [column for column in columns if column.title != "Stream"]


def _html_row(columns: Sequence[Column[T]], row: T) -> str:
    soft = {NEEDS_THE_TASK, NO_FIGURE, NOT_RUN, "failed", "–"}
    cells = ""
    for column in columns[1:]:
        cell = column.show(row)
        kind = "none" if cell in soft else column.kind
        cells += f'<td class="{kind}">{cell}</td>' if kind else f"<td>{cell}</td>"
    return f'<tr><th scope="row">{columns[0].show(row)}</th>{cells}</tr>'


def _compact(key: Key) -> Key:
    return float(f"{key:.8g}") if isinstance(key, float) else clean(key) if isinstance(key, str) else key
