"""More classes than features: the low-rank form gives the same numbers as the dense one."""

from __future__ import annotations

import pytest
import torch

from cldnet.math import leave_one_out as module
from cldnet.math.calibration import calibrate
from cldnet.math.discriminant import Discriminant, LowRankDiscriminant, linear_discriminant, separation
from cldnet.math.leave_one_out import LeaveOneOut, LowRankLeaveOneOut, leave_one_out, leave_one_out_dense
from cldnet.math.ridge import ridge


def sums(classes, features, count=6, seed=0):
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat_interleave(torch.randint(1, count, (classes,), generator=random))
    centres = 2 * torch.randn(classes, features, generator=random, dtype=torch.float64)
    H = centres[y] + torch.randn(len(y), features, generator=random, dtype=torch.float64)
    Y = torch.eye(classes, dtype=torch.float64)[y]
    return H, y, (H.T @ H, H.T @ Y, Y.sum(0), float(len(y)))


@pytest.fixture
def low_rank_always(monkeypatch):
    monkeypatch.setattr(module, "DENSE_CLASSES", 0)


@pytest.mark.usefixtures("low_rank_always")
@pytest.mark.parametrize(("classes", "features"), [(9, 8), (30, 8), (40, 3), (5, 1)])
@pytest.mark.parametrize("alpha", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("known", [True, False])
def test_the_low_rank_rule_equals_the_dense_one(classes, features, alpha, known):
    H, _, (gram, *rest) = sums(classes, features)
    choice = ridge(gram, *rest, alpha)._replace(known=known)
    dense, low_rank = leave_one_out_dense(choice, *rest), leave_one_out(choice, *rest)
    assert isinstance(low_rank, LowRankLeaveOneOut)
    torch.testing.assert_close(low_rank.mean_scores(torch.arange(classes)), dense.means, rtol=1e-9, atol=1e-9)
    covariance = low_rank.axes @ low_rank.core @ low_rank.axes.mT
    covariance.diagonal().add_(low_rank.isotropic)
    torch.testing.assert_close(covariance, dense.covariance, rtol=1e-7, atol=1e-9)
    assert separation(low_rank) == pytest.approx(separation(dense), rel=1e-6)
    rules = linear_discriminant(dense), linear_discriminant(low_rank)
    assert [type(rule) for rule in rules] == [Discriminant, LowRankDiscriminant]
    inside = H @ choice.solution
    outside = torch.randn(50, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for vectors in (inside, outside):  # those of rows, and any others
        expected, found = (rule.scores(vectors) for rule in rules)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.usefixtures("low_rank_always")
@pytest.mark.parametrize("known", [True, False])
def test_low_rank_errors_are_magnified_as_dense_ones(known):
    _, _, (gram, *rest) = sums(30, 8)
    choice = ridge(gram, *rest, 1.0)._replace(known=known)
    dense = leave_one_out_dense(choice, *rest).magnify_errors(1.5)
    low_rank = leave_one_out(choice, *rest).magnify_errors(1.5)
    torch.testing.assert_close(low_rank.mean_scores(torch.arange(30)), dense.means, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(low_rank.own_means, dense.own_means, rtol=1e-9, atol=1e-9)
    covariance = low_rank.axes @ low_rank.core @ low_rank.axes.mT
    covariance.diagonal().add_(low_rank.isotropic)
    torch.testing.assert_close(covariance, dense.covariance, rtol=1e-7, atol=1e-9)
    assert float(low_rank.variance) == pytest.approx(float(dense.variance), rel=1e-7)


@pytest.mark.usefixtures("low_rank_always")
def test_low_rank_samples_have_the_dense_covariance():
    _, _, (gram, *rest) = sums(20, 6)
    low_rank = leave_one_out(ridge(gram, *rest, 1.0), *rest)
    expected = leave_one_out_dense(ridge(gram, *rest, 1.0), *rest).covariance
    drawn = low_rank.sample(200_000, torch.Generator().manual_seed(0))
    assert float((drawn.T @ drawn / len(drawn) - expected).abs().max()) < 0.02 * float(expected.abs().max())


def test_the_low_rank_calibration_is_close_to_the_dense_one(monkeypatch):
    _, _, (gram, *rest) = sums(40, 10, count=30)
    choice = ridge(gram, *rest, 1.0)
    dense = calibrate(choice, *rest)
    monkeypatch.setattr(module, "DENSE_CLASSES", 0)
    low_rank = calibrate(choice, *rest)
    assert low_rank.temperature == pytest.approx(dense.temperature, rel=0.05)
    for share in (0.05, 0.5, 0.95):
        assert float(low_rank.drawn.quantile(share)) == pytest.approx(float(dense.drawn.quantile(share)), rel=0.05)


def test_few_classes_or_many_features_use_the_dense_form():
    for classes, features in ((40, 3), (8, 9)):
        _, _, (gram, *rest) = sums(classes, features)
        assert isinstance(leave_one_out(ridge(gram, *rest, 1.0), *rest), LeaveOneOut)


def test_sampling_takes_a_core_that_rounding_made_slightly_negative():
    axes = torch.eye(5, 2, dtype=torch.float64)
    core, ones = torch.diag(torch.tensor([0.1, -1e-18], dtype=torch.float64)), torch.ones(5, dtype=torch.float64)
    low_rank = LowRankLeaveOneOut(axes, ones, torch.zeros(5, 2, dtype=torch.float64), core, 0.01, ones, 1.0)
    assert low_rank.sample(7, torch.Generator().manual_seed(0)).isfinite().all()
