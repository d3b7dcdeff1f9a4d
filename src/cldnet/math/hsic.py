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


#: Rows from which on copying a quarter of a product is faster than computing it.
_LARGE = 128
#: The largest exponent whose rounding in float32 (some 1e-7 of it) is far below a ridge of 1e-5.
_MAX_EXPONENT = 8.0


class Kernel(NamedTuple):
    """A Gaussian kernel ``exp(−scale ‖zᵢ − zⱼ‖²)``: the centred rows ``(n, d)``, ``K − 1`` as ``less_one``, and the scale."""

    rows: Tensor
    less_one: Tensor
    scale: float | Tensor


def _symmetric_product(left: Tensor, right: Tensor) -> Tensor:
    """A product that is symmetric: one quarter of a large one is copied instead of computed."""
    n = len(left)
    if n < _LARGE:
        return left @ right
    half, product = n // 2, left.new_empty(n, n)
    torch.mm(left[:half], right, out=product[:half])
    torch.mm(left[half:], right[:, half:], out=product[half:, half:])
    product[half:, :half] = product[:half, half:].mT
    return product


def gaussian(z: Tensor, sigma: float = 5.0) -> Kernel:
    """`Kernel` of samples ``(n, …)`` whose bandwidth grows with the dimension: ``exp(−‖zᵢ−zⱼ‖² / (2σ²d))``."""
    rows = z.reshape(len(z), -1)
    scale = 1 / (2 * sigma**2 * rows.shape[1])
    rows = rows - rows.mean(0)
    gram = _symmetric_product(rows, rows.mT)
    if rows.dtype != torch.float64 and not float(gram.diagonal().amax()) * scale < _MAX_EXPONENT:
        rows = z.reshape(len(z), -1).double()
        rows = rows - rows.mean(0)
        gram = _symmetric_product(rows, rows.mT)
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


def label_normalised(y: Tensor, epsilon: float = 1e-5, dtype: torch.dtype = torch.float64) -> Tensor:
    """``R`` of the `label_kernel`, by a matrix as large as there are classes.

    With the one-hot rows ``F``, less their mean, ``R = F (FᵀF + εnI)⁻¹ Fᵀ``, whose entries depend on the two classes alone.
    """
    _, place, count = torch.unique(y, return_inverse=True, return_counts=True)
    share = count.double() / len(y)
    centred = torch.eye(len(count), dtype=torch.float64, device=y.device) - share  # one-hot rows, less the mean
    inner = (count[:, None] * centred).mT @ centred
    inner.diagonal().add_(epsilon * len(y))
    by_class = (centred @ torch.linalg.solve(inner, centred.mT)).to(dtype)
    members = torch.nn.functional.one_hot(place, len(count)).to(dtype)
    entries: Tensor = members @ ((by_class + by_class.mT) / 2) @ members.mT
    return entries


def normalised(inverse: Tensor, ridge: float) -> Tensor:
    """``R = Kc (Kc + cI)⁻¹ = C − c S`` from the `centred_inverse` ``S``."""
    entries = (inverse * -ridge).sub_(1 / inverse.shape[-1])
    entries.diagonal(dim1=-2, dim2=-1).add_(1)
    return entries


#: The largest trace over ridge whose inverse is accurate enough in float32: errors are some 1e-7 of it.
_MAX_CONDITION = 1e4


def centred_inverse(less_one: Tensor, ridge: float) -> Tensor:
    """``S = C (Kc + cI)⁻¹ C`` of kernels ``(..., n, n)``, given without the 1; see `Kernel`.

    In float32 the derivatives below are within 5e-4 of those in float64 (a ridge of 1e-5 n, activations of MNIST, batches of 64
    to 512). Where the ridge is smaller beside the kernel, float64 takes over.
    """
    means = less_one.mean(-1)  # of columns as of rows
    means = means - means.mean(-1, keepdim=True) / 2
    ridged = (less_one - means.unsqueeze(-1)).sub_(means.unsqueeze(-2))
    largest = float(ridged.diagonal(dim1=-2, dim2=-1).sum(-1).amax())
    if ridged.dtype != torch.float64 and not largest <= _MAX_CONDITION * ridge:
        return centred_inverse(less_one.double(), ridge).to(less_one.dtype)
    ridged.diagonal(dim1=-2, dim2=-1).add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(ridged))
    # Kc maps the vector of ones to 0, so the inverse has 1/c in that direction: centring removes it.
    return inverse.sub_(1 / (ridge * ridged.shape[-1]))


def nhsic_derivative(inverse: Tensor, against: Tensor, ridge: float) -> Tensor:
    """Derivative of ``tr(R M)`` by the kernel: ``c S M S``, since ``R = C − c S``.

    ``inverse`` is the `centred_inverse` ``S``, ``against`` the symmetric matrix ``M``, and ``ridge`` is ``c = ε n``.
    """
    return _symmetric_product(inverse, (against @ inverse).mul_(ridge))


def pull_back(kernel: Kernel, derivative: Tensor) -> Tensor:
    """Derivative by the rows, from the symmetric derivative ``G`` by the kernel: that of ``Σ_ij G_ij K_ij``.

    With ``W = G ∘ K`` it is ``4 · scale · (W Z − diag(W 1) Z)``.
    """
    weights = torch.addcmul(derivative, derivative, kernel.less_one)
    pulled = torch.addcmul(weights @ kernel.rows, weights.sum(1, keepdim=True), kernel.rows, value=-1)
    return pulled.mul_(4 * kernel.scale)
