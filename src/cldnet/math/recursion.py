"""Recursive least squares: follow a ridge solution from sample to sample, without solving again.

``P = (G + αI)⁻¹`` is the projector of Eq. 6 for a constant α, up to that factor. With ``k`` new rows ``H`` and targets ``Y``,
Woodbury's formula changes it by a matrix of rank ``k``, and the solution ``B`` along with it, in ``k m²`` steps:

    K = P Hᵀ,   C = I + H K,   B ← B + K C⁻¹ (Y − H B),   P ← P − K C⁻¹ Kᵀ
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Recursion(NamedTuple):
    """``P`` and ``B`` of all samples so far. Both stay as they are when samples follow: other threads may be using them."""

    inverse: Tensor
    solution: Tensor


def begun(gram: Tensor, moments: Tensor, alpha: float) -> Recursion:
    """Begin with the sums ``G`` and ``S`` of some samples, by a Cholesky factorisation."""
    regular = gram.clone()
    regular.diagonal().add_(alpha)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(regular))
    return Recursion(inverse, inverse @ moments)


def followed(last: Recursion, h: Tensor, targets: Tensor) -> Recursion | None:
    """Add rows ``h`` ``(k, m)`` with targets ``(k, c)``, all in float64; None if rounding has made the inverse useless.

    A sample of weight ``w`` is a row and a target, both times ``√w``.
    """
    across = h @ last.inverse  # Kᵀ, because P is symmetric
    inner = across @ h.mT
    inner.diagonal().add_(1)
    factor, info = torch.linalg.cholesky_ex(inner)
    if int(info):
        return None
    half = torch.linalg.solve_triangular(factor, torch.cat([across, targets - h @ last.solution], dim=1), upper=False)
    across, error = half[:, : h.shape[1]], half[:, h.shape[1] :]
    if len(h) == 1:  # reads and writes every number once, which a matrix product does not
        inverse = torch.addr(last.inverse, across[0], across[0], alpha=-1)
    else:
        inverse = torch.addmm(last.inverse, across.mT, across, alpha=-1)
    return Recursion(inverse, torch.addmm(last.solution, across.mT, error))
