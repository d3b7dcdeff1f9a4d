"""Results as a bench would write them, made up: the report's tests need many, and need them fast."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

METHODS = ("finetune", "ewc", "owm", "er", "pnn", "cldnet", "exact", "joint")
#: Accuracy after the first task and its loss a task, bytes.
CHARACTERS = {
    "finetune": (0.97, 0.19, 120_000),
    "ewc": (0.97, 0.11, 360_000),
    "owm": (0.97, 0.04, 900_000),
    "er": (0.97, 0.05, 1_900_000),
    "pnn": (0.98, 0.0, 2_400_000),
    "cldnet": (0.98, 0.012, 6_600_000),
    "exact": (0.985, 0.008, 5_100_000),
    "joint": (0.99, 0.003, 52_000_000),
}


def made_up(stream: str, method: str, seed: int, tasks: int = 5, label: str = "") -> dict[str, Any]:
    """Make up one result of schema 2, with everything that a result may have."""
    draw = Random(f"{stream} {method} {seed} {label}")
    start, loss, size = CHARACTERS.get(method, (0.9, 0.06, 300_000))
    needs_task = method == "pnn"
    matrix = [
        [max(0.0, min(1.0, start - loss * (i - j) * (2 - j / tasks) + draw.gauss(0, 0.012))) for j in range(i + 1)]
        for i in range(tasks)
    ]
    order = draw.sample(range(2 * tasks), 2 * tasks)
    forgetting = sum(max(matrix[i][j] for i in range(j, tasks)) - matrix[-1][j] for j in range(tasks - 1)) / max(
        tasks - 1, 1
    )
    accuracy = sum(matrix[-1]) / tasks
    train = [size / 4e5 + draw.random() for _ in range(tasks)]
    evaluate = [0.05 + 0.1 * task for task in range(tasks)]
    scores = {
        "average_accuracy": accuracy,
        "average_incremental_accuracy": min(1.0, accuracy + 0.01),
        "forgetting": forgetting,
    }
    return {
        "schema": 2,
        "method": method,
        "label": label,
        "backbone": "mlp",
        "stream": {
            "name": stream,
            "hash": f"9f2c{seed:04}",
            "data": "cb134994",
            "class_order": order,
            "tasks": [order[2 * task : 2 * task + 2] for task in range(tasks)],
            "rows": [[270, 91]] * tasks,
            "online": None,
        },
        "seed": seed,
        "config": {"epochs": 10, "batch_size": 16, "augment": None, "method": {"lr": 0.25, "layers": [64, 32]}},
        "scores": {
            **({name: None for name in scores} if needs_task else scores),
            "task_il_accuracy": min(1.0, accuracy + 0.01),
        },
        "matrix": None if needs_task else matrix,
        "task_il_matrix": matrix,
        "losses": [[math.exp(-epoch) + 0.01 * draw.random() for epoch in range(10)] for _ in range(tasks)],
        "bytes": {"weights": size // 2, "exemplars" if method in {"er", "joint"} else "projectors": size // 2},
        "bytes_after_task": [size] * tasks,
        "growth": {"declared": [0] * tasks, "measured": [0] * tasks},
        "rehearsal_free": method not in {"er", "joint"},
        "constant_size": method not in {"pnn"},
        "exemplars": 0,
        "parameters": 34_000,
        "capacity_paper": 1.01,
        "seconds": {"train": train, "evaluate": evaluate, "total": sum(train) + sum(evaluate) + 0.3},
        "peak_rss": 502_542_336 + seed,
        "threads": 1,
        "versions": {"cldnet": "0.1.0", "torch": "2.13.0"},
        "machine": "Linux x86_64",
        "key": "0123abcd",
        "code": "feedbeef",
        "cell": {"stream": stream, "label": label, "spec": {}, "record": {}, "method_version": 1},
        "ranks": _ranks(tasks, draw) if method in {"owm", "cldnet"} else None,
        "features": _features(order, tasks, loss, draw) if method != "pnn" else None,
        "diagnostics": {
            "leaky": {
                "task_known": min(1.0, accuracy + 0.03),
                "own_test_statistics": min(1.0, accuracy + 0.02),
                "best_epoch": None if method == "exact" else min(1.0, accuracy + 0.01),
                "note": "made up",
            }
        },
    }


def _ranks(tasks: int, draw: Random) -> dict[str, Any]:
    layers = {"0": 785, "1": 401, "2": 401}
    fade = {name: 0.05 + 0.2 * draw.random() for name in layers}
    return {
        "threshold": 0.5,
        "tasks": [
            {
                name: {"width": d, "rank": int(d * math.exp(-fade[name] * t)), "trace": 0.9 * math.exp(-fade[name] * t)}
                for name, d in layers.items()
            }
            for t in range(1, tasks + 1)
        ],
    }


def _features(order: Sequence[int], tasks: int, loss: float, draw: Random) -> dict[str, Any]:
    found = []
    for task in range(1, tasks + 1):
        rows = [row for row in range(2 * task) for _ in range(12)]
        noise = 2 + 90 * loss
        points = [
            [round(30 * math.cos(2.4 * row) * (1 + row / 8) + draw.gauss(0, noise), 3),
             round(30 * math.sin(2.4 * row) * (1 + row / 8) + draw.gauss(0, noise), 3)]
            for row in rows
        ]  # fmt: skip
        found.append({"points": points, "rows": rows})
    return {"classes": [str(label) for label in order], "what": "penultimate layer", "tasks": found, "perplexity": 20.0}


def write_results(
    folder: Path,
    *,
    streams: Sequence[str] = ("split-digits",),
    methods: Sequence[str] = METHODS,
    seeds: int = 3,
    tasks: int = 5,
    plan: bool = False,
    missing: Sequence[tuple[str, str, int]] = (),
    change: Callable[[dict[str, Any]], dict[str, Any]] = lambda result: result,
) -> Path:
    """Write a folder of results, with a plan of them if it is asked for; `missing` ones are only planned."""
    folder.mkdir(parents=True, exist_ok=True)
    cells = []
    for stream in streams:
        for method in methods:
            for seed in range(seeds):
                file = f"{stream}_{method}_seed{seed}_00.json"
                cells.append({"stream": stream, "method": method, "label": "", "seed": seed, "file": file})
                if (stream, method, seed) not in missing:
                    (folder / file).write_text(json.dumps(change(made_up(stream, method, seed, tasks))))
    if plan:
        content = {"schema": 1, "title": "A plan of mine", "name": "plan", "cells": cells}
        (folder / "plan.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(name="write_results", scope="session")
def _write_results() -> Callable[..., Path]:
    return write_results


@pytest.fixture(name="made_up", scope="session")
def _made_up() -> Callable[..., dict[str, Any]]:
    return made_up
