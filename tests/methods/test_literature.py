"""Guards: regularisation methods forget in class-IL as the literature says they do, and know every task if it is told.

The first alone would pass for a baseline that is merely broken; the second would not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.streams import split_digits

from cldnet.bench.results import read_folder
from cldnet.bench.run import RunSpec, run
from cldnet.bench.spec import read_spec
from cldnet.data.stream import Stream
from cldnet.data.streams import stream_by_name

ROOT = Path(__file__).parents[2]
METHODS = {
    "finetune": {},
    "ewc": {"strength": 2048.0},
    "oewc": {"strength": 2048.0},
    "si": {"strength": 2048.0},
    "mas": {},
}


def assert_forgets_but_is_not_broken(result: dict[str, Any]) -> None:
    """Near 20 % without the task, above 90 % with it."""
    scores = result["scores"]
    assert 0.15 < scores["average_accuracy"] < 0.30, f"class-IL is {scores['average_accuracy']:.1%}"
    assert scores["task_il_accuracy"] > 0.9, f"task-IL is {scores['task_il_accuracy']:.1%}"


def on_digits(method: str, **options: float) -> dict[str, Any]:
    spec = RunSpec(
        method,
        epochs=4,
        batch_size=16,
        options={"lr": 0.02, "momentum": 0.0, **options},
        backbone_options={"widths": (64, 64)},
        threads=1,
    )
    return run(spec, split_digits(0))


@pytest.mark.parametrize("method", METHODS)
def test_on_digits_they_forget_without_the_task_and_know_it_with_the_task(method: str) -> None:
    assert_forgets_but_is_not_broken(on_digits(method, **METHODS[method]))


def test_a_baseline_that_does_not_learn_is_found_out() -> None:
    broken = on_digits("ewc", lr=1e-12)
    assert broken["scores"]["task_il_accuracy"] < 0.75, "two classes are hardly told apart"
    with pytest.raises(AssertionError, match="-IL is"):
        assert_forgets_but_is_not_broken(broken)


def test_committed_results_at_the_literatures_settings_are_near_20_per_cent_and_above_90_with_the_task() -> None:
    found = read_folder(ROOT / "results" / "literature")
    spec = read_spec(ROOT / "specs" / "literature.toml")
    assert {result["method"] for result in found.results} == {*spec.methods} == {*METHODS}
    for result in found.results:
        assert result["stream"]["name"] == "split-mnist"
        assert result["config"]["epochs"] == spec.run.epochs
        assert result["config"]["method"]["lr"] == 0.001
        assert_forgets_but_is_not_broken(result)


@pytest.fixture(scope="module")
def split_mnist() -> Stream:
    try:
        return stream_by_name("split-mnist,train=0.15", 0)
    except FileNotFoundError as error:
        pytest.skip(f"Split MNIST is not here. {error}")


@pytest.mark.parametrize("method", METHODS)
def test_on_split_mnist_a_few_passes_over_a_part_show_both_too(method: str, split_mnist: Stream) -> None:
    # Far fewer steps than the literature's, so a larger rate.
    options = {"lr": 0.01, "momentum": 0.0, **METHODS[method]}
    spec = RunSpec(method, epochs=2, batch_size=64, options=options, threads=1)
    assert_forgets_but_is_not_broken(run(spec, split_mnist))
