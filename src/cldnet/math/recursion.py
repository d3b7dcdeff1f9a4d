"""Recursive least squares: follow a ridge solution from sample to sample, without solving again.

``P = (G + αI)⁻¹`` is the projector of Eq. 6 for a constant α, up to that factor. With ``k`` new rows ``H`` and targets ``Y``,
Woodbury's formula changes it by a matrix of rank ``k``, and the solution ``B`` along with it, in ``k m²`` steps:

    K = P Hᵀ,   C = I + H K,   B ← B + K C⁻¹ (Y − H B),   P ← P − K C⁻¹ Kᵀ

``P`` is packed as `cldnet.math.symmetric` packs ``G``: with one row at a time, reading and writing it is what takes the time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math import symmetric


class Recursion(NamedTuple):
    """The packed inverse and the solution of all samples so far. Both stay as they are when samples follow."""

    inverse: Tensor
    solution: Tensor


def begun(gram: Tensor, moments: Tensor, alpha: float) -> Recursion:
    """Begin with the sums ``G`` and ``S`` of some samples, by a Cholesky factorisation."""
    regular = gram.clone()
    regular.diagonal().add_(alpha)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(regular))
    return Recursion(symmetric.pack(inverse), inverse @ moments)


def followed(last: Recursion, h: Tensor, targets: Tensor) -> Recursion | None:
    """Add rows ``h`` ``(k, m)`` with targets ``(k, c)``, all in float64; None if rounding has made the inverse useless.

    A sample of weight ``w`` is a row and a target, both times ``√w``.
    """
    across = symmetric.times(last.inverse, h)  # Kᵀ
    inner = across @ h.mT
    inner.diagonal().add_(1)
    factor, info = torch.linalg.cholesky_ex(inner)
    if int(info):
        return None
    half = torch.linalg.solve_triangular(factor, torch.cat([across, targets - h @ last.solution], dim=1), upper=False)
    across, error = half[:, : h.shape[1]], half[:, h.shape[1] :]
    return Recursion(symmetric.plus_few(last.inverse, -across, across), torch.addmm(last.solution, across.mT, error))
