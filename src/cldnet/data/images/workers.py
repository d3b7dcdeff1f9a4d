"""Decodes images into one file of rows, under limits of time and memory.

The processes that do so import neither torch nor the user's script.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import BinaryIO

from cldnet.data.images.decode import BadImage, decode, is_quick, pillow

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = ["FEW", "MAX_MEMORY", "MAX_SECONDS", "MAX_WAIT", "Reply", "Target", "decode_into", "usable_cpus"]

#: Up to this many images are decoded in this process, if they are quick to decode: to start others would take longer.
FEW = 64
#: Seconds of processor time for one image. Images of `MAX_PIXELS` take one or two, and load on the machine does not count.
MAX_SECONDS = 10
#: Seconds by the clock for one image: for a disk that does not answer, and where processor time cannot be limited (Windows).
MAX_WAIT = 60
#: Bytes that a worker may take beyond what it has before the first image (Linux). Images of `MAX_PIXELS` take at most 1 GiB.
MAX_MEMORY = 3 << 29
#: Images that a worker has before it, so that it need not wait for the next.
_WINDOW = 8
_PATIENCE = 5.0
_TICK = 1.0

#: A row and the image that goes there.
_Job = tuple[int, str]
#: Nothing when a row was written; else why the image is bad, or why the file of rows cannot be written.
Reply = BadImage | OSError | None


@dataclass(frozen=True)
class Target:
    """Where pixels go: a file with room for all rows, and the sides that are wanted."""

    path: str
    size: int
    resize: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one image."""
        return 3 * self.size * self.size


def usable_cpus() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decode_into(target: Target, paths: Sequence[str], workers: int) -> Generator[tuple[int, Reply], None, None]:
    """Decode images into the rows that are theirs, in any order; yield every row when it is done.

    Many images are decoded in ``workers`` processes, each image within `MAX_SECONDS`, `MAX_WAIT` and `MAX_MEMORY`. One that
    takes more is bad. Of a few images, or for one worker, those that `is_quick` vouches for are decoded in this process and
    the others in one worker. Pixels go straight into the file; memory holds one image a worker. Close the iterator
    (``contextlib.closing``) when it is left early: that ends the workers.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     list(decode_into(Target(file.name, 4, 4), ["no-such-file.jpg"], workers=1))
    [(0, BadImage(path='no-such-file.jpg', reason='No such file or directory', passing=True))]
    """
    jobs = list(enumerate(paths))
    if workers > 1 and len(jobs) > FEW and _may_start():
        yield from _in_workers(target, jobs, workers)
        return
    slow = []
    with open(target.path, "r+b", buffering=0) as file:
        for row, path in jobs:
            if is_quick(path) or not _may_start():
                yield row, _write_row(file, target, row, path)
            else:
                slow.append((row, path))
    yield from _in_workers(target, slow, 1)


def _may_start() -> bool:
    """A daemon, such as a worker of somebody's pool, may not have children: it decodes all images itself, without limits."""
    return not multiprocessing.current_process().daemon


def _write_row(file: BinaryIO, target: Target, row: int, path: str) -> Reply:
    pixels = decode(path, target.size, target.resize)
    if isinstance(pixels, BadImage):
        return pixels
    try:
        # Written, not stored through a mapping: on a full disk that would end the process without a word.
        file.seek(row * target.row_bytes)
        rest = pixels.reshape(-1).data
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        return error
    return None


