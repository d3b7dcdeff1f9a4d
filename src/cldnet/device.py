"""Devices, dtypes, threads and generators: the only room that knows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock

import numpy as np
import torch
from torch import Tensor

__all__ = ["generator", "isolated_rng", "resolve_device", "resolve_dtype", "tensor_bytes", "threads"]

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

    Blocks in several threads do not wait for each other; each leaves the number that was there before the first of them.

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
    _thread_blocks.enter(int(count))
    try:
        yield
    finally:
        _thread_blocks.leave()


class _ThreadBlocks:
    """The blocks that have set the number of threads, and the number before the first of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open = 0
        self._before = 0

    def enter(self, count: int) -> None:
        with self._lock:
            if self._open == 0:
                self._before = torch.get_num_threads()
            self._open += 1
            torch.set_num_threads(count)

    def leave(self) -> None:
        with self._lock:
            self._open -= 1
            torch.set_num_threads(self._before)  # torch keeps a number a thread as well as one for all


_thread_blocks = _ThreadBlocks()


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes that the numbers of a tensor take.

    Examples
    --------
    >>> tensor_bytes(torch.zeros(3, 2))
    24
    """
    return tensor.numel() * tensor.element_size()
