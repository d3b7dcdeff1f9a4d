"""Run the cells of a bench in processes, each cell once, on one machine or on several that share a results folder.

The main process claims a cell, hands it to a worker process, and releases the claim when the result file is written. Processes
share nothing else, so any of them may be killed at any moment: finished results are complete files, and a cell that was running
runs again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch

from cldnet.bench.cell import Cell, file_names, result_text, run_cell
from cldnet.bench.machine import cores
from cldnet.bench.results import CLAIMS, FAILURES
from cldnet.methods import read_method
from cldnet.storage import write_atomically

#: Seconds between two heartbeats of a claim, and seconds without one after which another machine may take over.
HEARTBEAT, STALE = 5.0, 60.0
#: Seconds until a cell that runs elsewhere is asked for again, and until a failed one is retried.
_POLL, _RETRY = 1.0, 5.0


@dataclass(frozen=True)
class Event:
    """Something that happened to a cell.

    It started; made progress (``share``); finished (its file is at ``path``, and ``ran`` says whether this bench ran it
    just now); is running elsewhere (``text`` names the process); or failed (``text`` says why, ``retry`` whether it is
    tried again).
    """

    kind: Literal["started", "progress", "finished", "elsewhere", "failed"]
    number: int  # index of the cell
    share: float = 0.0
    path: Path | None = None
    ran: bool = False
    text: str = ""
    retry: bool = False


@dataclass
class Outcome:
    """The result file of each cell (None if it failed), and why cells failed."""

    files: list[Path | None]
    failures: dict[int, str] = field(default_factory=dict)


class Claims:
    """Claims on the cells of one folder, which several processes and machines may share.

    A claim is a file that only one process can create (``O_EXCL``). Its owner touches it every few seconds. A claim is stale
    if its owner is a process of this machine that has ended, or if it belongs to another machine and was not touched for a
    minute. Stale claims are not deleted, since a second process that does so might delete the first one's new claim. Instead
    the next claim gets the next number, which again only one process can create.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Claims(Path(folder)) as claims:
    ...     claims.acquire("cell"), claims.acquire("cell")
    (True, False)
    """

    def __init__(self, folder: Path, stale: float = STALE, heartbeat: float = HEARTBEAT) -> None:
        self.folder, self.stale, self.heartbeat = folder, stale, heartbeat
        self._held: dict[str, Path] = {}
        # Time stamps of others' claims, and since when they are the same.
        self._seen: dict[Path, tuple[int, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._touch, daemon=True)

    def __enter__(self) -> Claims:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for name in list(self._held):
            self.release(name)

    def acquire(self, name: str) -> bool:
        """Claim a name; False if another process has it."""
        claims = self._claims(name)
        if claims and not self._is_stale(claims[-1]):
            return False
        claim = self.folder / f"{name}.{_number(claims[-1]) + 1 if claims else 0}"
        process = str(os.getpid())
        owner = {"host": socket.gethostname(), "where": _this_machine(), "process": process}
        try:
            with claim.open("x") as file:
                json.dump({**owner, "born": _start_time(process) or ""}, file)
        except FileExistsError:
            return False
        self._held[name] = claim
        return True

    def release(self, name: str) -> None:
        """Release a claim, and delete the stale ones before it. A later one belongs to the process that took over."""
        own = self._held.pop(name)
        for claim in self._claims(name):
            if _number(claim) <= _number(own):
                claim.unlink(missing_ok=True)

    def owner(self, name: str) -> str:
        """Who holds a name, as "process 12 on laptop"."""
        claims = self._claims(name)
        owner = _read_claim(claims[-1])[0] if claims else {}
        return f"process {owner.get('process', '?')} on {owner.get('host', 'another machine')}"

    def _touch(self) -> None:
        while not self._stop.wait(self.heartbeat):
            for claim in list(self._held.values()):
                with suppress(OSError):  # the folder is out of reach for now; the next heartbeat may reach it
                    os.utime(claim)

    def _claims(self, name: str) -> list[Path]:
        found = self.folder.glob(f"{name}.*")
        return sorted((path for path in found if path.name.removeprefix(f"{name}.").isdigit()), key=_number)

    def _is_stale(self, claim: Path) -> bool:
        owner, touched = _read_claim(claim)
        if owner.get("where") == _this_machine():
            started = _start_time(owner.get("process", ""))
            if started != "":
                return started != owner.get("born")
        known, since = self._seen.get(claim, (-1, 0.0))
        if touched != known:
            self._seen[claim] = touched, time.monotonic()
            return False
        return time.monotonic() - since > self.stale


def _number(claim: Path) -> int:
    return int(claim.suffix[1:])


def _read_claim(claim: Path) -> tuple[dict[str, str], int]:
    """Owner of a claim, empty while that is being written, and when it was last touched."""
    try:
        with claim.open() as file:  # opening makes a network file system ask for the current time stamp
            touched = os.fstat(file.fileno()).st_mtime_ns
            owner = json.load(file)
    except (OSError, ValueError):
        return {}, 0
    return (owner if isinstance(owner, dict) else {}), touched


@cache
def _this_machine() -> str:
    """Identify this machine since its last start, and its process numbers, since containers have their own."""
    marks = [Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")]
    known = [mark.readlink().name if mark.is_symlink() else mark.read_text().strip() for mark in marks if mark.exists()]
    return "/".join([socket.gethostname(), *known])


def _start_time(process: str) -> str | None:
    """When a process of this machine started, as a later one may get its number; None if it has ended, "" if unknown."""
    if os.name == "nt":  # where signal 0 is not just a question
        return ""
    try:
        os.kill(int(process), 0)
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (ProcessLookupError, ValueError):
        return None
    except OSError:  # another user's process, or a system without /proc
        return ""
    return None if fields[0] == "Z" else fields[19]


def work(pipe: Connection) -> None:
    """Run cells that come through a pipe until it is closed, or until the main process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            cell, path, data = pipe.recv()
            pipe.send(run_job(cell, path, data, lambda share: pipe.send(("progress", share))))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # at once, since nobody holds a claim on the running cell any more


