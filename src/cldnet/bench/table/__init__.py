"""Tables of results: rows are methods and configurations, columns are streams. Pure: results in, text out."""

from __future__ import annotations

from cldnet.bench.table.build import build_table
from cldnet.bench.table.escape import plain
from cldnet.bench.table.formats import as_csv, as_markdown, as_tex, columns, lines, remarks
from cldnet.bench.table.parts import NOTHING, Difference, Entry, Quote, Row, Table
from cldnet.bench.table.score import SCORES, Score, score_by_name

__all__ = [
    "NOTHING",
    "SCORES",
    "Difference",
    "Entry",
    "Quote",
    "Row",
    "Score",
    "Table",
    "as_csv",
    "as_markdown",
    "as_tex",
    "build_table",
    "columns",
    "lines",
    "plain",
    "remarks",
    "score_by_name",
]
