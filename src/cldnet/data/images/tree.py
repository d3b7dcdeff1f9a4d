"""Which layout a folder of photos has, and so which class and which part every photo belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cldnet.data.images import published
from cldnet.data.images.scan import SUFFIXES, Found, Photo, scan_classes, subfolders

__all__ = ["LAYOUTS", "Tree", "list_photos"]

#: What a folder should look like, as the messages show it.
LAYOUTS = """Expected a folder for each class, perhaps within one for each part:
  photos/            photos/
    cat/               train/
      one.jpg            cat/one.jpg
      two.jpg            dog/three.jpg
    dog/               test/
      three.jpg          cat/two.jpg"""

_TRAIN = ("train", "training")
_TEST = ("test", "testing")
_VALIDATION = ("val", "valid", "validation")


@dataclass(frozen=True)
class Tree:
    """The photos of a folder.

    Attributes
    ----------
    folder : Path
        Where the photos' names begin.
    photos : tuple of Photo
        The training photos and then the test photos, each sorted by class and then by name.
    ignored : int
        Files that were passed over, because they are hidden or have no image's ending.
    gaps : tuple of str
        What is missing, each in a few words: a class folder without an image, a class that only training photos have.
    """

    folder: Path
    photos: tuple[Photo, ...]
    ignored: int = 0
    gaps: tuple[str, ...] = ()


def list_photos(folder: Path) -> Tree:
    """List the photos of a folder in one of the layouts we know, or say in a sentence which are expected.

    Known are a folder a class, perhaps within ``train`` and ``test`` (or ``val``); ImageNet-R, recognised by class folders
    named like synsets, whose parts are cut by a fixed seed; Tiny-ImageNet-200; CUB-200-2011.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("dog/1.jpg", "cat/2.PNG", "cat/1.jpg", "cat/notes.txt"):
    ...         Path(place, name).parent.mkdir(exist_ok=True)
    ...         Path(place, name).touch()
    ...     tree = list_photos(Path(place))
    >>> [photo.name for photo in tree.photos], tree.ignored
    (['cat/1.jpg', 'cat/2.PNG', 'dog/1.jpg'], 1)
    """
    if not folder.exists():
        raise FileNotFoundError(f"There is no folder {str(folder)!r}. {LAYOUTS}")
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder. {LAYOUTS}")
    lists = published.cub_folder(folder)
    if lists is not None:
        folder, found = lists, published.cub(lists)
    elif published.is_tiny_imagenet(folder):
        found = published.tiny_imagenet(folder)
    else:
        found = _in_folders(folder)
    if not found.photos:
        raise ValueError(_nothing(folder, found))
    gaps = [*found.gaps, *_missing_in_test(folder, found.photos)]
    photos = tuple(sorted(found.photos, key=lambda photo: (photo.test, photo.label, photo.name)))
    _refuse_odd_labels(folder, photos)
    _refuse_repeated_names(folder, photos)
    return Tree(folder, photos, found.ignored, tuple(gaps))


def _in_folders(folder: Path) -> Found:
    """Find photos in a folder a class, with or without parts."""
    names = subfolders(folder)
    train = _spelled(folder, names, _TRAIN)
    test = _spelled(folder, names, _TEST) or _spelled(folder, names, _VALIDATION)
    found = Found()
    # "train" alone among others is a class, as in CIFAR-100; on its own it is a part.
    if train is None or (test is None and len(names) > 1):
        found.add(scan_classes(folder))
        if published.looks_like_imagenet_r(names):
            found.photos = published.split_imagenet_r(found.photos)
        return found
    found.add(scan_classes(folder, train))
    if test is not None:
        found.add(scan_classes(folder, test), test=True)
        if not any(photo.test for photo in found.photos):
            raise ValueError(
                f"{str(folder / test)!r} has no class folders with images, so its images have no labels: "
                f"sort them into classes, or move the folder away. {LAYOUTS}"
            )
    return found


def _spelled(folder: Path, names: Sequence[str], spellings: Sequence[str]) -> str | None:
    """Find the one folder that has any of some names, in capital or small letters."""
    found = [name for name in names if name.lower() in spellings]
    if len(found) > 1:
        raise ValueError(f"{str(folder)!r} has both {found[0]!r} and {found[1]!r}: keep one of them.")
    return found[0] if found else None


def _missing_in_test(folder: Path, photos: Sequence[Photo]) -> list[str]:
    """Refuse test classes that cannot be learned; name classes that are learned and not tested."""
    train = {photo.label for photo in photos if not photo.test}
    test = {photo.label for photo in photos if photo.test}
    unknown = sorted(test - train)
    if unknown:
        raise ValueError(
            f"The test part of {str(folder)!r} has class {unknown[0]!r}, which the training part lacks"
            f"{f', and {len(unknown) - 1} more like it' if unknown[1:] else ''}: both parts should have the same classes."
        )
    return [f"class {label!r} has no image in the test part" for label in sorted(train - test)] if test else []


def _refuse_odd_labels(folder: Path, photos: Sequence[Photo]) -> None:
    for label in sorted({photo.label for photo in photos}):
        try:
            label.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"{str(folder)!r} has a class folder whose name, {label!r}, is not UTF-8: it cannot be a label. Rename it."
            ) from None


def _refuse_repeated_names(folder: Path, photos: Sequence[Photo]) -> None:
    name, times = Counter(photo.name for photo in photos).most_common(1)[0]
    if times > 1:
        raise ValueError(f"The lists in {str(folder)!r} name {name!r} {times} times: unpack the data set again.")


def _nothing(folder: Path, found: Found) -> str:
    """Say that there is no photo, and what there is instead."""
    loose = any(path.suffix.lower() in SUFFIXES for path in folder.iterdir())
    instead = " in class folders, only beside them" if loose else ""
    others = f" ({found.ignored} other files were passed over)" if found.ignored and not loose else ""
    return f"{str(folder)!r} has no images{instead}{others}. {LAYOUTS}"
