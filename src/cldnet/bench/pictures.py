"""The results as one PNG file, drawn by matplotlib if it is there."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cldnet.bench.summary import NEEDS_THE_TASK, Matrix, MethodSummary, clip, summarise
from cldnet.store import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 4
COLOURS = ("#0072b2", "#c14f00", "#00805d", "#8e4b9e", "#8a6700", "#b93472", "#7d4f27", "#5b6470")
MARKERS = "os^Dvph*"
GREY = "#5b6470"


def draw_png(results: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Draw the accuracy curves and one accuracy matrix per method.

    Parameters
    ----------
    results : sequence of mapping
        Result dicts as a run writes them.
    path : path-like
        The PNG file to write; an old file is replaced whole.

    Raises
    ------
    ImportError
        If matplotlib is missing or does not load.
    ValueError
        If there are no results.
    """
    summaries = summarise(results)
    if not summaries:
        raise ValueError("There are no results to draw.")
    figure = _new_figure(summaries)
    picture = io.BytesIO()
    # No software stamp: the same results give the same bytes.
    figure.savefig(picture, format="png", dpi=150, metadata={"Software": None})
    write_atomically(path, picture.getvalue())


def _new_figure(summaries: Sequence[MethodSummary]) -> Figure:
    # matplotlib is optional. A build that does not fit the installed NumPy raises RuntimeError.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
        from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError("Pictures need matplotlib: pip install 'cldnet[plots]'") from error

    drawn = [(s, s.matrix) for s in summaries if s.matrix is not None]
    rows = math.ceil(len(drawn) / COLUMNS)
    columns = math.ceil(len(drawn) / max(rows, 1))  # six matrices stand as three and three
    heights = [4.4, 3.4 * rows] if rows else [4.4]
    layout = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.1)
    figure = Figure(figsize=(12, sum(heights)), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    # Two parts with a layout of their own: the legend above takes no room from the matrices below.
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_curves(parts[0].subplots(), summaries)
    for index, (summary, matrix) in enumerate(drawn, start=1):
        _draw_matrix(parts[1].add_subplot(rows, columns, index), summary.name, matrix)
    return figure


def _draw_curves(axes: Axes, summaries: Sequence[MethodSummary]) -> None:
    longest = 0
    for index, summary in enumerate(summaries):
        if summary.curve is None:
            # An empty line gives the method its place in the legend, with the reason for its absence.
            label = f"{clip(summary.name)}: {NEEDS_THE_TASK}"
            axes.plot([], [], " ", label=_plain(label))
            continue
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
        tasks = range(1, len(summary.curve) + 1)
        longest = max(longest, len(summary.curve))
        for run in summary.run_curves:
            axes.plot(tasks, run, color=colour, linewidth=0.8, alpha=0.3)
        label = _plain(clip(summary.name))
        axes.plot(tasks, summary.curve, color=colour, linewidth=2, marker=marker, markersize=6, label=label)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    axes.set_title("Accuracy over the classes seen so far (thin lines: single runs)", loc="left", fontsize=12)
    if longest == 0:  # nothing to scale the axes by
        axes.set_axis_off()
        return
    axes.set_xlabel("after task")
    axes.set_xticks(range(1, longest + 1, math.ceil(longest / 20)))
    axes.yaxis.set_major_formatter(lambda value, _position: f"{100 * value:.0f}%")
    axes.grid(axis="y", color="#e3e6ea")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_matrix(axes: Axes, name: str, matrix: Matrix) -> None:
    size = len(matrix)
    # NaN cells stay empty: a task has no accuracy before it was learned.
    padded = [row + [math.nan] * (size - len(row)) for row in matrix]
    axes.imshow(padded, cmap="Blues", vmin=0, vmax=1)
    if size <= 20:  # in finer matrices numbers would only be dirt
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                ink = "white" if value > 0.6 else "black"
                axes.text(j, i, f"{100 * value:.0f}", color=ink, ha="center", va="center", fontsize=_font(size))
    ticks = range(0, size, math.ceil(size / 10))
    axes.set_xticks(ticks, [str(t + 1) for t in ticks])
    axes.set_yticks(ticks, [str(t + 1) for t in ticks])
    axes.tick_params(length=0, labelcolor=GREY)
    axes.spines[:].set_visible(False)
    axes.set_title(clip(name), fontsize=11, parse_math=False)
    axes.set_xlabel("accuracy on task (%)", color=GREY)
    axes.set_ylabel("after task", color=GREY)


def _font(size: int) -> float:
    return max(4.0, min(10.0, 66 / size))


def _plain(text: str) -> str:
    # A legend reads "$" as mathematics and hides labels that begin with "_"; a name means neither.
    return "\u200b" * text.startswith("_") + text.replace("$", r"\$")
