"""What stands for the second moments ``G = Σ hhᵀ`` of the features: all of them, their diagonal, or a sketch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from cldnet.device import share_out
from cldnet.math import ridge, sketch, symmetric

__all__ = ["DiagonalMoments", "FullMoments", "SecondMoments", "SketchedMoments", "check_gram", "moments_for"]

#: Share by which sums of weights that are no whole numbers may miss, from the order in which they were added.
ROUNDING = 1e-9


class SecondMoments(nn.Module, ABC):
    """A sum of ``w hhᵀ`` over examples, or what is kept of it, and the ridge solution that follows.

    Parameters
    ----------
    width : int
        Length ``m`` of a feature vector.
    """

    #: Whether what was added can be subtracted again, exactly.
    invertible: ClassVar[bool] = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @abstractmethod
    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        """Add the products of features ``(n, m)``, made in their own type, or in float64 if there are weights ``(n,)``."""

    @abstractmethod
    def merge(self, other: Self, sign: float = 1.0) -> None:
        """Add what another one of the same kind and shape holds; with ``sign=-1.0`` subtract it."""

    @abstractmethod
    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> ridge.Choice:
        """Solve for the given α, or for the one that generalised cross-validation chooses, as `cldnet.math.ridge` does."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of ``G``, as far as it is known."""

    def least_diagonal(self) -> float:
        """The least number on the diagonal: negative, by more than rounding, only where what was not added was subtracted."""
        diagonal = self.diagonal()
        least = float(diagonal.min())
        return least if least < -ROUNDING * float(diagonal.max()) else max(least, 0.0)

    def has_scatter(self, class_sums: Tensor, class_weights: Tensor, rounding: float) -> bool:
        """Tell whether rows with these class sums can have these second moments, as far as the diagonal tells.

        Then the scatter within classes, ``G − Σ_c s_c s_cᵀ / n_c``, has no eigenvalue below 0, or below ``-rounding``.
        """
        return bool((self.diagonal() - (class_sums.square() / class_weights[:, None]).sum(0) >= -rounding).all())

    @property
    def energy(self) -> float:
        """The trace of ``G``: ``Σ w‖h‖²``."""
        return float(self.diagonal().sum())

    @property
    def loss(self) -> float:
        """The most by which ``vᵀGv`` may differ from what stands for it, for any unit vector ``v``: 0 for all of ``G``."""
        return 0.0


class FullMoments(SecondMoments):
    """All of ``G``, as its upper triangle: nothing is lost.

    Examples
    --------
    >>> second = FullMoments(2)
    >>> second.add(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    >>> symmetric.unpack(second.packed, 2).tolist(), second.energy, second.loss
    ([[10.0, 2.0], [2.0, 4.0]], 14.0, 0.0)
    """

    packed: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("packed", torch.zeros(symmetric.packed_length(width), dtype=torch.float64))

    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        """Add the upper triangle of the products, tile by tile; the tiles are shared out among threads."""
        right = h if weight is None else h.double()
        left = h if weight is None else right * weight.double()[:, None]
        tiles = symmetric.tiles(self.packed, self.width)

        def work(piece: range) -> None:
            with torch.no_grad():  # a thread does not know the caller's mode
                for number in piece:
                    symmetric.add_to_tile_(tiles[number], left, right)

        share_out(work, len(tiles), 1)

    def merge(self, other: Self, sign: float = 1.0) -> None:
        """Add or subtract another sum."""
        self.packed.add_(other.packed, alpha=sign)

    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> ridge.Choice:
        """Solve exactly."""
        return ridge.ridge(self.dense(), moments, class_weights, rows, alpha)

    def dense(self) -> Tensor:
        """All of ``G`` as a new matrix."""
        return symmetric.unpack(self.packed, self.width)

    def diagonal(self) -> Tensor:
        """The diagonal of ``G``."""
        return symmetric.diagonal(self.packed, self.width)

    def has_scatter(self, class_sums: Tensor, class_weights: Tensor, rounding: float) -> bool:
        """Tell whether rows with these class sums can have these second moments: by a Cholesky factor of their scatter."""
        scatter = self.dense().addmm_(class_sums.mT / class_weights, class_sums, alpha=-1.0)
        scatter.diagonal().add_(rounding)
        return not bool(torch.linalg.cholesky_ex(scatter).info)


