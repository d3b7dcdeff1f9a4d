"""Joint training: keep all data and train from scratch whenever a task arrives. The upper bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.device import tensor_bytes
from cldnet.methods.config import LEARNING_RATES
from cldnet.methods.gradient import GradientConfig, GradientLearner, NamedTensors
from cldnet.methods.learner import Setting, TaskData, Traits
from cldnet.nets.frozen import learning_state


class Joint(GradientLearner):
    """Train from the initial weights on the data of all tasks so far, which it keeps."""

    title = "Joint training"
    summary = "keeps all data and trains from scratch: the upper bound"
    traits = Traits(rehearsal_free=False, constant_size=False)
    kinds: ClassVar = {
        **GradientLearner.kinds,
        **dict.fromkeys(("memory_x", "memory_y", "memory_weight"), "exemplars"),
        **dict.fromkeys(("initial_net", "initial_head"), "initial weights"),
    }
    ranges: ClassVar = {"lr": LEARNING_RATES}

    def __init__(self, net: nn.Module, setting: Setting, config: GradientConfig) -> None:
        super().__init__(net, setting, config)
        self.initial_net = NamedTensors(learning_state(self.net))
        self.initial_head = NamedTensors(self.head.state_dict())
        self.memory_x: Tensor = nn.Buffer(torch.zeros(0))
        self.memory_y: Tensor = nn.Buffer(torch.zeros(0))
        self.memory_weight: Tensor = nn.Buffer(torch.zeros(0))

    def growth(self, task: TaskData) -> int:
        return tensor_bytes(task.x) + tensor_bytes(task.y) + len(task) * self.setting.dtype.itemsize

    def rehearse(self, task: TaskData) -> TaskData:
        weight = torch.ones(len(task), dtype=self.setting.dtype) if task.weight is None else task.weight
        parts = {"memory_x": task.x, "memory_y": task.y, "memory_weight": weight.to(self.setting.dtype)}
        for name, new in parts.items():
            old = getattr(self, name)
            setattr(self, name, torch.cat([old.to(new.device), new]) if len(old) else new.clone())
        return TaskData(self.memory_x, self.memory_y, self.memory_weight)

    def start(self, task: TaskData) -> None:
        self.net.load_state_dict({**self.net.state_dict(), **dict(self.initial_net.items())})
        self.head.load_state_dict(dict(self.initial_head.items()))
        super().start(task)

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        for name in ("memory_x", "memory_y", "memory_weight"):
            setattr(self, name, torch.zeros_like(state[name]))
