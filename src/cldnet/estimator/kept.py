"""Sums of single lessons, which a model may keep so that a lesson can be taken back without its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cldnet.data.labels import LabelTable
from cldnet.device import tensor_bytes
from cldnet.estimator.history import History
from cldnet.methods.mapped import ROUNDING, moments_for, moments_from
from cldnet.storage.validation import check_tensors, check_values

if TYPE_CHECKING:
    from cldnet.estimator.statistics import Statistics

_PREFIX = "kept."
_CLASSES = ("class_sums", "class_weights")


@dataclass(frozen=True)
class KeptSums:
    """The sums of one lesson: what a model has of it, and nothing else.

    ``labels`` are in the order of the rows of the class sums, ``counts`` the numbers of their samples, and ``tensors`` what
    `cldnet.methods.exact.Exact.sums` returns.
    """

    number: int
    labels: tuple[Any, ...]
    counts: tuple[int, ...]
    tensors: Mapping[str, Tensor]

    def __deepcopy__(self, memo: Any) -> KeptSums:
        """Nothing changes them, so copies of a model share them."""
        return self

    @classmethod
    def between(
        cls,
        number: int,
        counts: Mapping[Any, int],
        rows: Sequence[int],
        before: Mapping[str, Tensor],
        now: Mapping[str, Tensor],
    ) -> KeptSums:
        """What sums have gained in a call that taught some labels, which have those rows."""
        tensors = {}
        for name, tensor in now.items():
            past = before[name]
            if name in _CLASSES:
                past = torch.cat([past, past.new_zeros(len(tensor) - len(past), *past.shape[1:])])
                tensor, past = tensor[rows], past[rows]
            tensors[name] = (tensor - past).cpu()
        return cls(number, tuple(counts), tuple(counts.values()), tensors)

    @classmethod
    def of(cls, number: int, counts: Mapping[Any, int], sums: Statistics) -> KeptSums:
        """The sums of a lesson that was summed elsewhere, as shards are."""
        rows = torch.from_numpy(sums.labels.known_rows(list(counts)))
        classes = {name: sums.tensors[name][rows] for name in _CLASSES}
        return cls(number, tuple(counts), tuple(counts.values()), {**sums.tensors, **classes})

    def plus(self, other: KeptSums) -> KeptSums:
        """The sums of both, under this one's number."""
        labels = tuple(dict.fromkeys((*self.labels, *other.labels)))
        tensors = {}
        for name, tensor in self.tensors.items():
            more = other.tensors[name]
            if name in _CLASSES:
                tensor, more = _placed(tensor, self.labels, labels), _placed(more, other.labels, labels)
            tensors[name] = tensor + more
        counts = tuple(self.count_of(label) + other.count_of(label) for label in labels)
        return KeptSums(self.number, labels, counts, tensors)

    def count_of(self, label: Any) -> int:
        """Number of samples of a label."""
        return self.counts[self.labels.index(label)] if label in self.labels else 0

    def relabelled(self, labels: Mapping[Any, Any], gone: Iterable[Any] = ()) -> KeptSums:
        """Give the samples of some labels to others, and drop the rows of classes that are gone, which have no weight."""
        gone = {*gone}
        if not any(label in gone or label in labels for label in self.labels):
            return self
        places = [place for place, label in enumerate(self.labels) if label not in gone]
        moved = [labels.get(self.labels[place], self.labels[place]) for place in places]
        new = tuple(dict.fromkeys(moved))
        tensors = {
            name: _placed(tensor[places], moved, new) if name in _CLASSES else tensor
            for name, tensor in self.tensors.items()
        }
        counts = [0] * len(new)
        for place, label in zip(places, moved, strict=True):
            counts[new.index(label)] += self.counts[place]
        return replace(self, labels=new, counts=tuple(counts), tensors=tensors)

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(map(tensor_bytes, self.tensors.values()))


