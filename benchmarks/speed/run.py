"""The parts of the benchmark, in their order, and how they are run one after the other."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.speed.result import Found, Result, draft, write

#: Modules of this package, each with a function `measure`, and what they tell about.
PARTS = {
    "steps": "A training step beside plain gradient descent",
    "before": "Beside the code before",
    "parts": "Parts of a step beside the machine’s limit",
    "exact": "The exact solver",
    "peers": "Beside other libraries",
    "growth": "Growth",
    "memory": "Memory",
    "startup": "Start-up",
}
#: Those that read data sets, and are told where these lie.
_WITH_DATA = {"before", "exact", "peers"}
THREADS = (1, 2)
Measure = Callable[[], Iterator[Found]]


class Watcher(Protocol):
    """Who is told how a run goes."""

    def begins(self, part: str, number: int, of: int) -> None:
        """A part begins."""

    def limits(self, limits: Mapping[str, Any]) -> None:
        """The machine's limits are known."""

    def found(self, found: Found) -> None:
        """Something was found."""

    def kept(self, part: str) -> None:
        """A part was done before the run was stopped."""


def load(part: str, data: Path | None, quick: bool) -> Measure:
    """Import a part; an ImportError is raised now, and not after an hour."""
    measure = importlib.import_module(f"benchmarks.speed.{part}").measure
    return partial(measure, data, quick) if part in _WITH_DATA else partial(measure, quick)


def machine_limits(quick: bool) -> dict[str, Any]:
    """What the machine can do, by the number of threads."""
    from benchmarks.speed.limits import machine_rates  # brings torch, which a page does not need

    from cldnet.device import threads

    limits = {}
    for count in THREADS:
        with threads(count):
            limits[str(count)] = machine_rates(3 if quick else 9)
    return limits


def carry_out(
    result: Result, limits: Callable[[], dict[str, Any]], parts: Mapping[str, Measure], out: Path, watcher: Watcher
) -> None:
    """Do what is not done yet, the limits first, and write the file after everything that is found."""
    path, total = draft(out), len(parts) + 1
    watcher.begins("limits", 1, total)
    if "limits" not in result.seconds:
        started = time.perf_counter()
        result.limits = limits()
        result.seconds["limits"] = time.perf_counter() - started
        write(result, path)
    watcher.limits(result.limits)
    for number, (part, measure) in enumerate(parts.items(), start=2):
        if part in result.seconds:
            watcher.kept(part)
            continue
        watcher.begins(part, number, total)
        result.begin(part)
        started = time.perf_counter()
        for found in measure():
            result.add(part, found)
            write(result, path)
            watcher.found(found)
        result.seconds[part] = time.perf_counter() - started
        write(result, path)
    write(result, out)
    path.unlink(missing_ok=True)
