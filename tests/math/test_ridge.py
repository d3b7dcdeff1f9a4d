"""Ridge regression from sums, against scikit-learn and against the hat matrix written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from cldnet.math import ridge as module
from cldnet.math.ridge import START, candidates, diagonal_ridge, ridge, sketched_ridge, solve, solve_mixed

relaxed = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**31 - 1)


@pytest.fixture
def large(monkeypatch):
    """Solve any problem as a large one: by the search, with factors in float32."""
    monkeypatch.setattr(module, "EIGEN_FEATURES", 0)


@pytest.fixture
def precise(monkeypatch):
    """Probes that are as precise for 60 features as the default ones are for 2,048, beside an exact trace."""
    monkeypatch.setattr(module, "PROBES", 1100)
    monkeypatch.setattr(module, "PLENTY", 1e9)


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


def test_a_singular_problem_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"alpha=1e-30 is too small .* Use a larger alpha, or alpha='gcv'\."):
        solve(torch.ones(3, 3), torch.ones(3, 1), 1e-30)


def test_features_that_are_all_0_have_the_solution_0():
    choice = ridge(torch.zeros(3, 3).double(), torch.zeros(3, 2).double(), torch.tensor([4.0, 5.0]), 9, None)
    assert not choice.solution.any()
    assert (choice.residual, choice.freedom) == (9, 9)


def sums(H, Y):
    return H.T @ H, H.T @ Y, Y.sum(0), len(H)


def hat_matrix(H, alpha):
    return H @ np.linalg.inv(H.T @ H + alpha * np.eye(H.shape[1])) @ H.T


def separation_by_the_hat_matrix(H, Y, alpha):
    """Fisher's ratio of the scores that rows have when they are left out, all with the same leverage."""
    (n, classes), hat = Y.shape, hat_matrix(H, alpha)
    left_out = Y - (Y - hat @ Y) / (1 - np.trace(hat) / n)
    means = np.linalg.lstsq(Y, left_out, rcond=None)[0]
    errors = left_out - Y @ means
    within = errors.T @ errors / n + np.eye(classes) / (classes * (n + 1))
    even = 10 * classes
    drawn = (n * within + even * np.trace(within) / classes * np.eye(classes)) / (n + even)
    apart = Y @ means - left_out.mean(0)
    return (apart @ np.linalg.inv(drawn) * apart).sum() / n


def assert_is_the_ridge_solution(choice, H, Y, alpha, freedom=1e-6):
    H, Y = H.numpy(), Y.numpy()
    solution = np.linalg.solve(H.T @ H + alpha * np.eye(H.shape[1]), H.T @ Y)
    np.testing.assert_allclose(choice.solution, solution, rtol=1e-6, atol=1e-8 * np.abs(solution).max())
    assert choice.alpha == alpha
    assert choice.residual == pytest.approx(((Y - H @ solution) ** 2).sum(), rel=1e-6, abs=1e-9 * len(H))
    assert choice.freedom == pytest.approx(np.trace(np.eye(len(H)) - hat_matrix(H, alpha)), rel=freedom)


@relaxed
@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 4), st.floats(1e-2, 1e2), seeds)
def test_a_choice_is_that_of_the_hat_matrix_written_out(rows, features, classes, alpha, seed):
    H, Y = problem(rows, features, classes, seed)
    assert_is_the_ridge_solution(ridge(*sums(H, Y), alpha), H, Y, alpha)


@relaxed
@given(st.integers(30, 90), st.integers(2, 12), st.integers(2, 4), seeds)
def test_with_the_chosen_alpha_rows_left_out_are_separated_as_well_as_on_all_of_the_grid(rows, features, classes, seed):
    H, Y = problem(rows, features, classes, seed)
    Y = Y[:, Y.sum(0) > 0]
    best = max(
        separation_by_the_hat_matrix(H.numpy(), Y.numpy(), float(a)) for a in candidates((H * H).sum() / H.shape[1])
    )
    choice = ridge(*sums(H, Y), None)
    assert separation_by_the_hat_matrix(H.numpy(), Y.numpy(), choice.alpha) >= best * (1 - 1e-2)
    assert_is_the_ridge_solution(choice, H, Y, choice.alpha)


