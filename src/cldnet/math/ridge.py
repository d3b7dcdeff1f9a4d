"""The exact solution of ridge regression from sums, and the choice of its α from the sums alone.

With features ``H`` (a row an example) and one-hot labels ``Y``, all that is needed is ``G = HᵀH``, ``S = HᵀY`` and the
class weights ``n = Σ Y``. ``B = (G + αI)⁻¹ S`` is the solution of all data ever summed, whatever their order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.few_rows import FEW, few_eigenvectors
from cldnet.math.left_out import Choice
from cldnet.math.penalty import candidates, least_alpha, search

__all__ = ["Choice", "ridge", "solve", "solve_mixed"]

EIGEN_FEATURES = 2048
"""Up to here α is chosen by one eigendecomposition, above by a search with a factorisation for each α tried."""
EXACT_TRACE_FEATURES = 4096
"""Up to here the search takes the trace of the inverse exactly, above from probes."""
PROBES = 32
TRACE_COLUMNS = 512  # columns of the triangular inverse held at a time
GUARD = 1e-3  # of the mean diagonal: the least α while rows do not outnumber features
COARSE = 0.02  # an error of this size in solutions with a float32 factor is one of its square, 0.04%, in the trace
# Of the features: less freedom is not far enough above rounding, or above the probes' noise of at most √(2m / PROBES).
LEAST_FREEDOM, LEAST_PROBED = 1e-3, 2e-2
TOLERANCE, STEPS = 1e-10, 50  # of conjugate gradients: where they may stop, and where they give up


class _Sums(NamedTuple):
    gram: Tensor
    moments: Tensor
    weights: Tensor
    rows: float


def ridge(gram: Tensor, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> Choice:
    """Solve for the given α, or for the one chosen by generalised cross-validation (Golub, Heath & Wahba 1979).

    Cross-validation needs the sums alone: with the same leverage ``tr H(G + αI)⁻¹Hᵀ / n`` for every row, they tell what
    scores rows get from a solution that was made without them. `cldnet.math.penalty` says which α is best.

    Its search visits some four to seven points of a grid. Up to ``EIGEN_FEATURES`` features one eigendecomposition serves
    them all, as it does where rows are few (`cldnet.math.few_rows`: 0.3 s against 7 s with 4,000 features and 300 rows).
    Else each takes a factorisation in float32 whose solution is refined in float64: 4.4 s against 9.4 s with 3,000 features
    and 20 classes on one thread, and a fraction of the memory. Above ``EXACT_TRACE_FEATURES`` random probes save it half
    of its work, and an α is judged only where the freedom is far above their noise.

    While there are no more rows than features it has no information (errors in sample and freedom can both reach 0), so
    α is kept at or above a thousandth of the mean diagonal there.

    Parameters
    ----------
    gram, moments : Tensor, shapes (m, m) and (m, c)
        The sums ``G`` and ``S`` in float64. They are not changed.
    class_weights : Tensor, shape (c,)
        ``Σ Y²`` a class: the weight of its examples.
    rows : float
        Number of examples in the sums, a weight counting as that many of them.
    alpha : float or None
        Ridge penalty; ``None`` to choose it. A smaller one than rounding of ``G`` lets tell from 0 is raised to that.

    Examples
    --------
    >>> H = torch.tensor([[1.0, 0.1], [0.9, 0.0], [1.1, 0.2], [0.0, 1.0], [0.1, 0.9]], dtype=torch.float64)
    >>> Y = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    >>> choice = ridge(H.T @ H, H.T @ Y, Y.sum(0), rows=5, alpha=None)
    >>> 0 < choice.alpha < 1, 3 < choice.freedom < 5
    (True, True)
    >>> bool(((Y - H @ choice.solution).square().sum() - choice.residual).abs() < 1e-12)
    True
    """
    sums = _Sums(gram, moments, class_weights, rows)
    m = len(gram)
    if alpha is not None:
        return _by_factor(sums, max(alpha, least_alpha(gram.diagonal().sum(), m)))
    grid = candidates(gram.diagonal().mean(), least=GUARD if rows <= m else 0.0)
    if m <= EIGEN_FEATURES:
        eigenvalues, vectors = torch.linalg.eigh(gram)
        return _along(eigenvalues, vectors, sums, grid)
    probed = m > EXACT_TRACE_FEATURES
    least = m * (LEAST_PROBED if probed else LEAST_FREEDOM)
    few = few_eigenvectors(gram, moments) if 0 < rows <= FEW * m else None
    if few is not None:  # what factors would choose, so that one row more does not change what is judged
        return _along(*few, sums, grid, least, fine=not probed)
    return search(grid, lambda penalty: _by_factor(sums, penalty), *sums[1:], least=least, fine=not probed)


def _along(
    eigenvalues: Tensor, vectors: Tensor, sums: _Sums, grid: Tensor, least: float = 0.0, *, fine: bool = True
) -> Choice:
    """The best choice along eigenvectors that span all rows; ``least`` and ``fine`` are those of the search."""
    rotated = sums._replace(moments=vectors.mT @ sums.moments)  # what is judged does not depend on the axes
    positive = eigenvalues.clamp_min(0)
    found = search(grid, lambda alpha: _by_eigenvalues(positive, rotated, alpha), *rotated[1:], least=least, fine=fine)
    return found._replace(solution=vectors @ found.solution)


def solve(gram: Tensor, moments: Tensor, alpha: float) -> Tensor:
    """Solve ``(G + αI) B = S`` by one Cholesky factorisation.

    Parameters
    ----------
    gram : Tensor, shape (m, m)
        ``G = HᵀH``.
    moments : Tensor, shape (m, c)
        ``S = HᵀY``.
    alpha : float
        Ridge penalty, positive.

    Examples
    --------
    >>> solve(torch.tensor([[3.0]]), torch.tensor([[2.0]]), alpha=1.0)
    tensor([[0.5000]])
    """
    return _inverse_times(_factor(gram, alpha), moments)


def solve_mixed(gram: Tensor, moments: Tensor, alpha: float, factor: Tensor) -> Tensor:
    """Solve ``(G + αI) B = S`` by conjugate gradients, all columns at once, preconditioned by a coarse factor.

    Each step costs two products with a matrix, so that float64 costs little more than the float32 factorisation. Where
    the factor is too coarse to bring the residual of every column to 1e-10 of it in 50 steps, `solve` is used.

    Parameters
    ----------
    gram, moments, alpha
        As for `solve`, in float64.
    factor : Tensor, shape (m, m)
        Lower Cholesky factor of ``G + αI``, in float32 or better.

    Examples
    --------
    >>> gram, moments = torch.tensor([[3.0]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    >>> solve_mixed(gram, moments, 1.0, factor=torch.tensor([[2.01]]))
    tensor([[0.5000]], dtype=torch.float64)
    """
    solution, solved = _conjugate_gradients(gram, moments, alpha, factor)
    return solution if solved else solve(gram, moments, alpha)


def _by_eigenvalues(eigenvalues: Tensor, rotated: _Sums, alpha: float) -> Choice:
    """With ``G = VΛVᵀ``, ``‖Y − HB‖² = Σ n_c − Σ (VᵀS)² (λ + 2α) / (λ + α)²``; the solution is ``VᵀB``."""
    shifted = eigenvalues + alpha
    explained = rotated.moments.square().sum(1) * (eigenvalues + 2 * alpha) / shifted.square()
    residual = max(float(rotated.weights.sum() - explained.sum()), 0.0)
    freedom = float(rotated.rows - (eigenvalues / shifted).sum())
    return Choice(alpha, rotated.moments / shifted[:, None], residual, freedom)


def _by_factor(sums: _Sums, alpha: float) -> Choice:
    """By one factorisation: ``‖Y − HB‖² = Σ n_c − tr Bᵀ(S + αB)``, ``tr H(G + αI)⁻¹Hᵀ = m − α tr (G + αI)⁻¹``."""
    gram, moments, weights, rows = sums
    m = len(gram)
    factor = _fine_factor(gram, alpha)
    solution = solve_mixed(gram, moments, alpha, factor)
    residual = max(float(weights.sum()) - float((solution * (moments + alpha * solution)).sum()), 0.0)
    trace = _probed_trace(factor) if m > EXACT_TRACE_FEATURES else _exact_trace(factor)
    return Choice(alpha, solution, residual, max(rows - m + alpha * trace, 0.0))


def _fine_factor(gram: Tensor, alpha: float) -> Tensor:
    """The factor of a large problem in float32, unless that is too coarse for it; otherwise in the dtype of ``G``."""
    if len(gram) > EIGEN_FEATURES:
        factor = _cholesky(gram, alpha, torch.float32)
        if factor is not None and not _is_coarse(factor, gram, alpha):
            return factor
        del factor  # its memory is needed for the next
    return _factor(gram, alpha)


def _factor(gram: Tensor, alpha: float) -> Tensor:
    factor = _cholesky(gram, alpha, gram.dtype)
    if factor is None:
        raise ValueError(
            f"alpha={alpha:g} is too small for these features: G + αI is not positive definite in {gram.dtype}. "
            "Use a larger alpha, or alpha='gcv'."
        )
    return factor


def _cholesky(gram: Tensor, alpha: float, dtype: torch.dtype) -> Tensor | None:
    """Lower Cholesky factor of ``G + αI``, or nothing if it breaks down in this dtype."""
    # In the layout of LAPACK, so that the factor overwrites it and no second matrix is needed.
    factor = torch.empty_like(gram, dtype=dtype, memory_format=torch.contiguous_format).mT.copy_(gram.mT)
    factor.diagonal().add_(alpha)
    info = torch.empty((), dtype=torch.int32, device=gram.device)
    torch.linalg.cholesky_ex(factor, out=(factor, info))
    return factor if int(info) == 0 and bool(factor.diagonal().isfinite().all()) else None


def _inverse_times(factor: Tensor, right: Tensor) -> Tensor:
    """``(LLᵀ)⁻¹ R`` in the dtype of ``R``; unlike `torch.cholesky_solve` without a copy of ``L``."""
    half = torch.linalg.solve_triangular(factor, right.to(factor.dtype), upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole.to(right.dtype)


def _is_coarse(factor: Tensor, gram: Tensor, alpha: float) -> bool:
    """Whether rounding moved the small eigenvalues, on which the trace hangs, by too large a share."""
    signs = _random_signs(gram, 1)
    back = _inverse_times(factor, signs)
    return not float((gram @ back + alpha * back - signs).norm()) <= COARSE * len(gram) ** 0.5


def _random_signs(like: Tensor, columns: int) -> Tensor:
    """Columns of ±1: the same ones each time, so that the scores of different α compare."""
    signs = torch.randint(0, 2, (len(like), columns), generator=torch.Generator().manual_seed(0))
    return (2 * signs - 1).to(like)


def _probed_trace(factor: Tensor) -> float:
    """``tr (LLᵀ)⁻¹`` as the mean of ``‖L⁻¹z‖²`` over random signs ``z`` (Hutchinson 1990)."""
    halves = torch.linalg.solve_triangular(factor, _random_signs(factor, PROBES), upper=False)
    return float(halves.square().sum(dtype=torch.float64)) / PROBES


def _exact_trace(factor: Tensor) -> float:
    """``tr (LLᵀ)⁻¹ = ‖L⁻¹‖²``."""
    m = len(factor)
    trace = 0.0
    for first in range(0, m, TRACE_COLUMNS):
        # Columns of a triangular inverse are 0 above the diagonal, so the rows from there on are all that is solved for.
        columns = torch.eye(m - first, min(TRACE_COLUMNS, m - first), dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor[first:, first:], columns, upper=False)
        trace += float(inverse.square().sum(dtype=torch.float64))
    return trace


def _conjugate_gradients(gram: Tensor, moments: Tensor, alpha: float, factor: Tensor) -> tuple[Tensor, bool]:
    """The solution after at most ``STEPS`` steps, and whether every column got there."""
    solution, left, direction = torch.zeros_like(moments), moments.clone(), torch.zeros_like(moments)
    previous = torch.ones_like(moments[0])
    enough = TOLERANCE * moments.norm(dim=0)
    for _ in range(STEPS):
        better = _inverse_times(factor, left)
        current = (left * better).sum(0)
        direction = better + _ratio(current, previous) * direction
        image = gram @ direction + alpha * direction
        step = _ratio(current, (direction * image).sum(0))
        solution += step * direction
        left -= step * image
        previous = current
        if bool((left.norm(dim=0) <= enough).all()):
            return solution, True
    return solution, False


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """0 for a column that is solved already, such as that of a class without examples."""
    return torch.where(denominator > 0, numerator / denominator, 0)
