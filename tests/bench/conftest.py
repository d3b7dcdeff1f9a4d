"""Results as a run would write them, made up."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest


def a_run(method: str = "cldnet", matrix: Any = ((0.9,), (0.8, 0.7)), **changes: Any) -> dict[str, Any]:
    """Make up one result of a stream of two tasks; a float stands for a matrix with that final accuracy."""
    if isinstance(matrix, float):
        matrix = ((matrix,), (matrix, matrix))
    matrix = None if matrix is None else [list(row) for row in matrix]
    accuracy = None if matrix is None else fmean(matrix[-1])
    seed, stream = changes.get("seed", 0), changes.pop("stream", "split-digits")
    result: dict[str, Any] = {
        "schema": 2,
        "method": method,
        "label": "",
        "backbone": "mlp",
        "stream": {"name": stream, "hash": f"order of {seed}", "data": "digits", "class_order": [0, 1, 2, 3]},
        "seed": seed,
        "config": {"epochs": 10, "batch_size": 16, "method": {"lr": 0.1}},
        "scores": {
            "average_accuracy": accuracy,
            "average_incremental_accuracy": accuracy,
            "forgetting": None if matrix is None else 0.1,
            "task_il_accuracy": 0.99,
        },
        "matrix": matrix,
        "bytes": {"weights": 1000, "projectors": 500},
        "rehearsal_free": True,
        "constant_size": True,
        "capacity_paper": 1.25,
        "seconds": {"total": 3.0},
        "threads": 1,
        "versions": {"cldnet": "0.1", "torch": "2.13"},
        "machine": "Linux x86_64",
        "file": f"{stream}_{method}_{changes.get('label', '')}_seed{seed}.json",
        "cell": {"stream": stream, "method_version": 1},
    }
    return result | changes


@pytest.fixture
def make_run() -> Callable[..., dict[str, Any]]:
    return a_run
