"""Results come from files that anybody may have written: figures out of them are checked before they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cldnet.bench.summary import Result, Summary

__all__ = ["legible", "number", "numbers", "scores_of"]


@contextmanager
def legible(result: Result, part: str) -> Iterator[None]:
    """Turn whatever goes wrong with a part of a result into a sentence that names its file."""
    try:
        yield
    except (TypeError, KeyError, ValueError, IndexError, AttributeError) as error:
        file = result.get("file", "a result")
        raise ValueError(
            f"{file} has {part} that cannot be read ({error}): delete it, and run its command again."
        ) from error


def number(value: Any) -> float:
    """Return a finite number, or raise.

    Examples
    --------
    >>> number(3)
    3.0
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} in the place of a finite number")
    return float(value)


def numbers(result: Result, values: Any) -> list[float]:
    """Return a list of finite numbers out of a result."""
    with legible(result, "figures"):
        return [number(value) for value in values]


def scores_of(summary: Summary, score: str) -> list[float]:
    """Return one of the scores of every run."""
    return [number(run["scores"][score]) for run in summary.results]
