"""The training loop of all methods, and checkpoints of a task that is partly learned.

What a learner holds during a task only is listed in its class, ``running: ClassVar = ("optimizer",)``, and in those of its
modules. Each such attribute is a tensor, a number, a dict of tensors or an optimiser. What `Learner.start` makes from the state
alone (a teacher, a box) need not be listed. A module's method ``check_running``, if it has one, validates what was loaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.data.arrays import Augmentation
from cldnet.device import isolated_rng
from cldnet.methods.learner import Learner, TaskData

_STOCHASTIC = nn.modules.dropout._DropoutNd | nn.RReLU | nn.MultiheadAttention | nn.RNNBase
_log = logging.getLogger("cldnet")


@dataclass(frozen=True)
class Progress:
    """Steps done and steps in total of a task."""

    step: int
    steps: int


@dataclass(frozen=True)
class TaskCheckpoint:
    """A task that is partly learned. With the learner as it was before the task, training can resume from here."""

    state: Mapping[str, Tensor]
    running: Mapping[str, Tensor]  # what the learner holds during a task only
    order: Tensor  # of the samples in the current epoch
    rng_state: Tensor  # of torch's global generator, which modules such as dropout use
    losses: Tensor  # means of the finished epochs
    total: Tensor  # sum of losses in the current epoch
    epoch: int  # number of finished epochs
    batches: int  # finished in the current epoch


@dataclass(frozen=True)
class TaskReport:
    """Mean loss of each epoch, and seconds."""

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
    resume: TaskCheckpoint | None = None,
    on_checkpoint: Callable[[Callable[[], TaskCheckpoint]], None] | None = None,
) -> TaskReport:
    """Train a learner on one task.

    Parameters
    ----------
    learner : Learner
        It is changed. Samples are shuffled by its own generator.
    task : TaskData
        Samples with class indices.
    epochs, batch_size : int
        A learner with the trait ``one_pass`` has one epoch; a learner's ``min_batch`` is the smallest batch size.
    on_step : callable, optional
        Called with the progress after every step.
    on_epoch : callable, optional
        Called after every epoch with its index, from 0. It may score inputs, but must not change the learner.
    augment : callable, optional
        Takes a batch's inputs and the learner's generator, and returns the inputs to observe, as
        `cldnet.data.transforms.Augment` does. The learner begins and ends the task with the original samples.
    resume : TaskCheckpoint, optional
        Where to resume, with a learner as it was before this task. The result is the same, bit for bit, as without a break.
    on_checkpoint : callable, optional
        Called after every step but the last with a function that returns a checkpoint.

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
    epochs = 1 if learner.traits.one_pass else epochs
    batch_size = max(batch_size, learner.min_batch)
    draws = _is_stochastic(learner)
    with isolated_rng(learner.generator, task.x.device) if draws else nullcontext():
        data = learner.rehearse(task)
        learner.begin_task(task)
        losses, done = ([], 0) if resume is None else _restore(learner, resume, draws, len(data))
        for epoch in range(len(losses), epochs):
            if resume is None or epoch > resume.epoch:
                order, total = torch.randperm(len(data), generator=learner.generator), torch.zeros(())
                done = 0
            else:
                order, total = resume.order, resume.total
            total = total.to(data.x.device)
            for number, plain in enumerate(data.epoch(order.to(data.x.device), batch_size, epoch, epochs)):
                if number < done:
                    continue
                batch = plain if augment is None else plain.augmented(augment, learner.generator)
                if draws:
                    learner.ranks.reseed()
                total = total + learner.observe(batch)
                if on_step is not None:
                    on_step(Progress(batch.step + 1, batch.steps))
                if on_checkpoint is not None and batch.step + 1 < batch.steps:
                    on_checkpoint(partial(_checkpoint, learner, order, losses, total, number + 1))
            losses.append(float(total) / (number + 1))
            if on_epoch is not None:
                on_epoch(epoch)
        learner.end_task(task)
    return TaskReport(losses, time.perf_counter() - begun)


def _checkpoint(learner: Learner, order: Tensor, losses: list[float], total: Tensor, batches: int) -> TaskCheckpoint:
    state = {name: tensor.detach().clone() for name, tensor in learner.state_dict().items()}
    means = torch.tensor(losses, dtype=torch.float64)
    rng_state = torch.get_rng_state()
    return TaskCheckpoint(state, running_state(learner), order, rng_state, means, total.cpu(), len(losses), batches)


