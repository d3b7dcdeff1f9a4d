"""One run: a method learns a stream task by task and is evaluated after each; one result comes out."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cldnet.bench.evaluate import Evaluation
from cldnet.data.augment import Augment
from cldnet.data.normalise import FIRST_TASK, constants
from cldnet.data.stream import Stream
from cldnet.device import threads
from cldnet.fit import Progress, fit_task
from cldnet.footprint import footprint, paper_capacity
from cldnet.math.metrics import average_accuracy, scores
from cldnet.methods import backbone_name, build_learner
from cldnet.methods.config import config_from_json, config_to_json
from cldnet.methods.learner import Setting
from cldnet.nets.scale import AsTheyAre
from cldnet.store import write_atomically
from cldnet.version import __version__

__all__ = ["RESULT_SCHEMA", "RunSpec", "run", "write_result"]

#: Version of the result's layout.
RESULT_SCHEMA = 1


@dataclass(frozen=True)
class RunSpec:
    """What to run: a method with its options on a stream, with a seed for weights and shuffling.

    Attributes
    ----------
    method : str
        One of `cldnet.methods.METHODS`.
    seed : int
    epochs, batch_size : int
    options : dict
        Fields of the method's configuration, as JSON has them.
    backbone : str
        A name out of `cldnet.nets.BACKBONES`, or ``"auto"``.
    backbone_options : dict
    threads : int or None
    augment : str
        How training images are varied, as ``"crop=4,flip"``; see `cldnet.data.augment.Augment`.
    normalise : str
        ``"first-task"``, or constants; see `cldnet.data.normalise`.
    """

    method: str
    seed: int = 0
    epochs: int = 10
    batch_size: int = 16
    options: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "auto"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    augment: str = ""
    normalise: str = FIRST_TASK

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} should be at least 1.")


def run(spec: RunSpec, stream: Stream, on_progress: Callable[[float], None] | None = None) -> dict[str, Any]:
    """Run a specification and return its result, in types that JSON has.

    Parameters
    ----------
    spec : RunSpec
    stream : Stream
    on_progress : callable, optional
        Told the share of the run that is done, from 0 to 1.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> result = run(RunSpec("exact", backbone_options={"features": 100}), split_digits(0)[:2])
    >>> result["scores"]["average_accuracy"] > 0.9, len(result["matrix"])
    (True, 2)
    """
    with threads(spec.threads):
        return _run(spec, stream, on_progress or (lambda share: None))


def _run(spec: RunSpec, stream: Stream, on_progress: Callable[[float], None]) -> dict[str, Any]:
    begun = time.perf_counter()
    augment = Augment.from_text(spec.augment) if spec.augment else None
    scaling = constants(spec.normalise, stream.input_shape, stream.train_part.x.dtype == torch.uint8)
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=spec.seed, scaling=scaling)
    options = config_from_json(dict(spec.options))
    learner = build_learner(spec.method, setting, options, spec.backbone, spec.backbone_options)
    if scaling is not None and isinstance(learner.scale, AsTheyAre):
        raise ValueError(f"{spec.method} normalises in its own feature map: leave normalise={spec.normalise!r} out.")
    epochs, batch_size = (spec.epochs, spec.batch_size) if stream.online is None else (1, stream.online)
    matrix: list[list[float]] = []
    task_il_matrix: list[list[float]] = []
    seconds: dict[str, list[float]] = {"train": [], "evaluate": []}
    sizes, losses, first = [], [], (0, 0)
    evaluation = Evaluation(stream)
    for number, task in enumerate(stream):

        def on_step(progress: Progress, number: int = number) -> None:
            on_progress((number + progress.step / progress.steps) / len(stream))

        report = fit_task(learner, task.train, epochs=epochs, batch_size=batch_size, on_step=on_step, augment=augment)
        clock = time.perf_counter()
        class_il, task_il = evaluation.accuracies(learner, number + 1)
        seconds["train"].append(report.seconds)
        seconds["evaluate"].append(time.perf_counter() - clock)
        matrix.append(class_il)
        task_il_matrix.append(task_il)
        losses.append(report.losses)
        sizes.append(footprint(learner).total)
        if number == 0:
            first = learner.network_size, learner.seen
        on_progress((number + 1) / len(stream))
    kept = footprint(learner)
    needs_task = learner.traits.needs_task_id
    return {
        "schema": RESULT_SCHEMA,
        "method": spec.method,
        "backbone": backbone_name(spec.method, spec.backbone, stream.input_shape),
        "stream": {
            "name": stream.name,
            "hash": stream.hash,
            "data": stream.data_digest,
            "class_order": list(stream.class_order),
            "tasks": [list(task) for task in stream.tasks],
            "rows": [[len(plan.train), len(plan.test)] for plan in stream.plans],
            "online": stream.online,
        },
        "seed": spec.seed,
        "config": {
            "epochs": 1 if learner.traits.one_pass else epochs,
            "batch_size": max(batch_size, learner.min_batch),
            "augment": None if augment is None else str(augment),
            "normalise": "its own" if isinstance(learner.scale, AsTheyAre) else spec.normalise,
            "backbone_options": dict(spec.backbone_options),
            "method": config_to_json(learner.config),
        },
        "scores": _scores(None if needs_task else matrix, task_il_matrix),
        "matrix": None if needs_task else matrix,
        "task_il_matrix": task_il_matrix,
        "losses": losses,
        "bytes": kept.bytes,
        "bytes_after_task": sizes,
        "rehearsal_free": learner.traits.rehearsal_free,
        "constant_size": learner.traits.constant_size,
        "exemplars": kept.bytes.get("exemplars", 0),
        "parameters": kept.parameters,
        "capacity_paper": paper_capacity(learner, *first),
        "seconds": {**seconds, "total": time.perf_counter() - begun},
        "peak_rss": _peak_rss(),
        "threads": torch.get_num_threads(),
        "versions": {
            "cldnet": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": f"{platform.system()} {platform.machine()}",
    }


def _peak_rss() -> int | None:
    """Most memory that the process ever held, in bytes; unknown on Windows."""
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415  (Windows has no such module)

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _scores(matrix: list[list[float]] | None, task_il_matrix: list[list[float]]) -> dict[str, float | None]:
    named = None if matrix is None else scores(matrix)
    return {
        "average_accuracy": None if named is None else named.average_accuracy,
        "average_incremental_accuracy": None if named is None else named.average_incremental_accuracy,
        "forgetting": None if named is None else named.forgetting_chaudhry,
        "task_il_accuracy": average_accuracy(task_il_matrix),
    }


def write_result(result: Mapping[str, Any], folder: Path) -> Path:
    """Write a result to a file named after stream, method, seed and a digest of the rest of what was run."""
    what = json.dumps([result["backbone"], result["stream"]["hash"], result["config"]], sort_keys=True)
    digest = hashlib.sha256(what.encode()).hexdigest()[:8]
    name, method = (re.sub(r"[^\w.,=+-]", "-", text) for text in (result["stream"]["name"], result["method"]))
    folder.mkdir(parents=True, exist_ok=True)
    name = name.encode()[:100].decode(errors="ignore")  # file systems count bytes
    path = folder / f"{name}_{method}_seed{result['seed']}_{digest}.json"
    write_atomically(path, json.dumps(result, indent=1).encode())
    return path
