"""How time and memory grow with tasks, classes, features and rows; and what 10⁹ rows would take, on paper.

Everything runs on one thread, so that a shared machine's other work disturbs little, and on generated data: what they
show changes nothing. `exact` has random features, `hbo` an MLP.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.speed import projection
from benchmarks.speed.apart import apart, resident_bytes
from benchmarks.speed.record import Curve, Finding, Spread, ratio
from benchmarks.speed.turns import Taken, in_turns
from numpy.typing import NDArray

from cldnet import CLDNetClassifier
from cldnet.bench.machine import peak_rss, reset_peak_rss
from cldnet.device import generator, threads
from cldnet.estimator.footprint import footprint
from cldnet.methods import build_learner
from cldnet.methods.exact import Exact, ExactConfig
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.nets import RandomReLU

THREADS = 1
_ROWS_A_CALL = 1 << 16
#: More than an extra pass over the cheap points is worth: larger ones are done once.
_ONCE = 5000
Maker = Callable[[], CLDNetClassifier]


def measure(quick: bool) -> Iterator[Finding | Curve]:
    """All curves, as they are finished."""
    with threads(THREADS):
        yield from tasks("exact", _exact, 40 if quick else 1000, rows=100, columns=50)
        yield from tasks("hbo", _hbo, 20 if quick else 200, rows=100, columns=200)
        yield from exact_classes((2, 30) if quick else (2, 10, 100, 1000, 10_000), 30 if quick else 300)
        yield from hbo_classes((2, 30) if quick else (2, 10, 100, 1000))
        yield from features((100, 200) if quick else (1000, 2000, 4000, 10_000, 20_000))
        yield from rows((1000, 10_000) if quick else (10**3, 10**4, 10**5, 10**6, 10**7))
        yield from projection.measure(quick, THREADS)


def _exact() -> CLDNetClassifier:
    return CLDNetClassifier(capacity=2048, n_threads=THREADS, random_state=0)


def _hbo() -> CLDNetClassifier:
    sizes: dict[str, Any] = {"capacity": 512, "embed_dim": 512, "epochs": 1}
    return CLDNetClassifier("hbo", "mlp", **sizes, batch_size=50, n_threads=THREADS, random_state=0)


@dataclass
class _Course:
    """A classifier as it learns task after task of two new classes each, with what each took and left."""

    clf: CLDNetClassifier
    rows: int
    columns: int
    bytes: list[int] = field(default_factory=list)

    def next(self) -> None:
        number = len(self.bytes)
        rng, which = np.random.default_rng(number), np.arange(self.rows) % 2
        centres = 2 * rng.standard_normal((2, self.columns), dtype=np.float32)
        x = centres[which] + rng.standard_normal((self.rows, self.columns), dtype=np.float32)
        self.clf.partial_fit(x, 2 * number + which)
        self.bytes.append(self.clf.footprint().total)


def tasks(solver: str, make: Maker, count: int, rows: int, columns: int) -> Iterator[Finding | Curve]:
    """Time of a task against its number; the first and the last tenth are learned in turns, by a copy and the original."""
    tenth, warm = count // 10, max(2, count // 100)
    course, taken = _Course(make(), rows, columns), Taken()
    _learn(course, warm, Taken())
    early = copy.deepcopy(course)
    _learn(course, count - tenth - warm, taken)
    turns = in_turns({"first": early.next, "last": course.next}, tenth, warm=0)
    together = Taken(taken.wall + turns["last"].wall, taken.cpu + turns["last"].cpu)
    points, cpu = (_binned(seconds, warm) for seconds in (together.wall, together.cpu))
    settings: dict[str, Any] = {"solver": solver, "rows_a_task": rows, "columns": columns, "tasks": count, "unit": "s"}
    cpu_curve = Curve("", "", "", "", cpu)
    yield Curve(
        f"growth/tasks/{solver}",
        f"{solver}: seconds a task, against the number of the task",
        "task",
        "seconds",
        points,
        expected=0.0,
        details={**settings, "cpu": cpu, "cpu_exponent": cpu_curve.exponent},
    )
    kept = [(float(number), float(course.bytes[number - 1])) for number in _marks(count)]
    title = f"{solver}: bytes kept, against the number of tasks learned"
    yield Curve(f"growth/task-bytes/{solver}", title, "tasks", "bytes", kept, expected=0.0, details=settings)
    title = f"{solver}: time of the last tenth of {count} tasks over that of the first tenth after {warm}, in turns"
    name = f"growth/per-task/{solver}/{count}"
    yield ratio(name, title, THREADS, turns["last"], turns["first"], target=1.2, **settings)
    yield _constant(solver, course.bytes)


def _learn(course: _Course, count: int, taken: Taken) -> None:
    done = in_turns({"task": course.next}, count, warm=0)["task"]
    taken.wall.extend(done.wall)
    taken.cpu.extend(done.cpu)


def _constant(solver: str, kept: Sequence[int]) -> Finding:
    """The largest number of bytes after any task over that after the first."""
    grown = Spread.of([max(kept) / kept[0]])
    title = f"{solver}: the most bytes kept after any of {len(kept)} tasks over those after the first"
    details = {"first": kept[0], "last": kept[-1], "most": max(kept), "least": min(kept), "unit": "bytes"}
    return Finding(f"growth/bytes/{solver}/{len(kept)}", title, THREADS, grown, grown, False, 1.0, details)


def _marks(count: int) -> list[int]:
    """Some whole numbers from 2 to a count, evenly spaced on a logarithmic scale."""
    return sorted({round(mark) for mark in np.geomspace(2, count, 10)})


def _binned(seconds: Sequence[float], before: int) -> list[tuple[float, float]]:
    """Medians of the seconds between some task numbers; ``before`` tasks are not among them."""
    marks = [mark for mark in _marks(before + len(seconds)) if mark > before]
    starts = [before, *marks[:-1]]
    return [
        ((first + 1 + last) / 2, median(seconds[first - before : last - before]))
        for first, last in zip(starts, marks, strict=True)
    ]


def _task(rows: int, columns: int, classes: int) -> TaskData:
    x = torch.randn(rows, columns, generator=generator(0))
    return TaskData(x, torch.arange(rows) % classes)


def exact_classes(counts: Sequence[int], width: int) -> Iterator[Curve]:
    """A pass over as many rows whatever the number of classes, solving and answering for one row, and bytes."""
    rows = 2 * max(counts)
    learners, passes, solving = {}, {}, {}
    for count in counts:
        task = _task(rows, 50, count)
        net = RandomReLU((50,), features=width, seed=0)
        learner = learners[count] = Exact(net, Setting((50,), count, seed=0), ExactConfig())
        passes[str(count)] = partial(fit_task, learner, task, epochs=1, batch_size=1024)
        solving[str(count)] = partial(projection.solve, learner, task)
    settings: dict[str, Any] = {"features": width, "rows": rows, "columns": 50, "alpha": "gcv", "unit": "s"}
    repeats = 1 if max(counts) < 1000 else 3
    yield _curve(
        "growth/classes/exact/pass", "exact: a pass, against classes", "classes", in_turns(passes, repeats), **settings
    )
    taken = in_turns(solving, repeats)
    title = "exact: solving and the first answer, against classes"
    yield _curve("growth/classes/exact/solve", title, "classes", taken, **settings)
    yield _bytes("growth/classes/exact/bytes", "exact: bytes kept, against classes", "classes", learners, settings)


def hbo_classes(counts: Sequence[int]) -> Iterator[Curve]:
    """A pass of hbo over as many rows whatever the number of classes, and bytes."""
    rows, columns = 2 * max(counts), 200
    learners, passes = {}, {}
    for count in counts:
        setting = Setting((columns,), count, seed=0)
        learner = learners[count] = build_learner("cldnet", setting, {"embed_dim": 1000}, "mlp")
        passes[str(count)] = partial(fit_task, learner, _task(rows, columns, count), epochs=1, batch_size=50)
    settings: dict[str, Any] = {"embed_dim": 1000, "rows": rows, "columns": columns, "unit": "s"}
    taken = in_turns(passes, 1 if max(counts) < 1000 else 3)
    title = "hbo: a pass, against classes"
    yield _curve("growth/classes/hbo/pass", title, "classes", taken, expected=0.0, **settings)
    yield _bytes("growth/classes/hbo/bytes", "hbo: bytes kept, against classes", "classes", learners, settings)


def features(widths: Sequence[int]) -> Iterator[Curve]:
    """A block of 1,024 rows into the sums, solving with a given α, and bytes. Small widths in turns, large ones once."""
    passes, solving, kept = {}, {}, {}
    groups = [[width for width in widths if width < _ONCE], *([width] for width in widths if width >= _ONCE)]
    for group in groups:
        learners = {width: _wide(width) for width in group}
        kept.update({width: footprint(learner).total for width, learner in learners.items()})
        task, once = _task(1024, 64, 10), group[0] >= _ONCE
        timed: dict[str, Any] = {"repeats": 1 if once else 3, "warm": 0 if once else 1}
        steps = {str(width): partial(fit_task, one, task, epochs=1, batch_size=1024) for width, one in learners.items()}
        passes.update(in_turns(steps, **timed))
        solving.update(
            in_turns({str(width): partial(projection.solve, one, task) for width, one in learners.items()}, **timed)
        )
        del learners, steps  # several gigabytes
    settings: dict[str, Any] = {"rows": 1024, "columns": 64, "classes": 10, "alpha": _ALPHA, "unit": "s"}
    title = "exact: 1,024 rows into the sums, against features"
    yield _curve("growth/features/exact/pass", title, "features", passes, expected=2.0, **settings)
    title = "exact: solving with a given α, against features"
    yield _curve("growth/features/exact/solve", title, "features", solving, expected=3.0, **settings)
    points = [(float(width), float(total)) for width, total in kept.items()]
    title = "exact: bytes kept, against features"
    yield Curve("growth/features/exact/bytes", title, "features", "bytes", points, expected=2.0, details=settings)


#: Beside squares of features up to 127² and a thousand rows of them.
_ALPHA = 1e5


def _wide(width: int) -> Exact:
    net = RandomReLU((64,), features=width, seed=0)
    net.fit(_task(1024, 64, 10).x)
    return Exact(net, Setting((64,), 10, seed=0), ExactConfig(alpha=_ALPHA))


def rows(counts: Sequence[int]) -> Iterator[Finding | Curve]:
    """Rows that are made piece by piece, each learned by a call of `partial_fit`; a fresh process for each number of rows."""
    found = {count: apart(learn_rows, count=count) for count in counts}
    settings = {"features": 300, "columns": 50, "rows_a_call": _ROWS_A_CALL, "found": found, "unit": "s"}
    points = [(float(count), float(one["wall"])) for count, one in found.items()]
    title = "exact: seconds of all calls of partial_fit, against rows (making the rows is not counted)"
    yield Curve("growth/rows/exact/pass", title, "rows", "seconds", points, expected=1.0, details=settings)
    points = [(float(count), float(one["peak"])) for count, one in found.items()]
    title = f"exact: peak memory beyond the imports, against rows (in pieces of {_ROWS_A_CALL:,} at most)"
    yield Curve("growth/rows/exact/memory", title, "rows", "bytes", points, expected=0.0, details=settings)


def learn_rows(count: int) -> Mapping[str, Any]:
    """Seconds and the most memory that so many rows take, in a process of its own."""
    before = resident_bytes()
    reset_peak_rss()
    clf = CLDNetClassifier(
        backbone=RandomReLU((50,), features=300, seed=0), capacity=10, n_threads=THREADS, random_state=0
    )
    rng, wall, cpu = np.random.default_rng(0), 0.0, 0.0
    for first in range(0, count, _ROWS_A_CALL):
        x: NDArray[np.float32] = rng.standard_normal((min(_ROWS_A_CALL, count - first), 50), dtype=np.float32)
        y = np.arange(len(x)) % 10
        spent, begun = time.process_time(), time.perf_counter()
        clf.partial_fit(x, y)
        wall, cpu = wall + time.perf_counter() - begun, cpu + time.process_time() - spent
    peak = peak_rss()
    assert peak is not None  # there is a /proc, or `resident_bytes` had failed
    return {"wall": wall, "cpu": cpu, "peak": peak - before, "bytes": clf.footprint().total}


def _curve(
    name: str, title: str, across: str, taken: Mapping[str, Taken], *, expected: float | None = None, **details: Any
) -> Curve:
    points = [(float(size), median(one.wall)) for size, one in taken.items()]
    seconds = {size: {"wall": one.wall, "cpu": one.cpu} for size, one in taken.items()}
    return Curve(name, title, across, "seconds", points, expected, {**details, "seconds": seconds})


def _bytes(name: str, title: str, across: str, learners: Mapping[int, Learner], details: Mapping[str, Any]) -> Curve:
    points = [(float(size), float(footprint(learner).total)) for size, learner in learners.items()]
    return Curve(name, title, across, "bytes", points, details=details)
