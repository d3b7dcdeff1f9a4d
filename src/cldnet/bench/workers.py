"""Cells run side by side in processes of their own, each cell once, whoever else works on the same folder.

Every process is told one cell at a time; it claims the cell, runs it and writes its file. Nothing else is shared, so a process
may be killed at any moment: what is finished is whole, and what was running is run again.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cldnet.bench.cell import Cell, outside_hash, stream_hash
from cldnet.bench.events import Began, Elsewhere, Event, Failed, Finished, Outcome, Progressed, Still
from cldnet.bench.machine import cores
from cldnet.bench.results import FAILURES
from cldnet.bench.worker import Job, claims_of, work
from cldnet.store import write_atomically

__all__ = ["execute", "file_names"]

#: Seconds until a cell that somebody else is running is asked for again.
_AGAIN = 1.0
#: Seconds until a cell that failed is tried again: memory and disks may have more room by then.
_REST = 5.0
#: Seconds between two signs that time goes on.
_SILENCE = 2.0


def file_names(
    cells: Sequence[Cell], data: Path | None = None, on_progress: Callable[[int, int], None] | None = None
) -> list[str | Exception]:
    """Tell for every cell the name of its file, or why its stream or its outside data cannot be read.

    Examples
    --------
    >>> from cldnet.bench.run import RunSpec
    >>> file_names([Cell("split-digits", RunSpec("ewc"))])[0].startswith("split-digits_ewc_seed0_")
    True
    """
    names: list[str | Exception] = []
    for number, cell in enumerate(cells):
        if on_progress is not None:
            on_progress(number, len(cells))
        known, outside = stream_hash(cell.stream, cell.spec.seed, data), outside_hash(cell.spec.outside, data)
        if isinstance(known, str) and isinstance(outside, str):
            names.append(cell.file(known, outside))
        else:
            names.append(outside if isinstance(known, str) else known)
    return names


def execute(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int,
    data: Path | None = None,
    retries: int = 1,
    names: Sequence[str | Exception] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Outcome:
    """Run the cells that have no file yet, and wait for those that others are running.

    Parameters
    ----------
    cells : sequence of Cell
    folder : Path
        Where results go; other processes may be working on it.
    jobs : int
        Processes side by side. A cell that does not say how many threads it wants gets its share of the cores.
    data : Path, optional
        Folder of data sets.
    retries : int
        Further attempts at a cell whose process died or ran out of something; what would fail alike again is not tried.
    names : sequence, optional
        What `file_names` said of the cells.
    on_event : callable
        Told what happens.

    Examples
    --------
    A cell whose file is there is not run again, so nothing is started here.

    >>> import tempfile
    >>> from cldnet.bench.run import RunSpec
    >>> cell = Cell("split-digits,until=1", RunSpec("exact"))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / str(file_names([cell])[0])
    ...     _ = path.write_text("{}")
    ...     outcome = execute([cell], Path(place), jobs=1, on_event=lambda event: print(type(event).__name__, event.ran))
    Finished False
    >>> outcome.files == [path]
    True
    """
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    crew = _Crew(cells, folder, jobs, data, retries, file_names(cells, data) if names is None else names, on_event)
    try:
        return crew.run()
    finally:
        crew.dismiss()


def _sweep(folder: Path) -> None:
    """Delete what processes left half-written when they were killed."""
    claims = claims_of(folder)
    if claims.folder.is_dir():
        claims.sweep(folder, f".*_seed*.json.{'[0-9a-f]' * 16}.tmp")
        claims.sweep(claims.folder, ".*.draft")


@dataclass
class _Worker:
    """A process and what it was told to do."""

    process: Any
    pipe: Connection
    number: int


@dataclass
class _Crew:
    """The processes, the cells that wait, and what became of the others."""

    cells: Sequence[Cell]
    folder: Path
    jobs: int
    data: Path | None
    retries: int
    names: Sequence[str | Exception]
    on_event: Callable[[Event], None]
    attempts: dict[int, int] = field(default_factory=dict)
    waiting: deque[tuple[int, float]] = field(default_factory=deque)  # number, and not before this time
    working: dict[Connection, _Worker] = field(default_factory=dict)
    idle: list[_Worker] = field(default_factory=list)
    elsewhere: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.outcome = Outcome([None] * len(self.cells))
        self.threads = max(1, cores() // self.jobs)
        # A forked torch may hang in its thread pool, so processes are spawned.
        self.context = multiprocessing.get_context("spawn")

    def run(self) -> Outcome:
        for number, name in enumerate(self.names):
            if isinstance(name, Exception):
                self._failed(number, str(name), again=False)
            elif (self.folder / name).exists():
                self._finished(number, ran=False)
            else:
                self.waiting.append((number, 0.0))
        self.spoken = time.monotonic()
        while self.waiting or self.working:
            self._hand_out()
            if not self.working:  # others have all that is left
                time.sleep(0.1)
            self._sign_of_life()
            for pipe in wait(list(self.working), timeout=0.2):
                assert isinstance(pipe, Connection)
                self._hear(self.working[pipe])
        return self.outcome

    def _sign_of_life(self) -> None:
        if time.monotonic() - self.spoken > _SILENCE:
            self.spoken = time.monotonic()
            at_work = [worker.number for worker in self.working.values()]
            self.on_event(Still((at_work or [number for number, _ in self.waiting])[0]))

    def dismiss(self) -> None:
        """End all processes; a cell that was running is given back."""
        crew = [*self.working.values(), *self.idle]
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()

    def _hand_out(self) -> None:
        """Give waiting cells to processes that have nothing to do, and start processes where there are too few."""
        for _ in range(len(self.waiting)):
            if len(self.working) >= self.jobs:
                return
            number, not_before = self.waiting.popleft()
            if time.monotonic() < not_before:
                self.waiting.append((number, not_before))
                continue
            worker = self.idle.pop() if self.idle else self._start()
            worker.number = number
            self.working[worker.pipe] = worker
            try:
                worker.pipe.send(
                    Job(self.cells[number], self.folder / str(self.names[number]), self.threads, self.data)
                )
            except OSError:  # it died while it had nothing to do; `_hear` finds out
                continue

    def _start(self) -> _Worker:
        pipe, theirs = self.context.Pipe()
        process = self.context.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()  # so that its end is the end of the pipe
        return _Worker(process, pipe, -1)

    def _hear(self, worker: _Worker) -> None:
        number = worker.number
        try:
            kind, told = worker.pipe.recv()
        except (EOFError, OSError):
            self._buried(worker)
            return
        if kind == "began":
            self.elsewhere.discard(number)
            self.on_event(Began(number))
            return
        if kind == "share":
            self.on_event(Progressed(number, told))
            return
        self.idle.append(self.working.pop(worker.pipe))
        if kind in ("done", "present"):
            self._finished(number, ran=kind == "done")
        elif kind == "busy":
            self._wait_for(number, told)
        else:
            why, worth_it = told
            self._failed(number, why, worth_it)

    def _wait_for(self, number: int, owner: str) -> None:
        self.waiting.append((number, time.monotonic() + _AGAIN))
        if number not in self.elsewhere:
            self.elsewhere.add(number)
            self.on_event(Elsewhere(number, owner))

    def _buried(self, worker: _Worker) -> None:
        """Take note of a process that is no more."""
        del self.working[worker.pipe]
        worker.process.join()
        worker.pipe.close()
        code = worker.process.exitcode
        signalled = (
            f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        )
        memory = ", as it is when memory runs out" if code == -signal.SIGKILL else ""
        self._failed(worker.number, f"its process {signalled}{memory}", again=True)

    def _finished(self, number: int, ran: bool) -> None:
        path = self.folder / str(self.names[number])
        self.outcome.files[number] = path
        with suppress(OSError):
            self._failure_file(number).unlink(missing_ok=True)
        self.on_event(Finished(number, path, ran))

    def _failed(self, number: int, why: str, again: bool) -> None:
        self.attempts[number] = self.attempts.get(number, 0) + 1
        again = again and self.attempts[number] <= self.retries
        if again:
            self.waiting.append((number, time.monotonic() + _REST))
        else:
            self.outcome.failures[number] = why
            if isinstance(self.names[number], str):
                with suppress(OSError):  # the disk may be full, which is no reason to stop the others
                    self._failure_file(number).parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(self._failure_file(number), why.encode())
        self.on_event(Failed(number, why, again))

    def _failure_file(self, number: int) -> Path:
        return self.folder / FAILURES / f"{Path(str(self.names[number])).stem}.txt"
