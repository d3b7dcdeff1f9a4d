"""What ``mirror="auto"`` of whitened patches chooses, and what that costs in accuracy and time.

    python -c "from pathlib import Path; from benchmarks.everyday.mirror import measure; print(measure(Path(DATA), False))"

Generated characters, scikit-learn's digits, MNIST and CIFAR-10 are learned lesson by lesson, with mirror images, without, and
by choice, with 50 filters (20 of 4×4 for the tiny digits). MNIST and CIFAR-10 are left out where their files are missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cldnet import CLDNetClassifier
from cldnet.data.streams import stream_by_name
from cldnet.nets import WhitenedPatches

Mirror = bool | Literal["auto"]
MIRRORS: tuple[Mirror, ...] = (True, False, "auto")
SIDE, EACH, TRAIN = 28, 20, 15
#: Images of a lesson that are learned and that are asked about.
_MOST, _ASKED = 2000, 500


class Lessons(NamedTuple):
    """Lessons ``(x, y)`` to learn and to be asked about, and options of the map."""

    learned: list[tuple[Tensor, Tensor]]
    asked: list[tuple[Tensor, Tensor]]
    options: dict[str, int]


def characters(classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw `EACH` images of every class: two or three random Bézier curves, bent, turned, stretched and moved each time."""
    random, grid = np.random.default_rng(seed), np.arange(SIDE)
    t = np.linspace(0, 1, 40)[:, None]
    bernstein = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    images = np.zeros((classes * EACH, SIDE, SIDE), dtype=np.uint8)
    strokes: Any = None
    for number, image in enumerate(images):
        if number % EACH == 0:
            strokes = random.uniform(0.12, 0.88, (random.integers(2, 4), 4, 2))
        angle, stretch = random.normal(0, 0.24), 1 + random.normal(0, 0.16, 2)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * stretch
        bent = strokes + random.normal(0, 0.07, strokes.shape) + random.normal(0, 0.04, (len(strokes), 1, 2))
        points = (bernstein @ ((bent - 0.5) @ turn + 0.5)).reshape(-1, 2) * SIDE
        squares = (grid[:, None, None] - points[:, 0]) ** 2 + (grid[:, None] - points[:, 1]) ** 2
        image[:] = 255 * np.exp(-squares.min(2) / 1.28)
    return torch.from_numpy(images), torch.arange(classes).repeat_interleave(EACH)


def _characters(seed: int, quick: bool) -> Lessons:
    classes, lesson = (40, 10) if quick else (200, 10)
    x, y = characters(classes, seed)
    learn = torch.arange(len(y)) % EACH < TRAIN
    parts = [(y >= first) & (y < first + lesson) for first in range(0, classes, lesson)]
    return Lessons([(x[p & learn], y[p & learn]) for p in parts], [(x[p & ~learn], y[p & ~learn]) for p in parts], {})


def _stream(name: str, seed: int, data: Path | None, quick: bool) -> Lessons:
    stream = stream_by_name(name, seed, data=data)
    most, asked = (_MOST // 8, _ASKED // 5) if quick else (_MOST, _ASKED)
    options = {"filters": 20, "size": 4, "windows": 2} if name == "split-digits" else {}
    return Lessons(
        [(task.train.x[:most], task.train.y[:most]) for task in stream],
        [(task.test.x[:asked], task.test.y[:asked]) for task in stream],
        options,
    )


def _all(seed: int, data: Path | None, quick: bool) -> Iterator[tuple[str, Lessons]]:
    yield "characters", _characters(seed, quick)
    for name in ("split-digits", "split-mnist", "split-cifar10"):
        try:
            yield name, _stream(name, seed, data, quick)
        except FileNotFoundError:
            continue


def _fit_seconds(lessons: Lessons, seed: int, mirror: Mirror) -> tuple[WhitenedPatches, float]:
    """A map fitted on the first lesson, and the CPU seconds that it took."""
    x, y = lessons.learned[0]
    features = WhitenedPatches(tuple(x.shape[1:]), **{"filters": 50, **lessons.options}, seed=seed, mirror=mirror)
    begun = time.process_time()
    features.fit(x, None, y)
    return features, time.process_time() - begun


def _accuracy(lessons: Lessons, seed: int, mirror: Mirror) -> tuple[bool | str, float]:
    """What the map mirrors after the first lesson, and the accuracy in percent after the last one."""
    x, _ = lessons.learned[0]
    features = WhitenedPatches(tuple(x.shape[1:]), **{"filters": 50, **lessons.options}, seed=seed, mirror=mirror)
    clf = CLDNetClassifier(backbone=features, random_state=seed)
    for images, classes in lessons.learned:
        clf.partial_fit(images.numpy(), classes.numpy())
    right = [float(np.mean(clf.predict(images.numpy()) == classes.numpy())) for images, classes in lessons.asked]
    return clf.feature_map_.describe()["options"]["mirror"], 100 * fmean(right)


def _measure(lessons: Lessons, seed: int) -> dict[str, Any]:
    """One set and one seed."""
    found = {str(mirror).lower(): _accuracy(lessons, seed, mirror) for mirror in MIRRORS}
    chosen = found["auto"][0]
    extra = [_fit_seconds(lessons, seed, "auto")[1] - _fit_seconds(lessons, seed, bool(chosen))[1] for _ in range(3)]
    return {
        "seed": seed,
        "chosen": chosen,
        "accuracy": {name: round(accuracy, 2) for name, (_, accuracy) in found.items()},
        "behind_better": round(max(found["true"][1], found["false"][1]) - found["auto"][1], 2),
        "first_lesson": len(lessons.learned[0][1]),
        "choice_cpu_seconds": round(median(extra), 2),
    }


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """Accuracy with mirror images, without them and by choice; what was chosen; CPU seconds of the choice; three seeds."""
    found: dict[str, Any] = {}
    for seed in range(1 if quick else 3):
        for name, lessons in _all(seed, data, quick):
            found.setdefault(name, []).append(_measure(lessons, seed))
    worst = max(run["behind_better"] for runs in found.values() for run in runs)
    return {"sets": found, "most_behind_better": worst, "filters": 50}
