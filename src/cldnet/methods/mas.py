"""MAS, memory aware synapses: a weight is important if the outputs depend on it.

``Ω_i = mean over samples of |∂ ‖f(x)‖₂² / ∂θ_i|``, the squared norm of the logits over the classes seen, one gradient per
sample; no labels are needed. It adds up over tasks. The next ones minimise ``L + λ Σ_i Ω_i (θ_i − θ*_i)²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cldnet.methods.config import LEARNING_RATES, LogUniform
from cldnet.methods.gradient import GradientLearner
from cldnet.methods.learner import TaskData
from cldnet.methods.parts.importance import PerSample, mean_powers
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner


@dataclass(frozen=True)
class MASConfig(QuadraticConfig):
    """Settings of MAS; ``strength`` is the paper's λ."""

    strength: float = 1.0


class MAS(QuadraticLearner):
    """Memory aware synapses, with the squared norm of the paper (some toolboxes take the norm itself).

    References
    ----------
    R. Aljundi et al., "Memory Aware Synapses: Learning what (not) to forget", ECCV 2018. https://arxiv.org/abs/1711.09601
    """

    title = "MAS"
    summary = "memory aware synapses: importance by sensitivity (ECCV 2018)"
    kinds: ClassVar = {**GradientLearner.kinds, "penalty": "importance"}
    config_class = MASConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(0.001, 1e4)}
    config: MASConfig
    factor = 2.0  # λ Σ Ω (θ − θ*)², without a half

    def finish(self, task: TaskData) -> None:
        """Add the sensitivity of the outputs to each weight, and move the anchor to the present weights."""
        super().finish(task)
        magnitudes = PerSample(self, self.setting.input_shape, lambda outputs, _: outputs.square().sum(1), power=1)
        new = mean_powers(magnitudes, self.scaled(task), lambda outputs: outputs[:, 0])  # Ω; targets are unused
        old = self.penalty.importance
        self.penalty.replace({name: old[name] + new[name] for name in new}, self.weights)
