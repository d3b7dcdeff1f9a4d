"""What the sums of a ridge regression tell of rows that were not learned, though no row is at hand.

Scores ``s = Bᵀh`` estimate the one-hot vector of a row's class. In sample ``ŶᵀY = BᵀS`` and ``ŶᵀŶ = BᵀS − αBᵀB``. With the
mean leverage for every row, as in generalised cross-validation (Golub, Heath & Wahba 1979), a row left out has the scores
``y + k(ŷ − y)``, ``k = rows / freedom``; so class means move away from ``y`` by ``k`` and covariances grow by ``k²``.
On validation parts of MNIST, FashionMNIST, CIFAR-10 and CIFAR-100 the mean score of the own class comes out within 0.003 of
that of new images (results/benchmarks/discriminant.json).
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.crowded import Crowded

__all__ = ["Choice", "LeftOut", "left_out", "left_out_scores"]

#: Classes above which, if features are fewer, no matrix is made that is as large as there are classes.
CROWD = 512

_LARGEST_FACTOR = 1e3  # with hardly any freedom left the errors in sample say nothing more


class Choice(NamedTuple):
    """A ridge solution, with what is known of its errors from the sums.

    Attributes
    ----------
    alpha : float
        Ridge penalty.
    solution : Tensor, shape (m, c)
        ``B = (G + αI)⁻¹ S`` in float64.
    residual : float
        ``‖Y − HB‖²`` over all rows and classes.
    freedom : float
        Degrees of freedom left to the errors: rows less ``tr H(G + αI)⁻¹Hᵀ``.
    known : bool
        Whether ``G`` was known in full, and with it how scores vary within classes.
    """

    alpha: float
    solution: Tensor
    residual: float
    freedom: float
    known: bool = True


class LeftOut(NamedTuple):
    """Scores that rows get from a solution which has not seen them.

    Attributes
    ----------
    means : Tensor, shape (c, c)
        Row ``i``: mean scores of the rows of class ``i``.
    covariance : Tensor, shape (c, c)
        Covariance within classes, pooled over them.
    weights : Tensor, shape (c,)
        Weight of the examples of each class.
    factor : float
        ``k``: by how much errors in sample were magnified.
    """

    means: Tensor
    covariance: Tensor
    weights: Tensor
    factor: float = 1.0


def left_out(choice: Choice, moments: Tensor, class_weights: Tensor, rows: float) -> LeftOut | Crowded:
    """Estimate what `left_out_scores` does, in factors where there are many classes and fewer features.

    Examples
    --------
    >>> choice = Choice(alpha=1.0, solution=torch.ones(2, 600), residual=0.0, freedom=500.0)
    >>> type(left_out(choice, torch.ones(2, 600), torch.ones(600), rows=600.0)).__name__
    'Crowded'
    """
    if len(class_weights) <= max(CROWD, len(choice.solution)):
        return left_out_scores(choice, moments, class_weights, rows)
    solution, moments, weights = (part.double().cpu() for part in (choice.solution, moments, class_weights))
    factor = _factor(choice, rows)
    even = None if choice.known else factor**2 * choice.residual / (rows * len(weights))
    return Crowded.of(solution, moments, weights, rows, choice.alpha, factor, even)


def _factor(choice: Choice, rows: float) -> float:
    """``k``: by how much errors in sample are magnified. 0 rows are none."""
    return rows / max(choice.freedom, rows / _LARGEST_FACTOR, sys.float_info.min)


def left_out_scores(choice: Choice, moments: Tensor, class_weights: Tensor, rows: float) -> LeftOut:
    """Estimate the scores of rows that were left out, from the sums, in float64 on the CPU.

    Parameters
    ----------
    choice : Choice
        The ridge solution of the sums.
    moments : Tensor, shape (m, c)
        Sum of features a class; the columns are those of the scores.
    class_weights : Tensor, shape (c,)
        Weight of the examples of each class, all of them positive.
    rows : float
        Number of examples in the sums, a weight counting as that many of them.

    Notes
    -----
    The variance is that of one more row with a squared distance of 1: however well a few rows were fitted, no more than
    that is known. Where ``G`` is not known in full, all scores are taken to vary alike and independently.

    Examples
    --------
    >>> choice = Choice(alpha=1.0, solution=torch.tensor([[0.8]]), residual=0.16, freedom=3.2)
    >>> means, covariance, *_ = left_out_scores(choice, torch.tensor([[4.0]]), torch.tensor([4.0]), rows=4)
    >>> f"{means.item():.2f} {covariance.item():.2f}"  # four rows with the feature 1: each three predict 3/4 for the other
    '0.75 0.20'
    """
    solution, weights = choice.solution.double().cpu(), class_weights.double().cpu()
    agreement = (solution.mT @ moments.double().cpu()).mT  # row i: sum of the scores of class i
    in_sample = agreement / weights[:, None]
    energy = agreement - choice.alpha * solution.mT @ solution
    factor = _factor(choice, rows)
    own = torch.eye(len(weights), dtype=torch.float64)
    covariance = factor**2 * (energy - in_sample.mT @ (weights[:, None] * in_sample)) / rows
    if not choice.known:
        covariance = own * (factor**2 * choice.residual / (rows * max(len(weights), 1)))
    covariance = (covariance + covariance.mT) / 2 + own / (len(weights) * (rows + 1))
    return LeftOut(own + factor * (in_sample - own), covariance, weights, factor)
