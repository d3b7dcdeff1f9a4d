"""What 10⁹ rows would take on many machines like this one: a projection on paper, from rates that were measured.

The exact solver's state is a sum, so workers learn their shares of the rows apart, and their sums are added in pairs, in
⌈log₂ N⌉ rounds; then the model is solved once. With ``N`` workers, ``B`` bytes of sums, and both rates in bytes a second:

    seconds(N) = rows / (N · rows a second) + ⌈log₂ N⌉ · (B / adding + B / sending) + solving

Sending is assumed, not measured: a network of 10 gigabits a second. A worker is as many threads as the rates were measured on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from benchmarks.speed.record import Curve
from benchmarks.speed.turns import Work, in_turns

from cldnet.device import generator, tensor_bytes
from cldnet.methods.exact import Exact, ExactConfig
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import FeatureMap, RandomReLU, WhitenedPatches

ROWS = 10**9
WORKERS = (1, 10, 100, 1000)
SENDING = 10e9 / 8
FORMULA = "rows / (N · rows a second) + ⌈log2 N⌉ · (bytes / adding + bytes / sending) + solving"
_CLASSES, _SHAPE, _BLOCK = 100, (28, 28), 1024


@dataclass(frozen=True)
class Rates:
    """What one worker was measured to do: rows a second into the sums; bytes of the sums, and how fast they add; solving."""

    rows_a_second: float
    bytes: int
    adding: float
    solving: float


def seconds(rates: Rates, workers: int, rows: int = ROWS) -> dict[str, float]:
    """Seconds that so many workers take for so many rows, by what they do, and in all."""
    rounds = (workers - 1).bit_length()  # ⌈log₂ N⌉
    parts = {
        "pass": rows / workers / rates.rows_a_second,
        "adding": rounds * rates.bytes / rates.adding,
        "sending": rounds * rates.bytes / SENDING,
        "solving": rates.solving,
    }
    return {**parts, "total": sum(parts.values())}


def measure(quick: bool, threads: int) -> Iterator[Curve]:
    """Projections for whitened patches of small images, and for more random features of them."""
    filters, wide = (20, 200) if quick else (400, 10_000)
    patches = WhitenedPatches(_SHAPE, filters=filters, windows=2, mirror=False, seed=0)
    maps: dict[str, FeatureMap] = {"patches": patches, "random": RandomReLU(_SHAPE, features=wide, seed=0)}
    for name, features in maps.items():
        yield projected(name, features, threads, repeats=1 if quick else 3)


def projected(name: str, features: FeatureMap, threads: int, repeats: int) -> Curve:
    """Measure the rates over a map, and write down what follows from them."""
    images = torch.randint(0, 256, (max(_BLOCK, features.min_rows), *_SHAPE), generator=generator(0)).to(torch.uint8)
    features.fit(images)
    rates = measured(features, TaskData(images[:_BLOCK], torch.arange(_BLOCK) % _CLASSES), repeats)
    table = {str(workers): seconds(rates, workers) for workers in WORKERS}
    width = features.out_features
    details: dict[str, Any] = {
        "formula": FORMULA,
        "inputs": {**asdict(rates), "rows": ROWS, "sending": SENDING, "threads_a_worker": threads, "features": width},
        "assumed": "sending: a network of 10 Gbit/s; everything else is measured here",
        "workers": table,
        "map": features.describe(),
        "classes": _CLASSES,
        "unit": "s",
    }
    points = [(float(workers), table[str(workers)]["total"]) for workers in WORKERS]
    title = f"exact, {width:,} features ({features.kind}): 10⁹ rows on so many workers, on paper"
    return Curve(f"growth/projection/{name}", title, "workers", "seconds", points, expected=-1.0, details=details)


def measured(features: FeatureMap, task: TaskData, repeats: int) -> Rates:
    """Time a block of rows and adding another worker's sums, in turns, and solving."""
    here, there = (_learner(features) for _ in range(2))
    for learner in (here, there):
        learner.begin_task(task)
    (batch,) = task.batches(_BLOCK)
    sums, places = there.sums(), torch.arange(_CLASSES)
    works: dict[str, Work] = {"pass": partial(here.observe, batch), "adding": partial(here.merge_sums, sums, places)}
    # Solved once: a billion rows take hours, and this some seconds.
    taken = in_turns(works, repeats) | in_turns({"solving": partial(solve, here, task)}, 1, warm=0)
    wall = {name: median(one.wall) for name, one in taken.items()}
    size = sum(map(tensor_bytes, sums.values()))
    return Rates(len(task) / wall["pass"], size, size / wall["adding"], wall["solving"])


def solve(learner: Exact, task: TaskData) -> None:
    """Solve anew, with the same α or choice of it, and answer for one row."""
    learner.configure(
        {"alpha": learner.config.alpha}
    )  # lets go of what was solved; what is not named is set to its default
    learner.logits(task.x[:1])


def _learner(features: FeatureMap) -> Exact:
    # A given α, as in the curves of growth: choosing it takes some four to seven solutions, whatever the rows.
    return Exact(features, Setting(_SHAPE, _CLASSES, seed=0), ExactConfig(alpha=1e5))
