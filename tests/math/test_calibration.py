"""Calibration from sums, against scores of rows that were left out one by one, and against rows never seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from cldnet.math import calibration as module
from cldnet.math.calibration import Calibration, calibrate, known_probability
from cldnet.math.discriminant import linear_discriminant
from cldnet.math.leave_one_out import LeaveOneOut, RidgeSolution, leave_one_out_dense
from cldnet.math.novelty import Novelty
from cldnet.math.ridge import ridge

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


def scored(vectors, choice, sums):
    weights, offset = linear_discriminant(leave_one_out_dense(choice, *sums))
    return vectors @ weights + offset


def cross_entropy(scores, y, temperature):
    return float(torch.nn.functional.cross_entropy(scores / temperature, y))


def best_cross_entropy(scores, y):
    return min(cross_entropy(scores, y, t) for t in np.geomspace(1e-1, 20, 60))


@pytest.mark.parametrize(("classes", "features"), [(5, 100), (10, 100), (10, 300), (10, 500)])
def test_for_real_digits_the_temperature_comes_near_the_best_one(classes, features):
    H, y, unseen, truth = digits(classes, features, seed=0)
    choice, calibration, sums = learn(H, y, classes)
    scores = scored(unseen @ choice.solution, choice, sums)
    achieved = cross_entropy(scores, truth, calibration.temperature)
    assert achieved < best_cross_entropy(scores, truth) + 0.03
    assert achieved < cross_entropy(scores, truth, 1.0)  # as if scores were normally distributed


@pytest.mark.parametrize(("classes", "features"), [(5, 100), (10, 100), (10, 300)])
def test_of_real_digits_about_as_many_are_turned_away_as_were_asked_for(classes, features):
    known = []
    for seed in range(2):
        H, y, unseen, _ = digits(classes, features, seed)
        choice, calibration, _ = learn(H, y, classes)
        known.append(known_probability(unseen @ choice.solution, calibration))
    for reject in (0.05, 0.1, 0.2):
        assert reject / 2 < float((torch.cat(known) < reject).double().mean()) < reject * 1.5


@pytest.mark.parametrize("classes", [1, 2, 5, 20])
@pytest.mark.parametrize(("rows", "features"), [(60, 8), (300, 30)])
def test_samples_of_the_model_have_evenly_spread_probabilities(classes, rows, features):
    """Drawn again, with other numbers than those that the calibration drew."""
    choice, calibration, sums = learn(*draw(rows, features, classes, 0), classes)
    estimate = module._spread(leave_one_out_dense(choice, *sums))
    cycles = torch.arange(8000) % classes
    random = torch.Generator().manual_seed(1)
    normal = torch.randn(8000, classes, generator=random, dtype=torch.float64)
    chi_square = torch.randn(8000, module.NOVELTY_TAIL, generator=random, dtype=torch.float64).square().sum(1)
    binomial = (estimate.means * (1 - estimate.means)).abs()
    variance = 0.05 + 0.95 * binomial / binomial.mean(0)  # all classes have the same number of rows
    noise = normal @ torch.linalg.cholesky(estimate.covariance).mT * variance[cycles].sqrt()
    vectors = estimate.means[cycles] + noise * ((module.NOVELTY_TAIL - 2) / chi_square).sqrt()[:, None]
    known = known_probability(vectors, calibration)
    for share in (0.01, 0.05, 0.5, 0.9):
        error = 4 * math.sqrt(share * (1 - share) * (1 / 8000 + 1 / module.DRAWS))
        assert float((known < share).double().mean()) == pytest.approx(share, abs=error + 1e-3)


def test_errors_are_spread_by_freedom_used_by_how_sure_classes_are_and_by_their_number():
    means = torch.tensor([[0.9, 0.1], [0.1, 0.8]], dtype=torch.float64)
    weights = torch.tensor([3.0, 1.0], dtype=torch.float64)
    estimate = LeaveOneOut(means, 0.1 * torch.eye(2, dtype=torch.float64), weights, factor=1.6)
    by = 1 + 0.4 * 0.375 ** (1 / 3) * (2 * 0.875 - 1) * math.log(1.6)  # 1 / 0.625 classes
    spread = module._spread(estimate)
    torch.testing.assert_close(spread.covariance, by * estimate.covariance)
    one_hot = torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(spread.means, one_hot + math.sqrt(by) * (means - one_hot))
    for unsure in (estimate._replace(means=0.5 * one_hot), estimate._replace(factor=1.0)):
        torch.testing.assert_close(module._spread(unsure), unsure)


def test_errors_are_spread_by_the_determinant_where_the_solution_takes_most_of_the_freedom():
    """As ``(D/k)^(1.2 h²)`` if that is more, whatever the weights; not known is as if ``D = k``."""
    means, weights = 0.9 * torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    estimate = LeaveOneOut(means, 0.1 * torch.eye(2, dtype=torch.float64), weights, factor=10.0)
    spread = module._spread(estimate, math.log(30.0))
    torch.testing.assert_close(spread.covariance, 3 ** (1.2 * 0.81) * estimate.covariance)
    unknown = module._spread(estimate)
    assert float(unknown.covariance[0, 0]) < float(spread.covariance[0, 0])
    for as_unknown in (math.log(10.0), 0.0):
        torch.testing.assert_close(module._spread(estimate, as_unknown), unknown)
    most = module._spread(estimate, 1e9).covariance
    torch.testing.assert_close(most, 10 ** (1.2 * 0.81) * estimate.covariance)
    few = estimate._replace(factor=1.05)  # far more samples than features: the determinant says nothing
    torch.testing.assert_close(module._spread(few, 1.0), module._spread(few))


def uneven(rows, seed, unevenness):
    """Cosines of random directions, 5 classes in turn; some samples are near to their class's centre, and some far from it."""
    fixed, random = np.random.default_rng(0), np.random.default_rng(seed)
    weights, phases, centres = (
        fixed.normal(size=(20, 1000)),
        fixed.uniform(0, 2 * np.pi, 1000),
        1.2 * fixed.normal(size=(5, 20)),
    )
    y = np.arange(rows) % 5
    scale = 0.6 * np.exp(unevenness * random.normal(size=(rows, 1)))
    x = centres[y] + scale * random.normal(size=(rows, 20))
    return torch.from_numpy(np.cos(x @ weights / math.sqrt(40) + phases)), torch.from_numpy(y)


