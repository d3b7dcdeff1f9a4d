"""Devices, dtypes, threads and generators: the only room that knows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["generator", "isolated_rng", "resolve_device", "resolve_dtype", "tensor_bytes", "threads"]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


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
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device={name!r} is not a torch device; use 'auto', 'cpu' or 'cuda'.") from error


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
def isolated_rng(source: torch.Generator) -> Iterator[None]:
    """Seed the global generator from ``source`` for a while and put it back afterwards.

    A user's module may hold dropout, which only knows the global generator.
    """
    seed = int(torch.randint(2**62, (1,), generator=source))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run a block on ``count`` threads (``None``: as they are) and restore the number afterwards.

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
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes that the numbers of a tensor take.

    Examples
    --------
    >>> tensor_bytes(torch.zeros(3, 2))
    24
    """
    return tensor.numel() * tensor.element_size()
