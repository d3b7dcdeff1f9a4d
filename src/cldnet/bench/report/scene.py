"""What a plot is before it is painted: lines, marks, boxes and words at places, in pixels from the upper left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

__all__ = ["Box", "Label", "Line", "Look", "Marks", "Panel", "Place", "Plot", "Scene", "Shape", "Table", "sheet"]

Place = tuple[float, float]
LETTER = 7.5  # width of a letter of a title, in a file


@dataclass(frozen=True)
class Look:
    """How a series is told from others: by colour and by the shape of its marks; numbers of both, see `style`."""

    colour: int
    mark: int
    dashed: bool = False


@dataclass(frozen=True)
class Line:
    """A line through places; the role says how strong it is drawn: grid, base, mean, run, lead or whisker."""

    places: tuple[Place, ...]
    role: str
    look: Look | None = None


@dataclass(frozen=True)
class Marks:
    """Marks of one series; hollow ones stand for methods that keep data. The title is what a pointer over them says."""

    places: tuple[Place, ...]
    look: Look
    title: str = ""
    size: float = 5.0
    hollow: bool = False


@dataclass(frozen=True)
class Label:
    """Words at a place; the role says how they are set: axis, name, value, head or, upon shade 7, "t7"."""

    place: Place
    text: str
    role: str = "axis"
    anchor: str = "start"
    turned: bool = False


@dataclass(frozen=True)
class Box:
    """A filled box; the role names its colour: "s3" for colour 3, "h7" for shade 7 of a heat map."""

    place: Place
    width: float
    height: float
    role: str
    title: str = ""


Shape = Line | Marks | Label | Box


@dataclass(frozen=True)
class Scene:
    """Shapes on a sheet of paper; names may stand beside it, on `side` pixels to its right."""

    width: float
    height: float
    shapes: tuple[Shape, ...]
    side: float = 0


@dataclass(frozen=True)
class Panel:
    """One drawing of a plot, and what it says to those who do not see it."""

    scene: Scene
    alternative: str
    title: str = ""
    group: str = ""


@dataclass(frozen=True)
class Table:
    """The figures of a plot as text; the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Plot:
    """A plot: one panel or many, a key to the series, and the same as numbers.

    Attributes
    ----------
    name : str
        Part of the names of its files.
    title, caption : str
    panels : tuple of Panel
    table : Table
    key : tuple
        Series and their names.
    named : bool
        Whether the drawing names its series itself; where there is no room for that, the key does.
    wide : bool
        Whether it takes the whole width of the page.
    columns : int
        Panels beside each other in a file.
    """

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    table: Table
    key: tuple[tuple[Look, str], ...] = ()
    named: bool = True
    wide: bool = False
    columns: int = 4


def sheet(plot: Plot, heading: str) -> Scene:
    """Arrange all panels of a plot on one sheet, with their titles and, if it is needed, the key."""
    shapes: list[Shape] = [Label((0, 16), heading, "head")]
    width, top = 0.0, 34.0
    for group, panels in groupby(plot.panels, key=lambda panel: panel.group):
        if group:
            shapes.append(Label((0, top + 12), group, "head"))
            top += 26
        row = list(panels)
        room = max(max(panel.scene.width + panel.scene.side, LETTER * len(panel.title)) for panel in row) + 24
        for start in range(0, len(row), plot.columns):
            left, bottom = 0.0, top
            for panel in row[start : start + plot.columns]:
                below = top + (20 if panel.title else 0)
                if panel.title:
                    shapes.append(Label((left, top + 12), panel.title, "name"))
                shapes += moved(panel.scene.shapes, left, below)
                left += room
                bottom = max(bottom, below + panel.scene.height)
            width, top = max(width, left - 24), bottom + 20
    if not plot.named:
        top = _add_key(shapes, plot.key, max(width, 400.0), top)
    margin = 20
    return Scene(max(width, 400.0) + 2 * margin, top + margin, tuple(moved(shapes, margin, margin)))


def moved(shapes: Sequence[Shape], right: float, down: float) -> list[Shape]:
    """Return the shapes at other places.

    Examples
    --------
    >>> moved([Label((1, 2), "a")], 10, 20)[0].place
    (11, 22)
    """

    def at(place: Place) -> Place:
        return place[0] + right, place[1] + down

    return [
        replace(shape, places=tuple(map(at, shape.places)))
        if isinstance(shape, Line | Marks)
        else replace(shape, place=at(shape.place))
        for shape in shapes
    ]


def _add_key(shapes: list[Shape], key: Sequence[tuple[Look, str]], width: float, top: float) -> float:
    left = 0.0
    for look, name in key:
        room = 30 + 8 * len(name)
        if left and left + room > width:
            left, top = 0.0, top + 20
        shapes += [Marks(((left + 6, top + 8),), look), Label((left + 18, top + 12), name, "axis")]
        left += room
    return top + 24
