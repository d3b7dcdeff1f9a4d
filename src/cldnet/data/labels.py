"""What a model remembers of its data: labels with their class rows, counts and dates, and the shape and range of inputs."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.sentences import TEXT_ADVICE, TEXT_BYTES, is_sentences, no_sentences
from cldnet.data.sparse import Projection

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}
_DTYPES: dict[str, type] = {"bool": np.bool_, "int": np.int64, "float": np.float64, "str": np.str_}


#: The class of the dates in models pickled by version 0.1.
Days = dict


class LabelTable:
    """A table from labels (int, float, bool or str; one type per table) to class rows 0, 1, 2, … in order of arrival.

    When labels are removed, those behind them move up. Without a ``capacity`` there is no limit to their number.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity if capacity is None else int(capacity)
        self.kind: str | None = None
        self._row_of: dict[Any, int] = {}
        #: Labels out of older files that are no classes any more, and yet have a row.
        self._retired: set[Any] = set()
        self._count_of: dict[Any, int | None] = {}
        self._dates: dict[Any, tuple[str, str]] = {}

    def __deepcopy__(self, memo: Any) -> LabelTable:
        """Copy the table but not its labels, which cannot change."""
        twin = copy.copy(self)
        twin.__dict__.update({name: copy.copy(value) for name, value in vars(self).items()})
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"_dates" if name == "_days" else name: value for name, value in state.items()})

    def __len__(self) -> int:
        """Number of rows taken, including those of retired labels."""
        return len(self._row_of)

    @property
    def _live(self) -> list[Any]:
        return sorted(label for label in self._row_of if label not in self._retired)

    @property
    def classes(self) -> NDArray[Any]:
        """The labels seen and not retired, sorted, in the user's type."""
        return np.array(self._live, dtype=_DTYPES[self.kind or "int"])

    @property
    def columns(self) -> NDArray[np.int64]:
        """The row of every label of `classes`: ``scores[:, table.columns]`` follows `classes`."""
        return np.array([self._row_of[label] for label in self._live], dtype=np.int64)

    @property
    def by_row(self) -> NDArray[Any]:
        """The labels of `classes` in the order of their rows."""
        return self.classes[self.columns.argsort()]

    @property
    def counts(self) -> dict[Any, int | None]:
        """Number of samples per label of `classes`; None where an older file did not count them."""
        return {label: self._count_of.get(label, 0) for label in self._live}

    @property
    def dates(self) -> dict[Any, tuple[str, str]]:
        """The first and the last date, as 2026-11-17, on which each label of `classes` was learned, if known."""
        return {label: self._dates[label] for label in self._live if label in self._dates}

    def note_date(self, labels: Any, date: str) -> None:
        """Record that labels of the table were learned on a date."""
        self.known_rows(labels)
        self._merge_dates({label: (date, date) for label in as_labels(labels).tolist()})

    def take_over(self, other: LabelTable) -> None:
        """Add the counts and dates of another table to those of the same labels."""
        self.add_counts(other.counts)
        self._merge_dates(other.dates)

    def _merge_dates(self, dates: Mapping[Any, tuple[str, str]]) -> None:
        for label, (first, last) in dates.items():
            known = self._dates.get(label, (first, last))
            self._dates[label] = min(first, known[0]), max(last, known[1])

    def count_samples(self, labels: Any, weight: NDArray[np.float64] | None = None, *, sign: int = 1) -> None:
        """Count samples by label, or with ``sign=-1`` uncount them. Samples of weight 0 do not count."""
        array = as_labels(labels) if weight is None else as_labels(labels)[weight > 0]
        for label, count in zip(*np.unique(array, return_counts=True), strict=True):
            self.add_counts({label.item(): sign * int(count)})

    def add_counts(self, counts: Mapping[Any, int | None]) -> None:
        """Add counts by label; an unknown count makes the sum unknown."""
        for label, more in counts.items():
            known = self._count_of.get(label, 0)
            self._count_of[label] = None if known is None or more is None else max(0, known + more)

    def check(self, labels: Any) -> NDArray[Any]:
        """Return the labels as a clean array, or raise. The table does not change."""
        array = self._same_kind(labels)
        fresh = {label for label in np.unique(array).tolist() if label not in self._row_of}
        if self.capacity is not None and len(self) + len(fresh) > self.capacity:
            enough = max(2 * self.capacity, len(self) + len(fresh))
            extend = f"clf.extend({enough}) makes room and keeps what was learned (or `cldnet extend MODEL {enough}`)"
            raise ValueError(
                f"The model has room for {self.capacity} classes, {len(self)} are taken and y has {len(fresh)} new ones: "
                f"{extend if len(self) else f'make the model with capacity={enough} or more'}."
            )
        return array

    def _same_kind(self, labels: Any) -> NDArray[Any]:
        array = as_labels(labels)
        kind = _KINDS[array.dtype.kind]
        if len(array) and self.kind is not None and kind != self.kind:  # an empty y has no type
            raise ValueError(
                f"Labels of type {kind} cannot follow labels of type {self.kind}: a model's labels have one type. "
                f"Convert y with y.astype({self.kind})."
            )
        return array

    def learn(self, labels: Any) -> NDArray[np.int64]:
        """Return the row of every label; new labels get the next free rows in order of arrival."""
        array = self.check(labels)
        if not len(array):
            return np.zeros(0, dtype=np.int64)
        self.kind = _KINDS[array.dtype.kind]
        values, first = np.unique(array, return_index=True)
        for position in np.argsort(first):
            self._row_of.setdefault(values[position].item(), len(self._row_of))
        self._retired.difference_update(values.tolist())
        return self.rows(array)

    def remove(self, labels: Any) -> NDArray[np.int64]:
        """Remove labels of `classes`, and those that an older version left without removing them; return their rows.

        Nothing of them is left, and the rows behind them move up.
        """
        self.known_rows(labels)
        gone = {*as_labels(labels).tolist()} | self._retired
        rows = np.array([row for label, row in self._row_of.items() if label in gone], dtype=np.int64)
        self._row_of = {label: row for row, label in enumerate(label for label in self._row_of if label not in gone)}
        for label in gone:
            self._count_of.pop(label, None)
            self._dates.pop(label, None)
        self._retired = set()
        return rows

    def rename(self, old: Any, new: Any) -> None:
        """Give a label of `classes` another name, which no label has; its row, its count and its dates stay."""
        self.known_rows([old])
        self._same_kind([new])
        old, new = as_labels([old, new]).tolist()
        if new in self._row_of:
            raise ValueError(
                f"There is a class {new!r} already: use join_classes([{old!r}], into={new!r}), or `cldnet join`, to make the "
                "two one."
            )
        for table in (self._row_of, self._count_of, self._dates):
            kept = {new if label == old else label: value for label, value in table.items()}
            table.clear()
            table.update(kept)

    def __contains__(self, label: Any) -> bool:
        """Whether a label has a row."""
        return as_labels([label]).tolist()[0] in self._row_of

    def known_rows(self, labels: Any) -> NDArray[np.int64]:
        """Rows of labels; raises unless all are among `classes`."""
        array = self._same_kind(labels)
        rows = self.rows(array)
        if (rows < 0).any():
            raise ValueError(f"There is no class {_some(np.unique(array[rows < 0]))}: {_some(self.classes)} are known.")
        return rows

    def rows(self, labels: Any) -> NDArray[np.int64]:
        """Rows of labels; ``-1`` for those that are unknown or retired."""
        values = as_labels(labels).tolist()
        known = [-1 if value in self._retired else self._row_of.get(value, -1) for value in values]
        return np.array(known, dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """Return the table in JSON types."""
        labels = list(self._row_of)
        retired = [label for label in labels if label in self._retired]
        counts = [self._count_of.get(label, 0) for label in labels]
        state = {"capacity": self.capacity, "kind": self.kind, "labels": labels, "retired": retired, "counts": counts}
        dates = [[*self._dates[label]] if label in self._dates else None for label in labels]
        return state | ({"days": dates} if self._dates else {})

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> LabelTable:
        """Rebuild a table from `to_json`, validating it as untrusted input."""
        capacity, labels = state["capacity"], state["labels"]
        if not (capacity is None or (type(capacity) is int and capacity >= 1)) or not isinstance(labels, list):
            raise ValueError("The label table should have room for one class or more, and a list of labels.")
        table = cls(capacity)
        if labels or state["kind"] is not None:  # a table whose labels are all gone still has their type
            if state["kind"] not in _DTYPES:
                raise ValueError(f"The label table has an unknown type of label: {state['kind']!r}.")
            table.kind = state["kind"]
        if labels:
            if {type(label).__name__ for label in labels} != {state["kind"]}:
                raise ValueError(f"The label table has labels that are not of the type {state['kind']!r}.")
            if state["kind"] == "str":
                _check_ends(labels)
            table.learn(np.array(labels, dtype=_DTYPES[state["kind"]]))
        if len(table) != len(labels):
            raise ValueError("The label table has a label twice.")
        counts: Sequence[Any] = state["counts"]
        if len(counts) != len(labels) or any(n is not None and (type(n) is not int or n < 0) for n in counts):
            raise ValueError("The label table should have a number of samples per label, or null if it is not known.")
        table._count_of = dict(zip(table._row_of, counts, strict=True))
        dates = state.get("days", [None] * len(labels))
        if not isinstance(dates, list) or len(dates) != len(labels) or not all(map(_valid_dates, dates)):
            raise ValueError("The label table should have a first and a last date per label, as 2026-11-17, or null.")
        table._dates = {
            label: (pair[0], pair[1]) for label, pair in zip(labels, dates, strict=True) if pair is not None
        }
        for label in state["retired"]:
            table.known_rows([label])
            table._retired.add(label)
            table._count_of[label] = 0
            table._dates.pop(label, None)
        return table


def as_labels(labels: Any) -> NDArray[Any]:
    """Convert labels to a one-dimensional array of a supported type, or raise."""
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise ValueError("y is ragged; expected one label per sample.") from error
    if array.ndim != 1:
        got = f"an array of shape {array.shape}" if array.ndim else f"a {type(labels).__name__}"
        give = "for example y[:, 0], or y.argmax(axis=1) for one-hot labels"
        if not array.ndim:
            give = "for example list(y)" if isinstance(labels, Iterator) else "such as a list, an array or a column"
        raise ValueError(f"y should be a 1d array with one label per sample, got {got} instead: give one, {give}.")
    if array.dtype.kind == "O":
        array = _from_values(array.tolist())
    elif isinstance(labels, list | tuple):
        _from_values(labels)  # numpy silently turns [1, "a"] into strings and [True, 2] into numbers
    if array.dtype.kind not in _KINDS:
        raise ValueError(
            f"y has dtype {array.dtype}; labels are integers, strings, booleans or whole floats. Convert them, for "
            "example with y.astype(str)."
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(
                "Input y contains NaN or infinity: every sample needs a label. Drop those samples, or label them."
            )
        if (array != np.floor(array)).any():  # in scikit-learn's words
            raise ValueError("Unknown label type: continuous. Labels that are floats should be whole, such as 1.0.")
    if array.dtype.kind == "u" and (array > np.iinfo(np.int64).max).any():
        raise ValueError("y has labels beyond 2⁶³: use strings for numbers of that size.")
    return array


def _from_values(labels: Sequence[Any]) -> NDArray[Any]:
    """Convert Python and numpy values to an array; raises for missing and for mixed values."""
    values = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if any(_missing(value) for value in values):
        raise ValueError("y contains None or NaN: every sample needs a label. Drop those samples, or label them.")
    kinds = {str if isinstance(value, str) else type(value) for value in values}
    names = sorted(kind.__name__ for kind in kinds)
    if not kinds <= {int, bool, float, str}:
        raise ValueError(f"Unknown label type: {names}. Labels are integers, strings, booleans or whole floats.")
    if len(kinds) > 1 and kinds != {int, float}:
        raise ValueError(f"y mixes labels of types {names}: use one type for all labels of a model.")
    if kinds == {str}:
        _check_ends(values)
    return np.array(values)


def _check_ends(labels: Sequence[str]) -> None:
    """Raise for strings that numpy would cut, which could merge two labels."""
    cut = next((label for label in labels if label.endswith("\0")), None)
    if cut is not None:
        raise ValueError(
            f"y has the label {cut!r:.80}, which ends in a NUL character, and numpy drops those at the end of a string: name "
            "the class without it, for example label.rstrip('\\0')."
        )


def _valid_dates(pair: Any) -> bool:
    if not isinstance(pair, list):
        return pair is None
    return (
        len(pair) == 2 and all(isinstance(date, str) and _DATE.fullmatch(date) for date in pair) and pair[0] <= pair[1]
    )


def _some(labels: NDArray[Any], most: int = 6) -> str:
    """List a few labels."""
    return ", ".join([*map(repr, labels[:most].tolist()), *["…"] * (len(labels) > most)]) or "none"


def _missing(value: Any) -> bool:
    """Recognise None, NaN (unequal to itself) and pandas' NA (which cannot be compared)."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        return True


#: Images with values this many times larger than the first ones are in another range; less suffices with another type.
_RANGE = 16
_SWITCHED_RANGE = 4
#: The range of uint8.
_WHITE = 255
#: Images with negative values whose mean is less than this share of their std were centred.
_CENTRED = 0.1
#: Largest number of values in one input, in an untrusted file.
_MOST_NUMBERS = 1 << 26


def other_columns(shape: Sequence[int], expected: int) -> str:
    """Say that rows have another number of columns than expected, in scikit-learn's words."""
    return (
        f"X has {shape[1] if len(shape) == 2 else tuple(shape[1:])} features, but CLDNetClassifier is expecting {expected} "
        "features as input. Give the columns that the model was trained with, or train another model."
    )


@dataclass(frozen=True)
class Inputs:
    """A model's first inputs: the shape of one, the names of the columns, whether they were uint8, the largest |value|.

    If they were sparse with many columns, shape and largest |value| are those of the projected rows.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...] | None
    pixels: bool
    largest: float
    projection: Projection | None = None
    text: bool = False  # whether they are sentences, as rows of bytes

    @property
    def count(self) -> int:
        """Number of values in one input, before any projection."""
        return prod(self.shape) if self.projection is None else self.projection.columns

    @property
    def noun(self) -> str:
        """What one input is called: photo, text or row."""
        if self.text:
            return "text"
        if len(self.shape) == 3 and self.shape[0] == 3 and self.shape[1] == self.shape[2]:
            return "photo"
        if len(self.shape) == 1:
            return "row"
        raise ValueError(
            f"This model takes inputs of shape {self.shape}, not photos, which are (3, side, side), texts or rows. Use it in "
            "Python."
        )

    def check_text(self, X: Any) -> None:
        """Raise for sentences where the first inputs were numbers, and the other way round."""
        text = is_sentences(X)
        if text and not self.text:
            raise ValueError(f"X has sentences, and this model was taught with numbers. {TEXT_ADVICE}")
        if self.text and not text:
            raise ValueError(no_sentences(X, "this model was taught with some"))

    def check(self, x: Tensor) -> None:
        """Raise for inputs of another shape, and for images in another range, such as 0 to 1 after 0 to 255."""
        shape = tuple(x.shape[1:])
        if len(shape) == len(self.shape) == 1 and shape != self.shape:  # in scikit-learn's words
            raise ValueError(other_columns(x.shape, self.count))
        if shape != self.shape:
            raise ValueError(
                f"X has samples of shape {shape}; the model was made for {self.shape}. "
                "Reshape X, or train another model."
            )
        fault = self._other_range(x)
        if fault is not None:
            seen = f"The model learned {'uint8' if self.pixels else 'float'} inputs with values up to {self.largest:g}"
            raise ValueError(f"{seen} and X {fault}.")

    def _other_range(self, x: Tensor) -> str | None:
        """Say why images are in another range than the first ones, if they are; columns of a table may have any range.

        A black image is in every range, and a dark uint8 image is in that of uint8.
        """
        pixels, images = x.dtype == torch.uint8, len(self.shape) > 1
        least, most = (float(end) for end in x.aminmax())
        largest = max(most, -least)
        if min(largest, self.largest) == 0 or (pixels == self.pixels and (pixels or not images)):
            return None
        if not pixels and largest <= 1 and self.largest > (1 if self.pixels else _RANGE):
            return "lies between -1 and 1: bring X into the same range, for example X * 255"
        if self.pixels:
            return self._beside_pixels(x, least, largest) if images else None
        if pixels and images and self.largest > _SWITCHED_RANGE * _WHITE:
            return f"is uint8, which ends at 255: bring X into that range, for example X * {self.largest / _WHITE:g}"
        reach = (_SWITCHED_RANGE if pixels else _RANGE) * self.largest
        if pixels and images and self.largest <= 1:
            reach = min(1.0, reach)  # 2 is beyond a range that ends at 1, however dark the image
        if largest > reach:
            kind = "uint8" if pixels else "float"
            return f"is {kind} with values up to {largest:g}: bring X into the same range, for example X / 255"
        return None

    def _beside_pixels(self, x: Tensor, least: float, largest: float) -> str | None:
        """Say why float images are not in the range of uint8, if they are not; a dark image may have small integers."""
        if largest > _SWITCHED_RANGE * _WHITE:
            return f"has values up to {largest:g}: bring X into the same range, 0 to 255, for example X / 257 if it was uint16"
        if least < 0:
            deviation, mean = torch.std_mean(x, correction=0)
            if float(mean) < _CENTRED * float(deviation):
                return f"is centred, from {least:g} on: bring X into the same range, 0 to 255, with its mean not subtracted"
        if largest <= _RANGE < self.largest and bool((x != x.round()).any()):
            return f"has fractions up to {largest:g}: bring X into the same range, 0 to 255, neither divided nor standardised"
        return None

    def to_json(self) -> dict[str, Any]:
        """Describe the inputs in types that JSON has."""
        described = asdict(self)
        if self.projection is None:  # as in older files
            del described["projection"]
        if not self.text:
            del described["text"]
        return described

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Inputs:
        """Rebuild from `to_json`, validating it as untrusted input."""
        shape, names, pixels, largest = (state[name] for name in ("shape", "names", "pixels", "largest"))
        sides = shape if isinstance(shape, list) and 1 <= len(shape) <= 3 else [0]
        if not all(type(side) is int and 1 <= side <= _MOST_NUMBERS for side in sides) or prod(sides) > _MOST_NUMBERS:
            raise ValueError(f"inputs of shape {shape!r:.80} are not possible")
        projection = None if state.get("projection") is None else Projection.from_json(state["projection"])
        if projection is not None and sides != [projection.width]:
            raise ValueError(f"inputs of shape {shape!r:.80} were not projected to {projection.width} columns")
        count = prod(sides) if projection is None else projection.columns
        if names is not None and not (
            isinstance(names, list) and len(names) == count and all(isinstance(name, str) for name in names)
        ):
            raise ValueError(f"the column names should be {count} strings, or null")
        if not isinstance(pixels, bool) or type(largest) not in (int, float) or not 0 <= largest < float("inf"):
            raise ValueError(
                f"largest={largest!r:.80} should be a finite number, and pixels={pixels!r:.80} true or false"
            )
        text = state.get("text", False)
        if text not in (True, False) or (
            text and (sides != [TEXT_BYTES] or not pixels or (names, projection) != (None, None))
        ):
            raise ValueError(f"text={text!r:.80} should be true, for sentences of {TEXT_BYTES} bytes, or not be there")
        return cls(
            tuple(sides), None if names is None else tuple(names), pixels, float(largest), projection, bool(text)
        )
