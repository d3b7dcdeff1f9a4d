"""What a task takes from the data: row numbers, never rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Plan"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What a task takes from the data.

    Attributes
    ----------
    classes : tuple of labels
        The classes that the task is tested on.
    train, test : Tensor
        Numbers of its rows in the training part and in the test part, ascending.
    change : callable, optional
        What is done to its inputs, training and test alike; its `repr` says all of it.
    """

    classes: tuple[Any, ...]
    train: Tensor
    test: Tensor
    change: Callable[[Tensor], Tensor] | None = None
