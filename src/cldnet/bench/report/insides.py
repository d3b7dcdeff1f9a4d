"""Plots of what happens inside of a network: the rank of its projectors, and its features."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from cldnet.bench.report.figures import curves, look_of
from cldnet.bench.report.reading import legible, number, share
from cldnet.bench.report.scene import Marks, Panel, Plot, Scene, Shape, Table
from cldnet.bench.report.style import COLOURS
from cldnet.bench.summary import Result, Summary
from cldnet.bench.wording import clip, percent

__all__ = ["features", "ranks"]

PLANE = 190  # pixels of a map of features
FAR = 1e9  # no map of features reaches farther; squares of what does are no numbers
ROUNDING = 1e-3  # eigenvalues of a projector are in [0, 1], but for what is lost in single precision
Curves = dict[str, list[float]]  # a value a task, by layer


def ranks(summaries: Sequence[Summary]) -> Plot | None:
    """Plot the room that the projector of each layer has left, after each task."""
    panels, rows, width = [], [], 0
    for summary in summaries:
        runs = [_ranks(run) for run in summary.results if run.get("ranks")]
        if not runs:
            continue
        for which, title, meaning in (
            (0, "rank / width", "share of directions that are free"),
            (1, "tr P / width", "mean eigenvalue of the projector"),
        ):
            layers = _mean_curves(summary, [run[which] for run in runs])
            looks = {layer: look_of(rank, len(COLOURS)) for rank, layer in enumerate(layers)}
            scene, _ = curves([(layer, curve, []) for layer, curve in layers.items()], looks, title, low=0.0)
            ends = "; ".join(f"{layer} {percent(curve[-1])}" for layer, curve in layers.items())
            panels.append(Panel(scene, f"{summary.name}, {meaning}. After the last task: {ends}.", group=summary.name))
            rows += [(f"{summary.name}, {layer}, {title}", *map(percent, curve)) for layer, curve in layers.items()]
            width = max(width, *(len(curve) for curve in layers.values()))
    if not panels:
        return None
    found = (run for summary in summaries for run in summary.results if run.get("ranks"))
    thresholds = " or ".join(sorted({_threshold(run) for run in found}))
    return Plot(
        "ranks",
        "Room left in the projectors",
        "A line a layer. rank / width: the share of directions that old tasks have not used up (their eigenvalue in the "
        f"layer’s projector is above {thresholds}); tr P / width: the mean eigenvalue. A layer at 0 cannot learn any more.",
        tuple(panels),
        Table(
            ("Method, layer", *(f"after {task}" for task in range(1, width + 1))),
            tuple((*row, *[""] * (width + 1 - len(row))) for row in rows),
        ),
        wide=True,
        columns=2,
    )


def features(summaries: Sequence[Summary]) -> Plot | None:
    """Plot the features of test images after each task, as t-SNE puts them into the plane: one run a method."""
    panels, rows, width = [], [], 0
    classes: dict[str, None] = {}
    drawn = [
        (s, run) for s in summaries if (run := next((r for r in s.results if r.get("features")), None)) is not None
    ]
    maps = [_maps(run) for _, run in drawn]
    for run_maps in maps:
        classes |= dict.fromkeys(name for _, names in run_maps for name in names)
    rank_of = {name: rank for rank, name in enumerate(classes)}
    for (summary, run), run_maps in zip(drawn, maps, strict=True):
        shares = [own_company(points, names) for points, names in run_maps]
        for task, ((points, names), own) in enumerate(zip(run_maps, shares, strict=True), start=1):
            said = f"{percent(own)} of the images lie next to one of their own class"
            label = f"{summary.name}, seed {run['seed']}: features after task {task}; {said}."
            title = f"after task {task}: {100 * own:.0f}%"
            panels.append(Panel(_plane(points, names, rank_of), label, title, f"{summary.name}, seed {run['seed']}"))
        rows.append((summary.name, *map(percent, shares)))
        width = max(width, len(shares))
    if not panels:
        return None
    return Plot(
        "features",
        "Features after each task",
        "Test images of the classes seen so far, as t-SNE lays out their features; only who is near whom has a meaning. "
        "Beside the task: how many of them have an image of their own class as the nearest one.",
        tuple(panels),
        Table(
            ("Method", *(f"after {task}" for task in range(1, width + 1))),
            tuple((*row, *[""] * (width + 1 - len(row))) for row in rows),
        ),
        tuple((look_of(rank, len(COLOURS)), clip(name)) for name, rank in rank_of.items()),
        named=len(classes) > 30,  # a key of a hundred classes helps nobody; a pointer over a mark names its class
        wide=True,
        columns=max(2, min(width, 5)),
    )


def own_company(points: Any, names: Sequence[str]) -> float:
    """Share of points whose nearest neighbour bears the same name.

    Examples
    --------
    >>> own_company([[0, 0], [0, 1], [9, 9], [9, 8]], ["a", "a", "b", "c"])
    0.5
    """
    if len(points) < 2:
        return 1.0
    array = np.asarray(points, dtype=np.float64)
    squares = (array * array).sum(1)
    distances = squares[:, None] + squares[None] - 2 * array @ array.T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argmin(1)
    return fmean(names[i] == names[int(j)] for i, j in enumerate(nearest))


def _plane(points: Sequence[Sequence[float]], names: Sequence[str], rank_of: dict[str, int]) -> Scene:
    xs, ys = zip(*points, strict=True) if points else ((0.0,), (0.0,))
    span = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    middle = ((max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2)
    by_class: dict[str, list[tuple[float, float]]] = {}
    for (x, y), name in zip(points, names, strict=True):
        place = tuple(PLANE / 2 + (PLANE - 16) * (v - m) / span for v, m in zip((x, y), middle, strict=True))
        by_class.setdefault(name, []).append((place[0], place[1]))
    shapes: list[Shape] = [
        Marks(tuple(places), look_of(rank_of[name], len(COLOURS)), name, 3.2) for name, places in by_class.items()
    ]
    return Scene(PLANE, PLANE, tuple(shapes))


def _maps(run: Result) -> list[tuple[list[list[float]], list[str]]]:
    with legible(run, "features"):
        found = run["features"]
        labels = [str(label) for label in found["classes"]]
        maps = []
        for task in found["tasks"]:
            points = [[number(x, -FAR, FAR), number(y, -FAR, FAR)] for x, y in task["points"]]
            names = [labels[row] for row in task["rows"]]
            if len(names) != len(points):
                raise ValueError(f"{len(points)} points with {len(names)} classes")
            maps.append((points, names))
        return maps


def _ranks(run: Result) -> tuple[Curves, Curves]:
    with legible(run, "ranks"):
        free: Curves = {}
        mean: Curves = {}
        for task in run["ranks"]["tasks"]:
            for layer, one in task.items():
                free.setdefault(layer, []).append(share(number(one["rank"]) / number(one["width"])))
                mean.setdefault(layer, []).append(share(one["trace"], rounding=ROUNDING))
        if not free:
            raise ValueError("no layer")
        return free, mean


def _threshold(run: Result) -> str:
    with legible(run, "ranks"):
        return f"{number(run['ranks']['threshold']):g}"


def _mean_curves(summary: Summary, runs: Sequence[Curves]) -> Curves:
    with legible(summary.results[0], "ranks"):
        return {
            layer: [fmean(values) for values in zip(*(run[layer] for run in runs), strict=True)] for layer in runs[0]
        }
