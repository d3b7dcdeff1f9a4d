"""SI: what the way of the weights did to the loss, against losses and closed forms."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.si import SI, SIConfig

CURVATURES = torch.tensor([1.0, 4.0, 0.25])
MINIMUM = torch.tensor([1.0, -2.0, 3.0])


class Quadratic(SI):
    """SI whose data loss is ``½ Σ a_i (θ_i − m_i)²`` in the head's three biases: its path integral has a closed form."""

    def loss(self, batch: Batch) -> Tensor:
        return 0.5 * (CURVATURES * (self.head.bias - MINIMUM) ** 2).sum()


def quadratic(**options: float) -> Quadratic:
    config = SIConfig(clip=1e9, **options)  # type: ignore[arg-type]
    learner = Quadratic(nn.Flatten(), Setting((1,), 3, seed=0), config)
    with torch.no_grad():
        learner.head.bias.zero_()
    return learner


TASK = TaskData(torch.zeros(4, 1), torch.arange(4) % 3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_for_small_steps_the_path_integral_is_the_decrease_of_the_loss_weight_by_weight(momentum):
    learner = quadratic(lr=3e-4 * (1 - momentum), momentum=momentum)
    learner.begin_task(TASK)
    batch = Batch(TASK.x, TASK.y, None, 0, 1, 0)
    for _ in range(1000):
        learner.observe(batch)
    theta = learner.head.bias.detach()
    decrease = 0.5 * CURVATURES * (MINIMUM**2 - (theta - MINIMUM) ** 2)
    torch.testing.assert_close(learner.path["head.bias"], decrease, rtol=3e-3, atol=1e-5)
    assert not learner.path["head.weight"].any(), "what has no gradient has no share"
    assert 0.05 < float(theta[0]) < 0.9, "it is on its way"


def test_for_large_steps_it_is_the_sum_of_a_geometric_series():
    lr, steps = 0.1, 7
    learner = quadratic(lr=lr, momentum=0.0)
    fit_task(learner, TASK, epochs=steps, batch_size=4)
    rate = 1 - lr * CURVATURES  # θ_k − m = −m rate^k, so ω = Σ_k lr g_k²
    omega = lr * CURVATURES**2 * MINIMUM**2 * (1 - rate ** (2 * steps)) / (1 - rate**2)
    moved = MINIMUM * (1 - rate**steps)
    torch.testing.assert_close(learner.path["head.bias"], omega, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(learner.penalty.importance["head.bias"], omega / (moved**2 + 0.1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(learner.penalty.anchor["head.bias"], moved, rtol=1e-5, atol=1e-6)


def test_the_path_follows_the_data_loss_alone_and_the_whole_step(blobs, small):
    learner = small("si", strength=50.0, momentum=0.0, lr=0.01)
    fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    task = blobs([2, 3])
    learner.begin_task(task)
    batch = Batch(task.x, task.y, None, 0, 1, 0)
    for _ in range(2):
        learner.observe(batch)
    before, path = copy.deepcopy(learner), {name: p.clone() for name, p in learner.path.items()}
    gradients = torch.autograd.grad(before.loss(batch), list(before.parameters()))
    learner.observe(batch)
    for (name, p), g in zip(learner.weights.items(), gradients, strict=True):
        moved = p - before.weights[name]
        torch.testing.assert_close(learner.path[name] - path[name], -g * moved, rtol=1e-3, atol=1e-7)
    pulled = learner.weights["head.weight"] - (before.weights["head.weight"] - 0.01 * gradients[-2])
    assert float(pulled.abs().max()) > 1e-5, "the penalty was part of the step"


def test_importance_adds_up_over_tasks_and_is_never_negative(blobs, small):
    learner, sums = small("si", damping=0.3), {}
    for classes in ([0, 1], [2, 3], [4, 5]):
        start = {name: p.clone() for name, p in learner.weights.items()}
        fit_task(learner, blobs(classes), epochs=2, batch_size=16)
        for name, p in learner.weights.items():
            new = learner.path[name] / ((p - start[name]) ** 2 + 0.3)
            sums[name] = (sums.get(name, 0.0) + new).clamp_min(0)
            torch.testing.assert_close(learner.penalty.importance[name], sums[name], rtol=1e-4, atol=1e-7)
    assert float(sums["head.weight"].max()) > 0
    learner.begin_task(blobs([6]))
    for _, path in learner.path.items():
        path.fill_(-0.01)  # as if every way had led up
    learner.eval()
    learner.finish(blobs([6]))
    for name, total in sums.items():
        torch.testing.assert_close(
            learner.penalty.importance[name], (total - 0.01 / 0.3).clamp_min(0), rtol=1e-4, atol=1e-7
        )
