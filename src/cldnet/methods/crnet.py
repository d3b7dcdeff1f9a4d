"""CRNet-I (Li & Zeng, TPAMI 2023): random features, and output weights in closed form that stay where old tasks need them.

Over hidden units ``A`` and one-hot targets ``y_q``, the column ``q`` of the output weights minimises, for the task at hand,

    ``‖A β_q − y_q‖² + λ Σ_t (β_q − β_q^old)ᵀ F_t,q (β_q − β_q^old)``, so
    ``β_q = (AᵀA + λ Σ_t F_t,q)⁻¹ (Aᵀ y_q + λ Σ_t F_t,q β_q^old)``

with diagonal ``F_t,q``: EWC of the last layer, solved instead of descended to. One pass over a task gathers ``AᵀA`` and
``AᵀY``; a second look at its end, when the weights are known, gives its ``F``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.methods.parts.broad import BroadMap
from cldnet.methods.ranges import LogUniform
from cldnet.nets.scale import AsTheyAre

__all__ = ["CRNet", "CRNetConfig"]

#: Rows of hidden units that are held at once.
BLOCK = 1024
#: Share of the mean diagonal of ``AᵀA`` that is added to it where the release takes a pseudo-inverse.
RIDGE = 2.0**-30


@dataclass(frozen=True)
class CRNetConfig:
    """Settings of CRNet-I. The defaults are those of the release for FashionMNIST, but for λ, which has one value a task there.

    Attributes
    ----------
    strength : float
        λ, the weight of what old tasks need.
    groups, group_width, enhanced, hidden : int
        Sizes of the random map.
    sharpness : float
        How near its enhanced features are to a step.
    """

    strength: float = 5000.0
    groups: int = 10
    group_width: int = 10
    enhanced: int = 670
    hidden: int = 900
    sharpness: float = 300.0

    def __post_init__(self) -> None:
        for name in ("groups", "group_width", "enhanced", "hidden"):
            if not (type(getattr(self, name)) is int and getattr(self, name) >= 1):
                raise ValueError(f"{name}={getattr(self, name)!r} should be a whole number from 1 on.")
        if not 0 <= self.strength < float("inf"):
            raise ValueError(f"strength={self.strength} should be a number from 0 on.")
        if not 0 < self.sharpness < float("inf"):
            raise ValueError(f"sharpness={self.sharpness} should be a positive number.")


class CRNet(Learner):
    """CRNet-I with its map fixed at the first task. It brings its own map, so the backbone is unused.

    The released code fits the map (scales, sparse weights, largest product) anew on every task's training data *and on every
    task's test part*, two classes at a time: it has to be told the task of a test input, and its published figures are of
    that kind. Here the map is fitted on the first task's training data and never again, so every input is mapped by itself.

    As in the release there are output columns for all classes from the start: a class still to come has weights of zero, and
    takes part in the softmax whose gradient gives ``F``.
    """

    traits = Traits(rehearsal_free=True, constant_size=True, one_pass=True)
    kinds: ClassVar = {"features": "feature map", "weight": "weights", "fisher": "fisher"}
    config_class = CRNetConfig
    fixed = ("groups", "group_width", "enhanced", "hidden", "sharpness")
    default_backbone = "none"
    running = ("gram", "moments")
    min_batch = BLOCK
    ranges: ClassVar = {"strength": LogUniform(100.0, 1e5), "sharpness": LogUniform(1.0, 1000.0)}

    config: CRNetConfig
    weight: Tensor
    fisher: Tensor
    gram: Tensor
    moments: Tensor

    def __init__(self, net: nn.Module | None, setting: Setting, config: CRNetConfig) -> None:
        super().__init__(setting)
        self.config = config
        self.scale = AsTheyAre()
        self.features = BroadMap(
            setting.input_shape,
            config.groups,
            config.group_width,
            enhanced=config.enhanced,
            hidden=config.hidden,
            sharpness=config.sharpness,
            source=self.generator,
        )
        zeros = torch.zeros(config.hidden, setting.capacity, dtype=torch.float64)
        self.register_buffer("weight", zeros)  # β
        self.register_buffer("fisher", zeros.clone())  # Σ_t F_t

    @property
    def class_width(self) -> int:
        """Output weights of one class."""
        return self.config.hidden

    @property
    def network_size(self) -> int:
        """Numbers of the fixed map."""
        return sum(tensor.numel() for tensor in self.features.state_dict().values())

    def start(self, task: TaskData) -> None:
        """Fit the map on the first task, and begin with empty sums."""
        if not self.features.fitted:
            self.features.fit(task.x, task.weight)
        self.gram = self.weight.new_zeros(self.config.hidden, self.config.hidden)
        self.moments = torch.zeros_like(self.weight)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Tensor:
        """Add a batch to ``AᵀA`` and ``AᵀY``."""
        for x, y, weight in _blocks(batch):
            hidden = self.features(x)
            weighted = hidden.T * weight
            self.gram.addmm_(weighted, hidden)
            self.moments.index_add_(1, y, weighted)
        return self.gram.new_zeros(())

    @torch.no_grad()
    def finish(self, task: TaskData) -> None:
        """Solve for the weights of the classes seen, then add the task's ``F`` to the sum."""
        self.gram.diagonal().add_(RIDGE * self.gram.diagonal().mean().clamp_min(1e-12))
        held = self.config.strength * self.fisher  # λ Σ_t F_t
        targets = self.moments + held * self.weight
        for q in range(self.seen):
            factor = torch.linalg.cholesky(self.gram + held[:, q].diag())
            self.weight[:, q] = torch.cholesky_solve(targets[:, q, None], factor)[:, 0]
        self.fisher += self._fisher(task)
        del self.gram, self.moments

    def _fisher(self, task: TaskData) -> Tensor:
        """Empirical Fisher information as released: the square of the *mean* gradient of cross-entropy, times the rows."""
        gradient, rows = torch.zeros_like(self.weight), self.weight.new_zeros(())
        for batch in task.batches(BLOCK):
            for x, y, weight in _blocks(batch):
                hidden = self.features(x)
                wrong = (hidden @ self.weight).softmax(1) - F.one_hot(y, self.setting.capacity)
                gradient.addmm_(hidden.T * weight, wrong)
                rows += weight.sum()
        return gradient.square() / rows.clamp_min(1e-12)

    def score(self, x: Tensor) -> Tensor:
        """Outputs of all columns."""
        outputs: Tensor = self.features(x) @ self.weight
        return outputs

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Hidden units of inputs, as the output weights see them."""
        hidden: Tensor = self.features(x)
        return hidden


def _blocks(batch: Batch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, class rows and weights, a block of rows at a time."""
    weight = torch.ones(len(batch.y), device=batch.y.device) if batch.weight is None else batch.weight
    yield from zip(batch.x.split(BLOCK), batch.y.split(BLOCK), weight.double().split(BLOCK), strict=True)
