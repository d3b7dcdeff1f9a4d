"""What the methods trained by gradient descent with a linear head share: net, head, loss over the classes seen, SGD."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.learner import Batch, Learner, Setting, TaskData
from cldnet.methods.parts.descent import are_surely_below
from cldnet.nets import out_features
from cldnet.nets.frozen import count_weights
from cldnet.nets.init import linear

__all__ = ["GradientConfig", "GradientLearner", "clip_gradients", "weighted_mean"]


@dataclass(frozen=True)
class GradientConfig:
    """Settings of stochastic gradient descent.

    Attributes
    ----------
    lr : float
        Learning rate.
    momentum : float
        Momentum; its memory is emptied at every task's start.
    clip : float
        Largest norm of the whole gradient; infinite to leave it as it is.
    """

    lr: float = 0.05
    momentum: float = 0.9
    clip: float = 10.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"lr={self.lr} should be a positive number.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum} should lie in [0, 1).")
        if not self.clip > 0:
            raise ValueError(f"clip={self.clip} should be a positive number.")


class GradientLearner(Learner, ABC):
    """A backbone with a linear head of one row a class, trained by SGD on a loss that a method may add to."""

    config_class: ClassVar[type[GradientConfig]] = GradientConfig
    running: ClassVar[tuple[str, ...]] = ("optimizer",)
    config: GradientConfig
    optimizer: torch.optim.Optimizer

    def __init__(self, net: nn.Module, setting: Setting, config: GradientConfig) -> None:
        super().__init__(setting)
        self.config = config
        features = out_features(net, setting.input_shape)
        self.net = net.to(setting.dtype)
        self.head = linear(features, setting.capacity, self.generator).to(setting.dtype)

    @property
    def backbone(self) -> nn.Module:
        """The net in front of the last layer."""
        return self.net

    @property
    def class_width(self) -> int:
        """Weights and bias of one row of the head."""
        return self.head.in_features + 1

    @property
    def network_size(self) -> int:
        """Weights of the backbone, frozen ones too."""
        return count_weights(self.net)

    def start(self, task: TaskData) -> None:
        """Begin with an empty momentum."""
        self.optimizer = torch.optim.SGD(self.parameters(), lr=self.config.lr, momentum=self.config.momentum)

    def finish(self, task: TaskData) -> None:
        """Drop the momentum: it is not part of what the learner keeps."""
        del self.optimizer
        self.zero_grad(set_to_none=True)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the classes seen so far."""
        logits = self.score(self.scale(batch.x))[:, : self.seen]
        return weighted_mean(F.cross_entropy(logits, batch.y, reduction="none"), batch.weight)

    def observe(self, batch: Batch) -> Tensor:
        """Take one gradient step."""
        loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_gradients(self.parameters(), self.config.clip)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Features of inputs, as the head sees them."""
        features: Tensor = self.net(self.scale(x)).flatten(1)
        return features

    def score(self, x: Tensor) -> Tensor:
        """Logits of every row of the head."""
        logits: Tensor = self.head(self.net(x))
        return logits


def clip_gradients(parameters: Iterable[Tensor], largest: float) -> None:
    """Shrink gradients whose norm together is too large, as `torch.nn.utils.clip_grad_norm_` does, to the last bit.

    Examples
    --------
    >>> weight = torch.zeros(2, requires_grad=True)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], 1.0)
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    known = [parameter for parameter in parameters if parameter.grad is not None]
    if not are_surely_below((parameter.grad for parameter in known if parameter.grad is not None), largest):
        nn.utils.clip_grad_norm_(known, largest)


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of a batch's losses, weighted where there are weights.

    The sum is divided by the number of rows, so a weight of 2 counts as two rows and a batch of zeros gives no gradient.

    Examples
    --------
    >>> weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0]))
    tensor(1.)
    """
    return values.mean() if weight is None else (values * weight).mean()
