"""A stream: a value that says which rows come when, with the part that each task is tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.arrays import as_inputs, as_targets, layout
from cldnet.data.dataset import Dataset, Part
from cldnet.data.memory import gather
from cldnet.data.plan import Plan
from cldnet.data.splits import order_classes, set_aside, share_out
from cldnet.methods.learner import TaskData

__all__ = ["Stream", "Task"]


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream. Its training part and its test part, with class rows, are gathered when they are asked for."""

    stream: Stream
    plan: Plan

    @property
    def classes(self) -> tuple[Any, ...]:
        """The labels of the classes that the task is tested on."""
        return self.plan.classes

    @cached_property
    def train(self) -> TaskData:
        """The examples to learn from."""
        return self.stream.rows(self.stream.train_part, self.plan.train, self.plan.change)

    @cached_property
    def test(self) -> TaskData:
        """The examples to be evaluated on, and nothing else."""
        return self.stream.rows(self.stream.test_part, self.plan.test, self.plan.change)


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks over data that stay where they are.

    A stream is a value: iterate over it, index it, slice it, print it, compare its hash. Class rows are given by the order
    of arrival. Make one with `from_arrays` or `from_dataset`; `cldnet.data.variants` makes others from it.

    Attributes
    ----------
    name : str
    plans : tuple of Plan
    train_part, test_part : Part
        The data that the plans take rows from; they may be the same.
    online : int, optional
        The protocol allows one pass, in batches of so many examples.

    Examples
    --------
    >>> X, y = np.arange(24.0).reshape(12, 2), np.array(list("aabbccaabbcc"))
    >>> stream = Stream.from_arrays(X, y, classes_per_task=1, seed=0, test_size=0.5)
    >>> len(stream), len(stream[:2]), stream[0].train.x.shape
    (3, 2, torch.Size([2, 2]))
    """

    name: str
    plans: tuple[Plan, ...]
    train_part: Part
    test_part: Part
    online: int | None = None

    @classmethod
    def from_arrays(
        cls, X: Any, y: Any, *, X_test: Any = None, y_test: Any = None, name: str = "arrays", **split: Any
    ) -> Stream:
        """Split arrays into tasks of a few classes each.

        Parameters
        ----------
        X, y : array-like
            Inputs and labels.
        X_test, y_test : array-like, optional
            A test part.
        name : str
            Name for printing and for result files.
        **split
            Options of `from_dataset`.
        """
        if X_test is None and y_test is not None:
            raise ValueError("y_test was given without X_test: give both, or neither.")
        test = None if X_test is None else Part(layout(as_inputs(X_test), None), as_targets(y_test, len(X_test)))
        return cls.from_dataset(Dataset(name, Part(layout(as_inputs(X), None), as_targets(y, len(X))), test), **split)

    @classmethod
    def from_dataset(
        cls,
        data: Dataset,
        *,
        classes_per_task: int = 2,
        first: int | None = None,
        split: Sequence[int] | None = None,
        seed: int | None = 0,
        order: Sequence[Any] | str | None = None,
        test_size: float = 0.25,
        split_seed: int = 0,
        name: str | None = None,
    ) -> Stream:
        """Split a data set into tasks of a few classes each.

        Parameters
        ----------
        data : Dataset
        classes_per_task : int
            Classes a task; the last task takes what is left.
        first : int, optional
            Classes of the first task, where it is larger than the others.
        split : sequence of int, optional
            Classes of every task, instead of ``classes_per_task`` and ``first``.
        seed : int or None
            Seed of the class order; ``None`` leaves the classes sorted.
        order : sequence of labels or "numpy:SEED", optional
            The class order itself, instead of ``seed``; see `cldnet.data.splits.order_classes`.
        test_size : float
            Share of every class for the test part, at least one example, if the data have no test part.
        split_seed : int
            Seed of that split, apart from ``seed``, so that all class orders share one test part.
        name : str, optional
            Name for printing and for result files; the data's by default.

        Examples
        --------
        >>> data = Dataset("toy", Part(torch.zeros(8, 2), np.repeat(["a", "b", "c", "d"], 2)))
        >>> Stream.from_dataset(data, split=[3, 1], order=list("dcba"), test_size=0.5).tasks
        (('d', 'c', 'b'), ('a',))
        """
        data.check()
        labels = data.train.y
        classes = np.unique(labels)
        tasks = share_out(order_classes(classes, seed, order), classes_per_task, first, split)
        if data.test is None:
            test, test_mask = data.train, set_aside(labels, classes, test_size, split_seed)
            train_mask = ~test_mask
        else:
            test = data.test
            train_mask, test_mask = np.ones(len(labels), np.bool_), np.ones(len(test), np.bool_)
        plans = tuple(
            Plan(task, _where(train_mask & np.isin(labels, task)), _where(test_mask & np.isin(test.y, task)))
            for task in tasks
        )
        untested = next((plan.classes for plan in plans if not len(plan.test)), None)
        if untested is not None:
            raise ValueError(
                f"No test row has the label {' or '.join(map(repr, untested[:3]))}: a task of it cannot be tested."
            )
        return cls(name or data.name, plans, data.train, test)

    @property
    def tasks(self) -> tuple[tuple[Any, ...], ...]:
        """The classes that each task is tested on."""
        return tuple(plan.classes for plan in self.plans)

    @cached_property
    def class_order(self) -> tuple[Any, ...]:
        """The labels in order of arrival: the label of row ``i`` is ``class_order[i]``."""
        arrived: dict[Any, None] = {}
        known = dict.fromkeys(label for plan in self.plans for label in plan.classes)
        for number, plan in enumerate(self.plans):
            here = np.unique(self.train_part.y[plan.train.numpy()]).tolist()
            # A stream that was cut may hold rows of classes whose own task was cut off.
            order = dict.fromkeys((*plan.classes, *known, *here))
            arrived.update(dict.fromkeys(label for label in order if label in set(here)))
            early = [label for label in plan.classes if label not in arrived]
            if early:
                raise ValueError(
                    f"Task {number} of {self.name} is tested on {early[0]!r}, and no training row of that class has come by "
                    "then. Thin classes out, or cut a validation part, before their rows are moved."
                )
        return tuple(arrived)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train_part.x.shape[1:])

    @property
    def train(self) -> TaskData:
        """Every row that some task learns from, once, as the data have it."""
        return self.rows(self.train_part, _union(plan.train for plan in self.plans))

    @property
    def test(self) -> TaskData:
        """Every row that some task is tested on, once, as the data have it."""
        return self.rows(self.test_part, _union(plan.test for plan in self.plans))

    def rows(self, part: Part, numbers: Tensor, change: Callable[[Tensor], Tensor] | None = None) -> TaskData:
        """Gather rows of a part, with their class rows, changed as a plan says."""
        x = gather(part.x, numbers)
        return TaskData(x if change is None else change(x), self.class_rows(part.y[numbers.numpy()]))

    def class_rows(self, labels: Sequence[Any] | NDArray[Any]) -> Tensor:
        """Rows of labels, by order of arrival."""
        order = np.array(self.class_order)
        ranks = np.argsort(order)
        found = ranks[np.searchsorted(order, labels, sorter=ranks).clip(max=len(order) - 1)]
        if not np.array_equal(order[found], labels):
            raise ValueError("Some labels are not of this stream's classes.")
        return torch.from_numpy(found)

    @property
    def data_digest(self) -> str:
        """Digest of the data set that the rows are taken from."""
        return Dataset("", self.train_part, None if self.test_part is self.train_part else self.test_part).digest

    @cached_property
    def hash(self) -> str:
        """Digest of data, labels, tasks and protocol: equal hashes, equal streams, on every machine."""
        parts = self.train_part.digest, self.test_part.digest
        digest = hashlib.sha256(repr((*parts, self.tasks, [plan.change for plan in self.plans], self.online)).encode())
        for plan in self.plans:
            for numbers in (plan.train, plan.test):
                digest.update(f"{len(numbers)}:".encode() + numbers.numpy().astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def __hash__(self) -> int:
        return int(self.hash, 16)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.hash == other.hash

    def __len__(self) -> int:
        return len(self.plans)

    def __repr__(self) -> str:
        order = " | ".join(" ".join(map(str, task)) for task in self.tasks)
        train, test = (len(_union(getattr(plan, part) for plan in self.plans)) for part in ("train", "test"))
        return f"Stream {self.name}: {len(self)} tasks [{order}], {train} + {test} rows, {self.hash}"

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
            if not self.plans[index]:
                raise ValueError(f"stream[:{index.stop}] has no task; expected at least one.")
            return replace(self, plans=self.plans[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"There is no task {index}: the stream has {len(self)}.")
        return Task(self, self.plans[index])

    def with_validation(self, share: float = 0.2, seed: int = 0) -> Stream:
        """Return the stream whose test part is cut from this one's training part, so that settings can be chosen.

        The real test part is left out of it altogether.
        """
        used = _union(plan.train for plan in self.plans).numpy()
        rows = self.class_rows(self.train_part.y[used]).numpy()
        held = used[set_aside(rows, np.unique(rows), share, seed, self.class_order)]
        labels = self.train_part.y[held]
        plans = tuple(
            replace(
                plan,
                train=torch.from_numpy(np.setdiff1d(plan.train.numpy(), held)),
                test=torch.from_numpy(held[np.isin(labels, plan.classes)]),
            )
            for plan in self.plans
        )
        return replace(self, name=f"{self.name},validation={share:g}", plans=plans, test_part=self.train_part)


def _where(mask: NDArray[np.bool_]) -> Tensor:
    return torch.from_numpy(np.flatnonzero(mask))


def _union(numbers: Iterator[Tensor]) -> Tensor:
    union: Tensor = torch.cat(list(numbers)).unique()
    return union
