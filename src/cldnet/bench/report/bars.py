"""Forgetting and time: a row a method, the least first."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from cldnet.bench.report.axes import Axis, linear_axis
from cldnet.bench.report.figures import SIDE, WIDTH, Looks, per_cent
from cldnet.bench.report.reading import numbers, scores_of
from cldnet.bench.report.scene import Box, Label, Line, Marks, Panel, Plot, Scene, Shape, Table
from cldnet.bench.summary import Summary
from cldnet.bench.wording import clip, percent_pm

__all__ = ["forgetting", "time"]

_ROW = 38


def forgetting(summaries: Sequence[Summary], looks: Looks) -> Plot | None:
    """Plot how much of each task's best accuracy is lost at the end, least first."""
    shown = [(s, s.forgetting, scores_of(s, "forgetting")) for s in summaries if s.forgetting is not None]
    if not shown:
        return None
    shown.sort(key=lambda row: row[1])
    values = [v for *_, runs in shown for v in runs]
    axis = linear_axis(min(0, *values), max(0.05, *values), 8, WIDTH + SIDE - 12, "", per_cent)
    shapes: list[Shape] = _rows_frame(axis, len(shown))
    texts = [percent_pm(value, stdev(runs) if len(runs) > 1 else None) for _, value, runs in shown]
    for row, ((s, value, runs), words) in enumerate(zip(shown, texts, strict=True)):
        at, look = _row_at(row), looks[s.name]
        shapes += _row_words(s.name, words, row)
        shapes.append(Line(((axis.scale(0), at), (axis.scale(value), at)), "mean", look))
        shapes += [Line(((axis.scale(run), at - 5), (axis.scale(run), at + 5)), "whisker", look) for run in runs]
        shapes.append(Marks(((axis.scale(value), at),), look, f"{s.name}: {words}", 5.5))
    figures = "; ".join(f"{s.name} {words}" for (s, *_), words in zip(shown, texts, strict=True))
    return Plot(
        "forgetting",
        "Forgetting",
        "The mean loss from a task’s best accuracy to its last; small strokes are single runs.",
        (Panel(_rows_scene(shapes, len(shown)), f"Forgetting, least first: {figures}."),),
        Table(("Method", "Forgetting"), tuple((s.name, words) for (s, *_), words in zip(shown, texts, strict=True))),
    )


def time(summaries: Sequence[Summary], looks: Looks) -> Plot | None:
    """Plot the seconds of training and of evaluation, least first."""
    shown = [(s, s.seconds, _seconds(s, "train"), _seconds(s, "evaluate")) for s in summaries if s.seconds is not None]
    if not shown:
        return None
    shown.sort(key=lambda row: row[1])
    longest = max(max(total, train + evaluate) for _, total, train, evaluate in shown)
    axis = linear_axis(0, max(longest, 1e-3), 8, WIDTH + SIDE - 12, "", lambda seconds: f"{seconds:,.6g} s")
    shapes: list[Shape] = _rows_frame(axis, len(shown))
    for row, (s, total, train, evaluate) in enumerate(shown):
        at, role = _row_at(row), f"s{looks[s.name].colour}"
        shapes += _row_words(s.name, f"{_some(total)} s", row)
        first, second, end = axis.scale(0), axis.scale(train), axis.scale(train + evaluate)
        shapes.append(Box((first, at - 5), max(second - first, 1), 10, role, f"{s.name}: training {_some(train)} s"))
        shapes.append(Box((second, at - 5), end - second, 10, f"{role} faint", f"evaluation {_some(evaluate)} s"))
    figures = "; ".join(f"{s.name} {_some(total)} s" for s, total, *_ in shown)
    return Plot(
        "time",
        "Time",
        "Mean seconds of a run. Solid: training; pale: evaluation after each task. The figure is the whole run.",
        (Panel(_rows_scene(shapes, len(shown)), f"Mean seconds of a run, shortest first: {figures}."),),
        Table(
            ("Method", "Training (s)", "Evaluation (s)", "Whole run (s)"),
            tuple((s.name, _some(train), _some(evaluate), _some(total)) for s, total, train, evaluate in shown),
        ),
    )


# Names stand above their bars, so that a long one takes no room from the bars, and a phone can show both.
def _row_at(row: int) -> float:
    return row * _ROW + 26.0


def _row_words(name: str, words: str, row: int) -> list[Shape]:
    return [
        Label((8, row * _ROW + 14), clip(name, 40), "name"),
        Label((WIDTH + SIDE - 12, row * _ROW + 14), words, "value", "end"),
    ]


def _rows_frame(axis: Axis, rows: int) -> list[Shape]:
    lines = [Line(((axis.scale(tick), 2), (axis.scale(tick), rows * _ROW + 2)), "grid") for tick, _ in axis.ticks]
    return [*lines, *(Label((axis.scale(t), rows * _ROW + 18), words, anchor="middle") for t, words in axis.ticks)]


def _rows_scene(shapes: Sequence[Shape], rows: int) -> Scene:
    return Scene(WIDTH + SIDE, rows * _ROW + 26, tuple(shapes))


def _seconds(summary: Summary, what: str) -> float:
    return fmean(sum(numbers(run, run["seconds"].get(what, ()))) for run in summary.results)


def _some(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds >= 1 else f"{seconds:.2g}"
