"""Ratings of many α from one factor: what the formulas give that invert G + αI, and refused where they would not be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.math import ridge as module
from cldnet.math.ridge import ridge

relaxed = settings(deadline=None, max_examples=20)
FEATURES, CLASSES = 150, 4


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solve any problem as a large one, with probes as precise as the default ones are with 2,000 features."""
    monkeypatch.setattr(module, "EIGEN_FEATURES", 0)
    monkeypatch.setattr(module, "PROBES", 400)


def problem(rows: int = 400, classes: int = CLASSES, seed: int = 0, decay: float = 1.0) -> module._Sums:
    """Sums of rows whose eigenvalues fall with a power, and of a large mean."""
    random = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    spread = np.arange(1, FEATURES + 1) ** -decay
    H = spread * (random.normal(size=(classes, FEATURES))[y] + random.normal(size=(rows, FEATURES))) + 0.3
    H, Y = (
        torch.from_numpy(H @ np.linalg.qr(random.normal(size=(FEATURES, FEATURES)))[0]),
        torch.eye(classes)[y].double(),
    )
    return module._Sums(H.T @ H, H.T @ Y, Y.sum(0), float(rows))


def inverse(sums: module._Sums, alpha: float) -> Tensor:
    return torch.from_numpy(np.linalg.inv(sums.gram.numpy() + alpha * np.eye(FEATURES)))


def start(sums: module._Sums) -> float:
    return module.START * float(sums.gram.diagonal().mean())


@pytest.mark.parametrize("ratio", [1 / 30, 1 / 10, 1 / 3, 1, 3, 10, 30])
def test_solution_residual_and_freedom_are_those_of_the_inverse(ratio: float) -> None:
    sums = problem()
    near = module._Krylov(sums, start(sums))
    for _ in range(20):
        near._step()
    alpha = ratio * start(sums)
    found, inverted = near.solution(alpha), inverse(sums, alpha)
    expected = inverted @ sums.moments
    assert found.alpha == alpha
    assert (found.solution - expected).norm() <= 5e-3 * expected.norm()  # in float32
    squares = sums.weights.sum() - 2 * (expected * sums.moments).sum() + (expected * (sums.gram @ expected)).sum()
    assert found.residual == pytest.approx(float(squares), rel=1e-3)
    assert found.freedom == pytest.approx(400 - float((sums.gram @ inverted).trace()), rel=1e-3)


@relaxed
@given(st.floats(-3.0, 3.0), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 999))
def test_within_reach_errors_are_as_small_as_is_said(decades: float, decay: float, seed: int) -> None:
    sums = problem(seed=seed, decay=decay)
    near = module._Krylov(sums, start(sums))
    alpha = 10**decades * start(sums)
    if not near.reaches(alpha):
        assert abs(decades) > 0.5  # what is next to the factor on the grid is always within reach
        return
    error = near.solution(alpha).solution - inverse(sums, alpha) @ sums.moments
    energy = (error * (sums.gram @ error + alpha * error)).sum(0)
    begun = (sums.moments * (inverse(sums, near.alpha) @ sums.moments)).sum(0)
    bound = module.CLASS_RESIDUAL * max(1.0, near.alpha / alpha) ** 0.5
    assert bool((energy <= (bound + 2e-2 * near.rounding + 1e-3) ** 2 * begun).all())


def test_what_is_far_away_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KRYLOV", 4)  # more steps would exhaust so few features
    sums = problem()
    near = module._Krylov(sums, start(sums))
    assert not near.reaches(1e2 * start(sums))
    assert not near.reaches(1e-2 * start(sums))
    assert len(near.directions) <= module.KRYLOV


def test_steps_are_made_only_as_far_as_they_are_needed() -> None:
    sums = problem()
    near = module._Krylov(sums, start(sums))
    steps = []
    for ratio in (1, 2, 1 / 2, 8, 1e6):
        near.reaches(ratio * start(sums))
        steps.append(len(near.directions))
    assert steps[0] == 1
    assert 1 < steps[1] < steps[3] < module.KRYLOV
    assert steps[2] <= steps[1] + 2
    assert steps[4] <= steps[3] + 2  # a step or two tell that no number of steps would be enough


def test_a_factor_too_coarse_for_a_smaller_alpha_does_not_rate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = problem()
    near = module._Krylov(sums, start(sums))
    assert near.reaches(start(sums) / 3)
    near.rounding = module.LARGEST_ROUNDING
    assert not near.reaches(start(sums) / 3)
    assert near.reaches(start(sums) * 3)  # it weighs less there


def test_sums_that_are_not_positive_definite_with_a_smaller_alpha_are_out_of_reach() -> None:
    sums = problem()
    values, vectors = torch.linalg.eigh(sums.gram)
    alpha = float(values[10])
    values[0] = -alpha / 2
    near = module._Krylov(sums._replace(gram=vectors * values @ vectors.T), alpha)
    for _ in range(20):
        near._step()
    assert near.reaches(alpha / 1.5)
    assert not near.reaches(alpha / 3)


