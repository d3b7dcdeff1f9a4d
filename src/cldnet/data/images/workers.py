"""Decodes many images into one file of rows, in processes of their own, which import neither torch nor the user's script."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from threading import Lock
from types import ModuleType
from typing import BinaryIO

from cldnet.data.images.decode import BadImage, decode

__all__ = ["FEW", "Reply", "Target", "decode_into", "usable_cpus"]

#: Up to this many images are decoded in this process: to start others would take longer.
FEW = 64
#: Images that a worker has before it, so that it need not wait for the next.
_WINDOW = 8
_PATIENCE = 5.0

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

    A few images, or one worker, are done in this process. Pixels go straight into the file; memory holds one image a worker.
    Close the iterator (``contextlib.closing``) when it is left early: that ends the workers.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     list(decode_into(Target(file.name, 4, 4), ["no-such-file.jpg"], workers=1))
    [(0, BadImage(path='no-such-file.jpg', reason='No such file or directory', passing=True))]
    """
    # A daemon, such as a worker of somebody's pool, may not have children.
    if workers > 1 and len(paths) > FEW and not multiprocessing.current_process().daemon:
        yield from _in_workers(target, paths, workers)
        return
    with open(target.path, "r+b", buffering=0) as file:
        for row, path in enumerate(paths):
            yield row, _write_row(file, target, row, path)


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


@dataclass
class _Worker:
    """A process, the line to it, and the images that it has been given."""

    process: SpawnProcess
    line: Connection
    held: deque[tuple[int, str]] = field(default_factory=deque)

    def give(self, jobs: Iterator[tuple[int, str]]) -> None:
        """Send it as many images as it may have before it."""
        for job in islice(jobs, _WINDOW - len(self.held)):
            self.held.append(job)
            try:
                self.line.send(job)
            except OSError:
                raise self._death() from None

    def reply(self) -> tuple[int, Reply]:
        """Take what it says of the oldest image that it was given."""
        try:
            answer: Reply = self.line.recv()
        except (EOFError, OSError):
            raise self._death() from None
        return self.held.popleft()[0], answer

    def _death(self) -> ChildProcessError:
        self.process.join(_PATIENCE)
        return ChildProcessError(
            f"The process that decoded {self.held[0][1]!r} ended (exit code {self.process.exitcode}), perhaps for want of "
            "memory. Use fewer workers, or move that file away."
        )


def _in_workers(target: Target, paths: Sequence[str], count: int) -> Iterator[tuple[int, Reply]]:
    jobs = iter(enumerate(paths))
    with _crew(target, min(count, -(-len(paths) // _WINDOW))) as crew:
        for worker in crew:
            worker.give(jobs)
        while busy := {worker.line: worker for worker in crew if worker.held}:
            for line in wait(list(busy)):
                worker = busy[line]  # type: ignore[index]  # only our lines were waited for
                yield worker.reply()
                worker.give(jobs)


@contextmanager
def _crew(target: Target, count: int) -> Iterator[list[_Worker]]:
    context = multiprocessing.get_context("spawn")
    crew: list[_Worker] = []
    done = False
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, target), daemon=True)
            with theirs, _without_main():
                process.start()
            crew.append(_Worker(process, ours))
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


def _serve(line: Connection, target: Target) -> None:
    """Decode what comes along the line until it is closed, which it also is when the other process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us hears of it, and closes the line
    with suppress(EOFError, BrokenPipeError, ConnectionResetError), open(target.path, "r+b", buffering=0) as file:
        while True:
            row, path = line.recv()
            line.send(_write_row(file, target, row, path))
