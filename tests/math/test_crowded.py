"""More classes than features: the same numbers as from matrices that are as large as there are classes."""

from __future__ import annotations

import pytest
import torch

from cldnet.math import left_out as module
from cldnet.math.calibration import calibrate
from cldnet.math.crowded import Crowded, CrowdedDiscriminant
from cldnet.math.discriminant import Discriminant, rule_for, separation
from cldnet.math.left_out import LeftOut, left_out, left_out_scores
from cldnet.math.ridge import ridge


def sums(classes, features, count=6, seed=0):
    random = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat_interleave(torch.randint(1, count, (classes,), generator=random))
    centres = 2 * torch.randn(classes, features, generator=random, dtype=torch.float64)
    H = centres[y] + torch.randn(len(y), features, generator=random, dtype=torch.float64)
    Y = torch.eye(classes, dtype=torch.float64)[y]
    return H, y, (H.T @ H, H.T @ Y, Y.sum(0), float(len(y)))


@pytest.fixture
def crowds_from_the_start(monkeypatch):
    monkeypatch.setattr(module, "CROWD", 0)


@pytest.mark.usefixtures("crowds_from_the_start")
@pytest.mark.parametrize(("classes", "features"), [(9, 8), (30, 8), (40, 3), (5, 1)])
@pytest.mark.parametrize("alpha", [1e-6, 1.0, 100.0])
@pytest.mark.parametrize("known", [True, False])
def test_a_crowd_has_the_rule_that_the_large_matrices_give(classes, features, alpha, known):
    H, _, (gram, *rest) = sums(classes, features)
    choice = ridge(gram, *rest, alpha)._replace(known=known)
    dense, crowded = left_out_scores(choice, *rest), left_out(choice, *rest)
    assert isinstance(crowded, Crowded)
    torch.testing.assert_close(crowded.mean_scores(torch.arange(classes)), dense.means, rtol=1e-9, atol=1e-9)
    covariance = crowded.axes @ crowded.core @ crowded.axes.mT
    covariance.diagonal().add_(crowded.even)
    torch.testing.assert_close(covariance, dense.covariance, rtol=1e-7, atol=1e-9)
    assert separation(crowded) == pytest.approx(separation(dense), rel=1e-6)
    rules = rule_for(dense), rule_for(crowded)
    assert [type(rule) for rule in rules] == [Discriminant, CrowdedDiscriminant]
    inside = H @ choice.solution
    outside = torch.randn(50, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for vectors in (inside, outside):  # those of rows, and any others
        expected, found = (rule.scores(vectors) for rule in rules)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.usefixtures("crowds_from_the_start")
def test_vectors_drawn_for_a_crowd_vary_as_they_should():
    _, _, (gram, *rest) = sums(20, 6)
    crowded = left_out(ridge(gram, *rest, 1.0), *rest)
    expected = left_out_scores(ridge(gram, *rest, 1.0), *rest).covariance
    drawn = crowded.deviations(200_000, torch.Generator().manual_seed(0))
    assert float((drawn.T @ drawn / len(drawn) - expected).abs().max()) < 0.02 * float(expected.abs().max())


def test_a_crowd_is_calibrated_as_few_classes_are(monkeypatch):
    _, _, (gram, *rest) = sums(40, 10, count=30)
    choice = ridge(gram, *rest, 1.0)
    dense = calibrate(choice, *rest)
    monkeypatch.setattr(module, "CROWD", 0)
    crowded = calibrate(choice, *rest)
    assert crowded.temperature == pytest.approx(dense.temperature, rel=0.05)
    for share in (0.05, 0.5, 0.95):
        assert float(crowded.distances.quantile(share)) == pytest.approx(
            float(dense.distances.quantile(share)), rel=0.05
        )


def test_few_classes_and_many_features_stay_with_the_large_matrices():
    for classes, features in ((40, 3), (8, 9)):
        _, _, (gram, *rest) = sums(classes, features)
        assert isinstance(left_out(ridge(gram, *rest, 1.0), *rest), LeftOut)


def test_a_core_that_rounding_made_slightly_negative_is_drawn_from():
    axes = torch.eye(5, 2, dtype=torch.float64)
    core, ones = torch.diag(torch.tensor([0.1, -1e-18], dtype=torch.float64)), torch.ones(5, dtype=torch.float64)
    crowd = Crowded(axes, ones, torch.zeros(5, 2, dtype=torch.float64), core, 0.01, ones, 1.0)
    assert crowd.deviations(7, torch.Generator().manual_seed(0)).isfinite().all()
