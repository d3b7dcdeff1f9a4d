"""Kill a process that teaches and saves a model, again and again, and see that nothing is lost, halved or changed.

    python tests/crash.py --kills 200

A model learns ten digits two at a time, one session after the other, each with a checkpoint, and is saved after each. What it
has come to it notes in a log, which it only ever adds to. It is killed (``kill -9``) at random moments: at any, soon after a
checkpoint, and while it saves. After each kill the file must load, with every session of which the log says that it was
saved, and the next process goes on from it, in the middle of a session if there is a checkpoint. Whenever all five sessions
are learned, file and predictions must be those of a run that nobody disturbed, to the last bit, with no litter beside them.
Some sessions must have been gone on with midway, or checkpoints would be of no use. Exits with 1 if anything of this does not
hold. Every process is forked from this one, which has imported everything and computed nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import cldnet.storage as store
from cldnet import CLDNetClassifier
from cldnet.methods.cldnet import CLDNet
from cldnet.methods.exact import Exact

SOLVERS = ("exact", "hbo")
EPOCHS = 4
#: Seconds that no process takes, unless it hangs.
PATIENCE = 600
X, Y = load_digits(return_X_y=True)
#: The exact solver takes a thousand rows at a time: sessions have several times as many, or there would be no checkpoint.
COPIES = {"exact": 20, "hbo": 1}


class Line(NamedTuple):
    """A line of a log: when, what, and a number."""

    when: float
    what: str
    number: int


class Log:
    """A file that is only ever added to, a line at a time: what is in it has happened, whoever is killed afterwards."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log"

    def note(self, what: str, number: int) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{time.monotonic()} {what} {number}\n".encode())
        os.close(handle)

    def lines(self, what: str) -> list[Line]:
        text = self.path.read_text() if self.path.exists() else ""
        found = [line.split() for line in text.splitlines()]
        return [Line(float(when), word, int(number)) for when, word, number in found if word == what]

    def last(self, what: str) -> int:
        """The number of the last line of a kind."""
        return max((line.number for line in self.lines(what)), default=0)

    def saving_takes(self) -> float:
        """Seconds from the beginning of a save to its end, the longest."""
        pairs = zip(self.lines("saving"), self.lines("saved"), strict=True)
        return max(end.when - start.when for start, end in pairs)


def net(solver: str) -> nn.Module | None:
    """A small net for the gradient's solver, so that most of the time goes into learning; its first weights do not count."""
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 32)) if solver == "hbo" else None


