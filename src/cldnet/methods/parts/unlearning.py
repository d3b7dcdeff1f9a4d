"""What sums can tell of rows that are to be forgotten: whether they can have been learned at all.

Sums do not know one row of a class from another. But what is left after a subtraction has to be the sums of *some* rows, and
a model that is solved from it has to predict the forgotten rows as it would any row that it has not seen. Rows that were
never learned, carry another label or weight, or were forgotten before mostly violate one of the two.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.methods.parts.moments import ROUNDING, FullMoments, SecondMoments

__all__ = ["Summed", "check_predictions", "not_learned", "without"]

#: Rounding of a Cholesky factor of whole numbers, as a share of the trace. Sums of fractions have `ROUNDING`.
_FACTOR_ROUNDING = 1e-12
#: Ridge penalty of the two models that `check_predictions` compares, as a share of the mean square of a feature.
_PENALTY = 1e-6
#: Rows that were learned stayed below 9, outliers and wrong or random labels among them, from one row to three quarters of all.
#: Rows that were not learned reach this before they do harm: from 10 on they cost points of accuracy.
_MOST_SURPRISE = 10.0
#: Rows that were learned had labels with a mean score of -0.02 or more, three standard errors added, whatever the labels. Rows
#: that are forgotten with labels they never had go down to -0.3.
_LEAST_SCORE = -0.1
_BLOCK = 4096


class Summed(NamedTuple):
    """The sums of some rows: second moments ``G``, feature sums and weights by class."""

    second: SecondMoments
    class_sums: Tensor
    class_weights: Tensor


def without(
    known: Summed, taken: Summed, limits: tuple[float, float] | None = None, names: Sequence[Any] | None = None
) -> Summed:
    """Subtract the sums of some rows, or refuse if no rows have the sums that would be left.

    Weights are not negative, a class without weight has no sum, the mean of a class lies within the features' limits, and
    ``G − Σ_c s_c s_cᵀ / n_c``, the scatter within classes, is positive semi-definite. Rounding of weights that are not whole
    numbers is allowed for, and leaves no trace of a class that is gone.

    Parameters
    ----------
    known, taken : Summed
        The sums of all rows, and of those to subtract.
    limits : tuple of float, optional
        Least and largest value of a feature.
    names : sequence, optional
        Labels of the class rows, for the error.

    Examples
    --------
    >>> def summed(*rows: float) -> Summed:
    ...     second = FullMoments(1)
    ...     second.add(torch.tensor(rows, dtype=torch.float64)[:, None])
    ...     return Summed(second, torch.tensor([[sum(rows)]]).double(), torch.tensor([len(rows)]).double())
    >>> left = without(summed(1.0, 2.0), summed(2.0))
    >>> left.second.energy, left.class_sums, left.class_weights
    (1.0, tensor([[1.]], dtype=torch.float64), tensor([1.], dtype=torch.float64))
    >>> without(summed(1.0, 2.0), summed(3.0), names=["cat"])
    Traceback (most recent call last):
    ...
    ValueError: These rows were not among those learned, ... the scatter within classes would no longer be positive ...
    """
    sums, weights = known.class_sums - taken.class_sums, known.class_weights - taken.class_weights
    slack = ROUNDING * known.class_weights
    left = weights > slack
    size = float(known.second.diagonal().max())
    gone = sums[~left].square() > ROUNDING**2 * known.class_weights[~left, None] * size
    _refuse(weights < -slack, "class {} would be left with a negative number of rows", names)
    _refuse(~left, "class {} would be left with no rows, but not with a feature sum of zero", names, gone.any(1))
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
    """Refuse rows that a model without them would not predict as it predicts rows that it has not seen.

    With the error ``e`` of a row before it is forgotten and ``e'`` after, ``e · e' = (1 − l) ‖e'‖²`` for a row of leverage
    ``l`` that was learned. A row unlike all others (``l`` near 1) was fitted closely, so its ``e`` is small. If it was not
    learned, ``e`` is not small, ``e' = e / (1 − l)`` is enormous, and so is the harm to the model. And where labels were never
    learned, subtracting them teaches the opposite: their scores become negative on average.

    It takes more rows than features to tell: predictions of a model that fits every row closely may be anything.

    Parameters
    ----------
    known, left : Summed
        All sums, with full second moments, and those without the rows.
    h : Tensor, shape (k, m)
        The features of the rows.
    y : Tensor, shape (k,)
        Their class rows.
    """
    alpha = _PENALTY * max(known.second.energy, 1.0) / known.second.width
    before, after = _ridge(known, alpha), _ridge(left, alpha)
    surprises, scores = [], []
    for rows, labels in zip(h.split(_BLOCK), y.split(_BLOCK), strict=True):
        target, predicted = F.one_hot(labels, len(known.class_sums)).double(), rows.double() @ after
        surprises.append(((target - rows.double() @ before) * (target - predicted)).sum(1))
        scores.append((target * predicted).sum(1))
    surprise, score = torch.cat(surprises), torch.cat(scores)
    if bool((surprise > _MOST_SURPRISE).any()):
        raise not_learned(
            f"without them, row {int(surprise.argmax())} would be predicted worse than any row that was learned"
        )
    if len(score) > 1 and float(score.mean() + 3 * score.std() / len(score) ** 0.5) < _LEAST_SCORE:
        raise not_learned(
            f"without them, their labels would score {float(score.mean()):.2f}, as if the opposite had been taught"
        )


def _ridge(summed: Summed, alpha: float) -> Tensor:
    assert isinstance(summed.second, FullMoments)
    regular = summed.second.dense()
    regular.diagonal().add_(alpha)
    return torch.cholesky_solve(summed.class_sums.mT, torch.linalg.cholesky(regular))


def _refuse(wrong: Tensor, reason: str, names: Sequence[Any] | None, among: Tensor | None = None) -> None:
    """Refuse if a class row is wrong, naming the first; ``among`` says which of the rows given by ``wrong`` are."""
    rows = wrong.nonzero()[:, 0]
    rows = rows if among is None else rows[among]
    if len(rows):
        row = int(rows[0])
        raise not_learned(reason.format(repr(row if names is None else names[row])))


def not_learned(reason: str) -> ValueError:
    """Make the error for rows that cannot be forgotten.

    Examples
    --------
    >>> not_learned("class 'cat' would be left with a negative number of rows")
    ValueError("These rows were not among those learned, or not with these labels and weights: class 'cat' would be left ...
    """
    return ValueError(
        f"These rows were not among those learned, or not with these labels and weights: {reason}. Nothing was forgotten. Pass "
        "rows exactly as they were learned, and each only once."
    )
