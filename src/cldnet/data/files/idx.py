"""MNIST and its kin: the idx format, plain or compressed."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.typing import NDArray

from cldnet.data.dataset import Dataset, Part
from cldnet.data.files.regular import check_file
from cldnet.data.memory import make_room, open_array

__all__ = ["mnist_files", "read_idx", "read_mnist"]

_UINT8 = 8
_MOST_DIMENSIONS = 4
_GZIP = b"\x1f\x8b"
#: Deflate cannot make more than this out of a byte, so what claims to be larger is refused before room is made for it.
_MOST_FROM_A_BYTE = 1032
_BLOCK = 1 << 24
_ROLES = {
    "train-images": "idx3-ubyte",
    "train-labels": "idx1-ubyte",
    "t10k-images": "idx3-ubyte",
    "t10k-labels": "idx1-ubyte",
}
_CLASSES = 10


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes with one to four dimensions, plain or compressed by gzip, whatever its name.

    A plain file that is larger than `memory_limit` is mapped.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "labels"
    >>> _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    >>> read_idx(path)
    array([7, 2, 1], dtype=uint8)
    >>> folder.cleanup()
    """
    check_file(path, "Check the path, or get the data with 'cldnet data get'.")
    with path.open("rb") as file:
        if file.read(2) == _GZIP:
            return _compressed(path)
        file.seek(0)
        shape = _shape(path, file)
    length = path.stat().st_size
    expected = _header_length(shape) + math.prod(shape)
    if length != expected:
        problem = "cut short" if length < expected else "too long"
        raise _broken(path, f"is {problem}: its header says {shape}, {expected:,} bytes, and it has {length:,}")
    pixels: NDArray[np.uint8] = open_array(path, _header_length(shape), np.dtype(np.uint8), shape).numpy()
    return pixels


def read_mnist(folder: Path, name: str) -> Dataset:
    """Read the four files of MNIST, or of a set published in its format such as FashionMNIST.

    Images come as ``(n, height, width)`` in uint8, labels from 0 to 9. Each file may be plain or ``.gz``; a plain one is
    preferred.
    """
    found = mnist_files(folder)
    missing = [f"{role}-{kind}" for role, kind in _ROLES.items() if role not in found]
    if missing:
        raise FileNotFoundError(
            f"The folder {folder} lacks {', '.join(missing)} (plain or .gz). "
            "Put the four files of the set there, or get them with 'cldnet data get'."
        )
    train, test = (_part(found[f"{half}-images"], found[f"{half}-labels"]) for half in ("train", "t10k"))
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ValueError(
            f"In {folder} training images are {tuple(train.x.shape[1:])} and test images {tuple(test.x.shape[1:])} "
            "pixels large: the files come from different sets. Get all four from one place."
        )
    return Dataset(name, train, test)


def mnist_files(folder: Path) -> dict[str, Path]:
    """Find the files of MNIST's format: those that are there, by their role, such as ``train-images``."""
    found = {}
    for role, kind in _ROLES.items():
        names = (f"{role}{mark}{kind}{end}" for end in ("", ".gz") for mark in "-.")
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is not None:
            found[role] = path
    return found


def _part(images_path: Path, labels_path: Path) -> Part:
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or 0 in images.shape:
        raise _broken(images_path, f"has shape {images.shape}; expected images, (count, height, width)")
    if labels.ndim != 1:
        raise _broken(labels_path, f"has shape {labels.shape}; expected one label an image")
    if len(images) != len(labels):
        raise ValueError(
            f"{images_path} has {len(images):,} images and {labels_path} {len(labels):,} labels: "
            "the files come from different sets. Get both from one place."
        )
    wrong = np.flatnonzero(labels >= _CLASSES)
    if len(wrong):
        raise _broken(labels_path, f"says {labels[wrong[0]]} for image {wrong[0]}; labels are 0 to {_CLASSES - 1}")
    return Part(torch.from_numpy(images), labels.astype(np.int64))


def _shape(path: Path, file: IO[bytes] | gzip.GzipFile) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UINT8 or not 1 <= magic[3] <= _MOST_DIMENSIONS:
        raise _broken(path, f"begins with {magic.hex(' ') or 'nothing'}; an idx file of bytes begins with 00 00 08")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise _broken(path, "is cut short within its header")
    return struct.unpack(f">{magic[3]}I", sizes)


def _header_length(shape: tuple[int, ...]) -> int:
    return 4 + 4 * len(shape)


def _compressed(path: Path) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            shape = _shape(path, file)
            size = math.prod(shape)
            if size > _MOST_FROM_A_BYTE * path.stat().st_size:
                raise _broken(path, f"claims to hold {shape}, more than a file of its length can hold")
            pixels: NDArray[np.uint8] = make_room(shape, np.dtype(np.uint8))
            flat, filled = pixels.reshape(-1), 0
            while block := file.read(min(_BLOCK, size - filled)):
                flat[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
                filled += len(block)
            if filled < size or file.read(1):  # reading past the end also has gzip check its sum
                problem = "cut short" if filled < size else "too long"
                raise _broken(path, f"is {problem}: its header says {shape}, which is not what it holds")
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise _broken(path, f"is a damaged gzip file ({error})") from error
    return pixels


def _broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} {what}. Get the file again.")
