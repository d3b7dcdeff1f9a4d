"""How much two views of one batch depend on each other: HSIC (Eqs. 1 and 2) and its normalised form.

Kernels of ``n`` samples are symmetric ``(n, n)`` matrices. `hsic` is the paper's Eq. 2; `nhsic` is what the
HSIC bottleneck of Ma et al. (2020) really trains with. A batch of one sample or of one class depends on
nothing: both are exactly 0 then, and so is their gradient.

Accuracy. With the usual σ = 5 all entries of a kernel lie within 1e-3 of 1 and centring removes that 1, so
kernels are computed in float64 and rounded once. Each entry is then off by at most ``u/2`` (``u`` is the
input dtype's epsilon) and an eigenvalue by ``n·u/2``; in float32 that is 6e-8·n, well below the ridge 1e-5·n,
so Cholesky cannot fail.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "center",
    "gaussian_kernel",
    "hsic",
    "label_kernel",
    "linear_kernel",
    "median_kernel",
    "median_off_diagonal",
    "nhsic",
    "nhsic_normalised",
    "normalise",
    "squared_distances",
]


def gaussian_kernel(x: Tensor, sigma: float = 5.0) -> Tensor:
    """Gaussian kernel whose bandwidth grows with the dimension: ``exp(−‖xᵢ−xⱼ‖² / (2σ²d))``.

    Parameters
    ----------
    x : Tensor, shape (n, ...)
        One sample a row; each is flattened to ``d`` numbers.
    sigma : float
        Positive; 5 in Ma et al. (2020), for every layer.

    Examples
    --------
    >>> gaussian_kernel(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), sigma=1.0)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    if not sigma > 0:
        raise ValueError(f"sigma={sigma} must be positive.")
    rows = _rows(x)
    return torch.exp(squared_distances(rows) / (-2 * sigma**2 * rows.shape[1])).to(x.dtype)


def median_kernel(x: Tensor) -> Tensor:
    """Gaussian kernel with the median rule: ``exp(−‖xᵢ−xⱼ‖² / (2s²))``, ``s`` the median distance.

    ``s`` is a constant of the batch, over all pairs of rows: no gradient flows through it. Of an even number
    of distances it is the lower middle one.

    Examples
    --------
    >>> median_kernel(torch.tensor([[0.0], [1.0], [2.0]]))
    tensor([[1.0000, 0.6065, 0.1353],
            [0.6065, 1.0000, 0.6065],
            [0.1353, 0.6065, 1.0000]])
    """
    squared = squared_distances(_rows(x))
    return torch.exp(squared / (-2 * median_off_diagonal(squared.detach()))).to(x.dtype)


def linear_kernel(x: Tensor) -> Tensor:
    """Inner products of the flattened rows, ``xᵢ·xⱼ``.

    Examples
    --------
    >>> linear_kernel(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))
    tensor([[1., 1.],
            [1., 5.]])
    """
    return _gram(_rows(x)).to(x.dtype)


