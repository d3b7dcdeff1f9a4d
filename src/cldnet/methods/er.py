"""ER (experience replay; Chaudhry et al. 2019): every batch is joined by one drawn from a reservoir of earlier examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.gradient import GradientConfig, GradientLearner
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.reservoir import Reservoir
from cldnet.methods.ranges import LEARNING_RATES, Whole

__all__ = ["ER", "ERConfig"]


@dataclass(frozen=True)
class ERConfig(GradientConfig):
    """Settings of replay: examples kept, and examples replayed a step."""

    memory: int = 200
    replay: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.memory >= 0 and self.replay >= 0):
            raise ValueError(f"memory={self.memory} and replay={self.replay} should not be negative.")


class ER(GradientLearner):
    """Fine-tuning on the stream's batch and a batch from memory. It keeps training examples, and says so."""

    traits = Traits(rehearsal_free=False, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "reservoir": "exemplars"}
    config_class = ERConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "replay": Whole(8, 128, log=True)}
    config: ERConfig

    def __init__(self, net: nn.Module, setting: Setting, config: ERConfig) -> None:
        super().__init__(net, setting, config)
        self.reservoir = Reservoir(0, torch.zeros(0, *setting.input_shape))

    def start(self, task: TaskData) -> None:
        """Make the memory when it is known what an input looks like."""
        super().start(task)
        if self.tasks == 0:
            self.reservoir = Reservoir(self.config.memory, task.x)

    def observe(self, batch: Batch) -> Tensor:
        """Step on the batch together with a replayed one, then offer the batch to the memory.

        The memory holds inputs as they were before augmentation; what is replayed is augmented afresh.
        """
        joined = batch
        if len(self.reservoir):
            joined = batch.joined(*self.reservoir.sample(self.config.replay, self.generator), self.generator)
        loss = super().observe(joined)
        if batch.epoch == 0:  # later epochs would offer the same examples again
            self.reservoir.add(batch.plain, batch.y, self.generator)
        return loss

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        """Make room for the memory that the state holds."""
        self.reservoir = Reservoir(len(state["reservoir.x"]), state["reservoir.x"])
