"""Sums that are added to each other, or read from older files."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cldnet.math import symmetric
from cldnet.methods.parts.moments import SecondMoments, moments_for

__all__ = ["check_addable", "moments_from", "upgraded"]


def check_addable(own: Mapping[str, Tensor], other: Mapping[str, Tensor], rows_of: Tensor, capacity: int) -> None:
    """Refuse sums of other shapes, and class rows that are not there or are one for two classes.

    Examples
    --------
    >>> own = {"class_sums": torch.zeros(2, 5), "class_weights": torch.zeros(2), "rows": torch.tensor(0.0)}
    >>> other = {"class_sums": torch.zeros(1, 4), "class_weights": torch.zeros(1), "rows": torch.tensor(0.0)}
    >>> check_addable(own, other, torch.tensor([1]), capacity=3)
    Traceback (most recent call last):
    ...
    ValueError: These sums do not go with this model's (class_sums): use the same map and the same `gram` for both.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    for name in ("class_sums", "class_weights"):
        shapes[name] = (len(rows_of), *shapes[name][1:])
    found = {name: tuple(tensor.shape) for name, tensor in other.items()}
    wrong = sorted(name for name in {*shapes, *found} if shapes.get(name) != found.get(name))
    if wrong:
        raise ValueError(
            f"These sums do not go with this model's ({', '.join(wrong)}): use the same map and the same `gram` for both."
        )
    rows = rows_of.tolist()
    if any(not 0 <= row < capacity for row in rows) or len({*rows}) < len(rows):
        raise ValueError(f"Each class needs a row of its own from 0 to {capacity - 1}, not {rows}: raise the capacity?")


def upgraded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Bring a state from before ``G`` was packed into today's form; others stay as they are.

    Such a state does not say which classes the map was fitted on, so all of them may have been.

    Examples
    --------
    >>> sorted(upgraded({"gram": torch.eye(2), "counters": torch.tensor([1, 3])}))
    ['counters', 'first_classes', 'second.packed']
    """
    if "gram" not in state:
        return dict(state)
    others = {name: tensor for name, tensor in state.items() if name != "gram"}
    return {**others, "second.packed": symmetric.pack(state["gram"]), "first_classes": state["counters"][1].clone()}


def moments_from(gram: str | int, width: int, tensors: Mapping[str, Tensor], prefix: str = "") -> SecondMoments:
    """Put tensors of that prefix back into what stands for ``G``, without copying them: they may have a gigabyte.

    Examples
    --------
    >>> moments_from("diagonal", 2, {"second.squares": torch.tensor([1.0, 2.0])}, prefix="second.").energy
    3.0
    """
    with torch.device("meta"):
        second = moments_for(gram, width)
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    second.load_state_dict(own, strict=True, assign=True)
    return second