def run_job(
    cell: Cell, path: Path, data: Path | None, on_progress: Callable[[float], None] = lambda share: None
) -> tuple[str, Any]:
    """Run a cell and write its result file.

    Returns ``("finished", ran)``, where ``ran`` is False if another machine took over and was faster; or ``("failed", (reason,
    traceback, whether a retry may help))``.
    """
    told = 0.0

    def sparingly(share: float) -> None:
        nonlocal told
        if share - told >= 0.02:  # a message for every step would be too many
            told = share
            on_progress(share)

    try:
        if not read_method(cell.spec.method).traits.one_pass:
            # torch loads its compiler with the first optimizer, which takes seconds.
            torch.optim.SGD([torch.zeros(1)], lr=1.0)
        result = run_cell(cell, cell.load(data), sparingly, data)
        ran = not _exists(path)
        if ran:
            write_atomically(path, result_text(result))
        return "finished", ran
    except Exception as error:
        retry = isinstance(error, OSError | MemoryError) or "allocate memory" in str(error)
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        # A ValueError says what to do; the author of a method needs the traceback of any other error.
        return "failed", (reason, "" if isinstance(error, ValueError) else traceback.format_exc(), retry)


def _exists(path: Path) -> bool:
    """Check whether a file exists by listing its folder: network file systems may cache a missing name for long."""
    return path.name in os.listdir(path.parent)


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
    """Run the cells that have no result file yet, and wait for those that other processes are running.

    Worker processes share the cores: a cell that names no number of threads gets ``cores // jobs``. A cell whose process died,
    or that ran out of memory or disk space, is retried; other errors are final. ``names`` are those of `file_names`.
    """
    names = file_names(cells, data) if names is None else names
    with Claims(folder / CLAIMS) as claims:
        scheduler = _Scheduler(cells, folder, jobs, data, retries, names, on_event, claims)
        try:
            return scheduler.run()
        finally:
            scheduler.close()


@dataclass
class _Worker:
    """A worker process and the index of its cell."""

    process: Any
    pipe: Connection
    number: int = -1


