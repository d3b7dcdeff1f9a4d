"""ER, experience replay: every batch is joined by one drawn from a reservoir of earlier samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cldnet.methods.config import LEARNING_RATES, Whole
from cldnet.methods.gradient import weighted_cross_entropy
from cldnet.methods.learner import Batch
from cldnet.methods.rehearsal import RehearsalConfig, RehearsalLearner


@dataclass(frozen=True)
class ERConfig(RehearsalConfig):
    """Settings of replay."""

    momentum: float = 0.9


class ER(RehearsalLearner):
    """Fine-tuning on the stream's batch and a batch from memory. It keeps training samples, and says so.

    References
    ----------
    A. Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019. https://arxiv.org/abs/1902.10486
    """

    title = "ER (replay)"
    summary = "experience replay from a reservoir (2019)"
    config_class = ERConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "replay": Whole(8, 128, log=True)}
    config: ERConfig

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        joined = batch
        if len(self.buffer):
            old = self.buffer.sample(self.config.replay, self.generator)
            joined = batch.joined(old.x, old.y, self.generator)
        logits = self.score(self.scale(joined.x))
        return weighted_cross_entropy(logits[:, : self.seen], joined.y, joined.weight), logits[: len(batch.x)]
