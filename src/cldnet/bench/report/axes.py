"""Scales, ticks and frames."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cldnet.bench.report.scene import Label, Line, Shape

__all__ = ["Axis", "Scale", "frame", "linear_axis", "log_axis", "task_axis"]


@dataclass(frozen=True)
class Scale:
    """From values to pixels, in equal steps or in equal ratios."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(value) if self.log else value
        return self.start + (self.end - self.start) * ((at - low) / (high - low) if high > low else 0.5)


@dataclass(frozen=True)
class Axis:
    """A scale, its ticks with what is written at each, and its title."""

    scale: Scale
    ticks: tuple[tuple[float, str], ...]
    title: str = ""


def linear_axis(low: float, high: float, start: float, end: float, title: str, say: Callable[[float], str]) -> Axis:
    """Make an axis from `low` to `high` with three to six round ticks.

    Examples
    --------
    >>> [text for _, text in linear_axis(0, 1, 0, 100, "", "{:.1f}".format).ticks]
    ['0.0', '0.2', '0.4', '0.6', '0.8', '1.0']
    """
    span = high - low or 1.0
    rough = 10 ** math.floor(math.log10(span))
    step = next(step for factor in (0.1, 0.2, 0.5, 1, 2) if span / (step := factor * rough) <= 6.001)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple((k * step, say(k * step)) for k in range(first, last + 1))
    return Axis(Scale(low, high, start, end), ticks, title)


def log_axis(values: Sequence[float], start: float, end: float, title: str, say: Callable[[float], str]) -> Axis:
    """Make an axis of equal ratios around positive values, with ticks at powers of ten or, if these are few, between them.

    Examples
    --------
    >>> [text for _, text in log_axis([900, 2e6], 0, 100, "", "{:.0f}".format).ticks]
    ['1000', '10000', '100000', '1000000']
    """
    low, high = min(values), max(values)
    room = max((high / low) ** 0.08, 3.0 if high < 3 * low else 1.4)
    low, high = low / room, high * room
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        inside = [factor * 10.0**e for e in exponents for factor in factors if low <= factor * 10.0**e <= high]
        if len(inside) >= 3:
            break
    kept = inside[:: math.ceil(len(inside) / 6)] if inside else []
    return Axis(Scale(low, high, start, end, log=True), tuple((tick, say(tick)) for tick in kept), title)


def task_axis(tasks: int, start: float, end: float) -> Axis:
    """Make an axis over tasks 1 to `tasks`."""
    shown = range(1, tasks + 1, math.ceil(tasks / 10))
    return Axis(Scale(1, tasks, start, end), tuple((task, str(task)) for task in shown), "after task")


def frame(x: Axis, y: Axis, width: float, height: float) -> list[Shape]:
    """Draw both axes: ticks and titles, with lines across at the ticks of `y`."""
    bottom = max(y.scale.start, y.scale.end)
    left, right = min(x.scale.start, x.scale.end) - 12, max(x.scale.start, x.scale.end) + 10
    shapes: list[Shape] = []
    for value, words in y.ticks:
        at = y.scale(value)
        shapes += [Line(((left, at), (right, at)), "grid"), Label((left - 6, at + 4), words, anchor="end")]
    shapes += [Label((x.scale(value), bottom + 18), words, anchor="middle") for value, words in x.ticks]
    shapes += [Line(((left, bottom), (right, bottom)), "base"), Label((right, height - 4), x.title, anchor="end")]
    return [*shapes, Label((0, 10), y.title)] if y.title else shapes