class DiagonalMoments(SecondMoments):
    """The diagonal of ``G``: ``m`` numbers. Within a class features are taken to vary independently of each other.

    Examples
    --------
    >>> second = DiagonalMoments(2)
    >>> second.add(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    >>> second.diagonal().tolist(), second.energy
    ([10.0, 4.0], 14.0)
    """

    squares: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))

    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        """Add the squares, in float64: there are few of them."""
        squares = h.double().square()
        self.squares += squares.sum(0) if weight is None else weight.double() @ squares

    def merge(self, other: Self, sign: float = 1.0) -> None:
        """Add or subtract another sum."""
        self.squares.add_(other.squares, alpha=sign)

    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> ridge.Choice:
        """Solve with the diagonal and what the class sums tell of the rest."""
        return sketch.diagonal_ridge(self.squares, moments, class_weights, rows, alpha)

    def diagonal(self) -> Tensor:
        """The diagonal of ``G``."""
        return self.squares.clone()

    @property
    def loss(self) -> float:
        """A bound of ``‖G − diag G‖`` (Frobenius): ``√((tr G)² − Σ G_jj²)``, since ``‖Σ w hhᵀ‖ ≤ Σ w‖h‖² = tr G``.

        It holds for the diagonal alone; with the class sums `solve` does better.
        """
        return float((self.squares.sum().square() - self.squares.square().sum()).clamp_min(0).sqrt())


class SketchedMoments(SecondMoments):
    """A Frequent Directions sketch of ``G``: ``rank`` rows, with the most that any direction has lost.

    It takes less room than all of ``G`` for a rank below half the width. It can be merged, not subtracted from, and
    depends on the order of the examples as far as it loses anything.

    Parameters
    ----------
    width : int
        Length of a feature vector.
    rank : int
        Rows that are kept; no more than ``width`` are of use.

    Examples
    --------
    >>> second = SketchedMoments(3, rank=2)
    >>> second.add(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
    >>> second.energy, second.loss
    (14.0, 1.0)
    """

    invertible = False
    directions: Tensor
    shrinkage: Tensor
    trace: Tensor

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(width)
        self.register_buffer("directions", torch.zeros(min(rank, width), width, dtype=torch.float64))
        self.register_buffer("shrinkage", torch.zeros((), dtype=torch.float64))
        self.register_buffer("trace", torch.zeros((), dtype=torch.float64))

    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        """Put rows under the sketch and shrink it to its size again."""
        rows = h.double() if weight is None else h.double() * weight.double().sqrt()[:, None]
        self.trace += rows.square().sum()
        self._extend(rows)

    def merge(self, other: Self, sign: float = 1.0) -> None:
        """Put one sketch under the other; what either has lost adds up."""
        if sign != 1.0:
            raise ValueError("Nothing can be subtracted from a sketch. Use gram='full' to forget.")
        self.trace += other.trace
        self.shrinkage += other.shrinkage
        self._extend(other.directions)

    def _extend(self, rows: Tensor) -> None:
        directions, shrinkage = sketch.shrink(torch.cat([self.directions, rows]), len(self.directions))
        self.directions.copy_(directions)
        self.shrinkage += shrinkage

    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> ridge.Choice:
        """Solve in the middle of what ``G`` can be."""
        return sketch.sketched_ridge(
            self.directions, self.loss, moments, class_weights, rows, alpha, energy=self.energy
        )

    def diagonal(self) -> Tensor:
        """The diagonal of what stands for ``G``."""
        return self.directions.square().sum(0) + self.shrinkage / 2

    @property
    def energy(self) -> float:
        """The trace of ``G``, which is summed apart."""
        return float(self.trace)

    @property
    def loss(self) -> float:
        """``Δ``: what a direction has lost at most, ``0 ⪯ G − BᵀB ⪯ ΔI``."""
        return float(self.shrinkage)


def check_gram(gram: object) -> None:
    """Refuse what is neither the name of a kind of second moments nor the rank of a sketch.

    Examples
    --------
    >>> check_gram("half")
    Traceback (most recent call last):
    ...
    ValueError: gram='half' should be 'full', 'diagonal', or a whole number: the rows of a sketch, 1 or more.
    """
    rank = isinstance(gram, int) and not isinstance(gram, bool) and gram > 0
    if gram not in ("full", "diagonal") and not rank:
        raise ValueError(
            f"gram={gram!r} should be 'full', 'diagonal', or a whole number: the rows of a sketch, 1 or more."
        )


def moments_for(gram: str | int, width: int) -> SecondMoments:
    """Make what stands for ``G``, empty: all of it, its diagonal, or a sketch of so many rows.

    Examples
    --------
    >>> type(moments_for("full", 3)).__name__, type(moments_for(2, 3)).__name__
    ('FullMoments', 'SketchedMoments')
    """
    check_gram(gram)
    if isinstance(gram, int):
        return SketchedMoments(width, gram)
    return FullMoments(width) if gram == "full" else DiagonalMoments(width)
