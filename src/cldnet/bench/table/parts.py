"""What a table is made of: rows, columns, and what stands where they meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cldnet.bench.published import Printed
from cldnet.bench.table.score import Score
from cldnet.bench.wording import OUTSIDE_MARK

__all__ = ["BOUNDS", "NOTHING", "NO_FIGURE", "ClassOrders", "Difference", "Entry", "Quote", "Row", "Table"]

#: Whether seeds have class orders of their own, all the same, some the same; nothing of a single seed.
ClassOrders = Literal["own", "same", "some the same", ""]

#: Methods that are no rivals but mark what is easy and what is possible.
BOUNDS: Mapping[str, str] = {"finetune": "lower bound", "joint": "upper bound"}
#: The runs have no such number: nothing can be forgotten after one task.
NO_FIGURE = "no figure"
#: Neither a run nor a published figure is to be expected.
NOTHING = "–"


@dataclass(frozen=True)
class Difference:
    """Mean and sample standard deviation of what a run has more than the reference's run of the same seed and data."""

    mean: float
    std: float | None
    pairs: int


@dataclass(frozen=True)
class Quote:
    """A published figure in the table, with the number of its footnote."""

    mean: Printed
    std: Printed | None
    what: str
    footnote: int


@dataclass(frozen=True)
class Entry:
    """What a table says about one row on one stream.

    Attributes
    ----------
    state : str
        Empty where there is a figure; else why there is none.
    mean, std : float or None
        Over the runs, in the score's unit.
    seeds, files : tuple
        Of the runs, side by side.
    missing : tuple of int
        Seeds that were planned and have no result.
    difference : Difference or None
    published : tuple of Quote
    outside : str
        Name of the data from outside the stream that were learned from besides; most often empty.
    """

    state: str
    mean: float | None = None
    std: float | None = None
    seeds: tuple[int, ...] = ()
    files: tuple[Path, ...] = ()
    missing: tuple[int, ...] = ()
    difference: Difference | None = None
    published: tuple[Quote, ...] = ()
    outside: str = ""


@dataclass(frozen=True)
class Row:
    """One method, or one configuration of it: its name, whether it is a bound, and an entry a stream."""

    name: str
    method: str
    bound: str
    entries: tuple[Entry, ...]

    @property
    def title(self) -> str:
        """The name as a table shows it: with a mark that a note explains, and with what is a bound."""
        mark = OUTSIDE_MARK if any(entry.outside for entry in self.entries) else ""
        return f"{self.name}{mark}{f' ({self.bound})' if self.bound else ''}"


@dataclass(frozen=True)
class Table:
    """A table of one score.

    Attributes
    ----------
    title : str
    score : Score
    against : str
        Name of the row that others are compared with, or empty.
    streams : tuple of str
    class_orders : tuple of ClassOrders
        Of the seeds of each stream.
    rows : tuple of Row
    footnotes : tuple of str
        Sources of published figures; footnote 1 is the first.
    notes : tuple of str
        What else a reader should know: failures, files left out or set aside, mixed versions.
    """

    title: str
    score: Score
    against: str
    streams: tuple[str, ...]
    class_orders: tuple[ClassOrders, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def entries(self) -> Iterator[tuple[str, Row, Entry]]:
        """All entries, stream by stream."""
        for number, stream in enumerate(self.streams):
            for row in self.rows:
                yield stream, row, row.entries[number]

    @property
    def usual_runs(self) -> int:
        """Number of runs of most entries that lack none."""
        counts = Counter(len(entry.seeds) for _, _, entry in self.entries if entry.seeds and not entry.missing)
        return counts.most_common(1)[0][0] if counts else 0
