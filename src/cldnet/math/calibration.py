"""Calibration of the exact solver from its sums: a temperature, and the usual novelty of samples of known classes.

`cldnet.math.leave_one_out` gives the means of the scores of each class and their pooled covariance. Two assumptions are added:

- **The variance differs between classes.** A score is nearly a probability, and one with mean ``μ`` varies as ``μ(1 − μ)``
  where the total is given (as a beta variable does): samples of a class that is confused with no other vary little.
- **The tails** are those of a multivariate t distribution. For the temperature it has `TAIL` degrees of freedom, a constant
  that fits digits, MNIST, FashionMNIST, CIFAR-10 and CIFAR-100 on random features.

Scores drawn from this model, always the same ones for the same sums, give the temperature with the least cross-entropy.

The novelty (`cldnet.math.novelty`) of samples of known classes needs more, as it depends on the samples that are far from all
means. How far, sums of squares cannot tell, but two things are known. The variance of errors is magnified by the larger of

- ``1 + SPREAD h^(1/3) max(0, 2o − 1) log C``, with the share ``h`` of the degrees of freedom that the solution takes, the mean
  score ``o`` of samples for their own class, and the number of classes ``C = 1 / Σ_c π_c²``, weighted by their shares ``π_c``:
  with many classes no class has the pooled covariance;
- ``(D/k)^(UNEVEN h²)``: samples differ in leverage. The error of a sample ``i`` in sample is that of leave-one-out divided by
  ``1 + qᵢ``, with ``qᵢ = hᵢᵀ(G₋ᵢ + αI)⁻¹hᵢ``, its variance given all others relative to the noise. With the mean leverage for
  all, errors are magnified by ``k``, the *harmonic* mean of ``1 + qᵢ``. Samples with near copies dominate it, and say the least
  of new ones. The sums also have a *geometric* mean, ``D = det(I + G/α)^(1/n)``: the determinant is the product of ``1 + q``
  over samples that are added one by one, in whatever order. With fewer samples than features ``D/k`` is 1.5 to 5 for
  sentences, and close to the ratio of the true squared errors of samples left out to those estimated with ``k``.

The tails that are left are lighter: `NOVELTY_TAIL` degrees of freedom. Formulas and constants fit validation parts of five data
sets; docs/doubt.md has the figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.discriminant import Discriminant, LowRankDiscriminant, linear_discriminant
from cldnet.math.leave_one_out import LeaveOneOut, LowRankLeaveOneOut, RidgeSolution, leave_one_out
from cldnet.math.novelty import Novelty, novelty

#: Degrees of freedom of the scores' t distribution.
TAIL = 12
#: The same for the novelty, which beyond its largest draw falls off as the power of half of that; and by how much errors vary
#: beyond what the mean leverage says. Chosen on validation parts of CIFAR-100, CLINC150, digits, FashionMNIST and MNIST.
NOVELTY_TAIL, SPREAD, UNEVEN = 30, 0.4, 1.2
#: Largest ratio ``D/k`` that counts: sums of weights far below 1 have no limit.
MOST_UNEVEN = 10.0
DRAWS = 4096
_COMMON_VARIANCE = 0.05  # share of the variance that all classes have, so that none is without any
_LOWEST, _HIGHEST, _HALVINGS = 1e-3, 1e3, 24  # range and steps of the temperature search


class Calibration(NamedTuple):
    """Turns scores into probabilities.

    ``softmax(t / temperature)`` are the probabilities of the classes, given that it is one of them, for the scores ``t`` of the
    discriminant of the same sums. ``drawn`` is the novelty of samples of known classes, sorted, in float64; ``classes`` are the
    columns of predicted vectors that ``novelty`` takes.
    """

    temperature: float
    classes: Tensor
    novelty: Novelty | None
    drawn: Tensor


def calibrate(
    ridge: RidgeSolution,
    moments: Tensor,
    class_weights: Tensor,
    n_samples: float,
    *,
    decide: Callable[[LeaveOneOut | LowRankLeaveOneOut], Discriminant | LowRankDiscriminant] = linear_discriminant,
) -> Calibration:
    """Estimate from the sums how the scores of new samples vary, on the CPU; classes without weight are ignored.

    ``decide`` makes the rule whose scores the temperature is for. The result is always finite: sums without a class give the
    temperature 1 and a single draw. The targets of the temperature are smoothed as by Platt (1999), by ``1 / (n_c + 2)``.
    """
    weighted = class_weights > 0
    classes = weighted.nonzero()[:, 0].cpu()
    if not len(classes) or n_samples <= 0:
        return Calibration(1.0, classes, None, torch.zeros(1, dtype=torch.float64))
    weights = class_weights[weighted].double().cpu()
    known = ridge._replace(solution=ridge.solution[:, weighted])
    estimate = leave_one_out(known, moments[:, weighted], weights, n_samples)
    vectors, targets = _draw(estimate, TAIL)
    rule = novelty(estimate, known.solution)
    return Calibration(
        temperature=_temperature(decide(estimate).scores(vectors), targets, smoothing=1 / (weights + 2)),
        classes=classes,
        novelty=rule,
        drawn=rule.scores(_draw(_spread(estimate, ridge.log_determinant / n_samples), NOVELTY_TAIL)[0]).sort().values,
    )


def joint_decision(estimate: LeaveOneOut | LowRankLeaveOneOut) -> Discriminant | LowRankDiscriminant:
    """Multiply the probabilities of the linear discriminant by those of the nearest class vector, each at its temperature.

    The discriminant is better where classes differ in size, the nearest class vector where there are many alike, because
    scores are not as normal as the discriminant supposes. Together they are nearly as good as the better one (docs/text.md).
    With more classes than features the discriminant alone decides.
    """
    rule = linear_discriminant(estimate)
    if isinstance(estimate, LowRankLeaveOneOut) or len(estimate.weights) < 2:
        return rule
    assert isinstance(rule, Discriminant)
    # In an order that does not depend on how the classes came, and so the same draws.
    order = estimate.own_means.argsort()
    sorted_means, covariance = estimate.means[order][:, order], estimate.covariance[order][:, order]
    vectors, targets = _draw(
        estimate._replace(means=sorted_means, covariance=covariance, weights=estimate.weights[order]), TAIL
    )
    smoothing, original = 1 / (estimate.weights[order] + 2), order.argsort()
    apart = _temperature(vectors, targets, smoothing)
    along = _temperature(rule.scores(vectors[:, original])[:, order], targets, smoothing)
    nearest = torch.eye(len(order), dtype=rule.weights.dtype) / apart
    return Discriminant((rule.weights / along + nearest) / 2, rule.offset / (2 * along))


def known_probability(vectors: Tensor, calibration: Calibration) -> Tensor:
    """Probability ``(n,)`` that a sample of a known class is at least as novel as predicted vectors ``(n, c)`` on the CPU.

    Rejecting everything below 0.05 rejects about 5% of the samples of known classes.
    """
    drawn, count = calibration.drawn, len(calibration.drawn)
    if calibration.novelty is None:
        return vectors.new_zeros(len(vectors))
    far = calibration.novelty.scores(vectors[:, calibration.classes].double())
    above = 1 - (torch.arange(count, dtype=torch.float64) + 0.5) / count
    right = torch.searchsorted(drawn, far).clamp(1, count - 1)
    tiny = torch.finfo(torch.float64).tiny
    part = ((far - drawn[right - 1]) / (drawn[right] - drawn[right - 1]).clamp_min(tiny)).clamp(0, 1)
    within = above[right - 1] + part * (above[right] - above[right - 1])
    middle = drawn[count // 2]
    beyond = above[-1] * ((drawn[-1] - middle) / (far - middle).clamp_min(tiny)) ** (NOVELTY_TAIL / 2)
    return torch.where(far > drawn[-1], beyond, within).to(vectors.dtype)


def _spread(estimate: LeaveOneOut | LowRankLeaveOneOut, log_mean: float = 0.0) -> LeaveOneOut | LowRankLeaveOneOut:
    """Magnify errors to those of samples that are far from all classes; ``log_mean`` is ``log D``, 0 if that is not known."""
    shares = estimate.weights / estimate.weights.sum()
    factor = max(estimate.factor, 1.0)
    used = 1 - 1 / factor
    sure = min(max(2 * float(shares @ estimate.own_means) - 1, 0.0), 1.0)
    classes = -math.log(float(shares.square().sum()))
    by = 1 + SPREAD * used ** (1 / 3) * sure * max(classes, 0.0)
    uneven = min(max(log_mean - math.log(factor), 0.0), math.log(MOST_UNEVEN))
    return estimate.magnify_errors(math.sqrt(max(by, math.exp(UNEVEN * used**2 * uneven))))


def _draw(estimate: LeaveOneOut | LowRankLeaveOneOut, tail: int) -> tuple[Tensor, Tensor]:
    """Draw predicted vectors of samples of known classes, and their classes, from the model of this module."""
    shares = estimate.weights / estimate.weights.sum()
    generator = torch.Generator().manual_seed(0)
    middles = (torch.arange(DRAWS, dtype=torch.float64) + 0.5) / DRAWS
    classes = torch.searchsorted(shares.cumsum(0), middles).clamp_max(len(shares) - 1)
    if isinstance(estimate, LowRankLeaveOneOut):
        normal, means = estimate.sample(DRAWS, generator), estimate.mean_scores(classes)
        parts = torch.arange(len(shares)).split(DRAWS)  # all at once would be a (c, c) matrix
        usual = sum((shares[part] @ _binomial(estimate.mean_scores(part)) for part in parts), torch.zeros(()))
    else:
        values, vectors = torch.linalg.eigh(estimate.covariance)
        # The symmetric root is unique. Along axes alone, rounding would choose among those that are equally long.
        root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
        normal = torch.randn(DRAWS, len(shares), generator=generator, dtype=torch.float64) @ root
        means, usual = estimate.means[classes], shares @ _binomial(estimate.means)
    chi_square = torch.randn(DRAWS, tail, generator=generator, dtype=torch.float64).square().sum(1)
    stretch = ((tail - 2) / chi_square).sqrt()  # mean square 1: the covariance is unchanged
    relative = torch.where(usual > 0, _binomial(means) / usual, 1.0)  # to the pooled variance, 1 on average
    variance = _COMMON_VARIANCE + (1 - _COMMON_VARIANCE) * relative
    return means + stretch[:, None] * variance.sqrt() * normal, classes


def _binomial(means: Tensor) -> Tensor:
    """``|μ(1 − μ)|``."""
    return (means * (1 - means)).abs()


def _temperature(scores: Tensor, classes: Tensor, smoothing: Tensor) -> float:
    """Temperature with the least cross-entropy with smoothed labels, by bisection.

    The cross-entropy is convex in the inverse temperature; its slope is the difference of mean scores under softmax and labels.
    """
    count = scores.shape[1]
    if count == 1:
        return 1.0
    own = scores.gather(1, classes[:, None])[:, 0]
    others = (scores.sum(1) - own) / (count - 1)
    target = float((own + smoothing[classes] * (others - own)).mean())
    low, high = math.log(_LOWEST), math.log(_HIGHEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        expected = (torch.softmax(scores * math.exp(-middle), 1) * scores).sum(1).mean()
        low, high = (middle, high) if float(expected) > target else (low, middle)
    return math.exp((low + high) / 2)
