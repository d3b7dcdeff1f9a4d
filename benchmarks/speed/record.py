"""What a part of the benchmark finds: ratios with their targets, and curves of growth. Plain values for a JSON file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.speed.turns import Taken


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Quartiles of some values; of fewer than three, the least and the largest."""
        low, median, high = (
            statistics.quantiles(values, n=4, method="inclusive")
            if len(values) > 2
            else (min(values), statistics.median(values), max(values))
        )
        return cls(median, low, high)


@dataclass(frozen=True)
class Finding:
    """One ratio, measured within each turn, with what came out of it.

    Attributes
    ----------
    name : str
        Its own among all findings: a later run is compared by it.
    title : str
        What is compared, in words.
    threads : int
    ratio, cpu : Spread
        By the clock, and by the time of all cores.
    higher_is_better : bool
    target : float or None
        What has to come out, if anything has.
    details : mapping
        Operations, seconds and whatever else belongs to it.
    """

    name: str
    title: str
    threads: int
    ratio: Spread
    cpu: Spread
    higher_is_better: bool
    target: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; nothing where there is none."""
        if self.target is None:
            return None
        return self.ratio.median >= self.target if self.higher_is_better else self.ratio.median <= self.target

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {**asdict(self), "met": self.met}


@dataclass(frozen=True)
class Curve:
    """How something grows.

    Attributes
    ----------
    name : str
        Its own among all curves.
    title, across, up : str
        What is shown, and what the two axes count.
    points : sequence of (float, float)
        Both above 0.
    expected : float or None
        The exponent that the mathematics says, if there is one.
    details : mapping
        Settings and whatever else belongs to it.
    """

    name: str
    title: str
    across: str
    up: str
    points: Sequence[tuple[float, float]]
    expected: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exponent(self) -> float:
        """Slope of the straight line through the logarithms: 0 is flat, 1 grows in proportion."""
        x, y = ([math.log(value) for value in axis] for axis in zip(*self.points, strict=True))
        return statistics.linear_regression(x, y).slope

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {**asdict(self), "exponent": self.exponent}


@dataclass(frozen=True)
class NotRun:
    """Something that belongs to the benchmark and was not measured.

    Attributes
    ----------
    name : str
        The one that its finding would have.
    title : str
        What would be compared, in words.
    reason : str
        Why it was not: a package that is not installed, data that are not there.
    """

    name: str
    title: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        return asdict(self)


def ratio(
    name: str,
    title: str,
    threads: int,
    above: Taken,
    below: Taken,
    *,
    factor: float = 1.0,
    higher_is_better: bool = False,
    target: float | None = None,
    **details: Any,
) -> Finding:
    """Compare two pieces of work: ``factor`` times the time of one over that of the other, turn by turn."""
    by_clock, by_cores = (
        Spread.of([factor * a / b for a, b in zip(first, second, strict=True)])
        for first, second in ((above.wall, below.wall), (above.cpu, below.cpu))
    )
    seconds = {"above": asdict(above), "below": asdict(below)}
    return Finding(name, title, threads, by_clock, by_cores, higher_is_better, target, {**details, "seconds": seconds})
