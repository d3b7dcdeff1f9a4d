"""CLDNet beside other libraries on the same data, steps and threads, each in a process and an environment of its own.

Workers import this package from environments that do not have ours, so everything else is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.speed.record import Finding, NotRun

__all__ = ["measure"]


def measure(data: Path | None, quick: bool) -> Iterator[Finding | NotRun]:
    """Compare with all peers, on one thread and on two; with MNIST out of ``data``, or else with scikit-learn's digits."""
    from benchmarks.speed.peers.compare import measure as compare

    yield from compare(data, quick)
