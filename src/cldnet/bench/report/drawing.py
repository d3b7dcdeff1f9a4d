"""Draw plots: shapes at pixel positions, written as SVG for pages and files, and as PNG by matplotlib."""

from __future__ import annotations

import io
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup
from sklearn.isotonic import isotonic_regression

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

Point = tuple[float, float]
Rectangle = tuple[float, float, float, float]  # left, top, right, bottom


def read_file(name: str) -> Markup:
    """Return a style sheet or script among the templates, as it is."""
    return Markup(files(__package__).joinpath("templates", name).read_text("utf-8"))


_PLOT_CSS = read_file("plot.css")
#: The colours of a light page by name, as plot.css has them.
LIGHT: dict[str, str] = dict(re.findall(r"--(\w+):(#\w+)", _PLOT_CSS))
COLOURS = sum(name.startswith("s") and name[1:].isdigit() for name in LIGHT)  # of series
SHADES = sum(name.startswith("h") for name in LIGHT)  # of a heat map: 0%, 10%, … 100%
GREY = 7  # the colour of fine-tuning and joint training, which are there to compare with
MARKERS = "os^DvPhX"  # shapes of marks, by matplotlib's names; `_CORNERS` has the corners of the same ones


class SeriesStyle(NamedTuple):
    """Colour and mark of a series, by number."""

    colour: int
    mark: int
    dashed: bool = False


class Line(NamedTuple):
    """A line through points; its role says how strong it is: grid, base, mean, run, lead or whisker."""

    points: Sequence[Point]
    role: str
    style: SeriesStyle | None = None


class Marks(NamedTuple):
    """Marks of a series; hollow ones stand for methods that keep data. The title is the tooltip."""

    points: Sequence[Point]
    style: SeriesStyle
    title: str = ""
    size: float = 5.0
    hollow: bool = False


class Label(NamedTuple):
    """Text at a point; its role says how it looks: axis, name, value, head or, on shade 7 of a heat map, "t7"."""

    point: Point
    text: str
    role: str = "axis"
    anchor: str = "start"
    rotated: bool = False


class Box(NamedTuple):
    """A filled box; its role names the colour: "s3" for series colour 3, "h7" for shade 7 of a heat map."""

    point: Point
    width: float
    height: float
    role: str
    title: str = ""


class Group(NamedTuple):
    """Shapes that are moved together."""

    offset: Point
    shapes: Sequence[Shape]


Shape = Line | Marks | Label | Box | Group


class Drawing(NamedTuple):
    """Shapes on a sheet, with a text alternative; labels may reach `side` pixels out of it, to the right.

    Drawings of one `group` stand below a common heading.
    """

    width: float
    height: float
    shapes: Sequence[Shape]
    alternative: str = ""
    title: str = ""
    group: str = ""
    side: float = 0


