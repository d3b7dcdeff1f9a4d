"""Where a bench stands: what runs, how far it is, and how long the rest may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cldnet.bench.cell import Cell
from cldnet.bench.estimate import Estimate, time_left
from cldnet.bench.events import Began, Elsewhere, Event, Finished, Progressed, Still

__all__ = ["Running", "Watch"]


@dataclass
class Running:
    """A cell that is being run: since when, and the share that is done."""

    since: float
    share: float = 0.0


class Watch:
    """Keeps count of a bench's cells from its events.

    Parameters
    ----------
    cells : sequence of Cell
    jobs : int
    estimate : Estimate
        What finished cells took before; it grows as more are finished.
    clock : callable
        Gives seconds.

    Examples
    --------
    >>> from cldnet.bench.run import RunSpec
    >>> now = 0.0
    >>> watch = Watch([Cell("s", RunSpec("ewc")), Cell("s", RunSpec("ewc", seed=1))], 1, Estimate(), lambda: now)
    >>> watch(Began(0))
    >>> now = 5.0
    >>> watch(Progressed(0, 0.5))
    >>> watch.left(0), watch.time_left()
    (5.0, 15.0)
    """

    def __init__(
        self, cells: Sequence[Cell], jobs: int, estimate: Estimate, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cells, self.jobs, self.estimate, self.clock = cells, jobs, estimate, clock
        self.waiting = dict.fromkeys(range(len(cells)))
        self.running: dict[int, Running] = {}
        self.elsewhere: dict[int, str] = {}
        self.files: dict[int, Path] = {}
        self.failed: dict[int, str] = {}
        self._took: dict[int, float] = {}

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        number = event.number
        if isinstance(event, Progressed | Still):
            if isinstance(event, Progressed) and number in self.running:
                self.running[number].share = event.share
            return
        begun = self.running.pop(number, None)
        for states in (self.waiting, self.elsewhere):
            states.pop(number, None)
        if isinstance(event, Began):
            self.running[number] = Running(self.clock())
        elif isinstance(event, Elsewhere):
            self.elsewhere[number] = event.owner
        elif isinstance(event, Finished):
            self.files[number] = event.path
            if begun is not None:
                self._learn(number, self.clock() - begun.since)
        elif event.again:
            self.waiting[number] = None
        else:
            self.failed[number] = event.why

    def _learn(self, number: int, seconds: float) -> None:
        self._took[number] = seconds
        names = _names(self.cells[number])
        self.estimate[names] = median(s for n, s in self._took.items() if _names(self.cells[n]) == names)

    @property
    def done(self) -> int:
        """Cells whose file is there."""
        return len(self.files)

    def left(self, number: int) -> float | None:
        """Seconds that a running cell may still take: by its own pace once that can be told, else by its like."""
        running = self.running[number]
        elapsed = self.clock() - running.since
        if running.share >= 0.05:
            return elapsed * (1 - running.share) / running.share
        usual = self.estimate.of(self.cells[number])
        return None if usual is None else max(usual - elapsed, 0.0)

    def time_left(self) -> float | None:
        """Seconds until nothing is left to do here; None as long as nothing is known to judge by."""
        paces: Mapping[int, float | None] = {number: self.left(number) for number in self.running}
        known = [self.clock() - self.running[n].since + s for n, s in paces.items() if s is not None]
        fallback = median(known) if known else None
        waiting = [self._guess(number, fallback) for number in self.waiting]
        running = [fallback if pace is None else pace for pace in paces.values()]
        if any(one is None for one in (*waiting, *running)):
            return None
        return time_left([s for s in waiting if s is not None], self.jobs, [s for s in running if s is not None])

    def _guess(self, number: int, fallback: float | None) -> float | None:
        usual = self.estimate.of(self.cells[number])
        return fallback if usual is None else usual


def _names(cell: Cell) -> tuple[str, str]:
    return cell.stream, cell.label or cell.spec.method
