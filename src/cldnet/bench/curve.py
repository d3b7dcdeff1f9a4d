"""Accuracy against the number of features: one line a stream, as a PNG and as a table in Markdown.

    python -m cldnet.bench.curve results/exact [results/exact/curve …] --out docs/exact/curve.png

Every result file of a folder counts: runs of one stream with equally many features are averaged.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cldnet.bench.report.style import COLOURS, MARKERS
from cldnet.store import write_atomically

__all__ = ["Point", "draw_curves", "points", "read_results", "table"]


_DEFAULTS = {"filters": 200, "windows": 3}


@dataclass(frozen=True)
class Point:
    """The runs of one stream with one number of features.

    Attributes
    ----------
    stream : str
    filters, features : int
    accuracies : tuple of float
        Final average accuracies, one a run.
    seconds, peak_rss : float
        Of the longest and of the largest run.
    bytes_kept : int
    """

    stream: str
    filters: int
    features: int
    accuracies: tuple[float, ...]
    seconds: float
    peak_rss: float
    bytes_kept: int

    @property
    def accuracy(self) -> float:
        """Mean over runs."""
        return fmean(self.accuracies)


def read_results(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Read all result files of folders (not of folders within them)."""
    return [json.loads(path.read_text("utf-8")) for folder in folders for path in sorted(folder.glob("*.json"))]


def points(results: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Gather runs over whitened patches by stream and number of filters, in the order of both.

    Examples
    --------
    >>> run = {"backbone": "patches", "stream": {"name": "s"}, "scores": {"average_accuracy": 0.5}, "peak_rss": 2e9,
    ...        "config": {"backbone_options": {"filters": 10, "windows": 2}}, "seconds": {"total": 3.0}, "bytes": {"sums": 8}}
    >>> points([run, {**run, "scores": {"average_accuracy": 0.7}}])[0].accuracy
    0.6
    """
    gathered: dict[tuple[str, int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for run in results:
        if run["backbone"] == "patches":
            options = {**_DEFAULTS, **run["config"]["backbone_options"]}
            features = 2 * options["filters"] * options["windows"] ** 2 + 1
            gathered[run["stream"]["name"], options["filters"], features].append(run)
    return [
        Point(
            *key,
            accuracies=tuple(run["scores"]["average_accuracy"] for run in runs),
            seconds=max(run["seconds"]["total"] for run in runs),
            peak_rss=max(run["peak_rss"] or 0 for run in runs),
            bytes_kept=max(sum(run["bytes"].values()) for run in runs),
        )
        for key, runs in sorted(gathered.items())
    ]


def table(found: Sequence[Point]) -> str:
    """Write points as a Markdown table."""
    lines = [
        "| stream | filters | features | accuracy | runs | seconds | peak memory | kept |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for point in found:
        spread = f" ± {100 * stdev(point.accuracies):.2f}" if len(point.accuracies) > 1 else ""
        lines.append(
            f"| {point.stream} | {point.filters:,} | {point.features:,} | {100 * point.accuracy:.2f}{spread} | "
            f"{len(point.accuracies)} | {point.seconds:.0f} | {point.peak_rss / 1e9:.1f} GB | "
            f"{point.bytes_kept / 1e6:,.0f} MB |"
        )
    return "\n".join(lines)


def draw_curves(found: Sequence[Point], path: Path) -> None:
    """Draw accuracy against features, a panel a stream, since their accuracies lie far apart."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415  (matplotlib is optional)
        from matplotlib.figure import Figure  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError("Pictures need matplotlib: pip install 'cldnet[plots]'") from error
    streams = sorted(name for name, count in Counter(point.stream for point in found).items() if count > 1)
    if not streams:
        raise ValueError("There are no results over whitened patches with several numbers of features to draw.")
    figure = Figure(figsize=(3.4 * len(streams), 3.4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for axes, name, colour, marker in zip(
        figure.subplots(1, len(streams), squeeze=False)[0], streams, COLOURS, MARKERS, strict=False
    ):
        own = [point for point in found if point.stream == name]
        for point in own:
            axes.plot([point.features] * len(point.accuracies), point.accuracies, "_", color=colour, alpha=0.5)
        line = [(point.features, point.accuracy) for point in own]
        axes.plot(*zip(*line, strict=True), color=colour, marker=marker, linewidth=2)
        axes.annotate(
            f"{100 * line[-1][1]:.1f}%", line[-1], (-2, 6), textcoords="offset points", ha="right", color=colour
        )
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
    """Read folders of results, draw the curves, and say the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/exact/curve.png"))
    arguments = parser.parse_args()
    found = points(read_results(arguments.folders))
    draw_curves(found, arguments.out)
    sys.stdout.write(table(found) + "\n")


if __name__ == "__main__":
    main()
