"""Sums that are added to each other, taken out again, or read from older files: what goes together, and what cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math import symmetric
from cldnet.methods.parts.moments import ROUNDING, SecondMoments, moments_for

__all__ = ["Summed", "check_addable", "moments_from", "upgraded", "without"]


class Summed(NamedTuple):
    """What is known of examples class by class: the diagonal of ``G``, class sums and class weights."""

    diagonal: Tensor
    class_sums: Tensor
    class_weights: Tensor


def without(known: Summed, taken: Summed) -> Summed:
    """Subtract what is known of some examples, or refuse it if what is left cannot be the sums of any examples.

    Weights are not negative, a class without weight has no sum, and features have no negative variance within classes:
    ``Σ h² ≥ Σ_c (Σ h)² / n_c``. Rounding of weights that are not whole numbers is allowed for, and leaves no trace of a
    class that is gone.

    Examples
    --------
    >>> known = Summed(torch.tensor([5.0]), torch.tensor([[3.0]]), torch.tensor([2.0]))  # the rows 1 and 2
    >>> without(known, Summed(torch.tensor([4.0]), torch.tensor([[2.0]]), torch.tensor([1.0])))
    Summed(diagonal=tensor([1.]), class_sums=tensor([[1.]]), class_weights=tensor([1.]))
    >>> without(known, Summed(torch.tensor([9.0]), torch.tensor([[3.0]]), torch.tensor([1.0])))
    Traceback (most recent call last):
    ...
    ValueError: These rows were not among those learned, or not with these labels and weights, so nothing was forgotten...
    """
    diagonal, sums, weights = (have - less for have, less in zip(known, taken, strict=True))
    slack = ROUNDING * known.class_weights
    left = weights > slack
    within = diagonal - (sums[left].square() / weights[left, None]).sum(0)
    # Against the largest square: a feature that no row has any more is 0 but for what rounding left of rows forgotten before.
    largest = known.diagonal.max()
    gone = sums[~left].square() > ROUNDING**2 * known.class_weights[~left, None] * largest
    if (weights < -slack).any() or gone.any() or (within < -ROUNDING * largest).any():
        raise ValueError(
            "These rows were not among those learned, or not with these labels and weights, so nothing was forgotten. "
            "Hand rows back as they were learned, and no more often than they were."
        )
    return Summed(diagonal, torch.where(left[:, None], sums, 0.0), torch.where(left, weights, 0.0))


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