def test_with_one_class_the_chosen_alpha_has_the_least_gcv_of_the_grid():
    H, _ = problem(60, 4, 3, seed=0)
    Y = torch.ones(60, 1, dtype=torch.float64)

    def gcv(alpha):
        hat = hat_matrix(H.numpy(), alpha)
        return ((Y.numpy() - hat @ Y.numpy()) ** 2).sum() / np.trace(np.eye(60) - hat) ** 2

    least = min(gcv(float(a)) for a in candidates((H * H).sum() / 4))
    assert gcv(ridge(*sums(H, Y), None).alpha) == pytest.approx(least, rel=1e-9)


def test_gcv_is_the_error_of_leaving_one_out_where_all_rows_are_alike():
    random, n, alpha = np.random.default_rng(0), 12, 0.7
    first = random.normal(size=n)
    H, Y = np.stack([np.roll(first, i) for i in range(n)]), np.eye(3)[random.integers(0, 3, n)]
    errors = 0.0
    for i in range(n):
        others = np.arange(n) != i
        refitted = Ridge(alpha=alpha, fit_intercept=False).fit(H[others], Y[others])
        errors += ((Y[i] - refitted.predict(H[[i]])) ** 2).sum()
    choice = ridge(*sums(torch.from_numpy(H), torch.from_numpy(Y)), alpha)
    assert n**2 * choice.residual / choice.freedom**2 == pytest.approx(errors, rel=1e-9)


def test_more_is_shrunk_when_features_are_noisier():
    alphas = [ridge(*sums(*noisy_problem(100, noise, 0)), None).alpha for noise in (0.0, 3.0)]
    assert alphas[1] > 2 * alphas[0]


@pytest.mark.parametrize(("rows", "features"), [(40, 12), (12, 40), (30, 300)])
@pytest.mark.parametrize("alpha", [None, 0.5])
@pytest.mark.parametrize("limit", [0, 2048])
def test_the_determinant_is_the_product_of_what_samples_add_one_by_one_in_whatever_order(
    rows, features, alpha, limit, monkeypatch
):
    """By eigenvalues, by those of few samples and by a factor: ``1 + hᵀ(G + αI)⁻¹h`` of each, with ``G`` of those before it."""
    monkeypatch.setattr(module, "EIGEN_FEATURES", limit)
    H, Y = problem(rows, features, 2, seed=1)
    choice = ridge(H.T @ H, H.T @ Y, Y.sum(0), rows, alpha)
    for order in (range(rows), reversed(range(rows))):
        inverse, expected = torch.eye(features).double() / choice.alpha, 0.0
        for h in H[list(order)]:
            part = inverse @ h
            expected += float(torch.log1p(h @ part))
            inverse -= torch.outer(part, part) / (1 + h @ part)
        assert choice.log_determinant == pytest.approx(expected, rel=1e-5)
    sketch = sketched_ridge(H, 0.0, H.T @ Y, Y.sum(0), rows, choice.alpha, energy=float(H.square().sum()))
    assert sketch.log_determinant == pytest.approx(expected, rel=1e-5)


@relaxed
@given(st.integers(1, 10), st.booleans(), seeds)
def test_with_fewer_rows_than_features_alpha_stays_above_a_thousandth_of_the_diagonal(rows, search, seed):
    H, Y = problem(rows, 10, 2, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "EIGEN_FEATURES", 0 if search else 10)
        assert ridge(*sums(H, Y), None).alpha >= 0.999e-3 * float((H.T @ H).diagonal().mean())


def test_weights_of_rows_count_as_repetitions():
    H, Y = problem(40, 6, 2, seed=1)
    weight = torch.arange(40, dtype=torch.float64) % 3
    weighted = ridge(
        H.T @ (weight[:, None] * H), H.T @ (weight[:, None] * Y), weight @ Y, float(weight.sum()), alpha=None
    )
    again = weight.long()
    repeated = ridge(*sums(H.repeat_interleave(again, 0), Y.repeat_interleave(again, 0)), None)
    assert weighted.alpha == pytest.approx(repeated.alpha, rel=1e-9)
    assert weighted.residual == pytest.approx(repeated.residual, rel=1e-9)
    assert weighted.freedom == pytest.approx(repeated.freedom, rel=1e-9)


