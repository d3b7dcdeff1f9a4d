"""CIFAR from binary files and from pickles: the same data, and damaged files refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cldnet.data import published
from cldnet.data.published import read_cifar10, read_cifar100

COUNT = 3
TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FINE = [f"fine {number}" for number in range(100)]
COARSE = [f"coarse {number}" for number in range(20)]
PARTS_10 = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
PARTS_100 = ["train", "test"]
SOURCE = random.Random(1)
PIXELS = {part: [SOURCE.randbytes(3072) for _ in range(COUNT)] for part in PARTS_10 + PARTS_100}
LABELS = {part: [SOURCE.randrange(10) for _ in range(COUNT)] for part in PARTS_10}
LABELS |= {part: [SOURCE.randrange(100) for _ in range(COUNT)] for part in PARTS_100}
GROUPS = {part: [SOURCE.randrange(20) for _ in range(COUNT)] for part in PARTS_100}


def binary_10(folder: Path) -> None:
    for part in PARTS_10:
        records = (bytes([label]) + pixels for label, pixels in zip(LABELS[part], PIXELS[part], strict=True))
        (folder / f"{part}.bin").write_bytes(b"".join(records))
    (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")


def binary_100(folder: Path) -> None:
    for part in PARTS_100:
        rows = zip(GROUPS[part], LABELS[part], PIXELS[part], strict=True)
        (folder / f"{part}.bin").write_bytes(b"".join(bytes(labels) + pixels for *labels, pixels in rows))
    (folder / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
    (folder / "coarse_label_names.txt").write_text("\r\n".join(COARSE))


def string_2(content: bytes) -> bytes:
    """A str as Python 2 pickled it."""
    return b"T" + struct.pack("<I", len(content)) + content if len(content) > 255 else b"U%c" % len(content) + content


def value_2(value: Any) -> bytes:
    """A value as Python 2 pickled it, instruction by instruction."""
    if isinstance(value, bytes):
        return string_2(value)
    if isinstance(value, int):
        return b"K" + bytes([value])
    if isinstance(value, list):
        return b"](" + b"".join(map(value_2, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(value_2(key) + value_2(each) for key, each in value.items()) + b"u"
    size = b"J" + struct.pack("<i", value.shape[0]) + b"M" + struct.pack("<H", value.shape[1]) + b"\x86"
    letters = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    return made + b"(K\x01" + size + letters + b"\x89" + string_2(value.tobytes()) + b"tb"


def python_2(value: Any) -> bytes:
    content = b"\x80\x02" + value_2(value) + b"."
    back = pickle.loads(content, encoding="bytes")
    assert back.keys() == value.keys()  # it is a pickle like any other
    return content


def official(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the pickles of a folder for the official ones."""
    sums = {hashlib.md5(path.read_bytes()).hexdigest(): path.name for path in folder.iterdir()}
    monkeypatch.setattr(published, "_OFFICIAL_PICKLES", sums)


def batch(part: str, **labels: list[int]) -> dict[bytes, Any]:
    data = np.frombuffer(b"".join(PIXELS[part]), np.uint8).reshape(COUNT, 3072)
    named = {key.encode(): numbers for key, numbers in labels.items()}
    return {b"batch_label": part.encode(), b"data": data, **named, b"filenames": [b"a.png"] * COUNT}


def python_10(folder: Path) -> None:
    for part in PARTS_10:
        (folder / part).write_bytes(python_2(batch(part, labels=LABELS[part])))
    (folder / "batches.meta").write_bytes(python_2({b"label_names": [name.encode() for name in TEN], b"num_vis": 72}))


def python_100(folder: Path) -> None:
    for part in PARTS_100:
        (folder / part).write_bytes(python_2(batch(part, fine_labels=LABELS[part], coarse_labels=GROUPS[part])))
    names = {b"fine_label_names": FINE, b"coarse_label_names": COARSE}
    (folder / "meta").write_bytes(python_2({key: [name.encode() for name in each] for key, each in names.items()}))


def test_cifar_10_is_what_was_written(tmp_path: Path) -> None:
    binary_10(tmp_path)
    cifar = read_cifar10(tmp_path)
    assert cifar.name == "cifar-10"
    assert cifar.test is not None
    for part, names in ((cifar.train, PARTS_10[:5]), (cifar.test, PARTS_10[5:])):
        assert part.x.dtype == torch.uint8
        assert part.x.shape == (COUNT * len(names), 3, 32, 32)
        assert part.x.is_contiguous()
        assert part.y.tolist() == [TEN[label] for name in names for label in LABELS[name]]
        pixels = [image for name in names for image in PIXELS[name]]
        for image, channel, row, column in [(0, 0, 0, 0), (2, 1, 5, 31), (1, 2, 31, 0), (len(pixels) - 1, 2, 30, 7)]:
            assert part.x[image, channel, row, column] == pixels[image][channel * 1024 + row * 32 + column]
        assert part.x.numpy().tobytes() == b"".join(pixels)


