"""Derivatives of the HSIC bottleneck (Eq. 5) by a layer's representation, in closed form.

What is minimised for a layer, ``HSIC(Z, X) − β HSIC(Z, Y)``, is linear in the matrices of ``X`` and ``Y``: with ``M``, that of
``X`` less β times that of ``Y``, it is ``tr(K M)/(n−1)²`` for HSIC and ``tr(R M)`` for nHSIC, where ``K`` is the kernel of
``Z`` and ``R = Kc (Kc + cI)⁻¹``. So one matrix a batch serves all layers, and a layer takes one Gram matrix and its way back,
where automatic differentiation would keep a dozen matrices of the batch. `cldnet.math.hsic` has the values, and tests compare
the two.

Accuracy. Centring forgets the 1 that all entries of a kernel are near, so ``K − 1`` is computed and never ``K``: in float32 it
keeps its digits. Only where exponents are so large that float32 would round them by more than the ridge, float64 takes over.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.hsic import median_off_diagonal, squared_distances

__all__ = ["Kernel", "gaussian", "label_normalised", "median_gaussian", "nhsic_derivative", "normalised", "pull_back"]

#: The largest exponent of a kernel whose rounding in float32 (some 1e-7 of it) is far below a ridge of 1e-5.
_MOST_EXPONENT = 8.0


class Kernel(NamedTuple):
    """A Gaussian kernel ``exp(−scale ‖zᵢ − zⱼ‖²)`` with what it takes to go back to its rows.

    Attributes
    ----------
    rows : Tensor, shape (n, d)
        The rows, less their mean.
    less_one : Tensor, shape (n, n)
        ``K − 1``.
    scale : float or Tensor
    """

    rows: Tensor
    less_one: Tensor
    scale: float | Tensor


def gaussian(z: Tensor, sigma: float = 5.0) -> Kernel:
    """Kernel of `cldnet.math.hsic.gaussian_kernel`: ``exp(−‖zᵢ−zⱼ‖² / (2σ²d))``.

    Examples
    --------
    >>> gaussian(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), sigma=1.0).less_one + 1
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    rows = z.reshape(len(z), -1)
    scale = 1 / (2 * sigma**2 * rows.shape[1])
    rows = rows - rows.mean(0)
    gram = rows @ rows.mT
    if rows.dtype != torch.float64 and not float(gram.diagonal().amax()) * scale < _MOST_EXPONENT:
        rows = z.reshape(len(z), -1).double()
        rows = rows - rows.mean(0)
        gram = rows @ rows.mT
    norms = gram.diagonal() * scale
    exponents = gram.mul_(2 * scale).sub_(norms).sub_(norms.unsqueeze(1)).clamp_(max=0)  # −scale ‖zᵢ − zⱼ‖²
    return Kernel(rows, exponents.expm1_(), scale)


def median_gaussian(z: Tensor) -> Kernel:
    """Kernel of `cldnet.math.hsic.median_kernel`, in float64; its bandwidth counts as a constant.

    Examples
    --------
    >>> median_gaussian(torch.tensor([[0.0], [1.0], [2.0]])).less_one[0] + 1
    tensor([1.0000, 0.6065, 0.1353], dtype=torch.float64)
    """
    rows = z.reshape(len(z), -1).double()
    rows = rows - rows.mean(0)
    squared = squared_distances(rows)
    scale = 1 / (2 * median_off_diagonal(squared))
    return Kernel(rows, torch.expm1(squared.mul_(-scale)), scale)


