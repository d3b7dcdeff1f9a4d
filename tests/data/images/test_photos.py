"""Photos for one call: the pixels that `decode` gives, the bad ones named, and nothing left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cldnet.data.images.decode import FEW, decode, read_photos
from cldnet.data.images.folders import find_photos


def make(folder: Path, count: int) -> list[Path]:
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:03}.png" for number in range(count)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (12, 15, 3), dtype=np.uint8)).save(path)
    return paths


@pytest.mark.parametrize("count", [3, FEW + 5])  # the second in processes of their own
def test_rows_are_what_decoding_gives_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    paths = make(tmp_path, count)
    paths[1].write_text("no image")
    read = read_photos(paths, 8, 9)
    assert read.places.tolist() == [0, *range(2, count)]
    assert [(bad.path, bad.reason[:12]) for bad in read.bad] == [(str(paths[1]), "not an image")]
    for place, row in zip(read.places, read.x, strict=True):
        assert np.array_equal(row, decode(str(paths[place]), 8, 9))
    assert not list((tmp_path / "scratch").iterdir())


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    inside = make(tmp_path / "a" / "deep", 2)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    assert find_photos([tmp_path / "odd.name", tmp_path / "a"]) == [tmp_path / "odd.name", *inside]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no images"):
        find_photos([tmp_path / "empty"])
