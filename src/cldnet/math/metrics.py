"""Scores of a run from its accuracy matrix, each named after the paper that defined it.

The matrix ``R``: row ``i`` is taken after task ``i`` was learnt, column ``j`` is the accuracy, a fraction, on
the test part of task ``j``. Only ``j ≤ i`` is read; what stands above the diagonal may be missing, NaN or
anything else.

One word means several numbers elsewhere: for the matrix of the examples below, "forgetting" is 0.040 in
Mammoth and PyCIL, 0.030 in FACIL and continuum and 0.005 in Avalanche. So the definition is part of each
name here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = [
    "AccuracyMatrix",
    "Scores",
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer_gem",
    "forgetting_chaudhry",
    "scores",
]

AccuracyMatrix: TypeAlias = Sequence[Sequence[float]] | NDArray[Any] | Tensor


@dataclass(frozen=True)
class Scores:
    """The four scores of one accuracy matrix, as fractions.

    Attributes
    ----------
    average_accuracy : float
        Mean accuracy over all tasks after the last one.
    average_incremental_accuracy : float
        Mean over all stages of the mean accuracy over the tasks seen so far.
    forgetting_chaudhry : float
        Mean drop from the best earlier accuracy to the last one; less is better, negative means improvement.
    backward_transfer_gem : float
        Mean change from the accuracy just after learning to the last one; more is better.

    Examples
    --------
    >>> Scores(0.9, 0.92, 0.03, -0.02).forgetting_chaudhry
    0.03
    """

    average_accuracy: float
    average_incremental_accuracy: float
    forgetting_chaudhry: float
    backward_transfer_gem: float


def scores(matrix: AccuracyMatrix) -> Scores:
    """Compute all four scores of an accuracy matrix.

    Parameters
    ----------
    matrix : sequence of sequences, array or tensor
        ``R[i][j]`` for ``j ≤ i``, in [0, 1]; rows may be longer than needed. It is never changed.

    Examples
    --------
    >>> result = scores([[0.90], [0.95, 0.98], [0.97, 0.90, 0.96]])
    >>> round(result.average_accuracy, 4), round(result.forgetting_chaudhry, 4)
    (0.9433, 0.03)
    """
    return Scores(
        average_accuracy=average_accuracy(matrix),
        average_incremental_accuracy=average_incremental_accuracy(matrix),
        forgetting_chaudhry=forgetting_chaudhry(matrix),
        backward_transfer_gem=backward_transfer_gem(matrix),
    )


def average_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean accuracy over all ``T`` tasks after the last one: ``(1/T) Σ_j R[T-1][j]``.

    GEM (Lopez-Paz & Ranzato 2017) calls it ACC. CLDNet's tables, Mammoth, and DualPrompt's "Acc@1" report it.

    Examples
    --------
    >>> round(average_accuracy([[0.90], [0.95, 0.98], [0.97, 0.90, 0.96]]), 4)
    0.9433
    """
    return float(_seen(matrix)[-1].mean())


def average_incremental_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean over all stages of the accuracy on what was seen: ``(1/T) Σ_i (1/(i+1)) Σ_{j≤i} R[i][j]``.

    From iCaRL (Rebuffi et al. 2017). PyCIL and PILOT print it as "average accuracy"; it is often 10 to 20
    points above `average_accuracy`, so the two must not be compared.

    Examples
    --------
    >>> round(average_incremental_accuracy([[0.90], [0.95, 0.98], [0.97, 0.90, 0.96]]), 4)
    0.9361
    """
    return float(np.mean([row.mean() for row in _seen(matrix)]))


def forgetting_chaudhry(matrix: AccuracyMatrix) -> float:
    """Mean drop from the best earlier accuracy: ``mean_{j<T-1} ( max_{j≤i<T-1} R[i][j] − R[T-1][j] )``.

    From RWalk (Chaudhry et al. 2018); FACIL and continuum use it. The maximum leaves the last row out, so it
    is negative when old tasks got better. Mammoth, PyCIL and PILOT let the last row in and can never be
    negative (0.040 in the example); Avalanche takes the accuracy just after learning instead of the maximum
    (0.005). One task has nothing to forget: 0.0.

    Examples
    --------
    >>> round(forgetting_chaudhry([[0.90], [0.95, 0.98], [0.97, 0.90, 0.96]]), 4)  # (-0.02+0.08)/2
    0.03
    """
    *earlier, last = _seen(matrix)
    if not earlier:
        return 0.0
    return float(np.mean([max(row[j] for row in earlier[j:]) - last[j] for j in range(len(earlier))]))


def backward_transfer_gem(matrix: AccuracyMatrix) -> float:
    """Mean change since a task was learnt: ``mean_{j<T-1} ( R[T-1][j] − R[j][j] )``.

    From GEM (Lopez-Paz & Ranzato 2017); Mammoth and CRNet use it. Continuum's "BWT" follows Díaz-Rodríguez et
    al. (2018), a mean over all stages, and is +0.013 in the example. One task has nothing to look back
    on: 0.0.

    Examples
    --------
    >>> round(backward_transfer_gem([[0.90], [0.95, 0.98], [0.97, 0.90, 0.96]]), 4)  # (0.07-0.08)/2
    -0.005
    """
    *earlier, last = _seen(matrix)
    if not earlier:
        return 0.0
    return float(np.mean([last[j] - earlier[j][j] for j in range(len(earlier))]))


def _seen(matrix: AccuracyMatrix) -> list[NDArray[np.float64]]:
    """Check the lower triangle and give it row by row, in float64."""
    table = matrix.detach().cpu().numpy() if isinstance(matrix, Tensor) else matrix
    if len(table) == 0:
        raise ValueError("The accuracy matrix is empty; it needs one row for each learnt task.")
    return [_seen_of_row(row, i) for i, row in enumerate(table)]


def _seen_of_row(row: Sequence[float] | NDArray[Any], i: int) -> NDArray[np.float64]:
    if not hasattr(row, "__len__") or len(row) < i + 1:
        raise ValueError(f"Row {i} of the accuracy matrix needs an accuracy for each of the tasks 0 to {i}.")
    seen = np.asarray(row[: i + 1], dtype=np.float64)
    if np.isnan(seen).any():
        raise ValueError(f"Row {i} of the accuracy matrix has a NaN among the tasks 0 to {i}.")
    if ((seen < 0) | (seen > 1)).any():
        raise ValueError(
            f"Row {i} of the accuracy matrix has a value outside [0, 1]; "
            "accuracies are fractions, so divide percentages by 100."
        )
    return seen
