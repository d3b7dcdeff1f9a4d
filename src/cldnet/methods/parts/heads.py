"""One head per task, for methods that are told the task of a test input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import tensor_bytes
from cldnet.methods.gradient import weighted_cross_entropy
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.nets.layers import linear


class Head(nn.Module):
    """A linear layer over the features of one task's net, with one output for each of the task's classes."""

    def __init__(self, features: int, rows: Tensor, generator: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        self.rows: Tensor = nn.Buffer(rows.clone())
        self.layer = linear(features, len(rows), generator).to(dtype)

    def forward(self, features: Tensor) -> Tensor:
        """Scores of the task's classes, in the order of `rows`. There may be fewer features than the head has room for."""
        return F.linear(features, self.layer.weight[:, : features.shape[1]], self.layer.bias)


class MultiHead(Learner, ABC):
    """A learner with one head per task. The task of a test input selects the head, and the net in front of it.

    Without the task, each class has the score of the newest head that knows it. Such scores are not comparable across heads,
    so these methods have no class-IL result.
    """

    traits = Traits(rehearsal_free=True, constant_size=False, needs_task_id=True)
    kinds: ClassVar[Mapping[str, str]] = {"heads": "weights"}

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.heads: Sequence[Head] = nn.ModuleList()  # type: ignore[assignment]

    @abstractmethod
    def features(self, x: Tensor, task: int) -> Tensor:
        """Features of scaled inputs, computed by the net of the task with this number."""

    @property
    def head_size(self) -> int:
        """Numbers of all heads."""
        return sum(parameter.numel() for head in self.heads for parameter in head.parameters())

    def add_head(self, features: int, task: TaskData) -> Head:
        """Add the head of a task that begins, and freeze the others."""
        for old in self.heads:
            old.requires_grad_(False)
        head = Head(features, task.class_rows, self.generator, self.setting.dtype).to(task.x.device)
        self.heads.append(head)  # type: ignore[attr-defined]
        return head

    def head_growth(self, features: int, task: TaskData) -> int:
        """Bytes that the head of a task will take."""
        rows = task.class_rows
        return tensor_bytes(rows) + len(rows) * (features + 1) * self.setting.dtype.itemsize

    def task_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of the newest task's head over its own classes."""
        logits = self.heads[-1](self.features(self.scale(batch.x), len(self.heads) - 1))
        return weighted_cross_entropy(logits, torch.searchsorted(self.heads[-1].rows, batch.y), batch.weight)

    def score(self, x: Tensor) -> Tensor:
        """Scores of all classes, each from the newest head that knows the class."""
        scores = x.new_zeros(len(x), self.setting.capacity)
        for task, head in enumerate(self.heads):
            scores[:, head.rows] = head(self.features(x, task))
        return scores

    @torch.no_grad()
    def logits_in(self, x: Tensor, task: int) -> Tensor:
        """Score inputs by the net and the head of their task; classes of other tasks get −∞."""
        scaled = self.scale(x)
        scores: Tensor = scaled.new_full((len(x), self.seen), -torch.inf)
        scores[:, self.heads[task].rows] = self.heads[task](self.features(scaled, task))
        return scores

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        count = sum(name.startswith("heads.") and name.endswith(".rows") for name in state)
        weights = (state[f"heads.{number}.layer.weight"] for number in range(count))
        heads = (
            Head(weight.shape[1], state[f"heads.{number}.rows"], torch.Generator(), self.setting.dtype)
            for number, weight in enumerate(weights)
        )
        self.heads = nn.ModuleList(heads)  # type: ignore[assignment]
