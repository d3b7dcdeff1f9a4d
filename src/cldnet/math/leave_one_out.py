"""Leave-one-out scores of a ridge regression, estimated from its sums: no sample is needed.

Scores ``s = Bᵀh`` estimate the one-hot label ``y`` of a sample. In sample ``ŶᵀY = BᵀS`` and ``ŶᵀŶ = BᵀS − αBᵀB``. With the
mean leverage for every sample, as in generalised cross-validation (Golub, Heath & Wahba 1979), a sample left out of the fit
has the scores ``y + k(ŷ − y)`` with ``k = samples / freedom``: class means move away from ``y`` by ``k``, and covariances
grow by ``k²``.
On validation parts of MNIST, FashionMNIST, CIFAR-10 and CIFAR-100 the mean score of the true class is within 0.003 of that
of new images (results/benchmarks/discriminant.json).

With more classes ``c`` than features ``m`` no ``(c, c)`` matrix is built. With ``Bᵀ = ZR``, ``Z`` orthonormal, the covariance
is ``Z C Zᵀ + δI`` and the mean scores of class ``i`` are ``aᵢeᵢ + Z fᵢ``.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

#: With more classes than this, and more than features, the low-rank form is used.
DENSE_CLASSES = 512

_LARGEST_FACTOR = 1e3  # with hardly any freedom left, errors in sample carry no information


class RidgeSolution(NamedTuple):
    """A ridge solution, and what the sums say about its errors."""

    alpha: float
    solution: Tensor  # B = (G + αI)⁻¹ S, shape (m, c), in float64
    residual: float  # ‖Y − HB‖² over all samples and classes
    freedom: float  # residual degrees of freedom: samples less tr H(G + αI)⁻¹Hᵀ
    known: bool = True  # whether G was known in full, and with it how scores vary within classes
    log_determinant: float = 0.0  # log det(I + G/α), or 0 if it is not known


Choice = RidgeSolution  # its name in estimators pickled by version 0.1


class LeaveOneOut(NamedTuple):
    """Distribution of the scores of samples that the solution has not seen."""

    means: Tensor  # row i: mean scores of the samples of class i
    covariance: Tensor  # within classes, pooled
    weights: Tensor  # total sample weight of each class
    factor: float = 1.0  # k, by which errors in sample were magnified

    @property
    def own_means(self) -> Tensor:
        """Mean score of each class for itself."""
        return self.means.diagonal()

    @property
    def variance(self) -> Tensor:
        """Variance of a score within classes, on average over the classes that it is for."""
        return self.covariance.diagonal().mean()

    def magnify_errors(self, by: float) -> LeaveOneOut:
        """Move means away from the one-hot vectors, and stretch what varies, by the same factor."""
        one_hot = torch.eye(len(self.weights), dtype=self.means.dtype)
        return self._replace(means=one_hot + by * (self.means - one_hot), covariance=by**2 * self.covariance)

    def shrink_means(self, max_factor: float, prior: float) -> LeaveOneOut:
        """Shrink means to the one-hot vectors: by ``prior`` samples, and where errors were magnified above ``max_factor``."""
        one_hot, counts = torch.eye(len(self.weights), dtype=self.means.dtype), self.weights[:, None]
        means = one_hot + min(1.0, max_factor / max(self.factor, 1.0)) * (self.means - one_hot)
        return self._replace(means=(counts * means + prior * one_hot) / (counts + prior))

    def shrink_covariance(self, prior: float) -> LeaveOneOut:
        """Shrink the covariance to a multiple of the identity, by ``prior`` samples per class."""
        total, more = self.weights.sum(), prior * len(self.weights)
        shrunk = total * self.covariance
        shrunk.diagonal().add_(more * self.variance)
        return self._replace(covariance=shrunk / (total + more))


class LowRankLeaveOneOut(NamedTuple):
    """`LeaveOneOut` for more classes than features: means ``aᵢeᵢ + Z fᵢ`` and covariance ``Z C Zᵀ + δI``."""

    axes: Tensor  # Z, shape (c, m), orthonormal columns
    own: Tensor  # a, shape (c,)
    means: Tensor  # f, shape (c, m)
    core: Tensor  # C, shape (m, m)
    isotropic: float  # δ
    weights: Tensor
    factor: float

    @property
    def own_means(self) -> Tensor:
        """Mean score of each class for itself."""
        return self.own + (self.axes * self.means).sum(1)

    @property
    def variance(self) -> Tensor:
        """Variance of a score within classes, on average over the classes that it is for."""
        return self.core.diagonal().sum() / len(self.weights) + self.isotropic

    def magnify_errors(self, by: float) -> LowRankLeaveOneOut:
        """Move means away from the one-hot vectors, and stretch what varies, by the same factor."""
        own, means = 1 + by * (self.own - 1), by * self.means
        return self._replace(own=own, means=means, core=by**2 * self.core, isotropic=by**2 * self.isotropic)

    def shrink_means(self, max_factor: float, prior: float) -> LowRankLeaveOneOut:
        """Shrink means to the one-hot vectors: by ``prior`` samples, and where errors were magnified above ``max_factor``."""
        share = min(1.0, max_factor / max(self.factor, 1.0))
        kept = self.weights / (self.weights + prior)
        own = kept * (1 + share * (self.own - 1)) + prior / (self.weights + prior)
        return self._replace(own=own, means=share * kept[:, None] * self.means)

    def shrink_covariance(self, prior: float) -> LowRankLeaveOneOut:
        """Shrink the covariance to a multiple of the identity, by ``prior`` samples per class."""
        total, more = float(self.weights.sum()), prior * len(self.weights)
        isotropic = (total * self.isotropic + more * float(self.variance)) / (total + more)
        return self._replace(core=total / (total + more) * self.core, isotropic=isotropic)

    def mean_scores(self, classes: Tensor) -> Tensor:
        """Mean scores of some classes in full, shape ``(classes, c)``."""
        scores = self.means[classes] @ self.axes.mT
        return scores.scatter_add_(1, classes[:, None], self.own[classes, None])

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw ``count`` vectors with mean 0 and the covariance within classes."""
        values, vectors = torch.linalg.eigh(self.core)
        root = self.axes @ (vectors * values.clamp_min(0).sqrt())
        along: Tensor = torch.randn(count, len(values), generator=generator, dtype=torch.float64) @ root.mT
        across = torch.randn(count, len(root), generator=generator, dtype=torch.float64)
        return along.add_(across, alpha=self.isotropic**0.5)


