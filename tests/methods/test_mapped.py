"""Second moments and sums: full, diagonal and sketched; merged, loaded, upgraded."""

from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor

from cldnet.device import generator
from cldnet.math.symmetric import unpack
from cldnet.methods import build_learner
from cldnet.methods.learner import Setting, TaskData
from cldnet.methods.mapped import (
    FullMoments,
    SecondMoments,
    SketchedMoments,
    moments_for,
    moments_from,
    upgraded,
)

relaxed = settings(deadline=None, max_examples=25)
KINDS = ("full", "diagonal", 5)


def features(rows: int = 80, width: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(-127, 128, (rows, width), generator=generator(seed)).float()


def summed(kind: str | int, h: Tensor, weight: Tensor | None = None) -> SecondMoments:
    second = moments_for(kind, h.shape[1])
    for first in range(0, len(h), 30):
        part = slice(first, first + 30)
        second.add(h[part], None if weight is None else weight[part])
    return second


def stands_for(second: SecondMoments) -> Tensor:
    """The matrix that each kind takes for G."""
    if isinstance(second, FullMoments):
        return unpack(second.packed, second.width)
    if isinstance(second, SketchedMoments):
        return second.directions.T @ second.directions
    return torch.diag(second.diagonal())


def weighted_gram(h: Tensor, weight: Tensor) -> Tensor:
    return (h.double() * weight.double()[:, None]).T @ h.double()


@relaxed
@given(st.sampled_from(KINDS), st.integers(1, 90), st.booleans(), st.integers(0, 999))
def test_the_loss_bounds_what_any_direction_may_be_off(kind: str | int, rows: int, fractions: bool, seed: int) -> None:
    h = features(rows, seed=seed)
    weight = 2 * torch.rand(rows, generator=generator(seed), dtype=torch.float64) if fractions else torch.ones(rows)
    second, G = summed(kind, h, weight if fractions else None), weighted_gram(h, weight)
    off = float(torch.linalg.eigvalsh(G - stands_for(second)).abs().max())
    slack = 1e-10 * float(G.trace())
    assert off <= second.loss + slack
    assert second.energy == pytest.approx(float(G.trace()), rel=1e-12)
    assert second.least_diagonal() >= 0


@relaxed
@given(st.integers(1, 40), st.integers(0, 999))
def test_the_bound_of_the_diagonal_holds_for_features_that_all_vary_together(rows: int, seed: int) -> None:
    h = features(rows, 1, seed).abs().repeat(1, 12)
    second, G = summed("diagonal", h), weighted_gram(h, torch.ones(rows))
    off = torch.linalg.matrix_norm(G - stands_for(second))
    assert float(off) == pytest.approx(second.loss, rel=1e-9)  # nothing can be off by more, and these are


def test_all_of_g_loses_nothing() -> None:
    h = features()
    second = summed("full", h)
    assert second.loss == 0
    assert torch.equal(stands_for(second), weighted_gram(h, torch.ones(80)))
    assert torch.equal(second.diagonal(), h.double().square().sum(0))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_repetitions(kind: str | int) -> None:
    h = features(20)
    weight = torch.arange(20) % 4
    weighted, repeated = moments_for(kind, 12), moments_for(kind, 12)
    weighted.add(h, weight)
    repeated.add(h.repeat_interleave(weight, 0))
    scale = weighted.energy
    torch.testing.assert_close(stands_for(weighted), stands_for(repeated), rtol=0, atol=1e-12 * scale)
    assert weighted.loss == pytest.approx(repeated.loss, rel=1e-9)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_exact_kinds_merge_and_subtract_to_the_last_bit(kind: str | int) -> None:
    first, second = features(seed=1), features(seed=2)
    both = summed(kind, first)
    both.merge(summed(kind, second))
    assert torch.equal(stands_for(both), stands_for(summed(kind, torch.cat([first, second]))))
    both.merge(summed(kind, first), sign=-1.0)
    assert torch.equal(stands_for(both), stands_for(summed(kind, second)))
    assert both.invertible


def test_the_least_diagonal_forgives_rounding_and_nothing_else() -> None:
    second = summed("diagonal", features())
    second.squares[3] = -1e-9
    assert second.least_diagonal() == 0
    second.squares[3] = -1.0
    assert second.least_diagonal() == -1


@relaxed
@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 60))
def test_merged_sketches_state_their_loss(rank: int, one: int, other: int) -> None:
    h = features(one + other)
    both = summed(rank, h[:one])
    both.merge(summed(rank, h[one:]))
    difference = torch.linalg.eigvalsh(weighted_gram(h, torch.ones(len(h))) - stands_for(both))
    slack = 1e-10 * both.energy
    assert float(difference[0]) >= -slack
    assert float(difference[-1]) <= both.loss + slack
    assert both.energy == float(h.double().square().sum())


