"""Orthogonal projectors: the recursion of Eq. 6 and the closed form that it follows.

A layer's projector is ``P = (I + A)⁻¹`` with ``A = Σ_k r_k r_kᵀ / α_k`` over the inputs ``r_k`` that the layer has seen.
``1/α_k`` is the weight of input ``k``. ``P`` is symmetric, its eigenvalues lie in (0, 1], and a direction that old
inputs used has a small one. All functions take a batch of matrices ``(..., d, d)``; a grouped convolution has one a group.

Accuracy. Any way of inverting ``I + A`` is off by about ``d · eps · (1 + λmax(A))`` (its condition number), `error_bound`.
In float64 that is below 1e-10 for inputs of unit size, α ≥ 1e-2 and up to 10³ updates. In float32 the recursion gets
negative eigenvalues for small α, so whoever keeps a projector for long keeps ``P`` and ``A`` (`accumulate`) in float64,
and rebuilds ``P`` from ``A`` (`from_sum`) now and then.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "accumulate",
    "correction",
    "effective_rank",
    "error_bound",
    "from_sum",
    "has_drifted",
    "spectrum",
    "update",
    "update_block",
]

#: A pivot's share of its diagonal entry below which a Cholesky factor has lost too many of its digits.
_LEAST_PIVOT = 1e-9


def update(projector: Tensor, r: Tensor, alpha: float | Tensor) -> Tensor:
    """Let a projector absorb one input, Eq. 6: ``P − P r rᵀ P / (α + rᵀ P r)``.

    Parameters
    ----------
    projector : Tensor, shape (..., d, d)
        The projector before. It is not changed.
    r : Tensor, shape (..., d)
        The layer's new input.
    alpha : float or Tensor
        Positive; a smaller α removes the direction of ``r`` more completely.

    Examples
    --------
    >>> update(torch.eye(2), torch.tensor([1.0, 0.0]), alpha=0.25)
    tensor([[0.2000, 0.0000],
            [0.0000, 1.0000]])
    """
    weighted = _weighted(r.unsqueeze(-2), alpha)
    u = correction(weighted @ projector, weighted)
    return projector - u.mT * u


def correction(projected: Tensor, weighted: Tensor) -> Tensor:
    """Compute the rows ``U`` that absorbing inputs takes off a projector: ``P − UᵀU``.

    Woodbury's identity: ``U = L⁻¹ R P`` with the Cholesky factor ``LLᵀ = I + R P Rᵀ`` of the small matrix. A projector
    need not be written out for it: who keeps ``P₀`` and earlier corrections has ``R P = R P₀ − (R U₀ᵀ) U₀``.

    Parameters
    ----------
    projected : Tensor, shape (..., n, d)
        The inputs through the projector, ``R P``.
    weighted : Tensor, shape (..., n, d)
        The inputs ``R`` over the root of their α, so that all weigh the same.

    Examples
    --------
    >>> r = torch.tensor([[1.0, 0.0]])
    >>> correction(r @ torch.diag(torch.tensor([3.0, 1.0])), r)
    tensor([[1.5000, 0.0000]])
    """
    if weighted.shape[-2] == 1:  # the factor of a number is its root
        root: Tensor = (1 + torch.linalg.vecdot(projected, weighted)).rsqrt()
        return projected * root.unsqueeze(-1)
    inner = projected @ weighted.mT
    inner.diagonal(dim1=-2, dim2=-1).add_(1)
    rows: Tensor = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), projected, upper=False)
    return rows


def update_block(projector: Tensor, rows: Tensor, alpha: float | Tensor) -> Tensor:
    """Let a projector absorb several inputs at once, exactly as `update` one after the other.

    Woodbury's identity: ``P − P Rᵀ (αI + R P Rᵀ)⁻¹ R P``, see `correction`.

    Parameters
    ----------
    projector : Tensor, shape (..., d, d)
    rows : Tensor, shape (..., n, d)
        The inputs ``R``, one a row.
    alpha : float or Tensor
        One value for all rows, or one value a row, shape (n,).

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> update_block(torch.eye(2), rows, alpha=1.0)
    tensor([[0.3333, 0.0000],
            [0.0000, 1.0000]])
    """
    # Cheaper and rounder in the basis where every row weighs the same: r/√α with α = 1.
    weighted = _weighted(rows, alpha)
    u = correction(weighted @ projector, weighted)
    return projector - u.mT @ u


def accumulate(total: Tensor, rows: Tensor, alpha: float | Tensor, *, sign: int = 1) -> Tensor:
    """Add inputs to the sum ``A = Σ rrᵀ/α`` in its own precision, or take them out again with ``sign=-1``.

    Examples
    --------
    >>> A = accumulate(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[3.0, 0.0]]), alpha=1.0)
    >>> accumulate(A, torch.tensor([[3.0, 0.0]]), alpha=1.0, sign=-1)
    tensor([[0., 0.],
            [0., 0.]], dtype=torch.float64)
    """
    weighted = _weighted(rows.to(total.dtype), alpha)
    return total + sign * (weighted.mT @ weighted)


def from_sum(total: Tensor) -> Tensor:
    """Build the projector ``(I + A)⁻¹`` from the sum ``A`` by a Cholesky factor.

    Where ``A`` is so large and so flat that the factor is made of rounding, eigenvalues take its place; those of ``A`` that
    are no more than rounding count as 0, so that a direction which nothing has used stays free.

    Examples
    --------
    >>> from_sum(torch.diag(torch.tensor([3.0, 0.0], dtype=torch.float64))).diagonal()
    tensor([0.2500, 1.0000], dtype=torch.float64)
    """
    shifted = total.clone()
    shifted.diagonal(dim1=-2, dim2=-1).add_(1)
    factor, failed = torch.linalg.cholesky_ex(shifted)
    pivots = factor.diagonal(dim1=-2, dim2=-1).square() / shifted.diagonal(dim1=-2, dim2=-1)
    if bool(failed.any()) or not bool((pivots > _LEAST_PIVOT).all()):
        return _by_eigenvalues(total)
    inverse = torch.cholesky_inverse(factor)
    # LAPACK's answer lies in column order; in row order, products round as they will after a load from disk.
    return ((inverse + inverse.mT) / 2).contiguous()


def _by_eigenvalues(total: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(total)
    rounding = torch.finfo(total.dtype).eps * total.shape[-1] * values[..., -1:]
    values = values.where(values > rounding, 0.0)
    inverse: Tensor = (vectors / (1 + values).unsqueeze(-2)) @ vectors.mT
    return ((inverse + inverse.mT) / 2).contiguous()


def has_drifted(projector: Tensor, r: Tensor, alpha: float | Tensor, tolerance: float = 1e-2) -> bool:
    """Tell cheaply, right after ``r`` was absorbed with ``alpha``, whether rounding has spoilt a projector.

    In exact arithmetic ``0 < rᵀPr < α`` holds then, whatever was absorbed before.

    Examples
    --------
    >>> has_drifted(torch.tensor([[0.2]]), torch.tensor([1.0]), alpha=0.25)
    False
    >>> has_drifted(torch.tensor([[-0.1]]), torch.tensor([1.0]), alpha=0.25)
    True
    """
    form = (r * (projector @ r.unsqueeze(-1)).squeeze(-1)).sum(-1)
    sound = ((form > 0) | (r.abs().amax(-1) == 0)) & (form <= alpha * (1 + tolerance))  # false for NaN too
    return not bool(sound.all())


def spectrum(total: Tensor) -> Tensor:
    """Eigenvalues of the projector in ascending order, from the sum ``A``: ``1 / (1 + λ(A))``.

    Examples
    --------
    >>> spectrum(torch.diag(torch.tensor([3.0, 0.0])))
    tensor([0.2500, 1.0000])
    """
    eigenvalues: Tensor = torch.linalg.eigvalsh(total).clamp_min(0)
    return (1 / (1 + eigenvalues)).flip(-1)


def effective_rank(total: Tensor) -> Tensor:
    """Room that is left, ``tr P`` from the sum ``A``: ``d`` when nothing was seen, towards 0 when every direction is used.

    The rank of ``P`` itself is always ``d``; a figure of "rank" needs a threshold, the trace does not.

    Examples
    --------
    >>> effective_rank(torch.diag(torch.tensor([3.0, 0.0])))
    tensor(1.2500)
    """
    return spectrum(total).sum(-1)


def error_bound(total: Tensor, updates: int = 0) -> Tensor:
    """Bound the error of a projector's entries after a rebuild and ``updates`` steps of the recursion since.

    ``eps · (d + updates) · (1 + λmax(A))``, with the trace of ``A`` for its largest eigenvalue.

    Examples
    --------
    >>> bool(error_bound(torch.eye(3, dtype=torch.float64)) < 1e-14)
    True
    """
    condition = 1 + total.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.finfo(total.dtype).eps * (total.shape[-1] + updates) * condition


def _weighted(rows: Tensor, alpha: float | Tensor) -> Tensor:
    weight = torch.as_tensor(alpha, dtype=rows.dtype, device=rows.device).rsqrt()
    return rows * (weight.unsqueeze(-1) if weight.ndim else weight)
