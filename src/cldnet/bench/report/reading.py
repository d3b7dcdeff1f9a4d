"""Results come from files that anybody may have written: figures out of them are checked before they are shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cldnet.bench.checked import is_number
from cldnet.bench.summary import Result, Summary
from cldnet.bench.wording import clip

__all__ = ["LARGEST", "check", "class_orders", "legible", "number", "numbers", "scores_of", "share"]

#: Of bytes and of seconds: what is larger cannot be true, nor be drawn.
LARGEST = 1e18


@contextmanager
def legible(result: Result, part: str) -> Iterator[None]:
    """Turn whatever goes wrong with a part of a result into a sentence that names its file."""
    try:
        yield
    except (TypeError, LookupError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        file = result.get("file", "a result")
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{file} has {part} that cannot be read ({why}): delete it, and run its command again."
        ) from error


def check(result: Result) -> None:
    """Make sure that the figures that every report draws can be drawn; reading the folder has checked the scores.

    Raises
    ------
    ValueError
        If it cannot; the message names the file.
    """
    with legible(result, "a matrix"):
        for row in result["matrix"] or ():
            for value in row:
                share(value)
    with legible(result, "bytes"):
        for value in result["bytes"].values():
            number(value, 0, LARGEST)
    with legible(result, "seconds"):
        number(result["seconds"]["total"], 0, LARGEST)


def class_orders(results: Iterable[Result]) -> set[str]:
    """Return the class orders that some runs have, each as text."""
    orders = set()
    for result in results:
        with legible(result, "a stream"):
            orders.add(json.dumps(result["stream"]["class_order"], default=str))
    return orders


def number(value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite number from `low` to `high`, or raise.

    Examples
    --------
    >>> number(3)
    3.0
    """
    if not is_number(value) or not low <= value <= high:
        wanted = "a finite number" if math.isinf(high) else f"a number from {low:g} to {high:g}"
        raise ValueError(f"{clip(repr(value))} in the place of {wanted}")
    return float(value)


def share(value: Any, rounding: float = 1e-9) -> float:
    """Return a number from 0 to 1, or raise if it is farther from that than rounding can take it.

    Examples
    --------
    >>> share(0.5), share(1.0000000000000002)
    (0.5, 1.0)
    >>> share(1.5)
    Traceback (most recent call last):
    ValueError: 1.5 in the place of a number from 0 to 1
    """
    near = min(max(number(value), 0.0), 1.0)
    return near if abs(near - value) <= rounding else number(value, 0, 1)


def numbers(result: Result, values: Any) -> list[float]:
    """Return a list of numbers out of a result, none below zero."""
    with legible(result, "figures"):
        return [number(value, 0, LARGEST) for value in values]


def scores_of(summary: Summary, score: str) -> list[float]:
    """Return one of the scores of every run."""
    return [number(run["scores"][score]) for run in summary.results]
