"""The plots of a report: accuracy, memory, forgetting, time, projectors, features and confusion."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from cldnet.bench.formatting import clip, human_bytes, percent, percent_pm, yes_no
from cldnet.bench.report.drawing import (
    COLOURS,
    GREY,
    MARKERS,
    SHADES,
    Axis,
    Box,
    Drawing,
    Label,
    Line,
    Marks,
    Plot,
    Point,
    SeriesStyle,
    Shape,
    frame,
    linear_axis,
    log_axis,
    place_names,
    spread_labels,
)
from cldnet.bench.summary import Matrix, Summary
from cldnet.methods import display_name

#: Fine-tuning does nothing against forgetting, joint training keeps all data: what a method is worth lies between them.
BOUNDS = {"finetune": SeriesStyle(GREY, 4, dashed=True), "joint": SeriesStyle(GREY, 2, dashed=True)}
#: Number of classes up to which the cells of a confusion matrix have figures.
MAX_NUMBERED_CLASSES = 40
_WIDTH, _HEIGHT, _SIDE = 400, 304, 140
_LEFT, _TOP, _BOTTOM = 56, 44, 260
_ROW = 38  # height of a row of a bar chart
_PLANE = 190  # side of a map of features
_NO_KEY = " There are more methods than colours and shapes: the table below names the marks."
Styles = Mapping[str, SeriesStyle]


def plots_of(summaries: Sequence[Summary], styles: Styles) -> list[Plot]:
    """Draw all plots of one stream that there is something to draw in."""
    plots = [memory(summaries, styles), buffers(summaries)]
    plots += [draw(summaries, styles) for draw in (accuracy, forgetting, time)]
    plots += [draw(summaries) for draw in (matrices, ranks, features)]
    return [plot for plot in plots if plot is not None]


def series_styles(summaries: Sequence[Summary]) -> dict[str, SeriesStyle]:
    """Give every name the style that it has in all plots."""
    styles: dict[str, SeriesStyle] = {}
    for summary in summaries:
        rank = sum(not style.dashed for style in styles.values())
        styles.setdefault(summary.name, BOUNDS.get(summary.method) or series_style(rank, GREY))
    return styles


def series_style(rank: int, colours: int) -> SeriesStyle:
    """Give a series the next colour and mark; colours come again with other marks."""
    return SeriesStyle(rank % colours, (rank % colours + rank // colours) % len(MARKERS))


def memory(summaries: Sequence[Summary], styles: Styles) -> Plot | None:
    """Plot accuracy against the bytes that are kept; a method with several sizes of its buffer is one series."""
    shown = [(s, s.accuracy, max(s.bytes_kept or 0, 1)) for s in summaries if s.accuracy is not None]
    if not shown:
        return None
    x = log_axis(
        [kept for *_, kept in shown],
        _LEFT + 12,
        _WIDTH,
        "bytes kept",
        lambda size: human_bytes(size).replace(".0 ", " "),
    )
    runs = [run["scores"]["average_accuracy"] for s, *_ in shown for run in s.results]
    y = _accuracy_axis(runs, "mean accuracy after the last task (↖ better)")
    points = [(x(kept), y(value)) for _, value, kept in shown]
    names = [clip(s.marked_name, 28) + (" (grows)" if s.grows else "") for s, *_ in shown]
    family = {s.name: s.name for s, *_ in shown}
    joined = has_buffers(summaries)
    if joined:  # the key names the method, the mark its size
        family, styles = {s.name: _family(s) for s, *_ in shown}, _family_styles(summaries)
        names = [f"{s.memory:,}" if s.memory else name for (s, *_), name in zip(shown, names, strict=True)]
    series: dict[str, list[Point]] = {}
    for (s, *_), point in sorted(zip(shown, points, strict=True), key=lambda pair: pair[0][0].memory or 0):
        series.setdefault(family[s.name], []).append(point)
    placed = place_names(points, names, (_LEFT, _TOP - 26), (_WIDTH + _SIDE, _BOTTOM))
    shapes = frame(x, y, _WIDTH + _SIDE, _HEIGHT)
    leads = [(s, name[1]) for name, (s, *_) in zip(placed, shown, strict=True) if name]
    shapes += [Line(lead, "lead", styles[family[s.name]]) for s, lead in leads if lead]
    shapes += [Line(line, "run", styles[name]) for name, line in series.items() if len(line) > 1]
    for (s, value, kept), point in zip(shown, points, strict=True):
        low, high = (min(max(value + sign * (s.accuracy_std or 0), y.low), 1.0) for sign in (-1, 1))
        if high > low:
            shapes.append(Line([(point[0], y(low)), (point[0], y(high))], "whisker", styles[family[s.name]]))
        title = f"{s.name}: {s.accuracy_text}, {human_bytes(kept)}"
        shapes.append(Marks([point], styles[family[s.name]], title, 6, hollow=s.rests_on_data))
    shapes += [name[0] for name in placed if name is not None]
    named, key = None not in placed and not joined, _key(series, styles)
    numbers = "; ".join(f"{s.name} {s.accuracy_text} with {human_bytes(kept)}" for s, _, kept in shown)
    lines = " A line joins the sizes of one method’s buffer; numbers count its exemplars." if joined else ""
    outside = ", or learn from data outside the stream (†)" if any(s.outside for s, *_ in shown) else ""
    return Plot(
        "memory",
        "Accuracy against memory",
        "Mean accuracy over all tasks after the last one, against everything that is kept. Filled marks keep no data, hollow "
        f"ones keep some{outside}. The upper left is best.{lines}{'' if named or key else _NO_KEY}",
        [Drawing(_WIDTH + _SIDE, _HEIGHT, shapes, f"Accuracy against bytes kept: {numbers}.")],
        ("Method", "Accuracy", "Bytes kept", "Keeps data?", "Grows?"),
        [(s.marked_name, s.accuracy_text, human_bytes(b), yes_no(s.keeps_data), yes_no(s.grows)) for s, _, b in shown],
        key,
        named,
    )


def buffers(summaries: Sequence[Summary]) -> Plot | None:
    """Plot accuracy against the number of exemplars: a line for each method that has a buffer, level if it has none."""
    shown = [(s, s.accuracy) for s in summaries if s.accuracy is not None]
    if not has_buffers([s for s, _ in shown]):
        return None
    styles = _family_styles(summaries)
    sizes = sorted({s.memory for s, _ in shown if s.memory})
    ticks = sizes[:: math.ceil(len(sizes) / 6)]
    x = log_axis(sizes, _LEFT + 12, _WIDTH - 10, "exemplars in the buffer", str)
    x = x._replace(ticks=[(size, f"{size:,}") for size in ticks])
    y = _accuracy_axis([value for _, value in shown], "mean accuracy after the last task")
    series: dict[str, list[tuple[Summary, float]]] = {}
    for s, value in sorted(shown, key=lambda pair: pair[0].memory or 0):
        series.setdefault(_family(s), []).append((s, value))
    shapes, ends = frame(x, y, _WIDTH, _HEIGHT), []
    for name, own in series.items():
        points = [(x(s.memory), y(value)) for s, value in own if s.memory]
        level = [point for s, value in own if not s.memory for point in ((x.start, y(value)), (x.end, y(value)))]
        shapes.append(Line(points or level, "mean", styles[name]))
        for (s, _), point in zip(own, points or level[1:], strict=True):
            shapes.append(Marks([point], styles[name], f"{s.name}: {s.accuracy_text}", hollow=s.rests_on_data))
        ends.append((name, (points or level)[-1]))
    named = _name_ends(ends, shapes, styles)
    key = _key(series, styles)
    numbers = "; ".join(f"{s.name} {s.accuracy_text}" for own in series.values() for s, _ in own)
    rows = []
    for name, own in series.items():
        texts = {s.memory: s.accuracy_text for s, _ in own}
        rows.append((name, *(texts.get(size, "–") for size in (None, *sizes))))
    return Plot(
        "buffers",
        "Accuracy against the size of the buffer",
        "Mean accuracy over all tasks after the last one, against the number of exemplars that a method has room for. Level "
        f"lines have no buffer of a fixed size.{'' if named or key else _NO_KEY}",
        [Drawing(_WIDTH, _HEIGHT, shapes, f"Accuracy against the size of the buffer: {numbers}.", side=_SIDE * named)],
        ("Method", "without", *(f"{size:,}" for size in sizes)),
        rows,
        key,
        named,
    )


def has_buffers(summaries: Sequence[Summary]) -> bool:
    """Whether some method ran with buffers of different sizes."""
    sizes = {(_family(s), s.memory) for s in summaries if s.memory}
    return len(sizes) > len({family for family, _ in sizes})


def _family(summary: Summary) -> str:
    """The name of a configuration without the size of its buffer."""
    if not summary.memory:
        return summary.name
    size = re.compile(rf"\b({summary.memory}|{summary.memory:,})\b")
    parts = [*summary.label.split(", "), *summary.variant.split(", ")]
    kept = [part for part in parts if part and not size.search(part)]
    return ", ".join(kept if summary.label else [display_name(summary.method), *kept])


def _family_styles(summaries: Sequence[Summary]) -> dict[str, SeriesStyle]:
    """Give configurations that differ only in the size of the buffer one style."""
    styles: dict[str, SeriesStyle] = {}
    for summary in summaries:
        rank = sum(not style.dashed for style in styles.values())
        styles.setdefault(_family(summary), BOUNDS.get(summary.method) or series_style(rank, GREY))
    return styles


def accuracy(summaries: Sequence[Summary], styles: Styles) -> Plot | None:
    """Plot the mean accuracy over the tasks seen so far, after each task."""
    shown = [(s, s.curve) for s in summaries if s.curve is not None]
    if not shown:
        return None
    series = [(s.name, curve, s.run_curves if s.runs > 1 else []) for s, curve in shown]
    shapes, named = _curves(series, styles, "mean accuracy on the tasks so far")
    key = _key([s.name for s, _ in shown], styles)
    ends = "; ".join(f"{s.name} {percent(curve[-1])}" for s, curve in shown)
    alternative = f"Mean accuracy over the tasks seen so far. After the last task: {ends}."
    return Plot(
        "accuracy",
        "Accuracy after each task",
        "Mean over the tasks so far; all classes seen so far are candidates. Strong lines are means over runs, thin lines are "
        f"single runs.{'' if named or key else _NO_KEY}",
        [Drawing(_WIDTH, _HEIGHT, shapes, alternative, side=_SIDE * named)],
        ("Method", *_after_each(max(len(curve) for _, curve in shown))),
        [(s.name, *map(percent, curve)) for s, curve in shown],
        key,
        named,
    )


def forgetting(summaries: Sequence[Summary], styles: Styles) -> Plot | None:
    """Plot how much of each task's best accuracy is lost at the end, least first."""
    shown = sorted(((s.forgetting, s) for s in summaries if s.forgetting is not None), key=lambda pair: pair[0])
    if not shown:
        return None
    runs = [[float(run["scores"]["forgetting"]) for run in s.results] for _, s in shown]
    values = [value for own in runs for value in own]
    axis = linear_axis(min(0, *values), max(0.05, *values), 8, _WIDTH + _SIDE - 12, "", _tick_percent)
    rows = [
        (s.name, percent_pm(value, stdev(own) if len(own) > 1 else None))
        for (value, s), own in zip(shown, runs, strict=True)
    ]
    shapes: list[Shape] = []
    for row, ((value, s), own) in enumerate(zip(shown, runs, strict=True)):
        y, style = row * _ROW + 26, styles[s.name]
        shapes.append(Line([(axis(0), y), (axis(value), y)], "mean", style))
        shapes += [Line([(axis(run), y - 5), (axis(run), y + 5)], "whisker", style) for run in own]
        shapes.append(Marks([(axis(value), y)], style, ": ".join(rows[row]), 5.5))
    return Plot(
        "forgetting",
        "Forgetting",
        "Mean loss from a task’s best accuracy to its last. Small strokes are single runs.",
        [_bar_chart(axis, rows, shapes, "Forgetting, least first")],
        ("Method", "Forgetting"),
        rows,
    )


