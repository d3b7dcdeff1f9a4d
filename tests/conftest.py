"""What all tests share."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest test: at the end, one process would wait for the other."""
    items.sort(key=lambda item: "test_tutorial.py::test_every_command" not in item.nodeid)


@pytest.fixture(autouse=True)
def _same_weights_every_time() -> None:
    """A user's module takes its first weights from torch's global generator; a test should meet the same ones each time."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All data sets that CLDNet knows, with a few random images a class, in their official formats; and a folder of pets."""
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    for name, write in (("mnist", Path.write_bytes), ("fashion-mnist", _write_gzip)):
        for part, count in (("train", 40), ("t10k", 20)):
            images = draw.integers(256, size=(count, 28, 28), dtype=np.uint8)
            labels = np.arange(count, dtype=np.uint8) % 10
            for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
                head = struct.pack(f">{array.ndim + 1}i", 0x800 + array.ndim, *array.shape)
                path = folder / name / f"{part}-{kind}-ubyte{'.gz' if name == 'fashion-mnist' else ''}"
                path.parent.mkdir(exist_ok=True)
                write(path, head + array.tobytes())
    _write_cifar(folder, draw)
    _write_photos(folder, draw)
    _write_intents(folder / "clinc150")
    return folder


def _write_gzip(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content))


def _write_cifar(folder: Path, draw: np.random.Generator) -> None:
    ten, hundred = folder / "cifar-10-batches-bin", folder / "cifar-100-binary"
    ten.mkdir()
    hundred.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = draw.integers(256, size=(10, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(10)
        records.tofile(ten / f"{name}.bin")
    (ten / "batches.meta.txt").write_text("\n".join(f"thing{i}" for i in range(10)) + "\n\n")
    for name, count in (("train", 300), ("test", 100)):
        records = draw.integers(256, size=(count, 3074), dtype=np.uint8)
        fine = np.arange(count) % 100
        records[:, 0], records[:, 1] = fine // 5, fine
        records.tofile(hundred / f"{name}.bin")
    (hundred / "fine_label_names.txt").write_text("\n".join(f"fine{i:02}" for i in range(100)) + "\n")
    (hundred / "coarse_label_names.txt").write_text("\n".join(f"coarse{i:02}" for i in range(20)) + "\n")


def _write_intents(folder: Path) -> None:
    """Twenty intents in ten domains, each with four sentences to learn and two to test with; and sentences of none."""
    domains = {f"domain{i}": [f"intent{i}{j}" for j in range(2)] for i in range(10)}
    intents = [intent for group in domains.values() for intent in group]
    parts: dict[str, list[list[str]]] = {
        part: [[f"{part} words number {n} about {intent}", intent] for intent in intents for n in range(count)]
        for part, count in (("train", 4), ("val", 1), ("test", 2))
    }
    parts |= {
        f"oos_{part}": [[f"nothing of the kind, {n}", "oos"] for n in range(3)] for part in ("train", "val", "test")
    }
    folder.mkdir()
    (folder / "data_full.json").write_text(json.dumps(parts))
    (folder / "domains.json").write_text(json.dumps(domains))


def _write_photos(folder: Path, draw: np.random.Generator) -> None:
    from PIL import Image

    def photo(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(256, size=(6, 9, 3), dtype=np.uint8)).save(path)

    words = [f"n{i:08}" for i in range(20)]
    tiny, birds = folder / "tiny-imagenet-200", folder / "CUB_200_2011"
    lists: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": [], "classes": []}
    values = []
    for number, word in enumerate(words):
        for i in range(5):
            photo(folder / "imagenet-r" / word / f"art_{i}.jpg")
        for i in range(3):
            photo(tiny / "train" / word / "images" / f"{word}_{i}.JPEG")
        photo(tiny / "val" / "images" / f"val_{number}.JPEG")
        values.append(f"val_{number}.JPEG\t{word}\t0\t0\t5\t5")
        bird = f"{number + 1:03}.Bird_{number}"
        lists["classes"].append(f"{number + 1} {bird}")
        for i in range(3):
            photo(birds / "images" / bird / f"{bird}_{i}.jpg")
            image = 3 * number + i + 1
            lists["images"].append(f"{image} {bird}/{bird}_{i}.jpg")
            lists["image_class_labels"].append(f"{image} {number + 1}")
            lists["train_test_split"].append(f"{image} {int(i > 0)}")
    (tiny / "val" / "val_annotations.txt").write_text("\n".join(values) + "\n")
    (tiny / "wnids.txt").write_text("\n".join(words) + "\n")
    for name, lines in lists.items():
        (birds / f"{name}.txt").write_text("\n".join(lines) + "\n")
    for pet in ("cat", "dog", "emu"):
        for i in range(4):
            photo(folder / "pets" / pet / f"{i}.png")


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_yours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Decoded photos of tests go nowhere near the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _benches_start_quickly() -> Iterator[None]:
    """Fork a bench's processes from one that has imported torch: it takes seconds, and dozens of them are started.

    A bench in a process of its own (`test_two_benches_on_one_folder_share_the_cells_and_make_each_once`) spawns them.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        yield
        return
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["cldnet.bench.workers", "sklearn.datasets"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cldnet.bench.workers.multiprocessing", SimpleNamespace(get_context=lambda kind: server))
        yield
