"""What sums tell of rows left out, against rows that were left out one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.math.leave_one_out import (
    DENSE_CLASSES,
    LeaveOneOut,
    LowRankLeaveOneOut,
    RidgeSolution,
    leave_one_out,
    leave_one_out_dense,
)
from cldnet.math.ridge import ridge, solve

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 1)
one_hot = torch.eye(20, dtype=torch.float64)


def draw(rows, features, classes, seed):
    """Rows around class centres that all seeds share, classes in turn."""
    centres = np.random.default_rng(0).normal(size=(20, features))[:classes]
    y = np.arange(rows) % classes
    H = centres[y] + np.random.default_rng(seed).normal(size=(rows, features))
    return torch.from_numpy(H), torch.from_numpy(y)


def sums_of(H, y, classes):
    Y = one_hot[y][:, :classes]
    return H.T @ H, H.T @ Y, Y.sum(0), float(len(y))


def means_and_covariance(scores, y):
    means = torch.stack([scores[y == c].mean(0) for c in range(scores.shape[1])])
    return means, (scores - means[y]).T @ (scores - means[y]) / len(y)


@relaxed
@given(st.integers(2, 4), st.floats(0.1, 30.0), seeds)
def test_leave_one_out_scores_are_those_of_leaving_out_with_the_mean_leverage(classes, alpha, seed):
    H, y = draw(40, 5, classes, seed)
    gram, *sums = sums_of(H, y, classes)
    hat = H @ torch.linalg.inv(gram + alpha * torch.eye(5, dtype=torch.float64)) @ H.T
    Y = one_hot[y][:, :classes]
    expected = means_and_covariance(Y - (Y - hat @ Y) / (1 - hat.trace() / 40), y)
    means, covariance, *_ = leave_one_out_dense(ridge(gram, *sums, alpha), *sums)
    torch.testing.assert_close(means, expected[0], rtol=1e-8, atol=1e-8)
    one_more = torch.eye(classes, dtype=torch.float64) / (classes * 41)
    torch.testing.assert_close(covariance, expected[1] + one_more, rtol=1e-8, atol=1e-8)


def test_leave_one_out_scores_come_near_those_of_truly_leaving_rows_out():
    H, y = draw(120, 10, 3, seed=1)
    scores = []
    for i in range(120):
        others = np.arange(120) != i
        gram, moments, *_ = sums_of(H[others], y[others], 3)
        scores.append(H[i] @ solve(gram, moments, 1.0))
    expected = means_and_covariance(torch.stack(scores), y)
    gram, *sums = sums_of(H, y, 3)
    means, covariance, *_ = leave_one_out_dense(ridge(gram, *sums, 1.0), *sums)
    torch.testing.assert_close(means, expected[0], rtol=0, atol=0.01)
    torch.testing.assert_close(covariance, expected[1], rtol=0, atol=0.01)


def test_without_freedom_all_is_finite():
    choice = RidgeSolution(1.0, torch.ones(2, 2, dtype=torch.float64), residual=0.0, freedom=0.0)
    found = leave_one_out_dense(choice, torch.ones(2, 2, dtype=torch.float64), torch.tensor([1.0, 2.0]), 3.0)
    assert all(part.isfinite().all() for part in found[:3])


def test_no_rows_at_all_have_no_classes_to_tell_of():
    choice = RidgeSolution(1.0, torch.zeros(2, 0, dtype=torch.float64), residual=0.0, freedom=0.0)
    found = leave_one_out_dense(choice, torch.zeros(2, 0, dtype=torch.float64), torch.zeros(0), 0.0)
    assert [part.numel() for part in found[:3]] == [0, 0, 0]


def test_where_g_is_not_known_scores_are_taken_to_vary_alike():
    gram, *sums = sums_of(*draw(60, 5, 3, 0), 3)
    choice = ridge(gram, *sums, 1.0)
    known, unknown = (leave_one_out_dense(choice._replace(known=known), *sums) for known in (True, False))
    assert torch.equal(known.means, unknown.means)
    variance = known.factor**2 * choice.residual / (60 * 3) + 1 / (3 * 61)
    torch.testing.assert_close(unknown.covariance, variance * torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("freedom", [5.0, 0.04, 1e-9, 0.0])
def test_errors_in_sample_are_magnified_a_thousand_times_at_most(freedom):
    """``k = rows / freedom``: with a thousandth of the rows' freedom left, they say nothing more."""
    choice = RidgeSolution(1.0, 0.5 * torch.eye(2, dtype=torch.float64), residual=1.0, freedom=freedom)
    sums = torch.tensor([[30.0, 6.0], [4.0, 20.0]], dtype=torch.float64), torch.tensor([24.0, 16.0]), 40.0
    k = 8.0 if freedom == 5.0 else 1000.0
    found = leave_one_out_dense(choice, *sums)
    assert found.factor == pytest.approx(k)
    in_sample = (0.5 * sums[0] / sums[1].double()).mT
    torch.testing.assert_close(found.means, torch.eye(2).double() * (1 - k) + k * in_sample)


def test_many_classes_of_few_features_use_the_low_rank_form():
    classes, width = DENSE_CLASSES + 1, 3
    draw = torch.Generator().manual_seed(0)
    moments = torch.randn(width, classes, generator=draw, dtype=torch.float64)
    weights = 1 + torch.rand(classes, generator=draw, dtype=torch.float64)
    choice = RidgeSolution(2.0, 0.1 * moments, residual=30.0, freedom=700.0)
    found = leave_one_out(choice, moments, weights, 800.0)
    assert isinstance(found, LowRankLeaveOneOut)
    assert isinstance(
        leave_one_out(choice._replace(solution=0.1 * moments[:, 1:]), moments[:, 1:], weights[1:], 800.0), LeaveOneOut
    )
    assert found.factor == leave_one_out_dense(choice, moments, weights, 800.0).factor
