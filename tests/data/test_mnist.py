"""The idx format: what is read equals a plain reading, and damaged files are refused with a sentence."""

from __future__ import annotations

import gzip
import math
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cldnet.data.published import read_idx, read_mnist

IMAGES = random.Random(0).randbytes(6 * 4 * 5)
LABELS = bytes([3, 0, 9, 1, 1, 7])


def idx(content: bytes, *shape: int, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for half in ("train", "t10k"):
        (tmp_path / f"{half}-images-idx3-ubyte").write_bytes(idx(IMAGES, 6, 4, 5))
        (tmp_path / f"{half}-labels-idx1-ubyte").write_bytes(idx(LABELS, 6))
    return tmp_path


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), compressed=st.booleans(), data=st.data())
def test_every_value_is_where_a_plain_reading_finds_it(
    tmp_path: Path, shape: list[int], compressed: bool, data: st.DataObject
) -> None:
    size = math.prod(shape)
    content = data.draw(st.binary(min_size=size, max_size=size))
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(idx(content, *shape)) if compressed else idx(content, *shape))
    array = read_idx(path)
    assert array.shape == tuple(shape)
    assert array.dtype == np.uint8
    for position in np.ndindex(*shape):
        place = 0
        for side, step in zip(shape, position, strict=True):
            place = place * side + step
        assert array[position] == content[place]


def test_compression_is_told_by_content_and_not_by_name(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(idx(LABELS, 6))
    (tmp_path / "squeezed").write_bytes(gzip.compress(idx(LABELS, 6)))
    assert read_idx(tmp_path / "plain.gz").tolist() == read_idx(tmp_path / "squeezed").tolist() == list(LABELS)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_is_larger_than_memory_is_mapped(folder: Path, pack: Callable[[bytes], bytes], monkeypatch: Any) -> None:
    path = folder / "large"
    path.write_bytes(pack(idx(IMAGES, 6, 4, 5)))
    resident = read_idx(path)
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0")
    monkeypatch.delattr(np, "fromfile")
    monkeypatch.delattr(np, "empty")
    mapped = read_idx(path)
    assert mapped.tobytes() == resident.tobytes() == IMAGES
    mapped[0] = 0
    assert read_idx(path).tobytes() == IMAGES  # the file is as it was


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "begins with nothing; an idx file of bytes begins with 00 00 08"),
    "another format": (b"\x89PNG\r\n", "begins with 89 50 4e 47"),
    "floats": (idx(LABELS, 6, kind=0x0D), "begins with 00 00 0d 01"),
    "no dimensions": (idx(b""), "begins with 00 00 08 00"),
    "five dimensions": (idx(b"a", 1, 1, 1, 1, 1), "begins with 00 00 08 05"),
    "half a header": (idx(IMAGES, 6, 4, 5)[:9], "is cut short within its header"),
    "cut short": (idx(LABELS[:-1], 6), "is cut short"),
    "too long": (idx(LABELS + b"x", 6), "is too long"),
    "absurd": (idx(LABELS, *[2**32 - 1] * 4), "is cut short|claims to hold .* more than a file of its length can hold"),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused_by_name(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    content, complaint = BROKEN[name]
    path = tmp_path / "broken-file"
    path.write_bytes(pack(content))
    with pytest.raises(ValueError, match=f"broken-file ({complaint})"):
        read_idx(path)


@pytest.mark.parametrize("damage", ["cut", "sum", "stream", "behind"])
def test_damaged_gzip_streams_are_refused(tmp_path: Path, damage: str) -> None:
    content = bytearray(gzip.compress(idx(IMAGES, 6, 4, 5)))
    if damage == "cut":
        del content[-20:]
    elif damage == "sum":
        content[-8] ^= 1
    elif damage == "stream":
        content[10] = 0xFF
    else:
        content += b"rubbish"
    path = tmp_path / "images.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"images\.gz is a damaged gzip file .* Get the official file again"):
        read_idx(path)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(compressed=st.booleans(), place=st.floats(0, 0.999), bits=st.integers(1, 255), cut=st.booleans())
def test_a_flipped_byte_is_refused_or_harmless(
    tmp_path: Path, compressed: bool, place: float, bits: int, cut: bool
) -> None:
    content = bytearray(gzip.compress(idx(IMAGES, 6, 4, 5), mtime=0) if compressed else idx(IMAGES, 6, 4, 5))
    position = int(place * len(content))
    if cut:
        del content[position:]
    else:
        content[position] ^= bits
    path = tmp_path / "flipped"
    path.write_bytes(content)
    try:
        array = read_idx(path)
    except ValueError as error:
        assert "flipped" in str(error)  # noqa: PT017
        return
    assert not cut
    assert array.size == len(IMAGES)
    if compressed:
        assert array.tobytes() == IMAGES  # a checksum stands over it
    else:
        assert sum(a != b for a, b in zip(array.tobytes(), IMAGES, strict=True)) <= 1


def test_a_gzip_bomb_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(idx(b"", 10))
        for _ in range(64):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"bomb\.gz is too long"):
        read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_mnist_has_images_in_uint8_and_labels_in_int64(folder: Path) -> None:
    mnist = read_mnist(folder, "digits")
    assert mnist.name == "digits"
    assert mnist.test is not None
    for part in (mnist.train, mnist.test):
        assert part.x.dtype == torch.uint8
        assert part.x.shape == (6, 4, 5)
        assert part.x.is_contiguous()
        assert part.x[2, 3, 1] == IMAGES[2 * 20 + 3 * 5 + 1]
        assert part.y.dtype == np.int64
        assert part.y.tolist() == list(LABELS)


def test_the_digest_does_not_depend_on_spelling_or_compression(folder: Path, tmp_path_factory: Any) -> None:
    digest = read_mnist(folder, "a").digest
    other = tmp_path_factory.mktemp("dots")
    for path in folder.iterdir():
        (other / f"{path.name.replace('-idx', '.idx')}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_mnist(other, "b").digest == digest


def test_a_plain_file_is_preferred(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"never read")
    read_mnist(folder, "mnist")


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks t10k-labels-idx1-ubyte \(plain or \.gz\)"):
        read_mnist(folder, "mnist")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_idx(folder / "t10k-labels-idx1-ubyte")


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        (
            "train-labels-idx1-ubyte",
            idx(LABELS[:5], 5),
            "has 6 images and .* 5 labels: the files come from different sets",
        ),
        ("train-labels-idx1-ubyte", idx(bytes([0, 1, 2, 3, 10, 5]), 6), "says 10 for image 4; labels are 0 to 9"),
        ("train-labels-idx1-ubyte", idx(LABELS, 6, 1), r"has shape \(6, 1\); expected one label per image"),
        ("t10k-images-idx3-ubyte", idx(IMAGES, 6, 20), r"has shape \(6, 20\); expected images"),
        ("t10k-images-idx3-ubyte", idx(b"", 0, 4, 5), r"has shape \(0, 4, 5\); expected images"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(folder: Path, file: str, content: bytes, complaint: str) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        read_mnist(folder, "mnist")
