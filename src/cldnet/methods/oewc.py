"""Online EWC (Schwarz et al., ICML 2018): one Fisher diagonal that fades, and the latest weights as the only anchor.

``F ← γ F + F_t`` at a task's end, then ``L + λ/2 Σ_i F_i (θ_i − θ*_i)²`` with ``θ*`` the weights at the last task's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cldnet.methods.learner import TaskData, Traits
from cldnet.methods.parts.fisher import fisher
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["OnlineEWC", "OnlineEWCConfig"]


@dataclass(frozen=True)
class OnlineEWCConfig(QuadraticConfig):
    """Settings of Online EWC.

    Attributes
    ----------
    gamma : float
        γ, what is kept of the Fisher information of earlier tasks when one is added; 1 for all of it.
    """

    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma} should lie in [0, 1].")


class OnlineEWC(QuadraticLearner):
    """EWC with one running Fisher information, per sample with labels drawn from the model.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> build_learner("oewc", Setting((4,), capacity=2, seed=0), {"gamma": 0.9}).config.gamma
    0.9
    """

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "penalty": "fisher"}
    config_class = OnlineEWCConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(10.0, 1e9), "gamma": LogUniform(0.3, 1.0)}
    config: OnlineEWCConfig

    def finish(self, task: TaskData) -> None:
        """Let the Fisher information fade, add the task's, and move the anchor here."""
        super().finish(task)
        new = fisher(self, self.setting.input_shape, self.scaled(task), self.generator)  # F_t
        old = self.penalty.importance
        self.penalty.replace({name: self.config.gamma * old[name] + new[name] for name in new}, self.weights)
