"""CIFAR from binary files and from pickles: the same data, and damaged files refused."""

from __future__ import annotations

import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cldnet.data.files.cifar import read_cifar10, read_cifar100

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


def python_3(protocol: int, module: bytes, text_keys: bool) -> Callable[[Any], bytes]:
    def write(value: dict[bytes, Any]) -> bytes:
        other = {key.decode() if text_keys else key: each for key, each in value.items()}
        content = pickle.dumps(other, protocol=protocol)
        return content.replace(b"numpy._core", module).replace(b"numpy.core", module) if protocol < 4 else content

    return write


PICKLERS: dict[str, Callable[[Any], bytes]] = {
    "Python 2": python_2,
    "Python 3, numpy 1": python_3(2, b"numpy.core", text_keys=False),
    "Python 3, numpy 2": python_3(2, b"numpy._core", text_keys=False),
    "protocol 3": python_3(3, b"numpy._core", text_keys=True),
    "protocol 4": python_3(4, b"", text_keys=True),
    "protocol 5": python_3(5, b"", text_keys=False),
}


def batch(part: str, **labels: list[int]) -> dict[bytes, Any]:
    data = np.frombuffer(b"".join(PIXELS[part]), np.uint8).reshape(COUNT, 3072)
    named = {key.encode(): numbers for key, numbers in labels.items()}
    return {b"batch_label": part.encode(), b"data": data, **named, b"filenames": [b"a.png"] * COUNT}


def python_10(folder: Path, write: Callable[[Any], bytes]) -> None:
    for part in PARTS_10:
        (folder / part).write_bytes(write(batch(part, labels=LABELS[part])))
    (folder / "batches.meta").write_bytes(write({b"label_names": [name.encode() for name in TEN], b"num_vis": 72}))


def python_100(folder: Path, write: Callable[[Any], bytes]) -> None:
    for part in PARTS_100:
        (folder / part).write_bytes(write(batch(part, fine_labels=LABELS[part], coarse_labels=GROUPS[part])))
    names = {b"fine_label_names": FINE, b"coarse_label_names": COARSE}
    (folder / "meta").write_bytes(write({key: [name.encode() for name in each] for key, each in names.items()}))


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


@pytest.mark.parametrize("pickler", PICKLERS)
def test_pickles_hold_the_same_data_as_binary_files(tmp_path: Path, pickler: str) -> None:
    ten, hundred = tmp_path / "10", tmp_path / "100"
    for folder in (ten, hundred):
        (folder / "b").mkdir(parents=True)
        (folder / "p").mkdir()
    binary_10(ten / "b")
    python_10(ten / "p", PICKLERS[pickler])
    assert read_cifar10(ten / "b").digest == read_cifar10(ten / "p").digest
    binary_100(hundred / "b")
    python_100(hundred / "p", PICKLERS[pickler])
    assert read_cifar100(hundred / "b").digest == read_cifar100(hundred / "p").digest
    coarse = read_cifar100(hundred / "b", "coarse").digest
    assert coarse == read_cifar100(hundred / "p", "coarse").digest != read_cifar100(hundred / "b").digest


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
    with pytest.raises(ValueError, match="data_batch_1 is no pickle of plain data"):
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
    with pytest.raises(FileNotFoundError, match=r"lacks train\.bin, test\.bin of CIFAR-100"):
        read_cifar100(tmp_path)
    binary_10(tmp_path)
    (tmp_path / "data_batch_2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_2\.bin of CIFAR-10\..* 'cldnet data get cifar-10'"):
        read_cifar10(tmp_path)


def test_an_unknown_kind_of_labels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="labels='rough' should be 'fine'"):
        read_cifar100(tmp_path, "rough")  # type: ignore[arg-type]


