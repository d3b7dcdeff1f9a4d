"""Rows that fit into a stated share of memory stay there; more than that is mapped from disk."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["MEMORY_SHARE", "gather", "make_room", "memory_limit", "open_array"]

#: Share of the machine's memory that one array may take before it is mapped from a file instead.
MEMORY_SHARE = 0.25
_BLOCK = 1 << 26


def memory_limit() -> int:
    """Bytes that one array may take in memory: `MEMORY_SHARE` of what the machine, or its container, has.

    The environment variable ``CLDNET_MEMORY_SHARE`` sets another share.
    """
    text = os.environ.get("CLDNET_MEMORY_SHARE", str(MEMORY_SHARE))
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"CLDNET_MEMORY_SHARE={text!r} should be a share of memory from 0 to 1, such as 0.25.")
    return int(share * _memory())


def make_room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Make an array to be filled: in memory, or in a file that is gone with it where it would be too large.

    Examples
    --------
    >>> make_room((2, 28, 28), np.dtype(np.uint8)).shape
    (2, 28, 28)
    """
    size = dtype.itemsize * math.prod(shape)
    if size <= memory_limit():
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile(prefix="cldnet-") as file:  # unlinked at once where the system can
        try:
            if hasattr(
                os, "posix_fallocate"
            ):  # a mapping of a file that the disk cannot hold ends the process without a word
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise OSError(
                f"There is no room for {size / 1e9:.1f} GB of rows in {tempfile.gettempdir()} ({error.strerror}). Name a "
                "larger disk with TMPDIR, or let more stay in memory with CLDNET_MEMORY_SHARE."
            ) from error
        return np.memmap(file, dtype, mode="r+", shape=shape)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Copy rows of a tensor, in blocks: what is copied may be mapped from a file, and so may the copy.

    Examples
    --------
    >>> gather(torch.arange(6).reshape(3, 2), torch.tensor([2, 0]))
    tensor([[4, 5],
            [0, 1]])
    """
    rows = torch.from_numpy(make_room((len(index), *x.shape[1:]), x[:0].numpy().dtype))
    step = max(1, _BLOCK // max(1, x[:1].nbytes))
    for first in range(0, len(index), step):
        rows[first : first + step] = x.index_select(0, index[first : first + step])
    return rows


def open_array(path: Path, offset: int, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Tensor:
    """Open values that lie one behind the other in a file: read when they fit into memory, else mapped.

    What is mapped can be written to without a change to the file.
    """
    size = dtype.itemsize * math.prod(shape)
    if size <= memory_limit():
        with path.open("rb") as file:
            file.seek(offset)
            values = np.fromfile(file, dtype, size // dtype.itemsize).reshape(shape)
        return torch.from_numpy(values)
    return torch.from_numpy(np.memmap(path, dtype=dtype, mode="c", offset=offset, shape=shape))


def _memory() -> int:
    """Bytes of memory of the machine, or of the container that this process lives in."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    except (OSError, ValueError):  # no cgroup, or "max"
        return whole