def _restore(learner: Learner, checkpoint: TaskCheckpoint, draws: bool, samples: int) -> tuple[list[float], int]:
    """Load a checkpoint into a learner whose task has begun; return finished epochs' losses and the current one's batches."""
    try:
        if not torch.equal(checkpoint.state["counters"], learner.counters.cpu()):  # they change between tasks only
            raise ValueError("it has another number of tasks or classes")
        if len(checkpoint.order) != samples:
            raise ValueError("it has another number of samples")
        learner.load_state_dict(learner.upgraded(checkpoint.state), strict=True)
        load_running(learner, checkpoint.running)
        if draws:
            torch.set_rng_state(checkpoint.rng_state)
    except (LookupError, RuntimeError, TypeError, ValueError) as error:  # the file may contain anything
        why = " ".join(str(error).split())
        raise ValueError(
            f"The checkpoint does not belong to this session ({why}): delete it, and begin again."
        ) from error
    return checkpoint.losses.tolist(), checkpoint.batches


def running_state(learner: nn.Module) -> dict[str, Tensor]:
    """Copy everything that the learner's modules hold during a task only."""
    state: dict[str, Tensor] = {}
    for name, (module, attribute) in _running(learner).items():
        value = module.__dict__.get(attribute)
        if value is not None:
            state |= {f"{name}{key}": tensor.detach().clone() for key, tensor in _to_tensors(value).items()}
    return state


def load_running(learner: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the result of `running_state` into a learner whose task has begun."""
    known = _running(learner)
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in known}
    for key, tensor in state.items():
        name = key.split("/")[0]
        if name not in known:
            raise ValueError(f"{type(learner).__name__} has no {name!r} during a task")
        parts[name][key.removeprefix(name)] = tensor
    for name, (module, attribute) in known.items():
        if parts[name]:
            setattr(module, attribute, _from_tensors(module.__dict__.get(attribute), parts[name]))
    for module in {module: None for module, _ in known.values()}:
        if callable(check := getattr(module, "check_running", None)):
            check()


def _running(learner: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Full names of all attributes that are listed as ``running``, each with its module and its own name."""
    return {
        f"{name}.{attribute}" if name else attribute: (module, attribute)
        for name, module in learner.named_modules()
        for attribute in getattr(type(module), "running", ())
    }


def _to_tensors(value: Any) -> dict[str, Tensor]:
    """Write an attribute as tensors, by what follows its name in their keys."""
    if isinstance(value, Tensor):
        return {"": value}
    if isinstance(value, int | float):
        return {"": torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)}
    if isinstance(value, Mapping):
        return {f"/{key}": tensor for key, tensor in value.items()}
    momenta = {
        f"/{number}/{key}": tensor
        for number, parameter in enumerate(_parameters(value))
        for key, tensor in value.state.get(parameter, {}).items()
        if isinstance(tensor, Tensor)
    }
    return {**momenta, "/lr": torch.tensor([group["lr"] for group in value.param_groups], dtype=torch.float64)}


def _from_tensors(value: Any, parts: Mapping[str, Tensor]) -> Any:
    """Read an attribute from tensors; ``value`` is what it is when the task begins."""
    if isinstance(value, torch.optim.Optimizer):
        parameters = _parameters(value)
        for group, rate in zip(value.param_groups, parts["/lr"].tolist(), strict=True):
            group["lr"] = rate
        for key, tensor in parts.items():
            if key != "/lr":
                _, number, name = key.split("/")
                parameter = parameters[int(number)]
                if tensor.shape not in ((), parameter.shape):
                    raise ValueError(
                        f"{name} has the shape {tuple(tensor.shape)}, its parameter {tuple(parameter.shape)}"
                    )
                value.state[parameter][name] = tensor.clone()
        return value
    if isinstance(value, Mapping):
        return {key.removeprefix("/"): tensor.clone() for key, tensor in parts.items()}
    tensor = parts[""]
    if not isinstance(value, int | float):
        return tensor.clone()
    if isinstance(value, float):
        if tensor.dtype != torch.float64 or tensor.shape != () or not 0 <= float(tensor) < float("inf"):
            raise ValueError("a number should be finite and not negative")
        return float(tensor)
    if tensor.dtype != torch.int64 or tensor.shape != () or int(tensor) < 0:
        raise ValueError("a count should be a non-negative integer")
    return int(tensor)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def log_tenths(progress: Progress) -> None:
    """Write a line to the logger ``cldnet`` at every tenth of a task."""
    if progress.step % max(progress.steps // 10, 1) == 0:
        _log.info("step %d of %d", progress.step, progress.steps)


def _is_stochastic(module: nn.Module) -> bool:
    """Whether a module may draw from torch's global generators: dropout does, and unknown code might."""
    return any(
        isinstance(part, _STOCHASTIC) or not type(part).__module__.startswith(("torch.nn.", "cldnet."))
        for part in module.modules()
    )
