"""CIFAR-10 and CIFAR-100: the official binary files, and the official pickles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cldnet.data.dataset import Dataset, Part
from cldnet.data.files.regular import check_file
from cldnet.data.files.unpickle import safe_unpickle
from cldnet.data.memory import make_room, open_array

__all__ = ["read_cifar10", "read_cifar100"]

_IMAGE = (3, 32, 32)
_PIXELS = 3072
_TEN_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class _Labelling:
    """One of the ways in which the images of a set are labelled: its byte in a record, and its names in the files."""

    column: int
    key: str
    names_key: str
    names_file: str
    classes: int


@dataclass(frozen=True)
class _Set:
    """The files of a set, without the ``.bin`` of the binary ones."""

    title: str
    train: tuple[str, ...]
    test: str
    meta: str
    labellings: tuple[_Labelling, ...]


_CIFAR10 = _Set(
    "CIFAR-10",
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test_batch",
    "batches.meta",
    (_Labelling(0, "labels", "label_names", "batches.meta.txt", 10),),
)
_COARSE = _Labelling(0, "coarse_labels", "coarse_label_names", "coarse_label_names.txt", 20)
_FINE = _Labelling(1, "fine_labels", "fine_label_names", "fine_label_names.txt", 100)
_CIFAR100 = _Set("CIFAR-100", ("train",), "test", "meta", (_COARSE, _FINE))

#: Images of a file, one a row, and for every labelling of the set the number of each image's class.
_Content = tuple[NDArray[np.uint8], list[NDArray[np.int64]]]


def read_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10 from the folder that holds its files, binary or pickled, with the classes' names as labels.

    Of pickles nothing is executed. Without ``batches.meta`` the ten well-known names are used.
    """
    return _read(folder, _CIFAR10, _CIFAR10.labellings[0], "cifar-10")


