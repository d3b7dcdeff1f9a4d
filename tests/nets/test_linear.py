"""Linear maps and logarithms of heavy tails: whole numbers, in any order, described and stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet import CLDNetClassifier
from cldnet.device import generator
from cldnet.nets import Linear, RandomFourier, RandomReLU, build_described, is_described
from cldnet.nets.features import TailScale, log2_linear
from cldnet.storage.maps import load_map, save_map

MAKERS: list[Any] = [
    Linear,
    lambda *shape, **options: Linear(*shape, tails=True, **options),
    lambda *shape, **options: RandomReLU(*shape, 20, tails=True, **options),
    lambda *shape, **options: RandomFourier(*shape, 20, tails=True, **options),
]


def lopsided(count: int = 300, seed: int = 0) -> Tensor:
    """A normal column, a log-normal one, and one whose values mostly are 0."""
    x = torch.randn(count, 3, generator=generator(seed), dtype=torch.float64)
    return torch.stack([x[:, 0], (3 * x[:, 1]).exp(), (x[:, 2] > 1).double()], dim=1)


def test_features_are_the_inputs_in_sixteenths_of_a_std() -> None:
    features = Linear((3,))
    x = lopsided()
    features.fit(x)
    h = features(x)[:, :3].double()
    scaled = features.scale(x)
    near = scaled.abs() < 7.9
    assert h.shape == (300, 3)
    assert float((h / 16 - scaled)[near].abs().max()) < 0.1
    assert float((h / 16 - scaled)[scaled.abs() < 1].abs().max()) < 1 / 24


@pytest.mark.parametrize("make", MAKERS)
@settings(deadline=None, max_examples=15)
@given(far=st.sampled_from([0.0, 1.0, 1e3, 1e12, 1e300]))
def test_features_are_whole_numbers_within_the_limits_however_far_inputs_are(make: Any, far: float) -> None:
    features = make((3,), seed=0)
    features.fit(lopsided())
    h = features(far * lopsided(20, seed=1).sign())
    assert torch.equal(h, h.round())
    assert features.limits[0] <= float(h.min()) <= float(h.max()) <= features.limits[1]
    assert (h[:, -1] == 127).all()


@pytest.mark.parametrize("make", MAKERS)
def test_neither_the_order_of_rows_nor_their_company_matters(make: Any) -> None:
    x = lopsided()
    order = torch.randperm(300, generator=generator(1))
    one, other = make((3,), seed=0), make((3,), seed=0)
    one.fit(x)
    other.fit(x[order])
    assert one.map_id == other.map_id
    assert torch.equal(torch.cat([one(part) for part in x.split(7)]), one(x))
    assert torch.equal(one(x)[order], one(x[order]))


@pytest.mark.parametrize("make", MAKERS)
def test_a_map_is_described_and_stored(make: Any, tmp_path: Path) -> None:
    features = make((3,), seed=0)
    features.fit(lopsided())
    assert is_described(features)
    assert build_described(json.loads(json.dumps(features.describe()))).describe() == features.describe()
    save_map(features, tmp_path / "one.map")
    again = load_map(tmp_path / "one.map")
    assert again.map_id == features.map_id
    assert torch.equal(again(lopsided(seed=2)), features(lopsided(seed=2)))


@pytest.mark.parametrize("make", MAKERS)
def test_a_classifier_learns_over_it_and_is_saved(make: Any, tmp_path: Path) -> None:
    x = lopsided()
    y = (x[:, 1] > 1).long()
    clf = CLDNetClassifier(backbone=make((3,), seed=0), random_state=0).fit(x.numpy(), y.numpy())
    clf.save(tmp_path / "model")
    again = CLDNetClassifier.load(tmp_path / "model")
    assert (again.predict(x.numpy()) == clf.predict(x.numpy())).all()


def test_a_map_without_tails_is_described_as_ever() -> None:
    assert RandomReLU((3,), 20, seed=0).options == {"features": 20}
    assert {*RandomFourier((3,), 20, seed=0).options} == {"features", "bandwidth"}


def test_only_heavy_tails_are_drawn_in_and_keep_their_digits() -> None:
    x = lopsided()
    scale, plain = TailScale((3,), torch.float64), RandomReLU((3,), 2, seed=0).scale
    scale.fit(x)
    plain.fit(x)
    assert (scale.unit > 0).tolist() == [False, True, False]
    assert torch.equal(scale(x)[:, [0, 2]], plain(x)[:, [0, 2]])
    # The middle half of the column spreads over a good part of a std, and not over a hundredth of it.
    low, high = x[:, 1].quantile(0.25), x[:, 1].quantile(0.75)
    rows = torch.stack([torch.full((3,), float(low)), torch.full((3,), float(high))]).double()
    assert float(scale(rows)[1, 1] - scale(rows)[0, 1]) > 0.5
    assert float(plain(rows)[1, 1] - plain(rows)[0, 1]) < 0.1


def test_rows_of_weight_zero_do_not_count() -> None:
    x, weight = lopsided(), (torch.arange(300) < 200).double()
    one, other = Linear((3,), tails=True), Linear((3,), tails=True)
    one.fit(x, weight)
    other.fit(x[:200], weight[:200])
    assert one.map_id == other.map_id


def test_a_map_that_is_fitted_again_forgets_its_logarithms() -> None:
    made, fresh = Linear((3,), tails=True), Linear((3,), tails=True)
    x = torch.randn(300, 3, generator=generator(4), dtype=torch.float64)
    made.fit(lopsided())
    made.fit(x)
    fresh.fit(x)
    assert torch.equal(made(x), fresh(x))


@settings(deadline=None)
@given(x=st.floats(1, 1e300))
def test_the_logarithm_is_within_a_tenth_and_increases(x: float) -> None:
    both = torch.tensor([x, x * (1 + 1e-9)], dtype=torch.float64)
    low, high = log2_linear(both).tolist()
    assert float(both.log2()[0]) - 0.0861 <= low <= float(both.log2()[0]) + 1e-12
    assert low <= high


def test_tails_are_for_vectors() -> None:
    with pytest.raises(ValueError, match="tails=True is for vectors"):
        RandomReLU((4, 4), 5, seed=0, tails=True)
    with pytest.raises(ValueError, match="should be True or False"):
        Linear((4,), tails=1)  # type: ignore[arg-type]
