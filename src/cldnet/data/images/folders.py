"""Folders of photos or of text files: the files in them, their layouts, and which class and part every file belongs to.

The order of files does not depend on the file system.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import torch

from cldnet.data.dataset import check_file
from cldnet.device import generator

#: Endings of image names, in lower case. The content is checked when a file is opened.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
#: Endings of the names of text files, in lower case.
TEXT_SUFFIXES = frozenset({".txt"})
#: Files of a folder that show whether it is one of images or of texts.
_LOOKED_AT = 1000
#: What a folder should look like, for messages.
LAYOUTS = """Expected one folder per class, perhaps within one folder per part:
  photos/            photos/
    cat/               train/
      one.jpg            cat/one.jpg
      two.jpg            dog/three.jpg
    dog/               test/
      three.jpg          cat/two.jpg"""
#: DualPrompt (Wang et al. 2022) split ImageNet-R's 30,000 images into 24,000 and 6,000 at random, and published neither a
#: list nor a usable seed. Ours is the permutation that this seed gives over the sorted names; its first part is for training.
IMAGENET_R_SEED = 2022
IMAGENET_R_SHARE = 0.8

_TRAIN = ("train", "training")
_TEST = ("test", "testing")
_VALIDATION = ("val", "valid", "validation")
_WNID = re.compile(r"n[0-9]{8}")
_CUB_LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


@dataclass(frozen=True)
class Photo:
    """A file that should hold an image, or a text.

    ``name`` is its path relative to the data's folder, with ``/`` between its parts; ``size`` is in bytes and ``time`` of
    the last change in nanoseconds, both -1 if unknown; ``fault`` says why it cannot be read, as far as that shows without
    opening it; ``test`` whether it belongs to the test part.
    """

    name: str
    label: str
    size: int = -1
    time: int = -1
    fault: str | None = None
    test: bool = False


@dataclass
class Tree:
    """The photos of a folder, or its text files; listed in order: training ones first, each part by class and name.

    ``suffixes`` are the endings of the files that are listed, and ``noun`` is what they hold. ``ignored`` counts the files
    that are hidden or have another ending; ``empty`` names class folders without such a file, and ``untested`` classes
    without one in the test part.
    """

    folder: Path
    suffixes: frozenset[str] = SUFFIXES
    noun: str = "image"
    photos: list[Photo] = field(default_factory=list)
    ignored: int = 0
    empty: list[str] = field(default_factory=list)
    untested: list[str] = field(default_factory=list)


def list_photos(folder: Path) -> Tree:
    """List the photos of a folder in one of the known layouts, or raise with the layouts that are expected.

    Known are one folder per class, perhaps within ``train`` and ``test`` (or ``val``); ImageNet-R, recognised by class
    folders named like WordNet synsets and split by a fixed seed; Tiny-ImageNet-200; CUB-200-2011.
    """
    _check_folder(folder)
    cub = [place for place in (folder, folder / "CUB_200_2011") if any((place / n).is_file() for n in _CUB_LISTS[1:3])]
    if cub:
        found = _scan_cub(cub[0])
    elif any((folder / name).is_file() for name in ("wnids.txt", "val/val_annotations.txt")):
        found = _scan_tiny_imagenet(folder)
    else:
        found = _scan_class_folders(Tree(folder))
    return _checked(found)


def list_texts(folder: Path) -> Tree:
    """List the text files of a folder with one folder per class, perhaps within ``train`` and ``test`` (or ``val``)."""
    _check_folder(folder)
    return _checked(_scan_class_folders(Tree(folder, TEXT_SUFFIXES, "text")))


def holds_texts(folder: Path) -> bool:
    """Whether more of a folder's files are texts than images, as far as the first thousand in it and below it show."""
    tree = Tree(folder, SUFFIXES | TEXT_SUFFIXES)
    _scan_folder(tree, ".", "", most=_LOOKED_AT)
    ends = [os.path.splitext(file.name)[1].lower() for file in tree.photos]
    return sum(end in TEXT_SUFFIXES for end in ends) > sum(end in SUFFIXES for end in ends)


