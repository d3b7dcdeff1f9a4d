"""Calibration from sums, against scores of rows that were left out one by one, and against rows never seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from cldnet.math.calibration import Calibration, calibrate, distance, known_probability, left_out_scores
from cldnet.math.ridge import Choice, ridge, solve

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 1)
one_hot = torch.eye(20, dtype=torch.float64)


def draw(rows, features, classes, seed, noise=1.0):
    """Rows around class centres that all seeds share, classes in turn."""
    centres = np.random.default_rng(0).normal(size=(20, features))[:classes]
    y = np.arange(rows) % classes
    H = centres[y] + noise * np.random.default_rng(seed).normal(size=(rows, features))
    return torch.from_numpy(H), torch.from_numpy(y)


def sums_of(H, y, classes, weight=None):
    weight = torch.ones(len(y), dtype=torch.float64) if weight is None else weight
    Y = one_hot[y][:, :classes]
    weighted = H * weight[:, None]
    return weighted.T @ H, weighted.T @ Y, weight @ Y, float(weight.sum())


def learn(H, y, classes, alpha=None, weight=None):
    gram, *sums = sums_of(H, y, classes, weight)
    choice = ridge(gram, *sums, alpha)
    return choice, calibrate(choice, *sums), sums


def digits(classes, features, seed):
    """Random ReLU features of real digits: half of the rows to learn from, half that are never seen."""
    X, y = load_digits(return_X_y=True)
    random = np.random.default_rng(seed)
    weights, order = random.normal(size=(65, features)) / 8, random.permutation(len(y))
    H = np.maximum(np.c_[X / 6 - 0.8, np.ones(len(y))] @ weights, 0)
    H = torch.from_numpy(np.c_[H, np.ones(len(y))][order])
    y = torch.from_numpy(y[order])
    H, y = H[y < classes], y[y < classes]
    half = len(y) // 2
    return H[:half], y[:half], H[half:], y[half:]


def cross_entropy(scores, y, temperature):
    return float(torch.nn.functional.cross_entropy(scores / temperature, y))


def best_cross_entropy(scores, y):
    return min(cross_entropy(scores, y, t) for t in np.geomspace(1e-2, 2, 60))


def means_and_covariance(scores, y):
    means = torch.stack([scores[y == c].mean(0) for c in range(scores.shape[1])])
    return means, (scores - means[y]).T @ (scores - means[y]) / len(y)


@relaxed
@given(st.integers(2, 4), st.floats(0.1, 30.0), seeds)
def test_left_out_scores_are_those_of_leaving_out_with_the_mean_leverage(classes, alpha, seed):
    H, y = draw(40, 5, classes, seed)
    gram, *sums = sums_of(H, y, classes)
    hat = H @ torch.linalg.inv(gram + alpha * torch.eye(5, dtype=torch.float64)) @ H.T
    Y = one_hot[y][:, :classes]
    expected = means_and_covariance(Y - (Y - hat @ Y) / (1 - hat.trace() / 40), y)
    means, covariance = left_out_scores(ridge(gram, *sums, alpha), *sums)
    torch.testing.assert_close(means, expected[0], rtol=1e-8, atol=1e-8)
    one_more = torch.eye(classes, dtype=torch.float64) / (classes * 41)
    torch.testing.assert_close(covariance, expected[1] + one_more, rtol=1e-8, atol=1e-8)


def test_left_out_scores_come_near_those_of_truly_leaving_rows_out():
    H, y = draw(120, 10, 3, seed=1)
    scores = []
    for i in range(120):
        others = np.arange(120) != i
        gram, moments, *_ = sums_of(H[others], y[others], 3)
        scores.append(H[i] @ solve(gram, moments, 1.0))
    expected = means_and_covariance(torch.stack(scores), y)
    gram, *sums = sums_of(H, y, 3)
    means, covariance = left_out_scores(ridge(gram, *sums, 1.0), *sums)
    torch.testing.assert_close(means, expected[0], rtol=0, atol=0.01)
    torch.testing.assert_close(covariance, expected[1], rtol=0, atol=0.01)


@pytest.mark.parametrize(("classes", "features"), [(5, 100), (10, 100), (10, 300), (10, 500)])
def test_for_real_digits_the_temperature_comes_near_the_best_one(classes, features):
    H, y, unseen, truth = digits(classes, features, seed=0)
    choice, calibration, _ = learn(H, y, classes)
    scores = unseen @ choice.solution
    achieved = cross_entropy(scores, truth, calibration.temperature)
    assert achieved < best_cross_entropy(scores, truth) + 0.03
    same_in_all_directions = choice.residual * len(y) / choice.freedom**2 / classes
    assert achieved < cross_entropy(scores, truth, same_in_all_directions)


@pytest.mark.parametrize(("classes", "features"), [(5, 100), (10, 100), (10, 300)])
def test_of_real_digits_about_as_many_are_turned_away_as_were_asked_for(classes, features):
    known = []
    for seed in range(2):
        H, y, unseen, _ = digits(classes, features, seed)
        choice, calibration, _ = learn(H, y, classes)
        known.append(known_probability(unseen @ choice.solution, calibration))
    for reject in (0.05, 0.1, 0.2):
        assert reject / 1.8 < float((torch.cat(known) < reject).double().mean()) < reject * 1.8


@pytest.mark.parametrize("noise", [0.7, 3.0])
@pytest.mark.parametrize("classes", [2, 5, 20])
def test_for_clouds_of_equal_width_it_errs_on_the_cautious_side(classes, noise):
    choice, calibration, _ = learn(*draw(1500, 30, classes, 1, noise), classes)
    H, y = draw(3000, 30, classes, 2, noise)
    scores = H @ choice.solution
    assert cross_entropy(scores, y, calibration.temperature) < best_cross_entropy(scores, y) + 0.15
    assert (
        cross_entropy(scores, y, calibration.temperature / 1.1)
        < cross_entropy(scores, y, calibration.temperature) + 0.01
    )
    known = known_probability(scores, calibration)
    for reject in (0.05, 0.1, 0.2):
        assert float((known < reject).double().mean()) < reject * 1.3


def test_rows_of_a_class_never_seen_get_lower_probabilities():
    H, y = draw(2000, 30, 8, 1, noise=1.0)
    choice, calibration, _ = learn(H[y < 6], y[y < 6], 6)
    H, y = draw(2000, 30, 8, 2, noise=1.0)
    known = known_probability(H @ choice.solution, calibration)
    assert float((known[y < 6] < 0.05).double().mean()) < 0.1
    assert float((known[y >= 6] < 0.05).double().mean()) > 0.8


@relaxed
@given(st.integers(1, 6), st.integers(2, 50), seeds)
def test_distances_are_those_to_the_nearest_class_vector(classes, rows, seed):
    scores = torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = torch.cdist(scores, torch.eye(classes, dtype=torch.float64)).square().min(1).values
    torch.testing.assert_close(distance(scores), expected)


@relaxed
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), seeds)
def test_the_probability_lies_between_0_and_1_and_falls_with_the_distance(distances, seed):
    calibration = Calibration(1.0, torch.tensor(sorted(distances), dtype=torch.float64))
    scores = 10 ** torch.linspace(-9, 4, 200, dtype=torch.float64)[:, None] + 1
    known = known_probability(scores, calibration)
    assert bool(((known >= 0) & (known <= 1)).all())
    assert bool((known.diff() <= 1e-12).all())


def test_the_probability_is_the_share_of_distances_that_are_larger():
    drawn = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values
    scores = 1 + torch.linspace(0, 1, 50, dtype=torch.float64).sqrt()[:, None]
    expected = [float((drawn > d).double().mean()) for d in distance(scores)]
    np.testing.assert_allclose(known_probability(scores, Calibration(1.0, drawn)), expected, atol=2e-3)


def test_beyond_all_distances_drawn_it_still_tells_near_from_far():
    calibration = learn(*draw(300, 5, 3, 0), 3)[1]
    near, far = known_probability(torch.tensor([[20.0, 0.0, 0.0], [40.0, 0.0, 0.0]]), calibration).tolist()
    assert 1e-3 > near > far > 0


def test_scores_keep_their_precision():
    calibration = learn(*draw(100, 5, 3, 0), 3)[1]
    assert known_probability(torch.zeros(2, 3), calibration).dtype == torch.float32
    assert known_probability(torch.zeros(0, 3), calibration).shape == (0,)


def test_the_same_sums_give_the_same_calibration_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second = (learn(*draw(100, 5, 3, 0), 3)[1] for _ in range(2))
    assert first.temperature == second.temperature
    assert torch.equal(first.distances, second.distances)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_weight_counts_as_that_many_rows():
    H, y = draw(60, 5, 3, 0)
    weighted = learn(H, y, 3, alpha=1.0, weight=torch.full((60,), 2.0, dtype=torch.float64))[1]
    repeated = learn(torch.cat([H, H]), torch.cat([y, y]), 3, alpha=1.0)[1]
    assert math.isclose(weighted.temperature, repeated.temperature, rel_tol=1e-6)
    torch.testing.assert_close(weighted.distances, repeated.distances)


def test_a_class_without_rows_changes_nothing():
    H, y = draw(90, 5, 3, 0)
    alone = learn(H, y, 3)[1]
    among_others = learn(H, y, 4)[1]
    assert math.isclose(alone.temperature, among_others.temperature, rel_tol=1e-9)
    torch.testing.assert_close(alone.distances, among_others.distances)


def finite(calibration):
    distances = calibration.distances
    return 0 < calibration.temperature < math.inf and bool((torch.isfinite(distances) & (distances >= 0)).all())


alphas = st.sampled_from([None, 1e-6, 1.0])


@relaxed
@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 4), alphas, st.floats(1e-3, 10), seeds)
def test_few_rows_many_features_and_small_weights_give_finite_figures(rows, features, classes, alpha, weight, seed):
    H, y = draw(rows, features, classes, seed)
    calibration = learn(H, y, classes, alpha, torch.full((rows,), weight, dtype=torch.float64))[1]
    assert finite(calibration)
    assert bool(torch.isfinite(known_probability(torch.randn(5, classes), calibration)).all())


def test_a_perfect_fit_turns_no_rounding_error_away():
    H = one_hot[torch.arange(40) % 4][:, :4]
    choice, calibration, _ = learn(H, torch.arange(40) % 4, 4, alpha=1e-9)
    assert choice.residual < 1e-9
    scores = (H @ choice.solution).float() + 1e-6
    assert float(known_probability(scores, calibration).min()) > 0.95
    assert 0.05 < calibration.temperature < 0.5


@pytest.mark.parametrize("freedom", [0.0, -3.0, 1e-300])
def test_without_freedom_probabilities_say_that_nothing_is_known(freedom):
    choice, _, sums = learn(*draw(100, 5, 3, 0), 3)
    calibration = calibrate(choice._replace(freedom=freedom), *sums)
    assert finite(calibration)
    assert calibration.temperature > 10


def test_no_rows_at_all_give_finite_figures():
    choice = Choice(1.0, torch.zeros(5, 2, dtype=torch.float64), 0.0, 0.0)
    calibration = calibrate(choice, torch.zeros(5, 2, dtype=torch.float64), torch.zeros(2), 0.0)
    assert finite(calibration)
