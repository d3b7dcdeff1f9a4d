import math

import pytest
import torch
from benchmarks.speed import growth, projection
from benchmarks.speed.record import Curve, Finding
from benchmarks.speed.turns import Taken

from cldnet.methods.fit import fit_task
from cldnet.nets import RandomReLU


@pytest.fixture(scope="module")
def exact():
    return {found.name: found for found in growth.tasks("exact", growth._exact, 20, rows=20, columns=5)}


def test_a_known_power_is_found_again():
    taken = {str(n): Taken([3e-9 * n**2.5] * 3, [1.0] * 3) for n in (10, 100, 1000)}
    curve = growth._curve("a", "A", "n", taken, expected=2.5, unit="s")
    assert curve.exponent == pytest.approx(2.5)
    assert curve.points[0] == (10.0, pytest.approx(3e-9 * 10**2.5))


def test_seconds_are_binned_by_the_number_of_the_task():
    seconds = [float(number) for number in range(3, 101)]  # tasks 3 to 100 take as many seconds as their number
    points = growth._binned(seconds, before=2)
    assert points[0] == (3.0, 3.0)
    assert all(seconds == place for place, seconds in points)
    assert points[-1][0] > 50


def test_a_task_of_the_exact_solver_leaves_as_many_bytes_as_the_one_before(exact):
    assert list(exact) == [
        "growth/tasks/exact",
        "growth/task-bytes/exact",
        "growth/per-task/exact/20",
        "growth/bytes/exact/20",
    ]
    assert exact["growth/bytes/exact/20"].ratio.median == 1.0
    assert exact["growth/task-bytes/exact"].exponent == 0.0


def test_the_first_and_the_last_tenth_are_learned_in_turns(exact):
    finding = exact["growth/per-task/exact/20"]
    assert {name: len(one["wall"]) for name, one in finding.details["seconds"].items()} == {"above": 2, "below": 2}
    assert finding.target == 1.2


def test_bytes_that_grow_miss_the_target():
    assert growth._constant("exact", [100, 100, 100]).met is True
    assert growth._constant("exact", [100, 120, 100]).met is False


def test_hbo_keeps_as_many_bytes_whatever_it_learned():
    found = {found.name: found for found in growth.tasks("hbo", growth._hbo, 10, rows=20, columns=20)}
    assert found["growth/bytes/hbo/10"].met is True


def test_classes_and_features_give_curves_of_time_and_bytes():
    curves = {
        c.name: c for c in [*growth.exact_classes((2, 8), 30), *growth.hbo_classes((2, 8)), *growth.features((20, 80))]
    }
    assert len(curves) == 8
    assert all(isinstance(curve, Curve) and len(curve.points) == 2 for curve in curves.values())
    (_, few), (_, many) = curves["growth/classes/exact/bytes"].points
    assert many - few == 6 * (31 + 1) * 8  # a feature sum and a weight a class more, in float64


def test_a_given_penalty_is_solved_with_each_time():
    learner, task = growth._wide(20), growth._task(1024, 64, 10)
    fit_task(learner, task, epochs=1, batch_size=1024)
    for _ in range(2):
        projection.solve(learner, task)
        assert learner.ridge.alpha == growth._ALPHA


def test_rows_in_pieces_are_all_learned(monkeypatch):
    monkeypatch.setattr(growth, "_ROWS_A_CALL", 400)
    calls = []
    learn = growth.CLDNetClassifier.partial_fit
    monkeypatch.setattr(
        growth.CLDNetClassifier, "partial_fit", lambda self, X, y: calls.append(len(X)) or learn(self, X, y)
    )
    found = growth.learn_rows(1000)
    assert calls == [400, 400, 200]
    assert found["bytes"] > 300 * 300 // 2 * 8


def test_the_projection_is_the_formula():
    rates = projection.Rates(rows_a_second=1000.0, bytes=10**9, adding=4e9, solving=7.0)
    alone, many = projection.seconds(rates, 1), projection.seconds(rates, 100)
    assert alone == {"pass": 1e6, "adding": 0.0, "sending": 0.0, "solving": 7.0, "total": 1e6 + 7}
    # 100 workers have 10,000 seconds of rows each, and 7 rounds of a quarter of a second adding and 0.8 s sending.
    assert many["total"] == pytest.approx(10_000 + 7 * (0.25 + 0.8) + 7)


def test_a_projection_says_what_it_follows_from():
    features = RandomReLU((28, 28), features=20, seed=0)
    curve = projection.projected("a", features, threads=1, repeats=1)
    inputs = curve.details["inputs"]
    assert inputs["bytes"] >= (21 * 22 // 2 + 100 * 22) * 8  # G, class sums, class weights
    rates = projection.Rates(**{name: inputs[name] for name in ("rows_a_second", "bytes", "adding", "solving")})
    assert dict(curve.points)[1000.0] == projection.seconds(rates, 1000)["total"]
    assert math.isfinite(curve.exponent)


def test_everything_is_found_once_and_threads_are_put_back():
    before = torch.get_num_threads()
    parts = iter(growth.measure(quick=True))
    first = next(parts)
    assert isinstance(first, Curve | Finding)
    parts.close()
    assert torch.get_num_threads() == before
