"""Let eight processes teach one file at random moments, kill some, and see that no lesson is lost or learned twice.

    python tests/locks.py --lessons 200

A lesson has photos of a class of its own, a known number of them, and one photo of a class that all lessons share. Most lessons
are `cldnet learn`, run in a process forked from this one, which has imported everything and computed nothing; one in ten is
`cldnet learn` in a process of its own; one in five loads, teaches and saves the model in Python. Eight run at any time. About a
quarter are killed (``kill -9``): at any moment, while they hold the file's lock, or while they write. A killed lesson is not
repeated. Meanwhile a reader loads the model again and again. It ends after so many lessons were acknowledged ("learned …" was
printed, or `save` returned). Then every acknowledged lesson must be in the model once, every other one once or not at all, and
none in part. Exits with 1 if anything of this does not hold. With ``--small`` all lessons are in Python, for a small model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

import cldnet.data.images.decode
import cldnet.estimator.classifier
import cldnet.nets.frozen  # noqa: F401  (what commands import when they run)
from cldnet import CLDNetClassifier, FileChangedError, locked
from cldnet.cli import main as cldnet_command
from cldnet.nets import RandomReLU

SIDE = 32
NEW = ("--memory", "1", "--size", str(SIDE), "--capacity", "1000")
SHARED = "shared"
#: Seconds that no lesson takes, unless it hangs.
PATIENCE = 600
#: Ways to teach, each with how many lessons of ten it has.
WAYS = {"the command": 7, "python": 2, "a process": 1}
#: The longest delay of a kill in seconds: a process waits, learns and saves in that time; holds the lock; writes.
DELAYS = {"any moment": 3.0, "holding the lock": 0.5, "writing": 0.05}
COMMAND = "import sys; sys.argv[0] = 'cldnet'; from cldnet.cli import main; main()"


@dataclass
class Lesson:
    """One lesson, and the process that teaches it."""

    number: int
    way: str
    killed_when: str | None
    folder: Path
    delay: float = 0.0
    process: int = 0
    due: float = field(default=float("inf"))

    @property
    def label(self) -> str:
        return f"lesson {self.number:04}"

    @property
    def photos(self) -> int:
        return 1 + self.number % 3

    @property
    def photo_folder(self) -> Path:
        return self.folder / self.label

    @property
    def said(self) -> Path:
        return self.folder / f"{self.label}.txt"

    @property
    def acknowledged(self) -> bool:
        return self.said.exists() and "learned  " in self.said.read_text()

    def write_photos(self) -> None:
        draw = np.random.default_rng(self.number)
        for label, count in ((self.label, self.photos), (SHARED, 1)):
            (self.photo_folder / label).mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(256, size=(SIDE, SIDE, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(self.photo_folder / label / f"{number}.png")

    def start(self, model: Path) -> None:
        self.write_photos()
        if self.way == "a process":
            with self.said.open("wb") as said:
                arguments = [sys.executable, "-c", COMMAND, "learn", str(model), str(self.photo_folder), *NEW]
                self.process = subprocess.Popen(arguments, stdout=said, stderr=said).pid
        else:
            self.process = forked(
                lambda: (self.in_python if self.way == "python" else self.by_command)(model), self.said
            )

    def by_command(self, model: Path) -> None:
        sys.argv = ["cldnet", "learn", str(model), str(self.photo_folder), *NEW]
        cldnet_command()

    def in_python(self, model: Path) -> None:
        """Hope that nobody else changes the file meanwhile, and take the lock if somebody did, or if there is no file."""
        try:
            self.teach(model)
        except (FileChangedError, FileNotFoundError):
            with locked(model):
                self.teach(model, begin=not model.exists())
        print("learned  in Python", flush=True)

    def teach(self, model: Path, begin: bool = False) -> None:
        clf = small_model() if begin else CLDNetClassifier.load(model)
        x = np.random.default_rng(self.number).integers(256, size=(self.photos + 1, SIDE, SIDE, 3), dtype=np.uint8)
        clf.partial_fit(x, [self.label] * self.photos + [SHARED])
        clf.save(model)


def small_model() -> CLDNetClassifier:
    features = RandomReLU((3, SIDE, SIDE), features=16, seed=0)
    return CLDNetClassifier(backbone=features, capacity=1000, random_state=0, n_threads=1)


def forked(work: Callable[[], object], said: Path) -> int:
    """Run something in a process of its own that writes what it says into a file; return the process's number."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        signal.alarm(PATIENCE)
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        work()
        status = 0
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def is_time(lesson: Lesson, model: Path) -> bool:
    """Whether a lesson that is to be killed has come to its moment."""
    if lesson.killed_when is None:
        return False
    if lesson.due == float("inf"):
        begun = {
            "any moment": lambda: True,
            "holding the lock": lambda: holder(model) == lesson.process,
            "writing": lambda: holder(model) == lesson.process and any(model.parent.glob(f".{model.name}.*.tmp")),
        }[lesson.killed_when]()
        if begun:
            lesson.due = time.monotonic() + lesson.delay
    return time.monotonic() >= lesson.due


