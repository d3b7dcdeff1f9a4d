"""Published figures in a table: beside the rows that they belong to, or in rows of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cldnet.bench.published import Published, published_figures
from cldnet.bench.summary import Summary
from cldnet.bench.table.parts import BOUNDS, NOTHING, Entry, Quote, Row
from cldnet.bench.table.score import Score
from cldnet.bench.wording import NOT_RUN

__all__ = ["quotes", "with_published"]


def quotes(streams: Sequence[str], score: Score) -> tuple[list[list[tuple[Published, Quote]]], list[str]]:
    """Published figures for every stream, and the footnotes that name their sources and doubts.

    Examples
    --------
    >>> from cldnet.bench.table.score import SCORES
    >>> columns, footnotes = quotes(["split-digits", "split-mnist"], SCORES["accuracy"])
    >>> len(columns[0]), columns[1][0][1].mean, footnotes[columns[1][1][1].footnote - 1][:27]
    (0, 36.52, 'Li et al., AAAI-24 (arXiv 2')
    """
    footnotes: dict[str, int] = {}
    columns = []
    for stream in streams:
        column: list[tuple[Published, Quote]] = []
        for figure in published_figures():
            value = score.published(figure) if figure.stream == stream.partition(",")[0] else None
            if value is not None:
                text = f"{figure.source}. {figure.note}" if figure.note else f"{figure.source}."
                column.append((figure, Quote(*value, figure.what, footnotes.setdefault(text, len(footnotes) + 1))))
        columns.append(column)
    return columns, list(footnotes)


def with_published(
    rows: Sequence[Row],
    groups: Sequence[Mapping[str, Summary]],
    streams: Sequence[str],
    columns: Sequence[Sequence[tuple[Published, Quote]]],
) -> list[Row]:
    """Put published figures beside the rows that they belong to, and rows below for those that belong to none."""
    filled = [list(row.entries) for row in rows]
    alone: dict[tuple[str, str], list[Entry]] = {}
    for number, (stream, column) in enumerate(zip(streams, columns, strict=True)):
        for figure, quote in column:
            places = [filled[row] for row, found in enumerate(groups) if _belongs(figure, found, stream)]
            if not places:
                entries = alone.setdefault((figure.method, figure.name), [Entry(NOTHING)] * len(streams))
                entries[number] = replace(entries[number], state=NOT_RUN)
                places = [entries]
            for entries in places:
                entries[number] = replace(entries[number], published=(*entries[number].published, quote))
    shown = [replace(row, entries=tuple(entries)) for row, entries in zip(rows, filled, strict=True)]
    present = {row.method for row in rows}
    for (method, name), entries in alone.items():
        title = f"{name}, as published" if method in present else name
        shown.append(Row(title, method, BOUNDS.get(method, ""), tuple(entries)))
    return shown


def _belongs(figure: Published, found: Mapping[str, Summary], stream: str) -> bool:
    """Tell whether a figure is of what a row shows: the plain method, a configuration of the figure's name, or its options."""
    first = next(iter(found.values()))
    if first.method != figure.method:
        return False
    if figure.what and first.label.endswith(f", {figure.what}"):
        return True
    if not figure.where:
        return not first.label
    results = found[stream].results if stream in found else ()
    options: Any = results[0]["config"].get("method") if results else None
    return isinstance(options, Mapping) and all(options.get(key) == value for key, value in figure.where.items())