def test_the_less_freedom_there_is_the_more_steps_are_made() -> None:
    steps = []
    for rows in (151.0, 5000.0):
        near = module._Krylov(problem()._replace(n_samples=rows), start(problem()))
        assert near.reaches(start(problem()) / 3)
        steps.append(len(near.directions))
    assert steps[0] > steps[1]


def test_the_chosen_alpha_is_solved_for_as_if_it_were_given() -> None:
    for decay in (0.5, 1.0, 2.0):
        sums = problem(decay=decay)
        chosen = ridge(*sums, None)
        given_alpha = ridge(*sums, chosen.alpha)
        assert torch.equal(chosen.solution, given_alpha.solution)
        assert chosen[2:] == given_alpha[2:]


@pytest.mark.parametrize("rows", [60, 140, 160, 400, 5000])
@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_as_good_as_that_of_eigenvalues(rows: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = problem(rows, seed=seed)
    found = ridge(*sums, None).alpha
    monkeypatch.setattr(module, "EIGEN_FEATURES", FEATURES)
    best = ridge(*sums, None).alpha
    ratings = [-module._cost(ridge(*sums, alpha), *sums[1:], 0.0) for alpha in (found, best)]
    assert ratings[0] >= 0.995 * ratings[1]
    assert abs(np.log10(found / best)) < 0.51


def test_one_factor_is_enough_if_the_start_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = problem()
    only = torch.tensor([start(sums)], dtype=torch.float64)
    made: list[float] = []
    real = module._cholesky
    monkeypatch.setattr(module, "_cholesky", lambda *given: made.append(given[1]) or real(*given))
    assert module._search_krylov(sums, only, 0.0, fine=False).alpha == start(sums)
    assert made == [start(sums)]


def test_two_are_enough_if_another_one_near_it_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = problem(decay=0.5)
    made: list[float] = []
    real = module._cholesky
    monkeypatch.setattr(module, "_cholesky", lambda *given: made.append(given[1]) or real(*given))
    alpha = ridge(*sums, None).alpha
    assert 0.1 < abs(np.log10(alpha / start(sums))) < 1.5
    assert made == pytest.approx([start(sums), alpha])


def test_a_search_that_goes_far_factorises_for_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KRYLOV", 8)
    rated: list[float] = []
    anchors: list[tuple[float, float]] = []
    cost, krylov = module._cost, module._Krylov

    def made(sums: module._Sums, alpha: float) -> module._Krylov:
        anchors.append((alpha, rated[-1] if rated else 0.0))
        return krylov(sums, alpha)

    monkeypatch.setattr(module, "_cost", lambda found, *given: rated.append(found.alpha) or cost(found, *given))
    monkeypatch.setattr(module, "_Krylov", made)
    ridge(*problem(decay=0.25), None)
    assert len(anchors) > 1
    assert anchors[1][0] == anchors[1][1]


@pytest.mark.parametrize("classes", [1, 75, 149, 200])
def test_directions_take_no_more_memory_than_the_factor(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[module._Krylov] = []
    real = module._Krylov
    monkeypatch.setattr(module, "_Krylov", lambda *given: made.append(real(*given)) or made[-1])
    sums = problem(classes=classes)
    found = ridge(*sums, None)
    for each in made:
        assert len(each.directions) == 1 or sum(part.numel() for part in each.directions) <= each.factor.numel()
    expected = inverse(sums, found.alpha) @ sums.moments
    assert (found.solution - expected).norm() <= 1e-6 * expected.norm()


def test_a_class_without_samples_has_the_solution_0_and_changes_nothing_for_the_others() -> None:
    sums = problem()
    more = sums._replace(
        moments=torch.cat([sums.moments, torch.zeros(FEATURES, 1).double()], 1),
        weights=torch.cat([sums.weights, torch.zeros(1).double()]),
    )
    near = module._Krylov(more, start(sums))
    assert near.reaches(3 * start(sums))
    assert not near.solution(3 * start(sums)).solution[:, -1].any()
    assert ridge(*more, None).alpha == ridge(*sums, None).alpha


def test_no_class_at_all_has_an_empty_solution() -> None:
    sums = problem()
    choice = ridge(sums.gram, sums.moments[:, :0], sums.weights[:0], 0.0, None)
    assert choice.solution.shape == (FEATURES, 0)


def test_with_plenty_of_samples_probes_and_coarser_factors_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBES", 32)
    few = problem()
    many = few._replace(gram=1e3 * few.gram, moments=1e3 * few.moments, weights=1e3 * few.weights, n_samples=4e5)
    assert [sums.plenty for sums in (few, many)] == [False, True]
    border = FEATURES + module.PLENTY * (2 * FEATURES / 32) ** 0.5
    assert [few._replace(n_samples=border + more).plenty for more in (-1, 1)] == [False, True]
    for sums in (few, many):
        alpha = start(sums)
        exact = float(inverse(sums, alpha).trace())
        found = sums.trace(module._factor(sums.gram, alpha))
        assert (found == pytest.approx(exact, rel=1e-9)) is not sums.plenty
        assert found == pytest.approx(exact, rel=0.05)
    monkeypatch.setattr(module, "_rounding", lambda *given: 2 * module.COARSE)
    assert [module._fine_factor(sums, start(sums)).dtype for sums in (few, many)] == [torch.float64, torch.float32]