def test_a_sketch_cannot_be_subtracted_from_and_stays_as_it_was() -> None:
    second = summed(5, features())
    before = stands_for(second)
    assert not second.invertible
    with pytest.raises(ValueError, match="Nothing can be subtracted from a sketch"):
        second.merge(summed(5, features()), sign=-1.0)
    assert torch.equal(stands_for(second), before)


def test_a_sketch_is_as_large_as_its_rank_and_never_wider_than_the_features() -> None:
    sizes = {rank: summed(rank, features()).state_dict()["directions"].shape for rank in (3, 12, 100)}
    assert sizes == {3: (3, 12), 12: (12, 12), 100: (12, 12)}
    assert summed(100, features()).loss == 0


@pytest.fixture(scope="module")
def accuracy() -> dict[str | int, float]:
    """Class-incremental accuracy on two digits at a time, in batches of odd sizes."""
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.from_numpy(pixels).float(), torch.from_numpy(digits)
    order = torch.randperm(len(x), generator=generator(0))
    train, test = order[:1200], order[1200:]
    found: dict[str | int, float] = {}
    for gram in ("full", 200, 50, "diagonal"):
        setting = Setting((64,), 10, seed=0)
        learner = build_learner("exact", setting, {"gram": gram}, backbone_options={"features": 500})
        for first in range(0, 10, 2):
            rows = train[(y[train] == first) | (y[train] == first + 1)]
            task = TaskData(x[rows], y[rows])
            learner.begin_task(task)
            for batch in task.batches(100):
                learner.observe(batch)
            learner.end_task(task)
        found[gram] = float((learner.logits(x[test]).argmax(1) == y[test]).float().mean())
    return found


def test_a_sketch_of_200_rows_learns_digits_nearly_as_well_as_all_of_g(accuracy: dict[str | int, float]) -> None:
    assert accuracy["full"] > 0.975
    assert accuracy[200] > accuracy["full"] - 0.01


def test_less_memory_costs_more_accuracy_and_even_a_diagonal_learns(accuracy: dict[str | int, float]) -> None:
    assert accuracy[200] > accuracy[50] > accuracy["diagonal"] > 0.8


def test_second_moments_are_put_back_without_a_copy() -> None:
    packed = torch.arange(9.0, dtype=torch.float64)
    second = moments_from("full", 3, {"second.packed": packed, "rows": torch.tensor(1.0)}, prefix="second.")
    assert second.get_buffer("packed").data_ptr() == packed.data_ptr()


def test_an_older_state_is_packed_and_a_newer_one_left_alone() -> None:
    dense = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    old = {"gram": dense, "counters": torch.tensor([4, 2]), "rows": torch.tensor(9.0)}
    new = upgraded(old)
    assert torch.equal(unpack(new["second.packed"], 2), dense)
    assert int(new["first_classes"]) == 2
    assert "gram" in old
    assert upgraded(new) == new


@pytest.mark.parametrize(
    ("alpha", "told"), [(None, "Choosing alpha and solving for 12 features"), (2.0, "Solving for 12 features")]
)
def test_a_solution_that_may_take_long_is_announced(
    alpha: float | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    h = features()
    with caplog.at_level(logging.INFO, "cldnet"):
        summed("full", h).solve(h.double().sum(0)[:, None], torch.tensor([80.0]).double(), 80.0, alpha)
    assert caplog.messages == [told]
