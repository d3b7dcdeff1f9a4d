"""Random Fourier features: their inner products against the Gaussian kernel itself."""

from __future__ import annotations

from math import cos, pi, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.device import generator
from cldnet.nets import RandomFourier
from cldnet.nets.features import cosines


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def kernel(x: Tensor, bandwidth: float) -> Tensor:
    """The Gaussian kernel of all pairs of rows, one pair at a time."""
    rows = x.flatten(1)
    return torch.stack(
        [torch.stack([(-(a - b).square().sum() / (2 * bandwidth**2)).exp() for b in rows]) for a in rows]
    )


@pytest.mark.parametrize("shape", [(3,), (40,), (5, 5), (2, 4, 4)])
@pytest.mark.parametrize("bandwidth", [None, 1.5, 6.0])
def test_inner_products_approximate_the_gaussian_kernel(shape: tuple[int, ...], bandwidth: float | None) -> None:
    made = RandomFourier(shape, 20_000, seed=0, bandwidth=bandwidth)
    x = 2 * normal(12, *shape) - 1
    made.fit(x)
    h = made(x)[:, :-1].double()
    approximate = h @ h.T / (127**2 * 20_000 / 2)
    expected = kernel((x - made.scale.mean) / made.scale.spread, float(made.bandwidth))
    # Each is a mean over 20,000 features with a standard deviation of at most √(1/2)·2: five of their standard errors.
    assert (approximate - expected).abs().max() < 5 * 20_000**-0.5
    assert expected[0, 1:].max() < 0.999, "or the test could not fail"


def test_more_features_approximate_it_better() -> None:
    x, errors = normal(15, 6), []
    for features in (100, 1600, 25_600):
        made = RandomFourier((6,), features, seed=0)
        made.fit(x)
        h = made(x)[:, :-1].double()
        expected = kernel((x - made.scale.mean) / made.scale.spread, float(made.bandwidth))
        errors.append(float((h @ h.T / (127**2 * features / 2) - expected).square().mean().sqrt()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_features_are_cosines_of_the_products() -> None:
    made = RandomFourier((5,), 60, seed=2, bandwidth=0.7)
    x = normal(20, 5)
    made.fit(x)
    products, h = made._project(x).tolist(), made(x)[:, :-1].tolist()
    for row, features in zip(products, h, strict=True):
        for product, phase, feature in zip(row, made.phase.tolist(), features, strict=True):
            angle = product / (127 / 3) / (32767 / 16) / 0.7 + 2 * pi * phase / 65536
            assert abs(127 * cos(angle) - feature) <= 0.5 + 127 * pi / 65536


def test_no_cosine_of_the_table_is_near_the_middle_of_two_whole_numbers() -> None:
    exact = [127 * cos(2 * pi * direction / 65536) for direction in range(65536)]
    assert min(abs(abs(value - int(value)) - 0.5) for value in exact) > 1e-6
    assert cosines().tolist() == [float(round(value)) for value in exact]


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=3, max_size=10).filter(lambda w: sum(w) > 1),
    st.sampled_from([(3,), (2, 3), (2, 2, 2)]),
)
def test_the_bandwidth_is_twice_the_mean_squared_distance(weights: list[int], shape: tuple[int, ...]) -> None:
    x = 50 + 10 * normal(len(weights), *shape, seed=sum(weights))
    weighted, repeated = RandomFourier(shape, 4, seed=0), RandomFourier(shape, 4, seed=0)
    weighted.fit(x, torch.tensor(weights).double())
    rows = x.repeat_interleave(torch.tensor(weights), 0)
    repeated.fit(rows)
    scaled = ((rows - repeated.scale.mean) / repeated.scale.spread).flatten(1)
    mean = float(torch.stack([(a - b).square().sum() for a in scaled for b in scaled]).mean())
    expected = (2 * mean) ** 0.5 or 2 * prod(shape) ** 0.5
    if len({tuple(row.tolist()) for row in scaled}) > 1:
        assert float(repeated.bandwidth) == pytest.approx(expected, rel=1e-3)
    assert float(weighted.bandwidth) == pytest.approx(float(repeated.bandwidth), rel=1e-3)


def test_equal_rows_give_a_bandwidth_as_if_each_number_had_a_spread_of_one() -> None:
    made = RandomFourier((9,), 4, seed=0)
    made.fit(torch.full((5, 9), 3.0))
    assert float(made.bandwidth) == 6.0
    assert torch.isfinite(made(torch.full((1, 9), 1e30))).all()


def test_a_given_bandwidth_stays_and_is_part_of_the_id() -> None:
    x, marks = normal(20, 4), set()
    for bandwidth in (None, 1.0, 2.0, 1e-3, 1e6):
        made = RandomFourier((4,), 8, seed=0, bandwidth=bandwidth)
        made.fit(x)
        assert bandwidth is None or float(made.bandwidth) == bandwidth
        assert made(1e9 * x).abs().max() <= 127
        marks.add(made.map_id)
    assert len(marks) == 5


@pytest.mark.parametrize("bandwidth", [0, -1.0, float("nan"), float("inf"), "wide", True, 1e-9])
def test_a_bandwidth_that_cannot_be_is_refused(bandwidth: object) -> None:
    with pytest.raises(ValueError, match=r"bandwidth=.* should be None or a number from 0\.001 to 1e\+06"):
        RandomFourier((4,), 8, seed=0, bandwidth=bandwidth)  # type: ignore[arg-type]


def test_another_seed_gives_other_weights_and_phases() -> None:
    one, same, other = (RandomFourier((4,), 8, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.weight, same.weight)
    assert torch.equal(one.phase, same.phase)
    assert not torch.equal(one.weight, other.weight)
    assert not torch.equal(one.phase, other.phase)


def test_unrounded_features_are_those_that_are_rounded() -> None:
    made = RandomFourier((5,), 60, seed=0, bandwidth=3.0)
    made.fit(torch.randn(40, 5, generator=generator(0)))
    x = 3 * torch.randn(30, 5, generator=generator(1))
    unrounded = made.unrounded(x)
    assert unrounded.dtype == torch.float64
    assert float((unrounded - made(x)).abs().max()) < 0.6  # half a step, and the table's directions
    assert float((unrounded - made(x)).abs().max()) > 0.1