def holds_class_folders(folder: Path) -> bool:
    """Whether a folder's subfolders have images or texts, as far as the first thousand files in it and below it show."""
    tree = Tree(folder, SUFFIXES | TEXT_SUFFIXES)
    _scan_folder(tree, ".", "", most=_LOOKED_AT)
    return any(file.name.count("/") > 1 for file in tree.photos)


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        raise FileNotFoundError(f"There is no folder {str(folder)!r}. {LAYOUTS}")
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder. {LAYOUTS}")


def _checked(found: Tree) -> Tree:
    """Sort the files of a tree, or raise if there is none or one cannot be used."""
    folder = found.folder
    if not found.photos:
        loose = any(path.suffix.lower() in found.suffixes for path in folder.iterdir())
        instead = " in class folders, only beside them" if loose else ""
        others = f" ({found.ignored} other files were ignored)" if found.ignored and not loose else ""
        raise ValueError(f"{str(folder)!r} has no {found.noun}s{instead}{others}. {LAYOUTS}")
    found.untested = _missing_in_test(found)
    found.photos.sort(key=lambda photo: (photo.test, photo.label, photo.name))
    _check_names(folder, found.photos)
    return found


def find_photos(paths: Sequence[Path]) -> list[Path]:
    """Return files as they are, and for every folder the visible images in it and its subfolders, sorted."""
    return [file for path in paths for file in (_below(Tree(path)) if path.is_dir() else [path])]


def find_texts(folder: Path) -> list[Path]:
    """Return the visible text files in a folder and its subfolders, sorted."""
    return _below(Tree(folder, TEXT_SUFFIXES, "text"))


def _below(tree: Tree) -> list[Path]:
    _scan_folder(tree, ".", "")
    if not tree.photos:
        ends = ", ".join(sorted(tree.suffixes)[:4]) + (", …" if len(tree.suffixes) > 4 else "")
        raise ValueError(f"{str(tree.folder)!r} has no {tree.noun}s (files named like {ends}).")
    return sorted(tree.folder / file.name for file in tree.photos)


def _look(root: Path, name: str, label: str, test: bool = False) -> Photo:
    """Describe a file without opening it: a pipe, a folder or a broken link has a fault."""
    path = os.path.join(root, name)
    try:
        found = os.stat(path)
    except OSError as error:
        dangling = isinstance(error, FileNotFoundError) and os.path.islink(path)
        return Photo(name, label, fault="a broken link" if dangling else (error.strerror or str(error)), test=test)
    fault = None
    if not stat.S_ISREG(found.st_mode):
        fault = "a folder, not a file" if stat.S_ISDIR(found.st_mode) else "not a regular file"
    return Photo(name, label, found.st_size, found.st_mtime_ns, fault, test)