def label_kernel(y: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Kernel of integer labels: 1 where two samples have the same class, else 0.

    Examples
    --------
    >>> label_kernel(torch.tensor([3, 7, 3]))
    tensor([[1., 0., 1.],
            [0., 1., 0.],
            [1., 0., 1.]])
    """
    if y.ndim != 1:
        raise ValueError(f"Labels must have the shape (n,), not {tuple(y.shape)}.")
    return (y.unsqueeze(0) == y.unsqueeze(1)).to(dtype)


def center(kernel: Tensor) -> Tensor:
    """Centre a kernel in feature space: ``C K C`` with ``C = I − 11ᵀ/n``, which is never built.

    Examples
    --------
    >>> center(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([[ 0.5000, -0.5000],
            [-0.5000,  0.5000]])
    """
    # Centring forgets any constant, so one entry is taken off first: this subtraction is exact where entries
    # are near each other, the means below are then small, and a constant kernel (one class, one sample) gives
    # exact zeros.
    shifted = kernel - kernel[0, 0].detach()
    return shifted - shifted.mean(0, keepdim=True) - shifted.mean(1, keepdim=True) + shifted.mean()


def hsic(kernel_x: Tensor, kernel_y: Tensor) -> Tensor:
    """Empirical HSIC, Eq. 2: ``(n−1)⁻² tr(H K G K)``.

    ``H`` and ``G`` are the two kernels, ``K`` is the centring matrix. It is ``n²/(n−1)²`` times Eq. 1 taken
    over the batch.

    Examples
    --------
    >>> same = label_kernel(torch.tensor([0, 0, 1, 1]))
    >>> hsic(same, same), hsic(same, label_kernel(torch.tensor([0, 1, 0, 1])))
    (tensor(0.4444), tensor(0.))
    """
    n = kernel_x.shape[0]
    # Eq. 2. Centring is idempotent, so centring both kernels changes nothing but the rounding. One sample
    # has trace 0.
    return _trace_of_product(center(kernel_x), center(kernel_y)) / max(n - 1, 1) ** 2


def normalise(kernel: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Centre a kernel to ``Kc`` and squeeze its eigenvalues into [0, 1): ``R = Kc (Kc + εnI)⁻¹``.

    Parameters
    ----------
    kernel : Tensor, shape (n, n)
    epsilon : float
        Positive. Directions of variance below ``ε`` are ignored. Where the kernel's own rounding is above
        ``ε``, as for a linear kernel of large inputs in float32, that rounding takes its place.

    Examples
    --------
    >>> normalise(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), epsilon=0.5)
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
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
    # Kc and the inverse commute. Solving, instead of I − c·inverse, keeps digits when Kc is small beside c.
    return torch.cholesky_solve(centred, factor).to(kernel.dtype)


def nhsic(kernel_x: Tensor, kernel_y: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Normalised HSIC of Ma et al. (2020): ``tr(Rₓ Rᵧ)`` with ``R`` from `normalise`.

    It does not change much with the scale of a kernel and lies below the rank of either centred kernel, so
    for the `label_kernel` of ``C`` classes below ``C − 1``.

    Examples
    --------
    >>> same = label_kernel(torch.tensor([0, 0, 1, 1]))
    >>> nhsic(same, same, epsilon=0.1)  # one direction, of eigenvalue 2: (2 / (2 + 0.4))²
    tensor(0.6944)
    """
    return nhsic_normalised(normalise(kernel_x, epsilon), normalise(kernel_y, epsilon))


def nhsic_normalised(r_x: Tensor, r_y: Tensor) -> Tensor:
    """`nhsic` of two matrices that `normalise` gave, so that one factorisation a batch serves all layers.

    Examples
    --------
    >>> r = normalise(label_kernel(torch.tensor([0, 0, 1, 1])), epsilon=0.1)
    >>> nhsic_normalised(r, r)
    tensor(0.6944)
    """
    return _trace_of_product(r_x, r_y)


def _rows(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"A kernel takes floating-point rows, not {x.dtype}; convert them, or use label_kernel.")
    if len(x) == 0:
        raise ValueError("A kernel needs at least one row.")
    return x.reshape(len(x), -1).double()


def _gram(rows: Tensor) -> Tensor:
    gram = rows @ rows.mT
    return (gram + gram.mT) / 2  # BLAS may add up the two triangles in different orders


def squared_distances(rows: Tensor) -> Tensor:
    """Squared distances between rows ``(n, d)``, in their own precision.

    Examples
    --------
    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    # Not cdist: the root's gradient is infinite for duplicate rows. Distances do not see the
    # mean, rounding does.
    gram = _gram(rows - rows.mean(0))
    norms = gram.diagonal()
    return (norms.unsqueeze(0) + norms.unsqueeze(1) - 2 * gram).clamp_min(0)


def median_off_diagonal(squared: Tensor) -> Tensor:
    """Median of the squared distances between different rows, and a little more than rounding where that is 0.

    Examples
    --------
    >>> median_off_diagonal(torch.tensor([[0.0, 4.0], [4.0, 0.0]]))
    tensor(4.)
    """
    n = len(squared)
    i, j = torch.triu_indices(n, n, offset=1, device=squared.device)
    median = squared[i, j].median() if n > 1 else squared.new_zeros(())
    # When most rows are duplicates the median is 0 up to rounding; the floor is above that rounding.
    return median.clamp_min(1e-10 * squared.max() + 1e-12)


def _trace_of_product(a: Tensor, b: Tensor) -> Tensor:
    return (a * b.mT).sum()
