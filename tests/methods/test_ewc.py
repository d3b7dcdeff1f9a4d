"""EWC, its batched shortcut and Online EWC against their formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cldnet.methods.fit import fit_task
from cldnet.methods.learner import TaskData


def by_loop(learner, x, labels):
    """Squared gradients of single samples, summed, one sample at a time."""
    parameters = dict(learner.named_parameters())
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for row, label in zip(x, labels, strict=True):
        loss = F.cross_entropy(learner.head(learner.net(learner.scale(row[None])))[:, : learner.seen], label[None])
        for name, g in zip(sums, torch.autograd.grad(loss, list(parameters.values())), strict=True):
            sums[name] += g**2
    return sums


def ended(learner, task):
    """Begin a task and end it without a step, and return the generator as it was before labels were drawn."""
    learner.begin_task(task)
    learner.eval()
    source = torch.Generator()
    source.set_state(learner.generator.get_state())
    learner.finish(task)
    return source


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("method", ["ewc", "oewc"])
def test_the_fisher_information_is_the_mean_over_samples_with_drawn_labels(method, normalised, blobs, small):
    net = nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.ReLU()) if normalised else None
    learner, task = small(method, net), blobs([0, 1], count=50)  # more than go through the net at once
    source = ended(learner, task)
    drawn = []
    for part in task.x.split(64):
        logits = learner.head(learner.net(learner.scale(part)))[:, :2]
        drawn.append(torch.multinomial(logits.softmax(1).detach(), 1, generator=source)[:, 0])
    for name, value in by_loop(learner, task.x, torch.cat(drawn)).items():
        torch.testing.assert_close(learner.penalty.importance[name], value / 100, rtol=1e-3, atol=1e-8)
    assert torch.equal(source.get_state(), learner.generator.get_state())


def test_ewc_pulls_to_every_tasks_anchor_by_its_fisher(blobs, small):
    learner = small("ewc")
    pairs, fisher = [], {name: torch.zeros_like(p) for name, p in learner.weights.items()}
    for classes in ([0, 1], [2, 3], [4, 5]):
        fit_task(learner, blobs(classes), epochs=2, batch_size=16)
        new = {name: tensor.clone() for name, tensor in learner.penalty.importance.items()}
        anchor = {name: p.clone() for name, p in learner.weights.items()}
        pairs.append(({name: new[name] - fisher[name] for name in new}, anchor))
        fisher = new
    for name, p in learner.weights.items():
        expected = sum(f[name] * (p + 1 - anchor[name]) for f, anchor in pairs)
        found = learner.penalty.importance[name] * (p + 1 - learner.penalty.anchor[name])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert all(float(f["head.weight"].sum()) > 0 for f, _ in pairs)


def test_the_batched_fisher_goes_by_true_labels_and_is_smaller(blobs, small):
    task = blobs([0, 1], count=32)
    found = {}
    for batch in (1, 64):
        learner = small("ewc-batched", fisher_batch=batch)
        ended(learner, task)
        found[batch] = {name: f.clone() for name, f in learner.penalty.importance.items()}
    for name, value in by_loop(learner, task.x, task.y).items():
        torch.testing.assert_close(found[1][name], value / 64, rtol=1e-3, atol=1e-8)
    loss = F.cross_entropy(learner.head(learner.net(learner.scale(task.x)))[:, :2], task.y)
    names = dict(learner.named_parameters())
    for name, g in zip(names, torch.autograd.grad(loss, list(names.values())), strict=True):
        torch.testing.assert_close(found[64][name], g**2, rtol=1e-3, atol=1e-8)
    assert float(found[64]["head.weight"].sum()) < 0.7 * float(found[1]["head.weight"].sum())


def test_batches_for_the_batched_fisher_are_mixed_even_if_the_data_are_sorted(blobs, small):
    """A batch of one class would hardly cancel at all."""
    task = blobs([0, 1], count=64)
    order = task.y.argsort()
    sums = []
    for data in (task, TaskData(task.x[order], task.y[order])):
        learner = small("ewc-batched", fisher_batch=64)
        ended(learner, data)
        sums.append(float(learner.penalty.importance["head.bias"].sum()))
    assert sums[1] < 5 * sums[0] + 0.02


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
def test_online_ewc_lets_the_old_fisher_fade_and_anchors_at_the_latest_weights(gamma, blobs, small):
    learner = small("oewc", gamma=gamma)
    fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    old = {name: f.clone() for name, f in learner.penalty.importance.items()}
    task = blobs([2, 3])
    source = ended(learner, task)
    probabilities = learner.head(learner.net(learner.scale(task.x)))[:, :4].softmax(1).detach()
    drawn = torch.multinomial(probabilities, 1, generator=source)[:, 0]
    for name, value in by_loop(learner, task.x, drawn).items():
        expected = gamma * old[name] + value / 60
        torch.testing.assert_close(learner.penalty.importance[name], expected, rtol=1e-3, atol=1e-7)
        assert torch.equal(learner.penalty.anchor[name], learner.weights[name])
