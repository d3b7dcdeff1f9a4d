"""Streams of tasks: which classes come when, and how classes and samples are split into tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.arrays import TaskData, as_inputs, as_targets, layout
from cldnet.data.dataset import Dataset, Part, gather
from cldnet.device import generator


@dataclass(frozen=True, eq=False)
class Plan:
    """What a task takes from the data: the classes it is tested on, and the sorted indices of its samples in either part.

    ``change`` is applied to its inputs, training and test alike; its `repr` goes into the stream's hash.
    """

    classes: tuple[Any, ...]
    train: Tensor
    test: Tensor
    change: Callable[[Tensor], Tensor] | None = None


def order_classes(classes: NDArray[Any], seed: int | None, order: Sequence[Any] | str | None) -> list[Any]:
    """Order sorted classes by arrival: by a seed (``None`` keeps them sorted), or in a given order.

    ``order`` has labels, perhaps not all of them, or is ``"numpy:1993"``, the permutation that papers call seed 1993:
    NumPy's legacy generator over the class numbers.
    """
    if order is None:
        chosen = classes if seed is None else classes[torch.randperm(len(classes), generator=generator(seed)).numpy()]
        return list(chosen.tolist())
    if isinstance(order, str):
        source, _, number = order.partition(":")
        if source != "numpy" or not number.isdecimal():
            raise ValueError(f"order={order!r} should be labels, or numpy:SEED such as numpy:1993.")
        return list(classes[np.random.RandomState(int(number)).permutation(len(classes))].tolist())
    known = {label: label for label in classes.tolist()}
    labels = [label.item() if isinstance(label, np.generic) else label for label in order]
    if not labels:
        raise ValueError("The class order is empty: name at least one class.")
    unknown = [label for label in labels if label not in known]
    if unknown:
        raise ValueError(
            f"The class order has {unknown[0]!r}, which is not a label of the data, such as {next(iter(known))!r}."
        )
    if len(set(labels)) != len(labels):
        raise ValueError("The class order names a class twice: name each once.")
    return [known[label] for label in labels]  # the data's own labels: True == 1


def divide_classes(
    order: Sequence[Any], per_task: int, first: int | None = None, split: Sequence[Any] | None = None
) -> list[tuple[Any, ...]]:
    """Divide ordered classes into tasks of ``per_task`` classes, with ``first`` in the first task, or as ``split`` says."""
    if split is None:
        _whole("classes_per_task", per_task)
        begin = per_task if first is None else _whole("first", first)
        if begin > len(order) and first is not None:
            raise ValueError(f"first={first} is more than the number of classes, {len(order)}.")
        edges = [0, *range(begin, len(order), per_task), len(order)]
    else:
        edges = [0, *accumulate(_whole("A task of split", size) for size in split)]
        if edges[-1] != len(order):
            raise ValueError(f"split={list(split)} adds up to {edges[-1]} classes; expected {len(order)}.")
    return [tuple(order[low:high]) for low, high in pairwise(edges)]


def set_aside(labels: NDArray[Any], classes: Sequence[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """Choose a share of every class for testing, at least one sample and never all."""
    if not 0 < share < 1:
        raise ValueError(f"The test part is {share} of the data; expected a share between 0 and 1.")
    source = generator(seed)
    chosen = np.zeros(len(labels), dtype=np.bool_)
    for label in classes:
        rows = np.flatnonzero(labels == label)
        count = max(1, round(share * len(rows)))
        if count >= len(rows):
            raise ValueError(
                f"Class {label!r} has {len(rows)} samples: too few to set {share:g} of them aside for testing."
            )
        chosen[rows[torch.randperm(len(rows), generator=source)[:count].numpy()]] = True
    return chosen


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name}={value!r} should be an integer of at least 1.")
    return int(value)


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream. Its samples are gathered when they are needed."""

    stream: Stream
    plan: Plan

    @property
    def classes(self) -> tuple[Any, ...]:
        """The classes that the task is tested on."""
        return self.plan.classes

    @cached_property
    def train(self) -> TaskData:
        """The training samples."""
        return self.stream.rows(self.stream.train_part, self.plan.train, self.plan.change)

    @cached_property
    def test(self) -> TaskData:
        """The test samples."""
        return self.stream.rows(self.stream.test_part, self.plan.test, self.plan.change)