def task(solver: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Two digits: all rows of them, and copies that differ a little."""
    chosen = np.isin(Y, (2 * number, 2 * number + 1))
    x, y = np.tile(X[chosen], (COPIES[solver], 1)), np.tile(Y[chosen], COPIES[solver])
    return x + np.random.default_rng(number).normal(scale=0.5, size=x.shape), y


def load(folder: Path, solver: str) -> CLDNetClassifier | None:
    """The saved model, which must be whole, if there is one."""
    path = folder / "model"
    return CLDNetClassifier.load(path, backbone=net(solver)) if path.exists() else None


def learned(clf: CLDNetClassifier | None) -> int:
    return 0 if clf is None else len(clf.classes_) // 2


def note_first_steps(log: Log) -> None:
    """Let the learners note in which step a process takes up a session: 0, unless it goes on with one."""
    tasks: set[int] = set()

    def noting(observe: Callable[..., Any]) -> Callable[..., Any]:
        def observed(self: Any, batch: Any) -> Any:
            if self.tasks not in tasks:
                tasks.add(self.tasks)
                log.note("step", batch.step)
            return observe(self, batch)

        return observed

    for kind in (Exact, CLDNet):
        kind.observe = noting(kind.observe)  # type: ignore[method-assign]


def teach(folder: Path, solver: str) -> None:
    """Go on from the saved model to the last session."""
    torch.manual_seed(0)
    log, clf = Log(folder), load(folder, solver)
    note_first_steps(log)
    done = learned(clf)
    if clf is None:
        size = {"capacity": 10, "embed_dim": 32, "epochs": EPOCHS}
        clf = CLDNetClassifier(solver, net(solver) or "auto", **size, random_state=0, n_threads=1)
    for number in range(done, 5):
        with clf.session(folder / "session", every=0.05):
            clf.partial_fit(*task(solver, number))
        log.note("saving", number + 1)
        clf.save(folder / "model")
        log.note("saved", number + 1)
    np.save(folder / "predictions.npy", clf.decision_function(X))


def forked(work: Callable[[], object]) -> int:
    """Run something in a process of its own, and tell the process's number."""
    process = os.fork()
    if process:
        return process
    try:
        signal.alarm(PATIENCE)
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(process: int, is_time: Callable[[], bool] | None = None) -> bool:
    """Wait for a process, and kill it when it is time; tell whether it ended by itself, as it must, without an error."""
    while is_time is None or not is_time():
        found, status = os.waitpid(process, 0 if is_time is None else os.WNOHANG)
        if found:
            assert status == 0, "a process failed, or hung"
            return True
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def after(event: Callable[[], object], times: int, delay: float) -> Callable[[], bool]:
    """It is time so many seconds after something has become another thing for the n-th time."""
    seen, left, due = event(), times, math.inf

    def is_time() -> bool:
        nonlocal seen, left, due
        before, seen = seen, event()
        if seen and seen != before:
            left -= 1
            due = time.monotonic() + delay if left == 0 else due
        return time.monotonic() >= due

    return is_time


def identity(path: Path) -> object:
    """What changes when a file is written anew; nothing if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def moments(folder: Path, whole: Log, draw: random.Random) -> dict[str, Callable[[], Callable[[], bool]]]:
    """The ways to choose when a process is killed."""
    length, saving, log = (
        whole.lines("saved")[-1].when - whole.lines("begun")[0].when,
        whole.saving_takes(),
        Log(folder),
    )

    def any_time() -> Callable[[], bool]:
        # Up to a whole run, so that kills meet its beginning, its end, and what is saved last.
        until = time.monotonic() + draw.uniform(0, length)
        return lambda: time.monotonic() >= until

    return {
        "midway": lambda: after(lambda: identity(folder / "session"), draw.randint(1, 3), draw.uniform(0, 0.05)),
        "saving": lambda: after(lambda: len(log.lines("saving")), draw.randint(1, 2), draw.uniform(0, 1.5 * saving)),
        "any time": any_time,
    }


def outcome(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "model").read_bytes(), (folder / "predictions.npy").read_bytes()


def check(folder: Path, solver: str) -> None:
    """See that the saved model loads, and knows every session that was saved, and at most the one that was just being."""
    reader, writer = os.pipe()
    assert ended(forked(lambda: os.write(writer, bytes([learned(load(folder, solver))]))))
    there = os.read(reader, 1)[0]
    os.close(reader)
    os.close(writer)
    saved = Log(folder).last("saved")
    assert saved <= there <= saved + 1, f"{saved} sessions were saved, {there} are there"


def undisturbed(folder: Path, solver: str) -> Log:
    folder.mkdir(parents=True)
    log = Log(folder)
    log.note("begun", 0)
    assert ended(forked(lambda: teach(folder, solver)))
    assert not any(line.number for line in log.lines("step")), (
        "a session that nobody disturbed did not begin at its beginning"
    )
    return log


def check_left(folder: Path, solver: str) -> None:
    """See that a finished run has left nothing lying about.

    Only a kill between the last saving and the removal of that session's checkpoint can leave it, since nobody opens another
    session then; the model must know that it has learned it.
    """
    left = {path.name for path in folder.iterdir()} - {"model", ".model.lock", "predictions.npy", "log"}
    assert left <= {"session"}, f"{sorted(left)} were left over"

    def learned() -> None:
        clf = load(folder, solver)
        assert clf is not None
        assert store.read(folder / "session")[1]["call"] == clf._fitted().session, "a checkpoint was left over"

    if left:
        assert ended(forked(learned), None)


def crash(solver: str, kills: int, folder: Path, draw: random.Random) -> None:
    whole, killed = folder / solver / "whole", folder / solver / "killed"
    log = undisturbed(whole, solver)
    killed.mkdir()
    done = runs = gone_on = 0
    expected = max(1, kills // 10)

    def is_enough() -> bool:
        # On a busy machine a few kills may all miss the middle of a session: then some more follow.
        return done >= kills and (gone_on >= expected or done >= 4 * kills)

    for choose in cycle(moments(killed, log, draw).values()):
        # At last nobody kills any more.
        if not ended(forked(lambda: teach(killed, solver)), None if is_enough() else choose()):
            done += 1
            check(killed, solver)
            continue
        check(killed, solver)
        assert outcome(killed) == outcome(whole), "the model differs from that of an undisturbed run"
        check_left(killed, solver)
        runs += 1
        gone_on += sum(line.number > 0 for line in Log(killed).lines("step"))
        print(f"{solver}: {done} kills, {runs} runs to the same bits, {gone_on} sessions gone on with", flush=True)
        if is_enough():
            break
        for path in killed.iterdir():
            path.unlink()
    assert gone_on >= expected, f"only {gone_on} sessions were gone on with: checkpoints are not read, or not written"
    print(f"{solver}: nothing lost, nothing corrupt", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--solver", choices=SOLVERS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    draw = random.Random(chosen.seed)
    net("hbo").to("meta")(torch.zeros(1, 64, device="meta"))  # type: ignore[union-attr]  # torch imports a thousand modules for that
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        for solver in chosen.solver or SOLVERS:
            crash(solver, chosen.kills, Path(folder), draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
