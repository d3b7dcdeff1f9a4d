"""DMC, deep model consolidation: two teachers, and unlabelled inputs from outside the stream.

A fresh model learns the new task's classes alone. Then it and the old model teach a fresh student on unlabelled inputs: the
student's scores are drawn to those of both teachers ("double distillation"). No training sample is kept, but the inputs from
outside should resemble the stream's. Between tasks only the student is kept, and the initial weights of fresh models.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.data.arrays import Augmentation
from cldnet.methods.config import AT_LEAST_ONE, LEARNING_RATES, POSITIVE, LogUniform
from cldnet.methods.gradient import GradientConfig, GradientLearner, NamedTensors, weighted_cross_entropy
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.nets.frozen import learning_state


@dataclass(frozen=True)
class DMCConfig(GradientConfig):
    """Settings of consolidation."""

    distil_lr: float = 0.05  # learning rate of the student; it decreases linearly to zero
    distil: float = 1.0  # steps of the student for every step of the task
    distil_batch: int = 128  # outside inputs per step of the student

    limits: ClassVar = {"distil_lr": POSITIVE, "distil": POSITIVE, "distil_batch": AT_LEAST_ONE}


class DMC(GradientLearner):
    """Train a fresh model on the task, in `observe`; consolidate it with the old one on outside inputs, in `finish`.

    References
    ----------
    J. Zhang et al., "Class-incremental Learning via Deep Model Consolidation", WACV 2020. https://arxiv.org/abs/1903.07864
    """

    title = "DMC"
    summary = "deep model consolidation on unlabelled inputs from outside (WACV 2020)"
    traits = Traits(rehearsal_free=True, constant_size=True, outside_data=True)
    kinds: ClassVar = {
        **GradientLearner.kinds,
        "known": "counters",
        "initial_net": "initial weights",
        "initial_head": "initial weights",
    }
    config_class = DMCConfig
    running: ClassVar = ("optimizer", "_steps")
    ranges: ClassVar = {"lr": LEARNING_RATES, "distil_lr": LogUniform(0.003, 0.3)}
    config: DMCConfig

    _augment: Augmentation | None

    def __init__(self, net: nn.Module, setting: Setting, config: DMCConfig) -> None:
        super().__init__(net, setting, config)
        self.outside: Tensor | None = None
        self.initial_net = NamedTensors(learning_state(self.net))
        self.initial_head = NamedTensors(self.head.state_dict())
        self.known: Tensor = nn.Buffer(torch.zeros(setting.capacity, dtype=torch.bool))

    def take_outside(self, x: Tensor) -> None:
        """Take unlabelled inputs ``(n, …)`` from outside the stream, in its units."""
        if not len(x) or tuple(x.shape[1:]) != self.setting.input_shape:
            raise ValueError(
                f"The outside data have the shape {tuple(x.shape)}; expected one or more inputs of the stream's shape, "
                f"(n, {', '.join(map(str, self.setting.input_shape))})."
            )
        self.outside = x

    def begin_task(self, task: TaskData) -> None:
        """Refuse to learn without outside data."""
        if self.outside is None:
            raise ValueError(
                f"{type(self).__name__} also learns from unlabelled inputs from outside the stream: pass them to "
                "take_outside(x) before the first task, and again after loading."
            )
        super().begin_task(task)

    def start(self, task: TaskData) -> None:
        """Keep the old model as a teacher, and start a fresh one."""
        self._classes, self._steps, self._augment = task.class_rows, 0, None
        if self.tasks:
            self._old = self._teacher()
            self._reset_weights()
        super().start(task)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the task's own classes."""
        self._steps, self._augment = batch.steps, batch.augment
        logits = self.score(self.scale(batch.x)).index_select(1, self._classes)
        return weighted_cross_entropy(logits, torch.searchsorted(self._classes, batch.y), batch.weight)

    def finish(self, task: TaskData) -> None:
        """Let the old model and the new one teach a student, which replaces both."""
        super().finish(task)
        if self.tasks:
            new = self._teacher()
            self._reset_weights()
            self._consolidate(self._old, new)
            del self._old
        self.known[task.class_rows] = True
        del self._classes, self._steps, self._augment

    def _reset_weights(self) -> None:
        self.net.load_state_dict({**self.net.state_dict(), **dict(self.initial_net.items())})
        self.head.load_state_dict(dict(self.initial_head.items()))

    def _teacher(self) -> Callable[[Tensor], Tensor]:
        """The present model, frozen: a function, so that it is not part of the state."""
        net, head = copy.deepcopy(self.net).eval(), copy.deepcopy(self.head)
        return torch.no_grad()(lambda x: head(net(x)))

    def _consolidate(self, old: Callable[[Tensor], Tensor], new: Callable[[Tensor], Tensor]) -> None:
        """Train the student on the teachers' scores of outside inputs, with a learning rate that decreases to zero."""
        self.train()
        optimizer = torch.optim.SGD(self.parameters(), lr=self.config.distil_lr, momentum=self.config.momentum)
        steps = max(1, round(self.config.distil * self._steps))
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = self.config.distil_lr * (1 - step / steps)
            x = self._outside_batch()
            target, taught = double_targets(old(x), new(x), self.known, self._classes)
            loss = (self.score(x) - target)[:, taught].square().mean()  # L_dd = 1/(s+t) Σ_j (ŷ_j − ẙ_j)²
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters(), self.config.clip)
            optimizer.step()
        self.zero_grad(set_to_none=True)
        self.eval()

    def _outside_batch(self) -> Tensor:
        """Scaled outside inputs, augmented as the task's are."""
        assert self.outside is not None
        index = torch.randint(len(self.outside), (self.config.distil_batch,), generator=self.generator)
        x = self.outside.index_select(0, index.to(self.outside.device)).to(self.counters.device)
        augment = self._augment
        scaled: Tensor = self.scale(x if augment is None else augment(x, self.generator))
        return scaled


def double_targets(old: Tensor, new: Tensor, known: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets for the student's scores and a mask of the classes that have one: both teachers' centred scores.

    Each teacher's scores ``(n, capacity)`` are centred per sample over the classes that it knows: ``known`` is the old
    teacher's mask, ``classes`` are the new teacher's indices. A softmax ignores this mean, so nothing is lost. (FACIL's code
    subtracts every class's mean over the batch.) A class that both know gets the mean of both.
    """
    fresh = torch.zeros_like(known).index_fill(0, classes, True)
    total = torch.zeros_like(old)
    for scores, mask in ((old, known), (new, fresh)):
        own = mask.to(scores.dtype)
        mean = (scores * own).sum(1, keepdim=True) / own.sum().clamp(min=1)
        total += (scores - mean) * own
    return total / (1 + (known & fresh).to(total.dtype)), known | fresh
