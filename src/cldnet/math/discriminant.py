"""Linear discriminant analysis of ridge scores, from the sums alone: it decides which class a predicted vector belongs to.

The nearest class vector is not the best answer. Least squares onto many classes *masks* some of them (Hastie, Tibshirani &
Friedman, "The Elements of Statistical Learning", 4.2): the scores of a class that is hard, rare or between others stay low,
even for its own samples, and it hardly ever wins. The sums give the mean and covariance of the leave-one-out scores of each
class (`cldnet.math.leave_one_out`); with one normal covariance ``Σ`` for all classes, the best answer is the largest
``μ_cᵀ Σ⁻¹ (s − μ_c/2) + log π_c``. In sample that would be Fisher's analysis of the features themselves (Hastie, Tibshirani &
Buja 1994); leave-one-out scores correct for overfitting.

The same numbers rate a ridge penalty: by the *separation* of classes, Fisher's ratio of the variance between classes to the
one within.

For more classes than features, Woodbury's formula inverts the covariance ``Z C Zᵀ + δI``: it is ``Z (C + δI)⁻¹ Zᵀ`` along the
axes ``Z`` and ``1/δ`` across them, so the time is ``c m²`` instead of ``c³``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.leave_one_out import LeaveOneOut, LowRankLeaveOneOut

#: Prior samples per class that shrink the covariance to a multiple of the identity.
COVARIANCE_PRIOR = 10.0
#: Prior samples per class, exactly at its vector, that shrink its mean: one or two samples say little when left out.
MEAN_PRIOR = 1.0
#: Errors in sample that had to be magnified by more than this are too close to rounding to count in full.
MAX_FACTOR = 20.0


class Discriminant(NamedTuple):
    """Scores of classes from predicted vectors: ``s @ weights + offset``."""

    weights: Tensor
    offset: Tensor

    def scores(self, vectors: Tensor) -> Tensor:
        """Scores of vectors ``(n, c)``; the largest wins."""
        return vectors @ self.weights + self.offset


class LowRankDiscriminant(NamedTuple):
    """The same scores for more classes than features, in factors."""

    axes: Tensor
    along: Tensor
    across: Tensor
    center: Tensor
    offset: Tensor

    def scores(self, vectors: Tensor) -> Tensor:
        """Scores of vectors ``(n, c)``; the largest wins."""
        inside = vectors @ self.axes
        outside = (vectors - inside @ self.axes.mT).mul_(self.across)
        return outside.addmm_(inside, self.along).add_(self.offset - (vectors @ self.center)[:, None])


CrowdedDiscriminant = LowRankDiscriminant  # its name in estimators pickled by version 0.1


def linear_discriminant(estimate: LeaveOneOut | LowRankLeaveOneOut) -> Discriminant | LowRankDiscriminant:
    """Find the linear scores whose softmax is the probability of each class.

    A constant that all classes share is left out: the score of the mean over all samples is the logarithm of the class's
    share, less half the squared distance between that mean and the class's.
    """
    shares = estimate.weights / estimate.weights.sum()
    estimate = estimate.shrink_means(MAX_FACTOR, MEAN_PRIOR).shrink_covariance(COVARIANCE_PRIOR)
    if isinstance(estimate, LowRankLeaveOneOut):
        means, center, _, solved = _along(estimate)
        outside, common = _across(estimate, shares)
        offset = shares.log() - ((means + center) * solved.mT).sum(1) / 2
        offset = offset - (outside - common.square().sum()) / (2 * estimate.isotropic)
        across, center_across = estimate.own / estimate.isotropic, common / estimate.isotropic
        return LowRankDiscriminant(estimate.axes, solved, across, center_across, offset)
    center = shares @ estimate.means
    weights = torch.linalg.solve(estimate.covariance, (estimate.means - center).mT)
    offset = shares.log() - ((estimate.means + center) * weights.mT).sum(1) / 2
    return Discriminant(weights, offset)


def separation(estimate: LeaveOneOut | LowRankLeaveOneOut) -> float:
    """Fisher's ratio: mean squared distance of class means from their center, in units of the variance within classes."""
    shares = estimate.weights / estimate.weights.sum()
    estimate = estimate.shrink_covariance(COVARIANCE_PRIOR)
    if isinstance(estimate, LowRankLeaveOneOut):
        _, _, centered, solved = _along(estimate)
        outside, common = _across(estimate, shares)
        across = outside - 2 * estimate.own * common + common.square().sum()
        return float(shares @ ((centered * solved.mT).sum(1) + across / estimate.isotropic))
    centered = estimate.means - shares @ estimate.means
    solved = torch.linalg.solve(estimate.covariance, centered.mT)
    return float(shares @ (centered * solved.mT).sum(1))


def _along(estimate: LowRankLeaveOneOut) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Class means along the axes, their center, the means less the center, and ``(C + δI)⁻¹`` times that."""
    means = estimate.own[:, None] * estimate.axes + estimate.means
    center = estimate.weights @ means / estimate.weights.sum()
    centered = means - center
    inner = estimate.core.clone()
    inner.diagonal().add_(estimate.isotropic)
    return means, center, centered, torch.linalg.solve(inner, centered.mT)


def _across(estimate: LowRankLeaveOneOut, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Squared lengths of the class means across the axes, and their center there in full."""
    outside = estimate.own.square() * (1 - estimate.axes.square().sum(1)).clamp_min(0)
    center = shares * estimate.own
    return outside, center - estimate.axes @ (estimate.axes.mT @ center)
