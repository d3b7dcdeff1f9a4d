"""Labelled photos of a folder, some hundred at a time: what commands that teach, forget and evaluate go through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cldnet.cli.show import counted, counting, say, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cldnet.classifier import CLDNetClassifier
    from cldnet.data.images.decode import BadImage
    from cldnet.data.images.scan import Photo
    from cldnet.data.images.tree import Tree

__all__ = ["PORTION", "Labelled", "Portion", "photos_to_learn", "photos_to_test", "portions", "sides"]

#: Photos that are decoded and learned at once: what is in memory does not grow with a folder.
PORTION = 256
#: Bad photos that are named; the others are counted.
_NAMED = 10


@dataclass
class Labelled:
    """The photos of a folder that a command is about.

    Attributes
    ----------
    folder : Path
        As the user has named it.
    root : Path
        Where the photos' names begin.
    photos : tuple of Photo
    gaps : tuple of str
        What is missing in the folder, each in a few words.
    ignored : int
        Files that are no photos.
    bad : list of BadImage
        Those that could not be read, as far as `portions` has come.
    """

    folder: Path
    root: Path
    photos: tuple[Photo, ...]
    gaps: tuple[str, ...]
    ignored: int
    bad: list[BadImage] = field(default_factory=list)

    def seen_from_folder(self, path: Path) -> str:
        """The path of one of the photos relative to the folder: their names may begin in a folder inside of it."""
        return path.relative_to(self.folder.expanduser()).as_posix()


class Portion(NamedTuple):
    """Pixels of photos that could be read, the photos that they are, and their labels."""

    x: NDArray[np.uint8]
    photos: list[Photo]
    y: NDArray[np.str_]


def photos_to_learn(folder: Path) -> Labelled:
    """Photos of a folder without its test part, if it has one."""
    from cldnet.data.images.tree import list_photos

    tree = list_photos(folder.expanduser())
    photos = tuple(photo for photo in tree.photos if not photo.test)
    _say_what_is_left_out(tree, photos, "test")
    return Labelled(folder, tree.folder, photos, tree.gaps, tree.ignored)


def photos_to_test(folder: Path) -> Labelled:
    """Photos of the test part of a folder, or all of them if it has none."""
    from cldnet.data.images.tree import list_photos

    tree = list_photos(folder.expanduser())
    photos = tuple(photo for photo in tree.photos if photo.test) or tree.photos
    _say_what_is_left_out(tree, photos, "training")
    return Labelled(folder, tree.folder, photos, tree.gaps, tree.ignored)


def _say_what_is_left_out(tree: Tree, photos: Sequence[Photo], part: str) -> None:
    if len(photos) < len(tree.photos):
        say(f"The {len(tree.photos) - len(photos):,} photos of the {part} part are left out.", error=True)


def portions(clf: CLDNetClassifier, chosen: Labelled, doing: str) -> Iterator[Portion]:
    """Photos with their labels, some hundred at a time; says afterwards which could not be read."""
    import numpy as np

    from cldnet.data.images.photos import read_photos

    photos, bad, shape = chosen.photos, chosen.bad, sides(clf)
    with counting(doing, "photos") as tell:
        tell(0, len(photos))
        for first in range(0, len(photos), PORTION):
            part = photos[first : first + PORTION]
            read = read_photos([chosen.root / photo.name for photo in part], *shape)
            bad += read.bad
            if len(read.places):
                rows = [part[place] for place in read.places]
                yield Portion(read.x, rows, np.array([photo.label for photo in rows]))
            tell(first + len(part), len(photos))
    if len(bad) == len(photos):
        raise ValueError(f"None of the {len(photos):,} photos under {str(chosen.folder)!r} can be read: {_named(bad)}.")
    if bad:
        say(f"{len(bad):,} of {len(photos):,} photos cannot be read and were left out: {_named(bad)}.", error=True)
    for gap in chosen.gaps:
        say(f"In {str(chosen.folder)!r}, {gap}.", error=True)
    if chosen.ignored:
        passed = counted(chosen.ignored, "other file was", "other files were")
        say(f"{passed} passed over: hidden, beside the folders, or not named like an image.", error=True)


def sides(clf: CLDNetClassifier) -> tuple[int, int]:
    """The side of the photos that a model takes, and that of what they are cut out of."""
    from cldnet.data.images.decode import cut_from

    shape: tuple[int, ...] = getattr(clf.backbone, "input_shape", ()) if clf._model is None else clf._model.inputs.shape
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise ValueError(f"This model takes inputs of shape {tuple(shape)}, not photos: expected (3, side, side).")
    return int(shape[1]), cut_from(int(shape[1]))


def _named(bad: Sequence[BadImage]) -> str:
    named = ", ".join(f"{shown(each.path)} ({each.reason})" for each in bad[:_NAMED])
    return named + (f", and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else "")
