"""The rows that every side learns: part of MNIST, or scikit-learn's digits where MNIST is not; written for all to read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.speed.peers.protocol import Rows
from sklearn.datasets import load_digits

from cldnet.data.catalog import load_set


@dataclass(frozen=True)
class Sample:
    """Rows to learn and to test, with the name of the data."""

    name: str
    train: Rows
    test: Rows


def sample(data: Path | None, train: int, test: int) -> Sample:
    """Take so many rows at random, the same in every run."""
    try:
        found = load_set("mnist", data)
    except FileNotFoundError:
        return _digits(train, test)
    if found.test is None:
        return _digits(train, test)
    chance = np.random.default_rng(0)
    parts = []
    for part, count in ((found.train, train), (found.test, test)):
        chosen = chance.permutation(len(part))[:count]
        parts.append(Rows(part.x.numpy()[chosen].astype(np.uint8), part.y[chosen].astype(np.int64)))
    return Sample("mnist", *parts)


def _digits(train: int, test: int) -> Sample:
    """8 × 8 digits that come with scikit-learn, at most four fifths of them to learn."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    rows = Rows(np.round(digits.images * (255 / 16)).astype(np.uint8)[order], digits.target.astype(np.int64)[order])
    cut = len(order) * 4 // 5
    return Sample("digits", rows.first(min(cut, train)), Rows(rows.x[cut:], rows.y[cut:]).first(test))


def write(sample: Sample, folder: Path) -> None:
    """Write arrays for most, and files in MNIST's own format for torchvision."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, prefix, rows in (("train", "train", sample.train), ("test", "t10k", sample.test)):
        np.save(folder / f"{part}-x.npy", rows.x)
        np.save(folder / f"{part}-y.npy", rows.y)
        for kind, values in (("images-idx3", rows.x), ("labels-idx1", rows.y.astype(np.uint8))):
            header = np.array([0x0800 + values.ndim, *values.shape], dtype=">u4")
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(header.tobytes() + values.tobytes())
