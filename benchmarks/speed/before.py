"""Today's code beside the code before it: the same steps and the same runs of Table 1, by both in turns.

The sources of a commit are unpacked from git. Every turn is a process of its own that imports one of the two.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from benchmarks.speed.apart import ROOT, apart
from benchmarks.speed.record import Finding, NotRun, Spread, ratio
from benchmarks.speed.steps import READINGS, SIZES, images, over, projected
from benchmarks.speed.turns import Taken, in_turns

from cldnet.bench.cell import cell_of_result, run_cell
from cldnet.bench.results import read_result
from cldnet.device import threads

#: The last commit with projectors in float64.
BEFORE = "4b6f00f68df24b53a60c1a1dd6ecccbf3ef8b174"
#: How many times as fast a step has to be.
_FASTER = {"default": 1.6, "together": 1.3, "alone": None}
_STREAMS, _SEEDS, _SHARE, _POINTS = ("split-mnist", "split-fmnist"), range(5), 0.65, 0.2
_TABLE = ROOT / "results" / "table1"


def measure(data: Path | None, quick: bool) -> Iterator[Finding | NotRun]:
    """Steps on one thread and on two, then the cells of `cldnet` in Table 1."""
    try:
        source = unpacked(BEFORE)
    except (OSError, subprocess.CalledProcessError) as error:
        yield NotRun("before", "Steps and runs beside the code before", f"Its sources could not be unpacked: {error}")
        return
    for count in (1, 2):
        yield from _steps(source, count, quick)
    for stream in () if quick else _STREAMS:
        yield from _cells(source, stream, data)


def unpacked(commit: str) -> Path:
    """Folder with the sources of a commit."""
    folder = ROOT / "build" / "speed" / commit[:12]
    if not (folder / "src").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder / "src"


def _steps(source: Path, count: int, quick: bool) -> Iterator[Finding]:
    taken: dict[str, dict[str, Taken]] = {"before": {}, "now": {}}
    for _ in range(1 if quick else 3):
        for side, where in (("before", source), ("now", None)):
            for name, each in apart(turn_of_steps, where, count=count, quick=quick).items():
                total = taken[side].setdefault(name, Taken())
                total.wall.extend(each["wall"])
                total.cpu.extend(each["cpu"])
    for name, before in taken["before"].items():
        reading, size = name.split("/")
        title = f"CLDNet (hbo) step {READINGS[reading].title}, batches of {size}: times as fast as before"
        yield ratio(
            f"before/step/{name}/{count}",
            title,
            count,
            before,
            taken["now"][name],
            higher_is_better=True,
            target=None if quick else _FASTER[reading],
            commit=BEFORE,
        )


def turn_of_steps(count: int, quick: bool) -> dict[str, Any]:
    """Seconds of some turns of every reading, by whichever code is imported."""
    x, y = images(640 if quick else 2560)
    found = {}
    with threads(count):
        for size in SIZES:
            batches = list(zip(x.split(size), y.split(size), strict=True))
            works = {name: over(projected(READINGS[name].config, x, y), batches) for name in _FASTER}
            for name, taken in in_turns(works, 1 if quick else 3, warm=2).items():
                found[f"{name}/{size}"] = {"wall": taken.wall, "cpu": taken.cpu}
    return found


def _cells(source: Path, stream: str, data: Path | None) -> Iterator[Finding | NotRun]:
    """The runs of `cldnet` on a stream, each by both codes, and how far accuracies are from the committed ones."""
    title = f"CLDNet (hbo) on {stream} as in Table 1, five class orders"
    taken = {"before": Taken(), "now": Taken()}
    scores: dict[str, list[float]] = {"before": [], "now": [], "committed": []}
    for seed in _SEEDS:
        (file,) = _TABLE.glob(f"{stream}_cldnet_seed{seed}_*.json")
        for side, where in (("before", source), ("now", None)):
            try:
                found = apart(turn_of_cell, where, file=str(file), data=None if data is None else str(data))
            except RuntimeError as error:
                yield NotRun(f"before/cells/{stream}", title, str(error).splitlines()[-1])
                return
            taken[side].wall.append(found["wall"])
            taken[side].cpu.append(found["cpu"])
            scores[side].append(found["accuracy"])
        scores["committed"].append(found["committed"])
    yield ratio(
        f"before/cells/{stream}",
        f"{title}: seconds over those of the code before",
        1,
        taken["now"],
        taken["before"],
        target=_SHARE,
        accuracies=scores,
        commit=BEFORE,
    )
    means = {side: 100 * fmean(values) for side, values in scores.items()}
    apart_by = abs(means["now"] - means["committed"])
    spread = Spread(apart_by, apart_by, apart_by)
    yield Finding(
        f"before/accuracy/{stream}",
        f"{title}: points between the mean accuracy now and that of the committed results",
        1,
        spread,
        spread,
        higher_is_better=False,
        target=_POINTS,
        details={"accuracy": means, "accuracies": scores},
    )


def turn_of_cell(file: str, data: str | None) -> dict[str, Any]:
    """Repeat a committed result on one thread, by whichever code is imported."""
    committed = read_result(Path(file))
    assert committed is not None
    cell = cell_of_result(committed)
    stream = cell.load(None if data is None else Path(data))
    torch.set_num_threads(1)
    cpu, wall = time.process_time(), time.perf_counter()
    result = run_cell(cell, stream)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    accuracy, before = (one["scores"]["average_accuracy"] for one in (result, committed))
    return {"wall": wall, "cpu": cpu, "accuracy": accuracy, "committed": before}
