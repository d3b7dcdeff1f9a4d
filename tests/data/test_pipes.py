"""A pipe among files of data is refused before it is opened: the opening would never end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cldnet.data.download import unpack
from cldnet.data.files import read_arrays, read_table
from cldnet.data.images.cache import Cache, read_images
from cldnet.data.images.folders import Photo, Tree, list_photos
from cldnet.data.published import read_cifar10, read_cifar100, read_idx, read_mnist

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")


@contextmanager
def at_once(pipe: Path) -> Iterator[None]:
    """Find out whoever waits for a pipe: it is opened and closed from the other side, which ends the waiting."""
    done, waited = threading.Event(), threading.Event()

    def answer() -> None:
        while not done.wait(30.0):  # far longer than the first import of a library takes on a busy machine
            waited.set()
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not waited.is_set(), "somebody waited for a pipe"


def _cifar(folder: Path, ends: str, names: tuple[str, ...], columns: int) -> None:
    for name in names:
        (folder / f"{name}{ends}").write_bytes(bytes(2 * (3072 + columns)))


def _idx(folder: Path) -> None:
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7]))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))


TEN = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
#: By name of the pipe: what lies beside it, and who reads it.
READERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "X.npy": (lambda folder: np.save(folder / "y.npy", [1, 2]), read_arrays),
    "y.npy": (lambda folder: np.save(folder / "X.npy", np.ones((2, 2))), lambda folder: read_arrays(folder / "X.npy")),
    "X_test.npy": (
        lambda folder: [
            np.save(folder / name, array) for name, array in (("X", np.eye(2)), ("y", [1, 2]), ("y_test", [1]))
        ],
        read_arrays,
    ),
    "set.npz": (lambda _: None, lambda folder: read_arrays(folder / "set.npz")),
    "set.csv": (lambda _: None, lambda folder: read_table(folder / "set.csv")),
    "set.parquet": (lambda _: None, lambda folder: read_table(folder / "set.parquet")),
    "set.idx": (lambda _: None, lambda folder: read_idx(folder / "set.idx")),
    "train-images-idx3-ubyte": (_idx, lambda folder: read_mnist(folder, "set")),
    "data_batch_2.bin": (lambda folder: _cifar(folder, ".bin", TEN, 1), read_cifar10),
    "data_batch_2": (lambda folder: _cifar(folder, "", TEN, 1), read_cifar10),
    "batches.meta.txt": (lambda folder: _cifar(folder, ".bin", TEN, 1), read_cifar10),
    "fine_label_names.txt": (lambda folder: _cifar(folder, ".bin", ("train", "test"), 2), read_cifar100),
    "images.txt": (lambda folder: (folder / "image_class_labels.txt").write_text("1 1\n"), list_photos),
    "val/val_annotations.txt": (
        lambda folder: [(folder / "wnids.txt").touch(), *((folder / name).mkdir() for name in ("train", "val"))],
        list_photos,
    ),
    "cat.tar": (lambda _: None, lambda folder: unpack(folder / "cat.tar", folder / "into")),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_among_files_of_data_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    write, read = READERS[name]
    write(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with at_once(tmp_path / name), pytest.raises((ValueError, OSError), match=r"\w+ \w+ \w+ \w+"):
        read(tmp_path)


def test_a_photo_that_is_a_pipe_is_left_out(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    image.new("RGB", (9, 9)).save(tmp_path / "photos" / "cat" / "1.png")
    os.mkfifo(tmp_path / "photos" / "cat" / "2.png")
    with at_once(tmp_path / "photos" / "cat" / "2.png"):
        found = read_images(tmp_path / "photos", size=4, cache=tmp_path / "cache", workers=1, on_bad="skip")
    assert len(found.train.x) == 1


def test_a_pipe_in_the_place_of_a_cache_is_no_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path, Tree(tmp_path, [Photo("cat/1.png", "cat")]), size=4, resize=4)
    os.mkfifo(cache.index)
    with at_once(cache.index):
        assert cache.load() is None


def test_a_link_to_a_file_is_a_file_and_one_to_a_pipe_is_none(tmp_path: Path) -> None:
    (tmp_path / "leaves.csv").write_text("length,class\n1,oak\n2,elm\n")
    (tmp_path / "link.csv").symlink_to("leaves.csv")
    assert read_table(tmp_path / "link.csv").train.y.tolist() == ["oak", "elm"]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "piped.csv").symlink_to("pipe")
    with (
        at_once(tmp_path / "pipe"),
        pytest.raises(ValueError, match=r"piped.csv is a pipe, a device or the like; expected a file"),
    ):
        read_table(tmp_path / "piped.csv")
