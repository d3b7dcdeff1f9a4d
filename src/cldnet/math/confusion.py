"""What is taken for what: a confusion matrix, and what can be read off it.

Row ``i``, column ``j`` of the matrix counts the examples of class ``i`` that were taken for class ``j``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Pair", "balanced_accuracy", "class_accuracies", "confusion_matrix", "ranks_of", "worst_pairs"]

Counts = NDArray[np.int64]


class Pair(NamedTuple):
    """``times`` of the ``of`` examples of class ``true`` are taken for class ``answer``."""

    true: int
    answer: int
    times: int
    of: int


def confusion_matrix(true: ArrayLike, answers: ArrayLike, classes: int) -> Counts:
    """Count how often each class, by its number, is taken for each.

    Examples
    --------
    >>> confusion_matrix([0, 0, 1, 2], [0, 1, 1, 0], 3)
    array([[1, 1, 0],
           [0, 1, 0],
           [1, 0, 0]])
    """
    places = np.asarray(true, dtype=np.int64) * classes + np.asarray(answers, dtype=np.int64)
    return np.bincount(places, minlength=classes * classes).reshape(classes, classes)


def class_accuracies(matrix: Counts) -> NDArray[np.float64]:
    """Share of each class's examples that are right; NaN for a class without examples.

    Examples
    --------
    >>> class_accuracies(np.array([[3, 1], [0, 0]]))
    array([0.75,  nan])
    """
    of = matrix.sum(axis=1)
    right = np.full(len(matrix), np.nan)
    np.divide(matrix.diagonal(), of, out=right, where=of > 0)
    return right


def balanced_accuracy(matrix: Counts) -> float:
    """Mean accuracy over the classes that have examples: every class counts the same, however many it has.

    Examples
    --------
    >>> balanced_accuracy(np.array([[9, 1], [1, 1]]))
    0.7
    """
    return float(np.nanmean(class_accuracies(matrix)))


def worst_pairs(matrix: Counts, most: int) -> list[Pair]:
    """The most frequent confusions, largest share of the class first where they are equally frequent.

    Examples
    --------
    >>> worst_pairs(np.array([[5, 2, 0], [0, 7, 1], [2, 0, 0]]), 2)
    [Pair(true=2, answer=0, times=2, of=2), Pair(true=0, answer=1, times=2, of=7)]
    """
    of = matrix.sum(axis=1)
    wrong = matrix - np.diag(matrix.diagonal())
    found = [Pair(int(i), int(j), int(wrong[i, j]), int(of[i])) for i, j in np.argwhere(wrong > 0)]
    return sorted(found, key=lambda pair: (-pair.times, pair.of, pair.true, pair.answer))[:most]


def ranks_of(scores: NDArray[Any], true: ArrayLike) -> NDArray[np.int64]:
    """How many classes stand before each row's own; of equal scores the first comes first, as ``argmax`` has it.

    Examples
    --------
    >>> ranks_of(np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]), [2, 1])
    array([1, 1])
    """
    columns = np.asarray(true, dtype=np.int64)[:, None]
    own = np.take_along_axis(scores, columns, axis=1)
    earlier = np.arange(scores.shape[1]) < columns
    return np.asarray(((scores > own) | ((scores == own) & earlier)).sum(axis=1), dtype=np.int64)
