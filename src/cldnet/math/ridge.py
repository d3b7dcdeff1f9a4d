"""The exact solution of ridge regression from sums, and the choice of its α from the sums alone.

With features ``H`` (a row an example) and one-hot labels ``Y``, all that is needed is ``G = HᵀH``, ``S = HᵀY`` and the
class weights ``n = Σ Y``. ``B = (G + αI)⁻¹ S`` is the solution of all data ever summed, whatever their order.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gcv_alpha", "relative_grid", "solve"]


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
    shifted = gram.clone()
    shifted.diagonal().add_(alpha)
    factor, info = torch.linalg.cholesky_ex(shifted)
    if int(info) != 0:
        raise ValueError(
            f"alpha={alpha:g} is too small for these features: G + αI is not positive definite in {gram.dtype}. "
            "Use a larger alpha, or alpha='gcv'."
        )
    return torch.cholesky_solve(moments, factor)


def relative_grid(gram: Tensor, low: float = 1e-6, high: float = 1e1, count: int = 29) -> Tensor:
    """Candidates for α, spread evenly in logarithm around the mean diagonal of ``G``.

    Examples
    --------
    >>> relative_grid(4 * torch.eye(2), low=0.25, high=1.0, count=2)
    tensor([1., 4.])
    """
    scale = gram.diagonal().mean()
    steps = torch.linspace(0, 1, count, dtype=gram.dtype, device=gram.device)
    return scale * low * (high / low) ** steps


def gcv_alpha(gram: Tensor, moments: Tensor, class_weights: Tensor, rows: float) -> float:
    """Choose α by generalised cross-validation, from the sums alone (Golub, Heath & Wahba 1979).

    ``GCV(α) = n ‖Y − HB‖² / (n − tr H(G + αI)⁻¹Hᵀ)²``. One eigendecomposition ``G = VΛVᵀ`` serves all α:
    ``‖Y − HB‖² = Σ n_c − Σ (VᵀS)² (λ + 2α) / (λ + α)²``.

    While there are no more rows than features GCV has no information (both numerator and denominator can reach 0), so
    α is kept at or above a thousandth of the mean diagonal there.

    Parameters
    ----------
    gram, moments : Tensor
        The sums ``G`` and ``S``.
    class_weights : Tensor, shape (c,)
        ``Σ Y²`` a class: the weight of its examples.
    rows : float
        Number of examples in the sums, a weight counting as that many of them.

    Examples
    --------
    >>> H = torch.tensor([[1.0, 0.1], [0.9, 0.0], [1.1, 0.2], [0.0, 1.0], [0.1, 0.9]], dtype=torch.float64)
    >>> Y = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    >>> 0 < gcv_alpha(H.T @ H, H.T @ Y, Y.sum(0), rows=5) < 1
    True
    """
    eigenvalues, vectors = torch.linalg.eigh(gram)
    eigenvalues = eigenvalues.clamp_min(0)
    energy = (vectors.mT @ moments).square().sum(1)
    grid = relative_grid(gram)
    if rows <= gram.shape[0]:
        grid = grid[grid >= 0.999e-3 * gram.diagonal().mean()]
    shifted = eigenvalues + grid[:, None]
    residual = class_weights.sum() - (energy * (eigenvalues + 2 * grid[:, None]) / shifted.square()).sum(1)
    freedom = rows - (eigenvalues / shifted).sum(1)
    # Weights that add up to less than a few rows leave no degrees of freedom: such an α cannot be judged.
    score = torch.where(freedom > 0, residual.clamp_min(0) / freedom.square(), torch.inf)
    return float(grid[score.argmin()])
