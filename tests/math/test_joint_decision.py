"""The discriminant and the nearest class vector together: a product of probabilities, whatever the classes' order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from cldnet.math.calibration import TAIL, _draw, joint_decision
from cldnet.math.discriminant import linear_discriminant
from cldnet.math.leave_one_out import LeaveOneOut, RidgeSolution, leave_one_out


def estimated(classes: int = 5, seed: int = 0) -> LeaveOneOut:
    random = torch.Generator().manual_seed(seed)
    means = 0.7 * torch.eye(classes).double() + 0.05 * torch.randn(classes, classes, generator=random).double()
    root = 0.15 * torch.randn(classes, classes, generator=random).double()
    return LeaveOneOut(means, root @ root.mT, 20.0 + 10 * torch.arange(classes).double())


def best_temperature(scores: Tensor, targets: Tensor, smoothing: Tensor) -> float:
    """By trying many: the least cross-entropy of labels of which a part is spread evenly over the other classes."""
    count = scores.shape[1]
    spread = smoothing[targets][:, None].expand(-1, count) / (count - 1)
    labels = spread.scatter(1, targets[:, None], 1 - smoothing[targets][:, None])
    grid = [math.exp(-7 + 14 * step / 2000) for step in range(2001)]
    return min(grid, key=lambda temperature: float(cross_entropy(scores / temperature, labels)))


def test_it_is_the_geometric_mean_of_both_probabilities_each_at_its_own_temperature() -> None:
    estimate = estimated()
    order = estimate.means.diagonal().argsort()
    sorted_one = LeaveOneOut(
        estimate.means[order][:, order], estimate.covariance[order][:, order], estimate.weights[order]
    )
    vectors, targets = _draw(sorted_one, TAIL)
    rule, smoothing = linear_discriminant(sorted_one), 1 / (sorted_one.weights + 2)
    near, along = (best_temperature(scores, targets, smoothing) for scores in (vectors, rule.scores(vectors)))
    expected = (log_softmax(vectors / near, 1) + log_softmax(rule.scores(vectors) / along, 1)) / 2
    made = joint_decision(sorted_one).scores(vectors)
    assert torch.allclose(log_softmax(made, 1), log_softmax(expected, 1), atol=0.02 * float(expected.abs().max()))
    assert not torch.allclose(log_softmax(made, 1), log_softmax(vectors / near, 1), atol=0.02)


def test_the_order_of_the_classes_does_not_matter() -> None:
    estimate, order = estimated(6), torch.tensor([3, 0, 5, 1, 4, 2])
    other = LeaveOneOut(estimate.means[order][:, order], estimate.covariance[order][:, order], estimate.weights[order])
    vectors = torch.randn(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one, two = joint_decision(estimate).scores(vectors), joint_decision(other).scores(vectors[:, order])
    assert torch.allclose(one[:, order], two, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("classes", [1, 2])
def test_few_classes_give_finite_scores(classes: int) -> None:
    scores = joint_decision(estimated(classes)).scores(torch.ones(3, classes, dtype=torch.float64))
    assert bool(torch.isfinite(scores).all())


def test_with_more_classes_than_features_the_discriminant_alone_decides() -> None:
    c, m = 600, 4
    moments = torch.rand(m, c, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ridge = RidgeSolution(1.0, moments / 10, 100.0, 500.0, True)
    estimate = leave_one_out(ridge, moments, torch.ones(c, dtype=torch.float64), 600.0)
    vectors = torch.rand(5, c, dtype=torch.float64)
    assert torch.equal(joint_decision(estimate).scores(vectors), linear_discriminant(estimate).scores(vectors))
