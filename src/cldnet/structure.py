"""What a classifier's model is built from, checked, and how its parameters become those of a method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from cldnet.data.memory import memory_limit
from cldnet.device import resolve_dtype
from cldnet.math.basis import reachable_gamma
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.methods.parts.moments import check_gram

__all__ = ["SOLVERS", "Structure", "check_room", "check_whole", "solver_options"]

#: The method behind each solver's name.
SOLVERS: Mapping[str, str] = {"exact": "exact", "hbo": "cldnet"}

_LARGEST_RATE = 3e38  # that float32 can hold


@dataclass(frozen=True)
class Structure:
    """What a model is built from. None of it can change while the model lives."""

    solver: str
    backbone: str | nn.Module
    capacity: int
    embed_dim: int
    input_shape: tuple[int, ...] | None
    dtype: str
    gram: str | int = "full"

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is not known; use one of {sorted(SOLVERS)}.")
        if not isinstance(self.backbone, str | nn.Module):
            raise ValueError(f"backbone={self.backbone!r} should be a name or a torch.nn.Module.")
        check_whole("capacity", self.capacity)
        check_whole("embed_dim", self.embed_dim)
        if self.input_shape is not None:
            sides = self.input_shape
            if not isinstance(sides, tuple | list) or not 1 <= len(sides) <= 3:
                raise ValueError(f"input_shape={sides!r} should be None or a tuple of one to three sides, as (28, 28).")
            for side in sides:
                check_whole("A side of input_shape", side)
            object.__setattr__(self, "input_shape", tuple(map(int, sides)))
        resolve_dtype(self.dtype)
        rank: Any = self.gram
        object.__setattr__(self, "gram", int(rank) if isinstance(rank, np.integer) else rank)
        check_gram(self.gram)

    def check_unchanged(self, now: Structure) -> None:
        """Refuse a model's parameters to be changed while it lives."""
        for name in self.__dataclass_fields__:
            then, value = getattr(self, name), getattr(now, name)
            if value is not then and value != then:
                larger = name == "capacity" and value > then
                keep = f" and call clf.extend({value}), which makes room and keeps what was learned" if larger else ""
                raise ValueError(
                    f"{name} was {then!r} when the model was made and is {value!r} now. "
                    f"Set it back{keep}, or call fit to begin anew."
                )


def check_whole(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1.

    Examples
    --------
    >>> check_whole("epochs", 2.5)
    Traceback (most recent call last):
    ...
    ValueError: epochs=2.5 should be a whole number of at least 1.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} should be a whole number of at least 1.")


def check_room(capacity: int, class_bytes: int) -> None:
    """Refuse room for more classes than memory has room for, before the system ends the process for it.

    Examples
    --------
    >>> check_room(10**15, class_bytes=8000)
    Traceback (most recent call last):
    ...
    ValueError: capacity=1000000000000000 takes 8e+09 GB, and one table may take ... CLDNET_MEMORY_SHARE sets another share.
    """
    size, most = capacity * class_bytes, memory_limit()
    if size > most:
        raise ValueError(
            f"capacity={capacity} takes {size / 1e9:.3g} GB, and one table may take {most / 1e9:.3g} GB of this machine's "
            "memory: ask for less. CLDNET_MEMORY_SHARE sets another share."
        )


def solver_options(structure: Structure, *, lr: float, alpha: float | str) -> dict[str, Any]:
    """Translate a classifier's parameters into the configuration of its solver's method.

    Examples
    --------
    >>> solver_options(Structure("exact", "auto", 8, 10, None, "float32"), lr=0.1, alpha="gcv")
    {'alpha': 'gcv', 'gram': 'full', 'products': 'float32'}
    """
    if not (isinstance(lr, int | float | np.number) and 0 < lr <= _LARGEST_RATE):
        raise ValueError(f"lr={lr!r} should be a positive number, {_LARGEST_RATE:g} at most.")
    number = isinstance(alpha, int | float | np.number) and 0 < alpha < float("inf")
    if alpha != "gcv" and not number:
        raise ValueError(f"alpha={alpha!r} should be 'gcv' or a positive number.")
    if structure.solver == "exact":
        return {"alpha": float(alpha) if number else alpha, "gram": structure.gram, "products": structure.dtype}
    gamma = reachable_gamma(structure.capacity, structure.embed_dim)
    options: dict[str, Any] = {"embed_dim": structure.embed_dim, "gamma": gamma, "lr": lr}
    if number:
        options["alpha"] = ConstantAlpha(float(alpha))
    return options
