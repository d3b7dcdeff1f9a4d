"""A confusion matrix as a picture: a row a class, a column for what it is taken for."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cldnet.bench.report.scene import Box, Label, Scene, Shape
from cldnet.bench.report.style import SHADES

__all__ = ["confusion_map"]

#: Classes up to which cells have figures.
FIGURES = 40
_LETTER, _DIGIT = 6.6, 8.0  # widths, in pixels
_HEAD, _TAIL = 13, 10  # letters of a long name: classes often differ at its end
_LINE = 13  # from one name to the next
_WIDEST = 1000


def confusion_map(matrix: NDArray[np.int64], labels: list[str]) -> Scene:
    """Draw a matrix of counts; the stronger a cell's colour, the larger the share of the row's photos.

    Cells without a photo are not drawn one by one, so a map of many classes stays small.

    Examples
    --------
    >>> scene = confusion_map(np.array([[3, 1], [0, 2]]), ["cat", "dog"])
    >>> [shape.title for shape in scene.shapes if isinstance(shape, Box) and shape.title]
    ['cat: 3 of 4 are right', 'cat: 1 of 4 is taken for dog', 'dog: 2 of 2 are right']
    """
    cell = _cell(matrix)
    room = 14 + _LETTER * max(len(_short(label)) for label in labels)  # for names, at both sides
    side = cell * len(labels)
    gap = 2 if cell >= 12 else 0  # between cells; in fine maps it would be most of them
    shapes: list[Shape] = [Box((room, room), side - gap, side - gap, "h0")]
    step = math.ceil(_LINE / cell)
    for at in range(0, len(labels), step):
        middle, name = room + (at + 0.5) * cell + 3, _short(labels[at])
        shapes.append(Label((room - 6, middle), name, anchor="end"))
        shapes.append(Label((middle, room - 6), name, turned=True))
    photos = matrix.sum(axis=1)
    for i, j in np.argwhere(matrix > 0):
        place, count, of = (room + j * cell, room + i * cell), int(matrix[i, j]), int(photos[i])
        shade = max(1, round((SHADES - 1) * math.sqrt(count / of)))  # the root, so that one photo of many is to be seen
        verb = "is" if count == 1 else "are"
        said = "right" if i == j else f"taken for {labels[j]}"
        title = f"{labels[i]}: {count:,} of {of:,} {verb} {said}"
        shapes.append(Box(place, cell - gap, cell - gap, f"h{shade}", title))
        if len(labels) <= FIGURES:
            at_middle = (place[0] + cell / 2 - 1, place[1] + cell / 2 + 3)
            shapes.append(Label(at_middle, str(count), f"t{shade}", "middle"))
    return Scene(room + side, room + side, tuple(shapes))


def _short(label: str) -> str:
    return label if len(label) <= _HEAD + 1 + _TAIL else f"{label[:_HEAD]}…{label[-_TAIL:]}"


def _cell(matrix: NDArray[np.int64]) -> float:
    """Side of a cell: room for its figure where there is one, and for the whole map on a page."""
    size = len(matrix)
    if size > FIGURES:
        return max(2.0, min(_LINE, _WIDEST / size))
    roomy = 44 if size <= 6 else 34 if size <= 12 else 28 if size <= 24 else 24
    return max(roomy, 8 + _DIGIT * len(str(matrix.max())))
