"""The published sets themselves, where CLDNET_DATA has them: counts, means, and records read byte by byte without numpy."""

from __future__ import annotations

import gzip
import os
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from cldnet.data.dataset import Dataset, Part
from cldnet.data.published import read_cifar10, read_cifar100, read_mnist

RECORDS = 300
MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def folder(*names: str, holds: str) -> Path:
    place = os.environ.get("CLDNET_DATA")
    for name in names:
        if place and list((Path(place) / name).glob(f"{holds}*")):
            return Path(place) / name
    pytest.skip(f"CLDNET_DATA has no {names[0]}: see README")


def check_counts(data: Dataset, train: list[int], test: list[int]) -> None:
    assert data.test is not None
    for part, counts in ((data.train, train), (data.test, test)):
        found = Counter(part.y.tolist())
        assert [found[label] for label in sorted(found)] == counts
        assert part.x.dtype == torch.uint8
        assert part.x.is_contiguous()


def check_means(part: Part, means: list[float]) -> None:
    channels = part.x if part.x.ndim == 4 else part.x.unsqueeze(1)
    total = channels.sum(dim=(0, 2, 3), dtype=torch.int64).double()
    found = total / (len(channels) * channels[0, 0].numel() * 255)
    assert [round(mean, 4) for mean in found.tolist()] == means


def chosen(count: int) -> list[int]:
    return [0, count - 1, *random.Random(count).sample(range(count), RECORDS)]


def check_mnist(path: Path, data: Dataset) -> None:
    assert data.test is not None
    for half, part in (("train", data.train), ("t10k", data.test)):
        content = []
        for role in ("images", "labels"):
            (file, *_) = sorted(path.glob(f"{half}-{role}*"))  # a plain file comes first
            content.append(gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
        images, labels = content
        magic, count, height, width = struct.unpack(">4i", images[:16])
        assert (magic, count, height, width) == (0x803, len(part), 28, 28)
        assert struct.unpack(">2i", labels[:8]) == (0x801, count)
        for number in chosen(count):
            first = 16 + number * height * width
            assert part.x[number].flatten().tolist() == list(images[first : first + height * width])
            assert part.y[number] == labels[8 + number]


def test_mnist() -> None:
    path = folder("mnist", "MNIST/raw", holds="train-images")
    data = read_mnist(path, "mnist")
    check_counts(data, MNIST_TRAIN, MNIST_TEST)
    check_means(data.train, [0.1307])
    check_mnist(path, data)


def test_fashion_mnist() -> None:
    path = folder("fashion-mnist", "FashionMNIST/raw", holds="train-images")
    data = read_mnist(path, "fashion-mnist")
    check_counts(data, [6000] * 10, [1000] * 10)
    check_means(data.train, [0.2860])
    check_mnist(path, data)


def check_records(files: list[Path], part: Part, labels: int, column: int, names: list[str]) -> None:
    """Compare random records of binary files with the rows of a part, a byte at a time."""
    length = labels + 3072
    per_file = files[0].stat().st_size // length
    for number in chosen(len(part)):
        with files[number // per_file].open("rb") as file:
            file.seek(number % per_file * length)
            record = file.read(length)
        assert part.y[number] == names[record[column]]
        assert part.x[number].flatten().tolist() == list(record[labels:])


def test_cifar_10() -> None:
    path = folder("cifar-10-batches-bin", holds="test_batch.bin")
    data = read_cifar10(path)
    check_counts(data, [5000] * 10, [1000] * 10)
    check_means(data.train, [0.4914, 0.4822, 0.4465])
    names = (path / "batches.meta.txt").read_text().split()
    assert data.test is not None
    check_records([path / f"data_batch_{number}.bin" for number in range(1, 6)], data.train, 1, 0, names)
    check_records([path / "test_batch.bin"], data.test, 1, 0, names)


@pytest.mark.parametrize(("labels", "column", "classes"), [("fine", 1, 100), ("coarse", 0, 20)])
def test_cifar_100(labels: Any, column: int, classes: int) -> None:
    path = folder("cifar-100-binary", holds="test.bin")
    data = read_cifar100(path, labels)
    check_counts(data, [50_000 // classes] * classes, [10_000 // classes] * classes)
    check_means(data.train, [0.5071, 0.4865, 0.4409])
    names = (path / f"{labels}_label_names.txt").read_text().split()
    assert data.test is not None
    check_records([path / "train.bin"], data.train, 2, column, names)
    check_records([path / "test.bin"], data.test, 2, column, names)
