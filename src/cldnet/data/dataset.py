"""A data set in memory or mapped from disk: a training part, perhaps a test part, and the digest of both."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.device import memory_limit


def check_file(path: Path, advice: str = "Check the path.") -> None:
    """Raise unless a path is a regular file, without opening it: opening a pipe or a device may block forever."""
    if path.is_file():
        return
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}. {advice}")
    kind = "a folder" if path.is_dir() else "a pipe, a device or the like"
    raise ValueError(f"{path} is {kind}; expected a file. Check the path, or put the file there.")


def make_room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Allocate an array: in memory, or mapped from a temporary file if it is larger than `memory_limit`."""
    size = dtype.itemsize * math.prod(shape)
    if size <= memory_limit():
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="cldnet-") as file:  # unlinked at once where the system can
        try:
            return map_file(file, shape, dtype)
        except OSError as error:
            raise OSError(
                f"There is no room for {size / 1e9:.1f} GB of samples in {tempfile.gettempdir()} ({error.strerror}). Name a "
                "larger disk with TMPDIR, or allow more memory with CLDNET_MEMORY_SHARE."
            ) from error


def map_file(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map an array from a new file. Its room is reserved: writing to a mapping that the disk cannot hold kills the process."""
    size = dtype.itemsize * math.prod(shape)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)
    return np.memmap(file, dtype, mode="r+", shape=shape)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Copy samples of a tensor; source and copy may both be mapped from a file."""
    copied = torch.from_numpy(make_room((len(index), *x.shape[1:]), x[:0].numpy().dtype))
    return torch.index_select(x, 0, index, out=copied)


def open_array(path: Path, offset: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Tensor:
    """Open an array in a file: read it if it fits into memory, else map it copy-on-write."""
    count = math.prod(shape)
    if dtype.itemsize * count <= memory_limit():
        return torch.from_numpy(np.fromfile(path, dtype, count, offset=offset).reshape(shape))
    return torch.from_numpy(np.memmap(path, dtype=dtype, mode="c", offset=offset, shape=shape))


@dataclass(frozen=True, eq=False)
class Part:
    """Samples, in memory or mapped from a file, with labels that are text or integers.

    ``x`` is ``(n, d)``, ``(n, height, width)`` or ``(n, channels, height, width)``. ``known_digest`` is `digest`, if a cache
    on disk has it, so that large data need not be read for it. ``text`` says that samples are sentences, as rows of bytes of
    `cldnet.data.sentences`.
    """

    x: Tensor
    y: NDArray[Any]
    known_digest: str | None = None
    text: bool = False

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(
                f"There are {len(self.x)} samples and {len(self.y)} labels; expected one label per sample."
            )

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of shape, type, values and labels, independent of the file format."""
        if self.known_digest is not None:
            return self.known_digest
        found = hashlib.sha256(repr((tuple(self.x.shape), str(self.x.dtype), self.y.tolist())).encode())
        found.update(self.x.contiguous().numpy().reshape(-1).view(np.uint8).data)
        return found.hexdigest()


@dataclass(frozen=True, eq=False)
class Dataset:
    """What a reader returns: a name, a training part, and a test part if the source has one.

    ``groups`` are the classes that belong together, if the source says so: a stream has one task for each of them.
    """

    name: str
    train: Part
    test: Part | None = None
    groups: Sequence[Sequence[Any]] | None = field(default=None, kw_only=True)

    def check(self) -> None:
        """Raise if the test part has another shape than the training part, or labels that are never learned."""
        train, test = self.train, self.test
        if test is None:
            return
        if test.x.shape[1:] != train.x.shape[1:]:
            raise ValueError(
                f"The test part has samples of shape {tuple(test.x.shape[1:])} and the training part of "
                f"{tuple(train.x.shape[1:])}: the shapes should agree."
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