def label_normalised(y: Tensor, epsilon: float = 1e-5) -> Tensor:
    """``R`` of the labels' kernel (1 where two classes are the same), by a matrix as large as there are classes, in float64.

    With the one-hot rows ``F``, less their mean, ``R = F (FᵀF + εnI)⁻¹ Fᵀ``, whose entries depend on the two classes alone.

    Examples
    --------
    >>> label_normalised(torch.tensor([3, 7]), epsilon=0.5)
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]], dtype=torch.float64)
    """
    _, place, count = torch.unique(y, return_inverse=True, return_counts=True)
    share = count.double() / len(y)
    centred = (
        torch.eye(len(count), dtype=torch.float64, device=y.device) - share
    )  # a class's one-hot row, less the mean
    inner = (count[:, None] * centred).mT @ centred
    inner.diagonal().add_(epsilon * len(y))
    by_class = centred @ torch.linalg.solve(inner, centred.mT)
    by_class = (by_class + by_class.mT) / 2
    entries: Tensor = by_class[place[:, None], place]
    return entries


def normalised(kernel: Kernel, epsilon: float = 1e-5) -> Tensor:
    """``R = Kc (Kc + cI)⁻¹`` of `cldnet.math.hsic.normalise`, as ``C − c S`` with the centred inverse ``S``, in float64.

    Examples
    --------
    >>> normalised(gaussian(torch.tensor([[0.0], [9.0]]), sigma=1.0), epsilon=0.5)
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]], dtype=torch.float64)
    """
    ridge = epsilon * len(kernel.less_one)
    entries = _centred_inverse(kernel, ridge).mul_(-ridge).sub_(1 / len(kernel.less_one))
    entries.diagonal().add_(1)
    return entries


def _centred_inverse(kernel: Kernel, ridge: float) -> Tensor:
    """``C (Kc + cI)⁻¹ C`` in float64, which costs little more than float32 here and keeps the digits of a small ridge."""
    ridged = kernel.less_one.to(torch.float64, copy=True)
    means = ridged.mean(0)  # of columns as of rows, since a kernel is symmetric
    means -= means.mean() / 2
    ridged.sub_(means).sub_(means.unsqueeze(1)).diagonal().add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(ridged))
    # Kc forgets the vector of ones, so that the inverse has 1/c in its direction and nothing across: centring takes it off.
    return inverse.sub_(1 / (ridge * len(inverse)))


def nhsic_derivative(kernel: Kernel, against: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Derivative of ``tr(R M)`` by the kernel: ``c S M S`` with ``S = C (Kc + cI)⁻¹ C``, since ``R = C − c S``.

    The products, whose rounding is that of any gradient's, are made in the dtype of the rows.

    Parameters
    ----------
    kernel : Kernel
    against : Tensor, shape (n, n)
        The symmetric matrix ``M``.
    epsilon : float
        ``c`` is ``ε n``.

    Examples
    --------
    >>> kernel = gaussian(torch.tensor([[0.0], [9.0]]), sigma=1.0)
    >>> nhsic_derivative(kernel, torch.eye(2), epsilon=0.5)
    tensor([[ 0.1250, -0.1250],
            [-0.1250,  0.1250]], dtype=torch.float64)
    """
    ridge = epsilon * len(kernel.less_one)
    inverse = _centred_inverse(kernel, ridge).to(kernel.rows.dtype)
    return inverse @ (against.to(inverse.dtype) @ inverse).mul_(ridge)


def pull_back(kernel: Kernel, derivative: Tensor) -> Tensor:
    """Derivative by the rows of what has this symmetric derivative by the kernel, ``Σ_ij G_ij K_ij``.

    With ``W = G ∘ K`` it is ``4 · scale · (W Z − diag(W 1) Z)``.

    Examples
    --------
    >>> z = torch.tensor([[0.0], [1.0]])
    >>> pull_back(gaussian(z, sigma=1.0), torch.ones(2, 2))  # of 2 exp(−(z₁ − z₂)² / 2)
    tensor([[ 1.2131],
            [-1.2131]])
    """
    weights = torch.addcmul(derivative, derivative, kernel.less_one)
    pulled = torch.addcmul(weights @ kernel.rows, weights.sum(1, keepdim=True), kernel.rows, value=-1)
    return pulled.mul_(4 * kernel.scale)
