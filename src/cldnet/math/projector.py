"""Orthogonal projectors: the recursion of Eq. 6 and the closed form that it follows.

A layer's projector is ``P = (I + A)⁻¹`` with ``A = Σ_k r_k r_kᵀ / α_k`` over the inputs ``r_k`` that the layer has seen.
``1/α_k`` is the weight of input ``k``. ``P`` is symmetric, its eigenvalues lie in (0, 1], and a direction that old
inputs used has a small one. All functions take a batch of matrices ``(..., d, d)``: a grouped convolution has one per group.

Accuracy. After ``n`` updates the error is about ``eps · (d + n) · (1 + λmax(A))``. In float64 that is below 1e-10 for inputs of
unit size, α ≥ 1e-2 and up to 10³ updates. In float32 the recursion gets negative eigenvalues for small α, so keep ``P`` and
``A`` in float64 and rebuild ``P`` from ``A`` (`from_sum`) now and then.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: A smaller pivot, relative to its diagonal entry, means that a Cholesky factor has lost too many digits.
_LEAST_PIVOT = 1e-9


def correction(projected: Tensor, weighted: Tensor) -> Tensor:
    """Compute the rows ``U`` that absorbing inputs subtracts from a projector: ``P − UᵀU``.

    Woodbury's identity: ``U = L⁻¹ R P`` with the Cholesky factor ``LLᵀ = I + R P Rᵀ`` of the small matrix. The projector
    itself is not needed: with ``P₀`` and earlier corrections, ``R P = R P₀ − (R U₀ᵀ) U₀``. ``projected`` is ``R P``, and
    ``weighted`` are the inputs ``R`` ``(..., n, d)`` divided by the root of their α.
    """
    if weighted.shape[-2] == 1:
        root: Tensor = (1 + torch.linalg.vecdot(projected, weighted)).rsqrt()
        return projected * root.unsqueeze(-1)
    inner = projected @ weighted.mT
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    rows: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), projected, upper=False)
    return rows


def from_sum(total: Tensor) -> Tensor:
    """Build the projector ``(I + A)⁻¹`` from the sum ``A`` by a Cholesky factor.

    Where rounding dominates the factor, eigenvalues are used instead; those of ``A`` that are mere rounding count as 0, so that
    a direction that no input used stays free.
    """
    shifted = total.clone()
    shifted.diagonal(dim1=-2, dim2=-1).add_(1)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    pivots = factor.diagonal(dim1=-2, dim2=-1).square() / shifted.diagonal(dim1=-2, dim2=-1)
    if bool(failed.any()) or not bool((pivots > _LEAST_PIVOT).all()):
        return _by_eigenvalues(total)
    inverse = torch.cholesky_inverse(factor)
    # LAPACK's result is in column order; in row order, products round as they do after a load from disk.
    return ((inverse + inverse.mT) / 2).contiguous()


def _by_eigenvalues(total: Tensor) -> Tensor:
    """``(I + A)⁻¹`` by an eigendecomposition."""
    values, vectors = torch.linalg.eigh(total)
    rounding = torch.finfo(total.dtype).eps * total.shape[-1] * values[..., -1:]
    values = values.where(values > rounding, 0.0)
    inverse: Tensor = (vectors / (1 + values).unsqueeze(-2)) @ vectors.mT
    return ((inverse + inverse.mT) / 2).contiguous()


def has_drifted(projector: Tensor, r: Tensor, alpha: float | Tensor, tolerance: float = 1e-2) -> bool:
    """Check cheaply whether rounding has corrupted a projector, right after it absorbed ``r`` with ``alpha``.

    In exact arithmetic ``0 < rᵀPr < α`` holds then.
    """
    form = (r * (projector @ r.unsqueeze(-1)).squeeze(-1)).sum(-1)
    sound = ((form > 0) | (r.abs().amax(-1) == 0)) & (form <= alpha * (1 + tolerance))  # false for NaN too
    return not bool(sound.all())


def spectrum(total: Tensor) -> Tensor:
    """Eigenvalues of the projector in ascending order, from the sum ``A``: ``1 / (1 + λ(A))``."""
    eigenvalues: Tensor = torch.linalg.eigvalsh(total).clamp_min(0)
    return (1 / (1 + eigenvalues)).flip(-1)
