"""The official files of MNIST, FashionMNIST, CIFAR-10, CIFAR-100 and CLINC150."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import pickle
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cldnet.data.dataset import Dataset, Part, check_file, make_room, open_array
from cldnet.data.sentences import encode_sentences

_GZIP = b"\x1f\x8b"
#: Deflate cannot expand a byte to more than this, so a larger claim is refused before memory is allocated.
_MOST_FROM_A_BYTE = 1032
_BLOCK = 1 << 24
_LARGEST_JSON = 1 << 26


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes with one to four dimensions, plain or gzipped, whatever its name.

    A plain file larger than `memory_limit` is memory-mapped.
    """
    check_file(path, "Check the path, or get the data with 'cldnet data get'.")
    with path.open("rb") as file:
        if file.read(2) == _GZIP:
            return _read_gzipped(path)
        file.seek(0)
        shape = _idx_shape(path, file)
    length, header = path.stat().st_size, 4 + 4 * len(shape)
    expected = header + math.prod(shape)
    if length != expected:
        problem = "cut short" if length < expected else "too long"
        raise _broken(path, f"is {problem}: its header says {shape}, {expected:,} bytes, and it has {length:,}")
    return open_array(path, header, np.dtype(np.uint8), shape).numpy()


def read_mnist(folder: Path, name: str) -> Dataset:
    """Read MNIST's four files, or those of a set in its format such as FashionMNIST.

    Images have shape ``(n, height, width)`` and type uint8, labels are 0 to 9. Each file may be plain or ``.gz``; plain
    files are preferred.
    """
    return Dataset(name, _idx_part(folder, "train"), _idx_part(folder, "t10k"))


def _mnist_file(folder: Path, role: str, kind: str) -> Path:
    """Find one of the four files, a plain one first."""
    for end in ("", ".gz"):
        for path in (folder / f"{role}-{kind}{end}", folder / f"{role}.{kind}{end}"):
            if path.is_file():
                return path
    raise FileNotFoundError(
        f"The folder {folder} lacks {role}-{kind} (plain or .gz). Put the file there, or use 'cldnet data get'."
    )


