"""Results of the speed benchmark as a run would leave them, made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.speed.record import Curve, Finding, NotRun, Spread
from benchmarks.speed.result import Result

ABOUT: dict[str, Any] = {
    "command": "python -m benchmarks.speed",
    "version": "0.1",
    "commit": "0123456789abcdef",
    "dirty": False,
    "source": "5ca1ab1e",
    "machine": "Linux x86_64, Some Processor, 2 cores",
    "versions": {"cldnet": "0.1", "torch": "2.8"},
    "when": "2025-01-02T03:04:05+00:00",
    "settings": {"parts": ["steps", "growth"], "quick": False, "data": None},
}


def finding(name: str, median: float, **options: Any) -> Finding:
    """A ratio that spreads by a hundredth to both sides."""
    ratio, cpu = (Spread(value, 0.99 * value, 1.01 * value) for value in (median, 1.1 * median))
    options = {"title": f"the title of {name}", "threads": 1, "higher_is_better": False, **options}
    return Finding(name=name, ratio=ratio, cpu=cpu, **options)


def curve(name: str, exponent: float, **options: Any) -> Curve:
    """Something that grows with this exponent."""
    points = [(x, 3e-4 * x**exponent) for x in (10.0, 100.0, 1000.0)]
    return Curve(
        **{"name": name, "title": f"the title of {name}", "across": "classes", "up": "seconds"} | options, points=points
    )


def result(*found: Finding | Curve | NotRun, **about: Any) -> Result:
    """A complete run; a curve belongs to growth, anything else to steps."""
    made = Result(ABOUT | about)
    made.limits = {
        count: {name: {"median": rate, "low": 0.9 * rate, "high": 1.1 * rate} for name, rate in rates.items()}
        for count, rates in {"1": {"sgemm": 1e11, "memory": 1e10}, "2": {"sgemm": 1.8e11, "memory": 1.5e10}}.items()
    }
    for one in found:
        made.add("growth" if isinstance(one, Curve) else "steps", one)
    made.seconds = {"limits": 1.0, "steps": 60.0, "growth": 20.5}
    return made


@pytest.fixture(scope="session")
def a_finding() -> Callable[..., Finding]:
    return finding


@pytest.fixture(scope="session")
def a_curve() -> Callable[..., Curve]:
    return curve


@pytest.fixture(scope="session")
def a_result() -> Callable[..., Result]:
    return result