@pytest.mark.parametrize(("unevenness", "before"), [(0.3, 0.08), (0.5, 0.15)])
def test_with_more_features_than_samples_about_as_many_are_turned_away_as_were_asked_for(unevenness, before):
    known, as_before = [], []
    for seed in range(3):
        choice, calibration, sums = learn(*uneven(300, 10 + seed, unevenness), 5)
        vectors = uneven(2000, 100 + seed, unevenness)[0] @ choice.solution
        known.append(known_probability(vectors, calibration))
        mean_leverage = calibrate(choice._replace(log_determinant=0.0), *sums)
        as_before.append(known_probability(vectors, mean_leverage))
        torch.testing.assert_close(mean_leverage.novelty, calibration.novelty)  # the order is the same
    assert 0.02 < float((torch.cat(known) < 0.05).double().mean()) < 0.09
    assert float((torch.cat(as_before) < 0.05).double().mean()) > before


@pytest.mark.parametrize("noise", [0.7, 3.0])
@pytest.mark.parametrize("classes", [2, 5, 20])
def test_for_clouds_of_equal_width_it_turns_few_more_away_than_asked_and_is_not_too_sure(classes, noise):
    choice, calibration, sums = learn(*draw(1500, 30, classes, 1, noise), classes)
    H, y = draw(3000, 30, classes, 2, noise)
    scores = scored(H @ choice.solution, choice, sums)
    assert cross_entropy(scores, y, calibration.temperature) < best_cross_entropy(scores, y) + 0.15
    assert (
        cross_entropy(scores, y, calibration.temperature / 1.1)
        < cross_entropy(scores, y, calibration.temperature) + 0.01
    )
    known = known_probability(H @ choice.solution, calibration)
    for reject in (0.05, 0.1, 0.2):
        assert float((known < reject).double().mean()) < reject * 1.5


def test_rows_of_a_class_never_seen_get_lower_probabilities():
    H, y = draw(2000, 30, 8, 1, noise=1.0)
    choice, calibration, _ = learn(H[y < 6], y[y < 6], 6)
    H, y = draw(2000, 30, 8, 2, noise=1.0)
    known = known_probability(H @ choice.solution, calibration)
    assert float((known[y < 6] < 0.05).double().mean()) < 0.1
    assert float((known[y >= 6] < 0.05).double().mean()) > 0.8


