"""What methods over a fixed feature map share: the map, and sums over its features, gathered in one pass.

The state is ``G = Σ hhᵀ``, one feature sum ``Σ h`` and one weight ``n_c`` a class. With a map that gives whole numbers up to
127, as all of ours do, these sums are exact to the last bit, in whatever order and batches the examples came.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.methods.parts.moments import SecondMoments, moments_for
from cldnet.nets import FeatureMap, RandomReLU, out_features
from cldnet.nets.features import RandomProjection
from cldnet.nets.scale import AsTheyAre

__all__ = ["BLOCK", "MappedLearner"]

#: Rows whose products are added up in the features' own type before float64 takes over.
BLOCK = 1024
#: What the weights of a model should add up to, in rows and as a share of its rows: below that, estimates begin to fail.
_LEAST_WEIGHT = 2.0
_LEAST_SHARE = 0.25
_log = logging.getLogger("cldnet")


class MappedLearner(Learner, ABC):
    """A learner that sums up features of a fixed map, and answers by what it solves from the sums.

    Parameters
    ----------
    net : FeatureMap or nn.Module
        The map, which takes inputs as they are; any other module is frozen, takes scaled inputs as a trained one would,
        and is expanded by random ReLU features.
    setting : Setting
    gram : "full", "diagonal" or int
        What is kept of ``G``, as for `cldnet.methods.parts.moments.moments_for`.
    """

    traits = Traits(rehearsal_free=True, constant_size=True, one_pass=True)
    kinds: ClassVar = {"features": "feature map", "second": "sums", "class_sums": "sums", "class_weights": "sums"}
    default_backbone = "random-relu"
    takes_maps = True
    min_batch = BLOCK

    class_sums: Tensor
    class_weights: Tensor

    def __init__(self, net: nn.Module, setting: Setting, gram: str | int = "full") -> None:
        super().__init__(setting)
        if isinstance(net, FeatureMap):
            self.features: FeatureMap = net
            self.scale = AsTheyAre()
        else:
            self.features = RandomReLU((out_features(net, setting.input_shape),), seed=setting.seed, net=net)
        width = self.features.out_features
        self.second: SecondMoments = moments_for(gram, width)
        self.register_buffer("class_sums", torch.zeros(setting.capacity, width, dtype=torch.float64))
        self.register_buffer("class_weights", torch.zeros(setting.capacity, dtype=torch.float64))
        #: What was solved from the sums, until they change. It follows from them, so it is no part of the state.
        self._solved: Any = None

    @property
    def backbone(self) -> nn.Module:
        """The map that was handed in, or the frozen module in front of the random features."""
        net = self.features.net if isinstance(self.features, RandomProjection) else None
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
                f"The first call needs at least {self.features.min_rows} rows, {self.features.why_rows}, and got "
                f"{len(task)} (n_samples={len(task)}). Collect some more, for example with `with clf.session():`."
            )
        if task.weight is not None:
            self._check_weights(task.weight)
        super().begin_task(task)

    def _check_weights(self, weight: Tensor) -> None:
        """Warn of weights that add up to few rows: what a class looks like is estimated as if from that many rows."""
        rows, total = int((weight > 0).sum()), float(self.class_weights.sum() + weight.sum())
        if total < max(_LEAST_SHARE * rows, min(rows, _LEAST_WEIGHT)):
            _log.warning(
                "The weights add up to %.3g for %d rows. A weight counts as that many rows, so the model may answer no better "
                "than by chance: give sample_weight / sample_weight.mean().",
                total,
                rows,
            )

    def start(self, task: TaskData) -> None:
        """Fit the map on the first task if nobody has fitted it before."""
        self._solved = None  # there may be classes more
        if not self.features.fitted:
            as_they_are = isinstance(self.scale, AsTheyAre)  # fitting only reads: no copy of what may have gigabytes
            self.features.fit(task.x if as_they_are else self.scale(task.x), task.weight)

    def extend(self, capacity: int) -> None:
        """Give the classes to come sums and weights of zero."""
        setting = self.setting.extended(capacity)
        more = capacity - self.setting.capacity
        self.class_sums = torch.cat([self.class_sums, self.class_sums.new_zeros(more, self.class_width)])
        self.class_weights = torch.cat([self.class_weights, self.class_weights.new_zeros(more)])
        self.setting = setting

    @torch.no_grad()
    def observe(self, batch: Batch) -> Tensor:
        """Add a batch to the sums."""
        self._solved = None
        for first in range(0, len(batch.x), BLOCK):
            part = slice(first, first + BLOCK)
            self.add(
                self.features(self.scale(batch.x[part])),
                batch.y[part],
                None if batch.weight is None else batch.weight[part].double(),
            )
        return self.class_weights.new_zeros(())

    def add(self, h: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Add features of a block of rows to the sums: in their own type, or in float64 if there are weights."""
        h = h if weight is None else h.double()
        each = self.class_weights.new_ones(len(y)) if weight is None else weight
        self.second.add(h, weight)
        classes, place = y.unique(return_inverse=True)
        members = h.new_zeros(len(y), len(classes)).scatter_(1, place[:, None], each.to(h)[:, None])
        self.class_sums.index_add_(0, classes, (members.T @ h).double())
        self.class_weights.index_add_(0, y, each)

    @torch.no_grad()
    def represent(self, x: Tensor) -> Tensor:
        """Features of inputs, in int8 where they are whole numbers: what may be kept to score them again and again."""
        blocks = (self.features(self.scale(block)) for block in x.split(BLOCK))
        return torch.cat([h.char() if bool((h.char() == h).all()) else h for h in blocks])

    @abstractmethod
    def score_represented(self, h: Tensor) -> Tensor:
        """Scores of features over the classes seen."""

    def score(self, x: Tensor) -> Tensor:
        """Scores of scaled inputs over the classes seen."""
        return self.score_represented(self.features.asked(x))

    def configure(self, options: Mapping[str, Any]) -> None:
        """Change settings between tasks; the sums stay, and what is solved from them may be another."""
        super().configure(options)
        self._solved = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy or a pickle should not grow, by what was solved, with the number of classes.
        return {**super().__getstate__(), "_solved": None}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state, and let go of what was solved from the old one."""
        super().load_state(state)
        self._solved = None
