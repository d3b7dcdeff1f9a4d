"""The eigenvectors of few rows: those of the whole matrix, and none where there is anything else in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cldnet.math import ridge as module
from cldnet.math.ridge import LOW_RANK, low_rank_eigenvectors, ridge

FEATURES = 200


def problem(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Whole numbers, as our maps give them, of three classes."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(rows) % 3
    h = torch.randn(3, FEATURES, generator=draw)[y] + torch.randn(rows, FEATURES, generator=draw)
    return (20 * h.relu()).round().double(), torch.eye(3, dtype=torch.float64)[y]


@pytest.mark.parametrize("rows", [1, 2, 30, int(LOW_RANK * FEATURES)])
def test_they_are_those_of_the_whole_matrix(rows: int) -> None:
    h, y = problem(rows)
    found = low_rank_eigenvectors(h.T @ h, h.T @ y)
    assert found is not None
    values, vectors = found
    assert vectors.shape == (FEATURES, rows)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(h.T @ h)[-rows:], rtol=1e-10, atol=0)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(rows).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close((vectors * values) @ vectors.T, h.T @ h, rtol=1e-10, atol=1e-7)


def test_rows_that_repeat_count_once() -> None:
    h, y = problem(10)
    twice = torch.cat([h, h])
    found = low_rank_eigenvectors(twice.T @ twice, twice.T @ torch.cat([y, y]))
    assert found is not None
    assert len(found[0]) == 10


def test_nothing_is_given_where_there_is_more_than_few_rows() -> None:
    h, y = problem(30)
    gram, moments = h.T @ h, h.T @ y
    many, labels = problem(int(LOW_RANK * FEATURES) + 1)
    outside = moments.clone()
    outside[:, 0] += torch.arange(FEATURES)
    less = problem(1, seed=1)[0]
    assert low_rank_eigenvectors(many.T @ many, many.T @ labels) is None
    assert low_rank_eigenvectors(gram, outside) is None
    assert low_rank_eigenvectors(gram - less.T @ less, moments) is None
    assert low_rank_eigenvectors(torch.zeros_like(gram), moments) is None
    assert low_rank_eigenvectors(torch.full_like(gram, torch.nan), moments) is None


@pytest.mark.parametrize("rows", [1, 2, 7, 30, 50])
@pytest.mark.parametrize("probed", [False, True])
def test_the_choice_is_that_of_factorisations(monkeypatch: pytest.MonkeyPatch, rows: int, probed: bool) -> None:
    h, y = problem(rows)
    sums = h.T @ h, h.T @ y, y.sum(0), float(rows)
    monkeypatch.setattr(module, "EIGEN_FEATURES", 0)
    monkeypatch.setattr(module, "FEW_FEATURES", 0)
    if probed:
        monkeypatch.setattr(module, "EXACT_TRACE_FEATURES", 0)
        monkeypatch.setattr(module, "_probed_trace", module._exact_trace)  # probes of 200 features are too noisy
    few = ridge(*sums, alpha=None)
    monkeypatch.setattr(module, "low_rank_eigenvectors", lambda gram, moments: None)
    # Float32 leaves a near tie to chance, and so does what one factor tells about another α.
    monkeypatch.setattr(module, "_fine_factor", lambda sums, alpha: module._factor(sums.gram, alpha))
    monkeypatch.setattr(module, "KRYLOV", 1)
    factors = ridge(*sums, alpha=None)
    assert few.alpha == factors.alpha
    torch.testing.assert_close(few.solution, factors.solution, rtol=1e-7, atol=1e-10)
    assert few.freedom == pytest.approx(factors.freedom, abs=1e-6)
    assert few.residual == pytest.approx(factors.residual, abs=1e-9)


def test_factorisations_are_not_made_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    h, y = problem(30)
    monkeypatch.setattr(module, "EIGEN_FEATURES", 0)
    monkeypatch.setattr(module, "FEW_FEATURES", 0)
    monkeypatch.setattr(module, "_cholesky", lambda *given: pytest.fail("the whole matrix was factorised"))
    assert ridge(h.T @ h, h.T @ y, y.sum(0), 30.0, None).solution.shape == (FEATURES, 3)
