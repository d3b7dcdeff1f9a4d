"""DMC, deep model consolidation (Zhang et al., WACV 2020): two teachers, and unlabelled inputs from outside the stream.

A fresh model learns the new task's classes alone. Then it and the old model teach a fresh student, on inputs that nobody has
labelled: the student's scores are drawn to those of both teachers ("double distillation"). No training example is kept, but
without outside inputs that are something like the stream's there is nothing to distil on. Between tasks only the student is
kept, and the initial weights, which everything fresh begins with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.batch import Augmentation
from cldnet.methods.gradient import GradientConfig, GradientLearner, weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.tensors import NamedTensors
from cldnet.methods.ranges import LEARNING_RATES, LogUniform
from cldnet.nets.frozen import learning_state

__all__ = ["DMC", "DMCConfig", "double_targets"]


@dataclass(frozen=True)
class DMCConfig(GradientConfig):
    """Settings of consolidation.

    Attributes
    ----------
    distil_lr : float
        Learning rate of the student; it falls to zero along a line.
    distil : float
        Steps of the student for every step that the task had.
    distil_batch : int
        Outside inputs a step of the student.
    """

    distil_lr: float = 0.05
    distil: float = 1.0
    distil_batch: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("distil_lr", "distil"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} should be a positive number.")
        if not self.distil_batch >= 1:
            raise ValueError(f"distil_batch={self.distil_batch} should be at least 1.")


class DMC(GradientLearner):
    """Train a fresh model on the task, in `observe`; consolidate it with the old one on outside inputs, in `finish`."""

    traits = Traits(rehearsal_free=True, constant_size=True, outside_data=True)
    kinds: ClassVar = {
        "net": "weights",
        "head": "weights",
        "known": "counters",
        "initial_net": "initial weights",
        "initial_head": "initial weights",
    }
    config_class = DMCConfig
    running: ClassVar = ("optimizer", "_steps")
    ranges: ClassVar = {"lr": LEARNING_RATES, "distil_lr": LogUniform(0.003, 0.3)}
    config: DMCConfig

    known: Tensor
    _augment: Augmentation | None

    def __init__(self, net: nn.Module, setting: Setting, config: DMCConfig) -> None:
        super().__init__(net, setting, config)
        self.initial_net = NamedTensors(learning_state(self.net))
        self.initial_head = NamedTensors(self.head.state_dict())
        self.register_buffer("known", torch.zeros(setting.capacity, dtype=torch.bool))

    def start(self, task: TaskData) -> None:
        """Put the old model aside as a teacher, and begin a fresh one."""
        self._rows, self._steps, self._augment = task.rows, 0, None
        if self.tasks:
            self._old = self._teacher()
            self._begin_anew()
        super().start(task)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the task's own classes."""
        self._steps, self._augment = batch.steps, batch.augment
        logits = self.score(self.scale(batch.x)).index_select(1, self._rows)
        target = torch.searchsorted(self._rows, batch.y)
        return weighted_mean(F.cross_entropy(logits, target, reduction="none"), batch.weight)

    def finish(self, task: TaskData) -> None:
        """Let the old model and the new one teach a student, which takes their place."""
        super().finish(task)
        if self.tasks:
            new = self._teacher()
            self._begin_anew()
            self._consolidate(self._old, new)
            del self._old
        self.known[task.rows] = True
        del self._rows, self._steps, self._augment

    def _begin_anew(self) -> None:
        self.net.load_state_dict({**self.net.state_dict(), **dict(self.initial_net.items())})
        self.head.load_state_dict(dict(self.initial_head.items()))

    def _teacher(self) -> Callable[[Tensor], Tensor]:
        """The present model, frozen: a function, so that it is no part of the state."""
        net, head = copy.deepcopy(self.net).eval(), copy.deepcopy(self.head)
        return torch.no_grad()(lambda x: head(net(x)))

    def _consolidate(self, old: Callable[[Tensor], Tensor], new: Callable[[Tensor], Tensor]) -> None:
        """Draw the student's scores of outside inputs to both teachers', with a learning rate that falls to zero."""
        self.train()
        optimizer = torch.optim.SGD(self.parameters(), lr=self.config.distil_lr, momentum=self.config.momentum)
        steps = max(1, round(self.config.distil * self._steps))
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = self.config.distil_lr * (1 - step / steps)
            x = self._drawn()
            target, taught = double_targets(old(x), new(x), self.known, self._rows)
            loss = (self.score(x) - target)[:, taught].square().mean()  # L_dd = 1/(s+t) Σ_j (ŷ_j − ẙ_j)²
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters(), self.config.clip)
            optimizer.step()
        self.zero_grad(set_to_none=True)
        self.eval()

    def _drawn(self) -> Tensor:
        """A batch of outside inputs, varied as the task's are, and scaled."""
        assert self.outside is not None
        index = torch.randint(len(self.outside), (self.config.distil_batch,), generator=self.generator)
        x = self.outside.index_select(0, index.to(self.outside.device)).to(self.counters.device)
        augment = self._augment
        scaled: Tensor = self.scale(x if augment is None else augment(x, self.generator))
        return scaled


def double_targets(old: Tensor, new: Tensor, known: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """What the student's scores should be, and of which class rows: both teachers' scores, each without its mean.

    The mean is a sample's own, over the classes that the teacher knows (FACIL's code subtracts
    every class's mean over the batch): it is what a softmax takes no notice of, so nothing that the teacher knows is lost,
    and no sample's target hangs on its neighbours. A class that both know, since it came back, gets the mean of both.

    Parameters
    ----------
    old, new : Tensor, shape (n, capacity)
        Scores of both teachers.
    known : Tensor of bool, shape (capacity,)
        Class rows that the old teacher knows.
    rows : Tensor
        Class rows that the new teacher knows.

    Examples
    --------
    >>> old, new = torch.tensor([[5.0, 3.0, 9.0, 9.0]]), torch.tensor([[9.0, 9.0, 1.0, 7.0]])
    >>> double_targets(old, new, torch.tensor([True, True, False, False]), torch.tensor([2, 3]))
    (tensor([[ 1., -1., -3.,  3.]]), tensor([True, True, True, True]))
    """
    fresh = torch.zeros_like(known).index_fill(0, rows, True)
    total = torch.zeros_like(old)
    for scores, mask in ((old, known), (new, fresh)):
        own = mask.to(scores.dtype)
        mean = (scores * own).sum(1, keepdim=True) / own.sum().clamp(min=1)
        total += (scores - mean) * own
    return total / (1 + (known & fresh).to(total.dtype)), known | fresh
