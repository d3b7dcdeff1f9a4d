"""Accuracy against all that a method keeps, for the methods of Tables 1, 2 and 4 (the paper's Figure 1 b), from result files.

python -m benchmarks.growth        writes docs/growth/accuracy.svg and .png, and docs/growth/bytes.svg and .png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from cldnet.bench.formatting import human_bytes
from cldnet.bench.results import read_folder
from cldnet.bench.summary import Summary, summarise

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "growth"
#: Panels: a title, the stream, and the folders of results that it shows.
PANELS: Sequence[tuple[str, str, tuple[str, ...]]] = (
    ("Table 1: MNIST, 5 tasks", "split-mnist", ("table1",)),
    ("Table 1: FashionMNIST, 5 tasks", "split-fmnist", ("table1",)),
    ("Table 1: CIFAR-10, 5 tasks", "split-cifar10", ("table1/cifar10",)),
    ("Table 2: CIFAR-100, 10 tasks, ResNet-18", "split-cifar100", ("table2",)),
    ("Table 4: CIFAR-100, 10 tasks, LeNet", "split-cifar100,order=apd", ("table4",)),
)
GROUPS = {
    "keeps no data, does not grow": ("o", "#1b6ca8"),
    "keeps data": ("s", "#b4562b"),
    "grows": ("^", "#5b8c3a"),
    "grows, and is told the task": ("v", "#8a8a8a"),
}


def group_of(summary: Summary) -> str:
    """What a method keeps, and what it is told."""
    if summary.accuracy is None:
        return "grows, and is told the task"
    if summary.keeps_data:
        return "keeps data"
    return "grows" if summary.grows else "keeps no data, does not grow"


def summaries_of(stream: str, folders: Sequence[str]) -> list[Summary]:
    """The methods of a panel that were run, the best first."""
    found = [summary for folder in folders for summary in summarise(read_folder(ROOT / "results" / folder).results)]
    return sorted((one for one in found if one.stream == stream and one.runs), key=height, reverse=True)


def height(summary: Summary) -> float:
    """Accuracy in per cent, over all classes unless the method is told the task."""
    return 100 * (summary.task_il_accuracy if summary.accuracy is None else summary.accuracy)  # type: ignore[operator]


def draw_panel(axes: Axes, title: str, summaries: Sequence[Summary]) -> None:
    """One stream: numbered marks, and the names beside them."""
    for number, one in enumerate(summaries, start=1):
        mark, colour = GROUPS[group_of(one)]
        place = (one.bytes_kept or 1.0, height(one))
        axes.scatter(*place, marker=mark, color=colour, s=34, zorder=3)
        axes.annotate(str(number), place, xytext=(5, 3), textcoords="offset points", fontsize=7)
    names = "\n".join(f"{number}  {one.name}: {height(one):.1f}" for number, one in enumerate(summaries, start=1))
    axes.text(1.02, 1.0, names, transform=axes.transAxes, va="top", fontsize=6.5, linespacing=1.35)
    axes.set_xscale("log")
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_ylim(0, 100)
    bytes_on(axes.xaxis)
    axes.grid(alpha=0.3)


def bytes_on(axis: Any) -> None:
    """Label an axis in bytes."""
    axis.set_major_formatter(FuncFormatter(lambda size, _: human_bytes(size).replace(".0 ", " ")))
    axis.set_minor_formatter(NullFormatter())
    axis.set_tick_params(labelsize=7)


def draw_accuracy() -> Figure:
    """All panels in one figure."""
    figure = Figure(figsize=(12.5, 11.5), layout="constrained")
    places = figure.subplots(3, 2).flat
    for axes, (title, stream, folders) in zip(places, PANELS, strict=False):
        draw_panel(axes, title, summaries_of(stream, folders))
        axes.set_xlabel("everything kept after the last task", fontsize=8)
        axes.set_ylabel("accuracy (%)", fontsize=8)
    key = figure.axes[-1]
    key.axis("off")
    for name, (mark, colour) in GROUPS.items():
        key.scatter([], [], marker=mark, color=colour, label=name)
    key.legend(
        loc="upper left", fontsize=8, frameon=False, title="A method that is told the task chooses among its classes"
    )
    return figure


def draw_bytes() -> Figure:
    """Bytes after every task of the methods of Table 4."""
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    title, stream, folders = PANELS[-1]
    for one in summaries_of(stream, folders):
        sizes = [fmean(after) for after in zip(*(run["bytes_after_task"] for run in one.results), strict=True)]
        style = "-" if one.grows else "--"
        axes.plot(range(1, len(sizes) + 1), sizes, style, label=one.name, lw=1.4)
    axes.set_yscale("log")
    bytes_on(axes.yaxis)
    axes.set(xlabel="tasks learned", ylabel="everything kept", title=title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=7.5, frameon=False)
    return figure


def main() -> None:
    """Write both figures."""
    mpl.rcParams["svg.hashsalt"] = "cldnet"  # equal results give equal files
    OUT.mkdir(exist_ok=True)
    for name, figure in (("accuracy", draw_accuracy()), ("bytes", draw_bytes())):
        figure.savefig(OUT / f"{name}.svg", metadata={"Date": None})
        figure.savefig(OUT / f"{name}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
