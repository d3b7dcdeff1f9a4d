"""The benchmark of private sums: its choices, its table, and a small run of its parts on MNIST if that is there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import privacy
from cldnet.data.catalog import find_set
from cldnet.device import generator
from cldnet.estimator.private import FLOOR, SHARES
from cldnet.nets import RandomReLU

COMMITTED = Path(__file__).parents[2] / privacy.OUT


def images(n: int, seed: int) -> privacy.Samples:
    """Squares at three places, in noise."""
    y = np.arange(n) % 3
    x = torch.randint(0, 60, (n, 28, 28), generator=generator(seed), dtype=torch.uint8)
    for row, place in enumerate(y):
        x[row, 8 * place : 8 * place + 8, 8 * place : 8 * place + 8] += 150
    return x, y


def test_a_map_is_measured_without_noise_and_with_less_and_less_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(privacy.MAPS, "small", lambda seed: RandomReLU((28, 28), 40, seed=seed))  # type: ignore[arg-type]
    sets = {"public": images(200, 0), "train": images(3000, 1), "test": images(300, 2)}
    found = list(privacy.measure("small", 0, sets, 0.5))
    assert [case["what"] for case in found[:2]] == ["not clipped", "no noise"]
    assert [case["what"] for case in found[2::3]] == ["8", "3", "1", "0.5"]
    assert all(case["accuracy"] > 0.95 for case in found[:5])
    usual = privacy.usual_length(privacy.fitted("small", 0, sets["public"][0]), sets["public"][0])
    assert {case["norm"] for case in found} == {0.5 * usual}


def test_settings_are_compared_one_at_a_time_around_the_middle() -> None:
    assert (privacy.MIDDLE["shares"], privacy.MIDDLE["floor"]) == (SHARES, FLOOR)
    assert list(privacy.compared(1.0)) == [(SHARES, FLOOR)]
    some = list(privacy.compared(0.5))
    assert len(some) == len({*some}) == len(privacy.SHARES) + len(privacy.FLOORS) - 1
    assert all(shares == SHARES or floor == FLOOR for shares, floor in some)
    trials = [
        {"map": name, "norm": norm, "shares": shares, "floor": floor, "accuracy": norm + floor + (name == "b")}
        for name in ("a", "b")
        for norm in privacy.NORMS
        for shares, floor in privacy.compared(norm)
    ]
    assert privacy.means(trials, "norm") == pytest.approx({str(norm): norm + FLOOR + 0.5 for norm in privacy.NORMS})
    assert privacy.means(trials, "floor") == pytest.approx({str(floor): floor + 1 for floor in privacy.FLOORS})


def test_the_table_has_means_and_stds_and_says_what_was_not_run(tmp_path: Path) -> None:
    cases = [{"map": "patches, 504 features", "what": "8", "accuracy": each} for each in (0.9, 0.92)]
    about: dict[str, Any] = {"delta": 1e-5, "machine": "here", "versions": {"cldnet": "1"}}
    (tmp_path / "found.json").write_text(json.dumps({**about, "cases": cases}))
    lines = privacy.table(tmp_path / "found.json").splitlines()
    assert lines[2] == "| map | not clipped | no noise | ε = 8 | ε = 3 | ε = 1 | ε = 0.5 |"
    assert "| patches, 504 features | not run | not run | 91.0 ± 1.4 | not run | not run | not run |" in lines
    assert "δ = 1e-05" in lines[-1]


def test_the_constants_are_those_that_were_best_on_fashion_mnist() -> None:
    means = json.loads(COMMITTED.read_text("utf-8"))["choice"]["means"]
    for name, chosen in {"shares": str(SHARES), "floor": str(FLOOR)}.items():
        assert means[name][chosen] > max(means[name].values()) - 2e-4  # of accuracy, which noise makes in these means


@pytest.mark.slow
def test_mnist_at_epsilon_3_is_as_good_as_the_committed_file_says(tmp_path: Path) -> None:
    data = Path(os.environ.get("CLDNET_DATA", tmp_path))
    if not all(find_set(name, data) for name in ("mnist", "fashion-mnist")):
        pytest.skip("CLDNET_DATA has no MNIST and FashionMNIST: see README")
    committed = json.loads(COMMITTED.read_text("utf-8"))["cases"]
    name = "random ReLU, 1,000 features"
    sets = {"public": privacy.images("split-fmnist", data, "train")}
    sets |= {half: privacy.images("split-mnist", data, half) for half in ("train", "test")}
    (case,) = (each for each in committed if (each["map"], each["seed"], each["what"]) == (name, 0, "no noise"))
    norm = case["norm"] / privacy.usual_length(privacy.fitted(name, 0, sets["public"][0]), sets["public"][0])
    for found in privacy.measure(name, 0, sets, norm):
        then = next(
            e for e in committed if all(e.get(key) == found.get(key) for key in ("map", "seed", "what", "noise"))
        )
        assert found["accuracy"] == pytest.approx(then["accuracy"], abs=2e-3)
