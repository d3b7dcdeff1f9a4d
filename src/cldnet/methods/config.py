"""Configurations of methods: as JSON or TOML, and the ranges in which `cldnet tune` searches.

A method declares its ranges in its own file, ``ranges: ClassVar = {"lr": LogUniform(0.003, 0.3)}``. Epochs and batch size are
not among them: they are the budget, which is the same for all methods.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple

from cldnet.text import nearest_names

#: Share of a range, at either end, that counts as its edge: random numbers hardly ever hit the very end.
_EDGE = 0.05


@dataclass(frozen=True)
class Choice:
    """One of a few JSON values: numbers, strings, or parts such as ``{"kind": "ConstantAlpha", "value": 1.0}``.

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
            raise ValueError(f"Choice takes JSON values, not {self.values!r} ({error}).") from error
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
    """A positive number from ``low`` to ``high``, uniform on a logarithmic scale.

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
        """Number of values: infinite."""
        return

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}, logarithmic"


@dataclass(frozen=True)
class Whole:
    """An integer from ``low`` to ``high``, both included; with ``log``, uniform on a logarithmic scale.

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
            raise ValueError(f"Whole takes integers low < high, not {self.low!r} and {self.high!r}.")
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


#: What can be searched.
Range = Choice | LogUniform | Whole

#: The same for several methods, so that none is searched more widely than another.
LEARNING_RATES = LogUniform(0.003, 0.3)


def edge(span: Range, value: Any) -> Literal["lower", "upper"] | None:
    """Return the end of a range of numbers at which a value lies, if any: the optimum may then lie beyond it.

    Examples
    --------
    >>> edge(LogUniform(0.001, 1.0), 0.99), edge(Whole(1, 100), 50), edge(Choice((1, 2)), 2)
    ('upper', None, None)
    """
    if isinstance(span, Choice) or value not in span:
        return None
    place = (value - span.low) / (span.high - span.low)
    if isinstance(span, LogUniform) or span.log:
        place = math.log(value / span.low) / math.log(span.high / span.low)
    return "lower" if place <= _EDGE else "upper" if place >= 1 - _EDGE else None


def check_ranges(method: str, ranges: Mapping[str, Range], config_class: type[Any]) -> None:
    """Raise an error if a range is of the wrong type, or of a field that the configuration does not have."""
    fields = [field.name for field in dataclasses.fields(config_class)]
    for name, span in ranges.items():
        if name not in fields:
            raise ValueError(
                f"Method {method!r} has a range of {name!r}, which its configuration lacks; it has {', '.join(fields)}."
            )
        if not isinstance(span, Range):
            raise ValueError(
                f"The range of {name!r} in method {method!r} is {span!r}; expected Choice, LogUniform or Whole."
            )


class Limit(NamedTuple):
    """Which values a field of a configuration may have, in words that follow "should"."""

    holds: Callable[[Any], bool]
    words: str


POSITIVE = Limit(lambda value: value > 0, "be a positive number")
NOT_NEGATIVE = Limit(lambda value: value >= 0, "not be negative")
FINITE_POSITIVE = Limit(lambda value: 0 < value < math.inf, "be a positive, finite number")
FINITE_NOT_NEGATIVE = Limit(lambda value: 0 <= value < math.inf, "be a finite number, 0 or more")
AT_LEAST_ONE = Limit(lambda value: value >= 1, "be at least 1")
SHARE = Limit(lambda value: 0 <= value <= 1, "lie in [0, 1]")


@dataclass(frozen=True)
class Config:
    """Base of configurations: checks parts, and the limits that a class declares for its own fields."""

    limits: ClassVar[Mapping[str, Limit]] = {}

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, module = getattr(self, field.name), PARTS.get(type(field.default).__name__)
            plain = isinstance(value, int | float | str | list | tuple | Mapping | type | None)
            if module is not None and (plain or PARTS.get(type(value).__name__, module) != module):
                raise ValueError(f"{field.name}={value!r} should be a part such as {field.default}.")
        for declaring in type(self).__mro__:
            for name, limit in vars(declaring).get("limits", {}).items():
                if not limit.holds(getattr(self, name)):
                    raise ValueError(f"{name}={getattr(self, name)!r} should {limit.words}.")


_PARTS_OF_MODULE = {
    "alpha": ("ConstantAlpha", "DecayingAlpha", "AdaptiveAlpha", "PerTask", "LayerAlphas", "KindAlphas"),
    "projection": ("BatchMean", "EverySample", "EverySecondPatch", "EveryVector"),
    "variants": (
        *("NormalisedHSIC", "TraceHSIC", "EveryStep", "TaskEnd", "Cosine", "InnerProduct", "FixedRate", "PerAlpha"),
        *("BottleneckFirst", "EmbeddingAlone", "InTurn", "Together", "Last", "FreeLast", "FixedLast"),
        *("SeenClasses", "TaskClasses", "AllClasses", "Given", "Principal"),
    ),
}
#: Parts of configurations by the name of their class, as files name them, and the modules of these classes.
PARTS: Mapping[str, str] = {
    part: f"cldnet.methods.parts.{module}" for module, parts in _PARTS_OF_MODULE.items() for part in parts
}


def config_to_json(value: Any) -> Any:
    """Convert a configuration, or a part of one, to JSON types."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: config_to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        name = type(value).__name__
        return {"kind": name, **fields} if name in PARTS else fields
    return [config_to_json(item) for item in value] if isinstance(value, tuple | list) else value


def config_from_json(value: Any) -> Any:
    """Convert JSON to the options of a configuration: every table with a ``kind`` becomes the part of that name."""
    if isinstance(value, list | tuple):
        return [config_from_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    options = {name: config_from_json(item) for name, item in value.items() if name != "kind"}
    if "kind" not in value:
        return options
    kind = value["kind"]
    if kind not in PARTS:
        raise ValueError(f"There is no part {kind!r}. {nearest_names(str(kind), PARTS)}")
    part = getattr(import_module(PARTS[kind]), kind)
    try:
        return part(**options)
    except TypeError as error:
        takes = ", ".join(field.name for field in dataclasses.fields(part)) or "nothing"
        raise ValueError(f"{kind} takes {takes}, not {sorted(options)}.") from error
