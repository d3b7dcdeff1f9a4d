"""A process that runs the cells it is told to, one at a time, and tells how far it is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from cldnet.bench.cell import Cell, result_text, run_cell
from cldnet.bench.claims import Claims
from cldnet.bench.results import FAILURES, PRIVATE
from cldnet.methods import read_method
from cldnet.store import write_atomically

__all__ = ["Job", "answer", "claims_of", "perform", "work"]

#: What may not happen again, in contrast to a setting that is wrong.
_PASSING = (OSError, MemoryError)


@dataclass(frozen=True)
class Job:
    """A cell, the file for its result, threads where the cell names none, and where data sets are."""

    cell: Cell
    path: Path
    threads: int
    data: Path | None

    @property
    def trace(self) -> Path:
        """Where the traceback of a method that broke is to be found."""
        return self.path.parent / FAILURES / f"{self.path.stem}.trace"


def work(pipe: Connection) -> None:
    """Do jobs that come through a pipe until it is closed, or until the process that began this one is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # a claim is given back on the way out
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job = pipe.recv()
            pipe.send(answer(job, pipe.send))
        except (EOFError, OSError):
            return


def claims_of(folder: Path) -> Claims:
    """Give the claims on a folder's cells."""
    return Claims(folder / PRIVATE / "claims")


def perform(job: Job, tell: Any) -> tuple[str, Any]:
    """Claim a cell, run it and write its file, unless the file is there or somebody else has claimed it.

    Returns
    -------
    tuple
        ``("done", None)``, ``("present", None)``, or ``("busy", owner)``.
    """
    claims = claims_of(job.path.parent)
    with claims.hold(job.path.stem) as mine:
        if _is_there(job.path):  # looked for under the claim: whoever wrote it did so before giving its claim back
            return "present", None
        if not mine:
            return "busy", claims.owner(job.path.stem) or "another process"
        tell(("began", None))
        cell = job.cell
        if cell.spec.threads is None:
            cell = replace(cell, spec=replace(cell.spec, threads=job.threads))
        _warm_up(cell)
        result = run_cell(cell, cell.load(job.data), _Sparing(tell), job.data)
        if _is_there(job.path):  # we slept for so long that somebody else has run it
            return "present", None
        write_atomically(job.path, result_text(result))
        with suppress(OSError):  # the result is there, whatever becomes of an older traceback
            job.trace.unlink(missing_ok=True)
    return "done", None


def _is_there(path: Path) -> bool:
    """Look a file up by listing its folder: a network file system may remember for long that a name was not there."""
    return path.name in os.listdir(path.parent)


def answer(job: Job, tell: Any) -> tuple[str, Any]:
    """Do a job as `perform` does; what goes wrong is an answer too: ``("failed", (why, whether it may not happen again))``."""
    try:
        return perform(job, tell)
    except Exception as error:
        out_of_memory = isinstance(error, RuntimeError) and "allocate memory" in str(error)
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if not isinstance(error, ValueError):  # those say what to do; others are for whoever wrote the method
            why += _traced(job)
        return "failed", (why, out_of_memory or isinstance(error, _PASSING))


def _traced(job: Job) -> str:
    """Write the traceback of what was just raised to a file, and say where it is."""
    try:
        job.trace.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(job.trace, traceback.format_exc().encode())
    except OSError:
        return ""
    return f" (traceback in {job.trace})"


class _Sparing:
    """Tells every fiftieth of a run: a message a step would be too many."""

    def __init__(self, tell: Any) -> None:
        self.tell, self.told = tell, -1.0

    def __call__(self, share: float) -> None:
        if share - self.told >= 0.02 or share == 1.0:
            self.told = share
            self.tell(("share", share))


def _warm_up(cell: Cell) -> None:
    """Make an optimiser: torch loads its compiler when the first one is made, which is not the first method's time."""
    if not read_method(cell.spec.method).traits.one_pass:
        torch.optim.SGD([torch.zeros(1)], lr=1.0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # at once, in the middle of whatever runs: its claim is stale from now on