@dataclass(eq=False)
class _Worker:
    """A process, the line to it, and the images that it has been given."""

    process: SpawnProcess
    line: Connection
    held: deque[_Job] = field(default_factory=deque)
    #: Seconds that we have waited for the first of those images.
    waited: float = 0.0
    gone: bool = False

    def give(self, jobs: deque[_Job]) -> None:
        """Send it as many images as it may have before it."""
        while jobs and len(self.held) < _WINDOW:
            self.held.append(jobs.popleft())
            with suppress(OSError):  # if it has ended, `reply` finds out why
                self.line.send(self.held[-1])

    def reply(self) -> tuple[int, Reply]:
        """Take what it says of the oldest image that it was given, or find out that it ended over that one."""
        self.waited = 0.0
        try:
            answer: Reply = self.line.recv()
        except (EOFError, OSError):
            answer = self._last_word()
            self.gone = True
        return self.held.popleft()[0], answer

    def give_up(self) -> tuple[int, Reply]:
        """Say that it is too long at an image."""
        self.gone = True
        row, path = self.held.popleft()
        return row, BadImage(path, f"took longer than {MAX_WAIT} s to read", passing=True)

    def end(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()
        self.process.join()
        self.line.close()

    def _last_word(self) -> BadImage:
        path = self.held[0][1]
        self.process.join(_PATIENCE)
        code = self.process.exitcode
        if resource is not None and code == -signal.SIGXCPU:
            return BadImage(path, f"took longer than {MAX_SECONDS} s to decode")
        if code in (-signal.SIGSEGV, -signal.SIGABRT):
            return BadImage(path, "made the decoder crash")
        raise ChildProcessError(
            f"The process that decoded {path!r} ended (exit code {code}), perhaps for want of "
            "memory. Use fewer workers, or move that file away."
        )


def _in_workers(target: Target, paths: Sequence[_Job], count: int) -> Iterator[tuple[int, Reply]]:
    jobs = deque(paths)
    with _crew() as crew:
        for _ in range(min(count, -(-len(paths) // _WINDOW))):
            crew.append(_start(target, jobs))
        while busy := [worker for worker in crew if worker.held]:
            before = time.monotonic()
            ready = wait([worker.line for worker in busy], _TICK)
            waited = min(_TICK, time.monotonic() - before)  # more if this process was stopped for a while
            for worker in busy:
                worker.waited += waited
                if worker.line in ready:
                    yield worker.reply()
                elif worker.waited > MAX_WAIT:
                    yield worker.give_up()
                if not worker.gone:
                    worker.give(jobs)
                    continue
                jobs.extendleft(reversed(worker.held))
                worker.end()
                crew.remove(worker)
                if jobs:
                    crew.append(_start(target, jobs))


def _start(target: Target, jobs: deque[_Job]) -> _Worker:
    """Start a worker and give it its first images."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, target, MAX_SECONDS, MAX_MEMORY), daemon=True)
    with theirs, _without_main():
        process.start()
    worker = _Worker(process, ours)
    worker.give(jobs)
    return worker


@contextmanager
def _crew() -> Iterator[list[_Worker]]:
    crew: list[_Worker] = []
    done = False
    try:
        yield crew
        done = True
    finally:
        for worker in crew:
            worker.line.close()  # an idle worker ends by that
            if not done:
                worker.process.terminate()
        for worker in crew:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


_main_lock = Lock()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the user's script from a process that is started.

    Else it would be run there again, with all that it imports, or without end if it lacks ``if __name__ == "__main__"``.
    """
    with _main_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _serve(line: Connection, target: Target, seconds: int, memory: int) -> None:
    """Decode what comes along the line until it is closed, which it also is when the other process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us hears of it, and ends us
    pillow()
    _limit_memory(memory)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError), open(target.path, "r+b", buffering=0) as file:
        while True:
            row, path = line.recv()
            _limit_time(seconds)
            line.send(_write_row(file, target, row, path))


def _limit_memory(size: int) -> None:
    """Let this process have so many bytes more than it has now."""
    with suppress(OSError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _set_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + size)
        _set_limit(resource.RLIMIT_CORE, 0)  # a photo must not end up in a core dump


def _limit_time(seconds: int) -> None:
    """End this process when it has used the processor for so many seconds from now on, or for one more."""
    if resource is not None:
        _set_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + seconds)


def _set_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
