"""The one training loop. It knows `observe` and nothing about any method."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from cldnet.device import isolated_rng
from cldnet.methods.batch import Augmentation
from cldnet.methods.learner import Learner, TaskData
from cldnet.nets import may_draw

__all__ = ["Progress", "TaskReport", "fit_task", "log_tenths", "portions", "predict_logits"]

#: Numbers in a batch of inputs that are only scored.
_NUMBERS = 1 << 22

_log = logging.getLogger("cldnet")


@dataclass(frozen=True)
class Progress:
    """Where a task stands: steps done and steps in all."""

    step: int
    steps: int


@dataclass(frozen=True)
class TaskReport:
    """What learning a task took: the mean loss of each epoch, and seconds."""

    losses: list[float]
    seconds: float


def fit_task(
    learner: Learner,
    task: TaskData,
    *,
    epochs: int,
    batch_size: int,
    on_step: Callable[[Progress], None] | None = None,
    on_epoch: Callable[[int], None] | None = None,
    augment: Augmentation | None = None,
) -> TaskReport:
    """Teach a learner one task: begin it, observe its batches in a fresh random order each epoch, end it.

    Parameters
    ----------
    learner : Learner
        It is changed. Its own generator shuffles, so a resumed run goes on as an uninterrupted one.
    task : TaskData
        Examples with class rows.
    epochs, batch_size : int
        Passes over the data (one for a learner that wants one) and examples a step (more for a learner that wants more).
    on_step : callable, optional
        Told the progress after every step.
    on_epoch : callable, optional
        Told the number of every epoch that is finished; it may score inputs, and must change nothing.
    augment : callable, optional
        Given a batch's inputs and the learner's own generator, it returns the inputs to observe, such as a
        `cldnet.data.augment.Augment`. What happens at the task's beginning and end sees the examples as they are.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((2,), capacity=2, seed=0))
    >>> task = TaskData(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> report = fit_task(learner, task, epochs=3, batch_size=2)
    >>> len(report.losses), learner.tasks
    (3, 1)
    """
    begun = time.perf_counter()
    learner.check_outside()
    epochs = 1 if learner.traits.one_pass else epochs
    losses: list[float] = []
    batch_size = max(batch_size, learner.min_batch)
    isolated = isolated_rng(learner.generator, task.x.device) if may_draw(learner) else nullcontext()
    with isolated:
        data = learner.rehearse(task)
        learner.begin_task(task)
        for epoch in range(epochs):
            order = torch.randperm(len(data), generator=learner.generator).to(data.x.device)
            total: Tensor | float = 0.0
            batches = 0
            for plain in data.epoch(order, batch_size, epoch, epochs):
                batch = plain if augment is None else plain.augmented(augment, learner.generator)
                total = total + learner.observe(batch)
                batches += 1
                if on_step is not None:
                    on_step(Progress(batch.step + 1, batch.steps))
            losses.append(float(total) / batches)
            if on_epoch is not None:
                on_epoch(epoch)
        learner.end_task(task)
    return TaskReport(losses, time.perf_counter() - begun)


def predict_logits(learner: Learner, x: Tensor, batch_size: int | None = None, task: int | None = None) -> Tensor:
    """Scores of inputs over the classes seen, in batches; with the number of their task, if it is told.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((2,), capacity=2, seed=0))
    >>> _ = fit_task(learner, TaskData(torch.eye(2), torch.tensor([0, 1])), epochs=1, batch_size=2)
    >>> predict_logits(learner, torch.zeros(5, 2), batch_size=2).shape
    torch.Size([5, 2])
    """
    parts = portions(x) if batch_size is None else x.split(batch_size)
    return torch.cat([learner.logits(part) if task is None else learner.logits_in(part, task) for part in parts])


def portions(x: Tensor) -> tuple[Tensor, ...]:
    """Inputs in batches to be scored: 1,024 small images, fewer large ones, since a net needs many times their size.

    Examples
    --------
    >>> [len(part) for part in portions(torch.zeros(1500, 3))]
    [1024, 476]
    """
    return tuple(x.split(max(1, min(1024, _NUMBERS // max(1, x[:1].numel())))))


def log_tenths(progress: Progress) -> None:
    """Write a line to the logger ``cldnet`` at every tenth of a task."""
    if progress.step % max(progress.steps // 10, 1) == 0:
        _log.info("step %d of %d", progress.step, progress.steps)
