"""Novelty of predicted vectors, against the formula written out, and what must not change it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.math import leave_one_out as module
from cldnet.math.leave_one_out import LeaveOneOut, LowRankLeaveOneOut, leave_one_out, leave_one_out_dense
from cldnet.math.novelty import novelty
from cldnet.math.ridge import ridge

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 1)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def estimated(classes, seed, factor=1.0):
    """Any means near the one-hot vectors, covariance and weights."""
    random = torch.Generator().manual_seed(seed)
    means = torch.eye(classes).double() + 0.2 * numbers(classes, classes, seed=seed)
    root = 0.3 * numbers(classes, classes, seed=seed + 1)
    weights = 1.0 + torch.randint(0, 50, (classes,), generator=random).double()
    return LeaveOneOut(means, root @ root.mT, weights, factor)


def slow(estimate, vectors):
    """The formula of the module with explicit inverses, sample by sample and class by class."""
    means, within, counts, factor = (part.numpy() if isinstance(part, torch.Tensor) else part for part in estimate)
    c, shares = len(counts), counts / counts.sum()
    means = np.eye(c) + min(1, 20 / factor) * (means - np.eye(c))
    means = np.stack([(n * mean + target) / (n + 1) for n, mean, target in zip(counts, means, np.eye(c), strict=True)])
    round_ = np.trace(within) / c * np.eye(c)
    within = (counts.sum() * within + 10 * c * round_) / (counts.sum() + 10 * c)
    within = 0.7 * within + 0.3 * round_
    center = sum(share * mean for share, mean in zip(shares, means, strict=True))
    total = within + sum(p * np.outer(mean - center, mean - center) for p, mean in zip(shares, means, strict=True))
    found = []
    for s in vectors.numpy():
        distances = [(s - mean) @ np.linalg.inv(within) @ (s - mean) for mean in means]
        found.append(min(distances) - (1 - (shares**2).sum()) * (s - center) @ np.linalg.inv(total) @ (s - center))
    return torch.tensor(found)


@relaxed
@given(st.integers(1, 6), seeds, st.sampled_from([1.0, 3.0, 50.0]))
def test_it_is_the_relative_distance_to_the_nearest_class(classes, seed, factor):
    estimate, vectors = estimated(classes, seed, factor), numbers(7, classes, seed=seed + 2)
    found = novelty(estimate, torch.eye(classes).double()).scores(vectors)
    torch.testing.assert_close(found, slow(estimate, vectors), rtol=1e-7, atol=1e-7)


def test_of_a_single_class_it_is_the_mahalanobis_distance():
    estimate = LeaveOneOut(*(torch.tensor(part).double() for part in ([[0.9]], [[0.04]], [1e9])))
    found = novelty(estimate, torch.eye(1).double()).scores(torch.tensor([[0.9], [1.1], [0.3]]).double())
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 9.0]).double(), rtol=1e-6, atol=1e-6)


@relaxed
@given(st.integers(2, 6), seeds)
def test_the_order_of_classes_does_not_matter(classes, seed):
    estimate, vectors = estimated(classes, seed), numbers(9, classes, seed=seed + 2)
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    means, covariance, weights, factor = estimate
    turned = LeaveOneOut(means[order][:, order], covariance[order][:, order], weights[order], factor)
    expected = novelty(estimate, torch.eye(classes).double()).scores(vectors)
    found = novelty(turned, torch.eye(classes).double()).scores(vectors[:, order])
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@relaxed
@given(st.integers(1, 6), seeds)
def test_far_away_it_grows_without_end(classes, seed):
    rule = novelty(estimated(classes, seed), torch.eye(classes).double())
    direction = torch.nn.functional.normalize(numbers(1, classes, seed=seed + 2))
    along = rule.scores(torch.tensor([[1e2], [1e3], [1e4]]).double() * direction)
    assert bool((along.diff() > 0).all())


def sums(classes, features, rows=300):
    y = torch.arange(rows) % classes
    H = 2 * numbers(classes, features)[y] + numbers(rows, features, seed=1)
    Y = torch.eye(classes).double()[y]
    return H, (H.T @ H, H.T @ Y, Y.sum(0), float(rows))


@pytest.mark.parametrize("known", [True, False])
def test_the_low_rank_form_gives_the_same(monkeypatch, known):
    H, (gram, *rest) = sums(40, 10)
    choice = ridge(gram, *rest, 1.0)._replace(known=known)
    monkeypatch.setattr(module, "DENSE_CLASSES", 0)
    low_rank = leave_one_out(choice, *rest)
    assert isinstance(low_rank, LowRankLeaveOneOut)
    vectors = H @ choice.solution
    expected = novelty(leave_one_out_dense(choice, *rest), choice.solution).scores(vectors)
    torch.testing.assert_close(novelty(low_rank, choice.solution).scores(vectors), expected, rtol=1e-6, atol=1e-6)


def test_what_no_predicted_vector_can_be_does_not_count():
    """Two classes with the same samples get the same scores: the difference of the two is always 0, whatever the means say."""
    H, (gram, moments, weights, rows) = sums(3, 8)
    moments = torch.cat([moments, moments[:, :1]], 1) * torch.tensor([0.5, 1, 1, 0.5])
    weights = torch.cat([weights, weights[:1]]) * torch.tensor([0.5, 1, 1, 0.5])
    choice = ridge(gram, moments, weights, rows, 1.0)
    rule = novelty(leave_one_out_dense(choice, moments, weights, rows), choice.solution)
    assert rule.axes is not None
    assert rule.axes.shape == (4, 3)
    vectors = H[:5] @ choice.solution
    apart = vectors + torch.tensor([3.0, 0, 0, -3.0])
    torch.testing.assert_close(rule.scores(apart), rule.scores(vectors), rtol=1e-6, atol=1e-6)


def test_a_solution_of_zeros_leaves_nothing_to_rate():
    rule = novelty(estimated(3, 0), torch.zeros(4, 3).double())
    assert rule.scores(numbers(5, 3)).tolist() == [0.0] * 5
