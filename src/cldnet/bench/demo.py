"""The demo: Split Digits in three class orders, with the two bounds, two rivals and both CLDNet solvers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cldnet.bench.page import write_page
from cldnet.bench.pictures import draw_png
from cldnet.bench.pool import Cell
from cldnet.bench.preset import preset

__all__ = ["METHODS", "ORDERS", "demo_cells", "in_order", "write_report"]

STREAM = "split-digits"
METHODS = ("finetune", "ewc", "owm", "cldnet", "exact", "joint")
ORDERS = (0, 1, 2)


def demo_cells() -> list[Cell]:
    """List the demo's runs, the long ones first so that no process waits for the last one.

    Examples
    --------
    >>> len(demo_cells())
    18
    """
    longest_first = ("joint", "cldnet", "owm", "ewc", "finetune", "exact")
    return [Cell(STREAM, preset(STREAM, method, seed, threads=1)) for method in longest_first for seed in ORDERS]


def in_order(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort results as they are shown: from the lower bound to the upper one."""
    return sorted(results, key=lambda result: (METHODS.index(result["method"]), result["seed"]))


def write_report(results: list[dict[str, Any]], folder: Path) -> tuple[Path, Path | str]:
    """Write page and picture; without matplotlib, a sentence stands for the picture."""
    page, picture = folder / "index.html", folder / "demo.png"
    write_page(results, page, title="CLDNet demo: ten digits, two at a time")
    try:
        draw_png(results, picture)
    except ImportError as error:
        return page, str(error)
    return page, picture