def time(summaries: Sequence[Summary], styles: Styles) -> Plot | None:
    """Plot the seconds of training and of evaluation, least first."""

    def seconds(summary: Summary, part: str) -> float:
        return fmean(sum(run["seconds"].get(part, ())) for run in summary.results)

    shown = [(s.seconds, s, seconds(s, "train"), seconds(s, "evaluate")) for s in summaries if s.seconds is not None]
    if not shown:
        return None
    shown.sort(key=lambda row: row[0])
    longest = max(max(total, train + evaluate) for total, _, train, evaluate in shown)
    axis = linear_axis(0, max(longest, 1e-3), 8, _WIDTH + _SIDE - 12, "", lambda value: f"{value:,.6g} s")
    rows = [(s.name, f"{_seconds(total)} s") for total, s, *_ in shown]
    shapes: list[Shape] = []
    for row, (_, s, train, evaluate) in enumerate(shown):
        y, role = row * _ROW + 21, f"s{styles[s.name].colour}"
        start, middle, end = axis(0), axis(train), axis(train + evaluate)
        shapes.append(Box((start, y), max(middle - start, 1), 10, role, f"{s.name}: training {_seconds(train)} s"))
        shapes.append(Box((middle, y), end - middle, 10, f"{role} faint", f"evaluation {_seconds(evaluate)} s"))
    return Plot(
        "time",
        "Time",
        "Mean seconds per run. Solid: training; pale: evaluation after each task. The number is the whole run.",
        [_bar_chart(axis, rows, shapes, "Mean seconds per run, shortest first")],
        ("Method", "Training (s)", "Evaluation (s)", "Whole run (s)"),
        [(s.name, *map(_seconds, (train, evaluate, total))) for total, s, train, evaluate in shown],
    )


