"""Deep SLDA: class means and one shared covariance over fixed features, in one pass.

With class means ``μ_c`` and the covariance ``Σ`` of the features around them, the largest ``μ_cᵀ Λ h − ½ μ_cᵀ Λ μ_c`` wins,
where ``Λ = [(1 − ε) Σ + ε σ² I]⁻¹`` and ``σ²`` is the mean variance of a feature (``σ² = 1`` in the paper, whose features have
one scale). All classes are assumed to be equally likely. The paper updates ``μ_c`` and ``Σ`` sample by sample; here they follow
from sums, ``Σ = (G − Σ_c n_c μ_c μ_cᵀ) / n``, so the order of the samples does not matter at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.config import Config, Limit, LogUniform
from cldnet.methods.learner import Setting
from cldnet.methods.mapped import FullMoments, MappedLearner


@dataclass(frozen=True)
class SLDAConfig(Config):
    """Settings of SLDA."""

    shrinkage: float = 1e-2  # ε, of the covariance towards that of independent features of equal variance

    limits: ClassVar = {"shrinkage": Limit(lambda value: 0 < value <= 1, "be above 0 and at most 1")}


class SLDA(MappedLearner):
    """Streaming linear discriminant analysis: nothing is forgotten, given the map.

    References
    ----------
    T. L. Hayes, C. Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis", CVPR Workshops 2020.
    https://arxiv.org/abs/1909.01520
    """

    title = "SLDA"
    summary = "class means and one covariance over a fixed feature map (2020)"
    config_class = SLDAConfig
    ranges: ClassVar = {"shrinkage": LogUniform(1e-4, 0.5)}

    config: SLDAConfig
    second: FullMoments
    _solved: tuple[Tensor, Tensor] | None

    def __init__(self, net: nn.Module, setting: Setting, config: SLDAConfig) -> None:
        super().__init__(net, setting)
        self.config = config

    def solve(self) -> tuple[Tensor, Tensor]:
        """Return ``Λ μ_c`` and ``−½ μ_cᵀ Λ μ_c`` of the classes seen, up to what is equal for all of them."""
        sums, weights = self.class_sums[: self.seen], self.class_weights[: self.seen]
        return discriminants(self.second.dense(), sums, weights, self.config.shrinkage)

    @torch.no_grad()
    def score_represented(self, h: Tensor) -> Tensor:
        """Scores of features: log-probabilities up to a constant. A class without samples never wins."""
        solved = self._solved
        if solved is None:
            solved = self._solved = self.solve()
        directions, offsets = solved
        scores = torch.addmm(offsets, h.double(), directions)
        return scores.where(self.class_weights[: self.seen] > 0, scores.amin(1, keepdim=True) - 1)


def discriminants(gram: Tensor, sums: Tensor, weights: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """``Λ μ_c`` as columns and ``−½ μ_cᵀ Λ μ_c``, up to what is equal for all classes; ``gram`` is overwritten."""
    means = sums / weights.clamp_min(1e-300)[:, None]
    covariance = gram.addmm_(sums.T, means, alpha=-1).div_(weights.sum().clamp_min(1e-300))
    variance = covariance.diagonal().mean()
    variance = torch.where(variance > 0, variance, 1.0)  # if nothing varies, the nearest mean wins
    covariance.mul_(1 - shrinkage).diagonal().add_(shrinkage * variance)
    middle = means.mean(0)  # keeps numbers small
    directions = torch.cholesky_solve((means - middle).T, torch.linalg.cholesky(covariance))
    return directions, -((means + middle) * directions.T).sum(1) / 2