@dataclass(frozen=True, eq=False)
class Stream:
    """A sequence of tasks over a data set.

    A stream is a value: iterate over it, index it, slice it, print it, compare its hash. Class rows follow the order of
    arrival. Create one with `from_arrays`, `from_dataset` or `cldnet.data.streams.stream_by_name`.

    Attributes
    ----------
    name : str
    plans : tuple of Plan
    train_part, test_part : Part
        The data that the plans take samples from; they may be the same.
    online : int, optional
        Batch size, if the protocol allows only one pass.

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
            Samples and labels.
        X_test, y_test : array-like, optional
            A test part.
        name : str
            Name in printouts and result files.
        **split
            Options of `from_dataset`.
        """
        if X_test is None and y_test is not None:
            raise ValueError("y_test was given without X_test: give both, or neither.")
        pairs = [(X, y)] if X_test is None else [(X, y), (X_test, y_test)]
        inputs = [layout(as_inputs(each), None) for each, _ in pairs]
        parts = [Part(x, as_targets(labels, len(x))) for x, (_, labels) in zip(inputs, pairs, strict=True)]
        return cls.from_dataset(Dataset(name, parts[0], parts[1] if len(parts) > 1 else None), **split)

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
            Classes per task; the last task takes the rest.
        first : int, optional
            Classes of the first task, if it differs from the others.
        split : sequence of int, optional
            Classes of every task, instead of ``classes_per_task`` and ``first``.
        seed : int or None
            Seed of the class order; ``None`` keeps the classes sorted.
        order : sequence of labels or "numpy:SEED", optional
            The class order, instead of ``seed``; ``"numpy:1993"`` is the order that papers call seed 1993.
        test_size : float
            Share of every class for the test part, at least one sample, if the data have no test part.
        split_seed : int
            Seed of that split. It differs from ``seed``, so that all class orders share one test part.
        name : str, optional
            Name in printouts and result files; by default that of the data.

        Examples
        --------
        >>> data = Dataset("toy", Part(torch.zeros(8, 2), np.repeat(["a", "b", "c", "d"], 2)))
        >>> Stream.from_dataset(data, split=[3, 1], order=list("dcba"), test_size=0.5).tasks
        (('d', 'c', 'b'), ('a',))
        """
        data.check()
        labels = data.train.y
        classes = np.unique(labels)
        tasks = divide_classes(order_classes(classes, seed, order), classes_per_task, first, split)
        if data.test is None:
            test, test_mask = data.train, set_aside(labels, classes.tolist(), test_size, split_seed)
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
                f"No test sample has the label {' or '.join(map(repr, untested[:3]))}: its task cannot be tested."
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
            # A sliced stream may hold samples of classes whose own task was cut off.
            order = dict.fromkeys((*plan.classes, *known, *here))
            arrived.update(dict.fromkeys(label for label in order if label in set(here)))
            early = [label for label in plan.classes if label not in arrived]
            if early:
                raise ValueError(
                    f"Task {number} of {self.name} is tested on {early[0]!r}, but no training sample of that class has come by "
                    "then. Reduce classes, or cut a validation part, before samples are moved between tasks."
                )
        return tuple(arrived)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train_part.x.shape[1:])

    @property
    def train(self) -> TaskData:
        """Every training sample of any task, once, unchanged."""
        return self.rows(self.train_part, _union(plan.train for plan in self.plans))

    @property
    def test(self) -> TaskData:
        """Every test sample of any task, once, unchanged."""
        return self.rows(self.test_part, _union(plan.test for plan in self.plans))

    def rows(self, part: Part, numbers: Tensor, change: Callable[[Tensor], Tensor] | None = None) -> TaskData:
        """Gather samples of a part by index, with their class rows, and apply a plan's change."""
        x = gather(part.x, numbers)
        return TaskData(x if change is None else change(x), self.class_rows(part.y[numbers.numpy()]))

    def class_rows(self, labels: Sequence[Any] | NDArray[Any]) -> Tensor:
        """Class rows of labels, by order of arrival."""
        order = np.array(self.class_order)
        ranks = np.argsort(order)
        found = ranks[np.searchsorted(order, labels, sorter=ranks).clip(max=len(order) - 1)]
        if not np.array_equal(order[found], labels):
            raise ValueError("Some labels are not among this stream's classes.")
        return torch.from_numpy(found)

    @property
    def data_digest(self) -> str:
        """Digest of the underlying data set."""
        return Dataset("", self.train_part, None if self.test_part is self.train_part else self.test_part).digest

    @cached_property
    def hash(self) -> str:
        """Digest of data, labels, tasks and protocol, the same on every machine."""
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
        return f"Stream {self.name}: {len(self)} tasks [{order}], {train} + {test} samples, {self.hash}"

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Stream: ...
    def __getitem__(self, index: int | slice) -> Task | Stream:
        """Return one task, or a stream of the first few tasks."""
        if isinstance(index, slice):
            if index.indices(len(self))[0] != 0 or index.step not in (None, 1):
                raise ValueError("A slice of a stream must start at its first task: use stream[:n].")
            if not self.plans[index]:
                raise ValueError(f"stream[:{index.stop}] has no task; expected at least one.")
            return replace(self, plans=self.plans[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"There is no task {index}: the stream has {len(self)}.")
        return Task(self, self.plans[index])

    def with_validation(self, share: float = 0.2, seed: int = 0) -> Stream:
        """Return a stream whose test part is cut from the training part, for choosing settings without the real test part."""
        used = _union(plan.train for plan in self.plans).numpy()
        held = used[set_aside(self.train_part.y[used], self.class_order, share, seed)]
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
