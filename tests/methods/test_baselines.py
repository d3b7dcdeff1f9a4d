"""ER, PNN, joint training and fine-tuning, against their formulas."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.estimator.footprint import footprint
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.gradient import weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData

CENTRES = 4.0 * torch.randn(8, 6, generator=generator(0))


def blobs(classes, count=30, seed=0):
    y = torch.tensor(classes).repeat(count)
    return TaskData(CENTRES[y] + torch.randn(len(y), 6, generator=generator(seed)), y)


def make(method, seed=0, net=None, **options):
    backbone, arguments = ("auto", None) if method == "pnn" else ("mlp", {"widths": (10,)})
    return build_learner(method, Setting((6,), 8, seed=seed), options, net or backbone, arguments)


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.named_parameters()}


# ER


def test_only_the_first_epoch_is_offered_to_the_memory():
    learner = make("er", memory=20)
    fit_task(learner, blobs([0, 1], count=25), epochs=4, batch_size=16)
    assert int(learner.buffer.met) == 50
    fit_task(learner, blobs([2, 3], count=10), epochs=3, batch_size=16)
    assert int(learner.buffer.met) == 70


def test_the_memory_holds_rows_of_the_stream_with_their_labels():
    learner, tasks = make("er", memory=40), [blobs([0, 1]), blobs([2, 3])]
    for task in tasks:
        fit_task(learner, task, epochs=2, batch_size=16)
    x, y = torch.cat([t.x for t in tasks]), torch.cat([t.y for t in tasks])
    for kept, label in zip(learner.buffer.x, learner.buffer.y, strict=True):
        (place,) = (x == kept).all(1).nonzero()[:, 0].tolist()
        assert y[place] == label
    assert set(learner.buffer.y.tolist()) == {0, 1, 2, 3}


def test_a_replay_step_is_a_step_on_both_batches_together():
    learner = make("er", memory=8, replay=5, momentum=0.0)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    task = blobs([2, 3], count=4)
    learner.begin_task(task)
    learner.eval()
    other, draws = copy.deepcopy(learner), torch.Generator()
    draws.set_state(learner.generator.get_state())
    place = torch.randperm(8, generator=draws)[:5]
    x = torch.cat([task.x, other.buffer.x[place]])
    y = torch.cat([task.y, other.buffer.y[place]])
    loss = F.cross_entropy(other.head(other.net(other.scale(x)))[:, :4], y)
    gradients = torch.autograd.grad(loss, list(other.parameters()))
    assert float(learner.observe(Batch(task.x, task.y, None, 0, 1, 0))) == pytest.approx(loss.item(), rel=1e-5)
    for after, before, g in zip(learner.parameters(), other.parameters(), gradients, strict=True):
        torch.testing.assert_close(after, before - 0.05 * g, rtol=1e-4, atol=1e-6)


def marked(x, source):
    """Whole numbers become those plus a draw of (0, 1)."""
    return x + torch.rand(len(x), 1, generator=source).clamp(0.01, 0.99).to(x)


def test_the_memory_holds_plain_inputs_and_replays_them_augmented_afresh():
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            seen.append(x)
            return super().forward(x)

    tasks = [TaskData((10 * blobs(classes).x).round(), blobs(classes).y) for classes in ([0, 1], [2, 3])]
    setting = Setting((6,), 8, seed=0, scaling=((0.0,) * 6, (1.0,) * 6))
    learner = build_learner("er", setting, {"memory": 20, "replay": 9}, Watching(6, 5))
    for task in tasks:
        fit_task(learner, task, epochs=2, batch_size=16, augment=marked)
    rows = {tuple(row) for task in tasks for row in task.x.tolist()}
    assert {tuple(row) for row in learner.buffer.x.tolist()} <= rows
    steps = [x for x in seen if len(x) > 16]
    assert len(steps) > 10
    for x in steps:
        assert {tuple(row) for row in x.floor().tolist()} <= rows
        assert ((x - x.floor())[:, 0] > 0.005).all(), "a row was learned as it is"
    drawn = torch.cat([(x - x.floor())[-9:, 0] for x in steps])
    assert len(drawn.unique()) > 0.95 * len(drawn), "replayed rows were augmented once and for all"


def test_replay_is_the_same_with_an_augmentation_that_changes_nothing_and_draws_nothing():
    learners = [make("er", memory=20), make("er", memory=20)]
    for learner, augment in zip(learners, (None, lambda x, source: x), strict=True):
        for classes in ([0, 1], [2, 3]):
            fit_task(learner, blobs(classes), epochs=2, batch_size=16, augment=augment)
    assert_same(*learners)


@pytest.mark.parametrize("method", ["er", "joint"])
def test_resumed_is_uninterrupted_with_augmentation_too(method):
    straight, resumed = make(method), make(method)
    for classes in ([0, 1], [2, 3]):
        for learner in (straight, resumed):
            fit_task(learner, blobs(classes), epochs=2, batch_size=16, augment=marked)
        state, resumed = copy.deepcopy(resumed.state_dict()), make(method)
        resumed.load_state(state)
    assert_same(straight, resumed)


def test_joint_training_keeps_plain_inputs():
    learner, task = make("joint"), blobs([0, 1])
    fit_task(learner, task, epochs=1, batch_size=16, augment=marked)
    assert torch.equal(learner.memory_x, task.x)


def assert_same(first, second):
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_replay_forgets_less_than_fine_tuning():
    first = blobs([0, 1])
    known = {}
    for method in ("finetune", "er"):
        learner = make(method)
        for task in (first, blobs([2, 3]), blobs([4, 5])):
            fit_task(learner, task, epochs=5, batch_size=16)
        known[method] = float((learner.logits(first.x).argmax(1) == first.y).float().mean())
    assert known["finetune"] < 0.3
    assert known["er"] > 0.7


# PNN


def test_old_columns_are_frozen_to_the_last_bit_and_nothing_is_forgotten():
    learner, first = make("pnn", widths=(7, 5)), blobs([0, 1])
    fit_task(learner, first, epochs=5, batch_size=16)
    column = {name: tensor.clone() for name, tensor in learner.columns[0].state_dict().items()}
    within = learner.logits(first.x)[:, :2]
    assert (within.argmax(1) == first.y).float().mean() > 0.9
    fit_task(learner, blobs([2, 3, 4]), epochs=5, batch_size=16)
    fit_task(learner, blobs([5]), epochs=1, batch_size=16)
    assert all(torch.equal(column[name], tensor) for name, tensor in learner.columns[0].state_dict().items())
    assert torch.equal(learner.logits(first.x)[:, :2], within)


def test_columns_grow_by_the_formula():
    learner = make("pnn", widths=(7, 5))
    for older, classes in enumerate(([0, 1], [2, 3, 4], [5])):
        task = blobs(classes)
        numbers = (6 * 7 + 7) + ((7 + 7 * older) * 5 + 5) + (5 * (older + 1) * len(classes) + len(classes))
        assert learner.growth(task) == 4 * numbers + 8 * len(classes)
        before = footprint(learner).total
        fit_task(learner, task, epochs=1, batch_size=16)
        assert footprint(learner).total - before == 4 * numbers + 8 * len(classes)


def test_a_new_column_takes_in_what_the_older_ones_computed():
    learner = make("pnn", widths=(7, 5))
    for classes in ([0, 1], [2, 3]):
        fit_task(learner, blobs(classes), epochs=1, batch_size=16)
    x = learner.scale(blobs([0, 2]).x)
    old, new = learner.columns
    a1, b1 = torch.relu(old.hidden[0](x)), torch.relu(new.hidden[0](x))
    a2, b2 = torch.relu(old.hidden[1](a1)), torch.relu(new.hidden[1](torch.cat([b1, a1], 1)))
    with torch.no_grad():
        scores = learner.score(x)
    torch.testing.assert_close(scores[:, :2], old.head(a2))
    torch.testing.assert_close(scores[:, 2:4], new.head(torch.cat([a2, b2], 1)))


# Joint training and fine-tuning


def test_joint_training_is_training_on_the_pooled_data():
    first, second = blobs([0, 1], seed=1), blobs([2, 3], seed=2)
    joint, plain = make("joint"), make("finetune")
    fit_task(joint, first, epochs=3, batch_size=16)
    plain.scale = copy.deepcopy(joint.scale)
    plain.generator.set_state(joint.generator.get_state())
    fit_task(joint, second, epochs=3, batch_size=16)
    pooled = TaskData(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))
    fit_task(plain, pooled, epochs=3, batch_size=16)
    for p, q in zip(joint.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, q)
    assert (joint.logits(pooled.x).argmax(1) == pooled.y).float().mean() > 0.9


def test_joint_training_starts_anew_with_running_statistics_too():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    learner = make("joint", net=net)
    fit_task(learner, blobs([0, 1], count=8), epochs=2, batch_size=8)
    fit_task(learner, blobs([2, 3], count=8), epochs=3, batch_size=8)
    assert int(net[1].num_batches_tracked) == 3 * 4


def test_joint_training_keeps_inputs_of_other_precisions():
    learner = make("joint")
    x = blobs([0, 1], count=5).x
    learner.rehearse(TaskData(x.double() + 1e-12, torch.arange(10) % 2))
    kept = learner.rehearse(TaskData(x, torch.arange(10) % 2)).x
    assert torch.equal(kept[:10], x.double() + 1e-12)


def test_a_plain_step_is_gradient_descent_on_the_classes_seen():
    learner, task = make("finetune", momentum=0.0, clip=1e9), blobs([0, 1, 2], count=4)
    learner.begin_task(task)
    before = copy.deepcopy(learner)
    weight = torch.linspace(0, 2, 12)
    learner.observe(Batch(task.x, task.y, weight, 0, 1, 0))
    losses = F.cross_entropy(before.head(before.net(before.scale(task.x)))[:, :3], task.y, reduction="none")
    gradients = torch.autograd.grad((losses * weight).sum() / 12, list(before.parameters()))
    for after, p, g in zip(learner.parameters(), before.parameters(), gradients, strict=True):
        torch.testing.assert_close(after, p - 0.05 * g, rtol=1e-5, atol=1e-7)
    assert torch.equal(learner.head.weight[3:], before.head.weight[3:]), "unseen classes are not touched"


def test_a_large_gradient_is_clipped():
    learner, task = make("finetune", momentum=0.0, clip=1e-3, lr=1.0), blobs([0, 1], count=4)
    learner.begin_task(task)
    before = weights(learner)
    learner.observe(Batch(task.x, task.y, None, 0, 1, 0))
    moved = torch.cat([(p - before[name]).flatten() for name, p in weights(learner).items()]).norm()
    assert float(moved) == pytest.approx(1e-3, rel=1e-2)


def test_a_weight_of_two_counts_as_two_rows():
    values = torch.tensor([1.0, 5.0, 3.0])
    assert float(weighted_mean(values, None)) == 3.0
    assert float(weighted_mean(values, torch.tensor([2.0, 0.0, 1.0]))) == pytest.approx(5 / 3)
    assert float(weighted_mean(values, torch.zeros(3))) == 0.0
