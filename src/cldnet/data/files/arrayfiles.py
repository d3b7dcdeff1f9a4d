"""numpy's own files: one ``.npz``, or a folder of ``.npy``. Nothing in them is unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.arrays import as_inputs, layout
from cldnet.data.dataset import Dataset, Part
from cldnet.data.files.regular import check_file
from cldnet.data.memory import gather, memory_limit
from cldnet.labels import as_labels

__all__ = ["read_arrays", "whole_or_text"]

_TRAIN_PAIRS = (("x", "y"), ("x_train", "y_train"))
_TEST_PAIR = ("x_test", "y_test")
_KNOWN = {name for pair in (*_TRAIN_PAIRS, _TEST_PAIR) for name in pair}
_MAPPED_TYPES = (np.uint8, np.float32, np.float64)
_BLOCK = 1 << 26
_LARGEST_WHOLE = 2**53
_LAST_LETTER = 0x10FFFF
_SURROGATES = 0xD800 >> 11


def read_arrays(path: Path) -> Dataset:
    """Read inputs and labels that numpy saved.

    Parameters
    ----------
    path : Path
        An ``.npz`` file with arrays ``X``, ``y`` and perhaps ``X_test``, ``y_test``, or ``x_train``, ``y_train``,
        ``x_test``, ``y_test``, as Keras names them; or a folder with ``X.npy``, ``y.npy`` and so on, or the path of one of
        these. Capital letters make no difference, and other arrays are left alone.

    Returns
    -------
    Dataset
        Inputs in uint8 where they were saved so; images with their channels first. An ``.npy`` file larger than
        `memory_limit` is mapped.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.savez(Path(folder.name) / "toy.npz", X=np.zeros((2, 8, 9, 3), np.uint8), y=["cat", "dog"])
    >>> toy = read_arrays(Path(folder.name) / "toy.npz")
    >>> toy.name, toy.train.x.shape, toy.train.y
    ('toy', torch.Size([2, 3, 8, 9]), array(['cat', 'dog'], dtype='<U3'))
    >>> folder.cleanup()
    """
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder {path}. Check the path.")
    if path.suffix.lower() == ".npy" and path.is_file():
        if path.stem.lower() not in _KNOWN:
            raise ValueError(f"{path} is one array; expected X.npy with y.npy beside it. Rename it, or save an .npz.")
        path = path.parent
    if path.is_dir():
        files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix.lower() == ".npy"}
        return _dataset(path.resolve().name, path, files, _load_file)
    check_file(path)
    with _damage_in_words(path):
        archive = zipfile.ZipFile(path)
    with archive:
        members = {info.filename[:-4]: info for info in archive.infolist() if info.filename.endswith(".npy")}
        return _dataset(path.stem, path, members, lambda info: _load_member(path, archive, info))


def whole_or_text(labels: Any) -> NDArray[Any]:
    """Check labels, and make whole numbers of whole floats and of booleans: what comes back is int64 or text.

    Examples
    --------
    >>> whole_or_text(np.array([1.0, 3.0])), whole_or_text(["a", "b"])
    (array([1, 3]), array(['a', 'b'], dtype='<U1'))
    """
    array = as_labels(labels)
    if array.dtype.kind == "U":
        text = array.astype(array.dtype.newbyteorder("="))
        letters = text.view(np.uint32)  # in a damaged file some stand for no letter, and Python must not see those
        if ((letters > _LAST_LETTER) | (letters >> 11 == _SURROGATES)).any():
            raise ValueError("y has labels that are no text.")
        return text
    if array.dtype.kind == "f" and (np.abs(array) > _LARGEST_WHOLE).any():
        raise ValueError("y has floats beyond 2⁵³, which are not exact: use whole numbers or text.")
    return array.astype(np.int64)


def _dataset(name: str, source: Path, found: Mapping[str, Any], load: Callable[[Any], NDArray[Any]]) -> Dataset:
    train_pair, test_pair = _choose(source, found)
    train, test = _part(source, found, train_pair, load), None
    if test_pair is not None:
        test = _part(source, found, test_pair, load)
        kinds = [(tuple(part.x.shape[1:]), str(part.x.dtype)) for part in (train, test)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"In {source} {train_pair[0]} has rows of {kinds[0]} and {test_pair[0]} of {kinds[1]}: "
                "they should have the same shape and type."
            )
    return Dataset(name, train, test)


def _choose(source: Path, found: Mapping[str, Any]) -> tuple[tuple[str, str], tuple[str, str] | None]:
    """Find which arrays are the inputs and the labels, by names in small letters."""
    spelled: dict[str, str] = {}
    for key in found:
        if key.lower() in _KNOWN & spelled.keys():
            raise ValueError(f"{source} has both {spelled[key.lower()]} and {key}: keep one of them.")
        spelled[key.lower()] = key
    begun = [pair for pair in _TRAIN_PAIRS if spelled.keys() & set(pair)]
    if len(begun) == 2:
        raise ValueError(f"{source} has arrays named x or y and others named x_train or y_train: keep one pair.")
    wanted = begun[0] if begun else _TRAIN_PAIRS[0]
    tested = bool(spelled.keys() & set(_TEST_PAIR))
    missing = [key for key in (*wanted, *(_TEST_PAIR if tested else ())) if key not in spelled]
    if missing:
        raise ValueError(
            f"{source} lacks {' and '.join(missing)}; it has {', '.join(found) or 'no arrays'}. "
            "Expected X and y, or x_train and y_train, and for a test part X_test and y_test."
        )
    train = (spelled[wanted[0]], spelled[wanted[1]])
    return train, (spelled[_TEST_PAIR[0]], spelled[_TEST_PAIR[1]]) if tested else None


def _part(source: Path, found: Mapping[str, Any], pair: tuple[str, str], load: Callable[[Any], NDArray[Any]]) -> Part:
    inputs, labels = (load(found[key]) for key in pair)
    if not inputs.dtype.isnative and not isinstance(inputs, np.memmap):
        inputs = inputs.astype(inputs.dtype.newbyteorder("="))
    if inputs.dtype.kind not in "biuf" or not 2 <= inputs.ndim <= 4:
        raise ValueError(
            f"{pair[0]} in {source} has shape {inputs.shape} and type {inputs.dtype}; expected numbers of shape "
            "(n, features), (n, height, width) or (n, height, width, channels)."
        )
    if len(inputs) != labels.size or labels.ndim not in (1, 2):  # Keras saves labels as a column
        raise ValueError(
            f"In {source} {pair[0]} has {len(inputs):,} rows and {pair[1]} has shape {labels.shape}: "
            "expected one label a row."
        )
    try:
        x = _mapped_inputs(inputs) if isinstance(inputs, np.memmap) else layout(as_inputs(inputs), None).contiguous()
        return Part(x, whole_or_text(labels.reshape(-1)))
    except ValueError as error:
        raise ValueError(f"{source}, {pair[0]} and {pair[1]}: {error}") from error


def _mapped_inputs(array: NDArray[Any]) -> Tensor:
    """Check what is too large for memory, a block at a time."""
    if array.dtype not in _MAPPED_TYPES:
        raise ValueError(
            f"X has type {array.dtype} and is too large for memory. "
            "Save it as uint8, float32 or float64, which can be mapped from disk."
        )
    x = torch.from_numpy(array)
    step = max(1, _BLOCK // (x[:1].numel() * x.element_size()))
    for first in range(0, 1 if x.dtype == torch.uint8 else len(x), step):
        as_inputs(x[first : first + step])
    if layout(x[:1], None).shape != x[:1].shape:
        x = x.permute(0, 3, 1, 2)
    return x if x.is_contiguous() else gather(x, torch.arange(len(x)))


def _load_file(path: Path) -> NDArray[Any]:
    check_file(path)
    with _damage_in_words(path), path.open("rb") as file:
        shape, order, dtype = _header(file, path.stat().st_size)
        if math.prod(shape) * dtype.itemsize > memory_limit():
            return np.memmap(file, dtype, mode="c", offset=file.tell(), shape=shape, order=order)
        return np.fromfile(file, dtype).reshape(shape, order=order)


def _load_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    limit = memory_limit()
    if info.file_size > limit:
        raise ValueError(
            f"{info.filename} in {path} takes {info.file_size:,} bytes, and one array may take {limit:,} of memory. "
            "Save it as an .npy file, which can be mapped from disk, or set CLDNET_MEMORY_SHARE."
        )
    with _damage_in_words(path):
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename} is compressed in a way that numpy does not use")
        with archive.open(info) as file:
            shape, order, dtype = _header(file, info.file_size)
            return np.frombuffer(file.read(), dtype).reshape(shape, order=order)


def _header(file: IO[bytes], length: int) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Read shape, order and type of an array, and check them against the file's length before room is made for it."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format is not known")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which could carry code: save numbers, and labels as y.astype(str)")
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if dtype.itemsize == 0 or min(shape, default=0) < 0 or expected != length:
        raise ValueError(f"its header says {shape} of {dtype}, {expected:,} bytes in all, and it has {length:,}")
    return shape, "F" if fortran else "C", dtype


@contextmanager
def _damage_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # on damaged files zipfile, zlib and numpy's parser raise nearly anything
        raise ValueError(f"{path} cannot be read as arrays ({error!s:.300}). Save or copy it again.") from error
