"""The user's labels and the rows that stand for them: by order of arrival; a row, once given, is its label's for ever."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cldnet.days import Days

__all__ = ["LabelTable", "as_labels"]

_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "str"}
_DTYPES: dict[str, type] = {"bool": np.bool_, "int": np.int64, "float": np.float64, "str": np.str_}


class LabelTable:
    """A one-to-one table from labels (int, float, bool or str, one kind a table) to rows 0, 1, 2, ….

    Examples
    --------
    >>> table = LabelTable(capacity=10)
    >>> table.learn(["cat", "dog", "cat"])
    array([0, 1, 0])
    >>> table.learn(["ant"])
    array([2])
    >>> table.classes, table.columns
    (array(['ant', 'cat', 'dog'], dtype='<U3'), array([2, 0, 1]))
    >>> table.tally(["cat", "dog", "cat"])
    >>> table.counts
    {'ant': 0, 'cat': 2, 'dog': 1}
    >>> table.retire("cat")
    >>> table.classes, len(table)
    (array(['ant', 'dog'], dtype='<U3'), 3)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = int(capacity)
        self.kind: str | None = None
        self._row_of: dict[Any, int] = {}
        self._retired: set[Any] = set()
        self._count_of: dict[Any, int | None] = {}
        self._days = Days()

    def __deepcopy__(self, memo: Any) -> LabelTable:
        """Copy the table; its labels cannot change, and to look into each of them would take longer with every task."""
        twin = copy.copy(self)
        twin._row_of, twin._retired, twin._count_of = dict(self._row_of), set(self._retired), dict(self._count_of)
        twin._days = Days(self._days)
        return twin

    def __len__(self) -> int:
        """Rows taken, those of retired labels among them."""
        return len(self._row_of)

    @property
    def _live(self) -> list[Any]:
        return sorted(label for label in self._row_of if label not in self._retired)

    @property
    def classes(self) -> NDArray[Any]:
        """The labels seen and not retired, sorted, in the user's own type."""
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
        """Examples of each label of `classes`, as far as they were counted: files from before did not."""
        return {label: self._count_of.get(label, 0) for label in self._live}

    @property
    def days(self) -> dict[Any, tuple[str, str]]:
        """The first and the last day, as 2026-11-17, on which each label of `classes` was learned, where that was noted."""
        return {label: self._days[label] for label in self._live if label in self._days}

    def note_day(self, labels: Any, day: str) -> None:
        """Note that labels of the table were learned on a day."""
        self.known_rows(labels)
        self._days.note(as_labels(labels).tolist(), day)

    def take_over(self, other: LabelTable) -> None:
        """Add another table's numbers of examples and its days to those of the same labels here."""
        self.add_counts(other.counts)
        self._days.take_over(other.days)

    def tally(self, labels: Any, weight: NDArray[np.float64] | None = None, *, sign: int = 1) -> None:
        """Count examples by their labels, which are in the table already; with ``sign=-1`` take them off again.

        A row of weight 0 is no example: nothing of it is in a model.
        """
        array = as_labels(labels) if weight is None else as_labels(labels)[weight > 0]
        for label, count in zip(*np.unique(array, return_counts=True), strict=True):
            self.add_counts({label.item(): sign * int(count)})

    def add_counts(self, counts: Mapping[Any, int | None]) -> None:
        """Add numbers of examples by label; a number that is not known leaves none that is."""
        for label, more in counts.items():
            known = self._count_of.get(label, 0)
            self._count_of[label] = None if known is None or more is None else max(0, known + more)

    def check(self, labels: Any) -> NDArray[Any]:
        """Return the labels as a clean array, or say what is wrong with them. The table does not change."""
        array = self._same_kind(labels)
        fresh = {label for label in np.unique(array).tolist() if label not in self._row_of}
        if len(self) + len(fresh) > self.capacity:
            enough = max(2 * self.capacity, len(self) + len(fresh))
            extend = f"clf.extend({enough}) makes room and keeps what was learned"
            raise ValueError(
                f"There is room for {self.capacity} classes, {len(self)} are taken and {len(fresh)} more came: "
                f"{extend if len(self) else f'make the model with capacity={enough} or more'}."
            )
        return array

    def _same_kind(self, labels: Any) -> NDArray[Any]:
        array = as_labels(labels)
        kind = _KINDS[array.dtype.kind]
        if len(array) and self.kind is not None and kind != self.kind:  # none at all are of any type
            raise ValueError(
                f"Labels of type {kind} cannot follow labels of type {self.kind}: a model's labels have one type. "
                f"Convert y with y.astype({self.kind})."
            )
        return array

    def learn(self, labels: Any) -> NDArray[np.int64]:
        """Give every label its row, new labels the next free rows in order of arrival."""
        array = self.check(labels)
        if not len(array):
            return np.zeros(0, dtype=np.int64)
        self.kind = _KINDS[array.dtype.kind]
        values, first, inverse = np.unique(array, return_index=True, return_inverse=True)
        for position in np.argsort(first):
            self._row_of.setdefault(values[position].item(), len(self._row_of))
        self._retired.difference_update(values.tolist())
        return self._rows(values)[inverse]

    def retire(self, label: Any) -> None:
        """Take a label out of `classes`. Its row stays reserved: if the label is learned again, it gets the same one."""
        self.known_rows([label])
        self._retired.update(as_labels([label]).tolist())
        self._count_of.update(dict.fromkeys(as_labels([label]).tolist(), 0))
        self._days.pop(as_labels([label]).tolist()[0], None)

    def known_rows(self, labels: Any) -> NDArray[np.int64]:
        """Rows of labels, all of which have to be among `classes`."""
        array = self._same_kind(labels)
        rows = self.rows(array)
        if (rows < 0).any():
            raise ValueError(f"There is no class {_some(np.unique(array[rows < 0]))}: {_some(self.classes)} are known.")
        return rows

    def rows(self, labels: Any) -> NDArray[np.int64]:
        """Rows of labels that are in the table; ``-1`` for those that are not, or retired."""
        values, inverse = np.unique(as_labels(labels), return_inverse=True)
        return self._rows(values)[inverse]

    def _rows(self, values: NDArray[Any]) -> NDArray[np.int64]:
        known = [-1 if value in self._retired else self._row_of.get(value, -1) for value in values.tolist()]
        return np.array(known, dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        """Describe the table in types that JSON has."""
        labels = list(self._row_of)
        retired = [label for label in labels if label in self._retired]
        counts = [self._count_of.get(label, 0) for label in labels]
        state = {"capacity": self.capacity, "kind": self.kind, "labels": labels, "retired": retired, "counts": counts}
        return state | ({"days": self._days.to_json(labels)} if self._days else {})

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> LabelTable:
        """Rebuild a table from `to_json`, checking it as input from a stranger."""
        capacity, labels = state["capacity"], state["labels"]
        if type(capacity) is not int or capacity < 1 or not isinstance(labels, list):
            raise ValueError("The label table should have room for one class or more, and a list of labels.")
        table = cls(capacity)
        if labels:
            if state["kind"] not in _DTYPES:
                raise ValueError(f"The label table has an unknown type of label: {state['kind']!r}.")
            if {type(label).__name__ for label in labels} != {state["kind"]}:
                raise ValueError(f"The label table has labels that are not of the type {state['kind']!r}.")
            if state["kind"] == "str":
                _check_ends(labels)
            table.learn(np.array(labels, dtype=_DTYPES[state["kind"]]))
        if len(table) != len(labels):
            raise ValueError("The label table names a label twice.")
        counts: Sequence[Any] = state["counts"]
        if len(counts) != len(labels) or any(n is not None and (type(n) is not int or n < 0) for n in counts):
            raise ValueError("The label table should have a number of examples a label, or null where it is not known.")
        table._count_of = dict(zip(table._row_of, counts, strict=True))
        table._days = Days.from_json(state.get("days", [None] * len(labels)), labels)  # most files have none
        for label in state["retired"]:
            table.retire(label)
        return table


def as_labels(labels: Any) -> NDArray[Any]:
    """Turn labels of any make into a one-dimensional array of a kind we know, or say what is wrong with them.

    Examples
    --------
    >>> as_labels([3, -1]), as_labels(np.array(["b", "a"], dtype=object))
    (array([ 3, -1]), array(['b', 'a'], dtype='<U1'))
    >>> as_labels([1, "a"])
    Traceback (most recent call last):
    ...
    ValueError: y mixes labels of types ['int', 'str']: use one type for all labels of a model.
    """
    try:
        array = np.asarray(labels)
    except ValueError as error:
        raise ValueError("y is ragged: it should have one label a row.") from error
    if array.ndim != 1:
        got = f"an array of shape {array.shape}" if array.ndim else f"a {type(labels).__name__}"
        give = "for example y[:, 0], or y.argmax(axis=1) where a column stands for a class"
        if not array.ndim:
            give = "for example list(y)" if isinstance(labels, Iterator) else "such as a list, an array or a column"
        raise ValueError(f"y should be a 1d array with one label a row, got {got} instead: give one, {give}.")
    if array.dtype.kind == "O":
        array = _from_values(array.tolist())
    elif isinstance(labels, list | tuple):
        _from_values(labels)  # numpy turns [1, "a"] into strings and [True, 2] into numbers without a word
    if array.dtype.kind not in _KINDS:
        raise ValueError(
            f"y has dtype {array.dtype}; labels are whole numbers, strings, booleans or plain floats. Convert them, for "
            "example with y.astype(str)."
        )
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError(
                "Input y contains NaN or infinity: every row needs a label. Drop those rows, or name the class."
            )
        if (array != np.floor(array)).any():  # in scikit-learn's words
            raise ValueError("Unknown label type: continuous. Labels that are floats should be whole, such as 1.0.")
    if array.dtype.kind == "u" and (array > np.iinfo(np.int64).max).any():
        raise ValueError("y has labels beyond 2⁶³: use strings for numbers of that size.")
    return array


def _from_values(labels: Sequence[Any]) -> NDArray[Any]:
    """Turn Python and numpy values into an array, refusing what is missing and what is mixed."""
    values = [label.item() if isinstance(label, np.generic) else label for label in labels]
    if any(_missing(value) for value in values):
        raise ValueError("y contains None or NaN: every row needs a label. Drop those rows, or name the class.")
    kinds = {str if isinstance(value, str) else type(value) for value in values}
    names = sorted(kind.__name__ for kind in kinds)
    if not kinds <= {int, bool, float, str}:
        raise ValueError(f"Unknown label type: {names}. Labels are whole numbers, strings, booleans or plain floats.")
    if len(kinds) > 1 and kinds != {int, float}:
        raise ValueError(f"y mixes labels of types {names}: use one type for all labels of a model.")
    if kinds == {str}:
        _check_ends(values)
    return np.array(values)


def _check_ends(labels: Sequence[str]) -> None:
    """Refuse strings that numpy would cut: two labels would become one without a word."""
    cut = next((label for label in labels if label.endswith("\0")), None)
    if cut is not None:
        raise ValueError(
            f"y has the label {cut!r:.80}, which ends in a NUL character, and numpy drops those at the end of a string: name "
            "the class without it, for example label.rstrip('\\0')."
        )


def _some(labels: NDArray[Any], most: int = 6) -> str:
    """Name a few labels."""
    return ", ".join([*map(repr, labels[:most].tolist()), *["…"] * (len(labels) > most)]) or "none"


def _missing(value: Any) -> bool:
    """Tell None, NaN (which differs from itself) and pandas' NA (which cannot tell)."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        return True
