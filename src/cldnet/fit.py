"""The one training loop. It knows `observe` and nothing about any method."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from cldnet.device import isolated_rng
from cldnet.methods.batch import Augmentation
from cldnet.methods.learner import Learner, TaskData
from cldnet.methods.running import load_running, running_state
from cldnet.nets import may_draw

__all__ = ["Midway", "Progress", "TaskReport", "fit_task", "log_tenths", "portions", "predict_logits"]

#: Numbers in a batch of inputs that are only scored.
_NUMBERS = 1 << 22

_log = logging.getLogger("cldnet")


@dataclass(frozen=True)
class Progress:
    """Where a task stands: steps done and steps in all."""

    step: int
    steps: int


@dataclass(frozen=True)
class Midway:
    """A task that is learned in part: all that it takes to go on with it, besides the learner as it was before the task.

    Attributes
    ----------
    state, running : mapping of Tensor
        What the learner keeps, and what it holds in the middle of a task only.
    order : Tensor
        The running epoch's order of examples.
    chance : Tensor
        State of torch's own generator, which modules such as dropout draw from.
    losses, total : Tensor
        Mean losses of the epochs that are finished, and the sum of the running one.
    epoch, batches : int
        Epochs that are finished, and batches of the running one.
    """

    state: Mapping[str, Tensor]
    running: Mapping[str, Tensor]
    order: Tensor
    chance: Tensor
    losses: Tensor
    total: Tensor
    epoch: int
    batches: int


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
    midway: Midway | None = None,
    on_midway: Callable[[Callable[[], Midway]], None] | None = None,
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
    midway : Midway, optional
        Where to go on, with a learner as it was before this very task; the same bits come out as without a break.
    on_midway : callable, optional
        Called after every step but the last with a function that gives the task as it stands, if that is wanted.

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
    batch_size = max(batch_size, learner.min_batch)
    draws = may_draw(learner)
    with isolated_rng(learner.generator, task.x.device) if draws else nullcontext():
        data = learner.rehearse(task)
        learner.begin_task(task)
        losses, done = _gone_on(learner, midway, draws)
        for epoch in range(len(losses), epochs):
            if midway is None or epoch > midway.epoch:
                order, total = torch.randperm(len(data), generator=learner.generator), torch.zeros(())
                done = 0
            else:
                order, total = midway.order, midway.total
            total = total.to(data.x.device)
            for number, plain in enumerate(data.epoch(order.to(data.x.device), batch_size, epoch, epochs)):
                if number < done:
                    continue
                batch = plain if augment is None else plain.augmented(augment, learner.generator)
                total = total + learner.observe(batch)
                if on_step is not None:
                    on_step(Progress(batch.step + 1, batch.steps))
                if on_midway is not None and batch.step + 1 < batch.steps:
                    on_midway(partial(_midway, learner, order, losses, total, number + 1))
            losses.append(float(total) / (number + 1))
            if on_epoch is not None:
                on_epoch(epoch)
        learner.end_task(task)
    return TaskReport(losses, time.perf_counter() - begun)


def _midway(learner: Learner, order: Tensor, losses: list[float], total: Tensor, batches: int) -> Midway:
    state = {name: tensor.detach().clone() for name, tensor in learner.state_dict().items()}
    means = torch.tensor(losses, dtype=torch.float64)
    chance = torch.get_rng_state()
    return Midway(state, running_state(learner), order, chance, means, total.cpu(), len(losses), batches)


def _gone_on(learner: Learner, midway: Midway | None, draws: bool) -> tuple[list[float], int]:
    """Bring a learner whose task has begun to where it was; tell the losses and the running epoch's batches until then."""
    if midway is None:
        return [], 0
    try:
        if not torch.equal(midway.state["counters"], learner.counters.cpu()):  # they change at a task's ends alone
            raise ValueError("it counted other tasks or classes")
        learner.load_state_dict(dict(midway.state), strict=True)
        load_running(learner, midway.running)
        if draws:
            torch.set_rng_state(midway.chance)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:  # the file may be anybody's
        why = " ".join(str(error).split())
        raise ValueError(
            f"The checkpoint does not go with this session ({why}): delete it, and begin again."
        ) from error
    return midway.losses.tolist(), midway.batches


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