def matrices(summaries: Sequence[Summary]) -> Plot | None:
    """Plot the accuracy on each task, after each task, one heat map per method."""
    shown = [(s, s.matrix) for s in summaries if s.matrix is not None]
    if not shown:
        return None
    panels, rows = [], []
    for s, matrix in shown:
        ends = "; ".join(f"task {task} {percent(value)}" for task, value in enumerate(matrix[-1], start=1))
        size, shapes = _heat_map(matrix)
        alternative = f"Accuracy matrix of {s.name}. After the last task: {ends}."
        # There is room for the words along both sides of a small map.
        panels.append(Drawing(max(size, 150), max(size, 104), shapes, alternative, clip(s.name)))
        rows += [(f"{s.name}, after task {task}", *map(percent, row)) for task, row in enumerate(matrix, start=1)]
    return Plot(
        "matrices",
        "Accuracy per task",
        "Each row is the state after one task, each column the accuracy on one task, in per cent. A column that fades "
        "downwards is a task that is forgotten.",
        panels,
        ("Method", *(f"task {task}" for task in range(1, max(len(matrix) for _, matrix in shown) + 1))),
        rows,
        wide=True,
        columns=min(4, math.ceil(len(panels) / math.ceil(len(panels) / 4))),  # six stand as three and three
    )


