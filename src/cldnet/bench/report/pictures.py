"""Scenes as PNG files, painted by matplotlib if it is there."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cldnet.bench.report.scene import Box, Label, Line, Look, Marks, Plot, Scene, sheet
from cldnet.bench.report.style import LIGHT, MARKERS, ink_on
from cldnet.bench.report.svg import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["new_figure", "png_file"]

PIXELS = 100  # of a scene, to an inch
POINT = 72 / PIXELS
# Colour (none: the series' own), width and opacity of lines; as in plot.css.
_LINES = {
    "grid": ("rule", 1.0, 1.0),
    "base": ("soft", 1.0, 1.0),
    "mean": ("", 2.25, 1.0),
    "run": ("", 1.0, 0.35),
    "lead": ("", 1.0, 0.7),
    "whisker": ("", 1.5, 0.7),
}
_SIZES = {"axis": 11.0, "head": 15.0}


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches, without pyplot and its global state.

    Raises
    ------
    ImportError
        If matplotlib is missing or does not load.
    """
    # matplotlib is optional. A build that does not fit the installed NumPy raises RuntimeError.
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError("PNG files of the plots need matplotlib: pip install 'cldnet[plots]'") from error
    figure = Figure(figsize=(width, height), facecolor=LIGHT["paper"])
    FigureCanvasAgg(figure)
    return figure


def png_file(plot: Plot, heading: str) -> bytes:
    """Paint all panels of a plot."""
    scene = sheet(plot, heading)
    figure = new_figure(scene.width / PIXELS, scene.height / PIXELS)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.set_axis_off()
    _paint(axes, scene)
    picture = io.BytesIO()
    with warnings.catch_warnings():
        # A name may be in a script that matplotlib's font does not have: it is shown as boxes, as a browser would.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        # No software stamp: the same results give the same bytes.
        figure.savefig(picture, format="png", dpi=2 * PIXELS, metadata={"Software": None})
    return picture.getvalue()


def _paint(axes: Axes, scene: Scene) -> None:
    # Artists are added as they are: what plot() does beyond that, finding limits, takes longer than the painting.
    from matplotlib.lines import Line2D  # noqa: PLC0415  (matplotlib is optional)

    # Layers by kind, so that marks of one look can be painted at once: there may be thousands.
    for shape in scene.shapes:
        match shape:
            case Box((x, y), width, height, role, _):
                _paint_box(axes, (x, y), width, height, role)
            case Line(places, role, look):
                name, width, alpha = _LINES[role]
                colour = LIGHT[name] if name else _colour(look)
                dashes = (0, (4, 2)) if role == "mean" and look and look.dashed else "-"
                line = Line2D(
                    *zip(*places, strict=True), color=colour, lw=width * POINT, alpha=alpha, ls=dashes, zorder=2
                )
                axes.add_artist(line)
            case Label(place, words, role, anchor, turned):
                _paint_label(axes, place, words, role, anchor, turned)
    for (look, size, hollow), found in _by_look(scene):
        paper, colour = LIGHT["paper"], _colour(look)
        axes.plot(
            *zip(*found, strict=True),
            MARKERS[look.mark],
            markersize=2 * size * POINT * 1.05,
            markerfacecolor=paper if hollow else colour,
            markeredgecolor=colour if hollow else paper,
            markeredgewidth=(2.0 if hollow else 0.8 if size >= 4 else 0.0) * POINT,
            zorder=3,
        )


def _by_look(scene: Scene) -> Iterable[tuple[tuple[Look, float, bool], list[tuple[float, float]]]]:
    found: dict[tuple[Look, float, bool], list[tuple[float, float]]] = {}
    for shape in scene.shapes:
        if isinstance(shape, Marks):
            found.setdefault((shape.look, shape.size, shape.hollow), []).extend(shape.places)
    return found.items()


def _paint_box(axes: Axes, place: tuple[float, float], width: float, height: float, role: str) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415  (matplotlib is optional)

    name, *faint = role.split()
    box = Rectangle(place, width, height, facecolor=LIGHT[name], alpha=0.4 if faint else 1, linewidth=0, zorder=1)
    axes.add_artist(box)


def _paint_label(axes: Axes, place: tuple[float, float], words: str, role: str, anchor: str, turned: bool) -> None:
    from matplotlib.patheffects import withStroke  # noqa: PLC0415  (matplotlib is optional)

    shade = role.startswith("t")
    colour = ink_on(LIGHT["h" + role[1:]]) if shade else LIGHT["soft" if role == "axis" else "ink"]
    written = axes.text(
        *place,
        clean(words),
        color=colour,
        size=_SIZES.get(role, 12.0) * POINT,
        ha={"start": "left", "middle": "center", "end": "right"}[anchor],
        va="baseline",
        rotation=90 if turned else 0,
        rotation_mode="anchor",
        weight="bold" if role == "head" else "normal",
        parse_math=False,
        zorder=4,
    )
    if role in {"name", "value"}:  # lines behind a name should not cross it
        written.set_path_effects([withStroke(linewidth=4 * POINT, foreground=LIGHT["paper"])])


def _colour(look: Look | None) -> str:
    return LIGHT["soft"] if look is None else LIGHT[f"s{look.colour}"]