def _subfolders(folder: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted; links are followed unless they lead back to a parent."""
    above = _above(folder)
    names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith((".", "__MACOSX")))
    return [name for name in names if (found := _identity(folder / name)) is not None and found not in above]


def _scan_classes(found: Tree, place: str = "", *, test: bool = False) -> None:
    """Add the photos in the class folders of a place in a tree; the folders' names are the labels."""
    folder = found.folder / place
    classes = _subfolders(folder)
    found.ignored += sum(1 for _ in os.scandir(folder)) - len(classes)
    for label in classes:
        inner, before = f"{place}/{label}" if place else label, len(found.photos)
        _scan_folder(found, inner, label, test)
        if len(found.photos) == before:
            found.empty.append(f"{inner!r} holds no {found.noun}")


def _scan_folder(found: Tree, place: str, label: str, test: bool = False, most: int | None = None) -> None:
    """Add the photos of a place in a tree and its subfolders. Each is entered once, so circular links do no harm.

    With ``most``, stop at so many.
    """
    root = found.folder
    seen, waiting = _above(root) - {_identity(root / place)}, [place]
    while waiting:
        folder = waiting.pop()
        identity = _identity(root / folder)
        if identity in seen:
            continue
        seen.add(identity)
        try:
            names = sorted(entry.name for entry in os.scandir(root / folder))
        except OSError as error:
            fault = f"a folder that cannot be read: {error.strerror}"
            found.photos.append(Photo(folder, label, fault=fault, test=test))
            continue
        for name in names:
            inner = f"{folder}/{name}"
            if len(found.photos) == most:
                return
            if name.startswith((".", "__MACOSX")):  # macOS puts the latter into its archives
                found.ignored += 1
            elif os.path.splitext(name)[1].lower() in found.suffixes:
                found.photos.append(_look(root, inner, label, test))
            elif _identity(root / inner) is not None:
                waiting.append(inner)
            else:
                found.ignored += 1


def _identity(path: Path) -> tuple[int, int] | None:
    """What identifies a folder, whatever links lead to it; None if it is not a folder."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _above(folder: Path) -> set[tuple[int, int] | None]:
    """A folder and its parents: a link to one of them leads in a circle."""
    real = Path(os.path.realpath(folder))
    return {_identity(path) for path in (real, *real.parents)}


def _scan_class_folders(found: Tree) -> Tree:
    """Find files in one folder per class, with or without parts."""
    folder = found.folder
    names = _subfolders(folder)
    train = _spelled(folder, names, _TRAIN)
    test = _spelled(folder, names, _TEST) or _spelled(folder, names, _VALIDATION)
    # "train" alone among others is a class, as in CIFAR-100; on its own it is a part.
    if train is None or (test is None and len(names) > 1):
        _scan_classes(found)
        if found.suffixes is SUFFIXES and names and all(_WNID.fullmatch(name) for name in names):
            found.photos = split_imagenet_r(found.photos)
        return found
    _scan_classes(found, train)
    if test is not None:
        _scan_classes(found, test, test=True)
        if not any(photo.test for photo in found.photos):
            raise ValueError(
                f"{str(folder / test)!r} has no class folders with {found.noun}s, so its {found.noun}s have no labels: "
                f"sort them into classes, or move the folder away. {LAYOUTS}"
            )
    return found


def _spelled(folder: Path, names: Sequence[str], spellings: Sequence[str]) -> str | None:
    """Find the one folder that has any of some names, ignoring case."""
    found = [name for name in names if name.lower() in spellings]
    if len(found) > 1:
        raise ValueError(f"{str(folder)!r} has both {found[0]!r} and {found[1]!r}: keep one of them.")
    return found[0] if found else None


def split_imagenet_r(photos: Sequence[Photo]) -> list[Photo]:
    """Assign 80 % of all photos to training and the rest to the test part, always the same ones.

    If that leaves a class without a photo in either part, which happens only in small trees, one moves, and others make up
    for it as far as possible; the only photo of a class is for training.
    """
    photos = sorted(photos, key=lambda photo: photo.name)
    order = torch.randperm(len(photos), generator=generator(IMAGENET_R_SEED)).tolist()
    count = round(IMAGENET_R_SHARE * len(photos))
    test = set(order[count:])
    left = Counter((photos[row].label, row in test) for row in order)

    def move(row: int) -> None:
        label, before = photos[row].label, row in test
        left[label, before] -= 1
        left[label, not before] += 1
        test.symmetric_difference_update({row})

    for row in order:
        lonely = left[photos[row].label, row in test] == 1  # then it is for training
        if left[photos[row].label, row not in test] == 0 and (row in test or not lonely):
            move(row)
    for row in order:
        surplus = len(test) - (len(photos) - count)
        if surplus and (row in test) is (surplus > 0) and left[photos[row].label, row in test] > 1:
            move(row)
    return [replace(photo, test=row in test) for row, photo in enumerate(photos)]


def _scan_tiny_imagenet(folder: Path) -> Tree:
    """Find the photos of Tiny-ImageNet-200. Its validation part is our test part: the real one has no labels."""
    if not (folder / "train").is_dir():
        raise FileNotFoundError(f"{str(folder / 'train')!r} is missing: unpack the whole of Tiny-ImageNet.")
    if (folder / "wnids.txt").is_file():
        odd = set(_subfolders(folder / "train")) ^ {line[0] for line in _lines(folder / "wnids.txt", 1)}
        if odd:
            raise ValueError(
                f"{str(folder / 'wnids.txt')!r} and the folders in 'train' do not agree on {min(odd)!r}: "
                "unpack Tiny-ImageNet again."
            )
    found = Tree(folder)
    _scan_classes(found, "train")
    for name, rest in _lines(folder / "val" / "val_annotations.txt", 2, "\t"):
        wnid = rest.split("\t")[0]  # a bounding box follows
        found.photos.append(_look(folder, _inside("val/images", name), wnid, test=True))
    return found


def _scan_cub(folder: Path) -> Tree:
    """Find the photos of CUB-200-2011 through its four lists."""
    images, class_of, training, classes = ({line[0]: line[1] for line in _lines(folder / name)} for name in _CUB_LISTS)
    found = Tree(folder)
    for number, name in images.items():
        label = classes.get(class_of.get(number, ""))
        if label is None or training.get(number) not in ("0", "1"):
            raise ValueError(
                f"The lists in {str(folder)!r} do not give the class and the part of image {number} ({name!r}): "
                "unpack CUB-200-2011 again."
            )
        found.photos.append(_look(folder, _inside("images", name), label, test=training[number] == "0"))
    unknown = (class_of.keys() | training.keys()) - images.keys()
    if unknown:
        raise ValueError(
            f"{str(folder / 'images.txt')!r} lacks image {min(unknown)!r} of the other lists: unpack CUB-200-2011 again."
        )
    return found


def _inside(folder: str, name: str) -> str:
    """Join a name from a list to a folder, or raise if it leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or os.path.isabs(name) or "\\" in name:
        raise ValueError(f"The list of images has {name!r}, which leads out of {folder!r}: that file is not read.")
    return f"{folder}/{path}"


def _lines(path: Path, columns: int = 2, separator: str = " ") -> Iterator[list[str]]:
    """Read the columns of a list, or raise with the first bad line; the first column must be unique."""
    try:
        check_file(path)
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"{str(path)!r} is missing: unpack the whole data set.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is not a text file: unpack the data set again.") from None
    seen = set()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        values = line.strip().split(separator, columns - 1)
        if len(values) != columns or values[0] in seen:
            fault = "repeats an earlier one" if values[0] in seen else f"should have {columns} columns"
            raise ValueError(f"Line {number} of {str(path)!r}, {line[:60]!r}, {fault}: unpack the data set again.")
        seen.add(values[0])
        yield values


def _missing_in_test(found: Tree) -> list[str]:
    """Raise for test classes that are never learned; name classes that are learned and not tested."""
    train = {photo.label for photo in found.photos if not photo.test}
    test = {photo.label for photo in found.photos if photo.test}
    unknown = sorted(test - train)
    if unknown:
        raise ValueError(
            f"The test part of {str(found.folder)!r} has class {unknown[0]!r}, which the training part lacks"
            f"{f', and {len(unknown) - 1} more' if unknown[1:] else ''}: both parts should have the same classes."
        )
    return [f"class {label!r} has no {found.noun} in the test part" for label in sorted(train - test)] if test else []


def _check_names(folder: Path, photos: Sequence[Photo]) -> None:
    """Raise for labels that are not UTF-8, and for photos that are listed twice."""
    for label in sorted({photo.label for photo in photos}):
        try:
            label.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"{str(folder)!r} has a class folder whose name, {label!r}, is not UTF-8: it cannot be a label. Rename it."
            ) from None
    name, times = Counter(photo.name for photo in photos).most_common(1)[0]
    if times > 1:
        raise ValueError(f"The lists in {str(folder)!r} name {name!r} {times} times: unpack the data set again.")