def ranks(summaries: Sequence[Summary]) -> Plot | None:
    """Plot the share of directions that the projector of each layer leaves free, after each task."""
    panels, rows, thresholds = [], [], set()
    for s in summaries:
        runs = [run["ranks"] for run in s.results if run.get("ranks")]
        if not runs:
            continue
        thresholds |= {f"{run['threshold']:g}" for run in runs}
        for title, meaning, share in (
            ("rank / width", "share of directions that are free", lambda layer: layer["rank"] / layer["width"]),
            ("tr P / width", "mean eigenvalue of the projector", lambda layer: layer["trace"]),
        ):
            values = [_layers(run, share) for run in runs]
            if len({tuple((layer, len(curve)) for layer, curve in run.items()) for run in values}) > 1:
                raise ValueError(f"The runs of {s.name!r} on {s.stream!r} have ranks of different layers or tasks.")
            means = {layer: np.mean([run[layer] for run in values], axis=0).tolist() for layer in values[0]}
            styles = {layer: series_style(rank, COLOURS) for rank, layer in enumerate(means)}
            shapes, named = _curves([(layer, curve, []) for layer, curve in means.items()], styles, title, low=0.0)
            ends = "; ".join(f"{layer} {percent(curve[-1])}" for layer, curve in means.items())
            alternative = f"{s.name}, {meaning}. After the last task: {ends}."
            panels.append(Drawing(_WIDTH, _HEIGHT, shapes, alternative, group=s.name, side=_SIDE * named))
            rows += [(f"{s.name}, {layer}, {title}", *map(percent, curve)) for layer, curve in means.items()]
    if not panels:
        return None
    return Plot(
        "ranks",
        "Free directions in the projectors",
        "One line per layer. rank / width: the share of directions that old tasks have not used up (eigenvalue of the layer’s "
        f"projector above {' or '.join(sorted(thresholds))}). tr P / width: the mean eigenvalue. A layer at 0 cannot learn any "
        "more.",
        panels,
        ("Method, layer", *_after_each(max(map(len, rows)) - 1)),
        rows,
        wide=True,
        columns=2,
    )


