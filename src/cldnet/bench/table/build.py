"""From the contents of folders to a table: runs of one configuration share a row, one stream a column."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev

from cldnet.bench.results import Folder, Planned
from cldnet.bench.summary import Result, Summary, summarise
from cldnet.bench.table.notes import table_notes
from cldnet.bench.table.parts import BOUNDS, NO_FIGURE, ClassOrders, Difference, Entry, Row, Table
from cldnet.bench.table.quotes import quotes, with_published
from cldnet.bench.table.score import Score, score_by_name
from cldnet.bench.wording import NEEDS_THE_TASK, NOT_RUN
from cldnet.names import nearest_names

__all__ = ["build_table"]


def build_table(
    folders: Sequence[Folder], *, score: str = "accuracy", against: str | None = None, published: bool = True
) -> Table:
    """Make a table from folders of results.

    Parameters
    ----------
    folders : sequence of Folder
        As `cldnet.bench.results.read_folder` gives them. Runs of the same configuration share a row, whatever their folder.
    score : str
        One of `cldnet.bench.score.SCORES`.
    against : str, optional
        Method, or name of a row, that all others are compared with, seed by seed.
    published : bool
        Whether to show published figures, and the methods that have nothing but those.

    Raises
    ------
    ValueError
        If there is nothing to show, or no such score, or not exactly one such row to compare with.

    Examples
    --------
    >>> from pathlib import Path
    >>> folder = Folder(Path("quick"), "Quick", [], (Planned("split-digits", "ewc", "", 0),))
    >>> build_table([folder]).rows[0].entries[0].state
    'not run'
    """
    number = score_by_name(score)
    results = [{**result, "path": folder.path / result["file"]} for folder in folders for result in folder.results]
    summaries = summarise(results, _planned(folders))
    if not summaries:
        raise ValueError(f"There are no results in {', '.join(str(folder.path) for folder in folders) or 'no folder'}.")
    streams = tuple(dict.fromkeys(summary.stream for summary in summaries))
    groups = _rows(summaries)
    reference = None if against is None else _reference(against, groups)
    rows = [_row(found, streams, number, reference) for found in groups]
    footnotes: list[str] = []
    if published:
        columns, footnotes = quotes(streams, number)
        rows = with_published(rows, groups, streams, columns)
    return Table(
        title=", ".join(dict.fromkeys(folder.title for folder in folders)),
        score=number,
        against="" if reference is None else _any(reference).name,
        streams=streams,
        class_orders=tuple(_class_orders(summaries, stream) for stream in streams),
        rows=tuple(rows),
        footnotes=tuple(footnotes),
        notes=tuple(table_notes(folders, summaries, streams if footnotes else ())),
    )


def _planned(folders: Iterable[Folder]) -> list[Planned]:
    """All plans as one. A folder that lacks the data cannot name a file; another one may have it."""
    cells = dict.fromkeys(cell for folder in folders for cell in folder.planned)
    known = {replace(cell, file=None) for cell in cells if cell.file is not None}
    return [cell for cell in cells if cell.file is not None or replace(cell, why="") not in known]


def _rows(summaries: Sequence[Summary]) -> list[Mapping[str, Summary]]:
    """Put what belongs to one configuration into one row, by stream.

    Of what was planned and not run at all, the configuration is not known: it is every one of that name that the stream lacks.
    """
    rows: dict[tuple[str, str, str], dict[str, Summary]] = {}
    for summary in summaries:
        if summary.runs:
            rows.setdefault((summary.method, summary.label, summary.variant), {})[summary.stream] = summary
    for summary in summaries:
        if not summary.runs:
            own = (summary.method, summary.label, "")
            alike = [row for key, row in rows.items() if key[:2] == own[:2]]
            for row in alike or [rows.setdefault(own, {})]:
                row.setdefault(summary.stream, summary)
    places = {id(summary): place for place, summary in enumerate(summaries)}
    return sorted(rows.values(), key=lambda row: min(places[id(summary)] for summary in row.values()))


def _class_orders(summaries: Sequence[Summary], stream: str) -> ClassOrders:
    """Tell whether the seeds of a stream have class orders of their own."""
    runs = [result for summary in summaries if summary.stream == stream for result in summary.results]
    pairs = {(int(result["seed"]), json.dumps(result["stream"]["class_order"], default=str)) for result in runs}
    seeds, orders = ({pair[place] for pair in pairs} for place in (0, 1))
    if len(seeds) < 2:
        return ""
    return "own" if len(orders) == len(pairs) else "same" if len(orders) == 1 else "some the same"


def _any(found: Mapping[str, Summary]) -> Summary:
    return next(iter(found.values()))


def _reference(against: str, groups: Sequence[Mapping[str, Summary]]) -> Mapping[str, Summary]:
    """Find the row to compare with: by its name, else by its method."""
    wanted = against.casefold()
    by_name = [found for found in groups if _any(found).name.casefold() == wanted]
    rows = by_name or [found for found in groups if _any(found).method.casefold() == wanted]
    if not rows:
        known = dict.fromkeys(name for found in groups for name in (_any(found).method, _any(found).name))
        raise ValueError(f"There is no row {against!r} to compare with. {nearest_names(against, known)}")
    if len(rows) > 1:
        names = ", ".join(repr(_any(found).name) for found in rows)
        raise ValueError(f"There are several rows {against!r} to compare with: name one of {names}.")
    return rows[0]


def _row(
    found: Mapping[str, Summary], streams: Sequence[str], score: Score, reference: Mapping[str, Summary] | None
) -> Row:
    first = _any(found)
    entries = []
    for stream in streams:
        entry = _entry(found.get(stream), score)
        if reference is not None and reference is not found and stream in found and stream in reference:
            entry = replace(entry, difference=_difference(found[stream], reference[stream], score))
        entries.append(entry)
    return Row(first.name, first.method, BOUNDS.get(first.method, ""), tuple(entries))


def _entry(summary: Summary | None, score: Score) -> Entry:
    if summary is None or not summary.runs:
        return Entry(NOT_RUN, missing=() if summary is None else summary.missing)
    values = [score.value(result) for result in summary.results]
    known = [value for value in values if value is not None]
    runs = Entry(
        "",
        seeds=summary.seeds,
        files=tuple(result["path"] for result in summary.results),
        missing=summary.missing,
        outside=summary.outside,
    )
    if len(known) < len(values):  # a mean over some of the runs would compare different things
        return replace(runs, state=NEEDS_THE_TASK if summary.matrix is None else NO_FIGURE)
    return replace(runs, mean=fmean(known), std=stdev(known) if len(known) > 1 else None)


def _difference(summary: Summary, reference: Summary, score: Score) -> Difference | None:
    theirs = {_data_of(result): score.value(result) for result in reference.results}
    more = []
    for result in summary.results:
        mine, other = score.value(result), theirs.get(_data_of(result))
        if mine is not None and other is not None:
            more.append(mine - other)
    return Difference(fmean(more), stdev(more) if len(more) > 1 else None, len(more)) if more else None


def _data_of(result: Result) -> tuple[int, str]:
    """What makes two runs a pair: the seed, and the hash of the stream with its class order."""
    return int(result["seed"]), str(result["stream"]["hash"])