@pytest.mark.parametrize("labels", ["fine", "coarse"])
def test_cifar_100_is_what_was_written(tmp_path: Path, labels: Any) -> None:
    binary_100(tmp_path)
    cifar = read_cifar100(tmp_path, labels)
    names, numbers = (FINE, LABELS) if labels == "fine" else (COARSE, GROUPS)
    assert cifar.name == ("cifar-100" if labels == "fine" else "cifar-100-coarse")
    assert cifar.test is not None
    for part, name in ((cifar.train, "train"), (cifar.test, "test")):
        assert part.y.tolist() == [names[number] for number in numbers[name]]
        assert part.x.numpy().tobytes() == b"".join(PIXELS[name])
        assert part.x.shape == (COUNT, 3, 32, 32)


@pytest.mark.parametrize(
    ("binary", "python", "readers"),
    [
        (binary_10, python_10, [read_cifar10]),
        (binary_100, python_100, [read_cifar100, lambda folder: read_cifar100(folder, "coarse")]),
    ],
)
def test_official_pickles_hold_the_same_data_as_binary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: Any, python: Any, readers: Any
) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "p").mkdir()
    binary(tmp_path / "b")
    python(tmp_path / "p")
    official(tmp_path / "p", monkeypatch)
    for read in readers:
        assert read(tmp_path / "b").digest == read(tmp_path / "p").digest


def test_what_is_larger_than_memory_holds_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary_10(tmp_path)
    digest = read_cifar10(tmp_path).digest
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0")
    mapped = read_cifar10(tmp_path)
    assert mapped.digest == digest
    assert mapped.train.x.is_contiguous()


def test_binary_files_are_preferred(tmp_path: Path) -> None:
    binary_10(tmp_path)
    for part in PARTS_10:
        (tmp_path / part).write_bytes(b"never read")
    read_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(ValueError, match="data_batch_1 is not one of the official pickles"):
        read_cifar10(tmp_path)


def test_without_a_file_of_names_cifar_10_has_the_known_ones_and_cifar_100_says_what_is_missing(tmp_path: Path) -> None:
    binary_10(tmp_path)
    digest = read_cifar10(tmp_path).digest
    (tmp_path / "batches.meta.txt").unlink()
    assert read_cifar10(tmp_path).digest == digest
    binary_100(tmp_path)
    (tmp_path / "fine_label_names.txt").unlink()
    read_cifar100(tmp_path, "coarse")
    with pytest.raises(FileNotFoundError, match=r"lacks fine_label_names\.txt, which has the names of the classes"):
        read_cifar100(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"lacks meta"):
        read_cifar100(tmp_path)
    binary_10(tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"There is no file .*data_batch_1"):
        read_cifar10(tmp_path)


def test_an_unknown_kind_of_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="labels='rough' should be 'fine'"):
        read_cifar100(tmp_path, "rough")  # type: ignore[arg-type]


BROKEN_BINARY: dict[str, tuple[str, bytes, str]] = {
    "cut": ("data_batch_4.bin", bytes(3072), "is 3,072 bytes long, which is not a multiple of 3073"),
    "empty": ("test_batch.bin", b"", "is 0 bytes long"),
    "label": ("data_batch_5.bin", bytes(3073) + b"\x0a" + bytes(3072), "says class 10 for image 1 of 10 classes"),
    "nine names": ("batches.meta.txt", "\n".join(TEN[:9]).encode(), "has 9 class names, 9 of them different; expected 10"),
    "one name twice": ("batches.meta.txt", "\n".join([*TEN[:9], "cat"]).encode(), "has 10 class names, 9 of them different"),
    "not text": ("batches.meta.txt", b"\xff\xfe\x00", "is not a text file"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_BINARY)
def test_broken_binary_files_are_refused(tmp_path: Path, name: str) -> None:
    binary_10(tmp_path)
    file, content, complaint = BROKEN_BINARY[name]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"{file} {complaint}"):
        read_cifar10(tmp_path)


def test_either_label_of_cifar_100_is_checked(tmp_path: Path) -> None:
    binary_100(tmp_path)
    (tmp_path / "test.bin").write_bytes(bytes([19, 99]) + bytes(3072))
    assert read_cifar100(tmp_path).test is not None
    (tmp_path / "test.bin").write_bytes(bytes([20, 99]) + bytes(3072))
    with pytest.raises(ValueError, match="says class 20 for image 0 of 20 classes"):
        read_cifar100(tmp_path)


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("file", [*PARTS_10, "batches.meta"])
def test_other_pickles_are_refused_with_how_to_convert_them(tmp_path: Path, file: str) -> None:
    python_10(tmp_path)
    for path in tmp_path.iterdir():
        if path.name != file:
            path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"is not one of the official pickles of CIFAR.*np\.savez.*arrays:PATH"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("file", ["data_batch_1", "batches.meta"])
def test_no_pickle_runs_code_even_with_an_official_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, protocol: int
) -> None:
    python_10(tmp_path)
    marker = tmp_path / "marker"
    content = pickle.dumps({b"labels": [Evil(marker)], b"label_names": [Evil(marker)]}, protocol=protocol)
    (tmp_path / file).write_bytes(content)
    official(tmp_path, monkeypatch)
    with pytest.raises(
        ValueError, match=rf"{file} was not loaded: it asks for \w+\.(system|encode)\. Nothing was executed"
    ):
        read_cifar10(tmp_path)
    assert not marker.exists()
