"""Devices, dtypes, threads and random generators, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock

import numpy as np
import torch
from torch import Tensor

_FEW_THREADS = 64
_DTYPES = {"float32": torch.float32, "float64": torch.float64}
#: Share of the machine's memory that one array may take before it is mapped from a file instead.
MEMORY_SHARE = 0.25
_global_rng = RLock()
_thread_lock = Lock()
#: Blocks that have set the number of threads, the latest last; first, under None, the number before all of them.
_thread_blocks: dict[object, int] = {}


def resolve_device(name: str) -> torch.device:
    """Turn ``"auto"`` or a torch device name into a device."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        usable = device.type != "meta" and torch.empty(0, device=device).device.type == device.type
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ValueError(
            f"device={name!r} is not a device that this machine and torch support; use 'auto', 'cpu' or 'cuda'."
        ) from error
    if not usable:
        raise ValueError(f"device={name!r} cannot compute; use 'auto', 'cpu' or 'cuda'.")
    return device


def resolve_dtype(name: str) -> torch.dtype:
    """Turn ``"float32"`` or ``"float64"`` into a torch dtype."""
    if name not in _DTYPES:
        raise ValueError(f"dtype={name!r} is not known; use one of {sorted(_DTYPES)}.")
    return _DTYPES[name]


def generator(seed: int) -> torch.Generator:
    """Make a CPU generator of our own, so that the global one is never touched."""
    return torch.Generator().manual_seed(seed)


@contextmanager
def isolated_rng(source: torch.Generator, device: torch.device) -> Iterator[None]:
    """Seed the global generators from ``source`` and restore them afterwards.

    For modules that use these, such as dropout: torch gives them no other source. One block at a time can run.
    """
    seed = int(torch.randint(2**62, (1,), generator=source))
    with _global_rng, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run a block on ``count`` threads (``None``: as they are) and restore the number afterwards.

    Blocks may be nested. Blocks in several threads do not wait for each other; the last one to end restores the number.
    """
    if count is None:
        yield
        return
    if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
        raise ValueError(f"n_threads={count!r} should be None or a whole number of at least 1.")
    block = object()
    try:  # around the entry as well: an interrupt there leaves nothing set
        with _thread_lock:
            _thread_blocks.setdefault(None, torch.get_num_threads())
            _thread_blocks[block] = int(count)
            torch.set_num_threads(int(count))
        yield
    finally:
        with _thread_lock:
            if _thread_blocks.pop(block, None) is not None:
                torch.set_num_threads(next(reversed(_thread_blocks.values())))
            if len(_thread_blocks) == 1:
                _thread_blocks.clear()


def bearable_threads(count: int | None) -> int | None:
    """Limit a number of threads from another machine's file to the number of processors here, or 64 if that is more.

    Each thread takes memory for its stack, so hundreds of them may be too many for a small machine.
    """
    return None if count is None else min(count, max(_FEW_THREADS, os.cpu_count() or 1))


def run_in_threads(work: Callable[[range], None], count: int, size: int) -> None:
    """Call ``work`` on pieces of ``range(count)``, in parallel: as many threads as torch has, one torch thread each.

    For work in small steps: one step on several threads would wait for the slowest of them every time, and its numbers
    would travel between the cores' caches.
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
    """Bytes that the numbers of a tensor take."""
    return tensor.numel() * tensor.element_size()


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
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    with suppress(OSError, ValueError):  # no cgroup, or "max"
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return int(share * total)
