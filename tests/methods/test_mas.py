"""MAS: the sensitivity of a linear net's squared norm, by hand, and of any net by a loop."""

from __future__ import annotations

import torch
from torch import nn

from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData


def test_the_importance_of_a_linear_net_is_that_of_paper_and_pencil():
    """f(x) = Wx + b, so ∂‖f‖²/∂W_ij = 2 f_i x_j and ∂‖f‖²/∂b_i = 2 f_i, one sample at a time."""
    learner = build_learner("mas", Setting((2,), 2, seed=0, scaling=((0.0, 0.0), (1.0, 1.0))), backbone=nn.Flatten())
    with torch.no_grad():
        learner.head.weight.copy_(torch.tensor([[1.0, 2.0], [0.0, -1.0]]))
        learner.head.bias.copy_(torch.tensor([0.0, 1.0]))
    task = TaskData(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]), torch.tensor([0, 1]))
    learner.begin_task(task)
    learner.eval()
    learner.finish(task)
    # f(1, 1) = (3, 0) and f(−1, 1) = (1, 0): gradients 2·3·(1, 1) and 2·1·(−1, 1) by the first row, none by the second.
    # Without magnitudes a sample, the first entry would be |6 − 2| / 2 = 2.
    assert learner.penalty.importance["head.weight"].tolist() == [[4.0, 4.0], [0.0, 0.0]]
    assert learner.penalty.importance["head.bias"].tolist() == [4.0, 0.0]
    assert learner.penalty.anchor["head.bias"].tolist() == [0.0, 1.0]


def test_importance_is_the_mean_magnitude_of_single_gradients_and_adds_up_over_tasks(blobs, small):
    learner, sums = small("mas"), {}
    for classes in ([0, 1], [2, 3]):
        task = blobs(classes, count=10)
        fit_task(learner, task, epochs=2, batch_size=16)
        names = dict(learner.named_parameters())
        for row in task.x:
            norm = (learner.score(learner.scale(row[None]))[:, : learner.seen] ** 2).sum()
            for name, g in zip(names, torch.autograd.grad(norm, list(names.values())), strict=True):
                sums[name] = sums.get(name, 0.0) + g.abs() / 20
    for name, value in sums.items():
        torch.testing.assert_close(learner.penalty.importance[name], value, rtol=1e-3, atol=1e-6)
        assert torch.equal(learner.penalty.anchor[name], learner.weights[name])


def test_no_labels_are_needed_for_the_importance(blobs, small):
    task = blobs([0, 1])
    found = []
    for y in (task.y, 1 - task.y):
        learner = small("mas")
        learner.begin_task(TaskData(task.x, y))
        learner.eval()
        learner.finish(TaskData(task.x, y))
        found.append(learner.penalty.importance["head.weight"].clone())
    assert torch.equal(*found)
