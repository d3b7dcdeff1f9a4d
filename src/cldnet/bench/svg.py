"""Drawings for the page: heat maps and curves as SVG text, coloured by the page's style sheet."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from html import escape

from cldnet.bench.summary import Matrix, MethodSummary, clip, percent

SHADES = 11  # steps of the heat map: 0%, 10%, … 100%
SERIES = 8  # colours for curves; the style sheet holds as many
MARKS = (
    '<circle r="4.5"/>',
    '<path d="M-4-4h8v8h-8z"/>',
    '<path d="M0-5.5 5 4H-5z"/>',
    '<path d="M0-6 5 0 0 6-5 0z"/>',
    '<path d="M0 5.5 5-4H-5z"/>',
    '<path d="M-5-1.5h3.5V-5h3v3.5H5v3H1.5V5h-3V1.5H-5z"/>',
    '<path d="M-5 0-2.5-4.5h5L5 0 2.5 4.5h-5z"/>',
    '<path d="M-5-2.5h10v5H-5z"/>',
)

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 66, 706, 16, 322


def text(value: object) -> str:
    """Make any value safe inside HTML and SVG: escaped, and without characters that XML forbids.

    Format characters go as well, because with them a stranger's name can reverse the text around it.

    Examples
    --------
    >>> text('<b>"&')
    '&lt;b&gt;&quot;&amp;'
    """
    unsafe = {"Cc", "Cf", "Cs", "Cn"}
    return escape("".join("\ufffd" if unicodedata.category(c) in unsafe else c for c in str(value)))


def heat_map(summary: MethodSummary, matrix: Matrix) -> str:
    """Draw an accuracy matrix: one row after each task, one column for each task.

    Parameters
    ----------
    summary : MethodSummary
        The method, for its name.
    matrix : list of list of float
        Lower-triangular accuracies.

    Returns
    -------
    str
        An ``<svg>`` element.
    """
    size = len(matrix)
    cell = 40 if size <= 6 else 32 if size <= 10 else 30
    digits = 1 if cell == 40 else 0
    parts = []
    for i, row in enumerate(matrix):
        parts.append(_label(34, 38 + (i + 0.5) * cell, i + 1, "end"))
        parts.append(_label(42 + (i + 0.5) * cell, 26, i + 1, "middle"))
        parts += [_cell(i, j, value, cell, digits) for j, value in enumerate(row)]
    middle = size * cell / 2
    axes = (
        f'<text class="axis" x="{42 + middle:g}" y="10" text-anchor="middle">accuracy on task (%)</text>'
        f'<text class="axis" transform="translate(10 {38 + middle:g}) rotate(-90)"'
        ' text-anchor="middle">after task</text>'
    )
    ends = "; ".join(f"task {j} {percent(value)}" for j, value in enumerate(matrix[-1], start=1))
    label = text(f"Accuracy matrix of {summary.name}. After the last task: {ends}.")
    side = size * cell + 46
    return (
        f'<svg class="heat" role="img" aria-label="{label}" viewBox="0 0 {side} {side}"'
        f' width="{side}" height="{side}"><title>{text(summary.name)}</title>{axes}{"".join(parts)}</svg>'
    )


def curves(summaries: Sequence[MethodSummary]) -> str:
    """Draw the accuracy over the classes seen so far, after each task; thin lines are single runs.

    Parameters
    ----------
    summaries : sequence of MethodSummary
        At least one of them must have a matrix.

    Returns
    -------
    str
        An ``<svg>`` element. The names stand to the right of its box; the style sheet makes room.
    """
    shown = [(index, s, s.curve) for index, s in enumerate(summaries) if s.curve is not None]
    tasks = max(len(curve) for _, _, curve in shown)
    values = [v for _, s, curve in shown for line in (curve, *s.run_curves) for v in line]
    low = min(0.9, math.floor(10 * min(values)) / 10)
    lines = [_line(index, s, curve, tasks, low) for index, s, curve in shown]
    label = text(
        "Accuracy over the classes seen so far. After the last task: "
        + "; ".join(f"{s.name} {percent(curve[-1])}" for _, s, curve in shown)
        + "."
    )
    return (
        f'<svg class="plot" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"<title>Accuracy over the classes seen so far</title>"
        f"{_grid(tasks, low)}{''.join(lines)}{_names(shown, tasks, low)}</svg>"
    )


def legend_mark(index: int) -> str:
    """Draw the small sign of a curve, for the legend."""
    return (
        f'<svg class="{_series(index)}" viewBox="-14 -8 28 16" width="28" height="16" aria-hidden="true">'
        f'<path class="mean" d="M-14 0H14"/>{_mark(index)}</svg>'
    )


def _cell(i: int, j: int, value: float, cell: int, digits: int) -> str:
    shade = round(max(0.0, min(1.0, value)) * (SHADES - 1))
    return (
        f'<g class="h{shade}"><title>After task {i + 1}, task {j + 1}: {percent(value)}</title>'
        f'<rect x="{42 + j * cell}" y="{38 + i * cell}" width="{cell - 2}" height="{cell - 2}" rx="3"/>'
        f'<text x="{42 + (j + 0.5) * cell - 1:g}" y="{38 + (i + 0.5) * cell - 1:g}"'
        f' text-anchor="middle" dy=".35em">{100 * value:.{digits}f}</text></g>'
    )


def _label(x: float, y: float, number: int, anchor: str) -> str:
    return f'<text class="axis" x="{x:g}" y="{y:g}" text-anchor="{anchor}" dy=".35em">{number}</text>'


def _x(task: int, tasks: int) -> float:
    return (LEFT + RIGHT) / 2 if tasks == 1 else LEFT + 14 + (RIGHT - LEFT - 24) * (task - 1) / (tasks - 1)


def _y(value: float, low: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (value - low) / (1 - low)


def _grid(tasks: int, low: float) -> str:
    step = 0.2 if low < 0.5 else 0.1 if low < 0.9 else 0.02
    ticks = [1 - k * step for k in range(int((1 - low) / step + 1e-9) + 1)]
    parts = []
    for tick in ticks:
        y = _y(tick, low)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        tag = f"{100 * tick:.0f}%"
        parts.append(f'<text class="axis" x="{LEFT - 8}" y="{y:.1f}" text-anchor="end" dy=".35em">{tag}</text>')
    for task in range(1, tasks + 1, math.ceil(tasks / 12)):
        x = _x(task, tasks)
        parts.append(f'<text class="axis" x="{x:.1f}" y="{BOTTOM + 22}" text-anchor="middle">{task}</text>')
    parts.append(f'<path class="base" d="M{LEFT} {BOTTOM}H{RIGHT}"/>')
    middle = (LEFT + RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle:g}" y="{HEIGHT - 8}" text-anchor="middle">after task</text>')
    return "".join(parts)


def _line(index: int, summary: MethodSummary, curve: Sequence[float], tasks: int, low: float) -> str:
    thin = "".join(f'<path class="run" d="{_path(run, tasks, low)}"/>' for run in summary.run_curves)
    marks = "".join(
        f'<g transform="translate({_x(task, tasks):.1f} {_y(value, low):.1f})">'
        f"<title>{text(summary.name)}, after task {task}: {percent(value)}</title>{_mark(index)}</g>"
        for task, value in enumerate(curve, start=1)
    )
    return f'<g class="{_series(index)}">{thin}<path class="mean" d="{_path(curve, tasks, low)}"/>{marks}</g>'


def _path(values: Sequence[float], tasks: int, low: float) -> str:
    points = (f"{_x(task, tasks):.1f} {_y(value, low):.1f}" for task, value in enumerate(values, start=1))
    return "M" + "L".join(points)


def _names(shown: Sequence[tuple[int, MethodSummary, list[float]]], tasks: int, low: float) -> str:
    ends = [_y(curve[-1], low) for _, _, curve in shown]
    parts = []
    for (index, summary, curve), end, place in zip(shown, ends, spread(ends, gap=20), strict=True):
        start = _x(len(curve), tasks) + 8
        parts.append(
            f'<g class="name {_series(index)}">'
            f'<path class="lead" d="M{start:.1f} {end:.1f}L{RIGHT + 14} {place:.1f}h6"/>'
            f'<text x="{RIGHT + 26}" y="{place:.1f}" dy=".35em">{text(clip(summary.name, 28))}</text></g>'
        )
    return "".join(parts)


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Move labels apart until they are at least `gap` from each other, keeping their order.

    Examples
    --------
    >>> spread([10.0, 12.0, 100.0], gap=20)
    [1.0, 21.0, 100.0]
    """
    # Labels that touch form a block, which sits at the mean of the places that its labels want.
    blocks: list[list[int]] = []
    for index in sorted(range(len(places)), key=lambda i: places[i]):
        blocks.append([index])
        while len(blocks) > 1 and _end(blocks[-2], places, gap) > _start(blocks[-1], places, gap):
            last = blocks.pop()
            blocks[-1] += last
    moved = list(places)
    for block in blocks:
        for rank, index in enumerate(block):
            moved[index] = _start(block, places, gap) + rank * gap
    return moved


def _start(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    return sum(places[i] for i in block) / len(block) - (len(block) - 1) * gap / 2


def _end(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    return _start(block, places, gap) + len(block) * gap


def _series(index: int) -> str:
    return f"s{index % SERIES}"


def _mark(index: int) -> str:
    return MARKS[index % len(MARKS)]
