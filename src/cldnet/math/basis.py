"""Equiangular basis vectors (Eqs. 3 and 7): unit vectors, one a class, whose cosines all stay below a ``γ``.

Up to ``dim`` vectors can be orthonormal, and are. More than that cannot stay below Welch's bound; their
table is found by descent on Eq. 7. A table depends on nothing but its arguments: same seed, same table. Vectors can be
added to a table without moving those that it has.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

__all__ = ["basis_vectors", "check_gamma", "extend_basis", "largest_cosine", "reachable_gamma", "welch_bound"]

_SLICE = 512  # rows of the cosine table held at once: 40 MB a copy for 10,000 vectors
_MOST = 50_000  # vectors that a descent is begun with: each of its steps takes time with their square
_PATIENCE = 25  # steps after which a descent that wins no more aims at less
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
    seconds for a thousand vectors, in minutes for ten thousand). With more than some 14 vectors a dimension no table comes
    that near to it, and what is given rises with the fourth root of their number.

    Examples
    --------
    >>> reachable_gamma(1000, 1000), round(reachable_gamma(1000, 200), 3), round(reachable_gamma(1000, 20), 3)
    (0.04, 0.101, 0.511)
    """
    crowding = max(1.0, (1 + 1 / dim) * math.pow(count / (14 * dim), 0.25))
    # As long as the caps around the vectors do not cover the sphere there is room for one more (Gilbert's bound).
    greedy = math.sqrt(1 - 1 / math.pow(count, 2 / max(1, dim - 1)))
    return max(gamma, min(1.6 * crowding * welch_bound(count, dim), greedy))


def check_gamma(count: int, dim: int, gamma: float) -> None:
    """Refuse a bound that no ``count`` vectors of length ``dim`` can keep, without making any.

    Examples
    --------
    >>> check_gamma(40, 20, gamma=0.2)
    """
    _check_sizes(count, dim)
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma={gamma} is a cosine that must lie in [0, 1).")
    bound = welch_bound(count, dim)
    if gamma < bound:
        needed = math.ceil(count / (1 + gamma**2 * (count - 1)))
        raise ValueError(
            f"{count} vectors of length {dim} cannot keep gamma={gamma}: no table has a largest cosine below "
            f"{bound:.6f} (Welch's bound). Raise gamma to {bound:.6f} or more, or dim to {needed} or more."
        )


def largest_cosine(vectors: Tensor) -> float:
    """Largest ``|cos|`` between two different rows, the left side of Eq. 3; 0 for a single row.

    Examples
    --------
    >>> largest_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, -4.0]]))
    0.8
    """
    unit = normalize(vectors.detach().double(), dim=1)
    return max(float(cosines.abs().max()) for _, cosines in _cosine_slices(unit, unit))


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
    check_gamma(count, dim, gamma)
    _check_bearable(count, dim)
    if max_steps < 1:
        raise ValueError(f"max_steps={max_steps} must be at least 1.")
    if count <= dim:
        return _orthonormal_columns(dim, count, seed).mT.contiguous().float()
    table = _descend(_orthonormal_columns(count, dim, seed), gamma, max_steps).float()
    reached = largest_cosine(table)
    if reached > gamma + _TOLERANCE:
        warnings.warn(
            f"{count} vectors of length {dim} reached a largest cosine of {reached:.6f} instead of "
            f"gamma={gamma} in max_steps={max_steps}; raise dim, gamma or max_steps.",
            stacklevel=2,
        )
    return table


def extend_basis(vectors: Tensor, count: int, gamma: float = 0.04, *, seed: int = 0, max_steps: int = 1000) -> Tensor:
    """Add unit vectors to a table until there are ``count``, and leave those that are there as they are, bit for bit.

    ``count ≤ dim`` adds vectors that are orthogonal to the old ones and to each other. Otherwise Eq. 7 is minimised over the
    new ones alone. Old ones that stay where they are leave less room than a table made at once has: a vector has a cosine of
    ``1/√dim`` at least with one of ``dim`` orthogonal ones. So ``γ`` is what is aimed at, and `largest_cosine` tells what
    came out, without a warning here.

    Parameters
    ----------
    vectors : Tensor, shape (n, dim)
        Unit rows, as `basis_vectors` gives them.
    count : int
        Number of rows wanted, ``n`` or more.
    gamma, seed, max_steps
        As for `basis_vectors`. The same seed and vectors give the same new rows.

    Examples
    --------
    >>> table = basis_vectors(10, 20)
    >>> more = extend_basis(table, 30, gamma=0.3)
    >>> torch.equal(more[:10], table), largest_cosine(more) <= 0.3
    (True, True)
    """
    old, dim = len(vectors), vectors.shape[1]
    _check_sizes(old, dim)
    if count < old:
        raise ValueError(f"count={count} is less than the {old} vectors that are there: a table is not cut.")
    _check_bearable(count, dim)
    if count == old:
        return vectors
    fixed = normalize(vectors.detach().cpu().double(), dim=1)
    # Drawn behind the numbers that the vectors before came from, so that adding twice does not draw the same ones twice.
    drawn = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[old:]
    if count <= dim:
        return torch.cat([vectors, _orthonormal(torch.cat([fixed, drawn]).mT).mT[old:].to(vectors)])
    return torch.cat([vectors, _descend(drawn, gamma, max_steps, fixed).to(vectors)])


