"""Every vector that a learner keeps: rows, columns, filters and sums of its state, by length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.math import symmetric
from cldnet.methods.learner import Learner
from cldnet.methods.parts.moments import FullMoments

__all__ = ["Stored", "stored_vectors"]

_PACKED = "second.packed"


@dataclass(frozen=True)
class Stored:
    """Vectors that one tensor of the state holds, read in one way.

    Attributes
    ----------
    tensor : str
        The tensor's name in the state.
    form : str
        How it is read: ``"vector"``, ``"row"``, ``"column"`` or ``"filter"``.
    units : Tensor, shape (count, length)
        The vectors, made unit vectors; one without a direction is all zeros.
    """

    tensor: str
    form: str
    units: Tensor


def stored_vectors(learner: Learner) -> Iterator[Stored]:
    """Read all numbers that a learner keeps as vectors, in every way in which a row could hide in them.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> [(part.tensor, part.form, tuple(part.units.shape)) for part in stored_vectors(learner)][-3:]
    [('head.weight', 'row', (2, 8)), ('head.weight', 'column', (8, 2)), ('head.bias', 'vector', (1, 2))]
    """
    for name, tensor in learner.state_dict().items():
        second = getattr(learner, "second", None)
        if name == _PACKED and isinstance(second, FullMoments):  # a symmetric matrix: its columns are its rows
            yield _unit(name, "column", symmetric.unpack(tensor, second.width, torch.float32))
        elif (tensor.is_floating_point() or tensor.dtype == torch.int8) and tensor.numel() > 1:
            yield from _read(name, tensor.detach())


def _read(name: str, tensor: Tensor) -> Iterator[Stored]:
    if tensor.squeeze().ndim == 1:
        yield _unit(name, "vector", tensor.reshape(1, -1))
    elif tensor.ndim == 2:
        yield _unit(name, "row", tensor)
        yield _unit(name, "column", tensor.T)
    else:
        yield _unit(name, "filter", tensor.flatten(1))
        yield _unit(name, "row", tensor.reshape(-1, tensor.shape[-1]))


def _unit(name: str, form: str, vectors: Tensor) -> Stored:
    # Scaled by their largest number first: the squares of sums over millions of rows are beyond float32.
    largest = vectors.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return Stored(name, form, normalize((vectors / largest).float()).cpu())
