"""How classes are shared out among tasks, in which order, and which rows are set aside for testing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cldnet.device import generator

__all__ = ["order_classes", "set_aside", "share_out"]


def order_classes(classes: NDArray[Any], seed: int | None, order: Sequence[Any] | str | None) -> list[Any]:
    """Put sorted classes into the order in which they arrive.

    Parameters
    ----------
    classes : array
        All classes, sorted.
    seed : int or None
        Seed of a random order; ``None`` leaves them sorted.
    order : sequence of labels, "numpy:SEED" or None
        An order that was given: labels, perhaps not all of them. ``"numpy:1993"`` is the permutation that papers call
        seed 1993: NumPy's old generator, over the classes by their number.

    Examples
    --------
    >>> order_classes(np.array(["ant", "bee", "cat"]), 0, ["cat", "ant"])
    ['cat', 'ant']
    >>> order_classes(np.arange(5), 0, "numpy:1993")
    [0, 2, 3, 4, 1]
    """
    if order is None:
        chosen = classes if seed is None else classes[torch.randperm(len(classes), generator=generator(seed)).numpy()]
        return list(chosen.tolist())
    if isinstance(order, str):
        source, _, number = order.partition(":")
        if source != "numpy" or not number.isdecimal():
            raise ValueError(f"order={order!r} should be labels, or numpy:SEED such as numpy:1993.")
        # The papers' orders come from this generator, so no other will do.
        return list(classes[np.random.RandomState(int(number)).permutation(len(classes))].tolist())
    known = {label: label for label in classes.tolist()}
    labels = [label.item() if isinstance(label, np.generic) else label for label in order]
    if not labels:
        raise ValueError("The class order is empty: name at least one class.")
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise ValueError(
            f"The class order has {unknown[0]!r}, which no example has as its label. There are {_few(list(known))}."
        )
    if len(set(labels)) != len(labels):
        raise ValueError("The class order names a class twice: name each once.")
    return [known[label] for label in labels]  # the data's own: True is not 1 on paper


def share_out(
    order: Sequence[Any], per_task: int, first: int | None = None, split: Sequence[Any] | None = None
) -> list[tuple[Any, ...]]:
    """Share classes out among tasks.

    Parameters
    ----------
    order : sequence of labels
        Classes in their order of arrival.
    per_task : int
        Classes a task; the last task takes what is left.
    first : int, optional
        Classes of the first task, if it is to be larger (or smaller) than the others.
    split : sequence of int, optional
        Classes of every task instead.

    Examples
    --------
    >>> share_out("abcde", 2), share_out("abcde", 1, first=3), share_out("abcde", 2, split=[1, 4])
    ([('a', 'b'), ('c', 'd'), ('e',)], [('a', 'b', 'c'), ('d',), ('e',)], [('a',), ('b', 'c', 'd', 'e')])
    """
    if split is None:
        _whole("classes_per_task", per_task)
        begin = per_task if first is None else _whole("first", first)
        if begin > len(order) and first is not None:
            raise ValueError(f"first={first} is more than the {len(order)} classes that there are.")
        edges = [0, *range(begin, len(order), per_task), len(order)]
    else:
        edges = [0, *accumulate(_whole("A task of split", size) for size in split)]
        if edges[-1] != len(order):
            raise ValueError(
                f"split={list(split)} shares out {edges[-1]} classes and there are {len(order)}: they should be as many."
            )
    return [tuple(order[low:high]) for low, high in pairwise(edges)]


def set_aside(
    labels: NDArray[Any], classes: NDArray[Any], share: float, seed: int, names: Sequence[Any] | None = None
) -> NDArray[np.bool_]:
    """Choose a share of every class, at least one row and never all of them.

    ``names`` are what a message calls the classes, where labels are only their numbers.

    Examples
    --------
    >>> set_aside(np.array([0, 0, 0, 1, 1]), np.array([0, 1]), 0.4, seed=0).sum()
    np.int64(2)
    """
    if not 0 < share < 1:
        raise ValueError(f"The test part is {share} of the data; expected a share between 0 and 1.")
    source = generator(seed)
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in classes:
        rows = np.flatnonzero(labels == label)
        count = max(1, round(share * len(rows)))
        if count >= len(rows):
            name = label.item() if names is None else names[label]
            raise ValueError(
                f"Class {name!r} has {len(rows)} examples: too few to set {share:g} of them aside for testing."
            )
        chosen[rows[torch.randperm(len(rows), generator=source)[:count].numpy()]] = True
    return chosen


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}={value!r} should be a whole number of at least 1.")
    return int(value)


def _few(labels: list[Any]) -> str:
    text = ", ".join(json.dumps(label, ensure_ascii=False) for label in labels[:5])
    return text + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
