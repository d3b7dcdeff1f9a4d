"""BiC: its loss by hand, the line that it fits, and samples that stay held out."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods.bic import BiCConfig, fit_line
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, TaskData

BIC = "cldnet.methods.bic:BiC"


def rows(x: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(row) for row in x.tolist()}


def stored(learner) -> tuple[set[tuple[float, ...]], set[tuple[float, ...]]]:
    """Exemplars that are held out, and those to train on."""
    held, count = int(learner.held), len(learner.buffer)
    return rows(learner.buffer.x[:held]), rows(learner.buffer.x[held:count])


def test_the_loss_of_stage_1_by_hand_with_a_corrected_teacher(blobs, small):
    learner = small(BIC)
    fit_task(learner, blobs([0, 1, 2]), epochs=2, batch_size=16)
    learner.correction.set(slice(1, 3), 0.7, -0.4)
    learner.teacher.copy_from(learner)
    teacher, task = copy.deepcopy(learner), blobs([3, 4], count=3)
    learner.rehearse(task)
    learner.begin_task(task)
    with torch.no_grad():
        learner.head.weight.add_(0.3 * torch.randn(8, 10, generator=generator(9)))
    z = learner.head(learner.net(learner.scale(task.x)))[:, :5].detach()  # no correction in stage 1
    old = teacher.head(teacher.net(teacher.scale(task.x)))[:, :3].detach()
    old[:, 1:] = 0.7 * old[:, 1:] - 0.4
    weight, expected = torch.linspace(0, 2, 6), 0.0
    for n in range(6):
        e = z[n].exp() / z[n].exp().sum()
        p, q = (v.exp() / v.exp().sum() for v in (old[n] / 2, z[n, :3] / 2))
        distilled = 4 * sum(float(p[c] * (p[c] / q[c]).log()) for c in range(3))
        expected += float(weight[n]) * (-0.4 * float(e[task.y[n]].log()) + 0.6 * distilled) / 6  # λ = 3 / (3 + 2)
    assert learner.loss(Batch(task.x, task.y, weight, 0, 1, 0)).item() == pytest.approx(expected, rel=1e-4)


def test_the_line_minimises_the_cross_entropy_with_equal_weight_per_class():
    y = torch.tensor([0] * 4 + [1] * 6 + [2] * 40 + [3] * 30)
    logits = torch.randn(80, 4, generator=generator(0)) + 2.0 * F.one_hot(y, 4)
    logits[:, 2:] = 1.7 * logits[:, 2:] + 2.0
    weight = torch.ones(80)
    weight[-1] = 5.0
    config = BiCConfig(bias_lr=0.1, bias_epochs=400, bias_batch=80)
    slope, offset = fit_line(logits, y, weight, 2, config, generator(1))

    def balanced_loss(a: float, b: float) -> float:
        z = torch.cat([logits[:, :2], a * logits[:, 2:] + b], 1).double()
        losses = -z.log_softmax(1)[torch.arange(80), y] * weight
        return sum(float(losses[y == c].sum() / weight[y == c].sum()) for c in range(4)) / 4

    best = balanced_loss(slope, offset)
    assert offset < -0.5
    for a in (-0.05, 0.0, 0.05):
        for b in (-0.05, 0.0, 0.05):
            assert balanced_loss(slope + a, offset + b) >= best - 1e-7


def test_only_the_newest_classes_are_corrected_and_the_net_is_not(blobs, small):
    learner = small(BIC, bias_lr=0.1, bias_epochs=5)
    fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    assert learner.correction.slope.tolist() == [1.0] * 8, "there is nothing to compare the first classes with"
    for classes in ([2, 3, 4], [5, 6]):
        task, known = blobs(classes), learner.seen
        fit_task(learner, task, epochs=2, batch_size=16)
        slope, offset = learner.correction.slope, learner.correction.offset
        new = torch.arange(8).ge(known) & torch.arange(8).lt(learner.seen)
        assert (slope[~new] == 1).all()
        assert (offset[~new] == 0).all()
        assert slope[new].unique().numel() == offset[new].unique().numel() == 1
        assert slope[new][0] != 1
        assert offset[new][0] != 0
        raw = learner.head(learner.net(learner.scale(task.x)))[:, : learner.seen]
        expected = raw * slope[: learner.seen] + offset[: learner.seen]
        torch.testing.assert_close(learner.logits(task.x), expected.detach())


def test_samples_held_out_are_never_trained_on_and_stay_held_out(blobs, small):
    learner, trained, held = small(BIC, memory=60, bias_epochs=1), set(), set()
    for number, classes in enumerate(([0, 1], [2, 3], [4, 5, 0])):
        task = blobs(classes, seed=number)
        old_held, old = stored(learner)
        data = learner.rehearse(task)
        out = rows(task.x[learner._out])
        assert task.y[learner._out].bincount()[classes].tolist() == [3] * len(classes)  # a tenth of 30 samples
        assert rows(data.x) == (rows(task.x) - out) | old
        assert not old_held & rows(data.x)
        trained |= rows(data.x)
        held |= out
        learner.begin_task(task)
        learner.end_task(task)
        first, others = stored(learner)
        count = 60 // learner.seen
        assert learner.buffer.y[: len(learner.buffer)].bincount().tolist() == [count] * learner.seen
        assert learner.buffer.y[: int(learner.held)].bincount().tolist() == [max(1, count // 10)] * learner.seen
        assert first <= held
        assert others <= trained
    assert not held & trained


def test_weights_come_along_and_samples_of_weight_zero_are_not_kept(blobs, small):
    learner = small(BIC, bias_epochs=1)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    task = blobs([2, 3])
    weight = torch.where(torch.arange(60) < 30, 0.0, 2.5)
    data = learner.rehearse(TaskData(task.x, task.y, weight))
    assert not (learner._out & (weight == 0)).any()
    assert (data.weight[data.y < 2] == 1).all()
    assert data.weight[data.y >= 2].unique().tolist() == [0.0, 2.5]
    fit_task(learner, TaskData(task.x, task.y, weight), epochs=1, batch_size=16)
    held, others = stored(learner)
    assert not (held | others) & rows(task.x[:30])
    assert (held | others) & rows(task.x[30:])


def test_a_class_that_comes_back_is_learned_and_small_tasks_need_no_correction(blobs, small):
    learner = small(BIC)
    for task in (blobs([0, 1]), blobs([1]), blobs([2], count=1)):
        fit_task(learner, task, epochs=2, batch_size=16)
        assert learner.correction.slope.tolist() == [1.0] * 8
    back = TaskData(blobs([1]).x, torch.zeros(30, dtype=torch.int64))  # class 0 now looks as class 1 did
    learner.rehearse(back)
    learner.begin_task(back)
    before = F.cross_entropy(learner.logits(back.x), back.y).item()
    for _ in range(20):
        learner.observe(Batch(back.x, back.y, None, 0, 1, 0))
    assert F.cross_entropy(learner.logits(back.x), back.y).item() < before / 2


def test_exemplars_are_a_random_choice(blobs, small):
    task, places = blobs([0], count=30), set()
    for seed in range(3):
        learner = small(BIC, memory=6)
        learner.generator.manual_seed(seed)
        fit_task(learner, task, epochs=1, batch_size=16)
        held, others = stored(learner)
        places.add(frozenset(number for number in range(30) if tuple(task.x[number].tolist()) in others))
        assert len(held) == 1
    assert len(places) == 3
    assert max(map(max, places)) > 20


def test_old_classes_fit_better_with_the_correction(blobs, small):
    first, second = blobs([0, 1, 2, 3], count=40), blobs([4, 5, 6, 7], count=40)
    losses = {}
    for epochs in (0, 250):
        learner = small(BIC, memory=24, bias_lr=0.01, bias_epochs=epochs)
        fit_task(learner, first, epochs=3, batch_size=16)
        fit_task(learner, second, epochs=3, batch_size=16)
        losses[epochs] = F.cross_entropy(learner.logits(first.x), first.y).item()
    assert losses[250] < losses[0]
