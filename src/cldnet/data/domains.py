"""Domain-incremental streams: the same classes in every task, seen through another change of the image each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, pi, sin

import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.data.dataset import Dataset
from cldnet.data.plan import Plan
from cldnet.data.stream import Stream
from cldnet.device import generator

__all__ = ["Permutation", "Rotation", "domains", "permutations", "rotations"]

_BLOCK = 4096


@dataclass(frozen=True)
class Permutation:
    """Put the pixels of every image (or the columns of a table) into another order, the same for all of them.

    Parameters
    ----------
    seed : int
        Seed of a sequence of permutations.
    number : int
        Place in that sequence, from 0.

    Examples
    --------
    >>> Permutation(0, 0)(torch.tensor([[10, 11, 12, 13]]))
    tensor([[10, 11, 13, 12]])
    """

    seed: int
    number: int

    def __call__(self, x: Tensor) -> Tensor:
        """Change a batch of inputs; channels keep together."""
        channels = 1 if x.ndim < 4 else x.shape[1]
        pixels = x.reshape(len(x), channels, -1)
        draw = generator(self.seed)
        for _ in range(self.number + 1):
            order = torch.randperm(pixels.shape[2], generator=draw)
        return pixels[:, :, order].reshape(x.shape)


@dataclass(frozen=True)
class Rotation:
    """Turn every image about its middle, counter-clockwise; what comes in from outside is 0.

    Examples
    --------
    >>> Rotation(90)(torch.tensor([[[1, 2], [3, 4]]], dtype=torch.uint8))
    tensor([[[2, 4],
             [1, 3]]], dtype=torch.uint8)
    """

    degrees: float

    def __call__(self, x: Tensor) -> Tensor:
        """Change a batch of images by bilinear interpolation."""
        if x.ndim < 3:
            raise ValueError(f"Only images can be turned; these inputs have the shape {tuple(x.shape[1:])}.")
        height, width = x.shape[-2:]
        c, s = cos(self.degrees * pi / 180), sin(self.degrees * pi / 180)
        # The grid's coordinates run from -1 to 1 along either side, whatever its length.
        turn = torch.tensor([[c, -s * height / width, 0.0], [s * width / height, c, 0.0]], dtype=torch.float64)
        grid = F.affine_grid(turn[None], [1, 1, height, width], align_corners=False)
        turned = torch.empty_like(x)
        for first in range(0, len(x), _BLOCK):  # in float64, so in blocks
            block = x[first : first + _BLOCK].reshape(-1, 1, height, width).double()
            found = F.grid_sample(block, grid.expand(len(block), -1, -1, -1), align_corners=False)
            found = found if x.is_floating_point() else found.round()
            turned[first : first + _BLOCK] = found.reshape(-1, *x.shape[1:]).to(x.dtype)
        return turned


def permutations(tasks: int, seed: int = 0) -> list[Permutation | None]:
    """Permutations for a number of tasks; the first task sees the images as they are."""
    _check_tasks(tasks)
    return [None, *(Permutation(seed, number) for number in range(tasks - 1))]


def rotations(tasks: int, seed: int = 0) -> list[Rotation | None]:
    """Rotations by angles drawn from 0 to 180 degrees, for a number of tasks; the first sees the images upright.

    Examples
    --------
    >>> rotations(3)
    [None, Rotation(degrees=174.61), Rotation(degrees=127.41)]
    """
    _check_tasks(tasks)
    angles = torch.rand(tasks - 1, generator=generator(seed), dtype=torch.float64) * 180
    return [None, *(Rotation(round(angle, 2)) for angle in angles.tolist())]


def _check_tasks(tasks: int) -> None:
    if tasks < 1:
        raise ValueError(f"A stream of {tasks} tasks was asked for; expected at least 1.")


def domains(data: Dataset, changes: Sequence[Callable[[Tensor], Tensor] | None], name: str) -> Stream:
    """Make the stream whose tasks are the whole of a data set, each seen through its own change.

    Examples
    --------
    >>> from cldnet.data.dataset import Part
    >>> import numpy as np
    >>> part = Part(torch.arange(8).reshape(2, 4), np.array([0, 1]))
    >>> stream = domains(Dataset("toy", part, part), permutations(3), "permuted-toy")
    >>> len(stream), stream.tasks[2], stream[1].test.x[0].tolist()
    (3, (0, 1), [0, 1, 3, 2])
    """
    _check_tasks(len(changes))
    nameless = next((change for change in changes if " at 0x" in repr(change)), None)
    if nameless is not None:  # its address in memory would get into the stream's hash
        raise ValueError(f"{nameless!r} has no repr that says what it does: make it a dataclass, as Rotation is.")
    if data.test is None:
        raise ValueError(f"{data.name} has no test part, which a stream of domains needs.")
    whole = Stream.from_dataset(data, classes_per_task=len(set(data.train.y.tolist())), seed=None).plans[0]
    plans = tuple(Plan(whole.classes, whole.train, whole.test, change) for change in changes)
    return Stream(name, plans, data.train, data.test)
