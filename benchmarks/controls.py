"""Controls for ``cldnet``.

`WarmUp` and `Rescaled` replace the HSIC phase of the first task (specs/hsic.toml). `SubclassSLDA` gives SLDA the sub-classes of
``cldnet`` (specs/table1-slda.toml). For specs/checks, `NormalisedGDumb` has the net of GDumb's authors, `ReleasedOWM` and
`ReleasedAOP` have the loss of their authors' code.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.math.kmeans import kmeans, nearest
from cldnet.methods.cldnet import CLDNet
from cldnet.methods.gdumb import GDumb, GDumbConfig
from cldnet.methods.gradient import descend, weighted_cross_entropy
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.owm import AOP, OWM, ProjectedLearner
from cldnet.methods.parts.variants import BottleneckFirst
from cldnet.methods.slda import SLDA, SLDAConfig, discriminants
from cldnet.nets.layers import MLP

__all__ = ["NormalisedGDumb", "ReleasedAOP", "ReleasedOWM", "Rescaled", "SubclassSLDA", "WarmUp"]


class WarmUp(CLDNet):
    """Train with cross-entropy (Eq. 8) instead of HSIC, then restore the embedding layer's initial weights."""

    title = "CLDNet, cross-entropy instead of HSIC"

    def bottleneck_first(self, task: TaskData, phase: BottleneckFirst) -> None:
        before = {name: tensor.clone() for name, tensor in self.embedding.state_dict().items()}
        learning = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(learning, lr=self.config.hbo_lr)
        for batch in first_batches(self, task, phase):
            x = self.scale(batch.x)
            flow, z = self.forward_pass(x)
            loss = self.embedding_loss(z, self.bind(flow, z, batch.y), batch.weight)
            gradients = dict(zip(learning, torch.autograd.grad(loss, learning), strict=True))
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


class SubclassSLDA(SLDA):
    """SLDA with a mean per sub-class, which k-means finds on the features when a class arrives.

    The class with the largest log-sum-exp over its sub-classes wins, each weighted by its share of the class.

    References
    ----------
    T. Hastie, R. Tibshirani, "Discriminant Analysis by Gaussian Mixtures", Journal of the Royal Statistical Society B, 1996.
    https://doi.org/10.1111/j.2517-6161.1996.tb02073.x
    """

    title = "SLDA with sub-classes"
    count = 40
    samples = 100  # fewest samples per sub-class
    kinds: ClassVar = {**SLDA.kinds, "mean_sums": "sums", "mean_weights": "sums"}

    def __init__(self, net: nn.Module, setting: Setting, config: SLDAConfig) -> None:
        super().__init__(net, setting, config)
        means = setting.capacity * self.count
        self.mean_sums: Tensor = nn.Buffer(self.class_sums.new_zeros(means, self.class_width))
        self.mean_weights: Tensor = nn.Buffer(self.class_sums.new_zeros(means))
        self.centers: dict[int, Tensor] = {}

    def start(self, task: TaskData) -> None:
        super().start(task)
        self.centers.clear()
        for row in task.class_rows.tolist():
            h = self.represent(task.x[task.y == row]).float()
            self.centers[row] = kmeans(h, max(1, min(self.count, len(h) // self.samples)), self.generator)

    def add(self, h: Tensor, y: Tensor, weight: Tensor | None) -> None:
        super().add(h, y, weight)
        each = self.mean_weights.new_ones(len(y)) if weight is None else weight
        for row, centers in self.centers.items():
            own = y == row
            place = row * self.count + nearest(h[own].float(), centers)
            self.mean_sums.index_add_(0, place, h[own].double() * each[own, None])
            self.mean_weights.index_add_(0, place, each[own])

    def solve(self) -> tuple[Tensor, Tensor]:
        means = self.seen * self.count
        weights = self.mean_weights[:means]
        directions, offsets = discriminants(self.second.dense(), self.mean_sums[:means], weights, self.config.shrinkage)
        by_class = weights.unflatten(0, (self.seen, self.count))
        return directions, offsets + (by_class / by_class.sum(1, keepdim=True)).log().flatten()

    def score_represented(self, h: Tensor) -> Tensor:
        if self._solved is None:
            self._solved = self.solve()
        directions, offsets = self._solved
        return torch.addmm(offsets, h.double(), directions).unflatten(1, (self.seen, self.count)).logsumexp(2)


def first_batches(learner: CLDNet, task: TaskData, phase: BottleneckFirst) -> list[Batch]:
    """The batches that the HSIC bottleneck would see."""
    orders = [torch.randperm(len(task), generator=learner.generator) for _ in range(phase.epochs)]
    batches = [batch for order in orders for batch in task.epoch(order, phase.batch_size, 0, 1)]
    return [batch for batch in batches if len(batch.x) >= min(phase.batch_size, len(task))]


def _with_norm(weights: Tensor, other: Tensor) -> Tensor:
    """Weights scaled to the norm of others; a zero bias stays zero."""
    return weights * (other.norm() / weights.norm().clamp_min(1e-30))


class NormalisedGDumb(GDumb):
    """GDumb with BatchNorm in its MLP, as its authors have it; without it, their learning rate is too high."""

    title = "GDumb, with BatchNorm"

    def __init__(self, net: MLP, setting: Setting, config: GDumbConfig) -> None:
        layers = [
            part
            for layer in net.layers
            for part in ([layer, nn.BatchNorm1d(layer.out_features)] if isinstance(layer, nn.Linear) else [layer])
        ]
        super().__init__(nn.Sequential(*layers), setting, config)


class _AllOutputs(ProjectedLearner):
    """Cross-entropy over all outputs, also those whose classes are yet to come: a first task of one class then has a loss."""

    def loss(self, batch: Batch) -> Tensor:
        return weighted_cross_entropy(self.score(self.scale(batch.x)), batch.y, batch.weight)


class ReleasedOWM(_AllOutputs, OWM):
    """OWM with the loss of its authors' code."""

    title = "OWM, loss over all outputs"


class ReleasedAOP(_AllOutputs, AOP):
    """AOP with the loss of its authors' code."""

    title = "AOP, loss over all outputs"