def write_kept(kept: Sequence[KeptSums]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """What a file keeps of the sums of lessons: tensors, and descriptions in JSON's types."""
    tensors = {f"{_PREFIX}{place}.{name}": each for place, one in enumerate(kept) for name, each in one.tensors.items()}
    return tensors, [{"number": one.number, "labels": [*one.labels], "counts": [*one.counts]} for one in kept]


def read_kept(
    tensors: Mapping[str, Tensor], described: Any, labels: LabelTable, history: History, gram: str | int
) -> tuple[tuple[KeptSums, ...], dict[str, Tensor]]:
    """Read what `write_kept` wrote, as untrusted input: together, the lessons have no more than the model.

    Return the other tensors as well. Sums on the meta device were not read, and are left out.
    """
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
    others = {name: tensor for name, tensor in tensors.items() if name not in own}
    if not isinstance(described, list):
        raise ValueError("its kept lessons should be a list")
    if not described and not own:
        return (), others
    width = _width(others)
    parts = [_described(one, labels, history) for one in described]
    if [one.number for one in parts] != sorted({one.number for one in parts}):
        raise ValueError("its kept lessons should each have a number, in order")
    with torch.device("meta"):  # shapes without memory
        second = {f"second.{name}": tensor for name, tensor in moments_for(gram, width).state_dict().items()}
        expected = {
            f"{_PREFIX}{place}.{name}": tensor
            for place, one in enumerate(parts)
            for name, tensor in (second | _class_tensors(len(one.labels), width)).items()
        }
    check_tensors(own, expected)
    if any(tensor.is_meta for tensor in own.values()):
        return (), others
    check_values(own)
    names = [*second, *_class_tensors(0, width)]
    kept = tuple(
        replace(one, tensors={name: own[f"{_PREFIX}{place}.{name}"] for name in names})
        for place, one in enumerate(parts)
    )
    _check_contained(kept, others, labels, gram)
    return kept, others


def _width(tensors: Mapping[str, Tensor]) -> int:
    """Number of features, as the class sums say; many times more than there are numbers would take hours to count."""
    sums = tensors.get("class_sums")
    if sums is None or sums.ndim != 2 or sums.shape[1] > max(tensor.numel() for tensor in tensors.values()):
        raise ValueError("it has sums of lessons and none of its own")
    return int(sums.shape[1])


def _class_tensors(classes: int, width: int) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {"class_sums": (classes, width), "class_weights": (classes,), "rows": ()}
    return {name: torch.empty(shape, dtype=torch.float64, device="meta") for name, shape in shapes.items()}


def _described(one: Any, labels: LabelTable, history: History) -> KeptSums:
    """Read the description of one lesson's sums, as untrusted input."""
    number, own, counts = one["number"], one["labels"], one["counts"]
    if type(number) is not int or number not in {record.number for record in history.records}:
        raise ValueError("its kept lessons should be in its history")
    if not isinstance(own, list) or len(set(own)) < len(own) or (labels.rows(own) < 0).any():
        raise ValueError("the classes of a kept lesson should be among its classes, each once")
    if len(counts) != len(own) or not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("a kept lesson should have a number of samples per class")
    return KeptSums(number, tuple(own), tuple(counts), {})


def _check_contained(
    kept: Sequence[KeptSums], tensors: Mapping[str, Tensor], labels: LabelTable, gram: str | int
) -> None:
    """Refuse lessons that have more weight or larger squares than the model."""
    width = tensors["class_sums"].shape[1]
    known, taken = (
        [own["class_weights"], own["rows"][None], moments_from(gram, width, own, prefix="second.").diagonal()]
        for own in (tensors, _total(kept, len(tensors["class_weights"]), labels))
    )
    for own, theirs in zip(known, taken, strict=True):
        if bool((theirs > own + ROUNDING * (1 + own.max())).any()):
            raise ValueError("its kept lessons have more samples than the model")


def _total(kept: Sequence[KeptSums], rows: int, labels: LabelTable) -> dict[str, Tensor]:
    """The sums of all lessons, classes by the model's rows."""
    total: dict[str, Tensor] = {}
    for one in kept:
        places = torch.from_numpy(labels.rows(list(one.labels)))
        for name, tensor in one.tensors.items():
            if name in _CLASSES:
                tensor = tensor.new_zeros(rows, *tensor.shape[1:]).index_add_(0, places, tensor)
            total[name] = total[name] + tensor if name in total else tensor
    return total


def _placed(tensor: Tensor, labels: Sequence[Any], into: Sequence[Any]) -> Tensor:
    """Add the rows of some labels to those of others, which begin with zeros."""
    places = torch.tensor([into.index(label) for label in labels], dtype=torch.int64)
    return tensor.new_zeros(len(into), *tensor.shape[1:]).index_add_(0, places, tensor)
