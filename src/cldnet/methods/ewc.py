"""EWC (Kirkpatrick et al., PNAS 2017): a quadratic penalty on moving weights that earlier tasks needed.

``L + λ/2 Σ_t Σ_i F_t,i (θ_i − θ*_t,i)²`` with one Fisher diagonal ``F_t`` and one anchor ``θ*_t`` a task. The sum over tasks is
again one quadratic (up to a constant), so the state does not grow with the number of tasks.
"""

from __future__ import annotations

from typing import ClassVar

from cldnet.methods.learner import TaskData, Traits
from cldnet.methods.parts.fisher import fisher
from cldnet.methods.quadratic import QuadraticConfig, QuadraticLearner
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["EWC"]


class EWC(QuadraticLearner):
    """Elastic weight consolidation. The Fisher information is per sample, with labels drawn from the model.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> build_learner("ewc", Setting((4,), capacity=2, seed=0), {"strength": 100.0}).config.strength
    100.0
    """

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "penalty": "fisher"}
    config_class = QuadraticConfig
    version = 2
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(10.0, 1e9)}

    def finish(self, task: TaskData) -> None:
        """Add the task's Fisher information, anchored at the weights as they are now."""
        super().finish(task)
        importance = fisher(self, self.setting.input_shape, self.scaled(task), self.generator)  # F_t
        self.penalty.add(importance, self.weights)  # Σ_t F_t (θ − θ*_t)²
