"""Ridge regression from sums, against scikit-learn and against the hat matrix written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from cldnet.math.ridge import gcv_alpha, relative_grid, solve

relaxed = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**31 - 1)


def problem(rows, features, classes, seed):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, rows)
    H = random.normal(size=(classes, features))[y] + random.normal(size=(rows, features))
    return torch.from_numpy(H), torch.from_numpy(np.eye(classes)[y])


@relaxed
@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 4), st.floats(1e-2, 1e2), seeds)
def test_the_solution_is_that_of_scikit_learn(rows, features, classes, alpha, seed):
    H, Y = problem(rows, features, classes, seed)
    expected = Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(H.numpy(), Y.numpy()).coef_
    solution = solve(H.T @ H, H.T @ Y, alpha)
    np.testing.assert_allclose(solution.T, expected.reshape(classes, features), rtol=1e-8, atol=1e-9)


def test_with_a_vanishing_penalty_it_is_least_squares():
    H, Y = problem(60, 5, 3, seed=0)
    expected, *_ = np.linalg.lstsq(H.numpy(), Y.numpy(), rcond=None)
    np.testing.assert_allclose(solve(H.T @ H, H.T @ Y, 1e-10), expected, rtol=1e-7, atol=1e-9)


def test_solving_changes_no_argument():
    H, Y = problem(10, 3, 2, seed=0)
    G, S = H.T @ H, H.T @ Y
    kept = G.clone(), S.clone()
    solve(G, S, 1.0)
    gcv_alpha(G, S, Y.sum(0), 10)
    assert torch.equal(G, kept[0])
    assert torch.equal(S, kept[1])


def test_a_singular_problem_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"alpha=1e-30 is too small .* Use a larger alpha, or alpha='gcv'\."):
        solve(torch.ones(3, 3), torch.ones(3, 1), 1e-30)


def test_the_grid_is_even_in_logarithm_around_the_mean_diagonal():
    grid = relative_grid(torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64)), low=1e-2, high=1e2, count=5)
    np.testing.assert_allclose(grid, [2e-2, 2e-1, 2, 20, 200], rtol=1e-12)


def gcv_by_the_hat_matrix(H, Y, alpha):
    n = len(H)
    hat = H @ np.linalg.inv(H.T @ H + alpha * np.eye(H.shape[1])) @ H.T
    residual = Y - hat @ Y
    return n * (residual**2).sum() / np.trace(np.eye(n) - hat) ** 2


@relaxed
@given(st.integers(15, 60), st.integers(1, 12), st.integers(2, 4), seeds)
def test_the_chosen_alpha_has_the_smallest_gcv_of_the_grid(rows, features, classes, seed):
    H, Y = problem(rows, features, classes, seed)
    grid = relative_grid(H.T @ H)
    scores = [gcv_by_the_hat_matrix(H.numpy(), Y.numpy(), float(a)) for a in grid]
    chosen = gcv_alpha(H.T @ H, H.T @ Y, Y.sum(0), rows)
    assert chosen in grid.tolist()
    assert gcv_by_the_hat_matrix(H.numpy(), Y.numpy(), chosen) <= min(scores) * (1 + 1e-9)


def test_gcv_shrinks_more_when_the_labels_are_noise():
    H, Y = problem(100, 10, 2, seed=0)
    noise = Y[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    G = H.T @ H
    assert gcv_alpha(G, H.T @ noise, noise.sum(0), 100) > 2 * gcv_alpha(G, H.T @ Y, Y.sum(0), 100)


@relaxed
@given(st.integers(1, 10), seeds)
def test_with_fewer_rows_than_features_alpha_stays_above_a_thousandth_of_the_diagonal(rows, seed):
    H, Y = problem(rows, 10, 2, seed)
    G = H.T @ H
    assert gcv_alpha(G, H.T @ Y, Y.sum(0), rows) >= 0.999e-3 * float(G.diagonal().mean())


def test_weights_of_rows_count_as_repetitions_for_gcv():
    H, Y = problem(40, 6, 2, seed=1)
    weight = torch.arange(40, dtype=torch.float64) % 3
    weighted = gcv_alpha(H.T @ (weight[:, None] * H), H.T @ (weight[:, None] * Y), weight @ Y, float(weight.sum()))
    again = weight.long()
    H, Y = H.repeat_interleave(again, 0), Y.repeat_interleave(again, 0)
    assert weighted == pytest.approx(gcv_alpha(H.T @ H, H.T @ Y, Y.sum(0), len(H)), rel=1e-9)
