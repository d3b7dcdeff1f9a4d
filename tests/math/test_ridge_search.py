"""The choice of a ridge penalty: candidates, and the walk among them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cldnet.math.leave_one_out import RidgeSolution
from cldnet.math.ridge import START, candidates, search

ONE = torch.ones((), dtype=torch.float64)
NOTHING = torch.zeros(1, 1, dtype=torch.float64)


def walk(cost, grid, fine=True, least=0.0):
    """Search with one class, whose squared error is the cost; and the points that were visited."""
    visited = []

    def solved(alpha):
        visited.append(alpha)
        return RidgeSolution(alpha, NOTHING, *cost(np.log10(alpha)))

    found = search(grid, solved, NOTHING, torch.ones(1), 9.0, least=least, fine=fine)
    return np.log10(found.alpha), visited


def test_candidates_are_even_in_logarithm_around_the_mean_diagonal():
    grid = candidates(2 * ONE)
    np.testing.assert_allclose(grid, 2 * 10.0 ** np.arange(-6, 1.01, 0.25), rtol=1e-12)
    assert torch.equal(candidates(0 * ONE), candidates(ONE))


@pytest.mark.parametrize("least", [1e-3, START])
def test_candidates_begin_with_the_least_that_is_allowed(least):
    assert float(candidates(5 * ONE, least)[0]) == pytest.approx(5 * least)


@pytest.mark.parametrize("best", np.arange(-6, 1.01, 0.25))
@pytest.mark.parametrize("least", [0.0, 1e-3])
def test_the_walk_finds_the_best_of_a_valley_without_visiting_everything(best, least):
    found, visited = walk(lambda place: ((place - best) ** 2, 1.0), candidates(ONE, least))
    assert found == pytest.approx(max(best, -3.0) if least else best)
    assert len(visited) == len(set(visited)) <= 4 + abs(best + 2.5) / 0.5


def test_what_cannot_be_told_apart_is_not_visited():
    _, visited = walk(lambda place: ((place + 2) ** 2, 1.0), candidates(ONE), fine=False)
    np.testing.assert_allclose(np.log10(visited), [-2.5, -2.0, -1.5])


def test_an_alpha_without_freedom_is_passed_over():
    found, _ = walk(lambda place: (0.0, 0.5) if place < -1 else ((place + 0.5) ** 2, 2.0), candidates(ONE), least=1.0)
    assert found == pytest.approx(-0.5)


def test_where_none_can_be_judged_it_stays_at_the_start():
    found, _ = walk(lambda place: (1.0, 0.0), candidates(ONE))
    assert found == pytest.approx(np.log10(START))
