"""Pictures of a run: a row for every ratio, with its spread and its target, and a curve for everything that grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from textwrap import wrap

from benchmarks.speed import say
from benchmarks.speed.record import Curve, Finding
from benchmarks.speed.result import together

from cldnet.bench.formatting import human_bytes
from cldnet.bench.report.drawing import (
    GREY,
    Axis,
    Drawing,
    Group,
    Label,
    Line,
    Marks,
    Plot,
    SeriesStyle,
    Shape,
    frame,
    log_axis,
)

WIDTH, _LEFT, _RIGHT = 540, 92, 360
_LINE, _ROW, _GAP = 17, 20, 8
_LETTERS = 60  # of a line, as wide as a phone shows them (see page.css)
_CURVE_LETTERS = 46
_LOOKS = {True: SeriesStyle(2, 0), False: SeriesStyle(1, 7), None: SeriesStyle(0, 1)}
_KEY = ((_LOOKS[True], "target met"), (_LOOKS[False], "target not met"), (_LOOKS[None], "no target"))
Titled = tuple[str, list[Finding]]


def ratios(part: str, title: str, findings: Sequence[Finding]) -> Plot | None:
    """Draw ratios on one scale of equal steps for equal factors; those with the same words share a heading."""
    shown = [one for one in findings if one.ratio.low > 0]
    if not shown:
        return None
    groups: list[Titled] = [(heading, list(own)) for heading, own in groupby(together(shown), key=_heading)]
    values = [value for one in shown for value in (one.ratio.low, one.ratio.high, one.target, _cpu(one)) if value]
    axis = log_axis([1.0, *values], _LEFT, _RIGHT, "", lambda value: f"{value:g}")
    half = math.ceil(len(groups) / 2) if len(groups) > 2 else len(groups)
    panels = [_rows(axis, own) for own in (groups[:half], groups[half:]) if own]
    used = {one.met for one in shown}
    return Plot(
        f"{part}-ratios",
        title,
        "Filled: by the clock, the bar from its lower to its upper quartile; hollow: by the CPU time of all cores. The "
        "line begins at 1, where both sides are equal; the upright stroke is the target.",
        tuple(panels),
        key=tuple((look, words) for (met, look), (_, words) in zip(_LOOKS.items(), _KEY, strict=True) if met in used),
        named=False,
        wide=len(panels) > 1,
        columns=2,
    )


def growth(part: str, title: str, curves: Sequence[Curve]) -> Plot:
    """Draw curves of growth, each with the line that was fitted and the one that the mathematics says."""
    titles = [wrap(one.title, _CURVE_LETTERS) for one in curves]
    room = _LINE * max(map(len, titles)) + 4

    def panel(curve: Curve, lines: Sequence[str]) -> Drawing:
        width, height, shapes = _curve(curve)
        words = [Label((0, _LINE * (number + 1) - 5), line, "name") for number, line in enumerate(lines)]
        alternative = f"{curve.title}: exponent {say.exponent(curve)}."
        return Drawing(width, height + room, [*words, Group((0, room), shapes)], alternative)

    return Plot(
        f"{part}-growth",
        title,
        "Both axes in equal steps for equal factors: the slope of the line is the exponent, 0 where nothing grows, 1 where "
        "it grows in proportion. Dashed: the slope that the mathematics says.",
        tuple(map(panel, curves, titles)),
        wide=True,
        columns=3,
    )


def _heading(finding: Finding) -> str:
    if finding.target is None:
        return finding.title
    aim = f"at {'least' if finding.higher_is_better else 'most'} {finding.target:g}"
    return f"{finding.title}: {aim.replace(' ', chr(0xA0))}"  # these words stay together at the end of a line


def _cpu(finding: Finding) -> float | None:
    return finding.cpu.median if finding.cpu.median > 0 and finding.cpu != finding.ratio else None


def _rows(axis: Axis, groups: Sequence[Titled]) -> Drawing:
    shapes: list[Shape] = []
    top = 0.0
    for heading, findings in groups:
        for line in wrap(heading, _LETTERS, break_long_words=True):
            top += _LINE
            shapes.append(Label((8, top - 4), line, "name"))
        for finding in findings:
            shapes += _row(axis, finding, top + _ROW / 2)
            top += _ROW
        top += _GAP
    lines: list[Shape] = [Line(((axis(1), 2), (axis(1), top)), "base")]
    lines += [Line(((at, 2), (at, top)), "grid") for value, _ in axis.ticks if (at := axis(value))]
    ticks = [Label((axis(value), top + 16), words, anchor="middle") for value, words in axis.ticks]
    words = "; ".join(f"{heading}, {_said(finding)}" for heading, own in groups for finding in own)
    return Drawing(WIDTH, top + 24, (*lines, *shapes, *ticks), f"Ratios: {words}.")


def _row(axis: Axis, finding: Finding, at: float) -> list[Shape]:
    look, scale, found = _LOOKS[finding.met], axis, finding.ratio
    middle = scale(found.median)
    shapes: list[Shape] = [
        Label((8, at + 4), say.thread_count(finding.threads)),
        Line(((scale(1), at), (middle, at)), "run", look),
        Line(((scale(found.low), at), (scale(found.high), at)), "mean", look),
    ]
    if finding.target is not None and finding.target > 0:
        aim = scale(finding.target)
        shapes.append(Line(((aim, at - 9), (aim, at + 9)), "mean", SeriesStyle(GREY, 0)))
    cpu = _cpu(finding)
    if cpu is not None:
        words = f"{finding.name}, by CPU time: {say.spread(finding.cpu)}"
        shapes.append(Marks(((scale(cpu), at),), SeriesStyle(look.colour, 0), words, 4.5, hollow=True))
    shapes.append(Marks(((middle, at),), look, f"{finding.name}: {say.spread(found)}", 4.5))
    mark = "" if finding.met is None else f" {say.MARKS[finding.met]}"
    return [*shapes, Label((WIDTH - 8, at + 4), say.spread(found) + mark, "value", "end")]


def _said(finding: Finding) -> str:
    verdict = "" if finding.met is None else f", {'met' if finding.met else 'not met'}"
    return f"{say.thread_count(finding.threads)} {say.spread(finding.ratio)}{verdict}"


def _curve(curve: Curve) -> tuple[float, float, list[Shape]]:
    width, height = 400, 304
    across, up = ([point[k] for point in curve.points] for k in (0, 1))
    x = log_axis(across, 84, width - 16, curve.across, _tick(curve.across))
    ends = (min(across), max(across))
    # Lines of these slopes through the middle of all points, which is where the fitted one goes through.
    middle = [math.exp(math.fsum(map(math.log, axis)) / len(axis)) for axis in (across, up)]

    def line(slope: float) -> list[tuple[float, float]]:
        return [(end, middle[1] * (end / middle[0]) ** slope) for end in ends]

    slopes = [curve.exponent, *([] if curve.expected is None else [curve.expected])]
    y = log_axis([*up, *(value for slope in slopes for _, value in line(slope))], 260, 44, curve.up, _tick(curve.up))

    def places(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        return tuple((x(a), y(b)) for a, b in points)

    shapes = frame(x, y, width, height)
    if curve.expected is not None:
        shapes.append(Line(places(line(curve.expected)), "mean", SeriesStyle(GREY, 0, dashed=True)))
    shapes.append(Line(places(line(curve.exponent)), "mean", SeriesStyle(0, 0)))
    for a, b in curve.points:
        words = f"{curve.across} {say.quantity(a)}: {say.quantity(b)} {curve.up}"
        shapes.append(Marks(places([(a, b)]), SeriesStyle(0, 0), words))
    shapes.append(Label((84, 28), f"exponent {say.exponent(curve)}", "value"))
    return width, height, shapes


def _tick(words: str) -> Callable[[float], str]:
    return human_bytes if "bytes" in words else say.short
