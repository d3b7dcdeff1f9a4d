"""What a learner is fed with: a task's examples, and the batches that they come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Augmentation", "Batch", "TaskData"]

#: What varies a batch's inputs: it takes them and the source of chance, and returns others of the same shape and type.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class Batch(NamedTuple):
    """One step's examples: inputs, class rows, weights (or none), and the step's place among the task's steps and epochs.

    Inputs may be augmented. Only a method that stores examples need know: it stores `plain`, and replays with `joined`.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    step: int
    steps: int
    epoch: int
    original: Tensor | None = None
    augment: Augmentation | None = None

    def augmented(self, augment: Augmentation, source: torch.Generator) -> Batch:
        """Vary the inputs, and remember what they were and how it was done."""
        return self._replace(x=augment(self.x, source), original=self.x, augment=augment)

    @property
    def plain(self) -> Tensor:
        """The inputs as they were before they were augmented."""
        return self.x if self.original is None else self.original

    def joined(self, x: Tensor, y: Tensor, source: torch.Generator) -> Batch:
        """Add stored examples, each of weight one. They are augmented afresh if this batch's inputs were."""
        varied = x if self.augment is None else self.augment(x, source)
        weight = None if self.weight is None else torch.cat([self.weight, self.weight.new_ones(len(x))])
        original = None if self.original is None else torch.cat([self.original, x.to(self.original)])
        inputs = torch.cat([self.x, varied.to(self.x)])
        return self._replace(x=inputs, y=torch.cat([self.y, y]), weight=weight, original=original)

    def without_zeros(self) -> Batch:
        """Leave out the rows of weight zero: what is not to be learned should not reach a projector or a kernel either."""
        if self.weight is None or bool((self.weight > 0).all()):
            return self
        kept = self.weight > 0
        original = None if self.original is None else self.original[kept]
        return self._replace(x=self.x[kept], y=self.y[kept], weight=self.weight[kept], original=original)

    @property
    def progress(self) -> float:
        """How far the task has come, from 0 at its first step to 1 at its last."""
        return self.step / max(self.steps - 1, 1)


@dataclass(frozen=True)
class TaskData:
    """One task's examples, resident as tensors.

    Examples
    --------
    >>> task = TaskData(torch.zeros(5, 3), torch.tensor([4, 4, 2, 2, 2]))
    >>> task.rows, [len(batch.x) for batch in task.batches(3)]
    (tensor([2, 4]), [3, 2])
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def rows(self) -> Tensor:
        """The class rows of this task, sorted."""
        rows: Tensor = self.y.unique()
        return rows

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all examples in their order."""
        yield from self.epoch(torch.arange(len(self), device=self.x.device), size, 0, 1)

    def epoch(self, order: Tensor, size: int, epoch: int, epochs: int) -> Iterator[Batch]:
        """Yield the examples in a given order, counted as one of several epochs.

        A single row that is left over joins the batch before it: a batch of one has no variance and no dependence.
        """
        parts = list(order.split(size))
        if len(parts) > 1 and size > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        for number, index in enumerate(parts):
            # index_select copies whole rows, many times quicker than x[index], which copies number by number.
            weight = None if self.weight is None else self.weight.index_select(0, index)
            x, y = self.x.index_select(0, index), self.y.index_select(0, index)
            yield Batch(x, y, weight, epoch * len(parts) + number, epochs * len(parts), epoch)
