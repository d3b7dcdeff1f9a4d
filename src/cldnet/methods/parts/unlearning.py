"""Checks of samples that are to be forgotten: whether they can have been learned at all.

Sums do not know the samples of a class. But what is left after a subtraction has to be the sums of *some* samples, and a model
that is solved from it has to predict the forgotten samples as it would any sample that it has not seen. Samples that were never
learned, have another label or weight, or were forgotten before usually violate one of the two.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.methods.mapped import ROUNDING, FullMoments, SecondMoments

#: Rounding of a Cholesky factor of integers, as a share of the trace. Sums of fractions have `ROUNDING`.
_FACTOR_ROUNDING = 1e-12
#: Ridge penalty of the two models that `check_predictions` compares, as a share of the mean square of a feature.
_PENALTY = 1e-6
#: Samples that were learned stayed below 9, including outliers and wrong or random labels, from one sample to three quarters of
#: all. Samples that were not learned reach 10 before they do harm: from there on they cost points of accuracy.
_MOST_SURPRISE = 10.0
#: Labels of samples that were learned had a mean score of at least -0.02, with three standard errors added. Samples that are
#: forgotten with wrong labels go down to -0.3.
_LEAST_SCORE = -0.1
_BLOCK = 4096


class Summed(NamedTuple):
    """Sums over samples: second moments ``G``, and feature sums and weights by class."""

    second: SecondMoments
    class_sums: Tensor
    class_weights: Tensor


def without(
    known: Summed, taken: Summed, limits: tuple[float, float] | None = None, names: Sequence[Any] | None = None
) -> Summed:
    """Subtract sums of samples; raise an error if no samples can have the sums that are left.

    Weights are not negative, a class without weight has no sum, the mean of a class lies within the features' ``limits`` (their
    smallest and largest value), and ``G − Σ_c s_c s_cᵀ / n_c``, the scatter within classes, is positive semi-definite. Rounding
    of weights that are not integers is allowed for. ``names`` are the labels of the classes, for errors.
    """
    sums, weights = known.class_sums - taken.class_sums, known.class_weights - taken.class_weights
    slack = ROUNDING * known.class_weights
    left = weights > slack
    size = float(known.second.diagonal().max())
    summed = (sums.square() > ROUNDING**2 * known.class_weights[:, None] * size).any(1)
    _refuse(weights < -slack, "class {} would be left with a negative number of samples", names)
    _refuse(~left & summed, "class {} would be left with no samples, but with a feature sum that is not zero", names)
    if limits is not None:
        least, most = (limit * weights[:, None] for limit in limits)
        reach = max(map(abs, limits)) * slack[:, None]
        outside = ((sums < least - reach) | (sums > most + reach)).any(1)
        touched = left & (taken.class_weights != 0)  # noise moves sums out of the limits, also of other classes
        reason = f"features lie between {limits[0]:g} and {limits[1]:g}, and the mean of class {{}} would not"
        _refuse(outside & touched, reason, names)
    second = copy.deepcopy(known.second)
    second.merge(taken.second, sign=-1.0)
    whole = all(bool((part == part.round()).all()) for part in (known.class_sums, taken.class_sums))
    rounding = (_FACTOR_ROUNDING if whole else ROUNDING) * known.second.energy
    if not second.has_scatter(sums[left], weights[left], rounding):
        raise not_learned("the scatter within classes would no longer be positive semi-definite")
    return Summed(second, torch.where(left[:, None], sums, 0.0), torch.where(left, weights, 0.0))


def check_predictions(known: Summed, left: Summed, h: Tensor, y: Tensor) -> None:
    """Raise an error if a model without the samples does not predict them as it predicts samples that it has not seen.

    ``h`` are the samples' features ``(k, m)`` and ``y`` their classes; the second moments are full. With the error ``e`` of a
    sample before it is forgotten and ``e'`` after, ``e · e' = (1 − l) ‖e'‖²`` for a sample of leverage ``l`` that was learned.
    An outlier (``l`` near 1) was fitted closely, so its ``e`` is small. If it was not learned, ``e`` is not small,
    ``e' = e / (1 − l)`` is huge, and so is the harm to the model. And subtracting labels that were never learned teaches the
    opposite: their scores become negative on average.

    This needs more samples than features: a model that fits every sample closely may predict anything.
    """
    alpha = _PENALTY * max(known.second.energy, 1.0) / known.second.width
    before, after = _ridge(known, alpha), _ridge(left, alpha)
    surprises, scores = [], []
    for features, labels in zip(h.split(_BLOCK), y.split(_BLOCK), strict=True):
        target, predicted = F.one_hot(labels, len(known.class_sums)).double(), features.double() @ after
        surprises.append(((target - features.double() @ before) * (target - predicted)).sum(1))
        scores.append((target * predicted).sum(1))
    surprise, score = torch.cat(surprises), torch.cat(scores)
    if bool((surprise > _MOST_SURPRISE).any()):
        raise not_learned(
            f"without them, sample {int(surprise.argmax())} would be predicted worse than any sample that was learned"
        )
    if len(score) > 1 and float(score.mean() + 3 * score.std() / len(score) ** 0.5) < _LEAST_SCORE:
        raise not_learned(
            f"without them, their labels would score {float(score.mean()):.2f}, as if the model had learned the opposite"
        )


def _ridge(summed: Summed, alpha: float) -> Tensor:
    assert isinstance(summed.second, FullMoments)
    regular = summed.second.dense()
    regular.diagonal().add_(alpha)
    return torch.cholesky_solve(summed.class_sums.mT, torch.linalg.cholesky(regular))


def _refuse(wrong: Tensor, reason: str, names: Sequence[Any] | None) -> None:
    """Raise an error that names the first wrong class."""
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise not_learned(reason.format(repr(first if names is None else names[first])))


def not_learned(reason: str) -> ValueError:
    """Make the error for samples that cannot be forgotten."""
    return ValueError(
        f"These samples were not learned, or not with these labels and weights: {reason}. Nothing was forgotten. Pass samples "
        "exactly as they were learned, each only once."
    )
