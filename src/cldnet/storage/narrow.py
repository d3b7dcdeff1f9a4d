"""Sums of whole numbers as 32-bit integers in a file, where nothing is lost: half the bytes to read, hash and keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: Smaller tensors are not worth an entry in the manifest.
_LEAST_NUMBERS = 1024
_LIMIT = 2**31 - 1
_CHUNK = 1 << 20  # numbers compared at once: the sums may have gigabytes


def narrowed(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Convert large float64 tensors of whole numbers that fit 32 bits, and name them; the others stay as they are."""
    names = [name for name, tensor in sorted(tensors.items()) if _fits(tensor)]
    return {**tensors, **{name: tensors[name].to(torch.int32) for name in names}}, names


def _fits(tensor: Tensor) -> bool:
    if tensor.dtype != torch.float64 or tensor.numel() < _LEAST_NUMBERS:
        return False
    chunks = tensor.detach().flatten().split(_CHUNK)
    return all(bool(((chunk == chunk.round()) & (chunk.abs() <= _LIMIT)).all()) for chunk in chunks)


def widened(tensors: Mapping[str, Tensor], names: Any) -> dict[str, Tensor]:
    """Convert the tensors that `narrowed` named back to float64; the names are untrusted input."""
    if not isinstance(names, list) or len({*map(str, names)}) < len(names):
        raise ValueError("its integers should be a list of names, each once")
    for name in names:
        if name not in tensors or tensors[name].dtype != torch.int32:
            raise ValueError(f"{name!r:.80} is not a tensor of 32-bit integers")
    return {**tensors, **{name: tensors[name].double() for name in names}}
