"""How strongly a projector absorbs an input: the α of Eq. 6, constant, decaying (OWM) or adaptive (AOP).

``1/α`` is an input's weight, so a projector's strength grows with the number of updates: the same α with three times the
batches leaves a third of the room. `PerTask` bounds the strength that a task can add.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["AdaptiveAlpha", "Alpha", "ConstantAlpha", "DecayingAlpha", "PerTask"]


class Alpha(Protocol):
    """A rule for α. ``rows`` are the inputs to absorb, ``progress`` the task's from 0 to 1, ``updates`` its number of steps."""

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        """Return α as a scalar tensor."""


@dataclass(frozen=True)
class ConstantAlpha:
    """The same α for every input; the paper's "initial value" is 0.01.

    Examples
    --------
    >>> ConstantAlpha(0.01)(torch.ones(1, 1, 3), progress=0.5, updates=10)
    tensor(0.0100)
    """

    value: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(self, "value")

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        """Return the constant."""
        return rows.new_tensor(self.value)


@dataclass(frozen=True)
class DecayingAlpha:
    """OWM: ``start · decay^progress``, weak while the task is young, strong at its end.

    Examples
    --------
    >>> DecayingAlpha(start=0.9, decay=0.001)(torch.ones(1, 1, 3), progress=1.0, updates=10)
    tensor(0.0009)
    """

    start: float = 1.0
    decay: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(self, "start", "decay")

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        """Return ``start · decay^progress``."""
        return rows.new_tensor(self.start * self.decay**progress)


@dataclass(frozen=True)
class AdaptiveAlpha:
    """AOP: ``scale · (mean(h)² + var(h))^progress`` over the entries of the input, from ``scale`` down to its energy.

    AOP's own code has this form for MNIST (and ``mean⁴`` for CIFAR, which is not dimensionally sound).

    Examples
    --------
    >>> AdaptiveAlpha()(torch.full((1, 1, 4), 0.5), progress=1.0, updates=10)
    tensor(0.2500)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "scale")

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        """Return the energy of the rows' entries to the power of the progress."""
        energy = rows.mean().square() + (rows.var() if rows.numel() > 1 else 0.0)
        return self.scale * energy.clamp_min(torch.finfo(rows.dtype).eps) ** progress


@dataclass(frozen=True)
class PerTask:
    """Another rule's α, stated for ``updates`` updates a task: with more of them each weighs less, ``α · actual / updates``.

    With fewer it stays as it is: a short task would otherwise be locked before it is learned.

    Examples
    --------
    >>> PerTask(ConstantAlpha(0.01), updates=100)(torch.ones(1, 1, 3), progress=0.0, updates=300)
    tensor(0.0300)
    """

    alpha: ConstantAlpha | DecayingAlpha | AdaptiveAlpha
    updates: int = 200

    def __post_init__(self) -> None:
        _check_positive(self, "updates")

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        """Scale the inner α by the task's number of updates."""
        return self.alpha(rows, progress, updates) * max(updates / self.updates, 1.0)


def _check_positive(rule: Alpha, *names: str) -> None:
    for name in names:
        if not getattr(rule, name) > 0:
            raise ValueError(f"{type(rule).__name__} takes a positive {name}, not {getattr(rule, name)}.")
