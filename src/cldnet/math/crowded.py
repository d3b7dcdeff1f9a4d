"""The discriminant of more classes than features, without a matrix as large as there are classes.

Scores ``s = Bᵀh`` of ``c`` classes over ``m`` features lie in ``m`` dimensions, and so do means and covariances in sample:
with ``Bᵀ = ZR``, ``Z`` orthonormal, the covariance of left-out rows is ``Z C Zᵀ + δI`` and the mean scores of class ``i`` are
``aᵢeᵢ + Z fᵢ``. By Woodbury's formula the inverse of the covariance is ``Z (C + δI)⁻¹ Zᵀ`` along the axes ``Z`` and
``1/δ`` across them. All of `cldnet.math.discriminant` follows from that in time ``c m²`` instead of ``c³``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Crowded", "CrowdedDiscriminant", "crowded_discriminant", "crowded_separation"]


class Crowded(NamedTuple):
    """Scores that rows get from a solution which has not seen them, as `cldnet.math.left_out.LeftOut` has them, in factors.

    Attributes
    ----------
    axes : Tensor, shape (c, m)
        ``Z``, orthonormal columns.
    own : Tensor, shape (c,)
        ``a``: what the mean scores of a class have of its own vector.
    means : Tensor, shape (c, m)
        ``f``: the rest of them, along the axes.
    core : Tensor, shape (m, m)
        ``C``.
    even : float
        ``δ``.
    weights : Tensor, shape (c,)
        Weight of the examples of each class.
    factor : float
        By how much errors in sample were magnified.
    """

    axes: Tensor
    own: Tensor
    means: Tensor
    core: Tensor
    even: float
    weights: Tensor
    factor: float

    @classmethod
    def of(
        cls,
        solution: Tensor,
        moments: Tensor,
        weights: Tensor,
        rows: float,
        alpha: float,
        factor: float,
        even: float | None,
    ) -> Crowded:
        """Find what `cldnet.math.left_out.left_out_scores` would; ``even`` is the variance of all scores if that is all."""
        axes, triangle = torch.linalg.qr(solution.mT)
        agreement = moments.mT @ triangle.mT  # row i: sum of the scores of class i, along the axes
        least = 1 / (len(weights) * (rows + 1))
        if even is None:
            energy = axes.mT @ agreement - alpha * triangle @ triangle.mT
            core = factor**2 * (energy - agreement.mT @ (agreement / weights[:, None])) / rows
            core, even = (core + core.mT) / 2, 0.0
        else:
            core = torch.zeros_like(triangle)
        own = torch.full_like(weights, 1 - factor)
        return cls(axes, own, factor * agreement / weights[:, None], core, even + least, weights, factor)

    def drawn(self, magnified: float, own_rows: float) -> Crowded:
        """Draw means towards the classes' own vectors: by so many rows, and where errors were magnified by more than that."""
        share = min(1.0, magnified / max(self.factor, 1.0))
        rows = self.weights / (self.weights + own_rows)
        own = rows * (1 + share * (self.own - 1)) + own_rows / (self.weights + own_rows)
        return self._replace(own=own, means=share * rows[:, None] * self.means)

    def evened(self, rows: float) -> Crowded:
        """Draw the covariance to that of independent scores, all of one variance, by so many rows a class."""
        total, more = float(self.weights.sum()), rows * len(self.weights)
        variance = float(self.core.diagonal().sum()) / len(self.weights) + self.even
        even = (total * self.even + more * variance) / (total + more)
        return self._replace(core=total / (total + more) * self.core, even=even)

    def mean_scores(self, classes: Tensor) -> Tensor:
        """Mean scores of some classes, written out, shape ``(classes, c)``."""
        scores = self.means[classes] @ self.axes.mT
        return scores.scatter_add_(1, classes[:, None], self.own[classes, None])

    def deviations(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw that many vectors with mean 0 and the covariance within classes."""
        values, vectors = torch.linalg.eigh(self.core)
        root = self.axes @ (vectors * values.clamp_min(0).sqrt())
        along: Tensor = torch.randn(count, len(values), generator=generator, dtype=torch.float64) @ root.mT
        across = torch.randn(count, len(root), generator=generator, dtype=torch.float64)
        return along.add_(across, alpha=self.even**0.5)


class CrowdedDiscriminant(NamedTuple):
    """What turns predicted vectors into scores of classes, in factors: see `scores`."""

    axes: Tensor
    along: Tensor
    across: Tensor
    middle: Tensor
    offset: Tensor

    def scores(self, vectors: Tensor) -> Tensor:
        """Scores that go with vectors ``(n, c)``; the largest wins."""
        inside = vectors @ self.axes
        outside = (vectors - inside @ self.axes.mT).mul_(self.across)
        return outside.addmm_(inside, self.along).add_(self.offset - (vectors @ self.middle)[:, None])

    def to(self, device: torch.device) -> CrowdedDiscriminant:
        """Move it to where vectors are."""
        return CrowdedDiscriminant(*(part.to(device) for part in self))


def crowded_discriminant(crowded: Crowded) -> CrowdedDiscriminant:
    """Find the linear scores that `cldnet.math.discriminant.discriminant` does, for a covariance that is drawn already.

    Examples
    --------
    Three classes of nine rows each, whose one feature is 1, 0 or −1.

    >>> moments, weights = torch.tensor([[9.0, 0.0, -9.0]]).double(), torch.full((3,), 9.0).double()
    >>> solution = moments / (18.0 + 0.1)
    >>> rule = crowded_discriminant(Crowded.of(solution, moments, weights, 27.0, alpha=0.1, factor=1.0, even=None))
    >>> rule.scores(torch.tensor([[1.2], [0.1], [-0.8]]).double() @ solution).argmax(1)
    tensor([0, 1, 2])
    """
    places, middle, _, solved = _along(crowded)
    shares = crowded.weights / crowded.weights.sum()
    outside, common = _across(crowded, shares)
    offset = shares.log() - ((places + middle) * solved.mT).sum(1) / 2
    offset = offset - (outside - common.square().sum()) / (2 * crowded.even)
    return CrowdedDiscriminant(crowded.axes, solved, crowded.own / crowded.even, common / crowded.even, offset)


def crowded_separation(crowded: Crowded) -> float:
    """Fisher's ratio, as `cldnet.math.discriminant.separation` has it, for a covariance that is drawn already."""
    _, _, apart, solved = _along(crowded)
    shares = crowded.weights / crowded.weights.sum()
    outside, common = _across(crowded, shares)
    across = outside - 2 * crowded.own * common + common.square().sum()
    return float(shares @ ((apart * solved.mT).sum(1) + across / crowded.even))


def _along(crowded: Crowded) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Class means along the axes, their middle, how far they are apart, and ``(C + δI)⁻¹`` times that."""
    places = crowded.own[:, None] * crowded.axes + crowded.means
    middle = crowded.weights @ places / crowded.weights.sum()
    apart = places - middle
    inner = crowded.core.clone()
    inner.diagonal().add_(crowded.even)
    return places, middle, apart, torch.linalg.solve(inner, apart.mT)


def _across(crowded: Crowded, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Squared lengths of what class means have across the axes, and their middle there, written out."""
    outside = crowded.own.square() * (1 - crowded.axes.square().sum(1)).clamp_min(0)
    middle = shares * crowded.own
    return outside, middle - crowded.axes @ (crowded.axes.mT @ middle)
