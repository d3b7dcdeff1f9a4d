"""The sums of a model without its map: to be saved, added up, and merged into models later."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

import cldnet.storage as store
from cldnet.data.labels import Inputs, LabelTable
from cldnet.estimator.history import History
from cldnet.estimator.lessons import Lessons, Receipts, read_history, read_lessons, write_history, write_lessons
from cldnet.methods.mapped import SecondMoments, moments_for, moments_from, upgraded
from cldnet.storage.validation import check_tensors, check_values, describe_error, read_labels
from cldnet.version import __version__

if TYPE_CHECKING:
    from cldnet.estimator.accumulator import Accumulator
    from cldnet.nets import FeatureMap

_KIND = "statistics"
_SECOND = "second."


@dataclass
class Statistics:
    """The sums of a model of the exact solver. They add up: the sum is what one model of all the data would have summed.

    Made by `CLDNetClassifier.statistics`. They contain no sample, and are only useful together with the feature map
    whose id they name.

    Attributes
    ----------
    map_id : str
        The feature map that the sums were made over.
    gram : str or int
        What stands for the second moments: ``"full"``, ``"diagonal"`` or a rank.
    inputs : Inputs
        What is known of the inputs: their shape, names and range.
    labels : LabelTable
        The classes, in the order of the rows of ``tensors["class_sums"]``.
    tensors : dict of str to Tensor
        Second moments (``second.…``), class sums and weights, and the number of samples (``rows``).
    fitted_on : frozenset
        Labels of the samples that the map was fitted on, as far as these sums know.
    lessons : Lessons
        Ids of the lessons learned last. Sums that share one are not added, since its samples would count twice.
    history : History
        Records of the lessons, as the model had them.
    receipts : Receipts or None
        A salted digest of each sample, if the model was asked to keep them.
    bounded : bool
        Whether no sample weighs more than 1 and no noise moved one, so that the map's bounds hold for what each adds.

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
    history: History = History()
    bounded: bool = True

    def __getstate__(self) -> dict[str, Any]:
        # Arrays, since pickle (protocol 5) can send these without a copy, and tensors only with one.
        return {**self.__dict__, "tensors": {name: tensor.numpy() for name, tensor in self.tensors.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = {name: _as_tensor(each) for name, each in state["tensors"].items()}
        self.__dict__.update({**state, "tensors": upgraded(tensors)})

    @classmethod
    def accumulator(cls, features: FeatureMap, *, gram: str | int = "full", dtype: str = "float32") -> Accumulator:
        """Begin empty sums over a fitted map, to which samples are added in place.

        Parameters
        ----------
        features : FeatureMap
            A fitted map: `CLDNetClassifier.feature_map_`, or what `cldnet.load_map` returns.
        gram, dtype
            As those of `CLDNetClassifier`.
        """
        from cldnet.estimator.accumulator import Accumulator  # noqa: PLC0415  (it returns statistics)

        return Accumulator.over(features, gram=gram, dtype=dtype)

    @property
    def classes(self) -> Any:
        """The labels, sorted."""
        return self.labels.classes

    @property
    def rows(self) -> float:
        """Number of samples in the sums; a weight counts as that many of them."""
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
        """Refuse sums over another map, or of the same samples unless that is allowed; nothing changes."""
        if other.map_id != self.map_id:
            raise ValueError(
                f"These sums were made over different feature maps, {self.map_id} and {other.map_id}, and cannot be added. "
                "Share one map: save_map(clf.feature_map_, path), and backbone=load_map(path) for all models."
            )
        if other.gram != self.gram or other.width != self.width:
            raise ValueError(
                f"One has gram={self.gram!r} with {self.width} features, the other gram={other.gram!r} with {other.width}: "
                "make all models with the same gram."
            )
        if self.receipts is not None and other.receipts is None and other.rows:
            raise ValueError(
                "This model keeps receipts and the other one has none, so samples of the other one could not be forgotten: "
                "make all models with receipts=True, or the merged one with receipts=False."
            )
        merged_inputs(self.inputs, other.inputs)
        _room_for_both(self.labels, other.labels).check(other.labels.by_row)
        if allow_duplicates:
            return
        shared = self.lessons.shared(other.lessons)
        # The same samples may be in lessons too small or too old to have an id.
        second = [name for name in self.tensors if name.startswith(_SECOND)]
        equal = self.rows == other.rows > 0 and all(
            torch.equal(self.tensors[name], other.tensors[name]) for name in second
        )
        if shared or equal:
            what = f"share {shared} lesson{'s' * (shared > 1)}" if shared else "have the same sums"
            raise ValueError(
                f"Both {what}, whose samples would count twice. Merge models that learned different data, or pass "
                "allow_duplicates=True (--allow-duplicates) if that is what you want."
            )

    def add(self, other: Statistics, *, allow_duplicates: bool = False) -> Statistics:
        """Add other sums in place, as ``+=`` does.

        Parameters
        ----------
        other : Statistics
        allow_duplicates : bool
            Add sums even if they share lessons with these, whose samples then count twice.
        """
        self.check_addable(other, allow_duplicates)
        labels = _room_for_both(self.labels, other.labels)
        classes = torch.from_numpy(labels.learn(other.labels.by_row))
        second = copy.deepcopy(self._second())  # everything is computed before anything is assigned
        second.merge(other._second())
        tensors = {_SECOND + name: tensor for name, tensor in second.state_dict().items()}
        for name in ("class_sums", "class_weights"):
            grown = self.tensors[name].new_zeros(len(labels), *self.tensors[name].shape[1:])
            grown[: len(self.tensors[name])] = self.tensors[name]
            tensors[name] = grown.index_add_(0, classes, other.tensors[name])
        tensors["rows"] = self.tensors["rows"] + other.tensors["rows"]
        labels.take_over(other.labels)
        receipts = None if self.receipts is None else self.receipts.merged(other.receipts)
        inputs, fitted_on = merged_inputs(self.inputs, other.inputs), self.fitted_on | other.fitted_on
        self.tensors, self.labels, self.inputs, self.fitted_on = tensors, labels, inputs, fitted_on
        counts = {label: count for label, count in other.labels.counts.items() if count}
        self.lessons, self.receipts = self.lessons.merged(other.lessons), receipts
        self.history, self.bounded = self.history.merged(other.history, counts), self.bounded and other.bounded
        return self

    def __iadd__(self, other: Statistics) -> Statistics:
        return self.add(other) if isinstance(other, Statistics) else NotImplemented

    def __add__(self, other: Statistics) -> Statistics:
        # A shallow copy is enough, since adding replaces all parts.
        return copy.copy(self).add(other) if isinstance(other, Statistics) else NotImplemented

    def _second(self) -> SecondMoments:
        return moments_from(self.gram, self.width, self.tensors, prefix=_SECOND)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the sums to one file (safetensors with a JSON manifest), atomically."""
        manifest = {
            "kind": _KIND,
            "version": __version__,
            "map_id": self.map_id,
            "gram": self.gram,
            "inputs": self.inputs.to_json(),
            "labels": self.labels.to_json(),
            "fitted_on": sorted(self.fitted_on),
            **write_bounded(self.bounded),
        }
        tensors, described = write_lessons(self.lessons, self.receipts, self.labels)
        tensors["history"] = write_history(self.history)
        store.write(path, self.tensors | tensors, manifest | described, type(self)._read)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """Load sums that `save` wrote. Untrusted files are safe: everything is validated, nothing is executed."""
        tensors, manifest = store.read(path)
        if manifest.get("kind") != _KIND:
            raise ValueError(f"{os.fspath(path)!r} contains no statistics: load a model with CLDNetClassifier.load.")
        with describe_error(path, "statistics file"):
            return cls._read(tensors, manifest)

    @classmethod
    def _read(cls, tensors: dict[str, Tensor], manifest: dict[str, Any]) -> Statistics:
        """Read sums, and refuse what no model can have summed."""
        map_id, gram, labels = manifest["map_id"], manifest["gram"], LabelTable.from_json(manifest["labels"])
        if not isinstance(map_id, str):
            raise ValueError(f"{map_id!r:.80} is not the id of a feature map")
        inputs, fitted_on = Inputs.from_json(manifest["inputs"]), read_labels(manifest["fitted_on"], labels)
        lessons, receipts, sums = read_lessons(tensors, manifest, labels)
        history, sums = read_history(sums, labels), upgraded(sums)
        bounded = read_bounded(manifest)
        stats = cls(map_id, gram, inputs, labels, sums, fitted_on, lessons, receipts, history, bounded)
        count, width = len(labels), stats.width
        if width > max(tensor.numel() for tensor in sums.values()):
            raise ValueError(f"{width} features have more second moments than it has")  # and take hours to count
        with torch.device("meta"):  # shapes without memory
            expected = {_SECOND + name: each for name, each in moments_for(gram, width).state_dict().items()}
            for name, shape in {"class_sums": (count, width), "class_weights": (count,), "rows": ()}.items():
                expected[name] = torch.empty(shape, dtype=torch.float64)
        check_tensors(sums, expected)
        if len(labels.classes) != count:
            raise ValueError("a retired label has a row")
        check_values(sums)
        if float(sums["class_weights"].sum()) > 1.01 * stats.rows + 1:  # forgetting leaves rounding errors
            raise ValueError("its classes have more samples than all together")
        moments = stats._second()
        if moments.least_diagonal() < -1e-9 * moments.energy:
            raise ValueError("a sum of squares is negative")
        return stats


def _as_tensor(values: NDArray[Any] | Tensor) -> Tensor:
    """What a pickle has of a tensor; memory that another process shares cannot be written to, and is copied."""
    if isinstance(values, Tensor):  # in pickles of earlier versions
        return values
    tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
    return tensor if tensor.numel() else tensor.new_empty(tensor.shape)  # without samples its strides are zero


def write_bounded(bounded: bool) -> dict[str, bool]:
    """The entry of a manifest that only files of sums with larger weights or with noise have."""
    return {} if bounded else {"bounded": False}


def read_bounded(manifest: Mapping[str, Any]) -> bool:
    """Read what `write_bounded` wrote, as untrusted input. Older files do not have it, nor maps that need it."""
    bounded = manifest.get("bounded", True)
    if not isinstance(bounded, bool):
        raise ValueError(f"bounded={bounded!r:.80} should be true or false")
    return bounded


def merged_inputs(first: Inputs, second: Inputs) -> Inputs:
    """What is known of the inputs of two models together, or why they cannot be merged."""
    if first.shape != second.shape:
        raise ValueError(
            f"One model was made for inputs of shape {first.shape}, the other for {second.shape}: they cannot be merged."
        )
    if first.projection != second.projection:
        counts = [each.count for each in (first, second)]
        raise ValueError(
            f"One model was made for {counts[0]:,} columns, the other for {counts[1]:,}, and sparse rows were projected: they "
            "cannot be merged. Start both with sparse rows of the same columns."
        )
    if first.names is not None and second.names is not None and first.names != second.names:
        raise ValueError("The models' columns have different names or orders: use the same columns in the same order.")
    kind, pixel = torch.uint8 if second.pixels else torch.float64, (1,) * len(first.shape)
    try:
        replace(first, shape=pixel).check(torch.full((1, *pixel), second.largest, dtype=torch.float64).to(kind))
    except ValueError as error:
        raise ValueError(
            f"The models learned inputs in different ranges, with X of the other model: {error}"
        ) from error
    largest = max(first.largest, second.largest)
    return replace(first, names=first.names or second.names, pixels=first.pixels or second.pixels, largest=largest)


def _room_for_both(first: LabelTable, second: LabelTable) -> LabelTable:
    table = copy.deepcopy(first)
    limits = [each.capacity for each in (first, second) if each.capacity is not None]
    table.capacity = max(limits) if len(limits) == 2 else None
    return table
