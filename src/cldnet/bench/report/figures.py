"""The accuracy of a stream's methods: against memory, after each task, and as a matrix of tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cldnet.bench.report.axes import Axis, frame, linear_axis, log_axis, task_axis
from cldnet.bench.report.names import beside, spread
from cldnet.bench.report.reading import scores_of
from cldnet.bench.report.scene import Box, Label, Line, Look, Marks, Panel, Plot, Scene, Shape, Table
from cldnet.bench.report.style import GREY, MARKERS, SHADES
from cldnet.bench.summary import Matrix, Summary
from cldnet.bench.wording import clip, human_bytes, percent, yes_no

__all__ = [
    "BOUNDS",
    "SIDE",
    "WIDTH",
    "Looks",
    "accuracy",
    "curves",
    "look_of",
    "looks_of",
    "matrices",
    "memory",
    "per_cent",
]

#: Nothing is done against forgetting; all data is kept. What a method is worth lies between them.
BOUNDS = {"finetune": Look(GREY, 4, dashed=True), "joint": Look(GREY, 2, dashed=True)}
WIDTH, HEIGHT, SIDE = 400, 304, 140
LEFT, TOP, BOTTOM = 56, 44, 260
NO_KEY = " There are more methods than colours and shapes: the numbers below name the marks."
Looks = Mapping[str, Look]


def looks_of(summaries: Sequence[Summary]) -> dict[str, Look]:
    """Give every name the look that it has in all plots."""
    looks: dict[str, Look] = {}
    for summary in summaries:
        rank = sum(not look.dashed for look in looks.values())
        looks.setdefault(summary.name, BOUNDS.get(summary.method) or look_of(rank, GREY))
    return looks


def look_of(rank: int, colours: int) -> Look:
    """Give a series the next colour and shape; colours come again with other shapes.

    Examples
    --------
    >>> look_of(0, 7), look_of(7, 7)
    (Look(colour=0, mark=0, dashed=False), Look(colour=0, mark=1, dashed=False))
    """
    return Look(rank % colours, (rank % colours + rank // colours) % len(MARKERS))


def memory(summaries: Sequence[Summary], looks: Looks) -> Plot | None:
    """Plot accuracy against bytes kept: the promise in one picture."""
    shown = [(s, s.accuracy, max(s.bytes_kept or 0, 1)) for s in summaries if s.accuracy is not None]
    if not shown:
        return None
    x = log_axis([kept for *_, kept in shown], LEFT + 12, WIDTH, "bytes kept, all told", _short_bytes)
    y = _accuracy_axis(
        [v for s, *_ in shown for v in scores_of(s, "average_accuracy")], "mean accuracy after the last task (↖ better)"
    )
    shapes = frame(x, y, WIDTH + SIDE, HEIGHT)
    places = [(x.scale(kept), y.scale(value)) for _, value, kept in shown]
    names = [clip(s.marked_name, 28) + (" (grows)" if s.grows else "") for s, *_ in shown]
    found = beside(places, names, (LEFT, TOP - 26), (WIDTH + SIDE, BOTTOM))
    leads = [(name.lead, looks[s.name]) for name, (s, *_) in zip(found, shown, strict=True) if name and name.lead]
    shapes += [Line(lead, "lead", look) for lead, look in leads]
    for (s, value, kept), place in zip(shown, places, strict=True):
        low, high = (min(max(value + sign * (s.accuracy_std or 0), y.scale.low), 1.0) for sign in (-1, 1))
        if high > low:
            shapes.append(Line(((place[0], y.scale(low)), (place[0], y.scale(high))), "whisker", looks[s.name]))
        title = f"{s.name}: {s.accuracy_text}, {human_bytes(kept)}"
        shapes.append(Marks((place,), looks[s.name], title, 6, hollow=s.rests_on_data))
    shapes += [name.label for name in found if name is not None]
    named, key = None not in found, _key(shown, looks)
    figures = "; ".join(f"{s.name} {s.accuracy_text} with {human_bytes(kept)}" for s, _, kept in shown)
    rows = (
        (s.marked_name, s.accuracy_text, human_bytes(b), yes_no(s.keeps_data), yes_no(s.grows)) for s, _, b in shown
    )
    use = ", or learn from data of outside the stream (†)" if any(s.outside for s, *_ in shown) else ""
    return Plot(
        "memory",
        "Accuracy against memory",
        "Accuracy after the last task, the mean over all tasks, against all that is kept to learn on. Filled marks keep no "
        f"data, hollow ones keep some{use}; the upper left is best.{'' if named or key else NO_KEY}",
        (Panel(Scene(WIDTH + SIDE, HEIGHT, tuple(shapes)), f"Accuracy against bytes kept: {figures}."),),
        Table(("Method", "Accuracy", "Bytes kept", "Keeps data?", "Grows?"), tuple(rows)),
        key,
        named,
    )


def accuracy(summaries: Sequence[Summary], looks: Looks) -> Plot | None:
    """Plot the mean accuracy over the tasks seen so far, after each task."""
    shown = [(s, s.curve) for s in summaries if s.curve is not None]
    if not shown:
        return None
    series = [(s.name, curve, s.run_curves if s.runs > 1 else []) for s, curve in shown]
    scene, named = curves(series, looks, "mean accuracy on the tasks so far")
    key = _key(shown, looks)
    tasks = max(len(curve) for _, curve in shown)
    ends = "; ".join(f"{s.name} {percent(curve[-1])}" for s, curve in shown)
    return Plot(
        "accuracy",
        "Accuracy after each task",
        "The mean over the tasks so far, with all classes seen so far as candidates. Strong lines are means over runs, thin "
        f"lines are single runs.{'' if named or key else NO_KEY}",
        (Panel(scene, f"Mean accuracy over the tasks seen so far. After the last task: {ends}."),),
        Table(
            ("Method", *(f"after {task}" for task in range(1, tasks + 1))),
            tuple((s.name, *map(percent, curve)) for s, curve in shown),
        ),
        key,
        named,
    )


def curves(
    series: Sequence[tuple[str, Sequence[float], Sequence[Sequence[float]]]], looks: Looks, title: str, low: float = 1.0
) -> tuple[Scene, bool]:
    """Draw a strong line and thin ones for each series, a value a task; say also whether there was room for their names."""
    tasks = max(len(curve) for _, curve, _ in series)
    x = task_axis(tasks, LEFT + 12, WIDTH - 10)
    y = _accuracy_axis([low, *(v for _, curve, runs in series for line in (curve, *runs) for v in line)], title)
    shapes = frame(x, y, WIDTH, HEIGHT)
    for name, curve, runs in series:
        for role, lines in (("run", runs), ("mean", [curve])):
            shapes += [Line(_places(line, x, y), role, looks[name]) for line in lines]
        shapes += [
            Marks((place,), looks[name], f"{name}, after task {task}: {percent(value)}")
            for task, (place, value) in enumerate(zip(_places(curve, x, y), curve, strict=True), start=1)
        ]
    gap = min(17.0, (BOTTOM - TOP) / len(series))
    if gap < 12:
        return Scene(WIDTH, HEIGHT, tuple(shapes)), False
    wanted = spread([y.scale(curve[-1]) for _, curve, _ in series], gap)
    lift = min(0.0, BOTTOM + 4 - max(wanted)) + max(0.0, TOP - 4 - min(wanted))
    for (name, curve, _), at in zip(series, wanted, strict=True):
        start = (x.scale(len(curve)) + 7, y.scale(curve[-1]))
        shapes.append(Line((start, (WIDTH + 10, at + lift), (WIDTH + 14, at + lift)), "lead", looks[name]))
        shapes.append(Label((WIDTH + 18, at + lift + 4), clip(name, 19), "name"))
    return Scene(WIDTH, HEIGHT, tuple(shapes), SIDE), True


def matrices(summaries: Sequence[Summary]) -> Plot | None:
    """Plot the accuracy on each task, after each task, one map a method."""
    shown = [(s, s.matrix) for s in summaries if s.matrix is not None]
    if not shown:
        return None
    tasks = max(len(matrix) for _, matrix in shown)
    rows = tuple(
        (f"{s.name}, after task {number}", *(percent(v) for v in row), *[""] * (tasks - len(row)))
        for s, matrix in shown
        for number, row in enumerate(matrix, start=1)
    )
    panels = []
    for s, matrix in shown:
        ends = "; ".join(f"task {task} {percent(value)}" for task, value in enumerate(matrix[-1], start=1))
        label = f"Accuracy matrix of {s.name}. After the last task: {ends}."
        panels.append(Panel(_heat(matrix), label, clip(s.name)))
    return Plot(
        "matrices",
        "What is left of each task",
        "Each row is the state after one task, each column the accuracy on one task, in per cent. A column that fades "
        "downwards is a task that is forgotten.",
        tuple(panels),
        Table(("Method", *(f"task {task}" for task in range(1, tasks + 1))), rows),
        wide=True,
        columns=min(4, math.ceil(len(panels) / math.ceil(len(panels) / 4))),  # six stand as three and three
    )


def _heat(matrix: Matrix) -> Scene:
    size = len(matrix)
    cell = 40 if size <= 6 else 32 if size <= 10 else 26 if size <= 20 else 12
    shapes: list[Shape] = [
        Label((34, 10), "accuracy on task"),
        Label((10, 34), "after task", anchor="end", turned=True),
    ]
    for i, row in enumerate(matrix):
        if i % math.ceil(12 / cell * size / 20) == 0 or cell > 12:
            shapes.append(Label((28, 34 + (i + 0.5) * cell + 3), str(i + 1), anchor="end"))
            shapes.append(Label((34 + (i + 0.5) * cell - 1, 28), str(i + 1), anchor="middle"))
        for j, value in enumerate(row):
            x, y = 34 + j * cell, 34 + i * cell
            shade = round(max(0.0, min(1.0, value)) * (SHADES - 1))
            title = f"After task {i + 1}, task {j + 1}: {percent(value)}"
            shapes.append(Box((x, y), cell - 2, cell - 2, f"h{shade}", title))
            if cell > 12:  # in finer maps numbers would only be dirt
                words = f"{100 * value:.{1 if cell == 40 else 0}f}".replace("100.0", "100")
                shapes.append(Label((x + cell / 2 - 1, y + cell / 2 + 3), words, f"t{shade}", "middle"))
    side = size * cell + 36
    return Scene(max(side, 150), max(side, 104), tuple(shapes))  # room for the words along both sides


def _accuracy_axis(values: Sequence[float], title: str) -> Axis:
    low = max(0.0, min(0.9, math.floor(10 * min(values) - 0.1) / 10))
    return linear_axis(low, max(1.0, *values), BOTTOM, TOP, title, per_cent)


def _places(values: Sequence[float], x: Axis, y: Axis) -> tuple[tuple[float, float], ...]:
    return tuple((x.scale(task), y.scale(value)) for task, value in enumerate(values, start=1))


def _key(shown: Sequence[tuple[Summary, *tuple[object, ...]]], looks: Looks) -> tuple[tuple[Look, str], ...]:
    """Return each series with its look; nothing where two look alike, since such a key would mislead."""
    key = {row[0].name: looks[row[0].name] for row in shown}
    own = [look for look in key.values() if not look.dashed]
    return tuple((look, name) for name, look in key.items()) if len(set(own)) == len(own) else ()


def per_cent(value: float) -> str:
    """Write a tick of an axis of fractions.

    Examples
    --------
    >>> per_cent(0.25)
    '25%'
    """
    return f"{round(100 * value, 6):g}%".replace("-", "−")


def _short_bytes(value: float) -> str:
    return human_bytes(value).replace(".0 ", " ")