#: The novelty of a single score ``s`` is ``s²``.
SQUARE = Novelty(
    None, *(torch.full(shape, value).double() for shape, value in (((1,), 0), ((1, 1), 1), ((1, 1), 0), ((1,), 0)))
)


def squares(drawn):
    return Calibration(1.0, torch.tensor([0]), SQUARE, torch.as_tensor(drawn, dtype=torch.float64))


@relaxed
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30), seeds)
def test_the_probability_lies_between_0_and_1_and_falls_with_the_novelty(drawn, seed):
    scores = 10 ** torch.linspace(-9, 4, 200, dtype=torch.float64)[:, None]
    known = known_probability(scores, squares(sorted(drawn)))
    assert bool(((known >= 0) & (known <= 1)).all())
    assert bool((known.diff() <= 1e-12).all())


def test_the_probability_is_the_share_of_draws_that_are_more_novel():
    drawn = torch.rand(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values
    scores = torch.linspace(0, 1, 50, dtype=torch.float64).sqrt()[:, None]
    expected = [float((drawn > s**2).double().mean()) for s in scores]
    np.testing.assert_allclose(known_probability(scores, squares(drawn)), expected, atol=2e-3)


def test_beyond_all_draws_it_falls_off_as_the_tail_of_the_model():
    calibration = squares(range(11))  # the middle one is 5, and half of a draw in 11 lies beyond 10
    known = known_probability(torch.tensor([[10.0 + 1e-9], [15.0], [25.0]]).double().sqrt(), calibration)
    expected = [1 / 22, 1 / 22 / 2**15, 1 / 22 / 4**15]
    np.testing.assert_allclose(known, expected, rtol=1e-6)


def test_beyond_all_draws_it_still_tells_near_from_far():
    calibration = learn(*draw(300, 5, 3, 0), 3)[1]
    near, far = known_probability(torch.tensor([[20.0, 0.0, 0.0], [40.0, 0.0, 0.0]]), calibration).tolist()
    assert 1e-3 > near > far >= 0


def test_without_a_class_nothing_is_known():
    calibration = calibrate(
        RidgeSolution(1.0, torch.zeros(5, 0).double(), 0.0, 0.0), torch.zeros(5, 0).double(), torch.zeros(0), 0.0
    )
    assert known_probability(torch.zeros(3, 0), calibration).tolist() == [0.0, 0.0, 0.0]


def test_with_more_classes_than_features_new_samples_are_no_more_novel_than_others():
    """Predicted vectors lie in a plane then, and how far it passes from the class vectors says nothing."""
    choice, calibration, _ = learn(*draw(200, 4, 20, 1, noise=0.3), 20)
    H, _ = draw(4000, 4, 20, 2, noise=0.3)
    known = known_probability(H @ choice.solution, calibration)
    assert 0.01 < float((known < 0.05).double().mean()) < 0.1
    assert 0.3 < float((known < 0.5).double().mean()) < 0.7


def test_scores_keep_their_precision():
    calibration = learn(*draw(100, 5, 3, 0), 3)[1]
    assert known_probability(torch.zeros(2, 3), calibration).dtype == torch.float32
    assert known_probability(torch.zeros(0, 3), calibration).shape == (0,)


def test_the_same_sums_give_the_same_calibration_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    first, second = (learn(*draw(100, 5, 3, 0), 3)[1] for _ in range(2))
    assert first.temperature == second.temperature
    assert torch.equal(first.drawn, second.drawn)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_weight_counts_as_that_many_rows():
    H, y = draw(60, 5, 3, 0)
    weighted = learn(H, y, 3, alpha=1.0, weight=torch.full((60,), 2.0, dtype=torch.float64))[1]
    repeated = learn(torch.cat([H, H]), torch.cat([y, y]), 3, alpha=1.0)[1]
    assert math.isclose(weighted.temperature, repeated.temperature, rel_tol=1e-6)
    torch.testing.assert_close(weighted.drawn, repeated.drawn)


def test_a_class_without_rows_changes_nothing():
    H, y = draw(90, 5, 3, 0)
    alone = learn(H, y, 3)[1]
    among_others = learn(H, y + (y == 2), 4)[1]
    assert math.isclose(alone.temperature, among_others.temperature, rel_tol=1e-9)
    torch.testing.assert_close(alone.drawn, among_others.drawn)
    vectors = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = known_probability(vectors[:, [0, 1, 3]], alone)
    torch.testing.assert_close(known_probability(vectors, among_others), known)


def finite(calibration):
    return 0 < calibration.temperature < math.inf and bool(torch.isfinite(calibration.drawn).all())


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
    choice, calibration, sums = learn(H, torch.arange(40) % 4, 4, alpha=1e-9)
    assert choice.residual < 1e-9
    scores = (H @ choice.solution).float() + 1e-6
    assert float(known_probability(scores, calibration).min()) > 0.95
    surest = torch.softmax(scored(H @ choice.solution, choice, sums) / calibration.temperature, 1).max(1).values
    assert ((surest > 0.9) & (surest < 0.999)).all()


@pytest.mark.parametrize("freedom", [0.0, -3.0, 1e-300])
def test_without_freedom_probabilities_say_that_nothing_is_known(freedom):
    H, y = draw(100, 5, 3, 0)
    choice, _, sums = learn(H, y, 3)
    choice = choice._replace(freedom=freedom)
    calibration = calibrate(choice, *sums)
    assert finite(calibration)
    surest = torch.softmax(scored(H @ choice.solution, choice, sums) / calibration.temperature, 1).max(1).values
    assert float(surest.mean()) < 0.4


def test_no_rows_at_all_give_finite_figures():
    choice = RidgeSolution(1.0, torch.zeros(5, 2, dtype=torch.float64), 0.0, 0.0)
    calibration = calibrate(choice, torch.zeros(5, 2, dtype=torch.float64), torch.zeros(2), 0.0)
    assert finite(calibration)


def test_classes_are_drawn_in_their_shares():
    """To the row, where the shares allow it: chance there would only blur the temperature."""
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    _, classes = module._draw(LeaveOneOut(torch.eye(3).double(), 0.1 * torch.eye(3).double(), weights), 12)
    assert torch.bincount(classes).tolist() == [module.DRAWS // 4, module.DRAWS // 2, module.DRAWS // 4]


@pytest.mark.parametrize("doubt", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_temperature_has_the_least_cross_entropy_of_smoothed_targets(classes, doubt):
    """Against a grid: a row's class is only ``1 − doubt`` certain, and the others share the rest."""
    source = torch.Generator().manual_seed(classes)
    y = torch.arange(300) % classes
    scores = 4 * one_hot[y][:, :classes] + 3 * torch.randn(300, classes, generator=source, dtype=torch.float64)
    target = torch.where(one_hot[y][:, :classes] > 0, 1 - doubt, doubt / (classes - 1))
    found = module._temperature(scores, y, torch.full((classes,), doubt, dtype=torch.float64))
    costs = {t: -float((target * torch.log_softmax(scores / t, 1)).sum()) for t in np.geomspace(0.05, 20, 601)}
    assert found == pytest.approx(min(costs, key=costs.get), rel=0.011)


def test_a_covariance_that_rounding_made_slightly_negative_is_drawn_from():
    covariance = torch.diag(torch.tensor([0.1, -1e-18], dtype=torch.float64))
    vectors, _ = module._draw(LeaveOneOut(torch.eye(2).double(), covariance, torch.tensor([3.0, 3.0]).double()), 12)
    assert vectors.isfinite().all()


def test_rounding_does_not_choose_the_draws_where_the_covariance_has_axes_of_equal_length():
    means, weights = torch.eye(3, dtype=torch.float64) * 0.6 + 0.1, torch.ones(3, dtype=torch.float64)
    nearly = torch.full((3, 3), 1e-12, dtype=torch.float64)
    nearly[0, 1] = nearly[1, 0] = -1e-12
    drawn = [
        module._draw(LeaveOneOut(means, torch.eye(3, dtype=torch.float64) * 0.04 + noise, weights), 12)[0]
        for noise in (0 * nearly, nearly)
    ]
    torch.testing.assert_close(*drawn, rtol=0, atol=1e-9)
