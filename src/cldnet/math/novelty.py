"""Novelty of predicted vectors: how unlike every known class a sample is, from the sums alone.

A sample is novel if a normal distribution of its own explains it better than the nearest class does. With the class means
``μ_c`` and the covariance ``V`` within classes, of leave-one-out scores (`cldnet.math.leave_one_out`), and the mean ``μ`` and
the covariance ``T = V + Σ_c π_c (μ_c − μ)(μ_c − μ)ᵀ`` of all samples, the novelty of a predicted vector ``s`` is

    min_c (s − μ_c)ᵀ V⁻¹ (s − μ_c)  −  λ (s − μ)ᵀ T⁻¹ (s − μ),      λ = 1 − Σ_c π_c²,

a relative Mahalanobis distance (Ren et al., "A simple fix to Mahalanobis distance for improving near-OOD detection", 2021).
Directions in which all samples vary alike, whatever their class, say nothing of novelty: the second term takes them off. It
is weighted by the probability ``λ`` that two samples are of different classes, so that of a single class, where both terms are
alike, the first remains.

``V`` is shrunk to a multiple of the identity by a share of `SPHERICAL`: as good at noticing other classes as without that,
and less in need of a precise covariance. docs/doubt.md tells how this was chosen among other scores.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.discriminant import COVARIANCE_PRIOR, MAX_FACTOR, MEAN_PRIOR
from cldnet.math.leave_one_out import LeaveOneOut, LowRankLeaveOneOut

#: Share of the covariance that is the same in all directions.
SPHERICAL = 0.3
_RANK = 1e-12  # of the largest squared singular value of a solution: below, it is rounding


class Novelty(NamedTuple):
    """A quadratic function of predicted vectors, less the largest of linear ones: large for samples of no known class."""

    axes: Tensor | None  # orthonormal columns that span all vectors ``(n, c)``, if their dimension is not the full one
    center: Tensor
    curvature: Tensor  # V⁻¹ − λT⁻¹
    weights: Tensor
    offset: Tensor

    def scores(self, vectors: Tensor) -> Tensor:
        """Novelty ``(n,)`` of predicted vectors ``(n, c)``."""
        moved = (vectors if self.axes is None else vectors @ self.axes) - self.center
        nearest = (moved @ self.weights + self.offset).amax(1)
        return ((moved @ self.curvature) * moved).sum(1) - 2 * nearest


def novelty(estimate: LeaveOneOut | LowRankLeaveOneOut, solution: Tensor) -> Novelty:
    """Find the novelty that belongs to an estimate of at least one class, for the vectors that a solution ``(m, c)`` predicts.

    Only the span of the solution is rated, as where there are more classes than features: no predicted vector leaves it.
    """
    shares = estimate.weights / estimate.weights.sum()
    estimate = estimate.shrink_means(MAX_FACTOR, MEAN_PRIOR).shrink_covariance(COVARIANCE_PRIOR)
    spherical = SPHERICAL * estimate.variance
    if isinstance(estimate, LowRankLeaveOneOut):
        axes: Tensor | None = estimate.axes
        means, covariance = estimate.own[:, None] * estimate.axes + estimate.means, estimate.core
        spherical = spherical + (1 - SPHERICAL) * estimate.isotropic
    else:
        axes, means, covariance = _span(solution.double().cpu()), estimate.means, estimate.covariance
        if axes is not None:
            means, covariance = means @ axes, axes.mT @ covariance @ axes
    within = (1 - SPHERICAL) * covariance
    within.diagonal().add_(spherical)
    center = shares @ means
    centered = means - center
    total = within + (centered.mT * shares) @ centered
    curvature = torch.linalg.inv(within) - (1 - shares.square().sum()) * torch.linalg.inv(total)
    weights = torch.linalg.solve(within, centered.mT)
    return Novelty(axes, center, (curvature + curvature.mT) / 2, weights, -(centered * weights.mT).sum(1) / 2)


def _span(solution: Tensor) -> Tensor | None:
    """Orthonormal columns that span the rows of a solution, or None if these have the full dimension."""
    values, vectors = torch.linalg.eigh(solution.mT @ solution)
    kept = values > _RANK * values[-1]
    return None if bool(kept.all()) else vectors[:, kept]
