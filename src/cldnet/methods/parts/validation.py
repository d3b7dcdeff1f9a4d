"""Samples that are held out of a task's training: a random share of every class."""

from __future__ import annotations

import torch
from torch import Tensor

from cldnet.methods.learner import TaskData


def hold_out(task: TaskData, share: float, generator: torch.Generator) -> Tensor:
    """Choose the samples to hold out, as a boolean per sample; `held_out` says how many of a class.

    Examples
    --------
    >>> task = TaskData(torch.zeros(7, 2), torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    >>> out = hold_out(task, 0.5, torch.Generator())
    >>> [int(out[task.y == row].sum()) for row in task.class_rows]
    [2, 1, 0]
    """
    out = torch.zeros(len(task), dtype=torch.bool, device=task.y.device)
    counting = counting_samples(task)
    order = counting[torch.randperm(len(counting), generator=generator).to(counting.device)]
    for row in task.class_rows:
        own = order[task.y[order] == row]
        out[own[: held_out(len(own), share)]] = True
    return out


def held_out(count: int, share: float) -> int:
    """Number of samples of a class to hold out: a share, but at least one, and not the only one.

    Examples
    --------
    >>> [held_out(count, 0.1) for count in (0, 1, 2, 10, 50)], held_out(50, 0.0)
    ([0, 0, 1, 1, 5], 0)
    """
    return max(0, min(count - 1, max(1, int(share * count)))) if share > 0 else 0


def counting_samples(task: TaskData) -> Tensor:
    """Numbers of the samples that count: those of weight zero are neither held out nor kept."""
    every = torch.arange(len(task), device=task.y.device)
    return every if task.weight is None else every[task.weight > 0]


def chosen(task: TaskData, which: Tensor) -> TaskData:
    """Some samples of a task, with their weights."""
    return TaskData(task.x[which], task.y[which], None if task.weight is None else task.weight[which])
