"""Controls for the HSIC bottleneck of ``cldnet``: each replaces the HSIC phase of the first task; see specs/hsic.toml."""

from __future__ import annotations

import torch
from torch import Tensor

from cldnet.methods.cldnet import CLDNet
from cldnet.methods.gradient import descend
from cldnet.methods.learner import Batch, TaskData
from cldnet.methods.parts.variants import BottleneckFirst

__all__ = ["Rescaled", "WarmUp"]


class WarmUp(CLDNet):
    """Train with cross-entropy (Eq. 8) instead of HSIC, then restore the embedding layer's initial weights."""

    title = "CLDNet, cross-entropy instead of HSIC"

    def bottleneck_first(self, task: TaskData, phase: BottleneckFirst) -> None:
        before = {name: tensor.clone() for name, tensor in self.embedding.state_dict().items()}
        optimizer = torch.optim.Adam(self.parameters(), lr=self.config.hbo_lr)
        for batch in first_batches(self, task, phase):
            x = self.scale(batch.x)
            flow, z = self.forward_pass(x)
            loss = self.embedding_loss(z, self.bind(flow, z, batch.y), batch.weight)
            gradients = dict(zip(self.parameters(), torch.autograd.grad(loss, [*self.parameters()]), strict=True))
            descend(optimizer, gradients, clip=float("inf"))
        self.embedding.load_state_dict(before)


class Rescaled(CLDNet):
    """Keep the initial weights, but rescale each parameter to the norm that the HSIC bottleneck gives it."""

    title = "CLDNet, weights rescaled as by HSIC"

    def bottleneck_first(self, task: TaskData, phase: BottleneckFirst) -> None:
        before = [parameter.detach().clone() for parameter in self.net.parameters()]
        super().bottleneck_first(task, phase)
        with torch.no_grad():
            for parameter, old in zip(self.net.parameters(), before, strict=True):
                parameter.copy_(_with_norm(old, parameter))


def first_batches(learner: CLDNet, task: TaskData, phase: BottleneckFirst) -> list[Batch]:
    """The batches that the HSIC bottleneck would see."""
    orders = [torch.randperm(len(task), generator=learner.generator) for _ in range(phase.epochs)]
    batches = [batch for order in orders for batch in task.epoch(order, phase.batch_size, 0, 1)]
    return [batch for batch in batches if len(batch.x) >= min(phase.batch_size, len(task))]


def _with_norm(weights: Tensor, other: Tensor) -> Tensor:
    """Weights scaled to the norm of others; a zero bias stays zero."""
    return weights * (other.norm() / weights.norm().clamp_min(1e-30))