def features(summaries: Sequence[Summary]) -> Plot | None:
    """Plot the features of test images after each task, as t-SNE lays them out: one run per method."""
    shown = [
        (s, run) for s in summaries if (run := next((r for r in s.results if r.get("features")), None)) is not None
    ]
    classes = dict.fromkeys(
        run["features"]["classes"][row] for _, run in shown for task in run["features"]["tasks"] for row in task["rows"]
    )
    styles = {name: series_style(rank, COLOURS) for rank, name in enumerate(classes)}
    panels, rows = [], []
    for s, run in shown:
        group, shares = f"{s.name}, seed {run['seed']}", []
        for number, task in enumerate(run["features"]["tasks"], start=1):
            names = [run["features"]["classes"][row] for row in task["rows"]]
            share = neighbour_agreement(task["points"], names)
            title = f"after task {number}: {100 * share:.0f}%"
            alternative = (
                f"{group}: features after task {number}; {percent(share)} of the images lie next to one of their class."
            )
            panels.append(Drawing(_PLANE, _PLANE, _scatter(task["points"], names, styles), alternative, title, group))
            shares.append(share)
        rows.append((s.name, *map(percent, shares)))
    if not panels:
        return None
    tasks = max(map(len, rows)) - 1
    return Plot(
        "features",
        "Features after each task",
        "t-SNE of the features of test images of the classes seen so far; only who is near whom has a meaning. The percentage "
        "is the share of images whose nearest neighbour has the same class.",
        panels,
        ("Method", *_after_each(tasks)),
        rows,
        [(style, clip(name)) for name, style in styles.items()],
        named=len(classes) > 30,  # a key of a hundred classes helps nobody; tooltips name the class of a mark
        wide=True,
        columns=max(2, min(tasks, 5)),
    )


def neighbour_agreement(points: Sequence[Sequence[float]], names: Sequence[str]) -> float:
    """Share of points whose nearest neighbour has the same name."""
    if len(points) < 2:
        return 1.0
    nearest = NearestNeighbors(n_neighbors=1).fit(points).kneighbors(return_distance=False)[:, 0]
    return fmean(names[i] == names[j] for i, j in enumerate(nearest))


def confusion_map(matrix: NDArray[np.int64], labels: Sequence[str], alternative: str = "") -> Drawing:
    """Draw a matrix of counts, one row per class; the stronger a colour, the larger the share of the row.

    Empty cells are not drawn one by one, so a map of many classes stays small.
    """
    if len(labels) > MAX_NUMBERED_CLASSES:
        cell = max(2.0, min(13.0, 1000 / len(labels)))
    else:  # there is room for the figure of each cell
        roomy = 44 if len(labels) <= 6 else 34 if len(labels) <= 12 else 28 if len(labels) <= 24 else 24
        cell = max(roomy, 8 + 8.0 * len(str(matrix.max())))
    short = [label if len(label) <= 24 else f"{label[:13]}…{label[-10:]}" for label in labels]
    room = 14 + 6.6 * max(map(len, short))  # for names, at both sides
    side = cell * len(labels)
    gap = 2 if cell >= 12 else 0  # between cells; in fine maps it would be most of them
    shapes: list[Shape] = [Box((room, room), side - gap, side - gap, "h0")]
    for at in range(0, len(labels), math.ceil(13 / cell)):
        middle = room + (at + 0.5) * cell + 3
        shapes.append(Label((room - 6, middle), short[at], anchor="end"))
        shapes.append(Label((middle, room - 6), short[at], rotated=True))
    photos = matrix.sum(axis=1)
    for i, j in np.argwhere(matrix > 0):
        x, y, count, total = room + j * cell, room + i * cell, int(matrix[i, j]), int(photos[i])
        shade = max(1, round((SHADES - 1) * math.sqrt(count / total)))  # the root, so that one photo of many is visible
        what = "correct" if i == j else f"classified as {labels[j]}"
        shapes.append(Box((x, y), cell - gap, cell - gap, f"h{shade}", f"{labels[i]}: {count:,} of {total:,} {what}"))
        if len(labels) <= MAX_NUMBERED_CLASSES:
            shapes.append(Label((x + cell / 2 - 1, y + cell / 2 + 3), str(count), f"t{shade}", "middle"))
    return Drawing(room + side, room + side, shapes, alternative)