def leave_one_out(
    ridge: RidgeSolution, moments: Tensor, class_weights: Tensor, n_samples: float
) -> LeaveOneOut | LowRankLeaveOneOut:
    """Estimate leave-one-out scores as `leave_one_out_dense` does, in low-rank form for many classes."""
    if len(class_weights) <= max(DENSE_CLASSES, len(ridge.solution)):
        return leave_one_out_dense(ridge, moments, class_weights, n_samples)
    solution, moments, weights = (part.double().cpu() for part in (ridge.solution, moments, class_weights))
    factor = _factor(ridge, n_samples)
    axes, triangle = torch.linalg.qr(solution.mT)
    agreement = moments.mT @ triangle.mT  # row i: sum of the scores of class i, along the axes
    isotropic = 0.0
    if ridge.known:
        energy = axes.mT @ agreement - ridge.alpha * triangle @ triangle.mT
        core = factor**2 * (energy - agreement.mT @ (agreement / weights[:, None])) / n_samples
        core = (core + core.mT) / 2
    else:
        core, isotropic = torch.zeros_like(triangle), factor**2 * ridge.residual / (n_samples * len(weights))
    isotropic += 1 / (len(weights) * (n_samples + 1))
    own = torch.full_like(weights, 1 - factor)
    means = factor * agreement / weights[:, None]
    return LowRankLeaveOneOut(axes, own, means, core, isotropic, weights, factor)


def leave_one_out_dense(ridge: RidgeSolution, moments: Tensor, class_weights: Tensor, n_samples: float) -> LeaveOneOut:
    """Estimate the scores of samples that were left out of the fit, in float64 on the CPU.

    ``moments`` ``(m, c)`` are the feature sums of the classes, ``class_weights`` ``(c,)`` their total weights, all positive.
    One more sample with a squared distance of 1 is added to the variance: a few samples cannot prove it smaller. Where
    ``G`` is not known in full, all scores are taken to vary alike and independently.
    """
    solution, weights = ridge.solution.double().cpu(), class_weights.double().cpu()
    agreement = (solution.mT @ moments.double().cpu()).mT  # row i: sum of the scores of class i
    in_sample = agreement / weights[:, None]
    energy = agreement - ridge.alpha * solution.mT @ solution
    factor = _factor(ridge, n_samples)
    one_hot = torch.eye(len(weights), dtype=torch.float64)
    covariance = factor**2 * (energy - in_sample.mT @ (weights[:, None] * in_sample)) / n_samples
    if not ridge.known:
        covariance = one_hot * (factor**2 * ridge.residual / (n_samples * max(len(weights), 1)))
    covariance = (covariance + covariance.mT) / 2 + one_hot / (len(weights) * (n_samples + 1))
    return LeaveOneOut(one_hot + factor * (in_sample - one_hot), covariance, weights, factor)


def _factor(ridge: RidgeSolution, n_samples: float) -> float:
    """``k``: by how much errors in sample are magnified. 0 samples are allowed."""
    return n_samples / max(ridge.freedom, n_samples / _LARGEST_FACTOR, sys.float_info.min)
