"""HSIC written out (Eq. 2 and its normalised form), for automatic differentiation: what the derivatives are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from cldnet.math.hsic import center, median_off_diagonal, squared_distances


def gaussian_kernel(x: Tensor, sigma: float = 5.0) -> Tensor:
    """Gaussian kernel of samples ``(n, …)`` whose bandwidth grows with the dimension: ``exp(−‖xᵢ−xⱼ‖² / (2σ²d))``."""
    if not sigma > 0:
        raise ValueError(f"sigma={sigma} must be positive.")
    rows = _rows(x)
    return torch.exp(squared_distances(rows) / (-2 * sigma**2 * rows.shape[1])).to(x.dtype)


def median_kernel(x: Tensor) -> Tensor:
    """Gaussian kernel with the median rule: ``exp(−‖xᵢ−xⱼ‖² / (2s²))``, ``s`` the median distance.

    ``s`` is a constant of the batch: no gradient flows through it. Of an even number of distances it is the lower middle one.
    """
    squared = squared_distances(_rows(x))
    return torch.exp(squared / (-2 * median_off_diagonal(squared.detach()))).to(x.dtype)


def hsic(kernel_x: Tensor, kernel_y: Tensor) -> Tensor:
    """Empirical HSIC, Eq. 2: ``(n−1)⁻² tr(H K G K)``.

    ``H`` and ``G`` are the two kernels, ``K`` is the centring matrix. It is ``n²/(n−1)²`` times Eq. 1 over the batch.
    """
    n = kernel_x.shape[0]
    # Centring is idempotent, so centring both kernels changes nothing but the rounding. One sample has trace 0.
    return _trace_of_product(center(kernel_x), center(kernel_y)) / max(n - 1, 1) ** 2


def normalise(kernel: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Centre a kernel to ``Kc`` and squeeze its eigenvalues into [0, 1): ``R = Kc (Kc + εnI)⁻¹``.

    Directions of variance below ``ε`` are ignored. Where the kernel's own rounding is above ``ε``, that rounding is used.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon} must be positive.")
    n = kernel.shape[0]
    # Ma et al. centre on the right only, R' = KH (KH + cI)⁻¹ with H = I − 11ᵀ/n. Since H is idempotent, R'
    # equals KH (HKH + cI)⁻¹ H, and since H commutes with that inverse, one H can be moved around the trace:
    # tr(R'ₓ R'ᵧ) is tr(Rₓ Rᵧ). The two-sided form is symmetric, hence Cholesky.
    centred = center(kernel.double())
    rounding = torch.finfo(kernel.dtype).eps * kernel.detach().abs().amax().double()
    ridge = n * rounding.clamp_min(epsilon)
    identity = torch.eye(n, dtype=centred.dtype, device=centred.device)
    factor = torch.linalg.cholesky(centred + ridge * identity)
    # Kc and the inverse commute. Solving, instead of I − c·inverse, keeps digits when Kc is small relative to c.
    return torch.cholesky_solve(centred, factor).to(kernel.dtype)


def nhsic(kernel_x: Tensor, kernel_y: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Normalised HSIC of Ma et al. (2020): ``tr(Rₓ Rᵧ)`` with ``R`` from `normalise`.

    It hardly depends on the scale of a kernel, and is below the rank of either centred kernel: ``C − 1`` for the
    `label_kernel` of ``C`` classes.
    """
    return _trace_of_product(normalise(kernel_x, epsilon), normalise(kernel_y, epsilon))


def _rows(x: Tensor) -> Tensor:
    """Samples as rows in float64."""
    if not x.is_floating_point():
        raise TypeError(f"A kernel needs floating-point samples, got {x.dtype}. Convert them, or use label_kernel.")
    if len(x) == 0:
        raise ValueError("A kernel needs at least one sample.")
    return x.reshape(len(x), -1).double()


def _trace_of_product(a: Tensor, b: Tensor) -> Tensor:
    """``tr(AB)``."""
    return (a * b.mT).sum()
