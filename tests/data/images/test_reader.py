"""Folders of photos as data sets: parts, bad files, and a tree in ImageNet-R's layout with all that can go wrong."""

from __future__ import annotations

import logging
import os
import random
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cldnet.data.dataset import Dataset, Part
from cldnet.data.images.cache import read_images


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("xdg")))


def paint(path: Path, number: int, mode: str = "RGB", **options: Any) -> None:
    """Save an image of one colour by which it can be found again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (24, 20), (number, 2 * number % 256, 100)).convert(mode).save(path, **options)


def read(folder: Path, **options: Any) -> Dataset:
    return read_images(folder, **{"size": 8, **options})


def numbers(part: Part | None) -> list[int]:
    assert part is not None
    return [int(value) for value in part.x[:, 0, 4, 4]]


def imagenet_r(folder: Path) -> Path:
    """Ten classes of six good photos each, of all kinds, numbered 0 to 59."""
    endings = ["png", "bmp", "tif", "webp", "ppm", "png"]
    for c in range(10):
        for i, ending in enumerate(endings):
            paint(folder / f"n{c:08d}" / f"{i}.{ending}", 6 * c + i, lossless=True)  # which matters to WebP alone
    (folder / "README.txt").write_text("ImageNet-R")
    return folder


#: Bad files that `spoil` adds, with a word of the reason.
BAD = {
    "n00000000/broken.jpg": "truncated",
    "n00000001/empty.jpg": "an empty file",
    "n00000002/text.jpg": "not an image",
    "n00000003/huge.png": "pixels",
    "n00000004/pipe.jpg": "not a regular file",
    "n00000005/folder.jpg": "a folder, not a file",
    "n00000006/gone.jpg": "a broken link",
    "n00000007/noise.gif": "not an image",
}


def spoil(folder: Path) -> None:
    """Add files that cannot be read, and odd ones that can."""
    paint(folder / "n00000000/broken.jpg", 200)
    content = (folder / "n00000000/broken.jpg").read_bytes()
    (folder / "n00000000/broken.jpg").write_bytes(content[:-4])
    (folder / "n00000001/empty.jpg").touch()
    (folder / "n00000002/text.jpg").write_text("a letter, not a photo")
    header, data = b"IHDR" + 2 * (60_000).to_bytes(4) + b"\x08\x02\0\0\0", b"IDAT" + zlib.compress(bytes(99))
    chunks = (len(c[4:]).to_bytes(4) + c + zlib.crc32(c).to_bytes(4) for c in (header, data))
    (folder / "n00000003/huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    os.mkfifo(folder / "n00000004/pipe.jpg")
    (folder / "n00000005/folder.jpg").mkdir()
    (folder / "n00000006/gone.jpg").symlink_to("nowhere.jpg")
    (folder / "n00000007/noise.gif").write_bytes(random.Random(0).randbytes(500))
    paint(folder / "n00000008/grey.jpg", 150, "L")
    paint(folder / "n00000008/cmyk.jpg", 160, "CMYK")
    paint(folder / "n00000009/really-a-png.jpg", 170, format="PNG")
    Image.new("L", (3_000, 3_000), 180).save(folder / "n00000009/large.jpg")


def test_a_folder_a_class_becomes_a_data_set_without_a_test_part(tmp_path: Path) -> None:
    for number, name in enumerate(["dog/1.png", "cat/2.png", "cat/1.png"]):
        paint(tmp_path / "photos" / name, number)
    data = read(tmp_path / "photos")
    assert (data.name, data.test) == ("photos", None)
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.shape == (3, 3, 8, 8)
    assert data.train.x.is_contiguous()
    assert data.train.y.tolist() == ["cat", "cat", "dog"]
    assert numbers(data.train) == [2, 1, 0]
    assert read(tmp_path / "photos", name="pets").name == "pets"


def test_official_parts_come_back_each_with_its_own_rows(tmp_path: Path) -> None:
    for number, name in enumerate(["test/b/1.png", "test/a/1.png", "train/b/1.png", "train/a/1.png", "train/a/2.png"]):
        paint(tmp_path / "photos" / name, number)
    data = read(tmp_path / "photos")
    assert data.test is not None
    assert (numbers(data.train), data.train.y.tolist()) == ([3, 4, 2], ["a", "a", "b"])
    assert (numbers(data.test), data.test.y.tolist()) == ([1, 0], ["a", "b"])


def test_a_tree_like_imagenet_r_with_bad_files_is_refused_and_they_are_named(tmp_path: Path) -> None:
    folder = imagenet_r(tmp_path / "imagenet-r")
    spoil(folder)
    with pytest.raises(ValueError, match="8 of 72 images under") as caught:
        read(folder)
    for name, why in BAD.items():
        assert re.search(rf"'{name}' \([^']*{why}", str(caught.value))
    assert "--on-bad skip" in str(caught.value)


def test_a_tree_like_imagenet_r_goes_on_without_bad_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = imagenet_r(tmp_path / "imagenet-r")
    good = read(folder)
    assert (len(good.train), len(good.test or ())) == (48, 12)
    spoil(folder)
    for _ in range(2):  # the second time out of the cache
        caplog.clear()
        data = read(folder, on_bad="skip")
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("cldnet", logging.WARNING)
        assert "8 of 72 images" in record.getMessage()
        assert all(f"'{name}'" in record.getMessage() for name in BAD)
        assert data.test is not None
        assert len(data.train) + len(data.test) == 64
        found = dict(zip(numbers(data.train) + numbers(data.test), [*data.train.y, *data.test.y], strict=True))
        assert {n: found[n] for n in range(60)} == {n: f"n{n // 6:08d}" for n in range(60)}
        assert found[170] == found[180] == "n00000009"


def test_a_file_that_breaks_changes_no_other_photos_part(tmp_path: Path) -> None:
    folder = imagenet_r(tmp_path / "imagenet-r")
    before = read(folder)
    (folder / "n00000003/2.tif").write_bytes(b"broken")
    after = read(folder, on_bad="skip")
    assert set(numbers(before.test)) - {20} == set(numbers(after.test)) - {20}
    assert set(numbers(before.train)) - {20} == set(numbers(after.train)) - {20}
    assert len(after.train) + len(after.test or ()) == 59


def test_more_than_ten_bad_files_are_counted(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "good.png", 1)
    for i in range(14):
        (tmp_path / "a" / f"{i:02d}.jpg").touch()
    with pytest.raises(ValueError, match=r"14 of 15 images .*'a/09.jpg' \(an empty file\), and 4 more\. "):
        read(tmp_path)


@pytest.mark.parametrize("on_bad", ["skip", "stop"])
def test_a_class_that_loses_all_of_its_photos_is_refused(tmp_path: Path, on_bad: str) -> None:
    paint(tmp_path / "a" / "1.png", 1)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.png").touch()
    for _ in range(2):
        with pytest.raises(ValueError, match="b" if on_bad == "stop" else "No training image of class 'b'"):
            read(tmp_path, on_bad=on_bad)


def test_a_folder_of_nothing_but_bad_files_is_refused(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "test/a/1.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="No training image of class 'a'"):
        read(tmp_path, on_bad="skip")
    paint(tmp_path / "train/a/1.png", 1)
    with pytest.raises(ValueError, match="No test image of class 'a'"):
        read(tmp_path, on_bad="skip")


def test_a_class_that_loses_its_test_photos_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png", "test/b/1.png"):
        paint(tmp_path / name, 1)
    (tmp_path / "test/b/1.png").write_bytes(b"")
    data = read(tmp_path, on_bad="skip")
    assert len(data.test or ()) == 1
    assert "No test image of 1 classes can be read, such as 'b': they are not tested." in caplog.messages


def test_an_empty_class_folder_is_refused_or_named_as_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paint(tmp_path / "a" / "1.png", 1)
    (tmp_path / "b").mkdir()
    with pytest.raises(ValueError, match=r"is incomplete: 'b' holds no image\. .*--on-bad skip"):
        read(tmp_path)
    assert read(tmp_path, on_bad="skip").train.y.tolist() == ["a"]
    assert "'b' holds no image" in caplog.text


def test_files_that_are_passed_over_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paint(tmp_path / "a" / "1.png", 1)
    (tmp_path / "a" / "notes.txt").touch()
    with caplog.at_level(logging.INFO, "cldnet"):
        read(tmp_path)
    assert caplog.messages[0].startswith("1 files under")


def test_data_do_not_depend_on_the_order_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = imagenet_r(tmp_path / "imagenet-r")
    plain, scandir, source = read(folder, cache=tmp_path / "first"), os.scandir, random.Random(0)

    def shuffled(path: Any) -> Iterator[Any]:
        entries = list(scandir(path))
        source.shuffle(entries)
        return iter(entries)

    monkeypatch.setattr(os, "scandir", shuffled)
    assert read(folder, cache=tmp_path / "second").digest == plain.digest


def test_rows_that_are_too_large_for_memory_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = imagenet_r(tmp_path / "imagenet-r")
    resident = read(folder)
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0")
    with monkeypatch.context() as patch:
        patch.delattr(np, "fromfile")  # which reads a file into memory
        mapped = read(folder)
    assert mapped.test is not None
    assert resident.test is not None
    for part, same in ((mapped.train, resident.train), (mapped.test, resident.test)):
        assert torch.equal(part.x, same.x)
    assert mapped.digest == resident.digest


def test_names_that_are_not_utf8_are_no_trouble(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    paint(folder / "a" / os.fsdecode(b"\xff.png"), 1)
    (folder / "a" / os.fsdecode(b"\xfe.png")).touch()
    with pytest.raises(ValueError, match=r"'a/\\udcfe.png' \(an empty file\)"):
        read(folder)
    data = read(folder, on_bad="skip")
    assert data.name.encode("utf-8")
    assert numbers(data.train) == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0 should be at least 1"),
        ({"resize": 7}, "size=8 should be at least 1, and at most resize=7"),
        ({"on_bad": "ignore"}, "on_bad='ignore' is not known; use 'skip' or 'stop'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    paint(tmp_path / "a" / "1.png", 1)
    with pytest.raises(ValueError, match=message):
        read(tmp_path, **options)


def test_the_shorter_side_is_brought_to_what_a_vit_needs_unless_told(tmp_path: Path) -> None:
    image = Image.new("RGB", (64, 64), (0, 0, 0))
    image.paste((255, 255, 255), (4, 4, 60, 60))
    (tmp_path / "a").mkdir()
    image.save(tmp_path / "a" / "1.png")
    assert int(read(tmp_path, size=56).train.x.min()) > 200  # 56 of 64: the black margin is cut off
    assert int(read(tmp_path, size=56, resize=56).train.x[0, 0, 0, 0]) < 50


def test_without_pillow_a_sentence_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'Reading images needs Pillow: pip install "\.\[images\]"'):
        read(tmp_path)
