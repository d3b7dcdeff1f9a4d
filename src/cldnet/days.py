"""On which days the labels of a table were learned: the first and the last of each, where that was noted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Days"]

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Days(dict[Any, tuple[str, str]]):
    """A first and a last day by label, as 2026-11-17.

    Examples
    --------
    >>> days = Days()
    >>> days.note(["cat", "dog"], "2026-11-17")
    >>> days.note(["cat"], "2026-12-24")
    >>> days["cat"], days.to_json(["cat", "owl"])
    (('2026-11-17', '2026-12-24'), [['2026-11-17', '2026-12-24'], None])
    """

    def note(self, labels: Iterable[Any], day: str) -> None:
        """Note that labels were learned on a day."""
        self.take_over({label: (day, day) for label in labels})

    def take_over(self, others: Mapping[Any, tuple[str, str]]) -> None:
        """Take over what was noted elsewhere."""
        for label, (first, last) in others.items():
            known = self.get(label, (first, last))
            self[label] = min(first, known[0]), max(last, known[1])

    def to_json(self, labels: Sequence[Any]) -> list[list[str] | None]:
        """The days of labels in types that JSON has."""
        return [[*self[label]] if label in self else None for label in labels]

    @classmethod
    def from_json(cls, state: Any, labels: Sequence[Any]) -> Days:
        """Rebuild days from `to_json`, checking them as input from a stranger."""
        if not isinstance(state, list) or len(state) != len(labels) or not all(map(_sound, state)):
            raise ValueError("The label table should have a first and a last day a label, as 2026-11-17, or null.")
        return cls({label: (pair[0], pair[1]) for label, pair in zip(labels, state, strict=True) if pair is not None})


def _sound(pair: Any) -> bool:
    if not isinstance(pair, list):
        return pair is None
    return len(pair) == 2 and all(isinstance(day, str) and _DAY.fullmatch(day) for day in pair) and pair[0] <= pair[1]