def read_cifar100(folder: Path, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """Read CIFAR-100 from the folder that holds its files, binary or pickled, with the classes' names as labels.

    Parameters
    ----------
    folder : Path
        Holds ``train.bin`` and ``test.bin``, or the pickles ``train``, ``test`` and ``meta``.
    labels : {"fine", "coarse"}
        The 100 classes, or the 20 groups that they form.
    """
    if labels not in ("fine", "coarse"):
        raise ValueError(f"labels={labels!r} should be 'fine' (100 classes) or 'coarse' (20 groups of them).")
    fine = labels == "fine"
    return _read(folder, _CIFAR100, _FINE if fine else _COARSE, "cifar-100" if fine else "cifar-100-coarse")


def _read(folder: Path, wanted: _Set, labelling: _Labelling, name: str) -> Dataset:
    binary = _is_binary(folder, wanted)
    names = _class_names(folder, wanted, labelling, binary)
    reader, end = (_read_binary, ".bin") if binary else (_read_pickle, "")
    train, test = (
        _part([folder / f"{file}{end}" for file in files], reader, wanted, labelling, names)
        for files in (wanted.train, (wanted.test,))
    )
    return Dataset(name, train, test)


def _is_binary(folder: Path, wanted: _Set) -> bool:
    """Tell of which kind the folder's files are, or which of them are missing."""
    files = (*wanted.train, wanted.test)
    missing = {
        end: [f"{name}{end}" for name in files if not (folder / f"{name}{end}").is_file()] for end in (".bin", "")
    }
    if all(missing.values()):
        absent = min(missing.values(), key=len)
        raise FileNotFoundError(
            f"The folder {folder} lacks {', '.join(absent)} of {wanted.title}. "
            f"Put the official files there, or get them with 'cldnet data get {wanted.title.lower()}'."
        )
    return not missing[".bin"]


def _class_names(folder: Path, wanted: _Set, labelling: _Labelling, binary: bool) -> NDArray[np.str_]:
    path = folder / (labelling.names_file if binary else wanted.meta)
    if not path.exists():
        if wanted is _CIFAR10:
            return np.array(_TEN_NAMES)
        raise FileNotFoundError(
            f"The folder {folder} lacks {path.name}, which has the names of the classes. "
            "Copy it from the official archive."
        )
    names = _names_of_text(path) if binary else _names_of_pickle(path, labelling)
    if len(names) != labelling.classes or len(set(names)) != len(names) or "" in names:
        raise ValueError(
            f"{path} has {len(names)} names of classes, {len(set(names))} of them different; "
            f"expected {labelling.classes}. Copy it from the official archive."
        )
    return np.array(names)


def _names_of_text(path: Path) -> list[str]:
    check_file(path)
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text ({error}). Copy it from the official archive.") from error
    return [line.strip() for line in lines if line.strip()]  # the official file ends in a blank line


def _names_of_pickle(path: Path, labelling: _Labelling) -> list[str]:
    names = _entry(safe_unpickle(path), labelling.names_key, path)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise _broken(path, f"has something other than names under {labelling.names_key!r}")
    return [name if isinstance(name, str) else name.decode("utf-8", errors="replace") for name in names]


def _part(
    paths: Sequence[Path],
    reader: Callable[[Path, _Set], _Content],
    wanted: _Set,
    labelling: _Labelling,
    names: NDArray[np.str_],
) -> Part:
    contents = []
    for path in paths:
        images, numbers = reader(path, wanted)
        for each, found in zip(wanted.labellings, numbers, strict=True):
            wrong = np.flatnonzero((found < 0) | (found >= each.classes))
            if len(wrong):
                raise _broken(path, f"says class {found[wrong[0]]} for image {wrong[0]} of {each.classes} classes")
        contents.append((images, numbers[wanted.labellings.index(labelling)]))
    x = make_room((sum(len(images) for images, _ in contents), *_IMAGE), np.dtype(np.uint8))
    np.concatenate([images for images, _ in contents], out=x.reshape(-1, _PIXELS))
    return Part(torch.from_numpy(x), names[np.concatenate([numbers for _, numbers in contents])])


def _read_binary(path: Path, wanted: _Set) -> _Content:
    check_file(path)
    labels = len(wanted.labellings)
    length, record = path.stat().st_size, labels + _PIXELS
    if length == 0 or length % record:
        raise _broken(path, f"is {length:,} bytes long, which is no whole number of records of {record} bytes")
    records = open_array(path, 0, np.dtype(np.uint8), (length // record, record)).numpy()
    return records[:, labels:], [records[:, each.column].astype(np.int64) for each in wanted.labellings]


def _read_pickle(path: Path, wanted: _Set) -> _Content:
    content = safe_unpickle(path)
    images = _entry(content, "data", path)
    if (
        not isinstance(images, np.ndarray)
        or images.dtype != np.uint8
        or images.shape[1:] != (_PIXELS,)
        or not len(images)
    ):
        raise _broken(path, f"has no bytes of shape (n, {_PIXELS}) under 'data'")
    return images, [_numbers(_entry(content, each.key, path), each, len(images), path) for each in wanted.labellings]


def _numbers(found: Any, labelling: _Labelling, count: int, path: Path) -> NDArray[np.int64]:
    """Turn the labels of a pickle, a list of whole numbers or an array of them, into an array."""
    plain = isinstance(found, np.ndarray) or (isinstance(found, list) and all(type(value) is int for value in found))
    if not plain or np.shape(found) != (count,):
        raise _broken(path, f"has no whole number for each of its {count:,} images under {labelling.key!r}")
    try:
        return np.array(found).astype(np.int64, casting="same_kind")
    except (OverflowError, TypeError) as error:  # numbers beyond 2⁶³
        raise _broken(path, f"has absurd numbers of classes under {labelling.key!r}") from error


def _entry(content: Any, key: str, path: Path) -> Any:
    """What a pickled dict has under a key, which is bytes where Python 2 wrote it."""
    if not isinstance(content, dict) or not {key, key.encode()} & content.keys():
        raise _broken(path, f"has nothing under {key!r}")
    return content[key] if key in content else content[key.encode()]


def _broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} {what}. Get the official file again.")
