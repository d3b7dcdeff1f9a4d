"""EWC by the common shortcut: the square of a batch's mean gradient stands for the Fisher information.

``F_t = mean over batches of (∂/∂θ mean over the batch of −log p(y|x))²``, with the true labels, as several toolboxes have it.
Gradients cancel within a batch before they are squared, so ``F_t`` is smaller than the Fisher information, by about the
batch's size where a task is learned well, and a strength means something else than it does for EWC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cldnet.methods.gradient import weighted_mean
from cldnet.methods.learner import TaskData, Traits
from cldnet.methods.parts.fisher import batched_fisher, cross_entropies
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["EWCBatched", "EWCBatchedConfig"]


@dataclass(frozen=True)
class EWCBatchedConfig(QuadraticConfig):
    """Settings of EWC with a batched Fisher.

    Attributes
    ----------
    fisher_batch : int
        Samples whose gradients are averaged before they are squared.
    """

    fisher_batch: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.fisher_batch >= 1:
            raise ValueError(f"fisher_batch={self.fisher_batch} should be at least 1.")


class EWCBatched(QuadraticLearner):
    """Elastic weight consolidation with the squares of batches' mean gradients, for the true labels.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> build_learner("ewc-batched", Setting((4,), capacity=2, seed=0)).config.fisher_batch
    32
    """

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "penalty": "fisher"}
    config_class = EWCBatchedConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(10.0, 1e9)}
    config: EWCBatchedConfig

    def finish(self, task: TaskData) -> None:
        """Add the squares of the batches' gradients, anchored at the weights as they are now."""
        super().finish(task)

        def loss(x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
            return weighted_mean(cross_entropies(self(x), y), weight)

        # In random order: data that come sorted by class would make batches of one class.
        order = torch.randperm(len(task), generator=self.generator).to(task.x.device)
        batches = task.epoch(order, self.config.fisher_batch, 0, 1)
        scaled = ((self.scale(batch.x), batch.y, batch.weight) for batch in batches)
        self.penalty.add(batched_fisher(loss, dict(self.named_parameters()), scaled), self.weights)
