"""OWM (Zeng et al., Nature Machine Intelligence 2019): gradients of a net with a linear head, through projectors.

Per batch and layer, with ``r`` the batch's mean input (of a convolution, every patch of the mean map):

- ``P ← P − P r rᵀ P / (α + rᵀ P r)``, from ``P = I`` on, and never reset;
- ``W ← W − λ ∇W P``, with momentum, clipped after the projection.

α falls within each task, so that a task can be learned before its own inputs are protected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cldnet.methods.config import config_to_json
from cldnet.methods.parts.alpha import Alpha, ConstantAlpha, DecayingAlpha, LayerAlphas, PerTask
from cldnet.methods.projected import ProjectedConfig, ProjectedLearner
from cldnet.methods.ranges import Choice, LogUniform

__all__ = ["OWM", "RELEASED_CNN", "RELEASED_MLP", "SEARCHED", "OWMConfig"]

#: α of the released code for an MLP with two hidden layers (batches of 40, 20 epochs, learning rate 0.2).
RELEASED_MLP = LayerAlphas((DecayingAlpha(0.9, 0.001), DecayingAlpha(1.0, 0.1), ConstantAlpha(0.6)))
#: α of the released code for the CNN (batches of 64, 25 epochs, learning rate 0.02; fed by `EverySecondPatch`).
RELEASED_CNN = LayerAlphas(
    (*3 * (DecayingAlpha(1.0, 1e-5),), DecayingAlpha(1.0, 1e-4), DecayingAlpha(1.0, 0.01), DecayingAlpha(1.0, 0.1))
)


#: α that is searched: where it starts and how far it falls. It is stated for 200 updates a task, however many there are, so
#: that what was chosen on a part of the data holds for all of it.
SEARCHED = tuple(
    PerTask(DecayingAlpha(start, decay)) for start in (1.0, 3.0, 10.0, 30.0) for decay in (0.1, 0.01, 0.001)
)


@dataclass(frozen=True)
class OWMConfig(ProjectedConfig):
    """Settings of OWM: what feeds the projectors, and how strongly.

    Attributes
    ----------
    alpha
        The rule for α; `RELEASED_MLP` and `RELEASED_CNN` are those of the authors' code.
    """

    alpha: Alpha = PerTask(DecayingAlpha(10.0, 0.01))


class OWM(ProjectedLearner):
    """Orthogonal weight modification of every layer, the head included.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("owm", Setting((4,), capacity=3, seed=0), {"alpha": RELEASED_MLP}, "mlp")
    >>> [tuple(layer.P.shape) for layer in learner.projection.layers]
    [(1, 5, 5), (1, 401, 401), (1, 401, 401)]
    """

    config_class = OWMConfig
    # Lower than the rates of other methods: on FashionMNIST the best one lay at the lower end of theirs, 0.003.
    ranges: ClassVar = {"lr": LogUniform(0.0005, 0.3), "alpha": Choice(tuple(map(config_to_json, SEARCHED)))}
    config: OWMConfig

    @property
    def alpha(self) -> Alpha:
        """The rule of the configuration."""
        return self.config.alpha