class Plot(NamedTuple):
    """One or several drawings (panels) with a title, a caption, a key, and a table of the same numbers.

    `name` is part of the names of its files. If the panels do not name their series (`named`), the key is always shown. A
    wide plot takes the whole width of the page; in a file, `columns` panels stand beside each other.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Drawing]
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    key: Sequence[tuple[SeriesStyle, str]] = ()
    named: bool = True
    wide: bool = False
    columns: int = 4

    def groups(self) -> list[tuple[str, list[Drawing]]]:
        """Panels below a common heading, and that heading."""
        return [(group, list(panels)) for group, panels in groupby(self.panels, key=lambda panel: panel.group)]


class Axis(NamedTuple):
    """Maps values to pixels, on a linear or a logarithmic scale; each tick has a value and a text."""

    low: float
    high: float
    start: float
    end: float
    ticks: Sequence[tuple[float, str]] = ()
    title: str = ""
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, at = map(math.log if self.log else float, (self.low, self.high, value))
        return self.start + (self.end - self.start) * ((at - low) / (high - low) if high > low else 0.5)


def linear_axis(
    low: float, high: float, start: float, end: float, title: str, tick_text: Callable[[float], str]
) -> Axis:
    """Make an axis from `low` to `high` with three to six round ticks."""
    span = high - low or 1.0
    rough = 10 ** math.floor(math.log10(span))
    step = next(step for factor in (0.1, 0.2, 0.5, 1, 2) if span / (step := factor * rough) <= 6.001)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, start, end, [(k * step, tick_text(k * step)) for k in range(first, last + 1)], title)


def log_axis(values: Sequence[float], start: float, end: float, title: str, tick_text: Callable[[float], str]) -> Axis:
    """Make a logarithmic axis around positive values, with ticks at powers of ten or, if these are few, between them."""
    low, high = min(values), max(values)
    margin = max((high / low) ** 0.08, 3.0 if high < 3 * low else 1.4)
    low, high = low / margin, high * margin
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        inside = [tick for e in exponents for factor in factors if low <= (tick := factor * 10.0**e) <= high]
        if len(inside) >= 3:
            break
    kept = inside[:: math.ceil(len(inside) / 6)] if inside else []
    return Axis(low, high, start, end, [(tick, tick_text(tick)) for tick in kept], title, log=True)


def frame(x: Axis, y: Axis, width: float, height: float) -> list[Shape]:
    """Draw both axes: ticks, titles, and a line across at each tick of `y`."""
    bottom = max(y.start, y.end)
    left, right = min(x.start, x.end) - 12, max(x.start, x.end) + 10
    shapes: list[Shape] = []
    for value, words in y.ticks:
        shapes.append(Line([(left, y(value)), (right, y(value))], "grid"))
        shapes.append(Label((left - 6, y(value) + 4), words, anchor="end"))
    shapes += [Label((x(value), bottom + 18), words, anchor="middle") for value, words in x.ticks]
    shapes += [Line([(left, bottom), (right, bottom)], "base"), Label((right, height - 4), x.title, anchor="end")]
    return [*shapes, Label((0, 10), y.title)] if y.title else shapes


# Labels that do not cover each other

_LETTER, _LINE, _RADIUS = 8.6, 17, 7  # width of a letter, height of a line, half the side of a mark
#: Where the name of a mark may stand, the best place first: beside it, above or below it, then farther and farther away.
_OFFSETS = [
    *((10, 4, "start"), (-10, 4, "end")),
    *((dx, dy, anchor) for dy in (-11, 22) for dx, anchor in ((0, "middle"), (4, "start"), (-4, "end"))),
    *(
        (dx, dy, "start" if dx > 0 else "end")
        for far in (18, 30, 42, 54)
        for dx in (20, -20)
        for dy in (4 + far, 4 - far)
    ),
]


def spread_labels(positions: Sequence[float], gap: float) -> list[float]:
    """Move labels along a line, as little as possible, until they are `gap` apart; their order stays."""
    order = np.argsort(positions, kind="stable")
    steps = gap * np.arange(len(positions))
    moved = np.empty(len(positions))
    moved[order] = isotonic_regression(np.asarray(positions, dtype=float)[order] - steps) + steps
    return [float(position) for position in moved]


def place_names(
    marks: Sequence[Point], names: Sequence[str], top_left: Point, bottom_right: Point
) -> list[tuple[Label, tuple[Point, Point] | None] | None]:
    """Find a place near each mark for its name, clear of all marks, names and leads; None where there is none.

    A lead is a line from the mark to its name, unless that stands right beside it.
    """
    squares = [(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for x, y in marks]
    placed: list[tuple[Label, tuple[Point, Point] | None] | None] = [None] * len(marks)
    boxes: list[Rectangle] = []
    leads: list[Point] = []
    for number in sorted(range(len(marks)), key=lambda number: marks[number][1]):
        own = marks[number]
        # Marks may overlap: a lead need not avoid those that it starts in.
        others = [square for square in squares if not _contains(square, own)]
        for dx, dy, anchor in _OFFSETS:
            x, y = own[0] + dx, own[1] + dy
            label = Label((x, y), names[number], "name", anchor)
            end = None if dy == 4 else (x, min(max(own[1], y - 11), y + 3))
            box, lead = label_box(label), []
            if end is not None:  # points so close that no name or mark fits between them
                steps = math.ceil(math.dist(own, end) / 3)
                lead = [tuple(point) for point in np.linspace(own, end, steps, endpoint=False).tolist()]
            if (
                (top_left[0] <= box[0] and top_left[1] <= box[1])
                and (box[2] <= bottom_right[0] and box[3] <= bottom_right[1])
                and not any(_overlap(box, other) for other in (*squares, *boxes))
                and not any(_contains(box, point) for point in leads)
                and not any(_contains(other, point) for point in lead for other in (*others, *boxes))
                and _distance(own, box) <= min(_distance(mark, box) for mark in marks)
            ):
                placed[number] = label, None if end is None else (own, end)
                boxes.append(box)
                leads += lead
                break
    return placed


def label_box(label: Label) -> Rectangle:
    """Return the room that a label needs."""
    width = _LETTER * (len(label.text) + 1)  # one letter more, so that two names in a line do not read as one
    left = label.point[0] - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return left, label.point[1] + 3 - _LINE, left + width, label.point[1] + 3


def _distance(point: Point, box: Rectangle) -> float:
    return math.hypot(*(max(box[k] - point[k], 0.0, point[k] - box[k + 2]) for k in (0, 1)))


def _contains(box: Rectangle, point: Point) -> bool:
    return box[0] < point[0] < box[2] and box[1] < point[1] < box[3]


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def sheet(plot: Plot, heading: str) -> Drawing:
    """Arrange all panels of a plot on one sheet, with their titles and, unless they name their series, the key."""
    shapes: list[Shape] = [Label((0, 16), heading, "head")]
    width, top = 400.0, 34.0
    for group, panels in plot.groups():
        if group:
            shapes.append(Label((0, top + 12), group, "head"))
            top += 26
        room = 24 + max(max(panel.width + panel.side, 7.5 * len(panel.title)) for panel in panels)
        for start in range(0, len(panels), plot.columns):
            row = panels[start : start + plot.columns]
            title = 20 if any(panel.title for panel in row) else 0
            for column, panel in enumerate(row):
                shapes += [Label((column * room, top + 12), panel.title, "name")] if title else []
                shapes.append(Group((column * room, top + title), panel.shapes))
            width, top = max(width, len(row) * room - 24), top + title + max(panel.height for panel in row) + 20
    if not plot.named:
        left = 0.0
        for style, name in plot.key:
            room = 30 + 8 * len(name)
            if left and left + room > width:
                left, top = 0.0, top + 20
            shapes += [Marks([(left + 6, top + 8)], style), Label((left + 18, top + 12), name)]
            left += room
        top += 24
    return Drawing(width + 40, top + 20, [Group((20, 20), shapes)])


# SVG

_PLUS = (
    *((-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33)),
    *((0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33)),
)
_CORNERS: tuple[Sequence[Point], ...] = (
    (),  # a circle
    ((-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)),
    ((0, -1.1), (1, 0.8), (-1, 0.8)),
    ((0, -1.2), (1, 0), (0, 1.2), (-1, 0)),
    ((0, 1.1), (1, -0.8), (-1, -0.8)),
    _PLUS,
    ((0, -1), (0.87, -0.5), (0.87, 0.5), (0, 1), (-0.87, 0.5), (-0.87, -0.5)),
    [((x - y) * 0.75, (x + y) * 0.75) for x, y in _PLUS],
)


def clean(value: object) -> str:
    """Replace characters that XML forbids, and those with which an untrusted name could reverse the text around it."""
    # The two joiners are part of words, in emoji and in Persian, and reverse nothing.
    unsafe, joiners = {"Cc", "Cf", "Cs", "Cn"}, "\u200c\u200d"
    return "".join("\ufffd" if unicodedata.category(c) in unsafe and c not in joiners else c for c in str(value))


def svg(drawing: Drawing) -> Markup:
    """Write a drawing for a page, whose style sheet has the colours."""
    label = f'role="img" aria-label="{_escaped(drawing.alternative)}"'
    return Markup(f'<svg class="plot" {label} {_size(drawing)}>{_elements(drawing.shapes)}</svg>')


def svg_file(plot: Plot, heading: str) -> bytes:
    """Write all panels of a plot as a file that needs no other; it is light, since it may be printed."""
    drawing = sheet(plot, heading)
    description = _escaped(" ".join(panel.alternative for panel in plot.panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" {_size(drawing)}>\n'
        f"<title>{_escaped(heading)}</title><desc>{description}</desc>\n<style>{_PLOT_CSS}</style>\n"
        f'<rect class="paper" width="100%" height="100%"/>\n{_elements(drawing.shapes)}</svg>\n'
    ).encode()


def key_mark(style: SeriesStyle) -> Markup:
    """Draw the mark of a series for a key."""
    size = 'viewBox="-8 -8 16 16" width="16" height="16"'
    return Markup(f'<svg class="plot" {size} aria-hidden="true">{_elements([Marks([(0, 0)], style)])}</svg>')


def _elements(shapes: Sequence[Shape]) -> str:
    return "\n".join(map(_element, shapes))


def _element(shape: Shape) -> str:
    match shape:
        case Group((x, y), shapes):
            return f'<g transform="translate({_n(x)} {_n(y)})">{_elements(shapes)}</g>'
        case Line(points, role, style):
            path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
            series = "" if style is None else f" s{style.colour}{' dashed' * style.dashed}"
            return f'<path class="{role}{series}" d="{path}"/>'
        case Marks(points, style, title, size, hollow):
            path = "".join(_mark(x, y, style.mark, size) for x, y in points)
            role = f"mark s{style.colour}{' hollow' * hollow}{' small' * (size < 4)}"
            return f'<path class="{role}" d="{path}">{_tooltip(title)}</path>'
        case Label((x, y), text, role, anchor, rotated):
            at = f'transform="translate({_n(x)} {_n(y)}) rotate(-90)"' if rotated else f'x="{_n(x)}" y="{_n(y)}"'
            aligned = "" if anchor == "start" else f' text-anchor="{anchor}"'
            return f'<text class="{role}" {at}{aligned}>{_escaped(text)}</text>'
        case Box((x, y), width, height, role, title):
            box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
            return f'<rect class="box {role}" {box}>{_tooltip(title)}</rect>'


def _mark(x: float, y: float, mark: int, size: float) -> str:
    if not _CORNERS[mark]:
        arc = f"a{_n(size)} {_n(size)} 0 1 0 "
        return f"M{_n(x - size)} {_n(y)}{arc}{_n(2 * size)} 0{arc}{_n(-2 * size)} 0z"
    return "M" + "L".join(f"{_n(x + size * dx)} {_n(y + size * dy)}" for dx, dy in _CORNERS[mark]) + "z"


def _size(drawing: Drawing) -> str:
    width, height = _n(drawing.width), _n(drawing.height)
    return f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'


def _tooltip(text: str) -> str:
    return f"<title>{_escaped(text)}</title>" if text else ""


def _escaped(text: str) -> str:
    return escape(clean(text))


def _n(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"  # adding zero turns "-0" into "0"


# PNG

_DPI = 100
_PT = 72 / _DPI  # points, matplotlib's unit of lines and letters, in a pixel
#: Colour (none: that of the series), width and opacity of lines, as in plot.css.
_STROKES = {
    "grid": ("rule", 1.0, 1.0),
    "base": ("soft", 1.0, 1.0),
    "mean": ("", 2.25, 1.0),
    "run": ("", 1.0, 0.35),
    "lead": ("", 1.0, 0.7),
    "whisker": ("", 1.5, 0.7),
}


def new_figure(width: float, height: float) -> Figure:
    """Make an empty matplotlib figure, its size in inches, without pyplot and its global state."""
    # matplotlib is optional. A build that does not fit the installed NumPy raises RuntimeError.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            'PNG files of the plots need matplotlib: pip install ".[plots]" in a clone of CLDNet.'
        ) from error
    figure = Figure(figsize=(width, height), facecolor=LIGHT["paper"])
    FigureCanvasAgg(figure)
    return figure


def png_file(plot: Plot, heading: str) -> bytes:
    """Paint all panels of a plot; the same plot gives the same bytes."""
    drawing = sheet(plot, heading)
    figure = new_figure(drawing.width / _DPI, drawing.height / _DPI)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, drawing.width), ylim=(drawing.height, 0), autoscale_on=False)
    axes.set_axis_off()
    _paint(axes, drawing.shapes, axes.transData)
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A name may be in a script that matplotlib's font does not have: it is shown as boxes.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        figure.savefig(picture, format="png", dpi=2 * _DPI, metadata={"Software": None})
    return picture.getvalue()


def _paint(axes: Axes, shapes: Sequence[Shape], transform: Transform) -> None:
    from matplotlib.patches import Rectangle as Patch  # noqa: PLC0415  (matplotlib is optional)
    from matplotlib.patheffects import withStroke  # noqa: PLC0415
    from matplotlib.transforms import Affine2D  # noqa: PLC0415

    for shape in shapes:
        options: dict[str, Any] = {"transform": transform}
        match shape:
            case Group(offset, inner):
                _paint(axes, inner, Affine2D().translate(*offset) + transform)
            case Box(point, width, height, role, _):
                colour, *faint = role.split()
                options |= {"fc": LIGHT[colour], "alpha": 0.4 if faint else 1, "lw": 0, "zorder": 1}
                axes.add_artist(Patch(point, width, height, **options))
            case Line(points, role, style):
                name, stroke, alpha = _STROKES[role]
                options |= {"color": LIGHT[name or f"s{style.colour if style else GREY}"], "alpha": alpha, "zorder": 2}
                options |= {"lw": stroke * _PT, "ls": (0, (4, 2)) if role == "mean" and style and style.dashed else "-"}
                axes.plot(*zip(*points, strict=True), **options)
            case Marks(points, style, _, size, hollow):
                colour, paper = LIGHT[f"s{style.colour}"], LIGHT["paper"]
                face, edge = (paper, colour) if hollow else (colour, paper)
                options |= {"mfc": face, "mec": edge, "ls": "", "zorder": 3}
                options["mew"] = (2.0 if hollow else 0.8 if size >= 4 else 0.0) * _PT
                axes.plot(*zip(*points, strict=True), MARKERS[style.mark], ms=2.1 * size * _PT, **options)
            case Label(point, text, role, anchor, rotated):
                if role in {"name", "value"}:  # lines behind a name should not cross it
                    options["path_effects"] = [withStroke(linewidth=4 * _PT, foreground=LIGHT["paper"])]
                axes.text(
                    *point,
                    clean(text),
                    color=LIGHT["soft"] if role == "axis" else LIGHT.get(role, LIGHT["ink"]),
                    size={"axis": 11.0, "head": 15.0}.get(role, 12.0) * _PT,
                    ha={"start": "left", "middle": "center", "end": "right"}[anchor],
                    rotation=90 if rotated else 0,
                    rotation_mode="anchor",
                    weight="bold" if role == "head" else "normal",
                    parse_math=False,
                    zorder=4,
                    **options,
                )
