"""AOP (Guo et al., AAAI 2022): OWM with an α that adapts to the layer's input.

Per batch and layer, with ``r`` the batch's mean input and λ the task's progress from 0 to 1:

- ``α = (mean(r)² + var(r))^λ`` for a fully connected layer, over the entries of ``r``: from 1 down to the energy of ``r``;
  OWM's ``α = 1e-5^λ`` for a convolution;
- ``P ← P − P r rᵀ P / (α + rᵀ P r)``, then ``W ← W − λ ∇W P``, as in OWM.

The released code has this α for MNIST. Its CIFAR form, ``mean⁴ + var``, is not taken: it adds numbers of different units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cldnet.methods.parts.alpha import AdaptiveAlpha, Alpha, DecayingAlpha, KindAlphas, PerTask
from cldnet.methods.projected import ProjectedConfig, ProjectedLearner
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["AOP", "AOPConfig"]


@dataclass(frozen=True)
class AOPConfig(ProjectedConfig):
    """Settings of AOP.

    Attributes
    ----------
    scale : float
        Factor of every α; the paper has 1.
    updates : int
        Updates a task that the scale is meant for: with more of them each weighs less, see `PerTask`. The paper has no such
        bound, which is ``updates`` as many as a task has.
    """

    scale: float = 1.0
    updates: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.scale > 0:
            raise ValueError(f"scale={self.scale} should be a positive number.")
        if not self.updates >= 1:
            raise ValueError(f"updates={self.updates} should be at least 1.")


class AOP(ProjectedLearner):
    """Adaptive orthogonal projection of every layer's gradient, the head's included.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("aop", Setting((4,), capacity=3, seed=0), {"scale": 0.5}, "mlp")
    >>> learner.alpha.of_layer(learner.projection.places["head"])
    PerTask(alpha=AdaptiveAlpha(scale=0.5), updates=200)
    """

    config_class = AOPConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "scale": LogUniform(0.03, 10.0)}
    config: AOPConfig

    @property
    def alpha(self) -> Alpha:
        """``scale · (mean(r)² + var(r))^λ``, and ``scale · 1e-5^λ`` for a convolution."""
        scale = self.config.scale
        return PerTask(KindAlphas(AdaptiveAlpha(scale), convolution=DecayingAlpha(scale, 1e-5)), self.config.updates)
