"""A quadratic penalty on moving weights, ``½ k Σ_i F_i (θ_i − θ*_i)²``, and the step down it that is stable for any k."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cldnet.methods.parts.tensors import NamedTensors

__all__ = ["QuadraticPenalty"]


class QuadraticPenalty(nn.Module):
    """An importance ``F`` and an anchor ``θ*`` a weight, of constant size however many tasks they stand for.

    Parameters
    ----------
    parameters : mapping of str to Tensor
        The weights, for their names and shapes.

    Examples
    --------
    >>> penalty = QuadraticPenalty({"w": torch.zeros(1)})
    >>> penalty.add({"w": torch.tensor([1.0])}, {"w": torch.tensor([0.0])})
    >>> penalty.add({"w": torch.tensor([3.0])}, {"w": torch.tensor([4.0])})
    >>> penalty.importance["w"], penalty.anchor["w"]
    (tensor([4.]), tensor([3.]))
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        zeros = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        self.importance = NamedTensors(zeros)
        self.anchor = NamedTensors(zeros)

    @torch.no_grad()
    def value(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """``½ Σ_i F_i (θ_i − θ*_i)²``, without a gradient: `leave` does not need one."""
        terms = []
        for name, parameter in parameters.items():
            distance = parameter - self.anchor[name]
            terms.append(torch.dot((self.importance[name] * distance).flatten(), distance.flatten()))
        return 0.5 * torch.stack(terms).sum()

    @torch.no_grad()
    def shares(self, rate: float) -> dict[str, Tensor]:
        """What the penalty's proximal step leaves of every weight's way from its anchor: the same at all steps of a task.

        The step, ``argmin_ϑ ½ Σ F (ϑ − θ*)² + ‖ϑ − θ‖² / (2 rate)``, is ``θ* + (θ − θ*) / (1 + rate·F)``, weight by weight. A
        gradient step, ``θ − rate·F (θ − θ*)``, is its first order and overshoots without end once ``rate·F`` is above 2; this
        one comes closer to the anchor, never past it.
        """
        shares = {}
        for name, importance in self.importance.items():
            # A rate that is no number in this precision would make NaN of an importance of zero.
            stiffness = importance * min(rate, torch.finfo(importance.dtype).max)
            shares[name] = stiffness.add_(1.0).reciprocal_()
        return shares

    @torch.no_grad()
    def leave(self, parameters: Mapping[str, Tensor], shares: Mapping[str, Tensor]) -> None:
        """Take that step: leave weights, in place, such `shares` of their way from the anchor."""
        for name, parameter in parameters.items():
            torch.lerp(self.anchor[name], parameter, shares[name], out=parameter)

    @torch.no_grad()
    def add(self, importance: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Add a task with an anchor of its own.

        ``F₁ (θ − a₁)² + F₂ (θ − a₂)²`` is ``(F₁ + F₂) (θ − a)²`` and a constant, for ``a = (F₁a₁ + F₂a₂) / (F₁ + F₂)``: a sum
        over tasks needs no more room than one task.
        """
        for name, new in importance.items():
            total = self.importance[name].add_(new)
            share = torch.where(total > 0, new / total, 1.0)
            self.anchor[name].lerp_(weights[name], share)

    @torch.no_grad()
    def replace(self, importance: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Put other importances in place, all anchored at the given weights."""
        for name, new in importance.items():
            self.importance[name].copy_(new)
            self.anchor[name].copy_(weights[name])
