"""LwF, learning without forgetting, for class-IL: the net as it was before the task is the teacher.

``L + λ T² KL(softmax(f*(x)/T) ‖ softmax(f(x)/T))`` on the new task's inputs, over the logits of the classes that the teacher
``f*`` knew. (Li & Hoiem write it as a cross-entropy without the T²: the same gradient for ``λ / T²``.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import FINITE_NOT_NEGATIVE, FINITE_POSITIVE, LEARNING_RATES, LogUniform
from cldnet.methods.gradient import GradientConfig, GradientLearner, weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.teacher import Teacher


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``T² KL(softmax(teacher/T) ‖ softmax(logits/T))``, one number per sample; zero where both are the same.

    The factor T² keeps the gradient's size independent of the temperature (Hinton et al. 2015).
    """
    student, wanted = F.log_softmax(logits / temperature, 1), F.log_softmax(teacher / temperature, 1)
    return temperature**2 * F.kl_div(student, wanted, reduction="none", log_target=True).sum(1)


@dataclass(frozen=True)
class LwFConfig(GradientConfig):
    """Settings of learning without forgetting."""

    strength: float = 1.0  # λ, the weight of the distillation
    temperature: float = 2.0  # T, of teacher and net

    limits: ClassVar = {"strength": FINITE_NOT_NEGATIVE, "temperature": FINITE_POSITIVE}


class LwF(GradientLearner):
    """Fine-tuning while the outputs for old classes stay near those of the net before the task.

    References
    ----------
    Z. Li, D. Hoiem, "Learning without Forgetting", ECCV 2016. https://arxiv.org/abs/1606.09282
    """

    title = "LwF"
    summary = "learning without forgetting: distillation from the last net (ECCV 2016)"
    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {**GradientLearner.kinds, "teacher": "teacher", "taught": "teacher"}
    config_class = LwFConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(0.1, 100.0)}
    config: LwFConfig

    def __init__(self, net: nn.Module, setting: Setting, config: LwFConfig) -> None:
        super().__init__(net, setting, config)
        self.teacher = Teacher(self)  # f*
        self.taught: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))  # number of classes that the teacher knows

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the classes seen, and distillation over those that the teacher knows."""
        known = int(self.taught)
        x = self.scale(batch.x)
        logits = self.score(x)[:, : self.seen]
        losses = F.cross_entropy(logits, batch.y, reduction="none")
        if known > 0:
            distance = distillation(logits[:, :known], self.teacher(self, x)[:, :known], self.config.temperature)
            losses = losses + self.config.strength * distance
        return weighted_mean(losses, batch.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of scaled inputs; the teacher calls it with its own weights."""
        return self.score(x)

    def finish(self, task: TaskData) -> None:
        """Make the present net the teacher of the next task."""
        super().finish(task)
        self.teacher.copy_from(self)
        self.taught.fill_(self.seen)
