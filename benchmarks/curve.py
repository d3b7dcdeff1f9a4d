"""Accuracy against the number of features: one panel per stream as a PNG, and a table in Markdown.

    python -m benchmarks.curve results/exact [results/exact/curve …] --out docs/exact/curve.png

All result files of a folder are read; runs of one stream with the same number of features are averaged.
"""

from __future__ import annotations

import argparse
import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cldnet.bench.report.drawing import LIGHT, MARKERS, new_figure
from cldnet.storage import write_atomically

_DEFAULTS = {"filters": 200, "windows": 3}


@dataclass(frozen=True)
class Point:
    """The runs of one stream with one number of features; seconds and memory are those of the worst run."""

    stream: str
    filters: int
    features: int
    accuracies: tuple[float, ...]
    seconds: float
    peak_rss: float
    bytes_kept: int

    @property
    def accuracy(self) -> float:
        return fmean(self.accuracies)


def read_results(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Read all result files of folders, without their subfolders."""
    return [json.loads(path.read_text("utf-8")) for folder in folders for path in sorted(folder.glob("*.json"))]


def points(results: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Group runs over whitened patches by stream and number of filters, in the order of both."""
    groups: dict[tuple[str, int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for run in results:
        if run["backbone"] == "patches":
            options = {**_DEFAULTS, **run["config"]["backbone_options"]}
            features = 2 * options["filters"] * options["windows"] ** 2 + 1
            groups[run["stream"]["name"], options["filters"], features].append(run)
    return [
        Point(
            *key,
            accuracies=tuple(run["scores"]["average_accuracy"] for run in runs),
            seconds=max(run["seconds"]["total"] for run in runs),
            peak_rss=max(run["peak_rss"] or 0 for run in runs),
            bytes_kept=max(sum(run["bytes"].values()) for run in runs),
        )
        for key, runs in sorted(groups.items())
    ]


def table(found: Sequence[Point]) -> str:
    """Write points as a Markdown table."""
    lines = [
        "| stream | filters | features | accuracy | runs | seconds | peak memory | kept |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for point in found:
        std = f" ± {100 * stdev(point.accuracies):.2f}" if len(point.accuracies) > 1 else ""
        lines.append(
            f"| {point.stream} | {point.filters:,} | {point.features:,} | {100 * point.accuracy:.2f}{std} | "
            f"{len(point.accuracies)} | {point.seconds:.0f} | {point.peak_rss / 1e9:.1f} GB | "
            f"{point.bytes_kept / 1e6:,.0f} MB |"
        )
    return "\n".join(lines)


def draw_curves(found: Sequence[Point], path: Path) -> None:
    """Draw accuracy against features, one panel per stream, since their accuracies lie far apart."""
    streams = sorted(name for name, count in Counter(point.stream for point in found).items() if count > 1)
    if not streams:
        raise ValueError("There are no results over whitened patches with several numbers of features to draw.")
    figure = new_figure(3.4 * len(streams), 3.4)
    figure.set(layout_engine="constrained", facecolor="white")
    for k, (axes, name) in enumerate(zip(figure.subplots(1, len(streams), squeeze=False)[0], streams, strict=True)):
        colour, marker = LIGHT[f"s{k % 10}"], MARKERS[k % len(MARKERS)]
        own = [point for point in found if point.stream == name]
        for point in own:
            axes.plot([point.features] * len(point.accuracies), point.accuracies, "_", color=colour, alpha=0.5)
        line = [(point.features, point.accuracy) for point in own]
        axes.plot(*zip(*line, strict=True), color=colour, marker=marker, linewidth=2)
        last = f"{100 * line[-1][1]:.1f}%"
        axes.annotate(last, line[-1], (-2, 6), textcoords="offset points", ha="right", color=colour)
        axes.set_xscale("log")
        axes.margins(x=0.08, y=0.15)
        axes.set_title(name, loc="left", fontsize=11)
        axes.set_xlabel("features")
        axes.xaxis.set_major_formatter(lambda value, _position: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _position: f"{100 * value:.1f}%")
        axes.grid(axis="y", color="#e3e6ea")
        axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130, metadata={"Software": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, picture.getvalue())


def main() -> None:
    """Read folders of results, draw the curves, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/exact/curve.png"))
    arguments = parser.parse_args()
    found = points(read_results(arguments.folders))
    draw_curves(found, arguments.out)
    print(table(found))


if __name__ == "__main__":
    main()
