"""One net per task, trained apart: the single-task reference of papers on growing nets."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.device import tensor_bytes
from cldnet.methods.config import LEARNING_RATES
from cldnet.methods.gradient import GradientConfig, clip_gradients
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.heads import MultiHead
from cldnet.nets import out_features
from cldnet.nets.frozen import count_weights


class SingleTask(MultiHead):
    """A copy of the net and a head for every task, each trained on its own task's data only. Nothing is shared or forgotten."""

    title = "Single-task nets"
    summary = "one net per task, trained apart: a reference for methods that are told the task"
    kinds: ClassVar[Mapping[str, str]] = {**MultiHead.kinds, "net": "initial weights", "nets": "weights"}
    config_class = GradientConfig
    ranges: ClassVar = {"lr": LEARNING_RATES}
    running = ("optimizer",)
    config: GradientConfig
    optimizer: torch.optim.Optimizer

    def __init__(self, net: nn.Module, setting: Setting, config: GradientConfig) -> None:
        super().__init__(setting)
        self.config = config
        self.width = out_features(net, setting.input_shape)
        self.net = net.to(setting.dtype).requires_grad_(False)
        self.nets = nn.ModuleList()

    @property
    def backbone(self) -> nn.Module:
        return self.net

    @property
    def network_size(self) -> int:
        return count_weights(self.nets) + self.head_size

    def growth(self, task: TaskData) -> int:
        return self.head_growth(self.width, task) + sum(map(tensor_bytes, self.net.state_dict().values()))

    def start(self, task: TaskData) -> None:
        """Freeze the older nets, and add one with the initial weights."""
        self.nets.requires_grad_(False)
        self.nets.append(copy.deepcopy(self.net).requires_grad_(True))
        head = self.add_head(self.width, task)
        parameters = [*self.nets[-1].parameters(), *head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=self.config.lr, momentum=self.config.momentum)

    def observe(self, batch: Batch) -> Tensor:
        """Train the newest net on its task."""
        loss = self.task_loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_gradients(self.optimizer.param_groups[0]["params"], self.config.clip)
        self.optimizer.step()
        return loss.detach()

    def finish(self, task: TaskData) -> None:
        del self.optimizer
        self.zero_grad(set_to_none=True)

    def features(self, x: Tensor, task: int) -> Tensor:
        features: Tensor = self.nets[task](x)
        return features

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        super().resize_for(state)
        self.nets = nn.ModuleList(copy.deepcopy(self.net) for _ in self.heads)
