"""OWM, orthogonal weight modification, and AOP: gradients of a net with a linear head, through projectors.

Per batch and layer, with ``r`` the batch's mean input (of a convolution, every patch of the mean map):

- ``P ← P − P r rᵀ P / (α + rᵀ P r)``, from ``P = I`` on, and never reset;
- ``W ← W − λ ∇W P``, with momentum, clipped after the projection.

α falls within each task, so that a task can be learned before its own inputs are protected. AOP adapts it to the input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cldnet.methods.config import AT_LEAST_ONE, LEARNING_RATES, POSITIVE, Choice, LogUniform, config_to_json
from cldnet.methods.gradient import GradientConfig, GradientLearner, descend
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.alpha import (
    AdaptiveAlpha,
    Alpha,
    ConstantAlpha,
    DecayingAlpha,
    KindAlphas,
    LayerAlphas,
    PerTask,
)
from cldnet.methods.parts.projection import BatchMean, Feed, Projection

#: α of OWM's released code for an MLP with two hidden layers (batches of 40, 20 epochs, learning rate 0.2).
RELEASED_MLP = LayerAlphas((DecayingAlpha(0.9, 0.001), DecayingAlpha(1.0, 0.1), ConstantAlpha(0.6)))
#: α of OWM's released code for the CNN (batches of 64, 25 epochs, learning rate 0.02; fed by `EverySecondPatch`).
RELEASED_CNN = LayerAlphas(
    (*3 * (DecayingAlpha(1.0, 1e-5),), DecayingAlpha(1.0, 1e-4), DecayingAlpha(1.0, 0.01), DecayingAlpha(1.0, 0.1))
)
#: α that is searched for OWM. It is stated for 200 updates per task, so that what was chosen on a part of the data holds for
#: all of it.
SEARCHED = tuple(
    PerTask(DecayingAlpha(start, decay)) for start in (1.0, 3.0, 10.0, 30.0) for decay in (0.1, 0.01, 0.001)
)


@dataclass(frozen=True)
class ProjectedConfig(GradientConfig):
    """Settings of projected gradient descent."""

    lr: float = 0.02  # smaller than without projectors, since what they do not protect yet is lost faster
    feed: Feed = BatchMean()  # what of a layer's input its projector absorbs


class ProjectedLearner(GradientLearner, ABC):
    """A backbone with a linear head, trained through projectors; a method says how strongly they absorb."""

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {**GradientLearner.kinds, "projection": "projectors"}
    spreads = True
    config: ProjectedConfig

    def __init__(self, net: nn.Module, setting: Setting, config: ProjectedConfig) -> None:
        super().__init__(net, setting, config)
        self.projection = Projection.of_sequence(setting.input_shape, self.alpha, net=self.net, head=self.head)

    @property
    @abstractmethod
    def alpha(self) -> Alpha:
        """The method's rule for α: ``1/α`` is the weight of an input in its layer's projector."""

    def projector_sums(self) -> Mapping[str, Tensor]:
        return self.projection.sums()

    def start(self, task: TaskData) -> None:
        """Reset the momentum; what cannot be projected learns in the first task only."""
        super().start(task)
        if self.tasks > 0:
            self.projection.freeze_unprotected(self.net)

    def observe(self, batch: Batch) -> Tensor:
        """Update the projectors, then take one projected step."""
        batch = batch.without_zeros()
        if len(batch.x) == 0:
            return self.head.weight.new_zeros(())
        with self.ranks.share(batch) as own:
            with self.projection.hooks.watch() as flow:
                loss = self.ranks.weigh(self.loss(own))
            # P ← P − P r rᵀ P / (α + rᵀ P r), then W ← W − λ ∇W P
            self.projection.absorb(flow, self.config.feed, self.alpha, own.progress, own.steps, self.ranks)
            gradients = self.ranks.total_gradients(self.projection.backward(flow, loss))
            descend(self.optimizer, gradients, self.config.clip)
            (whole,) = self.ranks.total([loss.detach()])
        return whole

    def finish(self, task: TaskData) -> None:
        """Rebuild the projectors from their sums."""
        self.projection.rebuild()
        super().finish(task)


@dataclass(frozen=True)
class OWMConfig(ProjectedConfig):
    """Settings of OWM."""

    #: The rule for α; `RELEASED_MLP` and `RELEASED_CNN` are those of the authors' code.
    alpha: Alpha = PerTask(DecayingAlpha(10.0, 0.01))


class OWM(ProjectedLearner):
    """Orthogonal weight modification of every layer, including the head.

    References
    ----------
    G. Zeng et al., "Continual learning of context-dependent processing in neural networks", Nature Machine Intelligence 2019.
    https://arxiv.org/abs/1810.01256
    """

    title = "OWM"
    summary = "orthogonal weight modification (Nature Machine Intelligence 2019)"
    config_class = OWMConfig
    # Lower than the rates of other methods: on FashionMNIST the best one lay at their lower end, 0.003.
    ranges: ClassVar = {"lr": LogUniform(0.0005, 0.3), "alpha": Choice(tuple(map(config_to_json, SEARCHED)))}
    config: OWMConfig

    @property
    def alpha(self) -> Alpha:
        return self.config.alpha


@dataclass(frozen=True)
class AOPConfig(ProjectedConfig):
    """Settings of AOP."""

    scale: float = 1.0  # factor of every α; the paper has 1
    #: Updates per task that the scale is meant for: with more of them each weighs less, see `PerTask`. The paper has no such
    #: bound, which is ``updates`` as large as a task's number of steps.
    updates: int = 200

    limits: ClassVar = {"scale": POSITIVE, "updates": AT_LEAST_ONE}


class AOP(ProjectedLearner):
    """Adaptive orthogonal projection: OWM with an α that adapts to the layer's input.

    With λ the task's progress from 0 to 1, ``α = (mean(r)² + var(r))^λ`` for a linear layer, over the entries of ``r``: from 1
    down to the energy of ``r``; OWM's ``α = 1e-5^λ`` for a convolution. The released code has this α for MNIST. Its CIFAR
    form, ``mean⁴ + var``, is not used: it adds numbers of different units.

    References
    ----------
    Y. Guo et al., "Adaptive Orthogonal Projection for Batch and Online Continual Learning", AAAI 2022.
    https://doi.org/10.1609/aaai.v36i6.20634
    """

    title = "AOP"
    summary = "adaptive orthogonal projection: OWM with an α by the input (AAAI 2022)"
    config_class = AOPConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "scale": LogUniform(0.03, 10.0)}
    config: AOPConfig

    @property
    def alpha(self) -> Alpha:
        scale = self.config.scale
        return PerTask(KindAlphas(AdaptiveAlpha(scale), convolution=DecayingAlpha(scale, 1e-5)), self.config.updates)
