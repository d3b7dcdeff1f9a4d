"""Co²L, contrastive continual learning: learn features by contrast, keep their relations, fit a classifier afterwards.

With two views of every sample of the stream batch and of a batch from memory, and ``P_ij`` the softmax over j ≠ i of
``z_i · z_j / τ`` for normalised projections z, the loss is ``SupCon + λ IRD``:

- asymmetric SupCon: ``−τ/.07 · mean_i [y_i is a class of this task] · mean_{j: y_j = y_i} log P_ij``
- instance-wise relation distillation: ``−mean_i Σ_j P*_ij log P_ij``, P* by the net before the task, each with its own τ.

At the end of a task, the linear head learns anew from memory and the task, on frozen features, with all classes drawn equally
often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.data.views import RandomView
from cldnet.methods.config import AT_LEAST_ONE, FINITE_NOT_NEGATIVE, FINITE_POSITIVE, POSITIVE
from cldnet.methods.gradient import sgd
from cldnet.methods.learner import Batch, Setting, TaskData, portions
from cldnet.methods.parts.contrastive import asymmetric_supcon, relation_loss
from cldnet.methods.parts.teacher import Teacher
from cldnet.methods.rehearsal import RehearsalConfig, RehearsalLearner
from cldnet.nets.layers import linear

#: Width of the projection.
_WIDTH = 128
_PROBE_BATCH = 256
_VIEW = RandomView(scale=0.2, grey=0.2)


@dataclass(frozen=True)
class Co2LConfig(RehearsalConfig):
    """Settings of Co²L."""

    momentum: float = 0.9
    temperature: float = 0.5  # of SupCon
    distil: float = 1.0  # λ, the weight of the relations
    past_temperature: float = 0.01  # of the teacher's relations
    present_temperature: float = 0.2  # of the net's relations
    probe_epochs: int = 100  # of the linear head
    probe_lr: float = 1.0  # at its first epoch; it falls to zero

    limits: ClassVar = {
        "temperature": FINITE_POSITIVE,
        "distil": FINITE_NOT_NEGATIVE,
        "past_temperature": FINITE_POSITIVE,
        "present_temperature": FINITE_POSITIVE,
        "probe_epochs": AT_LEAST_ONE,
        "probe_lr": POSITIVE,
    }


class Co2L(RehearsalLearner):
    """Contrastive features with distillation of relations, and a linear classifier on top.

    Views of images are crops, mirror images and grey ones; there is no colour jitter. Vectors have no views: both are the
    sample itself, without noise. The buffer is a reservoir, which the task enters at its end; the authors' has equally many
    exemplars of each class. The learning rate is constant, without the authors' warm-up, and there is no weight decay. Sample
    weights multiply an anchor's loss, and count in the head's draws.

    References
    ----------
    H. Cha, J. Lee, J. Shin, "Co²L: Contrastive Continual Learning", ICCV 2021. https://arxiv.org/abs/2106.14413
    """

    title = "Co²L"
    summary = "contrastive features, relations kept, classifier afterwards (ICCV 2021)"
    kinds: ClassVar = {**RehearsalLearner.kinds, "projection": "weights", "teacher": "teacher"}
    config_class = Co2LConfig
    config: Co2LConfig

    def __init__(self, net: nn.Module, setting: Setting, config: Co2LConfig) -> None:
        super().__init__(net, setting, config)
        features = self.head.in_features
        layers = [linear(features, width, self.generator) for width in (features, _WIDTH)]
        self.projection = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(setting.dtype)
        self.teacher = Teacher(self, ("net", "projection"))

    def start(self, task: TaskData) -> None:
        super().start(task)
        self.buffer.check(task.x)
        self._classes = task.class_rows

    def forward(self, x: Tensor) -> Tensor:
        """Normalised projections of scaled inputs; the teacher calls it with its own weights."""
        return F.normalize(self.projection(self.net(x)))

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        joined = batch
        if len(self.buffer):
            old = self.buffer.sample(self.config.replay, self.generator)
            joined = batch.joined(old.x, old.y, self.generator)
        x = self.scale(joined.x)
        views = torch.cat([_VIEW(x, self.generator), _VIEW(x, self.generator)])
        features = self.net(views)
        z = F.normalize(self.projection(features))
        anchors = torch.isin(joined.y, self._classes).to(z.dtype)
        if joined.weight is not None:
            anchors = anchors * joined.weight
        loss = asymmetric_supcon(z, joined.y.repeat(2), anchors.repeat(2), self.config.temperature)
        if self.tasks:
            temperatures = self.config.present_temperature, self.config.past_temperature
            loss = loss + self.config.distil * relation_loss(z, self.teacher(self, views), *temperatures)
        return loss, self.head(features[: len(batch.x)])

    def remember(self, batch: Batch, logits: Tensor) -> None:
        """Store nothing yet: during a task, the buffer has samples of earlier tasks only."""

    def finish(self, task: TaskData) -> None:
        """Fit the head, then keep samples and the present net for the next task."""
        self._fit_head(task)
        super().finish(task)
        self.buffer.add(task.x, task.y, self.generator)
        self.teacher.copy_from(self)
        del self._classes

    def _fit_head(self, task: TaskData) -> None:
        """Fit the head to features of the buffer and the task."""
        old = self.buffer.take(torch.arange(len(self.buffer)))
        x, y = torch.cat([old.x, task.x]), torch.cat([old.y, task.y])
        weight = torch.ones(len(y), dtype=torch.float64, device=y.device)
        if task.weight is not None:
            weight[len(old.y) :] = task.weight
        with torch.no_grad():
            features = torch.cat([self.net(self.scale(part)) for part in portions(x)])
        self._descend_head(features, y, balanced(y, weight))

    def _descend_head(self, features: Tensor, y: Tensor, share: Tensor) -> None:
        """Train the head from zero on features that are drawn with these probabilities."""
        # Centred features of norm one on average make the learning rate independent of the net's scale.
        mean = features.mean(0)
        norm = (features - mean).square().sum(1).mean().sqrt().clamp_min(1e-6)
        features = (features - mean) / norm
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        optimizer = sgd(self.head.parameters(), self.config.probe_lr, self.config.momentum)
        for epoch in range(self.config.probe_epochs):
            optimizer.param_groups[0]["lr"] = self.config.probe_lr * (1 - epoch / self.config.probe_epochs)
            drawn = torch.multinomial(share, len(y), replacement=True, generator=self.generator).to(y.device)
            for index in drawn.split(_PROBE_BATCH):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(self.head(features[index])[:, : self.seen], y[index]).backward()
                optimizer.step()
        with torch.no_grad():  # the same scores from features as they are
            self.head.weight.div_(norm)
            self.head.bias.sub_(self.head.weight @ mean)


def balanced(y: Tensor, weight: Tensor) -> Tensor:
    """Probabilities, up to a factor and on the CPU, by which all classes are drawn equally often, and in a class by weight."""
    total = weight.new_zeros(int(y.max()) + 1).index_add(0, y, weight)
    return (weight / total[y].clamp_min(torch.finfo(weight.dtype).tiny)).cpu()
