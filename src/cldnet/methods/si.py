"""SI, synaptic intelligence: a weight is important if its changes brought the loss down.

While a task is learned, ``ω_i ← ω_i − g_i Δθ_i`` with the data loss's gradient ``g`` and each step ``Δθ``: the sum of ``ω``
over all weights is the decrease of the loss, for small steps. At its end ``Ω_i ← Ω_i + ω_i / ((θ_i − θ_i(start))² + ξ)``.
The next tasks minimise ``L + c Σ_i Ω_i (θ_i − θ*_i)²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cldnet.methods.config import LEARNING_RATES, POSITIVE, LogUniform
from cldnet.methods.gradient import GradientLearner, NamedTensors
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner


@dataclass(frozen=True)
class SIConfig(QuadraticConfig):
    """Settings of SI; ``strength`` is the paper's c."""

    strength: float = 1.0
    damping: float = 0.1  # ξ, which bounds the importance of a weight that hardly moved

    limits: ClassVar = {"damping": POSITIVE}


class SI(QuadraticLearner):
    """Synaptic intelligence: importance is gathered during training, from the gradients of the steps.

    References
    ----------
    F. Zenke, B. Poole, S. Ganguli, "Continual Learning Through Synaptic Intelligence", ICML 2017.
    https://arxiv.org/abs/1703.04200
    """

    title = "SI"
    summary = "synaptic intelligence: importance by path integral (ICML 2017)"
    kinds: ClassVar = {**GradientLearner.kinds, "penalty": "importance", "path": "importance"}
    config_class = SIConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(0.01, 1e6), "damping": LogUniform(0.001, 1.0)}
    config: SIConfig
    factor = 2.0  # c Σ Ω (θ − θ*)², without a half

    def __init__(self, net: nn.Module, setting: Setting, config: SIConfig) -> None:
        super().__init__(net, setting, config)
        self.path = NamedTensors(self.weights)  # ω

    def start(self, task: TaskData) -> None:
        """Anchor at the present weights, which are those at the end of the last task, and reset ``ω``."""
        super().start(task)
        self.penalty.replace(dict(self.penalty.importance.items()), self.weights)
        for _, path in self.path.items():
            path.zero_()

    def observe(self, batch: Batch) -> Tensor:
        """Take a step and add its effect on the data's loss to ``ω``.

        Only the data's loss has a gradient: the penalty moves weights without one. (A gradient above ``clip`` counts as
        clipped, as it was followed.)
        """
        before = {name: weight.clone() for name, weight in self.weights.items()}
        loss = super().observe(batch)
        for name, parameter in self.named_parameters():
            if parameter.grad is not None:
                moved = before[name].sub_(parameter.detach())  # −Δθ
                self.path[name].addcmul_(parameter.grad, moved)  # ω ← ω − g Δθ
        return loss

    def finish(self, task: TaskData) -> None:
        """Compute the importance, ``Ω ← Ω + ω / ((Δθ)² + ξ)``, and move the anchor to the present weights."""
        super().finish(task)
        importance = {}
        for name, weight in self.weights.items():
            distance = weight - self.penalty.anchor[name]
            omega = self.penalty.importance[name] + self.path[name] / (distance.square() + self.config.damping)
            importance[name] = omega.clamp_min(0.0)  # a negative ω would push a weight away from its anchor
        self.penalty.replace(importance, self.weights)
