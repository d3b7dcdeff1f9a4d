"""PCL, per-class continual learning: one small head per class that learns from samples of its own class only.

A head scores a vector ``x`` of unit length by ``s = w₃·relu(W₁x)``. It only ever sees its own class, so nothing is forgotten;
the holistic regularisation (H-reg), a penalty on ``‖∇ₓs‖``, keeps it from giving everything a high score. At test, what all
heads have in common is subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import AT_LEAST_ONE, FINITE_NOT_NEGATIVE, LEARNING_RATES, Limit, LogUniform
from cldnet.methods.gradient import GradientConfig, clip_gradients, sgd
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits, portions
from cldnet.nets import out_features
from cldnet.nets.frozen import count_weights

#: Bounds of a head's first weights, which are uniform: those of the authors' code, whatever the width of the vectors.
_INNER, _OUTER = 1 / sqrt(1000), 1 / sqrt(500)
#: Added to a probability before its logarithm.
_FLOOR = 0.01


@dataclass(frozen=True)
class PCLConfig(GradientConfig):
    """Settings of PCL; the defaults are those of the authors' code."""

    lr: float = 0.1
    clip: float = 1.0  # largest norm of one head's gradient
    hidden: int = 100  # units of a head
    dropout: float = 0.05  # of hidden units
    holistic: float = 0.5  # weight of H-reg
    transfer: float = 0.005  # λ; 0.001 for MNIST, 0.005 for CIFAR-10, 0.01 for CIFAR-100
    shared: float = 0.1  # share of the mean head that is subtracted at test

    limits: ClassVar = {
        "hidden": AT_LEAST_ONE,
        "dropout": Limit(lambda value: 0 <= value < 1, "lie in [0, 1)"),
        **dict.fromkeys(("holistic", "transfer", "shared"), FINITE_NOT_NEGATIVE),
    }


class Head(nn.Module):
    """The weights of one class, ``W₁`` and ``w₃`` (the authors' ``W₂`` has no part in the score)."""

    def __init__(self, hidden: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.zeros(hidden, width, dtype=dtype))
        self.outer = nn.Parameter(torch.zeros(hidden, dtype=dtype))


