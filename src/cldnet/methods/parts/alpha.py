"""How strongly a projector absorbs an input: the α of Eq. 6, constant, decaying (OWM) or adaptive (AOP).

``1/α`` is an input's weight, so a projector's strength grows with the number of updates. `PerTask` bounds the strength that a
task can add. `LayerAlphas` and `KindAlphas` give layers their own rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Place:
    """A layer's number among the ``count`` layers of a net, from 0, and whether it is a convolution."""

    number: int = 0
    count: int = 1
    convolution: bool = False


class Alpha(Protocol):
    """A rule for α. ``rows`` are the inputs to absorb, ``progress`` the task's from 0 to 1, ``updates`` its number of steps."""

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        """Return α as a scalar tensor."""

    def of_layer(self, place: Place) -> Alpha:
        """Return the rule of one layer: this one, unless layers differ."""
        return self


@dataclass(frozen=True)
class ConstantAlpha(Alpha):
    """The same α for every input; the paper's "initial value" is 0.01."""

    value: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(self, "value")

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        return rows.new_tensor(self.value)


@dataclass(frozen=True)
class DecayingAlpha(Alpha):
    """OWM: ``start · decay^progress``, so that projectors absorb weakly at the beginning of a task and strongly at its end."""

    start: float = 1.0
    decay: float = 0.01

    def __post_init__(self) -> None:
        _check_positive(self, "start", "decay")

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        return rows.new_tensor(self.start * self.decay**progress)


@dataclass(frozen=True)
class AdaptiveAlpha(Alpha):
    """AOP: ``scale · (mean(h)² + var(h))^progress`` over the entries of the input, from ``scale`` down to its energy."""

    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(self, "scale")

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        energy = rows.mean().square() + (rows.var() if rows.numel() > 1 else 0.0)
        return self.scale * energy.clamp_min(torch.finfo(rows.dtype).eps) ** progress


@dataclass(frozen=True)
class PerTask(Alpha):
    """Another rule's α, stated for ``updates`` updates per task: with more of them each weighs less, ``α · actual / updates``.

    With fewer it stays as it is: a short task would otherwise be protected before it is learned.
    """

    alpha: Alpha
    updates: int = 200

    def __post_init__(self) -> None:
        _check_positive(self, "updates")
        _check_rules(self, self.alpha)

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        return self.alpha(rows, progress, updates) * max(updates / self.updates, 1.0)

    def of_layer(self, place: Place) -> Alpha:
        rule = self.alpha.of_layer(place)
        return self if rule is self.alpha else PerTask(rule, self.updates)


@dataclass(frozen=True)
class LayerAlphas(Alpha):
    """One rule per layer, in the order of the net, the head's last; see `cldnet.methods.owm.RELEASED_MLP`."""

    alphas: tuple[Alpha, ...]

    def __post_init__(self) -> None:
        given = tuple(self.alphas) if isinstance(self.alphas, Iterable) else (self.alphas,)
        object.__setattr__(self, "alphas", given)  # JSON has lists only
        _check_rules(self, *given)

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        return self.of_layer(Place())(rows, progress, updates)

    def of_layer(self, place: Place) -> Alpha:
        if len(self.alphas) != place.count:
            raise ValueError(
                f"LayerAlphas has {len(self.alphas)} rules for the {place.count} layers of the net: give one for each "
                "layer, the head's last."
            )
        return self.alphas[place.number].of_layer(place)


@dataclass(frozen=True)
class KindAlphas(Alpha):
    """One rule for linear layers and one for convolutions, which absorb a row for every position."""

    linear: Alpha
    convolution: Alpha

    def __post_init__(self) -> None:
        _check_rules(self, self.linear, self.convolution)

    def __call__(self, rows: Tensor, progress: float, updates: int) -> Tensor:
        return self.of_layer(Place())(rows, progress, updates)

    def of_layer(self, place: Place) -> Alpha:
        return (self.convolution if place.convolution else self.linear).of_layer(place)


def _check_positive(rule: Alpha, *names: str) -> None:
    for name in names:
        if not getattr(rule, name) > 0:
            raise ValueError(f"{type(rule).__name__} takes a positive {name}, not {getattr(rule, name)}.")


def _check_rules(parent: Alpha, *rules: Alpha) -> None:
    for rule in rules:
        if isinstance(rule, type) or not hasattr(rule, "of_layer"):
            raise ValueError(f"{type(parent).__name__} takes rules such as {ConstantAlpha()}, not {rule!r}.")
