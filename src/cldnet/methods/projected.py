"""What OWM and AOP share: a net with a linear head whose every gradient goes through its layer's projector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cldnet.methods.config import check_parts
from cldnet.methods.gradient import GradientConfig, GradientLearner
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.alpha import Alpha
from cldnet.methods.parts.descent import descend
from cldnet.methods.parts.projection import BatchMean, Feed, Projection

__all__ = ["ProjectedConfig", "ProjectedLearner"]


@dataclass(frozen=True)
class ProjectedConfig(GradientConfig):
    """Settings of projected gradient descent.

    Attributes
    ----------
    lr : float
        Learning rate; smaller than without projectors, since what they do not protect yet is lost the quicker.
    feed
        What of a layer's input its projector absorbs.
    """

    lr: float = 0.02
    feed: Feed = BatchMean()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self)


class ProjectedLearner(GradientLearner, ABC):
    """A backbone with a linear head, all of it trained through projectors; a method says how strongly they absorb."""

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "projection": "projectors"}
    config_class = ProjectedConfig
    config: ProjectedConfig

    def __init__(self, net: nn.Module, setting: Setting, config: ProjectedConfig) -> None:
        super().__init__(net, setting, config)
        self.projection = Projection.in_turn(setting.input_shape, self.alpha, net=self.net, head=self.head)

    @property
    @abstractmethod
    def alpha(self) -> Alpha:
        """The method's rule for α: ``1/α`` is how much an input weighs in its layer's projector."""

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
            loss = self.loss(batch)
        # P ← P − P r rᵀ P / (α + rᵀ P r), then W ← W − λ ∇W P
        self.projection.absorb(flow, self.config.feed, self.alpha, batch.progress, batch.steps)
        descend(self.optimizer, self.projection.backward(flow, loss), self.config.clip)
        return loss.detach()

    def finish(self, task: TaskData) -> None:
        """Rebuild the projectors from their sums."""
        self.projection.rebuild()
        super().finish(task)
