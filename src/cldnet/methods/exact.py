"""The exact solver: ridge regression onto the class vectors over a fixed feature map, from sums, in one pass.

``P = α(HᵀH + αI)⁻¹`` is the projector of Eq. 6 with a constant α, and also the matrix of recursive least squares: on top
of a fixed map the weights ``(G + αI)⁻¹ Σ_c s_c w_cᵀ`` are the solution of all data ever seen at once, in whatever order
it came. The state is a sum: ``G = Σ hhᵀ``, one feature sum ``s_c`` and one weight ``n_c`` a class.

The class vectors ``w_c`` are orthonormal here whatever the number of classes, so they drop out: the score of class ``c``,
the predicted vector along ``w_c``, is ``h (G + αI)⁻¹ s_c``. (Vectors that are only nearly orthogonal would mix classes, and
the answer would depend on which class came first.)

With a map that gives whole numbers (`cldnet.nets.RandomReLU`) the sums are exact to the last bit: 1,024 products of two
7-bit numbers fit float32, and float64 adds whole numbers without error up to 2⁵³.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cldnet.math import ridge
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.nets import FeatureMap, RandomReLU, out_features
from cldnet.nets.scale import AsTheyAre

__all__ = ["Exact", "ExactConfig"]

#: Rows whose products are added up in float32 before float64 takes over.
BLOCK = 1024


@dataclass(frozen=True)
class ExactConfig:
    """Settings of the exact solver.

    Attributes
    ----------
    alpha : float or "gcv"
        Ridge penalty in units of the features, or chosen from the sums by generalised cross-validation.
    """

    alpha: float | str = "gcv"

    def __post_init__(self) -> None:
        numeric = isinstance(self.alpha, int | float) and not isinstance(self.alpha, bool)
        if self.alpha != "gcv" and not (numeric and 0 < float(self.alpha) < float("inf")):
            raise ValueError(f"alpha={self.alpha!r} should be 'gcv' or a positive number.")


class Exact(Learner):
    """One pass, no gradient, nothing forgotten: the ridge solution of all data seen.

    Parameters
    ----------
    net : FeatureMap or nn.Module
        The map, which takes inputs as they are; any other module is frozen, takes scaled inputs as a trained one would,
        and is expanded by random ReLU features.
    setting : Setting
    config : ExactConfig

    Examples
    --------
    >>> features = RandomReLU((2,), features=16, seed=0)
    >>> learner = Exact(features, Setting((2,), capacity=4, seed=0), ExactConfig())
    >>> task = TaskData(torch.tensor([[-1.0, 0.0], [-0.9, 0.1], [1.0, 0.0], [1.1, 0.1]]), torch.tensor([0, 0, 1, 1]))
    >>> learner.begin_task(task)
    >>> for batch in task.batches(3):
    ...     loss = learner.observe(batch)
    >>> learner.end_task(task)
    >>> learner.logits(task.x).argmax(1)
    tensor([0, 0, 1, 1])
    """

    traits = Traits(rehearsal_free=True, constant_size=True, one_pass=True)
    kinds: ClassVar = {
        "features": "feature map",
        "gram": "sums",
        "class_sums": "sums",
        "class_weights": "sums",
        "rows": "sums",
    }
    config_class = ExactConfig
    default_backbone = "random-relu"
    min_batch = BLOCK

    config: ExactConfig
    gram: Tensor
    class_sums: Tensor
    class_weights: Tensor
    rows: Tensor

    def __init__(self, net: nn.Module, setting: Setting, config: ExactConfig) -> None:
        super().__init__(setting)
        self.config = config
        if isinstance(net, FeatureMap):
            self.features: FeatureMap = net
            self.scale = AsTheyAre()
        else:
            width = out_features(net, setting.input_shape)
            self.features = RandomReLU((width,), seed=setting.seed, net=net)
        width = self.features.out_features
        self.register_buffer("gram", torch.zeros(width, width, dtype=torch.float64))
        self.register_buffer("class_sums", torch.zeros(setting.capacity, width, dtype=torch.float64))
        self.register_buffer("class_weights", torch.zeros(setting.capacity, dtype=torch.float64))
        self.register_buffer("rows", torch.zeros((), dtype=torch.float64))
        self._solution: Tensor | None = None

    @property
    def backbone(self) -> nn.Module:
        """The map that was handed in, or the frozen module in front of the random features."""
        net = self.features.net if isinstance(self.features, RandomReLU) else None
        return self.features if net is None else net

    @property
    def class_width(self) -> int:
        """Length of a class's feature sum."""
        return self.features.out_features

    @property
    def network_size(self) -> int:
        """Numbers of the fixed map."""
        return sum(tensor.numel() for tensor in self.features.state_dict().values())

    def begin_task(self, task: TaskData) -> None:
        """Refuse a first task that is too small to fit the map on."""
        if not self.features.fitted and len(task) < self.features.min_rows:
            raise ValueError(
                f"The first call needs at least {self.features.min_rows} rows, to learn the scale of inputs, and got "
                f"{len(task)} (n_samples={len(task)}). Collect some more, for example with `with clf.session():`."
            )
        super().begin_task(task)

    def start(self, task: TaskData) -> None:
        """Fit the map on the first task if nobody has fitted it before."""
        if not self.features.fitted:
            self.features.fit(self.scale(task.x), task.weight)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Tensor:
        """Add a batch to the sums."""
        self._solution = None
        for first in range(0, len(batch.x), BLOCK):
            part = slice(first, first + BLOCK)
            weight = None if batch.weight is None else batch.weight[part].double()
            self._add(self.features(self.scale(batch.x[part])), batch.y[part], weight)
        return self.rows.new_zeros(())

    def _add(self, h: Tensor, y: Tensor, weight: Tensor | None) -> None:
        if weight is None:
            self.gram += h.T @ h
            self.class_sums.index_add_(0, y, h.double())
            self.class_weights.index_add_(0, y, self.class_weights.new_ones(len(y)))
            self.rows += len(y)
        else:
            weighted = h.double() * weight[:, None]
            self.gram += weighted.T @ h.double()
            self.class_sums.index_add_(0, y, weighted)
            self.class_weights.index_add_(0, y, weight)
            self.rows += weight.sum()

    @property
    def solution(self) -> Tensor:
        """Weights from features to the scores of the classes seen, shape ``(features, seen)``; solved when first needed."""
        solution = self._solution
        if solution is None:
            moments = self.class_sums[: self.seen].T
            alpha = self.config.alpha
            if isinstance(alpha, str):
                alpha = ridge.gcv_alpha(self.gram, moments, self.class_weights[: self.seen], float(self.rows))
            solution = ridge.solve(self.gram, moments, float(alpha))
            self._solution = solution
        return solution

    def score(self, x: Tensor) -> Tensor:
        """Scores of the classes seen: the predicted vector along each class vector."""
        h = self.features(x)
        scores: Tensor = h.to(self.setting.dtype) @ self.solution.to(self.setting.dtype)
        return scores

    def configure(self, options: Mapping[str, Any]) -> None:
        """Change settings between tasks; another α gives another solution."""
        super().configure(options)
        self._solution = None

    def __getstate__(self) -> dict[str, Any]:
        # The solution follows from the sums; a copy or a pickle should not grow by it with the number of classes.
        return {**self.__dict__, "_solution": None}

    def load_state(self, state: dict[str, Tensor]) -> None:  # type: ignore[override]
        """Take over a state and forget the solution of the old one."""
        super().load_state(state)
        self._solution = None
