"""PNN, progressive neural networks: a new column per task, with lateral connections from the frozen older ones.

It cannot forget, it grows with every task, and it needs the task of a test input: each column has a head for its
task's classes only, whose scores are not comparable across columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import tensor_bytes
from cldnet.methods.config import LEARNING_RATES
from cldnet.methods.gradient import GradientConfig, weighted_cross_entropy
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.nets.layers import linear


@dataclass(frozen=True)
class PNNConfig(GradientConfig):
    """Settings of progressive networks: units of each column's hidden layers."""

    widths: Sequence[int] = (100, 100)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "widths", tuple(self.widths))  # JSON has lists only
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths={self.widths} should be one or more positive integers.")


class Column(nn.Module):
    """One task's column; layer ``l`` also takes the outputs of layer ``l − 1`` of every older column."""

    def __init__(
        self, inputs: int, widths: Sequence[int], rows: Tensor, older: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.rows: Tensor = nn.Buffer(rows)
        sizes = [inputs, *widths]
        laterals = [0, *(older * width for width in widths[:-1])]
        self.hidden = nn.ModuleList(
            linear(before + lateral, after, generator)
            for before, lateral, after in zip(sizes[:-1], laterals, sizes[1:], strict=True)
        )
        self.head = linear(widths[-1] * (older + 1), len(rows), generator)


class PNN(Learner):
    """Progressive neural networks on vectors (images are flattened). It has its own columns and ignores the backbone.

    References
    ----------
    A. A. Rusu et al., "Progressive Neural Networks", 2016. https://arxiv.org/abs/1606.04671
    """

    title = "PNN"
    summary = "progressive nets: one column per task, needs the task at test (2016)"
    traits = Traits(rehearsal_free=True, constant_size=False, needs_task_id=True)
    kinds: ClassVar = {"columns": "weights"}
    config_class = PNNConfig
    ranges: ClassVar = {"lr": LEARNING_RATES}
    default_backbone = "none"
    running = ("optimizer",)

    optimizer: torch.optim.Optimizer

    def __init__(self, net: nn.Module | None, setting: Setting, config: PNNConfig) -> None:
        super().__init__(setting)
        self.config = config
        self.columns: Sequence[Column] = nn.ModuleList()  # type: ignore[assignment]

    def _column(self, rows: Tensor, older: int, generator: torch.Generator) -> Column:
        inputs = prod(self.setting.input_shape)
        return Column(inputs, self.config.widths, rows, older, generator).to(self.setting.dtype)

    def growth(self, task: TaskData) -> int:
        column = self._column(task.class_rows, len(self.columns), torch.Generator())
        return sum(tensor_bytes(tensor) for tensor in column.state_dict().values())

    def start(self, task: TaskData) -> None:
        """Freeze the older columns and add one."""
        for column in self.columns:
            column.requires_grad_(False)
        self.columns.append(self._column(task.class_rows, len(self.columns), self.generator).to(task.x.device))  # type: ignore[attr-defined]
        self.optimizer = torch.optim.SGD(
            self.columns[-1].parameters(), lr=self.config.lr, momentum=self.config.momentum
        )

    def observe(self, batch: Batch) -> Tensor:
        """Train the newest column on its task's classes."""
        logits = self._heads(self.scale(batch.x))[-1]
        loss = weighted_cross_entropy(logits, torch.searchsorted(self.columns[-1].rows, batch.y), batch.weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.columns[-1].parameters(), self.config.clip)
        self.optimizer.step()
        return loss.detach()

    def finish(self, task: TaskData) -> None:
        del self.optimizer
        self.zero_grad(set_to_none=True)

    def _heads(self, x: Tensor) -> list[Tensor]:
        """Scores of every column's head for its own classes."""
        outputs = [x.flatten(1)] * len(self.columns)
        for depth in range(len(self.config.widths)):
            below = [] if depth == 0 else outputs  # of the layers one below
            outputs = [
                F.relu(column.hidden[depth](torch.cat([outputs[i], *below[:i]], dim=1)))
                for i, column in enumerate(self.columns)
            ]
        return [column.head(torch.cat(outputs[: i + 1], dim=1)) for i, column in enumerate(self.columns)]

    def score(self, x: Tensor) -> Tensor:
        """Scores of all classes, each from the newest column whose task had the class."""
        scores = x.new_zeros(len(x), self.setting.capacity)
        for column, logits in zip(self.columns, self._heads(x), strict=True):
            scores[:, column.rows] = logits
        return scores

    @torch.no_grad()
    def logits_in(self, x: Tensor, task: int) -> Tensor:
        """Score inputs by the task's own column; classes of other tasks get −∞."""
        scaled = self.scale(x)
        scores: Tensor = scaled.new_full((len(x), self.seen), -torch.inf)
        scores[:, self.columns[task].rows] = self._heads(scaled)[task]
        return scores

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        count = len({name.split(".")[1] for name in state if name.startswith("columns.")})
        columns = (self._column(state[f"columns.{i}.rows"], i, torch.Generator()) for i in range(count))
        self.columns = nn.ModuleList(columns)  # type: ignore[assignment]
