"""Several runs side by side, one process and one thread each, with their progress."""

from __future__ import annotations

import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult
from typing import Any

from cldnet.bench.run import RunSpec, run
from cldnet.data.streams import stream_by_name

__all__ = ["Cell", "run_cells"]


@dataclass(frozen=True)
class Cell:
    """One run on a stream by name; the run's seed is also the seed of the class order."""

    stream: str
    spec: RunSpec


def run_cells(
    cells: Sequence[Cell], jobs: int, on_progress: Callable[[int, float], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run cells in ``jobs`` processes and yield each cell's number and result as soon as it is finished.

    Parameters
    ----------
    cells : sequence of Cell
    jobs : int
        Processes; with 1 everything runs in this one.
    on_progress : callable
        Told a cell's number and the share of it that is done.
    """
    if jobs == 1:
        for number, cell in enumerate(cells):
            yield number, _run_cell(number, cell, lambda news: on_progress(*news))
        return
    # A forked torch may hang in its thread pool, so processes are spawned.
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    with context.Pool(jobs, initializer=_begin, initargs=(news,)) as pool:  # leaving the block ends the processes
        waiting = {number: pool.apply_async(_run_in_worker, (number, cell)) for number, cell in enumerate(cells)}
        while waiting:
            _pass_on(news, on_progress)
            for number in _finished(waiting):
                yield number, waiting.pop(number).get()


def _finished(waiting: dict[int, AsyncResult[dict[str, Any]]]) -> list[int]:
    return [number for number, answer in waiting.items() if answer.ready()]


def _pass_on(news: Any, on_progress: Callable[[int, float], None]) -> None:
    try:
        on_progress(*news.get(timeout=0.1))
        while True:
            on_progress(*news.get_nowait())
    except queue.Empty:
        pass


_news: Any = None


def _begin(news: Any) -> None:
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us


def _run_in_worker(number: int, cell: Cell) -> dict[str, Any]:
    return _run_cell(number, cell, _news.put)


def _run_cell(number: int, cell: Cell, tell: Callable[[tuple[int, float]], None]) -> dict[str, Any]:
    told = -1.0

    def on_progress(share: float) -> None:
        nonlocal told
        if share - told >= 0.02 or share == 1.0:  # a message a step would flood the queue
            told = share
            tell((number, share))

    return run(cell.spec, stream_by_name(cell.stream, cell.spec.seed), on_progress)
