"""What methods with a reservoir of earlier samples share: every step also sees a batch from memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.config import LEARNING_RATES, NOT_NEGATIVE, Range
from cldnet.methods.gradient import GradientConfig, GradientLearner
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.buffer import Exemplars, Reservoir


@dataclass(frozen=True)
class RehearsalConfig(GradientConfig):
    """Settings of replay: number of exemplars that are kept, and that are replayed per step."""

    momentum: float = 0.0  # none of these methods' authors has any
    memory: int = 200
    replay: int = 32

    limits: ClassVar = {"memory": NOT_NEGATIVE, "replay": NOT_NEGATIVE}


class RehearsalLearner(GradientLearner, ABC):
    """Fine-tuning with a reservoir. A method says what its loss is on a stream batch, and draws from the buffer as it needs.

    The reservoir holds inputs without augmentation, with the logits that they had when they came if ``keeps_logits`` is set;
    replayed samples are augmented again.
    """

    traits = Traits(rehearsal_free=False, constant_size=True)
    kinds: ClassVar[Mapping[str, str]] = {**GradientLearner.kinds, "buffer": "exemplars"}
    ranges: ClassVar[Mapping[str, Range]] = {"lr": LEARNING_RATES}
    #: Whether the reservoir also holds the logits of its samples.
    keeps_logits: ClassVar[bool] = False
    config_class: ClassVar[type[Any]] = RehearsalConfig
    config: RehearsalConfig

    def __init__(self, net: nn.Module, setting: Setting, config: RehearsalConfig) -> None:
        super().__init__(net, setting, config)
        self.buffer = self._empty(0, torch.zeros(0, *setting.input_shape))

    def _empty(self, size: int, like: Tensor) -> Reservoir:
        return Reservoir(size, like, self.setting.capacity if self.keeps_logits else 0)

    def start(self, task: TaskData) -> None:
        """Make the buffer once the inputs' type is known."""
        super().start(task)
        if self.tasks == 0:
            self.buffer = self._empty(self.config.memory, task.x)

    @abstractmethod
    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Loss of a step, on a stream batch and what is replayed, and the stream batch's logits over all outputs."""

    def replayed(self, batch: Batch) -> Exemplars:
        """Draw exemplars for a step, augmented as the stream batch is."""
        drawn = self.buffer.sample(self.config.replay, self.generator)
        return drawn if batch.augment is None else drawn._replace(x=batch.augment(drawn.x, self.generator))

    def observe(self, batch: Batch) -> Tensor:
        """Take a step, then offer the batch to the buffer."""
        loss, logits = self.replay_loss(batch)
        self.descend(loss)
        self.remember(batch, logits)
        return loss.detach()

    def remember(self, batch: Batch, logits: Tensor) -> None:
        """Offer a stream batch to the buffer; later epochs would offer the same samples again."""
        if batch.epoch == 0:
            self.buffer.add(batch.plain, batch.y, self.generator, logits if self.keeps_logits else None)

    def upgraded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace("reservoir.", "buffer.", 1): tensor for name, tensor in state.items()}  # until version 0.1

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        self.buffer = Reservoir.like_state(state, "buffer.")
