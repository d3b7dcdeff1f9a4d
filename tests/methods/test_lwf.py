"""LwF: its loss by hand, and a teacher that stays as it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.estimator.footprint import footprint
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting
from cldnet.methods.lwf import distillation


def test_the_loss_is_cross_entropy_and_distillation_by_hand(blobs, small):
    learner = small("lwf", strength=3.0, momentum=0.0)
    fit_task(learner, blobs([0, 1, 2]), epochs=2, batch_size=16)
    teacher, task = copy.deepcopy(learner), blobs([3, 4], count=3)
    learner.begin_task(task)
    with torch.no_grad():
        learner.head.weight.add_(0.3 * torch.randn(8, 10))
    z = learner.head(learner.net(learner.scale(task.x)))[:, :5].detach()
    old = teacher.head(teacher.net(teacher.scale(task.x)))[:, :3].detach()
    weight = torch.linspace(0, 2, 6)
    expected = 0.0
    for n in range(6):
        e = z[n].exp() / z[n].exp().sum()
        p, q = (v.exp() / v.exp().sum() for v in (old[n] / 2, z[n, :3] / 2))
        distilled = 4 * sum(float(p[c] * (p[c] / q[c]).log()) for c in range(3))
        expected += float(weight[n]) * (-float(e[task.y[n]].log()) + 3.0 * distilled) / 6
    assert learner.loss(Batch(task.x, task.y, weight, 0, 1, 0)).item() == pytest.approx(expected, rel=1e-4)


def test_the_first_task_is_fine_tuning(blobs, small):
    learners = [small("finetune"), small("lwf", strength=100.0)]
    for learner in learners:
        fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    for p, q in zip(*(learner.parameters() for learner in learners), strict=True):
        assert torch.equal(p, q)


def test_the_teacher_is_the_last_net_and_does_not_learn(blobs, small):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
    learner = small("lwf", net)
    fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    kept = {name: tensor.clone() for name, tensor in learner.teacher.items()}
    own = learner.state_dict()
    assert kept.keys() == {name for name in own if name.startswith(("net.", "head."))}
    assert all(torch.equal(kept[name], own[name]) for name in kept)
    task = blobs([2, 3])
    x = learner.scale(task.x)
    with torch.no_grad():
        expected = learner.score(x)
    learner.begin_task(task)
    for _ in range(3):
        learner.observe(Batch(task.x, task.y, None, 0, 1, 0))
        torch.testing.assert_close(learner.teacher(learner, x), expected)
        assert learner.training
    assert all(torch.equal(kept[name], tensor) for name, tensor in learner.teacher.items())
    assert int(learner.net[1].num_batches_tracked) == 2 * 4 + 3


def test_a_teacher_is_as_large_as_the_net_from_the_start(small):
    counted = footprint(small("lwf"))
    assert counted.bytes["teacher"] == counted.bytes["weights"] + 8
    assert counted.parameters * 4 == counted.bytes["weights"]


def test_old_classes_are_told_apart_better_than_after_fine_tuning(blobs, small):
    first, old = blobs([0, 1]), {}
    for method in ("finetune", "lwf"):
        learner = small(method, lr=0.05)
        fit_task(learner, first, epochs=3, batch_size=16)
        before = learner.logits(first.x)[:, :2].softmax(1)
        for classes in ([2, 3], [4, 5], [6, 7]):
            fit_task(learner, blobs(classes), epochs=5, batch_size=16)
        after = learner.logits(first.x)[:, :2].softmax(1)
        old[method] = float((after - before).abs().mean())
    assert old["lwf"] < old["finetune"]


class TiedNet(nn.Module):
    """One weight in two layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x):
        return torch.relu(self.b(torch.relu(self.a(x))))


def test_a_net_with_tied_weights_can_be_taught(blobs):
    learner = build_learner("lwf", Setting((6,), 8, seed=0), backbone=TiedNet())
    for task in (blobs([0, 1]), blobs([2, 3])):
        fit_task(learner, task, epochs=2, batch_size=16)
    assert learner.logits(task.x).isfinite().all()


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