def bars(rows: Sequence[tuple[str, float, str]], title: str, limit: float | None = None) -> Drawing:
    """Draw a bar for each row (name, share, text); shares above `limit` are marked."""
    height, left, length, numbers = len(rows) * 30 + 6, 190, 420, 120
    shapes: list[Shape] = [Line([(left, 0), (left, height)], "base")]
    if limit is not None:
        x = left + limit * length
        shapes.append(Line([(x, 0), (x, height)], "mean", SeriesStyle(1, 0, dashed=True)))
        shapes.append(Label((x, height + 14), f"{limit}", "axis", "middle"))
    for row, (name, share, words) in enumerate(rows):
        y = row * 30 + 8
        colour = "s1" if limit is not None and share > limit else "s0"
        shapes.append(Label((left - 8, y + 14), name if len(name) <= 26 else f"…{name[-25:]}", "axis", "end"))
        shapes.append(Box((left, y), max(1.0, share * length), 18, colour, f"{name}: {words}"))
        behind = share if limit is None else 1.0  # clear of the limit's line
        shapes.append(Label((left + behind * length + 6, y + 14), words, "value"))
    alternative = f"{title}: {'; '.join(f'{name} {words}' for name, _, words in rows)}."
    return Drawing(left + length + numbers, height + (0 if limit is None else 20), shapes, alternative)


def _curves(
    series: Sequence[tuple[str, Sequence[float], Sequence[Sequence[float]]]],
    styles: Styles,
    title: str,
    low: float = 1.0,
) -> tuple[list[Shape], bool]:
    """Draw a strong line and thin ones for each series, one value per task; tell whether there was room for their names."""
    tasks = max(len(curve) for _, curve, _ in series)
    ticks = [(task, str(task)) for task in range(1, tasks + 1, math.ceil(tasks / 10))]
    x = Axis(1, tasks, _LEFT + 12, _WIDTH - 10, ticks, "after task")
    y = _accuracy_axis([low, *(v for _, curve, runs in series for line in (curve, *runs) for v in line)], title)

    def points(values: Sequence[float]) -> list[Point]:
        return [(x(task), y(value)) for task, value in enumerate(values, start=1)]

    shapes = frame(x, y, _WIDTH, _HEIGHT)
    for name, curve, runs in series:
        shapes += [Line(points(run), "run", styles[name]) for run in runs]
        shapes.append(Line(points(curve), "mean", styles[name]))
        for task, (point, value) in enumerate(zip(points(curve), curve, strict=True), start=1):
            shapes.append(Marks([point], styles[name], f"{name}, after task {task}: {percent(value)}"))
    return shapes, _name_ends([(name, points(curve)[-1]) for name, curve, _ in series], shapes, styles)


def _name_ends(ends: Sequence[tuple[str, Point]], shapes: list[Shape], styles: Styles) -> bool:
    """Add the name of each series to the right of its end; return False, and add none, if there is no room."""
    gap = min(17.0, (_BOTTOM - _TOP) / len(ends))
    if gap < 12:
        return False
    heights = spread_labels([y for _, (_, y) in ends], gap)
    shift = min(0.0, _BOTTOM + 4 - max(heights)) + max(0.0, _TOP - 4 - min(heights))
    for (name, (x, y)), height in zip(ends, heights, strict=True):
        end = height + shift
        shapes.append(Line([(x + 7, y), (_WIDTH + 10, end), (_WIDTH + 14, end)], "lead", styles[name]))
        shapes.append(Label((_WIDTH + 18, end + 4), clip(name, 19), "name"))
    return True