def _idx_part(folder: Path, half: str) -> Part:
    images_path = _mnist_file(folder, f"{half}-images", "idx3-ubyte")
    labels_path = _mnist_file(folder, f"{half}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or 0 in images.shape:
        raise _broken(images_path, f"has shape {images.shape}; expected images, (count, height, width)")
    if labels.ndim != 1:
        raise _broken(labels_path, f"has shape {labels.shape}; expected one label per image")
    if len(images) != len(labels):
        raise ValueError(
            f"{images_path} has {len(images):,} images and {labels_path} {len(labels):,} labels: "
            "the files come from different sets. Get both from one place."
        )
    wrong = np.flatnonzero(labels >= 10)
    if len(wrong):
        raise _broken(labels_path, f"says {labels[wrong[0]]} for image {wrong[0]}; labels are 0 to 9")
    return Part(torch.from_numpy(images), labels.astype(np.int64))


def _idx_shape(path: Path, file: IO[bytes] | gzip.GzipFile) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
        raise _broken(path, f"begins with {magic.hex(' ') or 'nothing'}; an idx file of bytes begins with 00 00 08")
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise _broken(path, "is cut short within its header")
    return struct.unpack(f">{magic[3]}I", sizes)


def _read_gzipped(path: Path) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            shape = _idx_shape(path, file)
            size = math.prod(shape)
            if size > _MOST_FROM_A_BYTE * path.stat().st_size:
                raise _broken(path, f"claims to hold {shape}, more than a file of its length can hold")
            pixels: NDArray[np.uint8] = make_room(shape, np.dtype(np.uint8))
            flat, filled = pixels.reshape(-1), 0
            while block := file.read(min(_BLOCK, size - filled)):
                flat[filled : filled + len(block)] = np.frombuffer(block, np.uint8)
                filled += len(block)
            if filled < size or file.read(1):  # reading past the end also verifies gzip's checksum
                problem = "cut short" if filled < size else "too long"
                raise _broken(path, f"is {problem}: its header says {shape}, which is not what it holds")
    except (zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise _broken(path, f"is a damaged gzip file ({error})") from error
    return pixels


_IMAGE = (3, 32, 32)
_PIXELS = 3072
_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: MD5 of the files in the official archives cifar-10-python.tar.gz and cifar-100-python.tar.gz.
_OFFICIAL_PICKLES = {
    "c99cafc152244af753f735de768cd75f": "data_batch_1",
    "d4bba439e000b95fd0a9bffe97cbabec": "data_batch_2",
    "54ebc095f3ab1f0389bbae665268c751": "data_batch_3",
    "634d18415352ddfa80567beed471001a": "data_batch_4",
    "482c414d41f54cd18b22e5b47cb7c3cb": "data_batch_5",
    "40351d587109b95175f43aff81a1287e": "test_batch",
    "5ff9c542aee3614f3951f8cda6e48888": "batches.meta",
    "16019d7e3df5f24257cddd939b257f8d": "train",
    "f0ef6b0ae62326f3e7ffdfab6717acfc": "test",
    "7973b15100ade9c7d40fb424638fde48": "meta",
}
_LARGEST_PICKLE = 1 << 28
#: All names that the official pickles use. The constructor of dtype drops old arguments that numpy now warns about.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): lambda letters, *_: np.dtype(letters),
}


class _Unpickler(pickle.Unpickler):
    """Builds numpy arrays and plain values, and can call nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


@dataclass(frozen=True)
class _Cifar:
    """The files of a set, without the ``.bin`` of the binary ones, and the number of classes of each labelling.

    ``names`` is the text file beside the binary files with the class names of a labelling. A binary record begins with one
    byte per labelling.
    """

    train: tuple[str, ...]
    test: str
    meta: str
    names: str
    classes: Mapping[str, int]


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10 = _Cifar(_BATCHES, "test_batch", "batches.meta", "batches.meta.txt", {"label": 10})
_CIFAR100 = _Cifar(("train",), "test", "meta", "{}_names.txt", {"coarse_label": 20, "fine_label": 100})


def read_cifar10(folder: Path) -> Dataset:
    """Read CIFAR-10 from the folder with its binary files or its official pickles, with class names as labels.

    Without ``batches.meta`` the ten well-known names are used.
    """
    return _read_cifar(folder, _CIFAR10, "label", "cifar-10")


def read_cifar100(folder: Path, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """Read CIFAR-100 from the folder with its binary files or its official pickles, with class names as labels."""
    if labels not in ("fine", "coarse"):
        raise ValueError(f"labels={labels!r} should be 'fine' (100 classes) or 'coarse' (20 groups of them).")
    name = "cifar-100" if labels == "fine" else "cifar-100-coarse"
    return _read_cifar(folder, _CIFAR100, f"{labels}_label", name)


def _read_cifar(folder: Path, cifar: _Cifar, labels: str, name: str) -> Dataset:
    binary = all((folder / f"{file}.bin").is_file() for file in (*cifar.train, cifar.test))
    end = ".bin" if binary else ""
    names = _class_names(folder, cifar, labels, binary)
    parts = [
        _cifar_part([folder / f"{file}{end}" for file in files], cifar, labels, names)
        for files in (cifar.train, (cifar.test,))
    ]
    return Dataset(name, *parts)


def _class_names(folder: Path, cifar: _Cifar, labels: str, binary: bool) -> NDArray[np.str_]:
    path = folder / (cifar.names.format(labels) if binary else cifar.meta)
    if not path.exists():
        if cifar is _CIFAR10:
            return np.array(_CIFAR10_NAMES)
        raise FileNotFoundError(
            f"The folder {folder} lacks {path.name}, which has the names of the classes. "
            "Copy it from the official archive."
        )
    if binary:
        check_file(path)
        try:
            names = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a text file ({error}). Copy it from the official archive.") from error
    else:
        names = [name.decode("utf-8") for name in _unpickle(path)[f"{labels}_names".encode()]]
    if len(names) != cifar.classes[labels] or len(set(names)) != len(names):
        raise ValueError(
            f"{path} has {len(names)} class names, {len(set(names))} of them different; "
            f"expected {cifar.classes[labels]}. Copy it from the official archive."
        )
    return np.array(names)


def _cifar_part(paths: Sequence[Path], cifar: _Cifar, labels: str, names: NDArray[np.str_]) -> Part:
    contents = []
    for path in paths:
        if path.suffix == ".bin":
            images, numbers = _read_records(path, cifar)
        else:
            content = _unpickle(path)
            images = content[b"data"]
            numbers = {each: np.array(content[f"{each}s".encode()], np.int64) for each in cifar.classes}
        for each, classes in cifar.classes.items():
            wrong = np.flatnonzero(numbers[each] >= classes)
            if len(wrong):
                raise _broken(path, f"says class {numbers[each][wrong[0]]} for image {wrong[0]} of {classes} classes")
        contents.append((images, numbers[labels]))
    x = make_room((sum(len(images) for images, _ in contents), *_IMAGE), np.dtype(np.uint8))
    np.concatenate([images for images, _ in contents], out=x.reshape(-1, _PIXELS))
    return Part(torch.from_numpy(x), names[np.concatenate([numbers for _, numbers in contents])])


def _read_records(path: Path, cifar: _Cifar) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.int64]]]:
    check_file(path)
    labels = len(cifar.classes)
    length, record = path.stat().st_size, labels + _PIXELS
    if length == 0 or length % record:
        raise _broken(path, f"is {length:,} bytes long, which is not a multiple of {record}, the bytes of a record")
    records = open_array(path, 0, np.dtype(np.uint8), (length // record, record)).numpy()
    return records[:, labels:], dict(zip(cifar.classes, records[:, :labels].T.astype(np.int64), strict=True))


def _unpickle(path: Path) -> Any:
    """Load an official pickle. Others are refused: pickles can run code, and can exhaust memory without running any."""
    check_file(path)
    content = path.read_bytes() if path.stat().st_size <= _LARGEST_PICKLE else b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() not in _OFFICIAL_PICKLES:
        raise ValueError(
            f"{path} is not one of the official pickles of CIFAR, and other pickles are not loaded, because they can run "
            "code. Get the official files ('cldnet data get cifar-10', 'cldnet data get cifar-100'), or save your data with "
            "np.savez(path, X=…, y=…) and read them as arrays:PATH."
        )
    try:
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} was not loaded: {error}. Nothing was executed.") from error


#: Parts of CLINC150: intents to learn, choose settings and test with, and sentences that are out of scope, of no intent.
_CLINC_PARTS = ("train", "val", "test", "oos_val", "oos_test")


def read_clinc150(folder: Path, part: str = "test") -> Dataset:
    """Read CLINC150 (Larson et al. 2019): sentences of 150 intents, in groups of 15 by domain.

    ``part="val"`` gives the official validation part to test on. Sentences that are out of scope are not in the data set: see
    `read_clinc150_part`.
    """
    if part not in ("test", "val"):
        raise ValueError(f"part={part!r:.80} should be 'test' or 'val'.")
    parts = []
    for name in ("train", part):
        sentences, intents = read_clinc150_part(folder, name)
        parts.append(Part(encode_sentences(sentences), np.array(intents), text=True))
    path = folder / "domains.json"
    domains = _read_json(path)
    groups = [domains[domain] for domain in sorted(domains)]
    if not all(isinstance(group, list) and all(isinstance(intent, str) for intent in group) for group in groups):
        raise _broken(path, "should have a list of intents for each domain")
    if sorted(intent for group in groups for intent in group) != np.unique(parts[0].y).tolist():
        raise _broken(path, "has other intents than data_full.json")
    return Dataset("clinc150", *parts, groups=[sorted(group) for group in groups])


def read_clinc150_part(folder: Path, part: str) -> tuple[list[str], list[str]]:
    """Read the sentences of a part of CLINC150, ``train``, ``val``, ``test``, ``oos_val`` or ``oos_test``, and their intents.

    Sentences of the last two are out of scope: all have the intent ``oos``.
    """
    if part not in _CLINC_PARTS:
        raise ValueError(f"CLINC150 has no part {part!r}; it has {', '.join(_CLINC_PARTS)}.")
    path = folder / "data_full.json"
    pairs = _read_json(path).get(part)
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs
    ):
        raise _broken(path, f"has no part {part!r} of pairs of a sentence and its intent")
    return [sentence for sentence, _ in pairs], [intent for _, intent in pairs]


def read_clinc150_oos(folder: Path) -> tuple[list[str], list[str]]:
    """Read the sentences of CLINC150 that are out of scope: 100 to choose settings with, and 1,000 to test with."""
    return read_clinc150_part(folder, "oos_val")[0], read_clinc150_part(folder, "oos_test")[0]


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of limited size."""
    check_file(path, "Get the data with 'cldnet data get clinc150'.")
    if path.stat().st_size > _LARGEST_JSON:
        raise _broken(path, f"has more than {_LARGEST_JSON:,} bytes")
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise _broken(path, "should hold a JSON object")
    return found


def _broken(path: Path, what: str) -> ValueError:
    return ValueError(f"{path} {what}. Get the official file again.")
