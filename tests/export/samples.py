"""Small models of every kind, and images to ask them about."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from torch import nn

from cldnet import CLDNetClassifier
from cldnet.device import generator
from cldnet.nets import CNN, Clipped, ExpandedNet, Linear, RandomFourier, RandomReLU, WhitenedPatches

LABELS = ("china", "flower", "negative china", "negative flower")


def pieces(count: int, side: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Pieces of two real photos and of their negatives, some mirrored, darker or turned: four classes."""
    rng = np.random.default_rng(seed)
    photos = [photo for photo in load_sample_images().images]
    photos += [255 - photo for photo in photos]
    x = np.empty((count, 3, side, side), np.uint8)
    for row in range(count):
        photo = photos[row % 4]
        top, left = rng.integers(0, photo.shape[0] - side), rng.integers(0, photo.shape[1] - side)
        piece = np.rot90(photo[top : top + side, left : left + side], rng.integers(4))[:, :: rng.choice([1, -1])]
        x[row] = (piece * rng.uniform(0.5, 1.0)).astype(np.uint8).transpose(2, 0, 1)
    return x, np.array(LABELS)[np.arange(count) % 4]


def rows(kind: type = int) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Rows of three classes, some of them labelled by negative numbers."""
    y = np.repeat([-3, 5, 9], 30)
    return np.random.default_rng(0).normal(size=(90, 6)) + y[:, None] / 4, y.astype(kind)


def taught(kind: str) -> tuple[CLDNetClassifier, NDArray[Any]]:
    """A model that has learned something, and inputs to ask it about."""
    clf, inputs = _taught(kind)
    return copy.deepcopy(clf), inputs


def _clipped() -> Clipped:
    """A clipped map, fitted on some of the rows."""
    made = RandomReLU((6,), features=60, seed=0)
    made.fit(torch.from_numpy(rows()[0][::2]))
    return Clipped(made, norm=300)


@cache
def _taught(kind: str) -> tuple[CLDNetClassifier, NDArray[Any]]:
    x, y = pieces(80, 32)
    hbo: dict[str, Any] = {"solver": "hbo", "epochs": 1, "embed_dim": 30, "capacity": 10, "random_state": 0}
    made: dict[str, Callable[[], tuple[CLDNetClassifier, NDArray[Any], NDArray[Any]]]] = {
        "relu": lambda: (CLDNetClassifier(backbone=RandomReLU((3, 32, 32), features=60, seed=0)), x, y),
        "fourier": lambda: (CLDNetClassifier(backbone=RandomFourier((6,), features=60, seed=0)), *rows()),
        "clipped": lambda: (CLDNetClassifier(backbone=_clipped()), *rows()),
        "linear": lambda: (CLDNetClassifier(backbone=Linear((6,))), *rows()),
        "tails": lambda: (
            CLDNetClassifier(backbone=RandomFourier((6,), features=60, seed=0, tails=True)),
            rows()[0] ** 9,
            rows()[1],
        ),
        "patches": lambda: (CLDNetClassifier(backbone=WhitenedPatches((3, 32, 32), filters=12, seed=0)), x, y),
        "grey patches": lambda: (
            CLDNetClassifier(backbone=WhitenedPatches((32, 32), filters=12, seed=0, mirror=False)),
            x[:, 0] / 255,
            y,
        ),
        "own": lambda: (
            CLDNetClassifier(backbone=nn.Sequential(nn.Linear(6, 10), nn.Tanh()), random_state=0),
            *rows(),
        ),
        "photos": lambda: (CLDNetClassifier(backbone=ExpandedNet((3, 32, 32), features=80, seed=0, size=32)), x, y),
        "resized": lambda: (
            CLDNetClassifier(backbone=ExpandedNet((32, 24), features=80, seed=0, size=40, mirror=True, stages=(5,))),
            x[:, 1, :, :24],
            y,
        ),
        "mlp": lambda: (CLDNetClassifier(**hbo), *rows()),
        "cnn": lambda: (
            CLDNetClassifier(
                backbone=CNN((3, 32, 32), channels=(8, 8, 8), hidden=(20,), generator=generator(0)), **hbo
            ),
            x,
            y,
        ),
        "crowded": lambda: (CLDNetClassifier(backbone=RandomReLU((6,), 20, seed=0)), rows()[0], np.arange(90) % 45),
    }
    clf, inputs, labels = made[kind]()
    return clf.fit(inputs, labels), inputs


KINDS = (
    "relu",
    "fourier",
    "clipped",
    "linear",
    "tails",
    "patches",
    "grey patches",
    "own",
    "photos",
    "resized",
    "mlp",
    "cnn",
    "crowded",
)
