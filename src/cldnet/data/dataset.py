"""A data set in memory or mapped from disk: a training part, a test part if it has one, and the digest of both."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Dataset", "Part"]

_CHUNK = 1 << 24


@dataclass(frozen=True, eq=False)
class Part:
    """Inputs, one a row, with their labels.

    Attributes
    ----------
    x : Tensor
        In the layout that nets take: ``(n, d)``, ``(n, height, width)`` or ``(n, channels, height, width)``; resident or
        mapped from a file. Nobody writes to it.
    y : array of n labels
        The data's own labels: text or whole numbers.
    known_digest : str, optional
        `digest`, where the reader has it already (a cache on disk), so that large data need not be read for it.

    Examples
    --------
    >>> import torch
    >>> part = Part(torch.zeros(2, 3, dtype=torch.uint8), np.array(["a", "b"]))
    >>> len(part), part.digest[:8]
    (2, '2ef5dccc')
    """

    x: Tensor
    y: NDArray[Any]
    known_digest: str | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"There are {len(self.x)} inputs and {len(self.y)} labels: they should be as many.")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def digest(self) -> str:
        """SHA-256 of shape, type, values and labels: the same whatever kind of file they came from."""
        if self.known_digest is not None:
            return self.known_digest
        found = hashlib.sha256(repr((tuple(self.x.shape), str(self.x.dtype), self.y.tolist())).encode())
        values = self.x.contiguous().numpy().reshape(-1).view(np.uint8)
        for first in range(0, len(values), _CHUNK):
            found.update(values[first : first + _CHUNK].data)
        object.__setattr__(self, "known_digest", found.hexdigest())
        return found.hexdigest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a reader returns: a name, a training part, and a test part if the source has one.

    Examples
    --------
    >>> import torch
    >>> Dataset("toy", Part(torch.zeros(2, 3), np.array([4, 7]))).digest
    '6b53ed563a4b464b'
    """

    name: str
    train: Part
    test: Part | None = None

    def check(self) -> None:
        """Refuse a test part that does not go with the training part: other shapes, or labels that nobody learns."""
        train, test = self.train, self.test
        if test is None:
            return
        if test.x.shape[1:] != train.x.shape[1:]:
            raise ValueError(
                f"The test part has rows of shape {tuple(test.x.shape[1:])} and the training part of "
                f"{tuple(train.x.shape[1:])}: they should agree."
            )
        unknown = sorted(set(test.y.tolist()) - set(train.y.tolist()), key=str)
        kinds = {part.y.dtype.kind.replace("u", "i") for part in (train, test)}
        if unknown or len(kinds) > 1:
            label = [*unknown, test.y[0].item()][0]
            raise ValueError(f"The test part has labels that the training part does not have, such as {label!r}.")

    @property
    def digest(self) -> str:
        """Sixteen digits of a SHA-256 over both parts."""
        parts = [part.digest for part in (self.train, self.test) if part is not None]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
