"""Recursive least squares: follow a ridge solution from sample to sample, without solving again.

``P = (G + αI)⁻¹`` is the projector of Eq. 6 for a constant α, up to that factor. With ``k`` new rows ``H`` and targets ``Y``,
Woodbury's formula changes it by a matrix of rank ``k``, and the solution ``B`` along with it, in ``k m²`` steps:

    K = P Hᵀ,   C = I + H K,   B ← B + K C⁻¹ (Y − H B),   P ← P − K C⁻¹ Kᵀ
"""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_of(gram: Tensor, alpha: float) -> Tensor:
    """``(G + αI)⁻¹`` by a Cholesky factorisation."""
    regular = gram.clone()
    regular.diagonal().add_(alpha)
    inverse: Tensor = torch.cholesky_inverse(torch.linalg.cholesky(regular))
    return inverse


def follow(inverse: Tensor, solution: Tensor, h: Tensor, targets: Tensor) -> Tensor | None:
    """Add rows ``h`` ``(k, m)`` with targets ``(k, c)``: ``inverse`` is changed in place, a new solution is returned.

    Everything is in float64. A sample of weight ``w`` is a row and a target, both times ``√w``. The result is None, and the
    inverse unchanged, if rounding has made it useless.
    """
    across = h @ inverse  # Kᵀ: the inverse is symmetric
    inner = across @ h.mT
    inner.diagonal().add_(1)
    factor, info = torch.linalg.cholesky_ex(inner)
    if int(info):
        return None
    half = torch.linalg.solve_triangular(factor, torch.cat([across, targets - h @ solution], dim=1), upper=False)
    across, error = half[:, : len(inverse)], half[:, len(inverse) :]
    inverse.addmm_(across.mT, across, alpha=-1)
    return torch.addmm(solution, across.mT, error)
