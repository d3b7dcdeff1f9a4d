"""CLDNet with its last layer solved: the hybrid that the two solvers suggest.

The layers in front are trained as `cldnet.methods.cldnet` trains them. When a task is over they rest, and the embedding layer
goes back to where the task found it and takes in every sample once: ``P`` by Eq. 6, then ``W ← W + P/α Hᵀ(Y − H W)`` with the
class vectors as ``Y``. That is recursive least squares: the ridge solution of all samples ever seen, in so far
as the features of earlier tasks have stayed where they were: which is what the projectors of the layers in front are for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.cldnet import CLDNet, CLDNetConfig
from cldnet.methods.learner import TaskData
from cldnet.methods.parts.projection import EverySample
from cldnet.methods.ranges import LogUniform

__all__ = ["CLDNetHybrid", "CLDNetHybridConfig"]


@dataclass(frozen=True)
class CLDNetHybridConfig(CLDNetConfig):
    """Settings of the hybrid: those of CLDNet, and the ridge penalty of its last layer.

    Attributes
    ----------
    ridge : float
        α of the embedding layer's projector, the same for every sample of every task.
    """

    ridge: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ridge > 0:
            raise ValueError(f"ridge={self.ridge} should be a positive number.")


class CLDNetHybrid(CLDNet):
    """Hidden layers by gradient through projectors, the embedding layer by recursive least squares.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> task = TaskData(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> learner = build_learner("cldnet-hybrid", Setting((2,), capacity=2, seed=0), {"embed_dim": 2})
    >>> learner.begin_task(task)
    >>> learner.end_task(task)
    >>> learner.logits(task.x).argmax(1)
    tensor([0, 1])
    """

    config_class = CLDNetHybridConfig
    fixed: ClassVar[tuple[str, ...]] = (*CLDNet.fixed, "ridge")  # its projector has taken in every sample with that α
    ranges: ClassVar = {**CLDNet.ranges, "ridge": LogUniform(1.0, 1000.0)}
    config: CLDNetHybridConfig
    _found: dict[str, Tensor]

    def start(self, task: TaskData) -> None:
        """Remember how the task finds the embedding layer and its projector."""
        super().start(task)
        self._found = {name: tensor.detach().clone() for name, tensor in self._last().state_dict().items()}

    def finish(self, task: TaskData) -> None:
        """Solve the embedding layer with the layers in front at rest."""
        super().finish(task)
        self._last().load_state_dict(self._found)
        del self._found
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
