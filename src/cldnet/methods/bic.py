"""BiC, bias correction: exemplars, distillation, and a line that corrects the logits of the newest classes.

Stage 1 trains on the task and the exemplars as one set:
``(1−λ) CE(f(x), y) + λ T² KL(softmax(f*(x)/T) ‖ softmax(f(x)/T))``, the second term over the classes that ``f*`` knew, the
corrected net before the task. ``λ = n_old / (n_old + n_new)`` in numbers of classes rises with every task. (Mammoth's
``1 / (t+1)`` falls instead. The paper's cross-entropy with ``f*`` differs from KL by a constant.) Stage 2 fits ``a z + b``, the
same two numbers for all new classes, on samples that stage 1 did not see. The next net learns corrected logits from its
teacher, so old classes need no line of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import AT_LEAST_ONE, FINITE_POSITIVE, LEARNING_RATES, NOT_NEGATIVE, POSITIVE, SHARE
from cldnet.methods.gradient import GradientConfig, GradientLearner, weighted_cross_entropy, weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData, Traits, predict_logits
from cldnet.methods.lwf import distillation
from cldnet.methods.parts.buffer import Buffer
from cldnet.methods.parts.teacher import Teacher
from cldnet.methods.parts.validation import chosen, counting_samples, held_out, hold_out


@dataclass(frozen=True)
class BiCConfig(GradientConfig):
    """Settings of exemplars, distillation and bias correction."""

    memory: int = 200  # exemplars of both kinds, to train on and held out
    temperature: float = 2.0
    validation: float = 0.1  # share of a class's samples that are held out; at least one of two. 0 for no correction
    bias_lr: float = 1e-3  # of Adam, in stage 2
    bias_epochs: int = 250
    bias_batch: int = 32

    limits: ClassVar = {
        "memory": NOT_NEGATIVE,
        "temperature": FINITE_POSITIVE,
        "validation": SHARE,
        "bias_lr": POSITIVE,
        "bias_epochs": NOT_NEGATIVE,
        "bias_batch": AT_LEAST_ONE,
    }


class Correction(nn.Module):
    """``a z + b`` for every class; ``a = 1, b = 0`` except for those of the last task."""

    def __init__(self, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.slope: Tensor = nn.Buffer(torch.ones(classes, dtype=dtype))
        self.offset: Tensor = nn.Buffer(torch.zeros(classes, dtype=dtype))

    def set(self, rows: slice, slope: float, offset: float) -> None:
        """Give some classes one line, and all others none."""
        self.slope.fill_(1)[rows] = slope
        self.offset.zero_()[rows] = offset

    def forward(self, logits: Tensor) -> Tensor:
        return logits * self.slope + self.offset


class BiC(GradientLearner):
    """Exemplars, distillation and bias correction.

    Exemplars are random, ``memory // classes seen`` of every class; the authors choose them by herding. One that was held out
    of stage 1 stays so in later tasks. In stage 2 every class weighs the same; the authors hold out equally many of each. A
    class that comes back counts as new in λ, but keeps its logit: stage 2 is left out if no class is new.

    References
    ----------
    Y. Wu et al., "Large Scale Incremental Learning", CVPR 2019. https://arxiv.org/abs/1905.13260
    """

    title = "BiC"
    summary = "exemplars, distillation and bias correction of the newest logits (CVPR 2019)"
    traits = Traits(rehearsal_free=False, constant_size=True)
    kinds: ClassVar = {
        **GradientLearner.kinds,
        "correction": "weights",
        **dict.fromkeys(("teacher", "taught"), "teacher"),
        **dict.fromkeys(("buffer", "held"), "exemplars"),
    }
    config_class = BiCConfig
    ranges: ClassVar = {"lr": LEARNING_RATES}
    config: BiCConfig

    _out: Tensor  # which of the task's samples are held out
    _arrived: int  # number of classes in the task

    def __init__(self, net: nn.Module, setting: Setting, config: BiCConfig) -> None:
        super().__init__(net, setting, config)
        self.correction = Correction(setting.capacity, setting.dtype)
        self.teacher = Teacher(self, ("net", "head", "correction"))
        self.taught: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))  # number of classes that the teacher knows
        self.buffer = Buffer(0, torch.zeros(0, *setting.input_shape))
        self.held: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))  # exemplars held out, in the first places

    def rehearse(self, task: TaskData) -> TaskData:
        """Hold out a part of the task, and join the rest with the exemplars to train on."""
        self._out = hold_out(task, self.config.validation, self.generator)
        own = chosen(task, ~self._out)
        x, y, weight = own.x, own.y, own.weight
        if len(self.buffer):
            self.buffer.check(task.x)
            old = self.buffer.take(torch.arange(int(self.held), len(self.buffer)))
            x, y = torch.cat([x, old.x.to(x.device)]), torch.cat([y, old.y.to(y.device)])
            weight = None if weight is None else torch.cat([weight, weight.new_ones(len(old.y))])
        return TaskData(x, y, weight)

    def start(self, task: TaskData) -> None:
        """Make the buffer once the inputs' type is known; train without a correction, which only the teacher keeps."""
        super().start(task)
        if self.tasks == 0:
            self.buffer = Buffer(self.config.memory, task.x)
        self.correction.set(slice(0), 1, 0)
        self._arrived = len(task.class_rows)

    def loss(self, batch: Batch) -> Tensor:
        """Stage 1: cross-entropy over the classes seen, and distillation over those that the teacher knows."""
        known = int(self.taught)
        x = self.scale(batch.x)
        logits = self.score(x)[:, : self.seen]
        losses = F.cross_entropy(logits, batch.y, reduction="none")
        if known > 0:
            share = known / (known + self._arrived)  # λ
            distance = distillation(logits[:, :known], self.teacher(self, x)[:, :known], self.config.temperature)
            losses = (1 - share) * losses + share * distance
        return weighted_mean(losses, batch.weight)

    def score(self, x: Tensor) -> Tensor:
        corrected: Tensor = self.correction(super().score(x))
        return corrected

    def forward(self, x: Tensor) -> Tensor:
        """Logits of scaled inputs; the teacher calls it with its own weights and correction."""
        return self.score(x)

    def finish(self, task: TaskData) -> None:
        """Stage 2; then renew exemplars and teacher."""
        super().finish(task)
        self._correct(task)
        self._remember(task)
        self.teacher.copy_from(self)
        self.taught.fill_(self.seen)
        del self._out, self._arrived

    def _correct(self, task: TaskData) -> None:
        """Fit the new classes' line on the samples held out, if there are old and new ones."""
        known, old = int(self.taught), self.buffer.take(torch.arange(int(self.held)))
        y = torch.cat([old.y, task.y[self._out].to(old.y.device)])
        if not (bool((y < known).any()) and bool((y >= known).any())):
            return
        ones = torch.ones(len(task), device=y.device) if task.weight is None else task.weight.to(y.device)
        weight = torch.cat([ones.new_ones(len(old.y)), ones[self._out.to(y.device)]])
        logits = predict_logits(self, torch.cat([old.x, task.x[self._out].to(old.x.device)]))
        self.correction.set(slice(known, self.seen), *fit_line(logits, y, weight, known, self.config, self.generator))

    def _remember(self, task: TaskData) -> None:
        """Keep equally many random samples of every class, some of them held out."""
        places, former = len(self.buffer.x), self.buffer.take(torch.arange(len(self.buffer)))
        counting = counting_samples(task)
        x = torch.cat([former.x, task.x[counting].to(former.x.device)])
        y = torch.cat([former.y, task.y[counting].to(former.y.device)])
        was_held = torch.arange(len(former.y), device=y.device) < self.held.to(y.device)
        out = torch.cat([was_held, self._out[counting].to(y.device)])
        order, count = self._shuffled(torch.arange(len(y), device=y.device)), places // self.seen
        kept_out, kept = list[Tensor](), list[Tensor]()
        for row in y.unique():
            own = order[y[order] == row]
            kept_out.append(own[out[own]][: held_out(count, self.config.validation)])
            kept.append(own[~out[own]][: count - len(kept_out[-1])])
        index = torch.cat(kept_out + kept)
        self.buffer = Buffer(places, x)
        self.buffer.put(torch.arange(len(index)), x[index], y[index])
        self.buffer.met.fill_(len(index))
        self.held.fill_(sum(map(len, kept_out)))

    def _shuffled(self, numbers: Tensor) -> Tensor:
        return numbers[torch.randperm(len(numbers), generator=self.generator).to(numbers.device)]

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        self.buffer = Buffer.like_state(state, "buffer.")


def fit_line(
    logits: Tensor, y: Tensor, weight: Tensor, known: int, config: BiCConfig, generator: torch.Generator
) -> tuple[float, float]:
    """Fit ``a`` and ``b`` of ``a z + b``, for the logits from class ``known`` on, by Adam; every class weighs the same."""
    totals = weight.new_zeros(logits.shape[1]).index_add(0, y, weight)
    balanced = (weight / totals[y]).to(logits.dtype)
    balanced = balanced / balanced.mean()
    line = torch.tensor([1.0, 0.0], dtype=logits.dtype, device=logits.device, requires_grad=True)
    optimizer = torch.optim.Adam([line], lr=config.bias_lr)
    for _ in range(config.bias_epochs):
        for part in torch.randperm(len(y), generator=generator).to(y.device).split(config.bias_batch):
            old, new = logits[part, :known], logits[part, known:]
            loss = weighted_cross_entropy(torch.cat([old, line[0] * new + line[1]], 1), y[part], balanced[part])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    slope, offset = line.tolist()
    return slope, offset
