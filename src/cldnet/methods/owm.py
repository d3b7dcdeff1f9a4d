"""OWM (Zeng et al., Nature Machine Intelligence 2019): gradients of a net with a linear head, through projectors.

Per batch and layer, with ``r`` the batch's mean input: ``P ← P − P r rᵀ P / (α + rᵀ P r)``, then the gradient is projected
by ``P``. α falls within each task, so that a task can be learned before its own inputs are protected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import check_parts
from cldnet.methods.gradient import GradientConfig, GradientLearner, weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.alpha import Alpha, DecayingAlpha
from cldnet.methods.parts.projection import BatchMean, Feed, Projection, descend
from cldnet.methods.ranges import ALPHAS, LEARNING_RATES

__all__ = ["OWM", "OWMConfig"]


@dataclass(frozen=True)
class OWMConfig(GradientConfig):
    """Settings of OWM: what feeds the projectors, and how strongly."""

    feed: Feed = BatchMean()
    alpha: Alpha = DecayingAlpha()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self)


class OWM(GradientLearner):
    """Orthogonal weight modification of every layer, the head included."""

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "projection": "projectors"}
    config_class = OWMConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "alpha": ALPHAS}
    config: OWMConfig

    def __init__(self, net: nn.Module, setting: Setting, config: OWMConfig) -> None:
        super().__init__(net, setting, config)
        whole = nn.Sequential()
        whole.add_module("net", self.net)
        whole.add_module("head", self.head)
        self.projection = Projection(whole, setting.input_shape)

    def projector_sums(self) -> Mapping[str, Tensor]:
        """``A`` of every layer's projector."""
        return self.projection.sums()

    def start(self, task: TaskData) -> None:
        """Begin with an empty momentum; what cannot be projected learns in the first task only."""
        super().start(task)
        if self.tasks > 0:
            self.projection.freeze_unprotected(self.net)

    def observe(self, batch: Batch) -> Tensor:
        """Feed the projectors, then take one projected step."""
        batch = batch.without_zeros()
        if len(batch.x) == 0:
            return self.head.weight.new_zeros(())
        with self.projection.taps.watch() as flow:
            logits = self.score(self.scale(batch.x))[:, : self.seen]
        loss = weighted_mean(F.cross_entropy(logits, batch.y, reduction="none"), batch.weight)
        self.projection.absorb(flow, self.config.feed, self.config.alpha, batch.progress, batch.steps)
        descend(self.optimizer, self.projection.backward(flow, loss), self.config.clip)
        return loss.detach()

    def finish(self, task: TaskData) -> None:
        """Rebuild the projectors from their sums."""
        self.projection.rebuild()
        super().finish(task)
