"""Scenes as SVG: on the page, coloured by its style sheet, or as a file that stands alone."""

from __future__ import annotations

import unicodedata
from html import escape

from cldnet.bench.report.scene import Box, Label, Line, Look, Marks, Panel, Place, Plot, Scene, Shape, sheet
from cldnet.bench.report.style import file_style

__all__ = ["clean", "drawing", "key_mark", "svg_file", "text"]

# Corners of the marks, in the order of style.MARKERS; the first one is a circle.
_HEXAGON = ((0, -1), (0.87, -0.5), (0.87, 0.5), (0, 1), (-0.87, 0.5), (-0.87, -0.5))
_PLUS = (
    *((-0.33, -1), (0.33, -1), (0.33, -0.33), (1, -0.33), (1, 0.33), (0.33, 0.33)),
    *((0.33, 1), (-0.33, 1), (-0.33, 0.33), (-1, 0.33), (-1, -0.33), (-0.33, -0.33)),
)
_CORNERS: tuple[tuple[Place, ...], ...] = (
    (),
    ((-0.86, -0.86), (0.86, -0.86), (0.86, 0.86), (-0.86, 0.86)),
    ((0, -1.1), (1, 0.8), (-1, 0.8)),
    ((0, -1.2), (1, 0), (0, 1.2), (-1, 0)),
    ((0, 1.1), (1, -0.8), (-1, -0.8)),
    _PLUS,
    _HEXAGON,
    tuple(((x - y) * 0.75, (x + y) * 0.75) for x, y in _PLUS),
)

# They join or part the letters beside them, in emoji and in Persian, and cannot turn the order of anything.
_JOINERS = "\u200c\u200d"


def clean(value: object) -> str:
    r"""Replace characters that XML forbids, and those with which a stranger's name can reverse the text around it.

    Examples
    --------
    >>> clean("a\x00b") == "a\ufffdb"
    True
    """
    unsafe = {"Cc", "Cf", "Cs", "Cn"}
    return "".join("\ufffd" if unicodedata.category(c) in unsafe and c not in _JOINERS else c for c in str(value))


def text(value: object) -> str:
    """Make any value safe inside HTML and SVG: clean and escaped.

    Examples
    --------
    >>> text('<b>"&')
    '&lt;b&gt;&quot;&amp;'
    """
    return escape(clean(value))


def drawing(panel: Panel) -> str:
    """Draw a panel for the page; names to its right stand outside of its box, where the style sheet makes room."""
    scene = panel.scene
    return (
        f'<svg class="plot" role="img" aria-label="{text(panel.alternative)}" viewBox="0 0 {_n(scene.width)} '
        f'{_n(scene.height)}" width="{_n(scene.width)}" height="{_n(scene.height)}">{_paint(scene)}</svg>'
    )


def svg_file(plot: Plot, heading: str) -> bytes:
    """Draw all panels of a plot as a file that needs no other."""
    scene = sheet(plot, heading)
    size = f'width="{_n(scene.width)}" height="{_n(scene.height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {_n(scene.width)} {_n(scene.height)}" {size}>\n'
        f"<title>{text(heading)}</title><desc>{text(' '.join(panel.alternative for panel in plot.panels))}</desc>\n"
        f'<style>{file_style()}</style>\n<rect class="paper" {size}/>\n{_paint(scene)}</svg>\n'
    ).encode()


def key_mark(look: Look) -> str:
    """Draw the small sign of a series, for a key."""
    sign = _paint_one(Marks(((0, 0),), look))
    return f'<svg class="plot" viewBox="-8 -8 16 16" width="16" height="16" aria-hidden="true">{sign}</svg>'


def _paint(scene: Scene) -> str:
    return "\n".join(map(_paint_one, scene.shapes))


def _paint_one(shape: Shape) -> str:
    match shape:
        case Line(places, role, look):
            path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in places)
            series = "" if look is None else f" s{look.colour}{' dashed' * look.dashed}"
            return f'<path class="{role}{series}" d="{path}"/>'
        case Marks(places, look, title, size, hollow):
            path = "".join(_mark(x, y, look.mark, size) for x, y in places)
            role = f"mark s{look.colour}{' hollow' * hollow}{' small' * (size < 4)}"
            return f'<path class="{role}" d="{path}">{_title(title)}</path>'
        case Label((x, y), words, role, anchor, turned):
            at = f'transform="translate({_n(x)} {_n(y)}) rotate(-90)"' if turned else f'x="{_n(x)}" y="{_n(y)}"'
            aligned = "" if anchor == "start" else f' text-anchor="{anchor}"'
            return f'<text class="{role}" {at}{aligned}>{text(words)}</text>'
        case Box((x, y), width, height, role, title):
            box = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
            return f'<rect class="box {role}" {box}>{_title(title)}</rect>'


def _mark(x: float, y: float, mark: int, size: float) -> str:
    corners = _CORNERS[mark]
    if not corners:
        arc = f"a{_n(size)} {_n(size)} 0 1 0 "
        return f"M{_n(x - size)} {_n(y)}{arc}{_n(2 * size)} 0{arc}{_n(-2 * size)} 0z"
    return "M" + "L".join(f"{_n(x + size * dx)} {_n(y + size * dy)}" for dx, dy in corners) + "z"


def _title(words: str) -> str:
    return f"<title>{text(words)}</title>" if words else ""


def _n(value: float) -> str:
    return f"{round(value, 1) + 0.0:g}"  # adding zero turns "-0" into "0"
