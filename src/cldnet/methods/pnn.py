"""PNN, progressive neural networks: a new column per task, with lateral connections from the frozen older ones.

It cannot forget, it grows with every task, and it needs the task of a test input: each column has a head for its
task's classes only, whose scores are not comparable across columns.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.device import tensor_bytes
from cldnet.methods.config import LEARNING_RATES, Limit
from cldnet.methods.gradient import GradientConfig, clip_gradients, weighted_cross_entropy
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.nets import MLP
from cldnet.nets.chain import resized, stages
from cldnet.nets.layers import linear


@dataclass(frozen=True)
class PNNConfig(GradientConfig):
    """Settings of progressive networks: sizes of the columns."""

    widths: Sequence[int] = (100, 100)  # units of the first column's hidden layers, if there is no backbone
    later: float = 1.0  # units of each later column, as a share of the first one's

    limits: ClassVar = {"later": Limit(lambda value: 0 < value <= 1, "be above 0 and at most 1")}

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "widths", tuple(self.widths))  # JSON has lists only
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths={self.widths} should be one or more positive integers.")


class Column(nn.Module):
    """One task's column: a layer for each stage of the net, and a head for the task's classes."""

    def __init__(self, rows: Tensor, hidden: Iterable[nn.Module], head: nn.Linear) -> None:
        super().__init__()
        self.rows: Tensor = nn.Buffer(rows)
        self.hidden = nn.ModuleList(hidden)
        self.head = head


class PNN(Learner):
    """Progressive neural networks whose columns are chains of layers.

    The first column has the layers and sizes of the backbone (an MLP, a CNN or a LeNet) but not its weights; later columns
    have a share of its units. Without a backbone, columns are MLPs over flattened inputs. A layer gets the outputs of the
    layer below in its own column and in all older ones, as channels or features side by side. The paper's adapters, which
    reduce what comes from the older columns, are left out.

    References
    ----------
    A. A. Rusu et al., "Progressive Neural Networks", 2016. https://arxiv.org/abs/1606.04671
    """

    title = "PNN"
    summary = "progressive nets: one column per task, needs the task at test (2016)"
    traits = Traits(rehearsal_free=True, constant_size=False, needs_task_id=True)
    kinds: ClassVar = {"columns": "weights"}
    config_class = PNNConfig
    fixed = ("widths", "later")
    ranges: ClassVar = {"lr": LEARNING_RATES}
    default_backbone = "none"
    running = ("optimizer",)

    config: PNNConfig
    optimizer: torch.optim.Optimizer

    def __init__(self, net: nn.Module | None, setting: Setting, config: PNNConfig) -> None:
        super().__init__(setting)
        self.config = config
        pattern = MLP(setting.input_shape, config.widths, generator=torch.Generator()) if net is None else net
        self.chain = stages(copy.deepcopy(pattern).to("meta"))  # what columns are like, without weights
        if not self.chain or not isinstance(self.chain[-1].layer, nn.Linear):
            raise ValueError("PNN needs a net that ends in a hidden layer: set its option widths=… or hidden=….")
        self.after = nn.ModuleList(stage.after for stage in self.chain)  # dropout must know whether it trains
        self.columns: Sequence[Column] = nn.ModuleList()  # type: ignore[assignment]

    def _widths(self, number: int) -> list[int]:
        """Units of each layer of a column."""
        share = self.config.later if number else 1.0
        return [max(1, round(share * len(stage.layer.weight))) for stage in self.chain]

    def _column(self, rows: Tensor, number: int, generator: torch.Generator) -> Column:
        """A column with random weights; the first one has the number 0."""
        layers, widths = [stage.layer for stage in self.chain], self._widths(number)
        units = [
            sum(each) for each in zip(*map(self._widths, range(number + 1)), strict=True)
        ]  # with all older columns
        inputs = [layers[0].weight.shape[1]]
        for count, (below, layer) in zip(units[:-1], pairwise(layers), strict=True):
            inputs.append(
                count * (layer.weight.shape[1] // len(below.weight))
            )  # several per unit if maps are flattened
        hidden = [resized(layer, i, o, generator) for layer, i, o in zip(layers, inputs, widths, strict=True)]
        return Column(rows, hidden, linear(units[-1], len(rows), generator)).to(self.setting.dtype)

    def growth(self, task: TaskData) -> int:
        rows, source = task.class_rows, torch.Generator()
        with torch.device("meta"):  # which takes no memory
            column = self._column(rows, len(self.columns), source)
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
        newest = self.columns[-1]
        logits = self._heads(self.scale(batch.x), len(self.columns))[-1]
        loss = weighted_cross_entropy(logits, torch.searchsorted(newest.rows, batch.y), batch.weight)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_gradients(newest.parameters(), self.config.clip)
        self.optimizer.step()
        return loss.detach()

    def finish(self, task: TaskData) -> None:
        del self.optimizer
        self.zero_grad(set_to_none=True)

    def _heads(self, x: Tensor, count: int) -> list[Tensor]:
        """Scores of the first columns' heads for their own classes. No gradients are kept for frozen columns."""
        columns = self.columns[:count]
        if isinstance(self.chain[0].layer, nn.Conv2d) and x.ndim == 3:  # images without channels
            x = x.unsqueeze(1)
        outputs = [x] * count
        for depth, stage in enumerate(self.chain):
            below = [] if depth == 0 else outputs  # of the layers one below
            inputs = [stage.before(torch.cat([outputs[i], *below[:i]], dim=1)) for i in range(count)]
            outputs = [stage.after(column.hidden[depth](h)) for column, h in zip(columns, inputs, strict=True)]
        return [column.head(torch.cat(outputs[: i + 1], dim=1)) for i, column in enumerate(columns)]

    def score(self, x: Tensor) -> Tensor:
        """Scores of all classes, each from the newest column whose task had the class."""
        scores = x.new_zeros(len(x), self.setting.capacity)
        for column, logits in zip(self.columns, self._heads(x, len(self.columns)), strict=True):
            scores[:, column.rows] = logits
        return scores

    @torch.no_grad()
    def logits_in(self, x: Tensor, task: int) -> Tensor:
        """Score inputs by the task's own column; classes of other tasks get −∞."""
        scaled = self.scale(x)
        scores: Tensor = scaled.new_full((len(x), self.seen), -torch.inf)
        scores[:, self.columns[task].rows] = self._heads(scaled, task + 1)[task]
        return scores

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        count = len({name.split(".")[1] for name in state if name.startswith("columns.")})
        columns = (self._column(state[f"columns.{i}.rows"], i, torch.Generator()) for i in range(count))
        self.columns = nn.ModuleList(columns)  # type: ignore[assignment]
