"""ICNet, InterContiNet: every weight has an interval, and later tasks stay inside those of earlier ones.

The box ``centre ± radius`` of all weights, including the head's, is such that *every* net in it knows the task, as far as
interval arithmetic can tell. The box of a task lies in the one before, so the net remains one that knew the earlier tasks
(among the classes of that time: in class-IL, new classes can still win).

The steps of a task have two parts. In the first the centres learn by plain gradient descent; from the second task on they are
clamped to the box after every step. In the last ``radius_share`` of the steps the centres rest and the box is made as large as
the task allows: all radii grow while the worst net in the box is right on ``threshold`` of what the centre is right on, else
they shrink by the gradient of the worst net's cross-entropy. At rest ``r_i ∂L/∂r_i`` is then equal for all weights, which is
where the volume ``Σ log r_i`` of the box is largest for a given loss. The paper keeps centres and radii in the old box by
``tanh`` and a sigmoid, and starts from the largest box instead of a small one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import FINITE_POSITIVE, LEARNING_RATES, SHARE, Choice, Limit, LogUniform
from cldnet.methods.gradient import GradientConfig, GradientLearner, NamedTensors, weighted_cross_entropy
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.nets import CNN, MLP

#: A product of inputs with a weight, linear in both: a linear layer or a convolution without its bias.
Product = Callable[[Tensor, Tensor], Tensor]

_WEIGHTED = (nn.Linear, nn.Conv2d)
#: Monotone layers: the bounds of their outputs are their outputs for the bounds.
_MONOTONE = (nn.ReLU, nn.MaxPool2d, nn.Flatten)
#: Layers that do nothing in evaluation mode, which the bounds are for.
_IDLE = (nn.Dropout, nn.Dropout2d, nn.Identity)
_KNOWN = (*_WEIGHTED, *_MONOTONE, *_IDLE)

#: Range of the radii's logarithms within a task; the first task's start that far below the largest.
REACH = 10.0
#: How many times faster than the average a radius may shrink.
FASTEST = 4.0
#: Samples on which the box is tested at the end, and per batch; it shrinks until the worst net in it is good enough.
TRIED = 2048
TRIED_AT_ONCE = 128
SHRINK = 0.7


@dataclass(frozen=True)
class Interval:
    """All numbers from ``lower`` to ``upper``, entry by entry; for a point both are the same tensor.

    ``positive`` says that no number is below zero, as after a ReLU.
    """

    lower: Tensor
    upper: Tensor
    positive: bool = False

    @classmethod
    def around(cls, centre: Tensor, radius: Tensor) -> Interval:
        """Return ``centre ± radius``."""
        return cls(centre - radius, centre + radius)

    def map(self, function: Callable[[Tensor], Tensor], positive: bool) -> Interval:
        """Apply a monotone function to both ends."""
        lower = function(self.lower)
        return Interval(lower, lower if self.is_point else function(self.upper), positive)

    @property
    def is_point(self) -> bool:
        """Whether the interval was made as a single point."""
        return self.lower is self.upper

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lower - other.upper, self.upper - other.lower)


def known_layers(net: nn.Module) -> list[nn.Module]:
    """List the layers of an MLP, a CNN or a (nested) `nn.Sequential` in order; raise an error if one has no known intervals."""
    if type(net) in (MLP, CNN):
        return known_layers(net.layers)  # type: ignore[arg-type]
    if type(net) is nn.Sequential:
        return [layer for part in net for layer in known_layers(part)]
    if type(net) not in _KNOWN:
        names = ", ".join(layer.__name__ for layer in _KNOWN)
        raise ValueError(
            f"The intervals of {type(net).__name__} are not known: use an nn.Sequential of {names}, or backbone 'mlp' or "
            "'cnn'."
        )
    return [net]


def bounds(layers: Sequence[nn.Module], x: Tensor, radii: Mapping[Tensor, Tensor]) -> Interval:
    """Bounds of the outputs of layers (as `known_layers` lists them) whose weights move within their intervals.

    The parameters are the centres, and ``radii`` maps each of them to its radius. The bounds hold for all weights in the box;
    they are sharp for one layer and only safe for several, since a weight may be at its lower end in the bound of one unit and
    at its upper end in that of another.
    """
    inside = Interval(x, x)
    for layer in layers:
        if isinstance(layer, _WEIGHTED):
            inside = _weighted(layer, inside, radii)
        elif isinstance(layer, _MONOTONE):
            inside = inside.map(layer, inside.positive or isinstance(layer, nn.ReLU))
    return inside


def worst_case(logits: Interval, y: Tensor) -> Tensor:
    """Logits of the worst net in the box: the lower bound for the right class, the upper ones for all others."""
    return logits.upper.scatter(1, y[:, None], logits.lower.gather(1, y[:, None]))


def _weighted(layer: nn.Linear | nn.Conv2d, x: Interval, radii: Mapping[Tensor, Tensor]) -> Interval:
    """Bounds of a layer with weights, ``w x + b``."""
    product: Product = F.linear
    if isinstance(layer, nn.Conv2d):
        if x.lower.ndim == 3:  # grey images without a channel, which the CNN takes too
            x = x.map(lambda image: image.unsqueeze(1), x.positive)
        convolve = layer._conv_forward  # knows stride, groups and padding mode
        product = lambda x, weight: convolve(x, weight, None)  # noqa: E731
    found = _products(product, x, layer.weight, radii[layer.weight])
    if layer.bias is None:
        return found
    bias = layer.bias if isinstance(layer, nn.Linear) else layer.bias[:, None, None]
    return found + Interval.around(bias, radii[layer.bias].reshape(bias.shape))


def _products(product: Product, x: Interval, centre: Tensor, radius: Tensor) -> Interval:
    """Bounds of ``w x``."""
    if x.is_point:  # w x lies within c x ± r |x|
        return Interval.around(product(x.lower, centre), product(x.lower.abs(), radius))
    weight = Interval.around(centre, radius)
    if x.positive:
        return _positive_products(product, x, weight)
    # x = x⁺ − x⁻, each of them positive.
    above = Interval(x.lower.clamp_min(0), x.upper.clamp_min(0))
    below = Interval((-x.upper).clamp_min(0), (-x.lower).clamp_min(0))
    return _positive_products(product, above, weight) - _positive_products(product, below, weight)


def _positive_products(product: Product, x: Interval, weight: Interval) -> Interval:
    """Bounds of ``w x`` for positive ``x``: the smallest has the smallest ``w``, and the smallest ``x`` if ``w > 0``."""
    lower, upper = weight.lower, weight.upper
    return Interval(
        product(x.lower, lower.clamp_min(0)) + product(x.upper, lower.clamp_max(0)),
        product(x.upper, upper.clamp_min(0)) + product(x.lower, upper.clamp_max(0)),
    )


@dataclass(frozen=True)
class ICNetConfig(GradientConfig):
    """Settings of InterContiNet."""

    threshold: float = 0.8  # share of what the centre is right on that the worst net in the box has to be right on
    radius: float = 0.1  # the largest radius
    radius_share: float = 1 / 3  # share of a task's steps, the last ones, in which the radii are found

    limits: ClassVar = {
        "threshold": SHARE,
        "radius": FINITE_POSITIVE,
        "radius_share": Limit(lambda value: 0 < value < 1, "lie between 0 and 1"),
    }


class ICNet(GradientLearner):
    """Continual learning with interval weights, for nets of layers whose intervals are known.

    References
    ----------
    M. Wołczyk et al., "Continual Learning with Guarantees via Weight Interval Constraints", ICML 2022.
    https://arxiv.org/abs/2206.07996
    """

    title = "ICNet"
    summary = "interval weights, each task's box inside the last (ICML 2022)"
    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {**GradientLearner.kinds, "radius": "intervals"}
    config_class = ICNetConfig
    running: ClassVar = ("optimizer", "room")
    ranges: ClassVar = {
        "lr": LEARNING_RATES,
        "threshold": Choice((0.5, 0.8, 0.9, 0.95)),
        "radius": LogUniform(0.01, 3.0),
    }
    config: ICNetConfig
    box: dict[str, Interval]
    room: dict[str, Tensor]

    def __init__(self, net: nn.Module, setting: Setting, config: ICNetConfig) -> None:
        known_layers(net)
        super().__init__(net, setting, config)
        self.radius = NamedTensors({name: torch.zeros_like(centre) for name, centre in self.named_parameters()})

    def start(self, task: TaskData) -> None:
        """Remember the box of the tasks so far. The first task has none."""
        super().start(task)
        self.room = {}
        self.box = {
            name: Interval.around(centre.detach(), self.radius[name])
            for name, centre in self.named_parameters()
            if self.tasks > 0
        }

    def observe(self, batch: Batch) -> Tensor:
        """Move the centres inside the box or, in the last part of a task, adapt its radii."""
        if batch.progress > 1 - self.config.radius_share:
            return self.observe_for_radii(batch.without_zeros())
        loss = super().observe(batch)
        with torch.no_grad():
            for name, within in self.box.items():
                self.get_parameter(name).clamp_(within.lower, within.upper)
        return loss

    def observe_for_radii(self, batch: Batch) -> Tensor:
        """Let the radii grow if the worst net in the box is good enough on a batch, else shrink them by its gradient."""
        self._begin_radii()
        if len(batch.x) == 0:
            return self.head.weight.new_zeros(())
        radii = {name: radius.detach().requires_grad_() for name, radius in self.radius.items()}
        worst = self.worst_case(batch, radii)
        loss = weighted_cross_entropy(worst, batch.y, batch.weight)
        gradients = torch.autograd.grad(loss, list(radii.values()))
        with torch.no_grad():
            enough = self._enough(self._known(batch, worst))
            effects = [radius * gradient for radius, gradient in zip(radii.values(), gradients, strict=True)]  # r ∂L/∂r
            mean = torch.stack([each.sum() for each in effects]).sum() / sum(each.numel() for each in effects)
            pressure = torch.where(enough, 0.0, 2 / mean.clamp_min(1e-30))
            # The rate decreases to zero at the end, and adds up to `REACH`.
            steps = max(self.config.radius_share * batch.steps, 1.0)
            rate = 2 * REACH / steps * min((1 - batch.progress) / self.config.radius_share + 1 / steps, 1.0)
            for (name, radius), each in zip(self.radius.items(), effects, strict=True):
                # log r += rate · (1 − 2 r ∂L/∂r / mean): what no worst net depends on grows in any case.
                shrinking = each.mul_(pressure).clamp_(max=1 + FASTEST)
                radius.mul_(shrinking.mul_(-rate).add_(rate).exp_()).clamp_(max=self.room[name])
        return loss.detach()

    @torch.no_grad()
    def finish(self, task: TaskData) -> None:
        """Shrink the box until the worst net in it is good enough on some samples of the task."""
        super().finish(task)
        self._begin_radii()
        order = torch.randperm(len(task), generator=self.generator)[:TRIED].to(task.x.device)
        for _ in range(100):
            batches = task.epoch(order, TRIED_AT_ONCE, 0, 1)
            radii = dict(self.radius.items())
            known = torch.stack([self._known(batch, self.worst_case(batch, radii)) for batch in batches]).sum(0)
            if bool(self._enough(known)):
                break
            for name, radius in radii.items():
                # Weights of future classes have no part in it and keep their radii.
                (radius[: self.seen] if name.startswith("head.") else radius).mul_(SHRINK)
        del self.box, self.room

    def worst_case(self, batch: Batch, radii: Mapping[str, Tensor]) -> Tensor:
        """Logits, over the classes seen, of the worst net in the box around the present weights."""
        of_centre: dict[Tensor, Tensor] = {centre: radii[name] for name, centre in self.named_parameters()}
        logits = bounds([*known_layers(self.net), self.head], self.scale(batch.x), of_centre)
        return worst_case(Interval(logits.lower[:, : self.seen], logits.upper[:, : self.seen]), batch.y)

    def _known(self, batch: Batch, worst: Tensor) -> Tensor:
        """Weight of the samples that both worst net and centre are right on, and of those that the centre is right on."""
        self.net.eval()  # bounds are those of evaluation mode
        right = self.score(self.scale(batch.x))[:, : self.seen].argmax(1) == batch.y
        self.net.train(self.training)
        weight = right.to(worst.dtype) if batch.weight is None else right * batch.weight
        return torch.stack([weight[worst.argmax(1) == batch.y].sum(), weight.sum()])

    def _enough(self, known: Tensor) -> Tensor:
        return known[0] >= self.config.threshold * known[1]

    def _begin_radii(self) -> None:
        """Compute the largest radii within the old box, once per task; the first box starts small, others at the largest."""
        if self.room:
            return
        for name, centre in self.named_parameters():
            within, radius = self.box.get(name), self.radius[name]
            if within is None:
                self.room[name] = torch.full_like(radius, self.config.radius)
                radius.fill_(self.config.radius * math.exp(-REACH))
            else:
                self.room[name] = torch.minimum(centre.detach() - within.lower, within.upper - centre.detach())
                radius.copy_(self.room[name].clamp_min_(0))
