"""EWC, elastic weight consolidation, and two variants: a quadratic penalty on moving weights that earlier tasks need.

``L + λ/2 Σ_t Σ_i F_t,i (θ_i − θ*_t,i)²`` with one Fisher diagonal ``F_t`` and one anchor ``θ*_t`` per task. The sum over tasks
is again one quadratic (up to a constant), so the state does not grow with the number of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cldnet.methods.config import AT_LEAST_ONE, LEARNING_RATES, SHARE, LogUniform
from cldnet.methods.gradient import GradientLearner, weighted_cross_entropy
from cldnet.methods.learner import TaskData
from cldnet.methods.parts.importance import batched_fisher, fisher
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner


class EWC(QuadraticLearner):
    """Elastic weight consolidation. The Fisher information is per sample, with labels drawn from the model.

    References
    ----------
    J. Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", PNAS 2017.
    https://arxiv.org/abs/1612.00796
    """

    title = "EWC"
    summary = "elastic weight consolidation, per-sample Fisher (PNAS 2017)"
    version = 2
    kinds: ClassVar = {**GradientLearner.kinds, "penalty": "fisher"}
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(10.0, 1e9)}

    def finish(self, task: TaskData) -> None:
        """Add the task's Fisher information, anchored at the present weights."""
        super().finish(task)
        importance = fisher(self, self.setting.input_shape, self.scaled(task), self.generator)  # F_t
        self.penalty.add(importance, self.weights)  # Σ_t F_t (θ − θ*_t)²


@dataclass(frozen=True)
class EWCBatchedConfig(QuadraticConfig):
    """Settings of EWC with a batched Fisher."""

    fisher_batch: int = 32  # samples whose gradients are averaged before they are squared

    limits: ClassVar = {"fisher_batch": AT_LEAST_ONE}


class EWCBatched(QuadraticLearner):
    """EWC with a common shortcut: squares of batches' mean gradients, with the true labels, instead of the Fisher information.

    ``F_t = mean over batches of (∂/∂θ mean over the batch of −log p(y|x))²``. Gradients cancel within a batch before they are
    squared, so ``F_t`` is smaller than the Fisher information, by about the batch size where a task is learned well. A
    strength therefore means something else than for `EWC`.

    References
    ----------
    G. M. van de Ven, "On the Computation of the Fisher Information in Continual Learning", 2025.
    https://arxiv.org/abs/2502.11756
    """

    title = "EWC (batched Fisher)"
    summary = "EWC with squares of batches' mean gradients"
    kinds: ClassVar = EWC.kinds
    config_class = EWCBatchedConfig
    ranges: ClassVar = EWC.ranges
    config: EWCBatchedConfig

    def finish(self, task: TaskData) -> None:
        """Add the squares of the batches' gradients, anchored at the present weights."""
        super().finish(task)

        def loss(x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
            return weighted_cross_entropy(self(x), y, weight)

        # In random order: batches of sorted data would have one class each.
        order = torch.randperm(len(task), generator=self.generator).to(task.x.device)
        batches = task.epoch(order, self.config.fisher_batch, 0, 1)
        scaled = ((self.scale(batch.x), batch.y, batch.weight) for batch in batches)
        self.penalty.add(batched_fisher(loss, dict(self.named_parameters()), scaled), self.weights)


@dataclass(frozen=True)
class OnlineEWCConfig(QuadraticConfig):
    """Settings of Online EWC."""

    gamma: float = 1.0  # γ, the share of earlier tasks' Fisher information that is kept when a task is added

    limits: ClassVar = {"gamma": SHARE}


class OnlineEWC(QuadraticLearner):
    """EWC with one decaying Fisher diagonal, ``F ← γ F + F_t``, and the latest weights as the only anchor.

    References
    ----------
    J. Schwarz et al., "Progress & Compress: A scalable framework for continual learning", ICML 2018.
    https://arxiv.org/abs/1805.06370
    """

    title = "Online EWC"
    summary = "Online EWC: one decaying Fisher, the latest anchor (ICML 2018)"
    kinds: ClassVar = EWC.kinds
    config_class = OnlineEWCConfig
    ranges: ClassVar = {**EWC.ranges, "gamma": LogUniform(0.3, 1.0)}
    config: OnlineEWCConfig

    def finish(self, task: TaskData) -> None:
        """Decay the Fisher information, add the task's, and move the anchor to the present weights."""
        super().finish(task)
        new = fisher(self, self.setting.input_shape, self.scaled(task), self.generator)  # F_t
        old = self.penalty.importance
        self.penalty.replace({name: self.config.gamma * old[name] + new[name] for name in new}, self.weights)