@dataclass
class _Scheduler:
    """Hands out cells to worker processes and replaces those that die."""

    cells: Sequence[Cell]
    folder: Path
    jobs: int
    data: Path | None
    retries: int
    names: Sequence[str | Exception]
    on_event: Callable[[Event], None]
    claims: Claims

    def __post_init__(self) -> None:
        self.outcome = Outcome([None] * len(self.cells))
        # Index of a cell, and the time before which it should not start.
        self.waiting: deque[tuple[int, float]] = deque()
        self.working: dict[Any, _Worker] = {}
        self.idle: list[_Worker] = []
        self.attempts: Counter[int] = Counter()
        self.elsewhere: set[int] = set()

    def run(self) -> Outcome:
        for number, name in enumerate(self.names):
            if isinstance(name, Exception):
                self._failed(number, str(name))
            elif (self.folder / name).exists():
                self._finished(number, ran=False)
            else:
                self.waiting.append((number, 0.0))
        while self.waiting or self.working:
            self._hand_out()
            if self.working:
                for pipe in wait(list(self.working), timeout=0.2):
                    self._listen(self.working[pipe])
            else:  # other processes run all that is left
                time.sleep(0.2)
        return self.outcome

    def close(self) -> None:
        workers = [*self.working.values(), *self.idle]
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join(5)
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()

    def _hand_out(self) -> None:
        """Start waiting cells on idle workers, or on new ones if there are fewer than there should be."""
        for _ in range(len(self.waiting)):
            if len(self.working) >= self.jobs:
                return
            number, not_before = self.waiting.popleft()
            name = self._path(number).stem
            if time.monotonic() < not_before:
                self.waiting.append((number, not_before))
            elif not self.claims.acquire(name):
                self.waiting.append((number, time.monotonic() + _POLL))
                if number not in self.elsewhere:
                    self.elsewhere.add(number)
                    self.on_event(Event("elsewhere", number, text=self.claims.owner(name)))
            elif _exists(self._path(number)):  # under the claim: its writer wrote it before releasing its own
                self.claims.release(name)
                self._finished(number, ran=False)
            else:
                self._start(number)

    def _start(self, number: int) -> None:
        worker = self.idle.pop() if self.idle else self._new_worker()
        worker.number = number
        self.working[worker.pipe] = worker
        self.elsewhere.discard(number)
        self.on_event(Event("started", number))
        spec = self.cells[number].spec
        threads = max(1, cores() // self.jobs) if spec.threads is None else spec.threads
        cell = replace(self.cells[number], spec=replace(spec, threads=threads))
        with suppress(OSError):  # it died while it was idle; `_listen` finds out
            worker.pipe.send((cell, self._path(number), self.data))

    def _new_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a forked torch may hang in its thread pool
        pipe, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()  # so that the pipe ends with the process
        return _Worker(process, pipe)

    def _listen(self, worker: _Worker) -> None:
        """Receive a message of a worker, or notice that it died."""
        number = worker.number
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            worker.pipe.close()
            code = worker.process.exitcode
            ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            memory = ", as happens when memory runs out" if code == -signal.SIGKILL else ""
            kind, value = "failed", (f"its process {ended}{memory}", "", True)
        else:
            if kind == "progress":
                self.on_event(Event("progress", number, share=value))
                return
            self.idle.append(worker)
        del self.working[worker.pipe]
        self.claims.release(self._path(number).stem)
        if kind == "finished":
            self._finished(number, ran=value)
        else:
            self._failed(number, *value)

    def _finished(self, number: int, ran: bool) -> None:
        self.outcome.files[number] = self._path(number)
        for suffix in (".txt", ".trace"):
            with suppress(OSError):  # the result counts, whatever becomes of an older failure
                self._failure(number, suffix).unlink(missing_ok=True)
        self.on_event(Event("finished", number, path=self._path(number), ran=ran))

    def _failed(self, number: int, reason: str, trace: str = "", retry: bool = False) -> None:
        self.attempts[number] += 1
        retry = retry and self.attempts[number] <= self.retries
        if trace:
            reason += f" (traceback in {self._failure(number, '.trace')})"
        if isinstance(self.names[number], str):
            with suppress(OSError):  # the disk may be full, which is no reason to stop the other cells
                self._failure(number, "").parent.mkdir(parents=True, exist_ok=True)
                for suffix, text in ((".txt", reason), (".trace", trace)):
                    if text:
                        write_atomically(self._failure(number, suffix), text.encode())
        if retry:
            self.waiting.append((number, time.monotonic() + _RETRY))
        else:
            self.outcome.failures[number] = reason
        self.on_event(Event("failed", number, text=reason, retry=retry))

    def _path(self, number: int) -> Path:
        return self.folder / str(self.names[number])

    def _failure(self, number: int, suffix: str) -> Path:
        return self.folder / FAILURES / f"{self._path(number).stem}{suffix}"
