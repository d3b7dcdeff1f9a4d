"""What the workers share: settings, the data in a folder, and a conversation in lines of JSON.

A worker is a process in an environment of its own that does one turn when it is asked to, and sleeps otherwise. This file
is read by all of them, so it needs numpy and nothing else.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

CLASSES, PER_TASK = 10, 2
WIDTHS, BATCH, EPOCHS = (400, 400), 128, 1
#: Chosen on training rows that were held out: `benchmarks.speed.peers.choose`.
LR, MOMENTUM = 0.1, 0.0
MEMORY = 200
#: Weight of ``Σ F (θ − θ*)²``.
EWC = 1.0
#: Learning rate where every row is a step of its own.
LR_ONE = 0.001
#: Mean and spread of the pixels, from 0 to 1: those that everybody uses for MNIST, so that all sides see the same numbers.
MEAN, SPREAD = 0.1307, 0.3081

SETTINGS: Mapping[str, Any] = {
    "tasks": CLASSES // PER_TASK,
    "widths": WIDTHS,
    "batch": BATCH,
    "epochs": EPOCHS,
    "lr": LR,
    "momentum": MOMENTUM,
    "memory": MEMORY,
    "replayed a step": BATCH,
    "weight of the penalty": EWC,
}

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Answer:
    """What came of one turn: seconds (training by the clock and of all cores), counts, accuracy and bytes."""

    prepare: float
    wall: float
    cpu: float
    evaluate: float
    images: int
    stream: int
    accuracy: float
    state_bytes: int
    peak_rss: int


@dataclass(frozen=True)
class Rows:
    """Images ``(n, height, width)`` in bytes, with their labels from 0 to 9."""

    x: NDArray[np.uint8]
    y: Labels

    def flat(self) -> NDArray[np.float32]:
        """One normalised row an image."""
        return ((self.x.reshape(len(self.x), -1) / np.float32(255) - np.float32(MEAN)) / np.float32(SPREAD)).astype(
            np.float32
        )

    def first(self, count: int | None) -> Rows:
        """So many of them, or all."""
        return Rows(self.x[:count], self.y[:count])

    def only(self, labels: Sequence[int]) -> Rows:
        """The rows of some classes, in their order."""
        mine = np.isin(self.y, labels)
        return Rows(self.x[mine], self.y[mine])


@dataclass(frozen=True)
class Stream:
    """What one turn learns: all rows, and the classes task by task."""

    folder: Path
    train: Rows
    test: Rows
    order: tuple[int, ...]
    seed: int
    lr: float

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """Classes of each task."""
        return [self.order[first : first + PER_TASK] for first in range(0, CLASSES, PER_TASK)]

    @property
    def tasks(self) -> list[Rows]:
        """Training rows of each task."""
        return [self.train.only(group) for group in self.groups]

    def accuracy(self, predicted: Labels) -> float:
        """Mean over the tasks of the share of their test images that is right, with all classes as candidates."""
        right = predicted == self.test.y
        return float(np.mean([right[np.isin(self.test.y, group)].mean() for group in self.groups]))


class Trial(Protocol):
    """A learner that is ready to learn a stream; making it is preparation, and timed apart."""

    def train(self) -> int:
        """Learn all tasks, and tell how many images went through the net to be trained on."""

    def predict(self) -> Labels:
        """Labels of the test images."""

    def state_bytes(self) -> int:
        """Bytes of all numbers that it keeps between tasks."""


Make = Callable[[Stream], Trial]


def read_rows(folder: Path, part: str) -> Rows:
    """Read a part that `benchmarks.speed.peers.rows` wrote."""
    return Rows(np.load(folder / f"{part}-x.npy"), np.load(folder / f"{part}-y.npy"))


def serve(makes: Mapping[str, Make], versions: Mapping[str, str], threads: Callable[[int], object]) -> None:
    """Answer requests until there are no more. What a library prints goes to the error stream, out of the answers' way."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    folder = Path(sys.argv[1])
    train, test = read_rows(folder, "train"), read_rows(folder, "test")
    _say(answers, dict(versions))
    for line in sys.stdin:
        asked = json.loads(line)
        threads(asked["threads"])
        stream = Stream(
            folder,
            train.first(asked["rows"]),
            test.first(asked["tests"]),
            tuple(asked["order"]),
            int(asked["seed"]),
            float(asked["lr"]),
        )
        _say(answers, asdict(_turn(makes[asked["piece"]], stream)))


def _turn(make: Make, stream: Stream) -> Answer:
    begun = time.perf_counter()
    trial = make(stream)
    prepare = time.perf_counter() - begun
    _forget_peak()
    cpu, wall = _cpu(), time.perf_counter()
    images = trial.train()
    wall, cpu = time.perf_counter() - wall, _cpu() - cpu
    peak = _peak()
    begun = time.perf_counter()
    predicted = trial.predict()
    evaluate = time.perf_counter() - begun
    learned = len(stream.train.y) * EPOCHS
    accuracy, kept = stream.accuracy(predicted), trial.state_bytes()
    return Answer(prepare, wall, cpu, evaluate, images, learned, accuracy, kept, peak)


def _say(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")


def _cpu() -> float:
    """Seconds of all cores, with those of processes that have ended (a loader's workers)."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def _forget_peak() -> None:
    with suppress(OSError):  # Linux alone can
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Most bytes that the process had resident since the training began; since its own beginning where Linux is not."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
