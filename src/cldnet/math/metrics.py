"""Metrics of continual learning from an accuracy matrix, each named after the paper that defined it, and confusion matrices.

In the accuracy matrix ``R``, row ``i`` is measured after learning task ``i``, and column ``j`` is the accuracy, a fraction,
on the test part of task ``j``. Only ``j ≤ i`` is read.

One word means several numbers elsewhere: for the matrix of the example in `scores`, "forgetting" is 0.040 in Mammoth and PyCIL,
0.030 in FACIL and continuum and 0.005 in Avalanche. So the definition is part of each name here.

In a confusion matrix, row ``i``, column ``j`` counts the samples of class ``i`` that were predicted as class ``j``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

AccuracyMatrix: TypeAlias = Sequence[Sequence[float]] | NDArray[Any] | Tensor


@dataclass(frozen=True)
class Scores:
    """The four scores of one accuracy matrix, as fractions; the functions of the same names say what they mean."""

    average_accuracy: float
    average_incremental_accuracy: float
    forgetting_chaudhry: float
    backward_transfer_gem: float


def scores(matrix: AccuracyMatrix) -> Scores:
    """Compute all four scores of an accuracy matrix.

    Parameters
    ----------
    matrix : sequence of sequences, array or tensor
        ``R[i][j]`` for ``j ≤ i``, in [0, 1]; rows may be longer. It is not changed.

    Examples
    --------
    >>> result = scores([[0.90], [0.95, 0.98], [0.97, 0.90, 0.96]])
    >>> round(result.average_accuracy, 4), round(result.forgetting_chaudhry, 4)
    (0.9433, 0.03)
    >>> round(result.average_incremental_accuracy, 4), round(result.backward_transfer_gem, 4)
    (0.9361, -0.005)
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
    """
    return float(_seen(matrix)[-1].mean())


def average_incremental_accuracy(matrix: AccuracyMatrix) -> float:
    """Mean over all stages of the accuracy on what was seen: ``(1/T) Σ_i (1/(i+1)) Σ_{j≤i} R[i][j]``.

    From iCaRL (Rebuffi et al. 2017). PyCIL and PILOT print it as "average accuracy"; it is often 10 to 20 points above
    `average_accuracy`, so do not compare the two.
    """
    return float(np.mean([row.mean() for row in _seen(matrix)]))


def forgetting_chaudhry(matrix: AccuracyMatrix) -> float:
    """Mean drop from the best earlier accuracy: ``mean_{j<T-1} ( max_{j≤i<T-1} R[i][j] − R[T-1][j] )``.

    From RWalk (Chaudhry et al. 2018); FACIL and continuum use it. The maximum excludes the last row, so it is negative when old
    tasks improved. Mammoth, PyCIL and PILOT include the last row and are never negative (0.040 in the example); Avalanche
    takes the accuracy just after learning instead of the maximum (0.005). It is 0 for a single task.
    """
    *earlier, last = _seen(matrix)
    if not earlier:
        return 0.0
    return float(np.mean([max(row[j] for row in earlier[j:]) - last[j] for j in range(len(earlier))]))


def backward_transfer_gem(matrix: AccuracyMatrix) -> float:
    """Mean change since a task was learned: ``mean_{j<T-1} ( R[T-1][j] − R[j][j] )``.

    From GEM (Lopez-Paz & Ranzato 2017); Mammoth and CRNet use it. Continuum's "BWT" follows Díaz-Rodríguez et al. (2018), a
    mean over all stages, and is +0.013 in the example. It is 0 for a single task.
    """
    *earlier, last = _seen(matrix)
    if not earlier:
        return 0.0
    return float(np.mean([last[j] - earlier[j][j] for j in range(len(earlier))]))


def _seen(matrix: AccuracyMatrix) -> list[NDArray[np.float64]]:
    """Check the lower triangle and return its rows in float64."""
    table = matrix.detach().cpu().numpy() if isinstance(matrix, Tensor) else matrix
    if len(table) == 0:
        raise ValueError("The accuracy matrix is empty. It needs one row for each task learned.")
    rows = []
    for i, row in enumerate(table):
        if not hasattr(row, "__len__") or len(row) < i + 1:
            raise ValueError(f"Row {i} of the accuracy matrix needs an accuracy for each of the tasks 0 to {i}.")
        seen = np.asarray(row[: i + 1], dtype=np.float64)
        if np.isnan(seen).any():
            raise ValueError(f"Row {i} of the accuracy matrix has a NaN among the tasks 0 to {i}.")
        if ((seen < 0) | (seen > 1)).any():
            raise ValueError(f"Row {i} of the accuracy matrix has a value outside [0, 1]. Divide percentages by 100.")
        rows.append(seen)
    return rows


Counts = NDArray[np.int64]


class Pair(NamedTuple):
    """``times`` of the ``of`` samples of class ``true`` were predicted as class ``answer``."""

    true: int
    answer: int
    times: int
    of: int


def confusion_matrix(true: ArrayLike, answers: ArrayLike, classes: int) -> Counts:
    """Count how often each class, by its index, is predicted as each other."""
    places = np.asarray(true, dtype=np.int64) * classes + np.asarray(answers, dtype=np.int64)
    return np.bincount(places, minlength=classes * classes).reshape(classes, classes)


def class_accuracies(matrix: Counts) -> NDArray[np.float64]:
    """Accuracy of each class; NaN for a class without samples."""
    of = matrix.sum(axis=1)
    right = np.full(len(matrix), np.nan)
    np.divide(matrix.diagonal(), of, out=right, where=of > 0)
    return right


def balanced_accuracy(matrix: Counts) -> float:
    """Mean accuracy over the classes that have samples: every class counts the same."""
    return float(np.nanmean(class_accuracies(matrix)))


def worst_pairs(matrix: Counts, most: int) -> list[Pair]:
    """The most frequent confusions; ties go to the largest share of the class."""
    of = matrix.sum(axis=1)
    wrong = matrix - np.diag(matrix.diagonal())
    found = [Pair(int(i), int(j), int(wrong[i, j]), int(of[i])) for i, j in np.argwhere(wrong > 0)]
    return sorted(found, key=lambda pair: (-pair.times, pair.of, pair.true, pair.answer))[:most]


def ranks_of(scores: NDArray[Any], true: ArrayLike) -> NDArray[np.int64]:
    """How many classes score above each sample's own; of equal scores the first comes first, as in ``argmax``."""
    columns = np.asarray(true, dtype=np.int64)[:, None]
    own = np.take_along_axis(scores, columns, axis=1)
    earlier = np.arange(scores.shape[1]) < columns
    return np.asarray(((scores > own) | ((scores == own) & earlier)).sum(axis=1), dtype=np.int64)
