"""The HSIC bottleneck's derivatives (Eq. 5): how a layer's representation should move to depend on the label, not the input.

HSIC of two kernels, symmetric ``(n, n)`` matrices over a batch, is ``(n−1)⁻² tr(H C G C)`` with the centring matrix ``C`` (Eq.
2). The HSIC bottleneck of Ma et al. (2020) trains with the normalised form, nHSIC: ``tr(Rₓ Rᵧ)`` with ``R = Kc (Kc + εnI)⁻¹``.
In a batch of one sample or one class nothing depends on anything: both are 0, and so are their derivatives.

The derivatives by a layer's representation are in closed form. What a layer minimises, ``HSIC(Z, X)
− β HSIC(Z, Y)``, is linear in the matrices of ``X`` and ``Y``: with ``M``, that of ``X`` less β times that of ``Y``, it is
``tr(K M)/(n−1)²`` for HSIC and ``tr(R M)`` for nHSIC, where ``K`` is the kernel of ``Z`` and ``R = Kc (Kc + cI)⁻¹``. So one
matrix per batch serves all layers, and a layer takes one Gram matrix and its way back, where automatic differentiation would
keep a dozen matrices. Centring removes the 1 that all entries are near, so `Kernel` holds ``K − 1``: in float32 it keeps its
digits. Float64 takes over only where exponents are so large that float32 would round them by more than the ridge.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def label_kernel(y: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Kernel of integer labels: 1 where two samples have the same class, else 0."""
    if y.ndim != 1:
        raise ValueError(f"Labels must have the shape (n,), got {tuple(y.shape)}.")
    return (y.unsqueeze(0) == y.unsqueeze(1)).to(dtype)


def center(kernel: Tensor) -> Tensor:
    """Centre a kernel in feature space: ``C K C`` with ``C = I − 11ᵀ/n``, which is never built."""
    # Centring removes any constant, so one entry is subtracted first. That is exact where entries are close to each other, the
    # means below are then small, and a constant kernel (one class, one sample) gives exact zeros.
    shifted = kernel - kernel[0, 0].detach()
    return shifted - shifted.mean(0, keepdim=True) - shifted.mean(1, keepdim=True) + shifted.mean()


def squared_distances(rows: Tensor) -> Tensor:
    """Squared distances between rows ``(n, d)``, in their own precision."""
    # Not cdist: the root's gradient is infinite for duplicate rows. Distances do not depend on the mean, rounding does.
    rows = rows - rows.mean(0)
    gram = rows @ rows.mT
    gram = (gram + gram.mT) / 2  # BLAS may add up the two triangles in different orders
    norms = gram.diagonal()
    return (norms.unsqueeze(0) + norms.unsqueeze(1) - 2 * gram).clamp_min(0)


def median_off_diagonal(squared: Tensor) -> Tensor:
    """Median of the squared distances between different rows, at least a little more than rounding."""
    n = len(squared)
    i, j = torch.triu_indices(n, n, offset=1, device=squared.device)
    median = squared[i, j].median() if n > 1 else squared.new_zeros(())
    return median.clamp_min(1e-10 * squared.max() + 1e-12)


#: The largest exponent whose rounding in float32 (some 1e-7 of it) is far below a ridge of 1e-5.
_MAX_EXPONENT = 8.0


class Kernel(NamedTuple):
    """A Gaussian kernel ``exp(−scale ‖zᵢ − zⱼ‖²)``: the centred rows ``(n, d)``, ``K − 1`` as ``less_one``, and the scale."""

    rows: Tensor
    less_one: Tensor
    scale: float | Tensor


