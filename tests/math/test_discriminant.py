"""The discriminant, against scikit-learn's, and where it is to help: rare classes, hard ones, few rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from cldnet.math import discriminant as module
from cldnet.math.discriminant import linear_discriminant, separation
from cldnet.math.leave_one_out import LeaveOneOut, leave_one_out_dense
from cldnet.math.ridge import ridge

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 1)


def clouds(rows, classes, seed):
    """Vectors around means of their own, with one covariance, and what is known of them when nothing is drawn elsewhere."""
    random = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), random.integers(0, classes, rows - classes)])
    s = random.normal(size=(classes, classes))[y] + random.normal(size=(rows, classes)) @ random.normal(
        size=(classes, classes)
    )
    means = np.stack([s[y == c].mean(0) for c in range(classes)])
    within = (s - means[y]).T @ (s - means[y]) / rows
    return s, y, LeaveOneOut(*(torch.from_numpy(part) for part in (means, within, np.bincount(y).astype(float))))


@pytest.fixture
def as_it_is(monkeypatch):
    """Take means and covariance at face value."""
    monkeypatch.setattr(module, "COVARIANCE_PRIOR", 0.0)
    monkeypatch.setattr(module, "MEAN_PRIOR", 0.0)


@pytest.mark.usefixtures("as_it_is")
@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("seed", range(3))
def test_probabilities_are_those_of_scikit_learn(classes, seed):
    s, y, estimate = clouds(200, classes, seed)
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(s, y).predict_proba(s)
    weights, offset = linear_discriminant(estimate)
    found = torch.softmax(torch.from_numpy(s) @ weights + offset, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("as_it_is")
@relaxed
@given(st.integers(2, 6), seeds)
def test_separation_is_the_trace_of_between_over_within(classes, seed):
    _, y, estimate = clouds(60, classes, seed)
    means, within = (part.numpy() for part in estimate[:2])
    between = np.cov(means[y], rowvar=False, bias=True)
    assert separation(estimate) == pytest.approx(np.trace(np.linalg.solve(within, between)), rel=1e-6)


@relaxed
@given(st.integers(2, 6), seeds)
def test_separation_does_not_depend_on_the_scale_of_scores(classes, seed):
    means, within, counts, _ = clouds(60, classes, seed)[2]
    other = LeaveOneOut(3 * means, 9 * within, counts)
    assert separation(other) == pytest.approx(separation(LeaveOneOut(means, within, counts)), rel=1e-9)


@relaxed
@given(st.integers(2, 6), seeds)
def test_the_order_of_classes_does_not_matter(classes, seed):
    s, _, (means, within, counts, _) = clouds(60, classes, seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(classes))
    weights, offset = linear_discriminant(LeaveOneOut(means, within, counts))
    again, moved = linear_discriminant(LeaveOneOut(means[order][:, order], within[order][:, order], counts[order]))
    vectors = torch.from_numpy(s)
    torch.testing.assert_close(vectors[:, order] @ again + moved, (vectors @ weights + offset)[:, order])


def test_one_class_and_none_at_all_are_fine():
    for classes in (0, 1):
        estimate = LeaveOneOut(
            torch.full((classes, classes), 0.9).double(), torch.eye(classes).double(), torch.ones(classes).double()
        )
        weights, offset = linear_discriminant(estimate)
        assert not weights.any()
        assert not offset.any()


def digits(of_odd, of_even, seed):
    """Answers of ridge regression and of the discriminant to digits, with so many rows of the odd and the even ones."""
    X, y = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    order = random.permutation(len(y))
    H = np.maximum(np.c_[X / 6 - 0.8, np.ones(len(y))] @ random.normal(size=(65, 100)) / 8, 0)
    H, y = torch.from_numpy(np.c_[H, np.ones(len(y))][order]), torch.from_numpy(y[order])
    learned = torch.cat([(y == c).nonzero()[: of_odd if c % 2 else of_even, 0] for c in range(10)])
    unseen = torch.ones(len(y), dtype=torch.bool)
    unseen[learned] = False
    Y = torch.eye(10, dtype=torch.float64)[y[learned]]
    sums = H[learned].T @ Y, Y.sum(0), float(len(learned))
    choice = ridge(H[learned].T @ H[learned], *sums, None)
    weights, offset = linear_discriminant(leave_one_out_dense(choice, *sums))
    vectors = H[unseen] @ choice.solution
    answers = vectors.argmax(1), (vectors @ weights + offset).argmax(1)
    return [float((answer == y[unseen]).double().mean()) for answer in answers]


@pytest.mark.parametrize(
    ("of_odd", "of_even", "gain"), [(10, 100, 0.08), (5, 50, 0.05), (80, 80, 0.0), (20, 20, 0.0), (1, 1, -0.05)]
)
def test_of_real_digits_more_are_right_when_some_are_rare_and_none_are_lost_otherwise(of_odd, of_even, gain):
    nearest, found = np.mean([digits(of_odd, of_even, seed) for seed in range(5)], 0)
    assert found > nearest + gain


def test_errors_too_small_to_tell_from_rounding_leave_the_nearest_class_vector():
    inverted = LeaveOneOut(
        1.0 - torch.eye(3).double(), torch.eye(3).double(), torch.full((3,), 9.0).double(), factor=1e3
    )
    weights, offset = linear_discriminant(inverted)
    vectors = torch.rand(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal((vectors @ weights + offset).argmax(1), vectors.argmax(1))


def test_the_mean_of_a_class_of_few_rows_is_drawn_to_its_vector_by_one_row():
    """Against the formula written out: ``(n μ + e) / (n + 1)`` with one more row at the class's own vector ``e``."""
    random = np.random.default_rng(0)
    means, counts = random.normal(size=(3, 3)), np.array([1.0, 4.0, 50.0])
    covariance = np.diag([0.2, 0.3, 0.4])
    estimate = LeaveOneOut(*(torch.from_numpy(part) for part in (means, covariance, counts)))
    drawn = np.stack([(n * mean + own) / (n + 1) for n, mean, own in zip(counts, means, np.eye(3), strict=True)])
    rows, even = counts.sum(), 10.0 * 3
    within = np.linalg.inv((rows * covariance + even * np.trace(covariance) / 3 * np.eye(3)) / (rows + even))
    middle = counts / rows @ drawn
    s = random.normal(size=(5, 3))
    expected = np.stack(
        [
            (s - (mean + middle) / 2) @ within @ (mean - middle) + np.log(n / rows)
            for mean, n in zip(drawn, counts, strict=True)
        ],
        1,
    )
    np.testing.assert_allclose(
        linear_discriminant(estimate).scores(torch.from_numpy(s)), expected, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize(("factor", "kept"), [(0.5, 1.0), (20.0, 1.0), (40.0, 0.5), (1e3, 0.02)])
def test_means_that_were_magnified_too_much_are_drawn_back(factor, kept):
    _, _, (means, within, counts, _) = clouds(60, 3, 0)
    own = torch.eye(3, dtype=torch.float64)
    found = linear_discriminant(LeaveOneOut(means, within, counts, factor))
    expected = linear_discriminant(LeaveOneOut(own + kept * (means - own), within, counts))
    torch.testing.assert_close(found.weights, expected.weights)
    torch.testing.assert_close(found.offset, expected.offset)
