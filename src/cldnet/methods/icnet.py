"""InterContiNet (Wołczyk et al., ICML 2022): every weight has an interval, and later tasks stay inside those of earlier ones.

The box ``centre ± radius`` of all weights, those of the head included, is such that *every* net in it knows the task, as far
as interval arithmetic can tell. The box of a task lies in the one before, so whatever is learned later, the net stays one
that knew the earlier tasks (among the classes that there were at the time: in class-IL, new classes can still win).

The steps of a task have two parts. In the first the centres learn, by plain gradient descent; from the second task on they are
put back into the box after every step. In the last ``radius_share`` of the steps the centres rest and the box is made as
large as the task allows: all radii grow while the worst net in the box is right on ``threshold`` of what the centre is right
on, else they shrink by the gradient of the worst net's cross-entropy. At rest ``r_i ∂L/∂r_i`` is then alike for all weights,
which is where the volume ``Σ log r_i`` of the box is largest for a given loss. The paper keeps centres and radii in the old
box by ``tanh`` and a sigmoid, and starts from the largest box instead of a small one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.gradient import GradientConfig, GradientLearner, weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.intervals import Interval, bounds, known_layers, worst_case
from cldnet.methods.parts.tensors import NamedTensors
from cldnet.methods.ranges import LEARNING_RATES, Choice, LogUniform

__all__ = ["ICNet", "ICNetConfig"]

#: How far, on a logarithmic scale, radii can come in a task; the first task's start that far below the largest.
REACH = 10.0
#: How many times faster than the average a radius may shrink.
FASTEST = 4.0
#: Examples on which the box is tried at the end, so many at once; it shrinks until the worst net in it is good enough.
TRIED = 2048
TRIED_AT_ONCE = 128
SHRINK = 0.7


@dataclass(frozen=True)
class ICNetConfig(GradientConfig):
    """Settings of InterContiNet.

    Attributes
    ----------
    threshold : float
        Share of what the centre is right on that the worst net in the box has to be right on.
    radius : float
        The largest radius.
    radius_share : float
        Share of a task's steps, the last ones, in which the radii are found.
    """

    threshold: float = 0.8
    radius: float = 0.1
    radius_share: float = 1 / 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} should lie in [0, 1].")
        if not 0 < self.radius < math.inf:
            raise ValueError(f"radius={self.radius} should be a positive number.")
        if not 0 < self.radius_share < 1:
            raise ValueError(f"radius_share={self.radius_share} should lie between 0 and 1.")


class ICNet(GradientLearner):
    """Continual learning with interval weights, over nets of layers whose intervals are known."""

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "radius": "intervals"}
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
        """Remember the box of the tasks so far. The first task may go anywhere."""
        super().start(task)
        self.room = {}
        self.box = {
            name: Interval.around(centre.detach(), self.radius[name])
            for name, centre in self.named_parameters()
            if self.tasks > 0
        }

    def observe(self, batch: Batch) -> Tensor:
        """Move the centres inside the box, or, in the last part of a task, find its radii."""
        if batch.progress > 1 - self.config.radius_share:
            return self.observe_for_radii(batch.without_zeros())
        loss = super().observe(batch)
        with torch.no_grad():
            for name, within in self.box.items():
                self.get_parameter(name).clamp_(within.lower, within.upper)
        return loss

    def observe_for_radii(self, batch: Batch) -> Tensor:
        """Let the radii grow if the worst net in the box is good enough on a batch, or shrink by its gradient."""
        self._begin_radii()
        if len(batch.x) == 0:
            return self.head.weight.new_zeros(())
        radii = {name: radius.detach().requires_grad_() for name, radius in self.radius.items()}
        worst = self.worst_case(batch, radii)
        loss = weighted_mean(F.cross_entropy(worst, batch.y, reduction="none"), batch.weight)
        gradients = torch.autograd.grad(loss, list(radii.values()))
        with torch.no_grad():
            enough = self._enough(self._known(batch, worst))
            felt = [radius * gradient for radius, gradient in zip(radii.values(), gradients, strict=True)]  # r ∂L/∂r
            mean = torch.stack([each.sum() for each in felt]).sum() / sum(each.numel() for each in felt)
            pressure = torch.where(enough, 0.0, 2 / mean.clamp_min(1e-30))
            rate = self._rate(batch)
            for (name, radius), each in zip(self.radius.items(), felt, strict=True):
                # log r += rate · (1 − 2 r ∂L/∂r / mean): what no worst net depends on grows in any case.
                shrinking = each.mul_(pressure).clamp_(max=1 + FASTEST)
                radius.mul_(shrinking.mul_(-rate).add_(rate).exp_()).clamp_(max=self.room[name])
        return loss.detach()

    @torch.no_grad()
    def finish(self, task: TaskData) -> None:
        """Shrink the box until the worst net in it is good enough on a sample of the task."""
        super().finish(task)
        self._begin_radii()
        order = torch.randperm(len(task), generator=self.generator)[:TRIED].to(task.x.device)
        for _ in range(100):
            sample = task.epoch(order, TRIED_AT_ONCE, 0, 1)
            radii = dict(self.radius.items())
            known = torch.stack([self._known(batch, self.worst_case(batch, radii)) for batch in sample]).sum(0)
            if bool(self._enough(known)):
                break
            for name, radius in radii.items():
                # What stands for classes still to come has no part in it, and should keep its room.
                (radius[: self.seen] if name.startswith("head.") else radius).mul_(SHRINK)
        del self.box, self.room

    def worst_case(self, batch: Batch, radii: Mapping[str, Tensor]) -> Tensor:
        """Give the logits, over the classes seen, of the worst net in the box around the present weights."""
        of_centre: dict[Tensor, Tensor] = {centre: radii[name] for name, centre in self.named_parameters()}
        logits = bounds([*known_layers(self.net), self.head], self.scale(batch.x), of_centre)
        return worst_case(Interval(logits.lower[:, : self.seen], logits.upper[:, : self.seen]), batch.y)

    def _known(self, batch: Batch, worst: Tensor) -> Tensor:
        """Weight of the rows that the worst net and the centre are right on, and of those that the centre is right on."""
        self.net.eval()  # bounds are those of the net as it answers
        right = self.score(self.scale(batch.x))[:, : self.seen].argmax(1) == batch.y
        self.net.train(self.training)
        weight = right.to(worst.dtype) if batch.weight is None else right * batch.weight
        return torch.stack([weight[worst.argmax(1) == batch.y].sum(), weight.sum()])

    def _enough(self, known: Tensor) -> Tensor:
        return known[0] >= self.config.threshold * known[1]

    def _begin_radii(self) -> None:
        """Find the room that every radius has in the old box, once a task; the first box starts small, others fill the room."""
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

    def _rate(self, batch: Batch) -> float:
        """Rate of change of the radii's logarithms: it falls to nothing at the end, and adds up to `REACH`."""
        steps = max(self.config.radius_share * batch.steps, 1.0)
        return 2 * REACH / steps * min((1 - batch.progress) / self.config.radius_share + 1 / steps, 1.0)
