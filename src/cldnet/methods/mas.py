"""MAS, memory aware synapses (Aljundi et al., ECCV 2018): a weight matters by how much the outputs depend on it.

``Ω_i = mean over samples of |∂ ‖f(x)‖₂² / ∂θ_i|``, the squared norm of the logits over the classes seen, one gradient a sample;
no labels are needed. It adds up over tasks. The next ones minimise ``L + λ Σ_i Ω_i (θ_i − θ*_i)²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from cldnet.methods.learner import TaskData, Traits
from cldnet.methods.parts.per_sample import PerSample, mean_powers
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["MAS", "MASConfig"]


@dataclass(frozen=True)
class MASConfig(QuadraticConfig):
    """Settings of MAS; ``strength`` is the paper's λ."""

    strength: float = 1.0


class MAS(QuadraticLearner):
    """Memory aware synapses, with the squared norm of the paper (some toolboxes take the norm itself).

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> build_learner("mas", Setting((4,), capacity=2, seed=0)).config.strength
    1.0
    """

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "penalty": "importance"}
    config_class = MASConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(0.001, 1e4)}
    config: MASConfig
    doubled = 2.0  # λ Σ Ω (θ − θ*)², without a half

    def finish(self, task: TaskData) -> None:
        """Add how sensitive the outputs are to each weight, and move the anchor here."""
        super().finish(task)
        magnitudes = PerSample(self, self.setting.input_shape, _squared_norms, power=1)
        new = mean_powers(magnitudes, self.scaled(task), _no_targets)  # Ω of this task
        old = self.penalty.importance
        self.penalty.replace({name: old[name] + new[name] for name in new}, self.weights)


def _squared_norms(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.square().sum(1)


def _no_targets(outputs: Tensor) -> Tensor:
    return outputs.new_zeros(len(outputs))