def _heat_map(matrix: Matrix) -> tuple[float, list[Shape]]:
    """Draw a lower triangle of accuracies; return its side as well."""
    size = len(matrix)
    cell = 40 if size <= 6 else 32 if size <= 10 else 26 if size <= 20 else 12
    shapes: list[Shape] = [
        Label((34, 10), "accuracy on task"),
        Label((10, 34), "after task", anchor="end", rotated=True),
    ]
    for i, row in enumerate(matrix):
        if i % math.ceil(12 / cell * size / 20) == 0 or cell > 12:
            shapes.append(Label((28, 34 + (i + 0.5) * cell + 3), str(i + 1), anchor="end"))
            shapes.append(Label((34 + (i + 0.5) * cell - 1, 28), str(i + 1), anchor="middle"))
        for j, value in enumerate(row):
            x, y, shade = 34 + j * cell, 34 + i * cell, round(value * (SHADES - 1))
            title = f"After task {i + 1}, task {j + 1}: {percent(value)}"
            shapes.append(Box((x, y), cell - 2, cell - 2, f"h{shade}", title))
            if cell > 12:  # in finer maps numbers cannot be read
                words = f"{100 * value:.{1 if cell == 40 else 0}f}".replace("100.0", "100")
                shapes.append(Label((x + cell / 2 - 1, y + cell / 2 + 3), words, f"t{shade}", "middle"))
    return size * cell + 36, shapes


def _scatter(points: Sequence[Sequence[float]], names: Sequence[str], styles: Styles) -> list[Shape]:
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    if not len(array):
        return []
    low, high = array.min(0), array.max(0)
    pixels = _PLANE / 2 + (_PLANE - 16) * (array - (low + high) / 2) / (float((high - low).max()) or 1.0)
    by_class: dict[str, list[Point]] = {}
    for name, (x, y) in zip(names, pixels.tolist(), strict=True):
        by_class.setdefault(name, []).append((x, y))
    return [Marks(own, styles[name], name, 3.2) for name, own in by_class.items()]


def _layers(ranks: Mapping[str, Any], share: Callable[[Mapping[str, float]], float]) -> dict[str, list[float]]:
    """A share for each task, by layer."""
    layers: dict[str, list[float]] = {}
    for task in ranks["tasks"]:
        for layer, one in task.items():
            layers.setdefault(layer, []).append(share(one))
    return layers


def _bar_chart(axis: Axis, rows: Sequence[tuple[str, str]], bars: Sequence[Shape], title: str) -> Drawing:
    """Draw a name and a number above each bar, so that a long name takes no room from it, and a phone can show both."""
    bottom = len(rows) * _ROW
    shapes: list[Shape] = [Line([(axis(tick), 2), (axis(tick), bottom + 2)], "grid") for tick, _ in axis.ticks]
    shapes += [Label((axis(tick), bottom + 18), words, anchor="middle") for tick, words in axis.ticks]
    for row, (name, words) in enumerate(rows):
        shapes.append(Label((8, row * _ROW + 14), clip(name, 40), "name"))
        shapes.append(Label((_WIDTH + _SIDE - 12, row * _ROW + 14), words, "value", "end"))
    numbers = "; ".join(f"{name} {words}" for name, words in rows)
    return Drawing(_WIDTH + _SIDE, bottom + 26, [*shapes, *bars], f"{title}: {numbers}.")


def _accuracy_axis(values: Sequence[float], title: str) -> Axis:
    low = max(0.0, min(0.9, math.floor(10 * min(values) - 0.1) / 10))
    return linear_axis(low, max(1.0, *values), _BOTTOM, _TOP, title, _tick_percent)


def _key(names: Iterable[str], styles: Styles) -> list[tuple[SeriesStyle, str]]:
    """Each series with its style; nothing where two look alike, since such a key would mislead."""
    key = {name: styles[name] for name in names}
    own = [style for style in key.values() if not style.dashed]
    return [(style, name) for name, style in key.items()] if len(set(own)) == len(own) else []


def _after_each(tasks: int) -> list[str]:
    return [f"after {task}" for task in range(1, tasks + 1)]


def _tick_percent(value: float) -> str:
    return f"{round(100 * value, 6):g}%".replace("-", "−")


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 1 else f"{value:.2g}"
