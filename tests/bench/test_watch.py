"""Where a bench stands, and how long the rest may take."""

from __future__ import annotations

from pathlib import Path

import pytest

from cldnet.bench.cell import Cell
from cldnet.bench.estimate import Estimate, time_left
from cldnet.bench.events import Began, Elsewhere, Failed, Finished, Progressed, Still
from cldnet.bench.run import RunSpec
from cldnet.bench.watch import Watch

CELLS = [Cell("s", RunSpec(method, seed=seed)) for method in ("ewc", "owm") for seed in (0, 1)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_bench_is_counted_from_its_events() -> None:
    clock = Clock()
    watch = Watch(CELLS, 2, Estimate(), clock)
    assert watch.time_left() is None  # nothing to judge by
    watch(Began(0))
    watch(Elsewhere(1, "process 3 on laptop"))
    watch(Began(2))
    clock.now = 10.0
    watch(Progressed(0, 0.5))
    watch(Progressed(2, 0.25))
    watch(Still(0))
    assert watch.left(0) == 10.0
    assert watch.left(2) == 30.0
    assert watch.time_left() == pytest.approx(10 + 30)  # the waiting cell, taken for a middling one, follows the first
    clock.now = 20.0
    watch(Finished(0, Path("a.json"), ran=True))
    watch(Finished(1, Path("b.json"), ran=False))
    watch(Failed(2, "why", again=True))
    assert (watch.done, watch.elsewhere, list(watch.waiting)) == (2, {}, [3, 2])
    assert watch.estimate == {("s", "ewc"): 20.0}
    assert watch.time_left() == 20.0  # both as long as what is known of the stream, side by side
    watch(Began(2))
    watch(Failed(2, "why", again=False))
    assert watch.failed == {2: "why"}


def test_estimates_go_by_the_nearest_of_kin() -> None:
    estimate = Estimate({("s", "ewc"): 5.0, ("s", "owm"): 9.0, ("t", "ewc"): 50.0})
    assert estimate.of(Cell("s", RunSpec("ewc"))) == 5.0
    assert estimate.of(Cell("s", RunSpec("pnn"))) == 7.0
    assert estimate.of(Cell("u", RunSpec("ewc"))) == 27.5
    assert estimate.of(Cell("u", RunSpec("pnn"))) is None


def test_time_left_is_that_of_the_busiest_process() -> None:
    assert time_left([], 2) == 0
    assert time_left([4.0, 4.0, 4.0, 8.0], 2) == 12.0
    assert time_left([1.0], 1, running=[100.0]) == 101.0
