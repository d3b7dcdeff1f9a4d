"""Layouts in which data sets of photos are published: ImageNet-R, Tiny-ImageNet-200 and CUB-200-2011."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import torch

from cldnet.data.files.regular import check_file
from cldnet.data.images.scan import Found, Photo, look, scan_classes, subfolders
from cldnet.device import generator

__all__ = [
    "IMAGENET_R_SEED",
    "IMAGENET_R_SHARE",
    "cub",
    "cub_folder",
    "is_tiny_imagenet",
    "looks_like_imagenet_r",
    "split_imagenet_r",
    "tiny_imagenet",
]

#: DualPrompt (Wang et al. 2022) cut ImageNet-R's 30,000 images into 24,000 and 6,000 at random; no list and no seed that others
#: could use was published. Ours is the permutation that this seed gives over the sorted names; its first share is for training.
IMAGENET_R_SEED = 2022
IMAGENET_R_SHARE = 0.8

_WNID = re.compile(r"n[0-9]{8}")
_CUB_LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")


def looks_like_imagenet_r(classes: Sequence[str]) -> bool:
    """Tell whether all classes are named like synsets of WordNet.

    Examples
    --------
    >>> looks_like_imagenet_r(["n01443537", "n01484850"]), looks_like_imagenet_r(["n01443537", "cat"])
    (True, False)
    """
    return bool(classes) and all(_WNID.fullmatch(name) for name in classes)


def split_imagenet_r(photos: Sequence[Photo]) -> list[Photo]:
    """Give 80 % of all photos to training and the rest to the test part, the same ones every time.

    Where that leaves a class without a photo in either part, which happens in small trees only, one moves, and others make up
    for it as far as they can; the only photo of a class is for training.

    Examples
    --------
    >>> photos = [Photo(f"n00000001/{i}.jpg", "n00000001") for i in range(10)]
    >>> [photo.name[-5:] for photo in split_imagenet_r(photos) if photo.test]
    ['3.jpg', '4.jpg']
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


def is_tiny_imagenet(folder: Path) -> bool:
    """Tell Tiny-ImageNet's layout by its lists."""
    return (folder / "val" / "val_annotations.txt").is_file() or (
        (folder / "wnids.txt").is_file() and (folder / "train").is_dir()
    )


def tiny_imagenet(folder: Path) -> Found:
    """Find the photos of Tiny-ImageNet-200: its validation part is the test part, for that of the contest has no labels."""
    if not (folder / "train").is_dir():
        raise FileNotFoundError(f"{str(folder / 'train')!r} is missing: unpack the whole of Tiny-ImageNet.")
    if (folder / "wnids.txt").is_file():
        odd = set(subfolders(folder / "train")) ^ {line[0] for line in _lines(folder / "wnids.txt", 1)}
        if odd:
            raise ValueError(
                f"{str(folder / 'wnids.txt')!r} and the folders in 'train' do not agree on {min(odd)!r}: "
                "unpack Tiny-ImageNet again."
            )
    found = Found()
    found.add(scan_classes(folder, "train"))
    for name, rest in _lines(folder / "val" / "val_annotations.txt", 2, "\t"):
        wnid = rest.split("\t")[0]  # behind it a box, which is of no use here
        found.photos.append(replace(look(folder, _inside("val/images", name), wnid), test=True))
    return found


def cub_folder(folder: Path) -> Path | None:
    """Return where CUB-200-2011's lists lie: in a folder or in its CUB_200_2011; none if this is another data set."""
    for place in (folder, folder / "CUB_200_2011"):
        if any((place / name).is_file() for name in _CUB_LISTS[1:3]):
            return place
    return None


def cub(folder: Path) -> Found:
    """Find the photos of CUB-200-2011 through its four lists."""
    images, class_of, training, classes = ({line[0]: line[1] for line in _lines(folder / name)} for name in _CUB_LISTS)
    found = Found()
    for number, name in images.items():
        label = classes.get(class_of.get(number, ""))
        if label is None or training.get(number) not in ("0", "1"):
            raise ValueError(
                f"The lists in {str(folder)!r} do not say class and part of image {number} ({name!r}): "
                "unpack CUB-200-2011 again."
            )
        found.photos.append(replace(look(folder, _inside("images", name), label), test=training[number] == "0"))
    unknown = (class_of.keys() | training.keys()) - images.keys()
    if unknown:
        raise ValueError(
            f"{str(folder / 'images.txt')!r} lacks image {min(unknown)!r} of the other lists: unpack CUB-200-2011 again."
        )
    return found


def _inside(folder: str, name: str) -> str:
    """Join a name out of a list to a folder, or refuse one that would lead out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name or os.path.isabs(name) or "\\" in name:
        raise ValueError(f"The list of images has {name!r}, which leads out of {folder!r}: that file is not read.")
    return f"{folder}/{path}"


def _lines(path: Path, columns: int = 2, separator: str = " ") -> Iterator[list[str]]:
    """Read the columns of a list, or say which line is not as it should be; the first column names a line only once."""
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