def _descend(start: Tensor, gamma: float, max_steps: int, fixed: Tensor | None = None) -> Tensor:
    """Follow the gradient of Eq. 7 with Nesterov's momentum until ``γ`` holds; give the best table met.

    Vectors that are ``fixed`` count as well, and do not move. Where ``γ`` turns out to be too much, less is aimed at.
    """
    count, dim = len(start) + (0 if fixed is None else len(fixed)), start.shape[1]
    # Eq. 7's hinge is squared: the zeros are the same, and the force fades as a pair comes near γ. Aiming a
    # little below γ makes it hold after finitely many steps.
    bound = max(welch_bound(count, dim), 0.0 if fixed is None else _least_beside(fixed))
    aim = max(bound, bound + 0.8 * (gamma - bound))
    # The rows' second-moment matrix is about C/d · I, which bounds the curvature; with
    # more than 1/2, tables with count near dim swing.
    step = min(0.5, dim / count)
    table = normalize(start, dim=1)
    velocity = torch.zeros_like(table)
    best, best_cosine, before = table, 1.0, 1.0
    for number in range(1, max_steps + 1):
        ahead = normalize(table + 0.9 * velocity, dim=1)
        gradient, cosine = _gradient(ahead, aim, fixed)
        if cosine < best_cosine:
            best, best_cosine = ahead, cosine
        if cosine <= gamma + _TOLERANCE / 2:
            break
        if number % _PATIENCE == 0:
            if best_cosine > max(0.98 * before, 1.02 * gamma):
                if best_cosine < 1.02 * aim:
                    break
                # Too low an aim spreads the force over so many pairs that the worst ones stay.
                aim += 0.3 * (best_cosine - aim)
            before = best_cosine
        moved = normalize(ahead - step * gradient, dim=1)
        table, velocity = moved, moved - table
    return best


def _least_beside(fixed: Tensor) -> float:
    """A bound on the largest cosine of any unit vector ``v`` with the fixed ones: ``Σ (v·w)² = vᵀ(Σ wwᵀ)v``."""
    least = float(torch.linalg.eigvalsh(fixed.mT @ fixed)[0])
    return math.sqrt(max(least, 0.0) / len(fixed))


def _gradient(unit: Tensor, aim: float, fixed: Tensor | None = None) -> tuple[Tensor, float]:
    """Give the gradient of Eq. 7 squared, ``½ Σ_{i<j} max(|wᵢ·wⱼ| − aim, 0)²``, and the largest ``|cos|``.

    Pairs with vectors that are ``fixed`` count as well, and only the others have a gradient.
    """
    every = unit if fixed is None else torch.cat([unit, fixed])
    gradient = torch.empty_like(unit)
    largest = 0.0
    for rows, cosines in _cosine_slices(unit, every):
        size = cosines.abs()
        largest = max(largest, float(size.max()))
        # Pairs that already hold Eq. 3 have no force.
        gradient[rows] = (size.sub_(aim).clamp_min_(0).mul_(cosines.sign_())) @ every
    # Along a row itself nothing is won: rows stay on the sphere.
    return gradient - (gradient * unit).sum(1, keepdim=True) * unit, largest


def _cosine_slices(unit: Tensor, every: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Give the cosines of some rows with every row, 0 for a row with itself, never the whole table at once."""
    for first in range(0, len(unit), _SLICE):
        rows = slice(first, first + _SLICE)
        cosines = unit[rows] @ every.mT
        cosines.diagonal(first).zero_()
        yield rows, cosines


def _orthonormal_columns(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    # As a start, orthonormal columns are already as even a spread as random vectors can have (a tight frame).
    return _orthonormal(gaussian)


def _orthonormal(columns: Tensor) -> Tensor:
    q, r = torch.linalg.qr(columns)
    # LAPACKs differ in the signs; with a positive diagonal of R the factorisation is unique.
    return torch.mul(q, r.diagonal().sign())


def _check_bearable(count: int, dim: int) -> None:
    if count > max(dim, _MOST):
        raise ValueError(
            f"{count} vectors of length {dim} would take hours to make: use a length of {count}, where they are orthogonal, or "
            f"{max(dim, _MOST)} vectors at most."
        )


def _check_sizes(count: int, dim: int) -> None:
    if count < 1 or dim < 1:
        raise ValueError(f"count={count} and dim={dim} must both be at least 1.")