BROKEN_BINARY: dict[str, tuple[str, bytes, str]] = {
    "cut": ("data_batch_4.bin", bytes(3072), "is 3,072 bytes long, which is no whole number of records of 3073 bytes"),
    "empty": ("test_batch.bin", b"", "is 0 bytes long"),
    "label": ("data_batch_5.bin", bytes(3073) + b"\x0a" + bytes(3072), "says class 10 for image 1 of 10 classes"),
    "nine names": ("batches.meta.txt", "\n".join(TEN[:9]).encode(), "has 9 names of classes, 9 of them different; expected 10"),
    "one name twice": ("batches.meta.txt", "\n".join([*TEN[:9], "cat"]).encode(), "has 10 names .* 9 of them different"),
    "no text": ("batches.meta.txt", b"\xff\xfe\x00", "is no text"),
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


GOOD = batch("test_batch", labels=LABELS["test_batch"])
BROKEN_PICKLES: dict[str, tuple[str, Any, str]] = {
    "no dict": ("test_batch", [1], "has nothing under 'data'"),
    "no data": ("test_batch", {b"labels": [1]}, "has nothing under 'data'"),
    "no labels": ("test_batch", {b"data": GOOD[b"data"]}, "has nothing under 'labels'"),
    "data of another shape": ("test_batch", {**GOOD, b"data": GOOD[b"data"][:, :3071]}, "has no bytes of shape"),
    "data of another type": ("test_batch", {**GOOD, b"data": GOOD[b"data"].astype(np.int16)}, "has no bytes of shape"),
    "data in a list": ("test_batch", {**GOOD, b"data": [[0] * 3072]}, "has no bytes of shape"),
    "no images": ("test_batch", {**GOOD, b"data": GOOD[b"data"][:0], b"labels": []}, "no pickle|has no bytes of shape"),
    "too few labels": ("test_batch", {**GOOD, b"labels": [1]}, "has no whole number for each of its 3 images"),
    "labels in text": ("test_batch", {**GOOD, b"labels": ["1"] * COUNT}, "has no whole number for each of its 3 images"),
    "nested labels": ("test_batch", {**GOOD, b"labels": [[1]] * COUNT}, "has no whole number for each"),
    "label too large": ("test_batch", {**GOOD, b"labels": [0, 10, 1]}, "says class 10 for image 1 of 10 classes"),
    "label negative": ("test_batch", {**GOOD, b"labels": [0, 1, -1]}, "says class -1 for image 2"),
    "label absurd": ("test_batch", {**GOOD, b"labels": [0, 1, 10**30]}, "has absurd numbers of classes"),
    "names that are none": ("batches.meta", {b"label_names": [1] * 10}, "has something other than names"),
    "nine names": ("batches.meta", {b"label_names": TEN[:9]}, "has 9 names of classes"),
    "empty name": ("batches.meta", {b"label_names": [*TEN[:9], ""]}, "has 10 names of classes"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_PICKLES)
def test_broken_pickles_are_refused(tmp_path: Path, name: str) -> None:
    python_10(tmp_path, pickle.dumps)
    file, content, complaint = BROKEN_PICKLES[name]
    (tmp_path / file).write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(ValueError, match=f"{file} .*({complaint})"):
        read_cifar10(tmp_path)


def test_labels_in_an_array_are_as_good_as_in_a_list(tmp_path: Path) -> None:
    python_10(tmp_path, pickle.dumps)
    digest = read_cifar10(tmp_path).digest
    (tmp_path / "test_batch").write_bytes(pickle.dumps({**GOOD, b"labels": np.array(LABELS["test_batch"], np.uint8)}))
    assert read_cifar10(tmp_path).digest == digest


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("file", [*PARTS_10, "batches.meta"])
def test_code_in_any_of_the_files_is_refused_and_not_run(tmp_path: Path, file: str) -> None:
    python_10(tmp_path, python_2)
    marker = tmp_path / "marker"
    content = {**GOOD, b"label_names": [Evil(marker)], b"filenames": Evil(marker)}
    (tmp_path / file).write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=rf"{file} is no pickle .* it asks for '\w+\.system'\. Nothing was executed"):
        read_cifar10(tmp_path)
    assert not marker.exists()