def noisy_problem(rows, noise, seed):
    H, Y = problem(rows, 60, 4, seed)
    return H + noise * torch.randn(H.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), Y


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("noise", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("rows", [75, 150, 400])
@pytest.mark.parametrize("seed", range(3))
def test_the_search_chooses_as_the_eigenvalues_do(rows, noise, seed, monkeypatch):
    H, Y = noisy_problem(rows, noise, seed)
    expected = ridge(*sums(H, Y), None)
    monkeypatch.setattr(module, "EIGEN_FEATURES", 0)
    tried = []
    real = module._cholesky
    monkeypatch.setattr(module, "_cholesky", lambda *given: tried.append(given[1]) or real(*given))
    choice = ridge(*sums(H, Y), None)
    assert abs(np.log10(choice.alpha / expected.alpha)) < 0.26  # a step of the grid is a quarter of a decade
    assert_is_the_ridge_solution(choice, H, Y, choice.alpha, freedom=1e-4)
    assert len(set(tried)) <= 5


@pytest.mark.usefixtures("precise")
@pytest.mark.parametrize("noise", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("rows", [10, 30, 58])
@pytest.mark.parametrize("seed", range(3))
def test_with_few_rows_the_search_separates_as_well_as_with_the_eigenvalues(rows, noise, seed, monkeypatch):
    H, Y = noisy_problem(rows, noise, seed)
    best = separation_by_the_hat_matrix(H.numpy(), Y.numpy(), ridge(*sums(H, Y), None).alpha)
    monkeypatch.setattr(module, "EIGEN_FEATURES", 0)
    choice = ridge(*sums(H, Y), None)
    assert separation_by_the_hat_matrix(H.numpy(), Y.numpy(), choice.alpha) >= best / 1.1
    assert_is_the_ridge_solution(choice, H, Y, choice.alpha, freedom=0.05)


@pytest.mark.usefixtures("large")
def test_where_no_alpha_can_be_judged_the_search_stays_at_its_start():
    H, Y = problem(40, 5, 2, seed=0)
    gram, moments, class_weights, _ = sums(H, Y)
    choice = ridge(gram, moments, class_weights / 1e3, 4e-3, None)
    assert choice.alpha == pytest.approx(START * float(gram.diagonal().mean()))
    assert choice.freedom == 0


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("relative", [1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3])
def test_what_is_too_coarse_in_float32_is_done_in_float64(relative):
    H, Y = problem(20, 80, 3, seed=0)
    alpha = relative * float((H.T @ H).diagonal().mean())
    choice = ridge(*sums(H, Y), alpha)
    assert choice.freedom == pytest.approx(np.trace(np.eye(20) - hat_matrix(H.numpy(), alpha)), abs=1e-3 * 80)
    np.testing.assert_allclose(choice.solution, solve(H.T @ H, H.T @ Y, alpha), rtol=1e-5, atol=1e-8)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("columns", [7, 64, 512])
def test_the_trace_is_exact_whatever_the_columns_at_a_time(columns, monkeypatch):
    H, Y = problem(100, 64, 3, seed=0)
    monkeypatch.setattr(module, "TRACE_COLUMNS", columns)
    assert_is_the_ridge_solution(ridge(*sums(H, Y), 2.0), H, Y, 2.0)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("alpha", [1.0, 30.0, 1000.0])
def test_the_trace_from_probes_is_within_a_few_per_cent(alpha, monkeypatch):
    H, Y = problem(400, 200, 3, seed=0)
    exact = ridge(*sums(H, Y), alpha).freedom
    monkeypatch.setattr(module, "EXACT_TRACE_FEATURES", 0)
    state = torch.get_rng_state()
    probed = ridge(*sums(H, Y), alpha).freedom
    assert probed != exact
    assert probed == pytest.approx(exact, rel=0.03)
    assert ridge(*sums(H, Y), alpha).freedom == probed
    few = H[:150], Y[:150]  # fewer rows than features
    wanted = np.trace(np.eye(150) - hat_matrix(few[0].numpy(), alpha))
    assert ridge(*sums(*few), alpha).freedom == pytest.approx(wanted, abs=3 * (2 * 200 / module.PROBES) ** 0.5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("noise", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("seed", range(3))
def test_with_few_rows_probes_choose_an_alpha_nearly_as_good(noise, seed, monkeypatch):
    H, Y = noisy_problem(40, noise, seed)
    exact = ridge(*sums(H, Y), None)
    monkeypatch.setattr(module, "EXACT_TRACE_FEATURES", 0)
    probed = ridge(*sums(H, Y), None)
    best, found = (separation_by_the_hat_matrix(H.numpy(), Y.numpy(), choice.alpha) for choice in (exact, probed))
    assert found >= best / 1.25


def ill_conditioned(m=80, classes=3):
    random = np.random.default_rng(0)
    Q = np.linalg.qr(random.normal(size=(m, m)))[0]
    H = Q * np.logspace(1, -2, m) @ np.linalg.qr(random.normal(size=(m, m)))[0]
    return torch.from_numpy(H.T @ H), torch.from_numpy(H.T @ random.normal(size=(m, classes)))


def test_a_coarse_factor_is_refined_to_the_solution_of_float64():
    gram, moments = ill_conditioned()
    expected = solve(gram, moments, 1e-3)
    factor = torch.linalg.cholesky(gram + 1e-3 * torch.eye(80)).float()
    coarse = torch.cholesky_solve(moments.float(), factor).double()
    assert (coarse - expected).norm() > 1e-6 * expected.norm()
    moments[:, 1] = expected[:, 1] = 0  # a class without examples
    assert (solve_mixed(gram, moments, 1e-3, factor) - expected).norm() <= 1e-9 * expected.norm()


def test_a_factor_of_no_use_leads_to_the_direct_solution():
    gram, moments = ill_conditioned()
    assert torch.equal(solve_mixed(gram, moments, 1e-6, torch.eye(80)), solve(gram, moments, 1e-6))


@pytest.mark.parametrize("features", [0, 2048])
@pytest.mark.parametrize("alpha", [None, 1.0])
def test_no_argument_is_changed(features, alpha, monkeypatch):
    monkeypatch.setattr(module, "EIGEN_FEATURES", features)
    given = sums(*problem(10, 3, 2, seed=0))
    kept = [each.clone() for each in given[:3]]
    ridge(*given, alpha)
    solve(*given[:2], 1.0)
    assert all(torch.equal(each, before) for each, before in zip(given, kept, strict=False))


@pytest.mark.usefixtures("large")
def test_a_penalty_that_is_too_small_for_float64_too_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match="alpha=1e-30 is too small"):
        solve(torch.ones(3, 3).double(), torch.ones(3, 1).double(), 1e-30)


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-16])
def test_a_penalty_below_rounding_is_raised_to_it(alpha):
    H = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    H = torch.cat([127 * H, 127 * H], dim=1)  # every column twice: without a penalty there is no solution
    Y = torch.eye(2, dtype=torch.float64)[torch.arange(20) % 2]
    sums = H.T @ Y, Y.sum(0), 20.0
    choice = ridge(H.T @ H, *sums, alpha)
    assert alpha < choice.alpha < 1e-6
    best = H @ torch.linalg.pinv(H) @ Y
    torch.testing.assert_close(H @ choice.solution, best, rtol=1e-3, atol=1e-3)
    for other in (diagonal_ridge((H.T @ H).diagonal(), *sums, alpha), sketched_ridge(H, 0.0, *sums, alpha, energy=1e6)):
        assert torch.isfinite(other.solution).all()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("relative", "dtype"), [(1e-3, torch.float32), (1e-4, torch.float32), (1e-8, torch.float64)])
def test_a_factor_takes_half_the_memory_where_that_is_fine_enough(relative, dtype):
    few = module._Sums(*sums(*problem(20, 80, 3, seed=0)))
    assert module._fine_factor(few, relative * float(few.gram.diagonal().mean())).dtype == dtype


@pytest.mark.parametrize("below", [1e-6, 3e-6])
def test_sums_that_forgetting_left_slightly_negative_are_solved_as_if_they_were_not(below):
    """The least candidate for α is 1e-6 of the mean diagonal: with an eigenvalue of as much below zero, nothing is positive."""
    basis = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    moments = basis[:, :2] @ torch.tensor([[3.0, 1.0], [0.5, 0.7]], dtype=torch.float64)
    choices = [
        ridge(
            basis * torch.tensor([4.0, 2.0, least], dtype=torch.float64) @ basis.T,
            moments,
            torch.tensor([3.0, 2.0]),
            60.0,
            None,
        )
        for least in (0.0, -below)
    ]
    assert choices[1].alpha == pytest.approx(choices[0].alpha, rel=1e-5)
    torch.testing.assert_close(choices[1].solution, choices[0].solution, rtol=1e-4, atol=1e-6)
    assert choices[1].freedom == pytest.approx(choices[0].freedom, rel=1e-5)