def holder(model: Path) -> int | None:
    """The process that last took the lock."""
    with suppress(OSError, ValueError, KeyError):
        return int(json.loads(model.with_name(f".{model.name}.lock").read_text())["pid"])
    return None


@dataclass
class School:
    """Lessons under way, and what has become of the others."""

    folder: Path
    processes: int
    small: bool
    draw: random.Random
    running: list[Lesson] = field(default_factory=list)
    acknowledged: list[Lesson] = field(default_factory=list)
    others: list[Lesson] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    number: int = 0

    @property
    def model(self) -> Path:
        return self.folder / "model.cldnet"

    def next_lesson(self) -> Lesson:
        draw, self.number = self.draw, self.number + 1
        way = "python" if self.small else draw.choices([*WAYS], [*WAYS.values()])[0]
        if way == "python" and not self.small and not self.model.exists():
            way = "the command"  # which knows what a new model is to be
        moment = draw.choice([*DELAYS]) if draw.random() < 0.25 else None
        delay = 0.0 if moment is None else draw.uniform(0, DELAYS[moment] * (0.1 if self.small else 1))
        return Lesson(self.number, way, moment, self.folder, delay)

    def start(self) -> None:
        lesson = self.next_lesson()
        lesson.start(self.model)
        self.running.append(lesson)

    def look(self) -> None:
        """Kill whose time has come, and see who has ended."""
        for lesson in [*self.running]:
            if is_time(lesson, self.model):
                os.kill(lesson.process, signal.SIGKILL)
            ended, status = os.waitpid(lesson.process, os.WNOHANG)
            if not ended:
                continue
            self.running.remove(lesson)
            was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert was_killed or (status == 0 and lesson.acknowledged), f"a lesson failed: {lesson.said.read_text()}"
            (self.acknowledged if lesson.acknowledged else self.others).append(lesson)
            if was_killed:
                self.killed[str(lesson.killed_when)] += 1

    def check(self) -> int:
        """Compare the model with the lessons; return how many that nobody acknowledged are in it."""
        labels = CLDNetClassifier.load(self.model)._fitted().labels.counts
        lost = [lesson.label for lesson in self.acknowledged if lesson.label not in labels]
        assert not lost, f"{len(lost)} acknowledged lessons are lost: {lost}"
        there = [lesson for lesson in (*self.acknowledged, *self.others) if lesson.label in labels]
        expected = {lesson.label: lesson.photos for lesson in there} | {SHARED: len(there)}
        assert labels == expected, (
            f"lessons were learned twice or in part: {set(labels.items()) ^ set(expected.items())}"
        )
        left = {path.name for path in self.folder.iterdir() if path.name.startswith(".")}
        assert left == {f".{self.model.name}.lock"}, f"{sorted(left)} were left over"
        return len(there) - len(self.acknowledged)


def read_on(model: Path, stop: Path) -> None:
    """Load the model again and again: it must be whole at any time, and never know less than before."""
    times, known = 0, 0
    signal.alarm(0)  # it goes on for as long as there are lessons
    while not stop.exists():
        if model.exists():
            before, known = known, sum(filter(None, CLDNetClassifier.load(model)._fitted().labels.counts.values()))
            assert known >= before, f"{before} examples were there, and then {known}"
            times += 1
        time.sleep(0.5)
    print(f"loaded {times} times meanwhile, whole each time")


def teach(folder: Path, lessons: int, processes: int, small: bool, draw: random.Random) -> None:
    school, begun = School(folder, processes, small, draw), time.monotonic()
    reader = forked(lambda: read_on(school.model, folder / "stop"), folder / "reader.txt")
    wanted = 0.0
    while len(school.acknowledged) < lessons or school.running:
        if len(school.running) < processes and len(school.acknowledged) < lessons and time.monotonic() >= wanted:
            school.start()
            wanted = time.monotonic() + draw.expovariate(200.0 if small else 10.0)
        school.look()
        time.sleep(0.002)
    last = school.next_lesson()  # nobody kills this one, and it removes what killed writers left
    last.killed_when = None
    last.start(school.model)
    school.running.append(last)
    while school.running:
        school.look()
        time.sleep(0.002)
    (folder / "stop").touch()
    read_well = os.waitpid(reader, 0)[1] == 0
    unsaid = school.check()
    assert read_well, (folder / "reader.txt").read_text()
    waited = sum("Waiting for process" in lesson.said.read_text() for lesson in school.acknowledged)
    ways = Counter(lesson.way for lesson in school.acknowledged)
    print(
        f"{len(school.acknowledged)} lessons acknowledged ({dict(ways)}), {waited} of them after waiting for another process"
    )
    print(
        f"{sum(school.killed.values())} killed ({dict(school.killed)}), {unsaid} of them had saved and not yet said so"
    )
    print((folder / "reader.txt").read_text().strip())
    print(f"every acknowledged lesson is there once; {time.monotonic() - begun:.0f} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lessons", type=int, default=200)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="lessons-") as folder:
        teach(Path(folder), chosen.lessons, chosen.processes, chosen.small, random.Random(chosen.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
