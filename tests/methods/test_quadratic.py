"""Quadratic penalties: the penalty itself, and the methods that share it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.quadratic import QuadraticPenalty

METHODS = ("ewc", "ewc-batched", "oewc", "si", "mas")


def known(learner, task):
    """Share of a task's rows that are told apart among the task's own classes."""
    right = task.class_rows[learner.logits(task.x)[:, task.class_rows].argmax(1)] == task.y
    return float(right.float().mean())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("strength", [1e12, 1e38, 1e300])
def test_a_huge_strength_holds_old_weights_and_stays_finite(method, strength, blobs, small):
    learner, first = small(method, strength=strength, lr=0.3), blobs([0, 1])
    fit_task(learner, first, epochs=3, batch_size=16)
    before = learner.logits(first.x).clone()
    for classes in ([2, 3], [4, 5]):
        fit_task(learner, blobs(classes), epochs=2, batch_size=16)
    after = learner.logits(first.x)
    assert torch.isfinite(after).all()
    assert all(torch.isfinite(tensor).all() for tensor in learner.state_dict().values())
    assert known(learner, first) > 0.95
    torch.testing.assert_close(after[:, :2], before, rtol=0.1, atol=0.5)


@pytest.mark.parametrize("method", METHODS)
def test_without_strength_it_is_fine_tuning_to_the_last_bit(method, blobs, small):
    learners = [small("finetune"), small(method, strength=0.0)]
    fit_task(learners[0], blobs([0, 1]), epochs=2, batch_size=16)
    fit_task(learners[1], blobs([0, 1]), epochs=2, batch_size=16)
    learners[1].generator.set_state(learners[0].generator.get_state())  # labels were drawn at the first task's end
    for learner in learners:
        fit_task(learner, blobs([2, 3]), epochs=2, batch_size=16)
    for p, q in zip(*(learner.parameters() for learner in learners), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("method", METHODS)
def test_important_weights_move_less_than_in_fine_tuning(method, blobs, small):
    moved = {}
    for strength in (0.0, 1e5):
        learner = small(method, strength=strength, lr=0.01)
        fit_task(learner, blobs([0, 1]), epochs=5, batch_size=16)
        before = {name: p.clone() for name, p in learner.weights.items()}
        importance = {name: f.clone() for name, f in learner.penalty.importance.items()}
        fit_task(learner, blobs([2, 3]), epochs=5, batch_size=16)
        distances = (importance[name] * (p - before[name]) ** 2 for name, p in learner.weights.items())
        moved[strength] = float(torch.stack([distance.sum() for distance in distances]).sum())
    assert moved[1e5] < 0.2 * moved[0.0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_come_to_rest_where_data_and_penalty_balance(momentum, blobs):
    """The gradient of the whole loss vanishes there, so the proximal step is no other penalty, with momentum or without."""
    task = blobs([0, 1, 2], count=20)
    setting = Setting((6,), 3, seed=0, dtype=torch.float64)
    options = {"strength": 3.0, "momentum": momentum, "lr": 0.3 * (1 - momentum)}
    learner = build_learner("ewc", setting, options, nn.Flatten())  # a linear net: there is one minimum
    fit_task(learner, task, epochs=1, batch_size=60)
    learner.penalty.replace({name: torch.full_like(p, 0.1) for name, p in learner.weights.items()}, learner.weights)
    batch = Batch(task.x, task.y.roll(7), None, 0, 1, 0)  # with other labels, so that the data pull elsewhere
    learner.begin_task(task)
    for _ in range(400):
        learner.observe(batch)
    gradients = torch.autograd.grad(learner.loss(batch), list(learner.parameters()))
    for (name, p), g in zip(learner.weights.items(), gradients, strict=True):
        pull = 3.0 * learner.penalty.importance[name] * (p - learner.penalty.anchor[name])
        torch.testing.assert_close(g, -pull, rtol=1e-4, atol=1e-6)
    assert max(float(g.abs().max()) for g in gradients) > 1e-2, "they balance; neither is nothing"


def test_the_loss_that_is_told_has_the_penalty_of_the_paper(blobs, small):
    for method, factor in (("ewc", 0.5), ("oewc", 0.5), ("si", 1.0), ("mas", 1.0)):
        learner = small(method, strength=7.0)
        for classes in ([0, 1], [2, 3]):
            fit_task(learner, blobs(classes), epochs=1, batch_size=16)
        task = blobs([4, 5])
        learner.begin_task(task)
        if method != "si":  # which sets out from its anchor
            with torch.no_grad():
                learner.head.bias.add_(0.5)
        batch = Batch(task.x, task.y, None, 0, 1, 0)
        penalty = sum(
            (factor * 7.0 * f * (learner.weights[name] - learner.penalty.anchor[name]) ** 2).sum()
            for name, f in learner.penalty.importance.items()
        )
        expected = float(learner.loss(batch).detach() + penalty)
        assert float(learner.observe(batch)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("method", "options"), [("ewc-batched", {"fisher_batch": 1}), ("mas", {})])
def test_rows_of_weight_zero_leave_no_trace_at_a_tasks_end(method, options, blobs, small):
    """Those methods draw no labels, so that the importance with and without such rows is the same number."""
    task, other = blobs([0, 1], count=10), blobs([0, 1], count=5, seed=9)
    x, y = torch.cat([task.x, 50 + other.x]), torch.cat([task.y, other.y])
    importance = []
    for data in (task, TaskData(x, y, torch.tensor([1.0] * 20 + [0.0] * 10))):
        learner = small(method, **options)
        learner.scale.set([0.0] * 6, [1.0] * 6)
        learner.begin_task(data)
        learner.eval()
        learner.finish(data)
        importance.append(dict(learner.penalty.importance.items()))
    for name, value in importance[0].items():
        torch.testing.assert_close(importance[1][name], value, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "options", "complaint"),
    [
        ("ewc", {"strength": float("nan")}, "should be a finite number, 0 or more"),
        ("ewc", {"strength": float("inf")}, "finite"),
        ("ewc-batched", {"fisher_batch": 0}, "at least 1"),
        ("oewc", {"gamma": 1.5}, r"\[0, 1\]"),
        ("si", {"damping": 0.0}, "positive"),
        ("mas", {"strength": -1.0}, "should be a finite number, 0 or more"),
        ("lwf", {"strength": -1.0}, "0 or more"),
        ("lwf", {"temperature": 0.0}, "positive"),
    ],
)
def test_settings_that_cannot_be_are_refused(method, options, complaint, small):
    with pytest.raises(ValueError, match=complaint):
        small(method, **options)


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
    penalty.step({"w": w}, penalty.shares(rate))
    slope = rate * penalty.importance["w"] * (w - penalty.anchor["w"]) + (w - start)
    torch.testing.assert_close(slope, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rate", [0.0, 1.0, 1e9, 1e38, 1e300])
def test_the_pull_never_goes_past_the_anchor_nor_out_of_bounds(rate: float, dtype: torch.dtype) -> None:
    penalty = QuadraticPenalty({"w": torch.zeros(4, dtype=dtype)})
    importance = torch.tensor([0.0, 1e-30, 1.0, 1e30], dtype=dtype)
    penalty.replace({"w": importance}, {"w": torch.ones(4, dtype=dtype)})
    w = torch.full((4,), 3.0, dtype=dtype)
    penalty.step({"w": w}, penalty.shares(rate))
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
