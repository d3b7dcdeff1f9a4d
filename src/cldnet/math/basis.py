"""Equiangular basis vectors (Eqs. 3 and 7): unit vectors, one a class, whose cosines all stay below a ``γ``.

Up to ``dim`` vectors can be orthonormal, and are. More than that cannot stay below Welch's bound; their
table is found by descent on Eq. 7. A table depends on nothing but its arguments: same seed, same table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

__all__ = ["basis_vectors", "largest_cosine", "reachable_gamma", "welch_bound"]

_SLICE = 512  # rows of the cosine table held at once: 40 MB a copy for 10,000 vectors
_TOLERANCE = 1e-6  # the table is given in float32, which moves a cosine by some 1e-7


def welch_bound(count: int, dim: int) -> float:
    """Least `largest_cosine` that ``count`` vectors can have: ``√((C−d) / (d(C−1)))``, or 0 for ``C ≤ d``.

    Examples
    --------
    >>> welch_bound(3, 2)
    0.5
    >>> welch_bound(10, 400)
    0.0
    """
    _check_sizes(count, dim)
    if count <= dim:
        return 0.0
    return float(((count - dim) / (dim * (count - 1))) ** 0.5)


def reachable_gamma(count: int, dim: int, gamma: float = 0.04) -> float:
    """Bound on |cosine| that can be had: ``gamma`` itself, or what `basis_vectors` reaches without trouble if that is more.

    Up to ``dim`` vectors are orthogonal, so any bound holds; beyond, 1.6 times the Welch bound is well within reach (in
    seconds for a thousand vectors, in minutes for ten thousand).

    Examples
    --------
    >>> reachable_gamma(1000, 1000), round(reachable_gamma(1000, 200), 3)
    (0.04, 0.101)
    """
    return max(gamma, 1.6 * welch_bound(count, dim))


def largest_cosine(vectors: Tensor) -> float:
    """Largest ``|cos|`` between two different rows, the left side of Eq. 3; 0 for a single row.

    Examples
    --------
    >>> largest_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, -4.0]]))
    0.8
    """
    unit = normalize(vectors.detach().double(), dim=1)
    return max(float(cosines.abs().max()) for _, cosines in _cosine_slices(unit))


def basis_vectors(count: int, dim: int, gamma: float = 0.04, *, seed: int = 0, max_steps: int = 1000) -> Tensor:
    """Make ``count`` unit vectors with ``|cos| ≤ γ`` between any two (Eq. 3).

    ``count ≤ dim`` gives an orthonormal set at once, ``γ`` 0. Otherwise Eq. 7 is minimised; a ``γ`` of 1.3
    times `welch_bound` or more takes some tens of steps when ``count`` is a few times ``dim``.

    Parameters
    ----------
    count, dim : int
        Number of vectors and their length.
    gamma : float
        The largest cosine that is allowed, in [0, 1). It is kept to 1e-6.
    seed : int
        Seed of the random start. The global generator is not touched.
    max_steps : int
        Steps of the descent. Where they do not suffice, a warning names the cosine that was reached.

    Returns
    -------
    Tensor, shape (count, dim)
        Unit rows in float32. The same seed gives the same rows on every machine to 1e-6, down to about 1.3 times the
        Welch bound; nearer to it a long descent magnifies rounding, so a model keeps its table instead of a seed.

    Examples
    --------
    >>> basis_vectors(10, 64).shape
    torch.Size([10, 64])
    >>> largest_cosine(basis_vectors(40, 20, gamma=0.25)) <= 0.25
    True
    """
    _check_sizes(count, dim)
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma={gamma} is a cosine that must lie in [0, 1).")
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps} must be at least 1.")
    if count <= dim:
        return _orthonormal_columns(dim, count, seed).mT.contiguous().float()
    _check_reachable(count, dim, gamma)
    table = _descend(_orthonormal_columns(count, dim, seed), gamma, max_steps).float()
    reached = largest_cosine(table)
    if reached > gamma + _TOLERANCE:
        warnings.warn(
            f"{count} vectors of length {dim} reached a largest cosine of {reached:.6f} instead of "
            f"gamma={gamma} in max_steps={max_steps}; raise dim, gamma or max_steps.",
            stacklevel=2,
        )
    return table


def _descend(start: Tensor, gamma: float, max_steps: int) -> Tensor:
    """Follow the gradient of Eq. 7 with Nesterov's momentum until ``γ`` holds; give the best table met."""
    count, dim = start.shape
    # Eq. 7's hinge is squared: the zeros are the same, and the force fades as a pair comes near γ. Aiming a
    # little below γ makes it hold after finitely many steps.
    bound = welch_bound(count, dim)
    aim = bound + 0.8 * (gamma - bound)
    # The rows' second-moment matrix is about C/d · I, which bounds the curvature; with
    # more than 1/2, tables with count near dim swing.
    step = min(0.5, dim / count)
    table = normalize(start, dim=1)
    velocity = torch.zeros_like(table)
    best, best_cosine = table, 1.0
    for _ in range(max_steps):
        ahead = normalize(table + 0.9 * velocity, dim=1)
        gradient, cosine = _gradient(ahead, aim)
        if cosine < best_cosine:
            best, best_cosine = ahead, cosine
        if cosine <= gamma + _TOLERANCE / 2:
            break
        moved = normalize(ahead - step * gradient, dim=1)
        table, velocity = moved, moved - table
    return best


def _gradient(unit: Tensor, aim: float) -> tuple[Tensor, float]:
    """Give the gradient of Eq. 7 squared, ``½ Σ_{i<j} max(|wᵢ·wⱼ| − aim, 0)²``, and the largest ``|cos|``."""
    gradient = torch.empty_like(unit)
    largest = 0.0
    for rows, cosines in _cosine_slices(unit):
        size = cosines.abs()
        largest = max(largest, float(size.max()))
        # Pairs that already hold Eq. 3 have no force.
        gradient[rows] = (size.sub_(aim).clamp_min_(0).mul_(cosines.sign_())) @ unit
    # Along a row itself nothing is won: rows stay on the sphere.
    return gradient - (gradient * unit).sum(1, keepdim=True) * unit, largest


def _cosine_slices(unit: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Give the cosines of some rows with all rows, 0 for a row with itself, never the whole table at once."""
    for first in range(0, len(unit), _SLICE):
        rows = slice(first, first + _SLICE)
        cosines = unit[rows] @ unit.mT
        cosines.diagonal(first).zero_()
        yield rows, cosines


def _orthonormal_columns(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    # LAPACKs differ in the signs; with a positive diagonal of R the factorisation is unique. As a start,
    # orthonormal columns are already as even a spread as random vectors can have (a tight frame).
    return torch.mul(q, r.diagonal().sign())


def _check_sizes(count: int, dim: int) -> None:
    if count < 1 or dim < 1:
        raise ValueError(f"count={count} and dim={dim} must both be at least 1.")


def _check_reachable(count: int, dim: int, gamma: float) -> None:
    bound = welch_bound(count, dim)
    if gamma < bound:
        needed = math.ceil(count / (1 + gamma**2 * (count - 1)))
        raise ValueError(
            f"{count} vectors of length {dim} cannot keep gamma={gamma}: no table has a largest cosine below "
            f"{bound:.6f} (Welch's bound). Raise gamma to {bound:.6f} or more, or dim to {needed} or more."
        )
