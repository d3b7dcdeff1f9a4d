from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

import pytest

from cldnet.bench.summary import display_name, human_bytes, percent, percent_pm, summarise


def run(method: str = "cldnet", matrix: Any = ((0.9,), (0.8, 0.7)), **changes: Any) -> dict[str, Any]:
    matrix = None if matrix is None else [list(row) for row in matrix]
    accuracy = None if matrix is None else fmean(matrix[-1])
    scores = {
        "average_accuracy": accuracy,
        "average_incremental_accuracy": accuracy,
        "forgetting": None if matrix is None else 0.1,
        "task_il_accuracy": 0.99,
    }
    result: dict[str, Any] = {
        "method": method,
        "scores": scores,
        "matrix": matrix,
        "bytes": {"weights": 1000, "projectors": 500},
        "rehearsal_free": True,
        "constant_size": True,
        "seconds": {"total": 3.0},
    }
    return result | changes


def test_numbers_are_means_and_sample_deviations_over_the_runs_of_a_method() -> None:
    matrices = ([[0.9], [0.8, 0.7]], [[1.0], [0.6, 0.9]], [[0.8], [0.5, 0.6]])
    seconds = (1.0, 2.0, 6.0)
    runs = [run(matrix=m, seconds={"total": s}) for m, s in zip(matrices, seconds, strict=True)]
    [summary] = summarise(runs)
    accuracies = [fmean(m[-1]) for m in matrices]
    assert summary.runs == 3
    assert summary.accuracy == pytest.approx(fmean(accuracies))
    assert summary.accuracy_std == pytest.approx(stdev(accuracies))
    assert summary.seconds == 3.0
    assert summary.bytes_kept == 1500
    assert summary.matrix is not None
    assert summary.matrix[1] == pytest.approx([fmean((0.8, 0.6, 0.5)), fmean((0.7, 0.9, 0.6))])
    assert summary.curve == pytest.approx([0.9, fmean(accuracies)])


def test_methods_keep_the_order_in_which_they_appear() -> None:
    summaries = summarise([run("owm"), run("ewc"), run("owm"), run("cldnet")])
    assert [(s.method, s.runs) for s in summaries] == [("owm", 2), ("ewc", 1), ("cldnet", 1)]


def test_one_run_has_no_deviation() -> None:
    [summary] = summarise([run()])
    assert summary.accuracy_std is None
    assert percent_pm(summary.accuracy, summary.accuracy_std) == "75.00%"


def test_a_method_that_needs_the_task_says_so_instead_of_a_number() -> None:
    [summary] = summarise([run("pnn", matrix=None), run("pnn", matrix=None)])
    assert summary.matrix is None
    assert summary.curve is None
    assert percent_pm(summary.accuracy, summary.accuracy_std) == "needs the task"
    assert percent(summary.forgetting) == "needs the task"
    assert percent(summary.task_il_accuracy) == "99.00%"


def test_one_run_that_grows_or_keeps_data_marks_the_method() -> None:
    [summary] = summarise([run(), run(constant_size=False, rehearsal_free=False)])
    assert summary.grows
    assert summary.keeps_data
    [summary] = summarise([run(), run()])
    assert not summary.grows
    assert not summary.keeps_data


def test_runs_with_different_numbers_of_tasks_are_not_averaged() -> None:
    with pytest.raises(ValueError, match="different numbers of tasks"):
        summarise([run(), run(matrix=[[0.9]])])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.5", True])
def test_what_is_no_finite_number_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="finite number"):
        summarise([run(matrix=[[0.9], [0.8, 0.7]], seconds={"total": bad})])


def test_a_matrix_must_be_lower_triangular() -> None:
    with pytest.raises(ValueError, match="row i"):
        summarise([run(matrix=[[0.9, 0.1], [0.8, 0.7]])])


def test_no_results_give_no_lines() -> None:
    assert summarise([]) == []


def test_negative_forgetting_has_a_true_minus_sign() -> None:
    assert percent(-0.0123) == "−1.23%"


@pytest.mark.parametrize(
    ("n", "shown"),
    [(0, "0 B"), (999.6, "1.0 kB"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (3.2e15, "3200.0 TB")],
)
def test_bytes_have_a_unit_that_fits(n: float, shown: str) -> None:
    assert human_bytes(n) == shown


def test_an_unknown_method_keeps_its_name() -> None:
    assert display_name("cldnet") == "CLDNet (hbo)"
    assert display_name("my-method") == "my-method"
