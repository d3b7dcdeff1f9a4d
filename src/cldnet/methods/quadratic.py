"""What EWC, Online EWC, SI and MAS share: fine-tuning with a quadratic penalty on moving important weights.

The penalty is ``½ k Σ_i F_i (θ_i − θ*_i)²`` with an importance ``F`` and an anchor ``θ*`` per weight. Its steps are stable for
any strength ``k``.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.config import FINITE_NOT_NEGATIVE
from cldnet.methods.gradient import GradientConfig, GradientLearner, NamedTensors
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.importance import AT_ONCE


@dataclass(frozen=True)
class QuadraticConfig(GradientConfig):
    """Settings of a quadratic penalty."""

    strength: float = 1000.0  # weight of the penalty: the paper's λ (EWC, MAS) or c (SI). Any size is stable

    limits: ClassVar = {"strength": FINITE_NOT_NEGATIVE}


class QuadraticPenalty(nn.Module):
    """An importance ``F`` and an anchor ``θ*`` per weight, of constant size for any number of tasks."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        zeros = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
        self.importance = NamedTensors(zeros)
        self.anchor = NamedTensors(zeros)

    @torch.no_grad()
    def value(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """``½ Σ_i F_i (θ_i − θ*_i)²``, without a gradient: `step` does not need one."""
        terms = []
        for name, parameter in parameters.items():
            distance = parameter - self.anchor[name]
            terms.append(torch.dot((self.importance[name] * distance).flatten(), distance.flatten()))
        return 0.5 * torch.stack(terms).sum()

    @torch.no_grad()
    def shares(self, rate: float) -> dict[str, Tensor]:
        """``1 / (1 + rate·F)``: what the penalty's proximal step leaves of every weight's distance to its anchor.

        The step, ``argmin_ϑ ½ Σ F (ϑ − θ*)² + ‖ϑ − θ‖² / (2 rate)``, is ``θ* + (θ − θ*) / (1 + rate·F)``, weight by weight. A
        gradient step, ``θ − rate·F (θ − θ*)``, is its first order and diverges once ``rate·F`` is above 2.
        """
        shares = {}
        for name, importance in self.importance.items():
            # An infinite rate would make NaN of an importance of zero.
            stiffness = importance * min(rate, torch.finfo(importance.dtype).max)
            shares[name] = stiffness.add_(1.0).reciprocal_()
        return shares

    @torch.no_grad()
    def step(self, parameters: Mapping[str, Tensor], shares: Mapping[str, Tensor]) -> None:
        """Take that step in place."""
        for name, parameter in parameters.items():
            torch.lerp(self.anchor[name], parameter, shares[name], out=parameter)

    @torch.no_grad()
    def add(self, importance: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Add a task with its own anchor.

        ``F₁ (θ − a₁)² + F₂ (θ − a₂)²`` is ``(F₁ + F₂) (θ − a)²`` plus a constant, with ``a = (F₁a₁ + F₂a₂) / (F₁ + F₂)``: a sum
        over tasks takes no more memory than one task.
        """
        for name, new in importance.items():
            total = self.importance[name].add_(new)
            share = torch.where(total > 0, new / total, 1.0)
            self.anchor[name].lerp_(weights[name], share)

    @torch.no_grad()
    def replace(self, importance: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Replace all importances, and all anchors by the given weights."""
        for name, new in importance.items():
            self.importance[name].copy_(new)
            self.anchor[name].copy_(weights[name])


class QuadraticLearner(GradientLearner, ABC):
    """Fine-tuning with a penalty on moving weights that earlier tasks need; `finish` computes how important they are."""

    traits = Traits(rehearsal_free=True, constant_size=True)
    config_class: ClassVar[type[QuadraticConfig]] = QuadraticConfig
    config: QuadraticConfig
    #: The penalty is ``½ · factor · strength · Σ F (θ − θ*)²``: 1 where the paper writes ``λ/2``, 2 where it writes ``λ``.
    factor: ClassVar[float] = 1.0

    def __init__(self, net: nn.Module, setting: Setting, config: QuadraticConfig) -> None:
        super().__init__(net, setting, config)
        self.penalty = QuadraticPenalty(self.weights)
        self.shares: dict[str, Tensor] = {}

    @property
    def weights(self) -> dict[str, Tensor]:
        """All trained parameters by name, without gradients."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def start(self, task: TaskData) -> None:
        """Prepare the penalty's steps.

        Its rate is ``lr / (1 − momentum)``, the effective learning rate of the data's steps: both are then at rest where the
        gradient of data and penalty together is zero.
        """
        super().start(task)
        if self.tasks > 0:
            rate = self.factor * self.config.strength * self.config.lr / (1 - self.config.momentum)
            self.shares = self.penalty.shares(rate)

    def finish(self, task: TaskData) -> None:
        super().finish(task)
        self.shares = {}

    def observe(self, batch: Batch) -> Tensor:
        """Take a gradient step on the data, then a proximal step on the penalty; return both losses as they were before."""
        if self.tasks == 0:
            return super().observe(batch)
        weights = self.weights
        penalty = self.factor * self.config.strength * self.penalty.value(weights)
        loss = super().observe(batch)
        self.penalty.step(weights, self.shares)
        return loss + penalty

    def scaled(self, task: TaskData) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Scaled inputs of a task with their weights, in batches."""
        for batch in task.batches(AT_ONCE):
            yield self.scale(batch.x), batch.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits of scaled inputs over the classes seen."""
        return self.score(x)[:, : self.seen]
