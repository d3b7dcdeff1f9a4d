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

__all__ = ["LIMIT", "Stored", "folded_vectors", "stored_vectors"]

#: A stored vector with a |cosine| beyond this is like a row.
LIMIT = 0.99
_PACKED = "second.packed"
#: What every learner has that counts, or that random numbers come from.
_NO_NUMBERS = ("counters", "random")


@dataclass(frozen=True)
class Stored:
    """Vectors that one tensor of the state holds, read in one way.

    Attributes
    ----------
    tensor : str
        The tensor's name in the state.
    form : str
        How it is read: ``"vector"``, ``"row"``, ``"column"``, ``"filter"``, ``"folded row"`` or ``"folded column"``.
    units : Tensor, shape (count, length)
        The vectors, made unit vectors; one without a direction is all zeros.
    """

    tensor: str
    form: str
    units: Tensor


def stored_vectors(learner: Learner) -> Iterator[Stored]:
    """Read all numbers that a learner keeps as vectors, in every way that the tensors' shapes offer.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> [(part.tensor, part.form, tuple(part.units.shape)) for part in stored_vectors(learner)][-3:]
    [('head.weight', 'row', (2, 8)), ('head.weight', 'column', (8, 2)), ('head.bias', 'vector', (1, 2))]
    """
    second = getattr(learner, "second", None)
    for name, tensor in _numbers(learner):
        if name == _PACKED and isinstance(second, FullMoments):  # a symmetric matrix: its columns are its rows
            yield _unit(name, "column", symmetric.unpack(tensor, second.width, torch.float32))
        else:
            yield from _read(name, tensor)


def folded_vectors(learner: Learner, length: int) -> Iterator[Stored]:
    """Read tensors that have as many numbers as several rows of a length, and no side of that length, as such rows.

    Flat tensors, whatever they are, and others that no optimiser trains; the packed sums are a matrix of their own.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> learner.register_buffer("kept", torch.arange(15))
    >>> [(part.tensor, part.form, tuple(part.units.shape)) for part in folded_vectors(learner, 5)]
    [('kept', 'folded row', (3, 5)), ('kept', 'folded column', (3, 5))]
    """
    trained = {name for name, parameter in learner.named_parameters() if parameter.ndim > 1}
    packed = {_PACKED} if isinstance(getattr(learner, "second", None), FullMoments) else set()
    for name, tensor in _numbers(learner):
        several = length > 1 and tensor.numel() > length and tensor.numel() % length == 0
        if several and length not in tensor.shape and name not in trained | packed:
            yield _unit(name, "folded row", tensor.reshape(-1, length))
            yield _unit(name, "folded column", tensor.reshape(length, -1).T)


def _numbers(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """All tensors in which there is room for more than one number, of whatever type."""
    for name, tensor in learner.state_dict().items():
        if name not in _NO_NUMBERS and tensor.numel() > 1:
            real = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
            yield name, real if real.is_floating_point() else real.float()


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
    # One number that is none would make the whole vector incomparable.
    finite = torch.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)
    # Scaled by their largest number first: the squares of sums over millions of rows are beyond float32.
    largest = finite.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return Stored(name, form, normalize((finite / largest).float()).cpu())
