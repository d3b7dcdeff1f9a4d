"""What may be searched when a method's settings are chosen: the values that one field of its configuration may take.

A method states its ranges in its own file, ``ranges: ClassVar = {"lr": LogUniform(0.003, 0.3)}``. Passes over the data and
batch sizes are no part of them: they are the budget, which is the same for all methods.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["LEARNING_RATES", "Choice", "LogUniform", "Range", "Whole", "check_ranges", "edge"]

#: Share of a range, at either end, that counts as its edge: drawn numbers hardly ever hit the very end.
_EDGE = 0.05


@dataclass(frozen=True)
class Choice:
    """One of a few values, as JSON has them: numbers, strings, or parts such as ``{"kind": "ConstantAlpha", "value": 1.0}``.

    Examples
    --------
    >>> print(Choice((16, 32)))
    one of 16, 32
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        try:
            texts = [json.dumps(value, sort_keys=True, allow_nan=False) for value in self.values]
        except (TypeError, ValueError) as error:
            raise ValueError(f"Choice takes values that JSON has, not {self.values!r} ({error}).") from error
        if not texts or len(set(texts)) < len(texts):
            raise ValueError(f"Choice takes one or more different values, not {self.values!r}.")

    @property
    def count(self) -> int:
        """Number of values."""
        return len(self.values)

    def __contains__(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return f"one of {', '.join(map(json.dumps, self.values))}"


@dataclass(frozen=True)
class LogUniform:
    """A positive number from ``low`` to ``high``, every factor as likely as another.

    Examples
    --------
    >>> print(LogUniform(0.001, 0.1))
    0.001 to 0.1, logarithmic
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"LogUniform takes 0 < low < high, not {self.low} and {self.high}.")

    @property
    def count(self) -> None:
        """Number of values: there is no end of them."""
        return

    def __contains__(self, value: Any) -> bool:
        return _is_number(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}, logarithmic"

    def place(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        return math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class Whole:
    """A whole number from ``low`` to ``high``, both included; with ``log``, every factor as likely as another.

    Examples
    --------
    >>> print(Whole(8, 128, log=True))
    8 to 128, whole, logarithmic
    """

    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        if not (type(self.low) is type(self.high) is int and self.low < self.high):
            raise ValueError(f"Whole takes whole numbers low < high, not {self.low!r} and {self.high!r}.")
        if self.log and self.low < 1:
            raise ValueError(f"Whole takes a positive low with log, not {self.low}.")

    @property
    def count(self) -> int:
        """Number of values."""
        return self.high - self.low + 1

    def __contains__(self, value: Any) -> bool:
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}, whole{', logarithmic' if self.log else ''}"

    def place(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


#: What may be searched.
Range = Choice | LogUniform | Whole

#: What several methods state, so that none is searched more widely than another.
LEARNING_RATES = LogUniform(0.003, 0.3)


def edge(span: Range, value: Any) -> Literal["lower", "upper"] | None:
    """Tell which end of a range of numbers a value lies at, if it does: what is best may then lie beyond.

    Examples
    --------
    >>> edge(LogUniform(0.001, 1.0), 0.99), edge(Whole(1, 100), 50), edge(Choice((1, 2)), 2)
    ('upper', None, None)
    """
    if isinstance(span, Choice) or value not in span:
        return None
    place = span.place(value)
    return "lower" if place <= _EDGE else "upper" if place >= 1 - _EDGE else None


def check_ranges(method: str, ranges: Mapping[str, Range], config_class: type[Any]) -> None:
    """Refuse ranges of what a method's configuration does not have, and what is no range.

    Examples
    --------
    >>> from cldnet.methods.owm import OWMConfig
    >>> check_ranges("owm", {"rate": LogUniform(0.1, 1)}, OWMConfig)
    Traceback (most recent call last):
    ...
    ValueError: Method 'owm' has a range of 'rate', which its configuration lacks; it has lr, momentum, clip, feed, alpha.
    """
    fields = config_class.__dataclass_fields__
    for name, span in ranges.items():
        if name not in fields:
            raise ValueError(
                f"Method {method!r} has a range of {name!r}, which its configuration lacks; it has {', '.join(fields)}."
            )
        if not isinstance(span, Range):
            raise ValueError(
                f"The range of {name!r} in method {method!r} is {span!r}; expected Choice, LogUniform or Whole."
            )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
