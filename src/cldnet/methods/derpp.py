"""DER++, dark experience replay: stored logits are targets, stored labels too.

``CE(f(x), y) + α ‖f(x') − z'‖² / C + β CE(f(x''), y'')`` with two independent draws from a reservoir; ``z'`` are the logits
that ``x'`` had when it was stored. All terms run over all C outputs, as in the authors' code: logits of classes that are still
to come are lowered, the stored logits keep that, and new classes find it harder to take over old samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from cldnet.methods.config import FINITE_NOT_NEGATIVE
from cldnet.methods.gradient import weighted_cross_entropy
from cldnet.methods.learner import Batch
from cldnet.methods.rehearsal import RehearsalConfig, RehearsalLearner


@dataclass(frozen=True)
class DERppConfig(RehearsalConfig):
    """Settings of DER++."""

    distil: float = 0.3  # α, the weight of stored logits
    label: float = 0.5  # β, the weight of stored labels

    limits: ClassVar = {"distil": FINITE_NOT_NEGATIVE, "label": FINITE_NOT_NEGATIVE}


class DERpp(RehearsalLearner):
    """Dark experience replay with labels.

    References
    ----------
    P. Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple Baseline", NeurIPS 2020.
    https://arxiv.org/abs/2004.07211
    """

    title = "DER++"
    summary = "dark experience replay: stored logits and labels (NeurIPS 2020)"
    keeps_logits = True
    config_class = DERppConfig
    config: DERppConfig

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.score(self.scale(batch.x))
        loss = self.stream_loss(batch, logits)
        if len(self.buffer):
            loss = loss + self.config.distil * self.stored_logits_loss(batch)
            old = self.replayed(batch)  # an independent draw
            loss = loss + self.config.label * weighted_cross_entropy(self.score(self.scale(old.x)), old.y, None)
        return loss, logits

    def stream_loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """Cross-entropy of the stream batch over all outputs."""
        return weighted_cross_entropy(logits, batch.y, batch.weight)

    def stored_logits_loss(self, batch: Batch) -> Tensor:
        """Mean squared distance of a draw's logits from those that were stored."""
        old = self.replayed(batch)
        return F.mse_loss(self.score(self.scale(old.x)), old.logits)
