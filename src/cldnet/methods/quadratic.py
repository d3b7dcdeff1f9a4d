"""What EWC, Online EWC, SI and MAS share: fine-tuning with a quadratic penalty on moving weights that matter."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from torch import Tensor, nn

from cldnet.methods.gradient import GradientConfig, GradientLearner
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.penalty import QuadraticPenalty
from cldnet.methods.parts.per_sample import AT_ONCE

__all__ = ["QuadraticConfig", "QuadraticLearner"]


@dataclass(frozen=True)
class QuadraticConfig(GradientConfig):
    """Settings of a quadratic penalty.

    Attributes
    ----------
    strength : float
        Weight of the penalty: the paper's λ (EWC, MAS) or c (SI). Any size is stable.
    """

    strength: float = 1000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise ValueError(f"strength={self.strength} should not be negative.")
        if not isfinite(self.strength):
            raise ValueError(f"strength={self.strength} should be a finite number.")


class QuadraticLearner(GradientLearner, ABC):
    """Fine-tuning where weights that earlier tasks needed are pulled back to their anchors.

    A method says, in `finish`, how important each weight was.
    """

    config_class: ClassVar[type[QuadraticConfig]] = QuadraticConfig
    config: QuadraticConfig
    #: The penalty is ``½ · doubled · strength · Σ F (θ − θ*)²``: 1 where the paper writes ``λ/2``, 2 where it writes ``λ``.
    doubled: ClassVar[float] = 1.0

    def __init__(self, net: nn.Module, setting: Setting, config: QuadraticConfig) -> None:
        super().__init__(net, setting, config)
        self.penalty = QuadraticPenalty(self.weights)
        self.shares: dict[str, Tensor] = {}

    @property
    def weights(self) -> dict[str, Tensor]:
        """All trained numbers by name, without a gradient."""
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def start(self, task: TaskData) -> None:
        """Reckon how far the penalty will pull each weight back.

        Its rate is ``lr / (1 − momentum)``, which momentum makes of the data's learning rate in the long run: both come to
        rest where the gradient of data and penalty together is zero.
        """
        super().start(task)
        if self.tasks > 0:
            rate = self.doubled * self.config.strength * self.config.lr / (1 - self.config.momentum)
            self.shares = self.penalty.shares(rate)

    def finish(self, task: TaskData) -> None:
        """Drop what served this task only."""
        super().finish(task)
        self.shares = {}

    def observe(self, batch: Batch) -> Tensor:
        """Step down the data's loss, then down the penalty; return both losses as they were before.

        The gradient step sees the data alone; the penalty's own proximal step follows, so that a large strength is stable.
        """
        if self.tasks == 0:
            return super().observe(batch)
        weights = self.weights
        penalty = self.doubled * self.config.strength * self.penalty.value(weights)
        loss = super().observe(batch)
        self.penalty.leave(weights, self.shares)
        return loss + penalty

    def scaled(self, task: TaskData) -> Iterator[tuple[Tensor, Tensor | None]]:
        """A task's inputs as the net sees them, with their weights, a part at a time."""
        for batch in task.batches(AT_ONCE):
            yield self.scale(batch.x), batch.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits of scaled inputs over the classes seen."""
        return self.score(x)[:, : self.seen]
