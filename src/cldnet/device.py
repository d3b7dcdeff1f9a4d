"""Devices, dtypes, threads and generators: the only room that knows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, RLock

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "bearable_threads",
    "generator",
    "isolated_rng",
    "resolve_device",
    "resolve_dtype",
    "share_out",
    "tensor_bytes",
    "threads",
]

_FEW_THREADS = 64
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_global_rng = RLock()


def resolve_device(name: str) -> torch.device:
    """Turn ``"auto"`` or a torch device name into a device.

    Examples
    --------
    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        usable = device.type != "meta" and torch.empty(0, device=device).device.type == device.type
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            f"device={name!r} is not a device that this machine and this torch have; use 'auto', 'cpu' or 'cuda'."
        ) from error
    if not usable:
        raise ValueError(f"device={name!r} cannot compute; use 'auto', 'cpu' or 'cuda'.")
    return device


def resolve_dtype(name: str) -> torch.dtype:
    """Turn ``"float32"`` or ``"float64"`` into a torch dtype.

    Examples
    --------
    >>> resolve_dtype("float64")
    torch.float64
    """
    if name not in _DTYPES:
        raise ValueError(f"dtype={name!r} is not known; use one of {sorted(_DTYPES)}.")
    return _DTYPES[name]


def generator(seed: int) -> torch.Generator:
    """Make a CPU generator of our own, so that the global one is never touched.

    Examples
    --------
    >>> bool(torch.rand(1, generator=generator(0)) == torch.rand(1, generator=generator(0)))
    True
    """
    return torch.Generator().manual_seed(seed)


@contextmanager
def isolated_rng(source: torch.Generator, device: torch.device) -> Iterator[None]:
    """Seed the global generators from ``source`` for a while and put them back afterwards.

    For modules that draw from them, such as dropout: torch gives those no other source. One block at a time may do so.
    """
    seed = int(torch.randint(2**62, (1,), generator=source))
    with _global_rng, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run a block on ``count`` threads (``None``: as they are) and restore the number afterwards.

    Blocks may be nested. Blocks in several threads do not wait for each other; the last one to end restores the number.

    Examples
    --------
    >>> before = torch.get_num_threads()
    >>> with threads(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """
    if count is None:
        yield
        return
    if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
        raise ValueError(f"n_threads={count!r} should be None or a whole number of at least 1.")
    block = object()
    try:  # around the entry as well: whoever is interrupted in it leaves nothing set
        _thread_blocks.enter(block, int(count))
        yield
    finally:
        _thread_blocks.leave(block)


def bearable_threads(count: int | None) -> int | None:
    """Threads that somebody else asked for, on another machine: no more than this one has processors, or 64.

    Each thread takes room for its stack, and some hundreds of them may be more than a small machine can make.

    Examples
    --------
    >>> bearable_threads(8), bearable_threads(None), (bearable_threads(4000) or 0) < 4000
    (8, None, True)
    """
    return None if count is None else min(count, max(_FEW_THREADS, os.cpu_count() or 1))


class _ThreadBlocks:
    """The blocks that have set the number of threads, and the number before the first of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: dict[object, int] = {}
        self._before = 0

    def enter(self, block: object, count: int) -> None:
        with self._lock:
            if not self._open:
                self._before = torch.get_num_threads()
            self._open[block] = count
            torch.set_num_threads(count)

    def leave(self, block: object) -> None:
        """Go back to the number of the block around this one, or of one that another thread has open."""
        with self._lock:
            if self._open.pop(block, None) is not None:
                torch.set_num_threads(next(reversed(self._open.values()), self._before))


_thread_blocks = _ThreadBlocks()


def share_out(work: Callable[[range], None], count: int, size: int) -> None:
    """Call ``work`` on pieces of ``range(count)``, side by side in as many threads as torch has, each computing on one.

    For work in small steps: one step on several threads would wait for the slowest of them every time, and its numbers
    would travel between the cores' caches.

    Examples
    --------
    >>> squares = torch.zeros(5)
    >>> share_out(lambda piece: squares[piece.start : piece.stop].copy_(torch.arange(piece.start, piece.stop) ** 2), 5, size=2)
    >>> squares
    tensor([ 0.,  1.,  4.,  9., 16.])
    """
    pieces = [range(first, min(first + size, count)) for first in range(0, count, size)]
    workers = min(torch.get_num_threads(), len(pieces))
    if workers <= 1:
        with threads(1):  # a single piece, too, is to have the numbers that it has beside others
            for piece in pieces:
                work(piece)
        return
    with threads(1), ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(work, pieces):  # a failure in a thread is raised here
            pass


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes that the numbers of a tensor take.

    Examples
    --------
    >>> tensor_bytes(torch.zeros(3, 2))
    24
    """
    return tensor.numel() * tensor.element_size()
