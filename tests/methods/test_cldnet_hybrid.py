"""The hybrid: its last layer is the ridge solution of all samples, as far as the layers in front rest."""

from __future__ import annotations

import pytest
import torch

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData

CENTRES = 2.0 * torch.randn(6, 8, generator=generator(0))


def blobs(classes, seed, weight=None):
    y = torch.tensor(classes).repeat(30)
    x = (CENTRES[y] + torch.randn(len(y), 8, generator=generator(seed))).double()
    return TaskData(x, y, weight)


def hybrid(**options):
    scaling = ((0.0,) * 8, (1.0,) * 8)
    setting = Setting((8,), 6, seed=0, dtype=torch.float64, scaling=scaling)
    settings = {"embed_dim": 10, "ridge": 2.5, **options}
    return build_learner("cldnet-hybrid", setting, settings, "mlp", {"widths": (15,)})


def taught(tasks, **options):
    learner = hybrid(**options)
    for task in tasks:
        fit_task(learner, task, epochs=2, batch_size=16)
    return learner


def ridge(learner, tasks):
    """The closed form, from all rows at once."""
    x, y = torch.cat([task.x for task in tasks]), torch.cat([task.y for task in tasks])
    weight = torch.cat([torch.ones(len(task)).double() if task.weight is None else task.weight for task in tasks])
    with torch.no_grad():
        h = learner.net(x)
    h = torch.cat([h, torch.ones(len(h), 1, dtype=h.dtype)], 1)
    gram = h.T @ (weight[:, None] * h) + 2.5 * torch.eye(h.shape[1], dtype=h.dtype)
    return torch.linalg.solve(gram, h.T @ (weight[:, None] * learner.basis[y]))


def weights(learner):
    return torch.cat([learner.embedding.weight, learner.embedding.bias[:, None]], 1).T.detach()


def test_with_hidden_layers_at_rest_it_is_the_ridge_solution_of_all_data_at_once():
    tasks = [blobs([0, 1], 1), blobs([2, 3], 2), blobs([4, 5], 3)]
    learner = taught(tasks, hidden_share=0.0)
    torch.testing.assert_close(weights(learner), ridge(learner, tasks), rtol=1e-7, atol=1e-9)


def test_then_the_order_of_tasks_does_not_matter():
    tasks = [blobs([0, 1], 1), blobs([2, 3], 2), blobs([4, 5], 3)]
    one, other = (taught(order, hidden_share=0.0) for order in (tasks, tasks[::-1]))
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-7, atol=1e-9)


def test_a_weight_counts_as_so_many_rows():
    weight = torch.rand(60, generator=generator(4)).double() * 3
    tasks = [blobs([0, 1], 1, weight), blobs([2, 3], 2)]
    learner = taught(tasks, hidden_share=0.0)
    torch.testing.assert_close(weights(learner), ridge(learner, tasks), rtol=1e-7, atol=1e-9)


def test_hidden_layers_learn_where_they_are_let():
    tasks = [blobs([0, 1], 1), blobs([2, 3], 2)]
    resting, moving = taught(tasks, hidden_share=0.0), taught(tasks, hidden_share=0.1)
    fresh = hybrid()
    assert all(torch.equal(a, b) for a, b in zip(resting.net.parameters(), fresh.net.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(moving.net.parameters(), fresh.net.parameters(), strict=True))
    for learner in (resting, moving):
        assert all((learner.logits(task.x).argmax(1) == task.y).double().mean() > 0.9 for task in tasks)


def test_a_ridge_of_nothing_is_refused():
    with pytest.raises(ValueError, match="ridge=0 should be a positive number"):
        hybrid(ridge=0)
