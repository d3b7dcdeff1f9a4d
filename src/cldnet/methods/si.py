"""SI, synaptic intelligence (Zenke et al., ICML 2017): a weight matters by how much its way brought the loss down.

While a task is learned, ``ω_i ← ω_i − g_i Δθ_i`` with the data loss's gradient ``g`` and each step ``Δθ``: the sum of ``ω``
over all weights is the decrease of the loss, for small steps. At its end ``Ω_i ← Ω_i + ω_i / ((θ_i − θ_i(start))² + ξ)``.
The next tasks minimise ``L + c Σ_i Ω_i (θ_i − θ*_i)²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.tensors import NamedTensors
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["SI", "SIConfig"]


@dataclass(frozen=True)
class SIConfig(QuadraticConfig):
    """Settings of SI; ``strength`` is the paper's c.

    Attributes
    ----------
    damping : float
        ξ, which bounds the importance of a weight that hardly moved.
    """

    strength: float = 1.0
    damping: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.damping > 0:
            raise ValueError(f"damping={self.damping} should be a positive number.")


class SI(QuadraticLearner):
    """Synaptic intelligence: importance is gathered on the way, from the gradients that are there anyhow.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> build_learner("si", Setting((4,), capacity=2, seed=0), {"damping": 0.5}).config.damping
    0.5
    """

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "penalty": "importance", "path": "importance"}
    config_class = SIConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(0.01, 1e6), "damping": LogUniform(0.001, 1.0)}
    config: SIConfig
    doubled = 2.0  # c Σ Ω (θ − θ*)², without a half

    def __init__(self, net: nn.Module, setting: Setting, config: SIConfig) -> None:
        super().__init__(net, setting, config)
        self.path = NamedTensors(self.weights)  # ω

    def start(self, task: TaskData) -> None:
        """Set out from the weights as they are, which are also those at the last task's end."""
        super().start(task)
        self.penalty.replace(dict(self.penalty.importance.items()), self.weights)
        for _, path in self.path.items():
            path.zero_()

    def observe(self, batch: Batch) -> Tensor:
        """Take a step and add what it did to the data's loss, weight by weight.

        Only the data's loss has a gradient here, as it should: the penalty moves weights without one. (A gradient above
        ``clip`` counts as it was followed, clipped.)
        """
        before = {name: weight.clone() for name, weight in self.weights.items()}
        loss = super().observe(batch)
        for name, parameter in self.named_parameters():
            if parameter.grad is not None:
                moved = before[name].sub_(parameter.detach())  # −Δθ
                self.path[name].addcmul_(parameter.grad, moved)  # ω ← ω − g Δθ
        return loss

    def finish(self, task: TaskData) -> None:
        """Turn the way into importance, ``Ω ← Ω + ω / ((Δθ)² + ξ)``, and move the anchor here."""
        super().finish(task)
        importance = {}
        for name, weight in self.weights.items():
            distance = weight - self.penalty.anchor[name]
            omega = self.penalty.importance[name] + self.path[name] / (distance.square() + self.config.damping)
            # A weight whose way brought the loss up has a negative ω, which would push it away from its anchor.
            importance[name] = omega.clamp_min(0.0)
        self.penalty.replace(importance, self.weights)
