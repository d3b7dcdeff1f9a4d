"""Equiangular basis vectors (Eqs. 3 and 7): unit vectors, one per class, with ``|cosine| ≤ γ`` between any two.

Up to ``dim`` vectors are orthonormal. More cannot be below Welch's bound; their table is found by gradient descent on Eq. 7.
The same seed gives the same table. Vectors can be added to a table without moving the old ones.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

_SLICE = 512  # rows of the cosine table held at once: 40 MB per copy for 10,000 vectors
_MAX_VECTORS = 50_000  # for a descent, whose steps take time with the square of their number
_PATIENCE = 25  # steps without progress after which a descent aims at less
_TOLERANCE = 1e-6  # the table is in float32, which moves a cosine by some 1e-7


def welch_bound(count: int, dim: int) -> float:
    """Lower bound on the `largest_cosine` of ``count`` vectors: ``√((C−d) / (d(C−1)))``, or 0 for ``C ≤ d``."""
    _check_sizes(count, dim)
    if count <= dim:
        return 0.0
    return float(((count - dim) / (dim * (count - 1))) ** 0.5)


def reachable_gamma(count: int, dim: int, gamma: float = 0.04) -> float:
    """Bound on |cosine| that `basis_vectors` can reach: ``gamma`` itself if possible, else a larger one.

    Beyond ``dim`` vectors, 1.6 times the Welch bound is reached in seconds for a thousand vectors and in minutes for ten
    thousand. With more than some 14 vectors per dimension the result grows with the fourth root of their number.
    """
    crowding = max(1.0, (1 + 1 / dim) * math.pow(count / (14 * dim), 0.25))
    # While the caps around the vectors do not cover the sphere, one more fits (Gilbert's bound).
    greedy = math.sqrt(1 - 1 / math.pow(count, 2 / max(1, dim - 1)))
    return max(gamma, min(1.6 * crowding * welch_bound(count, dim), greedy))


def check_gamma(count: int, dim: int, gamma: float) -> None:
    """Raise ValueError if no ``count`` vectors of length ``dim`` can have ``|cosine| ≤ gamma``."""
    _check_sizes(count, dim)
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma={gamma} must be in [0, 1).")
    bound = welch_bound(count, dim)
    if gamma < bound:
        needed = math.ceil(count / (1 + gamma**2 * (count - 1)))
        raise ValueError(
            f"{count} vectors of length {dim} cannot have gamma={gamma}: no table has a largest cosine below "
            f"{bound:.6f} (Welch's bound). Raise gamma to {bound:.6f} or more, or dim to {needed} or more."
        )


def largest_cosine(vectors: Tensor) -> float:
    """Largest ``|cos|`` between two different rows, the left side of Eq. 3; 0 for a single row."""
    unit = normalize(vectors.detach().double(), dim=1)
    return max(float(cosines.abs().max()) for _, cosines in _cosine_slices(unit, unit))


def basis_vectors(count: int, dim: int, gamma: float = 0.04, *, seed: int = 0, max_steps: int = 1000) -> Tensor:
    """Make ``count`` unit vectors with ``|cos| ≤ γ`` between any two (Eq. 3).

    ``count ≤ dim`` gives an orthonormal set. Otherwise Eq. 7 is minimised, which takes some tens of steps for a ``γ`` of at
    least 1.3 times `welch_bound` and a ``count`` of a few times ``dim``. If ``max_steps`` do not suffice, a warning names the
    cosine reached.

    The rows are in float32. The same seed gives the same rows to 1e-6 on every machine, down to about 1.3 times the Welch
    bound; closer to it a long descent magnifies rounding, so a model stores its table and not the seed.
    """
    check_gamma(count, dim, gamma)
    _check_max_vectors(count, dim)
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
    """Add unit vectors to a table until there are ``count``; the old ones do not change.

    ``count ≤ dim`` adds orthogonal vectors. Otherwise Eq. 7 is minimised over the new ones alone. Fixed vectors leave less
    room: a vector has a cosine of at least ``1/√dim`` with one of ``dim`` orthogonal ones. So ``γ`` is only aimed at;
    `largest_cosine` tells what was reached.
    """
    old, dim = len(vectors), vectors.shape[1]
    _check_sizes(old, dim)
    if count < old:
        raise ValueError(f"count={count} must be at least {old}, the number of vectors in the table.")
    _check_max_vectors(count, dim)
    if count == old:
        return vectors
    fixed = normalize(vectors.detach().cpu().double(), dim=1)
    # Skip the numbers of earlier vectors, so that adding twice does not draw the same ones twice.
    drawn = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[old:]
    if count <= dim:
        return torch.cat([vectors, _orthonormal(torch.cat([fixed, drawn]).mT).mT[old:].to(vectors)])
    return torch.cat([vectors, _descend(drawn, gamma, max_steps, fixed).to(vectors)])


def _descend(start: Tensor, gamma: float, max_steps: int, fixed: Tensor | None = None) -> Tensor:
    """Follow the gradient of Eq. 7 with Nesterov's momentum until ``γ`` holds; return the best table found.

    ``fixed`` vectors count but do not move. If ``γ`` is out of reach, the aim is lowered.
    """
    count, dim = len(start) + (0 if fixed is None else len(fixed)), start.shape[1]
    # Eq. 7's hinge is squared: the zeros are the same, and the force fades as a pair comes near γ. Aiming a little below γ
    # reaches it after finitely many steps.
    bound = welch_bound(count, dim)
    if fixed is not None:  # the mean of (v·w)² over the fixed vectors w is at least that, for any unit vector v
        least = float(torch.linalg.eigvalsh(fixed.mT @ fixed)[0])
        bound = max(bound, math.sqrt(max(least, 0.0) / len(fixed)))
    aim = max(bound, bound + 0.8 * (gamma - bound))
    # The rows' second-moment matrix is about C/d · I, which bounds the curvature; above 1/2, tables with count near dim swing.
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


def _gradient(unit: Tensor, aim: float, fixed: Tensor | None = None) -> tuple[Tensor, float]:
    """Gradient of Eq. 7 squared, ``½ Σ_{i<j} max(|wᵢ·wⱼ| − aim, 0)²``, for the vectors not fixed, and the largest ``|cos|``."""
    every = unit if fixed is None else torch.cat([unit, fixed])
    gradient = torch.empty_like(unit)
    largest = 0.0
    for rows, cosines in _cosine_slices(unit, every):
        size = cosines.abs()
        largest = max(largest, float(size.max()))
        # Pairs that already hold Eq. 3 have no force.
        gradient[rows] = (size.sub_(aim).clamp_min_(0).mul_(cosines.sign_())) @ every
    # Rows stay on the sphere, so the part along a row itself is removed.
    return gradient - (gradient * unit).sum(1, keepdim=True) * unit, largest


def _cosine_slices(unit: Tensor, every: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Cosines of some rows with every row, 0 for a row with itself, without the whole table at once."""
    for first in range(0, len(unit), _SLICE):
        rows = slice(first, first + _SLICE)
        cosines = unit[rows] @ every.mT
        cosines.diagonal(first).zero_()
        yield rows, cosines


def _orthonormal_columns(rows: int, columns: int, seed: int) -> Tensor:
    """Random orthonormal columns: as a start, as even a spread as random vectors can have (a tight frame)."""
    generator = torch.Generator().manual_seed(seed)
    return _orthonormal(torch.randn(rows, columns, generator=generator, dtype=torch.float64))


def _orthonormal(columns: Tensor) -> Tensor:
    """Orthonormalise columns; unique, since the diagonal of R is made positive."""
    q, r = torch.linalg.qr(columns)
    return torch.mul(q, r.diagonal().sign())


def _check_max_vectors(count: int, dim: int) -> None:
    """Refuse a descent that would take hours."""
    if count > max(dim, _MAX_VECTORS):
        raise ValueError(
            f"{count} vectors of length {dim} would take hours to compute. Use a length of {count}, where they are orthogonal, "
            f"or at most {max(dim, _MAX_VECTORS)} vectors."
        )


def _check_sizes(count: int, dim: int) -> None:
    """Refuse sizes below 1."""
    if count < 1 or dim < 1:
        raise ValueError(f"count={count} and dim={dim} must both be at least 1.")
