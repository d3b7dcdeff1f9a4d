from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import pytest

from cldnet.bench.results import Planned
from cldnet.bench.summary import summarise

MakeRun = Callable[..., dict[str, Any]]


def test_numbers_are_means_and_sample_deviations_over_the_runs_of_a_method(make_run: MakeRun) -> None:
    matrices = ([[0.9], [0.8, 0.7]], [[1.0], [0.6, 0.9]], [[0.8], [0.5, 0.6]])
    seconds = (1.0, 2.0, 6.0)
    runs = [
        make_run(matrix=m, seconds={"total": s}, seed=n) for n, (m, s) in enumerate(zip(matrices, seconds, strict=True))
    ]
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
    assert summary.accuracy_text == f"{100 * fmean(accuracies):.2f} ± {100 * stdev(accuracies):.2f}%"


def test_without_a_plan_methods_keep_the_order_in_which_they_appear(make_run: MakeRun) -> None:
    runs = [make_run("owm"), make_run("ewc"), make_run("owm", seed=1), make_run("cldnet")]
    assert [(s.method, s.runs) for s in summarise(runs)] == [("owm", 2), ("ewc", 1), ("cldnet", 1)]


def test_one_run_has_no_deviation(make_run: MakeRun) -> None:
    [summary] = summarise([make_run()])
    assert summary.accuracy_std is None
    assert summary.accuracy_text == "75.00%"


def test_the_same_run_twice_counts_once(make_run: MakeRun) -> None:
    [summary] = summarise([make_run(file="a.json"), make_run(file="b.json"), make_run(seed=1)])
    assert summary.seeds == (0, 1)


def test_a_run_that_came_out_otherwise_the_second_time_is_set_aside(make_run: MakeRun) -> None:
    [summary] = summarise([make_run(matrix=0.9), make_run(matrix=0.8, file="b.json"), make_run(matrix=0.9, file="c")])
    assert summary.accuracy == pytest.approx(0.9)
    assert [result["file"] for result in summary.conflicting] == ["b.json"]


def test_a_configuration_has_one_name_on_all_streams(make_run: MakeRun) -> None:
    def tried(stream: str, lr: float, epochs: int) -> dict[str, Any]:
        return make_run(stream=stream, config={"epochs": epochs, "method": {"lr": lr}})

    summaries = summarise([tried("a", 0.1, 5), tried("a", 0.2, 5), tried("b", 0.1, 9), tried("c", 0.3, 9)])
    assert [s.variant for s in summaries] == ["lr=0.1", "lr=0.2", "lr=0.1", "lr=0.3"]
    assert [s.variant for s in summarise([tried("a", 0.1, 5), tried("b", 0.2, 9)])] == ["", ""]


def test_differences_that_do_not_show_are_numbered(make_run: MakeRun) -> None:
    summaries = summarise([make_run(config={"method": {"lr": lr}}) for lr in (1, "1")])
    assert [s.variant for s in summaries] == ["lr=1", "lr=1, no. 2"]


def test_a_method_that_needs_the_task_says_so_instead_of_a_number(make_run: MakeRun) -> None:
    [summary] = summarise([make_run("pnn", matrix=None), make_run("pnn", matrix=None, seed=1)])
    assert summary.matrix is None
    assert summary.curve is None
    assert summary.accuracy_text == "needs the task"
    assert summary.task_il_accuracy == 0.99


def test_one_run_that_grows_or_keeps_data_marks_the_method(make_run: MakeRun) -> None:
    [summary] = summarise([make_run(), make_run(constant_size=False, rehearsal_free=False, seed=1)])
    assert summary.grows
    assert summary.keeps_data
    [summary] = summarise([make_run(), make_run(seed=1)])
    assert not summary.grows
    assert not summary.keeps_data


def test_configurations_never_share_a_mean_and_are_told_apart_by_what_differs(make_run: MakeRun) -> None:
    configs = [{"epochs": 10, "method": {"lr": lr, **more}} for lr, more in ((0.1, {}), (0.2, {}), (0.2, {"beta": 5}))]
    summaries = summarise([make_run(config=config) for config in configs])
    assert [s.variant for s in summaries] == ["lr=0.1", "lr=0.2", "lr=0.2, beta=5"]
    assert summaries[1].name == "CLDNet (hbo) (lr=0.2)"


def test_other_data_and_other_versions_of_a_method_are_told_apart_too(make_run: MakeRun) -> None:
    other_data = make_run()
    other_data["stream"] = {**other_data["stream"], "data": "other"}
    newer = make_run(cell={"stream": "split-digits", "method_version": 2})
    summaries = summarise([make_run(), other_data, newer])
    assert [s.variant for s in summaries] == [
        "version=1, data=digits",
        "version=1, data=other",
        "version=2, data=digits",
    ]


def test_labels_keep_configurations_apart_without_more_words(make_run: MakeRun) -> None:
    summaries = summarise([make_run(label="CLDNet, small"), make_run(label="CLDNet, large")])
    assert [s.name for s in summaries] == ["CLDNet, small", "CLDNet, large"]


def test_a_plan_gives_the_order_and_what_is_missing(make_run: MakeRun) -> None:
    done = make_run("owm", seed=1)
    planned = [
        Planned("split-digits", "ewc", "", 0, "nowhere.json"),
        Planned("split-digits", "owm", "", 0, None),
        Planned("split-digits", "owm", "", 1, done["file"]),
    ]
    ewc, owm = summarise([done], planned)
    assert (ewc.method, ewc.runs, ewc.missing, ewc.accuracy_text) == ("ewc", 0, (0,), "not run")
    assert (owm.method, owm.seeds, owm.missing) == ("owm", (1,), (0,))


def test_what_was_not_run_stands_under_the_name_that_runs_give_the_stream(make_run: MakeRun) -> None:
    text = "folder:/home/me/pets,until=2"
    done = make_run("owm", stream="folder:pets,until=2", cell={"stream": text})
    planned = [Planned(text, "ewc", "", 0, "nowhere.json"), Planned(text, "owm", "", 0, done["file"])]
    assert [(s.stream, s.method) for s in summarise([done], planned)] == [
        ("folder:pets,until=2", "ewc"),
        ("folder:pets,until=2", "owm"),
    ]


def test_results_of_the_first_layout_are_read(make_run: MakeRun) -> None:
    old = {key: value for key, value in make_run().items() if key not in ("label", "cell", "file")}
    [summary] = summarise([{**old, "schema": 1}])
    assert summary.name == "CLDNet (hbo)"


def test_runs_with_different_numbers_of_tasks_are_not_averaged(make_run: MakeRun) -> None:
    with pytest.raises(ValueError, match="different numbers of tasks"):
        summarise([make_run(), make_run(matrix=[[0.9]], seed=1)])


def test_no_results_give_no_lines() -> None:
    assert summarise([]) == []


@pytest.mark.parametrize(
    ("options", "memory"),
    [({"memory": 200}, 200), ({"memory": True}, None), ({"memory": -1}, None), ({}, None), (3, None)],
)
def test_the_memory_is_an_option_of_the_method(options: Any, memory: int | None, make_run: MakeRun) -> None:
    [summary] = summarise([make_run("er", config={"method": options})])
    assert summary.memory == memory
