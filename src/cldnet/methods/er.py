"""ER, experience replay: every batch is joined by one drawn from a reservoir of earlier samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.config import LEARNING_RATES, NOT_NEGATIVE, Whole
from cldnet.methods.gradient import GradientConfig, GradientLearner
from cldnet.methods.learner import Batch, Setting, TaskData, Traits


class Reservoir(nn.Module):
    """A uniform sample of a stream: ``size`` exemplars with shape and dtype of ``like`` (Vitter's algorithm R)."""

    def __init__(self, size: int, like: Tensor) -> None:
        super().__init__()
        self.x: Tensor = nn.Buffer(like.new_zeros(size, *like.shape[1:]))
        self.y: Tensor = nn.Buffer(torch.zeros(size, dtype=torch.int64, device=like.device))
        self.met: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return min(int(self.met), len(self.x))

    def add(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Offer samples to the reservoir."""
        if x.dtype != self.x.dtype:
            raise ValueError(f"The memory holds {self.x.dtype}, but X has {x.dtype}: convert X to {self.x.dtype}.")
        met = int(self.met)
        # Sample number m gets a random place among the first m + 1, and is dropped if the buffer has no such place.
        numbers = torch.arange(met, met + len(x))
        drawn = (torch.rand(len(x), generator=generator, dtype=torch.float64) * (numbers + 1)).long()
        places = torch.where(numbers < len(self.x), numbers, drawn)
        kept = places < len(self.x)
        latest = torch.full((len(self.x),), -1).scatter_reduce(0, places[kept], torch.arange(len(x))[kept], "amax")
        changed = latest >= 0  # if several samples drew one place, the last one gets it
        self.x[changed], self.y[changed] = x[latest[changed]], y[latest[changed]]
        self.met += len(x)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw exemplars without replacement."""
        index = torch.randperm(len(self), generator=generator)[:count].to(self.x.device)
        # index_select copies whole samples, several times faster than x[index].
        return self.x.index_select(0, index), self.y.index_select(0, index)


@dataclass(frozen=True)
class ERConfig(GradientConfig):
    """Settings of replay: number of exemplars that are kept, and that are replayed per step."""

    memory: int = 200
    replay: int = 32

    limits: ClassVar = {"memory": NOT_NEGATIVE, "replay": NOT_NEGATIVE}


class ER(GradientLearner):
    """Fine-tuning on the stream's batch and a batch from memory. It keeps training samples, and says so.

    References
    ----------
    A. Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019. https://arxiv.org/abs/1902.10486
    """

    title = "ER (replay)"
    summary = "experience replay from a reservoir (2019)"
    traits = Traits(rehearsal_free=False, constant_size=True)
    kinds: ClassVar = {**GradientLearner.kinds, "reservoir": "exemplars"}
    config_class = ERConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "replay": Whole(8, 128, log=True)}
    config: ERConfig

    def __init__(self, net: nn.Module, setting: Setting, config: ERConfig) -> None:
        super().__init__(net, setting, config)
        self.reservoir = Reservoir(0, torch.zeros(0, *setting.input_shape))

    def start(self, task: TaskData) -> None:
        """Make the memory once the inputs' type is known."""
        super().start(task)
        if self.tasks == 0:
            self.reservoir = Reservoir(self.config.memory, task.x)

    def observe(self, batch: Batch) -> Tensor:
        """Take a step on the batch joined by a replayed one, then offer the batch to the memory.

        The memory holds inputs without augmentation; replayed samples are augmented again.
        """
        joined = batch
        if len(self.reservoir):
            joined = batch.joined(*self.reservoir.sample(self.config.replay, self.generator), self.generator)
        loss = super().observe(joined)
        if batch.epoch == 0:  # later epochs would offer the same samples again
            self.reservoir.add(batch.plain, batch.y, self.generator)
        return loss

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        self.reservoir = Reservoir(len(state["reservoir.x"]), state["reservoir.x"])
