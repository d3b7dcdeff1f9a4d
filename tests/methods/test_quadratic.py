"""What the methods with a quadratic penalty have in common: any strength is stable, and momentum changes no minimum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cldnet.fit import fit_task
from cldnet.methods import build_learner
from cldnet.methods.learner import Batch, Setting, TaskData

METHODS = ("ewc", "ewc-batched", "oewc", "si", "mas")


def known(learner, task):
    """Share of a task's rows that are told apart among the task's own classes."""
    right = task.rows[learner.logits(task.x)[:, task.rows].argmax(1)] == task.y
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
        ("ewc", {"strength": float("nan")}, "should not be negative"),
        ("ewc", {"strength": float("inf")}, "finite"),
        ("ewc-batched", {"fisher_batch": 0}, "at least 1"),
        ("oewc", {"gamma": 1.5}, r"\[0, 1\]"),
        ("si", {"damping": 0.0}, "positive"),
        ("mas", {"strength": -1.0}, "should not be negative"),
        ("lwf", {"strength": -1.0}, "not negative"),
        ("lwf", {"temperature": 0.0}, "positive"),
    ],
)
def test_settings_that_cannot_be_are_refused(method, options, complaint, small):
    with pytest.raises(ValueError, match=complaint):
        small(method, **options)
