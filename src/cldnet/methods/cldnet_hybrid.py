"""CLDNet with its embedding layer solved: a hybrid of the two solvers.

The layers in front are trained as by `cldnet.methods.cldnet`. After a task they rest, and the embedding layer is reset to its
state before the task and absorbs every sample once: ``P`` by Eq. 6, then ``W ← W + P/α Hᵀ(Y − H W)`` with the class vectors as
``Y``. This is recursive least squares: the ridge solution of all samples ever seen, as far as the features of earlier
tasks have not changed, which the projectors of the layers in front ensure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.cldnet import CLDNet, CLDNetConfig
from cldnet.methods.config import POSITIVE, LogUniform
from cldnet.methods.learner import TaskData
from cldnet.methods.parts.projection import EverySample


@dataclass(frozen=True)
class CLDNetHybridConfig(CLDNetConfig):
    """Settings of the hybrid: those of CLDNet, and the ridge penalty of its last layer."""

    ridge: float = 10.0  # α of the embedding layer's projector, the same for every sample of every task

    limits: ClassVar = {"ridge": POSITIVE}


class CLDNetHybrid(CLDNet):
    """Hidden layers by gradient through projectors, the embedding layer by recursive least squares."""

    title = "CLDNet (hybrid)"
    summary = "hidden layers through projectors, the last one solved from its sums"
    config_class = CLDNetHybridConfig
    fixed: ClassVar[tuple[str, ...]] = (*CLDNet.fixed, "ridge")  # its projector has absorbed every sample with this α
    ranges: ClassVar = {**CLDNet.ranges, "ridge": LogUniform(1.0, 1000.0)}
    config: CLDNetHybridConfig
    _before: dict[str, Tensor]

    def start(self, task: TaskData) -> None:
        """Remember the embedding layer and its projector."""
        super().start(task)
        self._before = {name: tensor.detach().clone() for name, tensor in self._last().state_dict().items()}

    def finish(self, task: TaskData) -> None:
        """Solve the embedding layer; the layers in front are trained."""
        super().finish(task)
        self._last().load_state_dict(self._before)
        del self._before
        for batch in task.batches(256):
            self._solve(batch.x, batch.y, batch.weight)
        self.projection.rebuild()

    def _last(self) -> nn.ModuleDict:
        """The embedding layer and its projector."""
        return nn.ModuleDict({"layer": self.embedding, "projector": self.projection.layers[-1]})

    @torch.no_grad()
    def _solve(self, x: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """``P`` absorbs the samples, then ``W ← W + P/α Hᵀ(Y − H W)``; a sample of weight w counts w times."""
        flow, z = self.forward_pass(self.scale(x))
        layer, projector = flow.layers[-1], self.projection.layers[-1]
        rows, errors = EverySample()(layer, flow.inputs[-1]), layer.deltas(self.basis[y] - z)
        if weight is not None:
            rows, errors = rows * weight.sqrt()[:, None], errors * weight.sqrt()[:, None]
        projector.absorb(rows, rows.new_tensor(self.config.ridge))
        step = errors.double().mT @ projector.project(rows.double()) / self.config.ridge
        for parameter, change in layer.split(step).items():
            parameter.add_(change.to(parameter.dtype))
