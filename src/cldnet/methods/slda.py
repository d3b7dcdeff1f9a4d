"""Deep SLDA (Hayes & Kanan, CLVISION 2020): class means and one shared covariance over fixed features, in one pass.

With class means ``μ_c`` and the covariance ``Σ`` of the features around them, the largest ``μ_cᵀ Λ h − ½ μ_cᵀ Λ μ_c`` wins,
where ``Λ = [(1 − ε) Σ + ε σ² I]⁻¹`` and ``σ²`` is the mean variance of a feature (``σ² = 1`` in the paper, whose features have
one scale). All classes are taken to be equally likely. The paper updates ``μ_c`` and ``Σ`` example by example; here they follow
from sums, ``Σ = (G − Σ_c n_c μ_c μ_cᵀ) / n``, so the order of the examples leaves no trace at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.math import symmetric
from cldnet.methods.learner import Setting
from cldnet.methods.mapped import MappedLearner
from cldnet.methods.parts.moments import FullMoments
from cldnet.methods.ranges import LogUniform

__all__ = ["SLDA", "SLDAConfig"]


@dataclass(frozen=True)
class SLDAConfig:
    """Settings of SLDA.

    Attributes
    ----------
    shrinkage : float
        ε: how far the covariance is drawn to that of independent features of one variance.
    """

    shrinkage: float = 1e-2

    def __post_init__(self) -> None:
        if not 0 < self.shrinkage <= 1:
            raise ValueError(f"shrinkage={self.shrinkage} should be above 0, and 1 at most.")


class SLDA(MappedLearner):
    """Streaming linear discriminant analysis: nothing is forgotten, given the map.

    Examples
    --------
    >>> from cldnet.methods.learner import TaskData
    >>> from cldnet.nets import RandomReLU
    >>> learner = SLDA(RandomReLU((2,), features=16, seed=0), Setting((2,), capacity=4, seed=0), SLDAConfig())
    >>> task = TaskData(torch.tensor([[-1.0, 0.0], [-0.9, 0.1], [1.0, 0.0], [1.1, 0.1]]), torch.tensor([0, 0, 1, 1]))
    >>> learner.begin_task(task)
    >>> losses = [learner.observe(batch) for batch in task.batches(3)]
    >>> learner.end_task(task)
    >>> learner.logits(task.x).argmax(1)
    tensor([0, 0, 1, 1])
    """

    config_class = SLDAConfig
    ranges: ClassVar = {"shrinkage": LogUniform(1e-4, 0.5)}

    config: SLDAConfig
    second: FullMoments
    _solved: tuple[Tensor, Tensor] | None

    def __init__(self, net: nn.Module, setting: Setting, config: SLDAConfig) -> None:
        super().__init__(net, setting)
        self.config = config

    def solve(self) -> tuple[Tensor, Tensor]:
        """Give ``Λ μ_c`` and ``−½ μ_cᵀ Λ μ_c`` of the classes seen, but for what is alike for all of them."""
        sums, weights = self.class_sums[: self.seen], self.class_weights[: self.seen]
        means = sums / weights.clamp_min(1e-300)[:, None]
        covariance = symmetric.unpack(self.second.packed, self.second.width)
        covariance.addmm_(sums.T, means, alpha=-1).div_(weights.sum().clamp_min(1e-300))
        variance = covariance.diagonal().mean()
        variance = torch.where(variance > 0, variance, 1.0)  # as long as nothing varies, the nearest mean wins
        covariance.mul_(1 - self.config.shrinkage).diagonal().add_(self.config.shrinkage * variance)
        middle = means.mean(0)  # numbers stay small when scores are taken from there
        directions = torch.cholesky_solve((means - middle).T, torch.linalg.cholesky(covariance))
        return directions, -((means + middle) * directions.T).sum(1) / 2

    @torch.no_grad()
    def score_represented(self, h: Tensor) -> Tensor:
        """Scores of features: logarithms of probabilities, but for a constant. A class without examples never wins."""
        solved = self._solved
        if solved is None:
            solved = self._solved = self.solve()
        directions, offsets = solved
        scores = torch.addmm(offsets, h.double(), directions)
        return scores.where(self.class_weights[: self.seen] > 0, scores.amin(1, keepdim=True) - 1)
