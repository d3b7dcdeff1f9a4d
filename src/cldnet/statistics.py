"""What a model has summed, without the map that it summed over: written to disk, added up, and merged into models later."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import cldnet.store as store
from cldnet.data.rows import Inputs
from cldnet.labels import LabelTable
from cldnet.lessons import LESSON_TENSORS, Lessons, Receipts, merged_receipts, read_lessons, write_lessons
from cldnet.methods.parts.moments import SecondMoments, moments_for
from cldnet.methods.parts.sums import moments_from
from cldnet.plausible import check_numbers, read_labels, whole
from cldnet.version import __version__

__all__ = ["Statistics", "joined"]

_KIND = "statistics"
_SECOND = "second."


@dataclass
class Statistics:
    """The sums of a model of the exact solver. They add up: the sum is what one model of all the data would have summed.

    Made by `CLDNetClassifier.statistics`. They hold no row of anybody's data, and mean something only together with the
    feature map whose id they name.

    Attributes
    ----------
    map_id : str
        The feature map that the sums were made over.
    gram : str or int
        What stands for the second moments: ``"full"``, ``"diagonal"`` or a rank.
    inputs : Inputs
        What is known of the inputs: their shape, names and range.
    labels : LabelTable
        The classes, a row each, in the order of the rows of ``tensors["class_sums"]``.
    tensors : dict of str to Tensor
        Second moments (``second.…``), class sums and weights, and the number of rows.
    fitted_on : frozenset
        Labels whose rows the map was fitted on, as far as these sums know.
    lessons : Lessons
        Ids of the lessons learned last. Sums that share one are not added, since its rows would count twice.
    receipts : Receipts or None
        A salted digest of each row, if the model was asked to keep them.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> from cldnet.nets import RandomReLU
    >>> shared = RandomReLU((2,), features=16, seed=0)
    >>> shared.fit(torch.tensor([[0.0, 0.0], [5.0, 5.0], [9.0, 0.0]]))
    >>> here = CLDNetClassifier(backbone=shared).partial_fit([[0.0, 0.1], [5.0, 5.1]], ["cat", "dog"]).statistics()
    >>> there = CLDNetClassifier(backbone=shared).partial_fit([[9.0, 0.1], [0.1, 0.0]], ["owl", "cat"]).statistics()
    >>> here += there
    >>> here.classes, here.rows
    (array(['cat', 'dog', 'owl'], dtype='<U3'), 4.0)
    >>> CLDNetClassifier(backbone=shared).merge([here]).predict([[9.0, 0.0]])
    array(['owl'], dtype='<U3')
    """

    map_id: str
    gram: str | int
    inputs: Inputs
    labels: LabelTable
    tensors: dict[str, Tensor]
    fitted_on: frozenset[Any] = frozenset()
    lessons: Lessons = Lessons()
    receipts: Receipts | None = None

    @property
    def classes(self) -> Any:
        """The labels, sorted."""
        return self.labels.classes

    @property
    def rows(self) -> float:
        """Number of rows in the sums, a weight counting as that many of them."""
        return float(self.tensors["rows"])

    @property
    def width(self) -> int:
        """Length of the map's feature vectors."""
        return int(self.tensors["class_sums"].shape[1])

    @property
    def loss(self) -> float:
        """The most by which ``vᵀGv`` can be off for a unit vector ``v``: what ``gram`` costs, 0 where all of ``G`` is kept."""
        return self._second().loss

    def check_addable(self, other: Statistics, allow_duplicates: bool = False) -> None:
        """Refuse sums that do not go together, or that both have the same rows unless that is allowed; nothing changes."""
        if other.map_id != self.map_id:
            raise ValueError(
                f"These sums were made over different feature maps, {self.map_id} and {other.map_id}, so they do not add up. "
                "Share one map: save_map(clf.feature_map_, path), and backbone=load_map(path) for all models."
            )
        if other.gram != self.gram or other.width != self.width:
            raise ValueError(
                f"One has gram={self.gram!r} with {self.width} features, the other gram={other.gram!r} with {other.width}: "
                "make all models with the same gram."
            )
        if self.receipts is not None and other.receipts is None and other.rows:
            raise ValueError(
                "This model keeps receipts and the other one has none, so rows of the other one could not be forgotten: "
                "make all models with receipts=True, or the merged one with receipts=False."
            )
        joined(self.inputs, other.inputs)
        _room_for_both(self.labels, other.labels).check(other.labels.by_row)
        if not allow_duplicates:
            self._check_duplicates(other)

    def _check_duplicates(self, other: Statistics) -> None:
        """Refuse sums of rows that are in these sums, as far as lessons are remembered: they would count twice."""
        shared = self.lessons.shared(other.lessons)
        # The same rows in lessons too small or too old to have an id.
        equal = self.rows == other.rows > 0 and all(
            torch.equal(tensor, other.tensors[name])
            for name, tensor in self.tensors.items()
            if name.startswith(_SECOND)
        )
        if shared or equal:
            what = f"share {shared} lesson{'s' * (shared > 1)}" if shared else "have the same sums"
            raise ValueError(
                f"Both {what}, whose rows would count twice. Merge models that learned apart, or pass "
                "allow_duplicates=True (--allow-duplicates) if that is what you want."
            )

    def add(self, other: Statistics, *, allow_duplicates: bool = False) -> Statistics:
        """Add other sums in place, as ``+=`` does.

        Parameters
        ----------
        other : Statistics
        allow_duplicates : bool
            Add sums that share lessons with these, whose rows count twice then.
        """
        self.check_addable(other, allow_duplicates)
        labels = _room_for_both(self.labels, other.labels)
        rows = torch.from_numpy(labels.learn(other.labels.by_row))
        second = copy.deepcopy(
            self._second()
        )  # and all is made before any of it is put in place: a failure leaves no half
        second.merge(other._second())
        sums = _grown(self.tensors["class_sums"], len(labels)).index_add_(0, rows, other.tensors["class_sums"])
        weights = _grown(self.tensors["class_weights"], len(labels)).index_add_(0, rows, other.tensors["class_weights"])
        tensors = {
            **{_SECOND + name: tensor for name, tensor in second.state_dict().items()},
            "class_sums": sums,
            "class_weights": weights,
            "rows": self.tensors["rows"] + other.tensors["rows"],
        }
        labels.take_over(other.labels)
        receipts = merged_receipts(self.receipts, other.receipts)
        inputs, fitted_on = joined(self.inputs, other.inputs), self.fitted_on | other.fitted_on
        self.tensors, self.labels, self.inputs, self.fitted_on = tensors, labels, inputs, fitted_on
        self.lessons, self.receipts = self.lessons.merged(other.lessons), receipts
        return self

    def __iadd__(self, other: Statistics) -> Statistics:
        return self.add(other) if isinstance(other, Statistics) else NotImplemented

    def __add__(self, other: Statistics) -> Statistics:
        if not isinstance(other, Statistics):
            return NotImplemented
        total = copy.copy(self)  # adding makes all parts anew
        total += other
        return total

    def _second(self) -> SecondMoments:
        return moments_from(self.gram, self.width, self.tensors, prefix=_SECOND)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sums to one file (safetensors with a JSON manifest): there whole or not at all, and loadable."""
        manifest = {
            "kind": _KIND,
            "version": __version__,
            "map_id": self.map_id,
            "gram": self.gram,
            "inputs": self.inputs.to_json(),
            "labels": self.labels.to_json(),
            "fitted_on": sorted(self.fitted_on),
        }
        tensors, said = write_lessons(self.lessons, self.receipts, self.labels)
        store.write(path, self.tensors | tensors, manifest | said, type(self)._read)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """Read sums that `save` wrote, checked as from a stranger; nothing in the file is executed."""
        tensors, manifest = store.read(path)
        if manifest.get("kind") != _KIND:
            raise ValueError(f"{os.fspath(path)!r} holds no statistics: read a model with CLDNetClassifier.load.")
        with whole(path, "whole statistics"):
            return cls._read(tensors, manifest)

    @classmethod
    def _read(cls, tensors: dict[str, Tensor], manifest: dict[str, Any]) -> Statistics:
        map_id, gram, labels = manifest["map_id"], manifest["gram"], LabelTable.from_json(manifest["labels"])
        if not isinstance(map_id, str):
            raise ValueError(f"{map_id!r:.80} is no feature map's id")
        inputs, fitted_on = Inputs.from_json(manifest["inputs"]), read_labels(manifest["fitted_on"], labels)
        sums = {name: tensor for name, tensor in tensors.items() if name not in LESSON_TENSORS}
        stats = cls(map_id, gram, inputs, labels, sums, fitted_on, *read_lessons(tensors, manifest, labels))
        _check(stats)
        return stats


def joined(first: Inputs, second: Inputs) -> Inputs:
    """Tell what is known of the inputs of two models together, or say why they do not go together.

    Examples
    --------
    >>> joined(Inputs((8, 8), None, True, 200.0), Inputs((8, 8), None, True, 255.0)).largest
    255.0
    """
    if first.shape != second.shape:
        raise ValueError(
            f"One model was made for inputs of shape {first.shape}, the other for {second.shape}: they do not add up."
        )
    if first.names is not None and second.names is not None and first.names != second.names:
        raise ValueError("The models' columns have other names, or another order: name and order columns alike.")
    kind, pixel = torch.uint8 if second.pixels else torch.float64, (1,) * len(first.shape)
    try:
        replace(first, shape=pixel).check(torch.full((1, *pixel), second.largest, dtype=torch.float64).to(kind))
    except ValueError as error:
        raise ValueError(
            f"The models learned inputs in different ranges, with X of the other model: {error}"
        ) from error
    largest = max(first.largest, second.largest)
    return replace(first, names=first.names or second.names, pixels=first.pixels or second.pixels, largest=largest)


def _check(stats: Statistics) -> None:
    """Refuse what no model can have summed."""
    tensors, count = stats.tensors, len(stats.labels)
    if stats.width > max(tensor.numel() for tensor in tensors.values()):
        raise ValueError(f"{stats.width} features have more second moments than it has")  # and take hours to count
    with torch.device("meta"):  # shapes without memory
        second = moments_for(stats.gram, stats.width).state_dict()
    shapes = {_SECOND + name: tuple(tensor.shape) for name, tensor in second.items()}
    shapes |= {"class_sums": (count, stats.width), "class_weights": (count,), "rows": ()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor.dtype == torch.float64}
    wrong = sorted(name for name in {*shapes, *tensors} if name not in shapes or shapes[name] != found.get(name))
    if wrong:
        raise ValueError(f"{wrong[0]} is not what {count} classes and gram={stats.gram!r} would have summed")
    if len(stats.labels.classes) != count:
        raise ValueError("a retired label has a row")
    check_numbers(tensors)
    if (
        float(tensors["class_weights"].sum()) > 1.01 * stats.rows + 1
    ):  # not to the bit: what was forgotten leaves rounding
        raise ValueError("the classes' weights are more than all rows")
    moments = stats._second()
    if moments.least_diagonal() < -1e-9 * moments.energy:  # what was subtracted may leave rounding
        raise ValueError("a sum of squares is negative")


def _room_for_both(first: LabelTable, second: LabelTable) -> LabelTable:
    table = copy.deepcopy(first)
    table.capacity = max(first.capacity, second.capacity)
    return table


def _grown(tensor: Tensor, rows: int) -> Tensor:
    grown = tensor.new_zeros(rows, *tensor.shape[1:])
    grown[: len(tensor)] = tensor
    return grown