class PCL(Learner):
    """One head per class over vectors of unit length, learned from the class's own samples.

    The vectors are a frozen net's: give a pretrained one, such as the backbone ``"efficientnet-lite0"``. The net is never
    trained, whatever it is: any other backbone keeps its initial weights. By default there is no net, and the vectors are the
    scaled inputs themselves, flattened. The authors subtract 0.02 from every number of a unit vector, so that its mean is about
    zero; here inputs and vectors were standardised before.

    The authors learn class by class. Here the heads of a task's classes learn side by side, each from its own samples in a
    batch; ``W̄`` is the mean of the heads as they were before the task. A head whose class is not in a batch does not move. The
    second stage of the authors' code is left out: a classifier per task, trained afterwards on all of a task's classes
    together, which restricts the prediction to the task of its best class.

    References
    ----------
    W. Hu, Q. Qin, M. Wang, J. Ma, B. Liu, "Continual Learning by Using Information of Each Class Holistically", AAAI 2021.
    https://ojs.aaai.org/index.php/AAAI/article/view/16952
    """

    title = "PCL"
    summary = "one head per class over frozen features, learned from its class alone (AAAI 2021)"
    traits = Traits(rehearsal_free=True, constant_size=False)
    kinds: ClassVar = {"net": "weights", "heads": "weights"}
    config_class = PCLConfig
    fixed = ("hidden",)
    ranges: ClassVar = {
        "lr": LEARNING_RATES,
        "holistic": LogUniform(0.05, 5.0),
        "transfer": LogUniform(1e-4, 0.1),
    }
    default_backbone = "none"
    running = ("optimizer",)

    config: PCLConfig
    optimizer: torch.optim.Optimizer
    #: ``W̄₁`` and ``w̄₃`` of a task's beginning; None in the first task.
    mean: tuple[Tensor, Tensor] | None

    def __init__(self, net: nn.Module | None, setting: Setting, config: PCLConfig) -> None:
        super().__init__(setting)
        self.config = config
        self.net: nn.Module = nn.Flatten() if net is None else net.to(setting.dtype)
        self.width = out_features(self.net, setting.input_shape)
        self.heads: Sequence[Head] = nn.ModuleList()  # type: ignore[assignment]

    @property
    def backbone(self) -> nn.Module:
        return self.net

    @property
    def class_width(self) -> int:
        return self.config.hidden * (self.width + 1)

    @property
    def network_size(self) -> int:
        return count_weights(self.net)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, except for the net's: it is frozen."""
        super().train(mode)
        self.net.eval()
        return self

    def growth(self, task: TaskData) -> int:
        new = max(0, int(task.y.max()) + 1 - len(self.heads))
        return new * self.class_width * self.setting.dtype.itemsize

    def start(self, task: TaskData) -> None:
        """Add the heads of new classes, which begin as the mean of all older ones."""
        self.mean = self._mean() if len(self.heads) else None
        while len(self.heads) < self.seen:
            self.heads.append(self._new_head().to(task.x.device))  # type: ignore[attr-defined]
        # A step leaves out heads without a gradient, and only those of the batch's classes have one.
        weights = [part for head in self.heads for part in head.parameters()]
        self.optimizer = sgd(weights, self.config.lr, self.config.momentum)

    def observe(self, batch: Batch) -> Tensor:
        """Train the heads of the batch's classes, each on its own samples."""
        rows, place = batch.y.unique(return_inverse=True)
        heads = [self.heads[row] for row in rows.tolist()]
        x, share = by_class(self._embed(self.scale(batch.x)), place, batch.weight)
        losses = self.losses(torch.stack([h.inner for h in heads]), torch.stack([h.outer for h in heads]), x, share)
        self.optimizer.zero_grad(set_to_none=True)
        losses.sum().backward()
        for head in heads:
            clip_gradients(head.parameters(), self.config.clip)
        self.optimizer.step()
        return losses.detach().mean()

    def losses(self, inner: Tensor, outer: Tensor, x: Tensor, share: Tensor) -> Tensor:
        """Loss of each head over its own samples, given its weights ``W₁``, ``w₃``."""
        slopes = self._slopes(inner, outer, x)
        s = (slopes * x).sum(2)  # the score, for there are no biases
        each = -(s.sigmoid() + _FLOOR).log() + self.config.holistic * slopes.square().sum(2) ** 4  # H-reg: ‖∇ₓs‖⁸
        losses = (each * share).sum(1)
        if self.mean is not None:
            away = (inner - self.mean[0]).flatten(1).norm(dim=1) + (outer - self.mean[1]).norm(dim=1)
            losses = losses + self.config.transfer * away
        return losses

    def _slopes(self, inner: Tensor, outer: Tensor, x: Tensor) -> Tensor:
        """Derivatives ``∇ₓs = W₁ᵀ(w₃ ∘ 1[W₁x > 0])`` of each head's score by its samples, with dropout of hidden units."""
        with torch.no_grad():  # a step function has no derivative
            active = x @ inner.mT > 0
            kept = torch.rand(active.shape, generator=self.generator) >= self.config.dropout
            active = (active & kept.to(x.device)).to(x.dtype) / (1 - self.config.dropout)
        slopes: Tensor = (active * outer[:, None]) @ inner
        return slopes

    def finish(self, task: TaskData) -> None:
        del self.optimizer, self.mean
        self.zero_grad(set_to_none=True)

    def represent(self, x: Tensor) -> Tensor:
        """Map inputs to vectors of unit length, which can be cached."""
        return torch.cat([self._embed(self.scale(part)) for part in portions(x)])

    @torch.no_grad()
    def score_represented(self, h: Tensor) -> Tensor:
        """Score vectors of unit length: ``w₃·(relu(W₁x) − share·relu(W̄₁x))``, with ``W̄₁`` of all classes seen."""
        common = self.config.shared * F.relu(h @ self._mean()[0].T)
        return torch.stack([(F.relu(h @ head.inner.T) - common) @ head.outer for head in self.heads], dim=1)

    def score(self, x: Tensor) -> Tensor:
        return self.score_represented(self._embed(x))

    def vectors(self, x: Tensor) -> Tensor:
        return self.represent(x)

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        count = sum(name.startswith("heads.") and name.endswith(".inner") for name in state)
        self.heads = nn.ModuleList(self._empty_head() for _ in range(count))  # type: ignore[assignment]

    @torch.no_grad()
    def _embed(self, x: Tensor) -> Tensor:
        return F.normalize(self.net(x).flatten(1))

    @torch.no_grad()
    def _mean(self) -> tuple[Tensor, Tensor]:
        """The mean of all heads, ``W̄₁`` and ``w̄₃``."""
        inner, outer = (sum(part[1:], part[0]) for part in zip(*(h.parameters() for h in self.heads), strict=True))
        return inner / len(self.heads), outer / len(self.heads)

    def _empty_head(self) -> Head:
        return Head(self.config.hidden, self.width, self.setting.dtype)

    @torch.no_grad()
    def _new_head(self) -> Head:
        """The head of a new class: the mean of the older ones, or random weights in the first task."""
        head = self._empty_head()
        if self.mean is None:
            head.inner.uniform_(-_INNER, _INNER, generator=self.generator)
            head.outer.uniform_(-_OUTER, _OUTER, generator=self.generator)
        else:
            head.inner.copy_(self.mean[0])
            head.outer.copy_(self.mean[1])
        return head


def by_class(x: Tensor, place: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sort samples by the class that each belongs to, from 0 on.

    Returns the samples of each class, shape ``(classes, most samples of one, width)``, filled up with zeros, and the share of
    each in its class's mean, shape ``(classes, most samples of one)``: its weight divided by their number.
    """
    member = F.one_hot(place)
    counts = member.sum(0)
    order = (member.cumsum(0) * member).sum(1) - 1  # place of a sample among those of its class
    sorted_x = x.new_zeros(len(counts), int(counts.max()), x.shape[1])
    share = x.new_zeros(sorted_x.shape[:2])
    sorted_x[place, order] = x
    share[place, order] = (x.new_ones(len(x)) if weight is None else weight.to(x.dtype)) / counts[place]
    return sorted_x, share
