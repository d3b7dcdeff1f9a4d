"""Places for names: clear of each other and of the marks, and never nearer to a mark that is not their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cldnet.bench.report.scene import Label, Place

__all__ = ["Name", "beside", "box_of", "spread"]

LETTER, LINE = 8.6, 17  # width of a letter and height of a line, as a phone shows them (see page.css)
MARK = 7  # half the side of a mark's box
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Name:
    """A name near its mark; `lead` is a line from the mark to it, where it does not stand right beside."""

    label: Label
    lead: tuple[Place, Place] | None = None


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
        while len(blocks) > 1 and _start(blocks[-2], places, gap) + len(blocks[-2]) * gap > _start(
            blocks[-1], places, gap
        ):
            last = blocks.pop()
            blocks[-1] += last
    moved = list(places)
    for block in blocks:
        for rank, index in enumerate(block):
            moved[index] = _start(block, places, gap) + rank * gap
    return moved


def _start(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    return sum(places[i] for i in block) / len(block) - (len(block) - 1) * gap / 2


def beside(places: Sequence[Place], names: Sequence[str], corner: Place, far: Place) -> list[Name | None]:
    """Find room for a name near each mark, clear of all marks, names and leads; None where there is none.

    Parameters
    ----------
    places : sequence of pairs
        Of the marks.
    names : sequence of str
    corner, far : pairs
        Upper left and lower right end of the room for names.

    Examples
    --------
    >>> [name.label.anchor for name in beside([(10, 50), (190, 50)], ["left", "right"], (0, 0), (200, 100))]
    ['start', 'end']
    """
    marks = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in places]
    found: list[Name | None] = [None] * len(places)
    taken: list[Box] = []
    leads: list[Place] = []
    for number in sorted(range(len(places)), key=lambda number: places[number][1]):
        own = places[number]
        # Marks may cover each other: a lead need only keep clear of those that it can keep clear of.
        others = [mark for mark in marks if not _inside(own, mark)]
        for name in _near(own, names[number]):
            box, steps = box_of(name.label), _steps(name)
            within = corner[0] <= box[0] and corner[1] <= box[1] and box[2] <= far[0] and box[3] <= far[1]
            if (
                within
                and not any(_touch(box, other) for other in (*marks, *taken))
                and not any(_inside(step, box) for step in leads)
                and not any(_inside(step, other) for step in steps for other in (*others, *taken))
                and _distance(own, box) <= min(_distance(mark, box) for mark in places)
            ):
                found[number] = name
                taken.append(box)
                leads += steps
                break
    return found


def box_of(label: Label) -> Box:
    """Return the room that a name may take: left, top, right, bottom.

    Examples
    --------
    >>> box_of(Label((100, 50), "ab", anchor="end"))
    (74.2, 36, 100.0, 53)
    """
    width = LETTER * (len(label.text) + 1)  # a letter more, so that two names in a line do not read as one
    left = label.place[0] - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
    return left, label.place[1] + 3 - LINE, left + width, label.place[1] + 3


def _near(place: Place, name: str) -> Iterator[Name]:
    """Places for a name, the best first: beside its mark, above or below, then farther and farther away."""
    x, y = place
    sides = ((10, "start"), (-10, "end"))
    yield from (Name(Label((x + right, y + 4), name, "name", anchor)) for right, anchor in sides)
    for down in (-11, 22):
        for right, anchor in ((0, "middle"), (4, "start"), (-4, "end")):
            yield _led(place, Label((x + right, y + down), name, "name", anchor))
    for away in (18, 30, 42, 54):
        for right, anchor in sides:
            for down in (away, -away):
                yield _led(place, Label((x + 2 * right, y + 4 + down), name, "name", anchor))


def _led(place: Place, label: Label) -> Name:
    x, y = label.place
    return Name(label, (place, (x, min(max(place[1], y - 11), y + 3))))


def _steps(name: Name) -> list[Place]:
    """Places along a lead, close enough that nothing fits between them."""
    if name.lead is None:
        return []
    (x, y), (right, down) = name.lead
    steps = math.ceil(math.hypot(right - x, down - y) / 3)
    return [(x + (right - x) * step / steps, y + (down - y) * step / steps) for step in range(steps)]


def _distance(place: Place, box: Box) -> float:
    return math.hypot(*(max(box[k] - place[k], 0.0, place[k] - box[k + 2]) for k in (0, 1)))


def _inside(place: Place, box: Box) -> bool:
    return box[0] < place[0] < box[2] and box[1] < place[1] < box[3]


def _touch(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
