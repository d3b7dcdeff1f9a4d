"""Which class a predicted vector belongs to: linear discriminant analysis of the scores, from the sums alone.

The nearest class vector is not the best answer. Least squares onto many classes *masks* some of them (Hastie, Tibshirani &
Friedman, "The Elements of Statistical Learning", 4.2): the scores of a class that is hard, rare, or lies between others stay
low, even for its own rows, and it hardly ever wins. But the sums tell around which scores the rows of each class lie, and
how these vary (`cldnet.math.left_out`), and with a normal distribution of one covariance ``Σ`` for all classes the best
answer is the largest ``μ_cᵀ Σ⁻¹ (s − μ_c/2) + log π_c``. In sample that would be Fisher's analysis of the features
themselves (Hastie, Tibshirani & Buja 1994); that of left-out rows does not take their overfitted scores at face value.

The same numbers tell how good a ridge penalty is: by the *separation* of classes, Fisher's ratio of the spread between
classes to the one within.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.crowded import Crowded, CrowdedDiscriminant, crowded_discriminant, crowded_separation
from cldnet.math.left_out import LeftOut

__all__ = ["Discriminant", "discriminant", "rule_for", "separation"]

#: Rows a class by which the covariance is drawn to that of independent scores, all of one variance.
EVEN_ROWS = 10.0
#: Rows a class, right at its vector, by which the mean is drawn there: of one or two rows left out nothing is known.
OWN_ROWS = 1.0
#: Where errors in sample had to be magnified by more than this, they are too near to rounding to count in full.
MOST_MAGNIFIED = 20.0


class Discriminant(NamedTuple):
    """What turns predicted vectors into scores of classes: ``s @ weights + offset``.

    Attributes
    ----------
    weights : Tensor, shape (c, c)
    offset : Tensor, shape (c,)
    """

    weights: Tensor
    offset: Tensor

    def scores(self, vectors: Tensor) -> Tensor:
        """Scores that go with vectors ``(n, c)``; the largest wins."""
        return vectors @ self.weights + self.offset

    def to(self, device: torch.device) -> Discriminant:
        """Move it to where vectors are."""
        return Discriminant(*(part.to(device) for part in self))


def rule_for(left_out: LeftOut | Crowded) -> Discriminant | CrowdedDiscriminant:
    """Find the scores that decide, in the form that suits the number of classes.

    Examples
    --------
    >>> means = torch.eye(2, dtype=torch.float64)
    >>> rule_for(LeftOut(means, 0.1 * means, torch.tensor([50.0, 50.0]).double())).scores(means).argmax(1)
    tensor([0, 1])
    """
    if isinstance(left_out, Crowded):
        return crowded_discriminant(left_out.drawn(MOST_MAGNIFIED, OWN_ROWS).evened(EVEN_ROWS))
    return discriminant(left_out)


def discriminant(left_out: LeftOut) -> Discriminant:
    """Find the linear scores whose softmax is the probability of each class, from means and covariance.

    A constant is left out that all classes have alike: the score of the mean over all rows is the logarithm of the class's
    share, less half the squared distance between the class's mean and that one.

    Parameters
    ----------
    left_out : LeftOut
        Where the scores of new rows lie.

    Examples
    --------
    Rows of the second class get nearly as high a score for the first; the discriminant knows.

    >>> means = torch.tensor([[0.9, 0.1], [0.55, 0.45]], dtype=torch.float64)
    >>> weights, offset = discriminant(LeftOut(means, 0.05 * torch.eye(2).double(), torch.tensor([900.0, 900.0]).double()))
    >>> (torch.tensor([[0.9, 0.1], [0.6, 0.4]]).double() @ weights + offset).argmax(1)
    tensor([0, 1])
    """
    means, covariance, counts, factor = left_out
    own = torch.eye(len(counts), dtype=means.dtype)
    means = own + min(1.0, MOST_MAGNIFIED / max(factor, 1.0)) * (means - own)
    means = (counts[:, None] * means + OWN_ROWS * own) / (counts[:, None] + OWN_ROWS)
    shares = counts / counts.sum()
    middle = shares @ means
    apart = means - middle
    weights = _within(covariance, counts, apart)
    offset = shares.log() - ((means + middle) * weights.mT).sum(1) / 2
    return Discriminant(weights, offset)


def separation(left_out: LeftOut | Crowded) -> float:
    """Fisher's ratio: the mean squared distance of class means from their middle, in units of the spread within classes.

    Examples
    --------
    >>> means = torch.eye(2, dtype=torch.float64)
    >>> near, far = (LeftOut(means, size * means, torch.tensor([50.0, 50.0]).double()) for size in (1.0, 0.1))
    >>> round(separation(near), 3), round(separation(far), 3)
    (0.5, 5.0)
    """
    if isinstance(left_out, Crowded):
        return crowded_separation(left_out.evened(EVEN_ROWS))
    means, covariance, counts, _ = left_out
    shares = counts / counts.sum()
    apart = means - shares @ means
    return float(shares @ (apart * _within(covariance, counts, apart).mT).sum(1))


def _within(covariance: Tensor, counts: Tensor, apart: Tensor) -> Tensor:
    """``Σ⁻¹ apartᵀ``, with the covariance drawn to an even one by so many rows."""
    rows, even = counts.sum(), EVEN_ROWS * len(counts)
    drawn = rows * covariance
    drawn.diagonal().add_(even * covariance.diagonal().mean())
    found: Tensor = torch.linalg.solve(drawn / (rows + even), apart.mT)
    return found
