"""A classifier's parameters, checked: what its model is built from, what may change from call to call; and its method's."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from torch import nn

from cldnet.data.memory import memory_limit
from cldnet.device import bearable_threads, resolve_dtype
from cldnet.math.basis import reachable_gamma
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.methods.parts.moments import check_gram

__all__ = [
    "SOLVERS",
    "Settings",
    "Structure",
    "check_room",
    "check_threads",
    "check_whole",
    "random_source",
    "solver_options",
]

#: The method behind each solver's name.
SOLVERS: Mapping[str, str] = {"exact": "exact", "hbo": "cldnet"}

_LARGEST_RATE = 3e38  # that float32 can hold
_LARGEST_WHOLE = 2**63 - 1  # that torch takes for a size, and a file for a number
_SHOWN = 80


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
    receipts: bool = False

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
            check_whole("The product of the sides of input_shape", prod(map(int, sides)))
            object.__setattr__(self, "input_shape", tuple(map(int, sides)))
        resolve_dtype(self.dtype)
        rank: Any = self.gram
        object.__setattr__(self, "gram", int(rank) if isinstance(rank, np.integer) else rank)
        check_gram(self.gram)
        if not isinstance(self.gram, str):
            check_whole("gram", self.gram)
        if not isinstance(self.receipts, bool | np.bool_) or (self.receipts and self.solver != "exact"):
            raise ValueError(
                f"receipts={_shown(self.receipts)} should be False, or True for solver='exact', the one that can forget rows."
            )
        object.__setattr__(self, "receipts", bool(self.receipts))

    @property
    def class_bytes(self) -> int:
        """Bytes that room for one class takes at least: a vector for `hbo`, a sum over a map's features for `exact`."""
        features = getattr(self.backbone, "out_features", 1000)  # as many as the maps that are made by name have
        return 8 * (self.embed_dim if self.solver == "hbo" else int(features))

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


@dataclass(frozen=True)
class Settings:
    """What may change from call to call, in the plain types that a file takes.

    Examples
    --------
    >>> Settings(epochs=2, batch_size=16, lr=7, alpha=10**30, n_threads=None, verbose=True)
    Settings(epochs=2, batch_size=16, lr=7.0, alpha=1e+30, n_threads=None, verbose=1)
    """

    epochs: int
    batch_size: int
    lr: float
    alpha: float | str
    n_threads: int | None
    verbose: int

    def __post_init__(self) -> None:
        check_whole("epochs", self.epochs)
        check_whole("batch_size", self.batch_size)
        check_threads(self.n_threads)
        if not _is_number(self.lr, _LARGEST_RATE):
            raise ValueError(f"lr={_shown(self.lr)} should be a positive number, {_LARGEST_RATE:g} at most.")
        by_name = isinstance(self.alpha, str) and self.alpha == "gcv"
        if not by_name and not _is_number(self.alpha, sys.float_info.max):
            raise ValueError(f"alpha={_shown(self.alpha)} should be 'gcv' or a positive number that a float can hold.")
        said: Any = self.verbose
        if not isinstance(said, int | np.integer | np.bool_) or abs(int(said)) > _LARGEST_WHOLE:
            raise ValueError(
                f"verbose={_shown(said)} should be a small whole number: 0 for silence, 1 for a line a session, 2 for more."
            )
        types = {"epochs": int, "batch_size": int, "lr": float, "verbose": int}
        types |= ({} if by_name else {"alpha": float}) | ({} if self.n_threads is None else {"n_threads": int})
        for name, plain in types.items():
            object.__setattr__(self, name, plain(getattr(self, name)))

    @classmethod
    def of(cls, classifier: Any) -> Settings:
        """Take them from a classifier, or say which of its parameters cannot be."""
        return cls(**{field.name: getattr(classifier, field.name) for field in fields(cls)})


def check_whole(name: str, value: Any, least: int = 1, most: int = _LARGEST_WHOLE) -> None:
    """Refuse what is not a whole number, is too small, or is too large for torch and for a file.

    Examples
    --------
    >>> check_whole("epochs", 2.5)
    Traceback (most recent call last):
    ...
    ValueError: epochs=2.5 should be a whole number of at least 1.
    >>> check_whole("capacity", 10**30)
    Traceback (most recent call last):
    ...
    ValueError: capacity=1000000000000000000000000000000 should be a whole number of at most 9223372036854775807.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={_shown(value)} should be a whole number of at least {least}.")
    if value > most:
        raise ValueError(f"{name}={_shown(value)} should be a whole number of at most {most}.")


def check_threads(count: Any) -> None:
    """Refuse more threads than a machine bears: thousands of them take hours to do nothing, or end the process without a word.

    Examples
    --------
    >>> check_threads(10**6)
    Traceback (most recent call last):
    ...
    ValueError: n_threads=1000000 should be None or a whole number from 1 to ... threads than processors are of no use.
    """
    if count is None:
        return
    most = bearable_threads(_LARGEST_WHOLE)
    try:
        check_whole("n_threads", count, most=_LARGEST_WHOLE if most is None else most)
    except ValueError:
        raise ValueError(
            f"n_threads={_shown(count)} should be None or a whole number from 1 to {most}: more threads than processors are of "
            "no use."
        ) from None


def random_source(random_state: Any) -> np.random.RandomState | None:
    """Make numpy's generator of a ``random_state`` as scikit-learn does; None where it is None.

    Examples
    --------
    >>> random_source("dice")
    Traceback (most recent call last):
    ...
    ValueError: random_state='dice' should be None, a whole number from 0 to 4294967295, or a numpy.random.RandomState.
    """
    try:
        source: np.random.RandomState | None = None if random_state is None else check_random_state(random_state)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"random_state={_shown(random_state)} should be None, a whole number from 0 to {2**32 - 1}, or a "
            "numpy.random.RandomState."
        ) from error
    return source


def _is_number(value: Any, most: float) -> bool:
    """Tell whether something is a number above 0 and up to ``most``; True and False are none."""
    value = (
        value.item() if isinstance(value, np.generic) else value
    )  # numpy warns if it compares a small float with a large one
    return isinstance(value, int | float | np.longdouble) and not isinstance(value, bool) and bool(0 < value <= most)


def _shown(value: Any) -> str:
    """Write a value into a sentence, or the beginning of it."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


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
            "memory: ask for room for fewer classes, or for fewer features (or embed_dim) a class. CLDNET_MEMORY_SHARE sets "
            "another share."
        )


def solver_options(structure: Structure, settings: Settings) -> dict[str, Any]:
    """Translate a classifier's parameters into the configuration of its solver's method.

    Examples
    --------
    >>> settings = Settings(epochs=1, batch_size=16, lr=0.1, alpha="gcv", n_threads=None, verbose=0)
    >>> solver_options(Structure("exact", "auto", 8, 10, None, "float32"), settings)
    {'alpha': 'gcv', 'gram': 'full', 'products': 'float32'}
    """
    if structure.solver == "exact":
        return {"alpha": settings.alpha, "gram": structure.gram, "products": structure.dtype}
    gamma = reachable_gamma(structure.capacity, structure.embed_dim)
    options: dict[str, Any] = {"embed_dim": structure.embed_dim, "gamma": gamma, "lr": settings.lr}
    if not isinstance(settings.alpha, str):
        options["alpha"] = ConstantAlpha(settings.alpha)
    return options