def gaussian(z: Tensor, sigma: float = 5.0) -> Kernel:
    """`Kernel` of samples ``(n, …)`` whose bandwidth grows with the dimension: ``exp(−‖zᵢ−zⱼ‖² / (2σ²d))``."""
    rows = z.reshape(len(z), -1)
    scale = 1 / (2 * sigma**2 * rows.shape[1])
    rows = rows - rows.mean(0)
    gram = rows @ rows.mT
    if rows.dtype != torch.float64 and not float(gram.diagonal().amax()) * scale < _MAX_EXPONENT:
        rows = z.reshape(len(z), -1).double()
        rows = rows - rows.mean(0)
        gram = rows @ rows.mT
    norms = gram.diagonal() * scale
    exponents = gram.mul_(2 * scale).sub_(norms).sub_(norms.unsqueeze(1)).clamp_(max=0)  # −scale ‖zᵢ − zⱼ‖²
    return Kernel(rows, exponents.expm1_(), scale)


def median_gaussian(z: Tensor) -> Kernel:
    """`Kernel` with the median distance as its bandwidth, which counts as a constant, in float64."""
    rows = z.reshape(len(z), -1).double()
    rows = rows - rows.mean(0)
    squared = squared_distances(rows)
    scale = 1 / (2 * median_off_diagonal(squared))
    return Kernel(rows, torch.expm1(squared.mul_(-scale)), scale)


def label_normalised(y: Tensor, epsilon: float = 1e-5) -> Tensor:
    """``R`` of the `label_kernel`, in float64, by a matrix as large as there are classes.

    With the one-hot rows ``F``, less their mean, ``R = F (FᵀF + εnI)⁻¹ Fᵀ``, whose entries depend on the two classes alone.
    """
    _, place, count = torch.unique(y, return_inverse=True, return_counts=True)
    share = count.double() / len(y)
    centred = torch.eye(len(count), dtype=torch.float64, device=y.device) - share  # one-hot rows, less the mean
    inner = (count[:, None] * centred).mT @ centred
    inner.diagonal().add_(epsilon * len(y))
    by_class = centred @ torch.linalg.solve(inner, centred.mT)
    by_class = (by_class + by_class.mT) / 2
    entries: Tensor = by_class[place[:, None], place]
    return entries


def normalised(kernel: Kernel, epsilon: float = 1e-5) -> Tensor:
    """``R = Kc (Kc + cI)⁻¹`` with ``c = εn``, by ``C − c S`` with the centred inverse ``S``, in float64."""
    ridge = epsilon * len(kernel.less_one)
    entries = _centred_inverse(kernel, ridge).mul_(-ridge).sub_(1 / len(kernel.less_one))
    entries.diagonal().add_(1)
    return entries


def _centred_inverse(kernel: Kernel, ridge: float) -> Tensor:
    """``C (Kc + cI)⁻¹ C`` in float64, which costs little more than float32 and keeps the digits of a small ridge."""
    ridged = kernel.less_one.to(torch.float64, copy=True)
    means = ridged.mean(0)  # of columns as of rows
    means -= means.mean() / 2
    ridged.sub_(means).sub_(means.unsqueeze(1)).diagonal().add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(ridged))
    # Kc maps the vector of ones to 0, so the inverse has 1/c in that direction: centring removes it.
    return inverse.sub_(1 / (ridge * len(inverse)))


def nhsic_derivative(kernel: Kernel, against: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Derivative of ``tr(R M)`` by the kernel: ``c S M S`` with ``S = C (Kc + cI)⁻¹ C``, since ``R = C − c S``.

    ``against`` is the symmetric matrix ``M``, and ``c`` is ``ε n``. The products are made in the dtype of the rows.
    """
    ridge = epsilon * len(kernel.less_one)
    inverse = _centred_inverse(kernel, ridge).to(kernel.rows.dtype)
    return inverse @ (against.to(inverse.dtype) @ inverse).mul_(ridge)


def pull_back(kernel: Kernel, derivative: Tensor) -> Tensor:
    """Derivative by the rows, from the symmetric derivative ``G`` by the kernel: that of ``Σ_ij G_ij K_ij``.

    With ``W = G ∘ K`` it is ``4 · scale · (W Z − diag(W 1) Z)``.
    """
    weights = torch.addcmul(derivative, derivative, kernel.less_one)
    pulled = torch.addcmul(weights @ kernel.rows, weights.sum(1, keepdim=True), kernel.rows, value=-1)
    return pulled.mul_(4 * kernel.scale)
