"""How long the cells that are left will take, judged by those that are finished."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from cldnet.bench.cell import Cell
from cldnet.bench.results import read_result

__all__ = ["Estimate", "seconds_of_cells", "time_left"]


class Estimate(dict[tuple[str, str], float]):
    """Median seconds of finished cells, by stream and name of the method or configuration."""

    def of(self, cell: Cell) -> float | None:
        """Seconds that a cell should take: as its like did, or others on its stream, or it on others; None if all is new."""
        name = cell.label or cell.spec.method
        own = self.get((cell.stream, name))
        if own is not None:
            return own
        streams = [seconds for (stream, _), seconds in self.items() if stream == cell.stream]
        methods = [seconds for (_, method), seconds in self.items() if method == name]
        likely = streams or methods
        return median(likely) if likely else None


def seconds_of_cells(files: Mapping[int, Path], cells: Sequence[Cell]) -> Estimate:
    """Read how long finished cells took; ``files`` has a cell's number and its file."""
    taken: dict[tuple[str, str], list[float]] = {}
    for number, path in files.items():
        result = read_result(path)
        if result is not None:
            cell = cells[number]
            seconds = result["seconds"]["total"] + sum(result["seconds"].get("diagnose", []))
            taken.setdefault((cell.stream, cell.label or cell.spec.method), []).append(seconds)
    return Estimate({key: median(seconds) for key, seconds in taken.items()})


def time_left(seconds: Sequence[float], jobs: int, running: Sequence[float] = ()) -> float:
    """Seconds until all is done: each process takes the next cell when it has finished its own.

    Parameters
    ----------
    seconds : sequence of float
        What each waiting cell takes, in their order.
    jobs : int
    running : sequence of float
        What is left of the running cells.

    Examples
    --------
    >>> time_left([10.0, 10.0, 10.0], jobs=2), time_left([5.0], jobs=2, running=[3.0, 4.0])
    (20.0, 8.0)
    """
    free = sorted(running)[:jobs]
    free += [0.0] * (jobs - len(free))
    heapq.heapify(free)
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max([*free, *running])
