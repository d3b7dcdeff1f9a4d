"""Kill a process that teaches and saves a model, again and again, and see that nothing is lost, halved or changed.

    python tests/crash.py --kills 200

A model learns ten digits two at a time, one session after the other, each with a checkpoint, and is saved after each. It is
killed (``kill -9``) at random moments; after each kill the file must load, with every session that was saved before, and
the next process goes on from it. Whenever all five sessions are learned, file and predictions must be those of a run that
nobody disturbed, to the last bit. Exits with 1 if anything of this does not hold. Every process is forked from this one,
which has imported everything and computed nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from cldnet import CLDNetClassifier

SOLVERS = ("exact", "hbo")
X, Y = load_digits(return_X_y=True)
TASKS = [np.isin(Y, (2 * task, 2 * task + 1)) for task in range(5)]


def net(solver: str) -> nn.Module | None:
    """A small net for the gradient's solver, so that most of the time goes into learning; its first weights do not count."""
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 32)) if solver == "hbo" else None


def load(folder: Path, solver: str) -> CLDNetClassifier | None:
    """The saved model, which must be whole, if there is one."""
    path = folder / "model"
    return CLDNetClassifier.load(path, backbone=net(solver)) if path.exists() else None


def learned(clf: CLDNetClassifier | None) -> int:
    return 0 if clf is None else len(clf.classes_) // 2


def teach(folder: Path, solver: str) -> None:
    """Go on from the saved model to the last session."""
    torch.manual_seed(0)
    clf = load(folder, solver)
    done = learned(clf)
    if clf is None:
        size = {"capacity": 10, "embed_dim": 32, "epochs": 10}
        clf = CLDNetClassifier(solver, net(solver) or "auto", **size, random_state=0, n_threads=1)
    for chosen in TASKS[done:]:
        with clf.session(folder / "session", every=0.1):
            clf.partial_fit(X[chosen], Y[chosen])
        clf.save(folder / "model")
    np.save(folder / "predictions.npy", clf.decision_function(X))


def forked(work: Callable[[], object]) -> int:
    """Run something in a process of its own, and tell the process's number."""
    process = os.fork()
    if process:
        return process
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(process: int, after: float | None) -> bool:
    """Wait for a process, and kill it if it takes longer; tell whether it ended by itself, as it must, without an error."""
    until = None if after is None else time.monotonic() + after
    while until is None or time.monotonic() < until:
        found, status = os.waitpid(process, 0 if until is None else os.WNOHANG)
        if found:
            assert status == 0, "a process failed"
            return True
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return False


def outcome(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "model").read_bytes(), (folder / "predictions.npy").read_bytes()


def check(folder: Path, solver: str, at_least: int) -> int:
    """See that the saved model loads, and knows no fewer sessions than it did."""
    reader, writer = os.pipe()
    assert ended(forked(lambda: os.write(writer, bytes([learned(load(folder, solver))]))), None)
    now = os.read(reader, 1)[0]
    os.close(reader)
    os.close(writer)
    assert now >= at_least, f"{at_least} sessions were saved, {now} are there"
    return now


def crash(solver: str, kills: int, folder: Path, draw: random.Random) -> None:
    whole, killed = folder / solver / "whole", folder / solver / "killed"
    whole.mkdir(parents=True)
    killed.mkdir()
    began = time.monotonic()
    assert ended(forked(lambda: teach(whole, solver)), None)
    length = time.monotonic() - began
    print(f"{solver}: undisturbed in {length:.1f} s", flush=True)
    done = runs = saved = 0
    while True:
        # Up to a whole run, so that kills meet its beginning, its end, and what is saved last; at last nobody kills any more.
        moment = draw.uniform(0, length) if done < kills else None
        if not ended(forked(lambda: teach(killed, solver)), moment):
            done, saved = done + 1, check(killed, solver, saved)
            continue
        assert outcome(killed) == outcome(whole), "the model differs from that of an undisturbed run"
        runs, saved = runs + 1, 0
        print(f"{solver}: {done} kills, {runs} runs finished, each to the same bits", flush=True)
        if done >= kills:
            break
        for path in killed.iterdir():
            path.unlink()
    print(f"{solver}: nothing lost, nothing corrupt", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--solver", choices=SOLVERS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    draw = random.Random(chosen.seed)
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        for solver in chosen.solver or SOLVERS:
            crash(solver, chosen.kills, Path(folder), draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
