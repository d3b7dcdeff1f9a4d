"""All contests, one after the other: the data are written once, and every peer gets one worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.speed.environments import AVALANCHE, RIVER, NotInstalledError
from benchmarks.speed.peers.calls import Worker, WorkerError
from benchmarks.speed.peers.contests import Contest, Size, contests, take_turns
from benchmarks.speed.peers.findings import finding
from benchmarks.speed.peers.protocol import SETTINGS
from benchmarks.speed.peers.rows import sample, write
from benchmarks.speed.record import Finding, NotRun

WHOLE, QUICK = Size(train=12_000, test=10_000, turns=5), Size(train=3_000, test=2_000, turns=3)
THREADS = (1, 2)
#: Interpreters of the peers. scikit-learn is among our own dependencies.
PYTHONS: dict[str, Callable[[], Path]] = {
    "avalanche": AVALANCHE.python,
    "sklearn": lambda: Path(sys.executable),
    "river": RIVER.python,
}


class Workers:
    """Workers that are started when they are first asked for, and stay; a peer that cannot be had is asked for once."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder
        self._known: dict[str, Worker | str] = {}

    def ours(self) -> Worker:
        """Our own, which has to work."""
        found = self.of("ours")
        if isinstance(found, str):
            raise WorkerError(found)
        return found

    def of(self, peer: str) -> Worker | str:
        """A peer's worker, or why there is none."""
        if peer not in self._known:
            try:
                python = Path(sys.executable) if peer == "ours" else PYTHONS[peer]()
                worker = Worker(python, f"benchmarks.speed.peers.{peer}_worker", self._folder)
                self._known[peer] = self._stack.enter_context(worker)
            except (NotInstalledError, WorkerError) as error:
                self._known[peer] = str(error)
        return self._known[peer]


def measure(data: Path | None, quick: bool) -> Iterator[Finding | NotRun]:
    """Yield every match as it is found, or why it was not run."""
    size = QUICK if quick else WHOLE
    rows = sample(data, size.train, size.test)
    known: dict[str, Any] = {
        "data": rows.name,
        "train": len(rows.train.y),
        "test": len(rows.test.y),
        "settings": dict(SETTINGS),
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="cldnet-peers-")))
        write(rows, folder)
        workers = Workers(stack, folder)
        for threads in THREADS:
            for contest in contests(threads):
                yield from _contest(contest, workers, threads, size.turns, known)


def _contest(
    contest: Contest, workers: Workers, threads: int, turns: int, known: dict[str, Any]
) -> Iterator[Finding | NotRun]:
    ours, theirs = workers.ours(), workers.of(contest.peer)
    try:
        if isinstance(theirs, str):
            raise WorkerError(theirs)
        answers = take_turns(contest, ours, theirs, threads, turns)
        versions = {"ours": ours.versions, "theirs": theirs.versions}
    except WorkerError as error:
        for match in contest.matches:
            yield NotRun(f"peer/{match.name}/{threads}", match.title, str(error))
        return
    for match in contest.matches:
        sides = answers[f"ours:{match.ours}"], answers[f"theirs:{match.theirs}"]
        yield finding(match, threads, *sides, {**known, "rows": contest.rows, "versions": versions})
