"""LwF, learning without forgetting (Li & Hoiem, ECCV 2016), for classes without tasks: the last net is the teacher.

``L + λ T² KL(softmax(f*(x)/T) ‖ softmax(f(x)/T))`` on the new task's inputs, over the logits of the classes that the teacher
``f*`` knew. (Li & Hoiem write it as a cross-entropy without the T²: the same gradient for ``λ / T²``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cldnet.methods.gradient import GradientConfig, GradientLearner, weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.distillation import distillation
from cldnet.methods.parts.tensors import NamedTensors
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["LwF", "LwFConfig"]


@dataclass(frozen=True)
class LwFConfig(GradientConfig):
    """Settings of learning without forgetting.

    Attributes
    ----------
    strength : float
        λ, the weight of the distillation.
    temperature : float
        T, of teacher and net.
    """

    strength: float = 1.0
    temperature: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.strength >= 0 and isfinite(self.strength)):
            raise ValueError(f"strength={self.strength} should be a finite number that is not negative.")
        if not (self.temperature > 0 and isfinite(self.temperature)):
            raise ValueError(f"temperature={self.temperature} should be a positive number.")


class LwF(GradientLearner):
    """Fine-tuning while the answers for old classes stay near those of the net as it was before the task.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> build_learner("lwf", Setting((4,), capacity=2, seed=0), {"strength": 3.0}).config.temperature
    2.0
    """

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "teacher": "teacher", "taught": "teacher"}
    config_class = LwFConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(0.1, 100.0)}
    config: LwFConfig

    taught: Tensor

    def __init__(self, net: nn.Module, setting: Setting, config: LwFConfig) -> None:
        super().__init__(net, setting, config)
        self.teacher = NamedTensors(self._trained)  # f*, there from the start so that the size is constant
        self.register_buffer("taught", torch.zeros((), dtype=torch.int64))  # class rows that the teacher knows

    @property
    def _trained(self) -> dict[str, Tensor]:
        """Weights and running statistics of net and head."""
        return {name: tensor for name, tensor in self.state_dict().items() if name.startswith(("net.", "head."))}

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the classes seen, and distillation over those that the teacher knows."""
        known = int(self.taught)
        x = self.scale(batch.x)
        logits = self.score(x)[:, : self.seen]
        losses = nn.functional.cross_entropy(logits, batch.y, reduction="none")
        if known > 0:
            far = distillation(logits[:, :known], self.teach(x)[:, :known], self.config.temperature)
            losses = losses + self.config.strength * far
        return weighted_mean(losses, batch.weight)

    @torch.no_grad()
    def teach(self, x: Tensor) -> Tensor:
        """Logits of the teacher for scaled inputs, as in evaluation: no dropout, no running statistics touched."""
        self.eval()
        logits: Tensor = functional_call(self, dict(self.teacher.items()), (x,), tie_weights=False)
        self.train()
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Logits of scaled inputs, for the teacher's weights in place of the learner's own."""
        return self.score(x)

    def finish(self, task: TaskData) -> None:
        """Let the net as it is now teach the next tasks."""
        super().finish(task)
        for name, tensor in self._trained.items():
            self.teacher[name].copy_(tensor)
        self.taught.fill_(self.seen)
