"""Our end of the conversation with a worker: start it, ask for a turn, end it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.speed.apart import ROOT, environment
from benchmarks.speed.peers.protocol import LR, Answer

_SECONDS = 10.0


class WorkerError(Exception):
    """A worker ended before it answered; the text is the last that it said."""


@dataclass(frozen=True)
class Request:
    """One turn: what to do, on how many threads, classes in which order, how many rows of the data, and the learning rate."""

    piece: str
    threads: int
    order: tuple[int, ...]
    seed: int
    rows: int | None = None
    tests: int | None = None
    lr: float = LR


class Worker:
    """A process that works when it is asked to.

    Parameters
    ----------
    python : Path
        The interpreter of its environment.
    module : str
        What it runs.
    folder : Path
        Where the data lie.
    """

    def __init__(self, python: Path, module: str, folder: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed with the worker)
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", "-m", module, str(folder)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        try:
            self.versions: dict[str, str] = self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, request: Request) -> Answer:
        """Have one turn done, and wait for it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(request)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._last_words()) from None
        return Answer(**self._answer())

    def close(self) -> None:
        """Let it end by itself, or end it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # of a request that a dead worker never read
                    stream.close()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._process.wait(_SECONDS)
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with {self._process.returncode} and said nothing"
