"""Measure pieces of work beside each other, in turns, so that what a shared machine does to one it does to all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Work = Callable[[], object]


@dataclass(frozen=True)
class Taken:
    """Seconds that a piece of work took, turn by turn: on the clock, and of all cores together."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def in_turns(works: Mapping[str, Work], repeats: int, warm: int = 1) -> dict[str, Taken]:
    """Do every piece of work once a turn, and time it; the first turns warm caches and are not counted."""
    taken = {name: Taken() for name in works}
    for turn in range(warm + repeats):
        for name, work in works.items():
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if turn >= warm:
                taken[name].wall.append(wall)
                taken[name].cpu.append(cpu)
    return taken
