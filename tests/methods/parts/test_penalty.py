"""The quadratic penalty: its value, its anchors, and a step that no strength can break."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.device import generator
from cldnet.methods.parts.distillation import distillation
from cldnet.methods.parts.penalty import QuadraticPenalty

relaxed = settings(deadline=None, max_examples=40)


def numbers(seed: int, n: int = 5) -> Tensor:
    return torch.randn(n, generator=generator(seed), dtype=torch.float64)


@relaxed
@given(st.integers(1, 5), st.integers(0, 999))
def test_a_sum_over_tasks_is_one_quadratic_up_to_a_constant(tasks: int, seed: int) -> None:
    penalty = QuadraticPenalty({"w": numbers(0)})
    pairs = [(numbers(seed + i).square() * (numbers(seed - i) > 0), numbers(seed * 7 + i)) for i in range(tasks)]
    for importance, anchor in pairs:
        penalty.add({"w": importance}, {"w": anchor})
    here, there = (
        float(penalty.value({"w": w}) - sum(0.5 * (f * (w - a) ** 2).sum() for f, a in pairs))
        for w in (numbers(1), 3 * numbers(2))
    )
    assert here == pytest.approx(there, abs=1e-9)


@relaxed
@given(st.floats(0, 1e6), st.integers(0, 999))
def test_the_pull_minimises_the_penalty_and_the_way_there(rate: float, seed: int) -> None:
    penalty, start = QuadraticPenalty({"w": numbers(0)}), numbers(seed + 2)
    penalty.replace({"w": numbers(seed).square()}, {"w": numbers(seed + 1)})
    w = start.clone()
    penalty.leave({"w": w}, penalty.shares(rate))
    slope = rate * penalty.importance["w"] * (w - penalty.anchor["w"]) + (w - start)
    torch.testing.assert_close(slope, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [0.0, 1.0, 1e9, 1e38, 1e300])
def test_the_pull_never_goes_past_the_anchor_nor_out_of_bounds(rate: float, dtype: torch.dtype) -> None:
    penalty = QuadraticPenalty({"w": torch.zeros(4, dtype=dtype)})
    importance = torch.tensor([0.0, 1e-30, 1.0, 1e30], dtype=dtype)
    penalty.replace({"w": importance}, {"w": torch.ones(4, dtype=dtype)})
    w = torch.full((4,), 3.0, dtype=dtype)
    penalty.leave({"w": w}, penalty.shares(rate))
    assert bool(((w >= 1) & (w <= 3)).all())
    assert float(w[0]) == 3.0, "a weight of no importance is free, to the last bit"
    if rate >= 1:
        assert float(w[3]) == pytest.approx(1.0)


def test_replacing_moves_every_anchor_and_adding_only_shifts_it() -> None:
    penalty = QuadraticPenalty({"w": torch.zeros(2)})
    penalty.add({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([1.0, 1.0])})
    penalty.add({"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([3.0, 3.0])})
    assert penalty.anchor["w"].tolist() == [2.0, 3.0], "without importance the latest weight will do"
    penalty.replace({"w": torch.tensor([5.0, 6.0])}, {"w": torch.tensor([7.0, 8.0])})
    assert penalty.importance["w"].tolist() == [5.0, 6.0]
    assert penalty.anchor["w"].tolist() == [7.0, 8.0]


# Distillation


def test_distillation_is_a_divergence_of_softened_answers_by_hand() -> None:
    logits, teacher = torch.tensor([[1.0, -1.0, 0.5]]), torch.tensor([[0.0, 2.0, -3.0]])
    q, p = (torch.exp(z / 2) / torch.exp(z / 2).sum() for z in (logits[0], teacher[0]))
    expected = 4 * sum(float(pi * (pi / qi).log()) for pi, qi in zip(p, q, strict=True))
    assert float(distillation(logits, teacher, 2.0)) == pytest.approx(expected, rel=1e-5)
    assert float(distillation(teacher + 7, teacher, 2.0)) == pytest.approx(0, abs=1e-6), "answers are the same"


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_distillation_is_finite_for_any_logits(scale: float) -> None:
    logits = (scale * torch.randn(6, 4, generator=generator(0))).requires_grad_()
    loss = distillation(logits, scale * torch.randn(6, 4, generator=generator(1)), 2.0)
    assert bool((loss > -1e-5).all())
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert bool(torch.isfinite(gradient).all())
