"""What methods trained by gradient descent share: net, linear head, loss over the classes seen, SGD steps."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import POSITIVE, Config, Limit
from cldnet.methods.learner import Batch, Learner, Setting, TaskData
from cldnet.nets import out_features
from cldnet.nets.frozen import count_weights
from cldnet.nets.layers import linear


@dataclass(frozen=True)
class GradientConfig(Config):
    """Settings of stochastic gradient descent."""

    lr: float = 0.05
    momentum: float = 0.9  # reset when a task starts
    clip: float = 10.0  # largest norm of the whole gradient; infinite for no clipping

    limits: ClassVar = {
        "lr": POSITIVE,
        "momentum": Limit(lambda value: 0 <= value < 1, "lie in [0, 1)"),
        "clip": POSITIVE,
    }


class GradientLearner(Learner, ABC):
    """A backbone with a linear head that has one row per class, trained by SGD. Methods change the loss or the steps."""

    kinds: ClassVar[Mapping[str, str]] = {"net": "weights", "head": "weights"}
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
        return self.net

    @property
    def class_width(self) -> int:
        return self.head.in_features + 1

    @property
    def network_size(self) -> int:
        return count_weights(self.net)

    def start(self, task: TaskData) -> None:
        """Reset the momentum."""
        self.optimizer = torch.optim.SGD(self.parameters(), lr=self.config.lr, momentum=self.config.momentum)

    def finish(self, task: TaskData) -> None:
        """Drop the momentum: it is not part of the state."""
        del self.optimizer
        self.zero_grad(set_to_none=True)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the classes seen so far."""
        return weighted_cross_entropy(self.score(self.scale(batch.x))[:, : self.seen], batch.y, batch.weight)

    def observe(self, batch: Batch) -> Tensor:
        with self.ranks.share(batch) as own:
            loss = self.ranks.weigh(self.loss(own))
            self.descend(loss)
            (whole,) = self.ranks.total([loss.detach()])
        return whole

    def descend(self, loss: Tensor) -> None:
        """Take one step along the clipped gradient of a loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        moved = [parameter for parameter in self.parameters() if parameter.grad is not None]
        own = [parameter.grad for parameter in moved if parameter.grad is not None]
        for parameter, gradient in zip(moved, self.ranks.total(own), strict=True):
            parameter.grad = gradient
        clip_gradients(self.parameters(), self.config.clip)
        self.optimizer.step()

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(self.scale(x)).flatten(1)
        return features

    def score(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.net(x))
        return logits


class NamedTensors(nn.Module):
    """Copies of tensors as buffers, with colons instead of dots in their names: a buffer's name must not contain dots."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name.replace(".", ":"), tensor.detach().clone())

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name.replace(".", ":"))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors."""
        return ((name.replace(":", "."), tensor) for name, tensor in self.named_buffers())


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean of a batch's losses, weighted if there are weights.

    The sum is divided by the number of samples, so a weight of 2 counts as two samples, and weights of zero give no gradient.
    """
    return values.mean() if weight is None else (values * weight).mean()


def weighted_cross_entropy(logits: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
    """Cross-entropy of a batch as a `weighted_mean`."""
    return weighted_mean(F.cross_entropy(logits, y, reduction="none"), weight)


def clip_gradients(parameters: Iterable[Tensor], largest: float) -> None:
    """Do what `torch.nn.utils.clip_grad_norm_` does, bit for bit, but quickly if there is nothing to clip."""
    known = [parameter for parameter in parameters if parameter.grad is not None]
    if not _is_surely_below((parameter.grad for parameter in known if parameter.grad is not None), largest):
        nn.utils.clip_grad_norm_(known, largest)


def sgd(parameters: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, momentum: float) -> torch.optim.SGD:
    """Make an SGD optimiser of parameters or groups of them, with the fused kernel if it supports them all."""
    given: list[Any] = list(parameters)
    moved = [parameter for part in given for parameter in (part["params"] if isinstance(part, dict) else [part])]
    # The fused kernel needs contiguous parameters, gradients and momenta.
    fused = all(p.is_contiguous() and p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in moved)
    return torch.optim.SGD(given, lr=lr, momentum=momentum, fused=fused)


@torch.no_grad()
def descend(
    optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], clip: float, unit: float = 1.0
) -> None:
    """Clip given gradients and take one step along them, with learning rates in ``unit``. The gradients are changed."""
    moved = {parameter: gradient.contiguous() for parameter, gradient in gradients.items()}
    if moved and not _is_surely_below(moved.values(), clip):
        norm = nn.utils.get_total_norm(moved.values())
        torch._foreach_mul_([*moved.values()], (clip / (norm + 1e-6)).clamp(max=1.0))
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * unit
        for parameter in group["params"]:
            parameter.grad = moved.get(parameter)
    try:
        optimizer.step()
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _is_surely_below(gradients: Iterable[Tensor], largest: float) -> bool:
    """Whether the norm of all gradients is below a limit, if that can be decided quickly; False if unsure.

    A norm takes several passes over the gradients. On a CPU their dot products take a fraction of that time; on other devices
    reading the result would have to wait for it.
    """
    if largest == float("inf"):
        return True
    flat = [gradient.flatten() for gradient in gradients]
    squares = sum(float(torch.dot(gradient, gradient)) for gradient in flat if gradient.is_cpu)
    return all(gradient.is_cpu for gradient in flat) and squares < (0.99 * largest) ** 2  # a margin for rounding
