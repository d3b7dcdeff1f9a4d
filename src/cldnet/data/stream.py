"""A stream: a value that says which classes come when, with their training and test examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from cldnet.data.arrays import as_inputs, layout
from cldnet.device import generator
from cldnet.labels import as_labels
from cldnet.methods.learner import TaskData

__all__ = ["Stream", "Task"]


@dataclass(frozen=True)
class Task:
    """One task of a stream: the labels of its classes, its training part and its test part (with class rows)."""

    classes: tuple[Any, ...]
    train: TaskData
    test: TaskData


@dataclass(frozen=True)
class Stream:
    """Tasks of classes that nobody saw before, over arrays that stay where they are.

    A stream is a value: iterate over it, index it, slice it, print it, compare its hash. Class rows are given by the order
    of arrival. Make one with `from_arrays`.

    Examples
    --------
    >>> X, y = np.arange(24.0).reshape(12, 2), np.array(list("aabbccaabbcc"))
    >>> stream = Stream.from_arrays(X, y, classes_per_task=1, seed=0, test_size=0.5)
    >>> len(stream), len(stream[:2]), stream[0].train.x.shape
    (3, 2, torch.Size([2, 2]))
    """

    name: str
    tasks: tuple[tuple[Any, ...], ...]
    train: TaskData
    test: TaskData

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        *,
        X_test: Any = None,
        y_test: Any = None,
        classes_per_task: int = 2,
        seed: int | None = 0,
        test_size: float = 0.25,
        split_seed: int = 0,
        name: str = "arrays",
    ) -> Stream:
        """Split arrays into tasks of a few classes each.

        Parameters
        ----------
        X, y : array-like
            Inputs and labels.
        X_test, y_test : array-like, optional
            A test part; without one, ``test_size`` of every class is set aside by ``split_seed``.
        classes_per_task : int
            Classes a task; the last task takes what is left.
        seed : int or None
            Seed of the class order; ``None`` leaves the classes sorted.
        test_size : float
            Share of every class for the test part, at least one example.
        split_seed : int
            Seed of that split, apart from ``seed``, so that all class orders share one test part.
        name : str
            Name for printing and for result files.
        """
        x, labels = layout(as_inputs(X), None), _labels(y, len(X))
        if not isinstance(classes_per_task, int | np.integer) or classes_per_task < 1:
            raise ValueError(f"classes_per_task={classes_per_task!r} should be a whole number of at least 1.")
        classes = np.unique(labels)
        if X_test is None:
            chosen = _test_rows(labels, classes, test_size, split_seed)
            x_test, labels_test, x, labels = x[chosen], labels[chosen], x[~chosen], labels[~chosen]
        else:
            x_test, labels_test = layout(as_inputs(X_test), None), _labels(y_test, len(X_test))
            if x_test.shape[1:] != x.shape[1:]:
                raise ValueError(
                    f"X_test has rows of shape {tuple(x_test.shape[1:])} and X of {tuple(x.shape[1:])}: they should agree."
                )
            unknown = sorted(set(labels_test.tolist()) - set(classes.tolist()))
            if labels_test.dtype.kind != labels.dtype.kind or unknown:
                raise ValueError(f"y_test has labels that y does not have, such as {[*unknown, labels_test[0]][0]!r}.")
        order = classes if seed is None else classes[torch.randperm(len(classes), generator=generator(seed)).numpy()]
        row_of = np.empty(len(classes), dtype=np.int64)
        row_of[np.searchsorted(classes, order)] = np.arange(len(classes))
        parts = [
            TaskData(inputs, torch.from_numpy(row_of[np.searchsorted(classes, these)]))
            for inputs, these in ((x, labels), (x_test, labels_test))
        ]
        names = order.tolist()
        tasks = tuple(tuple(names[i : i + classes_per_task]) for i in range(0, len(names), classes_per_task))
        return cls(name, tasks, *parts)

    @property
    def class_order(self) -> tuple[Any, ...]:
        """The labels in order of arrival: the label of row ``i`` is ``class_order[i]``."""
        return tuple(label for task in self.tasks for label in task)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])

    @cached_property
    def hash(self) -> str:
        """Digest of data, labels and class order: equal hashes, equal streams, on every machine."""
        digest = hashlib.sha256(repr((self.tasks, self.input_shape, self.train.x.dtype)).encode())
        for tensor in (self.train.x, self.train.y, self.test.x, self.test.y):
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.hash == other.hash

    def __len__(self) -> int:
        return len(self.tasks)

    def __repr__(self) -> str:
        order = " | ".join(" ".join(map(str, task)) for task in self.tasks)
        return (
            f"Stream {self.name}: {len(self)} tasks [{order}], {len(self.train)} + {len(self.test)} rows, {self.hash}"
        )

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Task | Stream:
        """Return one task, or the stream of the first few (a slice must start at the first task: rows go by arrival)."""
        if isinstance(index, slice):
            if index.indices(len(self))[0] != 0 or index.step not in (None, 1):
                raise ValueError("A stream can be cut at its end, stream[:n]: class rows go by order of arrival.")
            tasks = self.tasks[index]
            seen = sum(map(len, tasks))
            return replace(
                self,
                tasks=tasks,
                train=_where(self.train, self.train.y < seen),
                test=_where(self.test, self.test.y < seen),
            )
        if not -len(self) <= index < len(self):
            raise IndexError(f"There is no task {index}: the stream has {len(self)}.")
        index = range(len(self))[index]
        first = sum(len(task) for task in self.tasks[:index])
        last = first + len(self.tasks[index])
        parts = [_where(part, (part.y >= first) & (part.y < last)) for part in (self.train, self.test)]
        return Task(self.tasks[index], *parts)

    def with_validation(self, share: float = 0.2, seed: int = 0) -> Stream:
        """Return the stream whose test part is cut from this one's training part, so that settings can be chosen.

        The real test part is left out of it altogether.
        """
        rows = self.train.y.numpy()
        chosen = torch.from_numpy(_test_rows(rows, np.unique(rows), share, seed))
        return replace(
            self,
            name=f"{self.name}/validation",
            train=_where(self.train, ~chosen),
            test=_where(self.train, chosen),
        )


def _where(data: TaskData, mask: Tensor) -> TaskData:
    return TaskData(data.x[mask], data.y[mask])


def _labels(y: Any, rows: int) -> np.ndarray[Any, Any]:
    labels = as_labels(y)
    if len(labels) != rows:
        raise ValueError(f"y has {len(labels)} labels; expected one for each of the {rows} rows of X.")
    return labels


def _test_rows(labels: Any, classes: Any, share: float, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Choose a share of every class, at least one row and never all of them."""
    if not 0 < share < 1:
        raise ValueError(f"The test part is {share} of the data; expected a share between 0 and 1.")
    source = generator(seed)
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in classes:
        rows = np.flatnonzero(labels == label)
        count = max(1, round(share * len(rows)))
        if count >= len(rows):
            raise ValueError(f"Class {label!r} has {len(rows)} examples: too few to set a test part aside.")
        chosen[rows[torch.randperm(len(rows), generator=source)[:count].numpy()]] = True
    return chosen
