"""OCM, online continual learning through mutual information maximisation: contrastive losses against shortcuts.

Every image has variants by turning it and its halves; variant k of class y is the pseudo-class ``y + C k``. With ``x'`` a
random view of x, z normalised projections, f normalised features and ``S = z zᵀ + z f[:, i:i+d]ᵀ`` (i random), the loss is

- in the first task: ``CE(x'_s) + pair(S_s)``
- later: ``CE(x'_b) + pair(S_s) + label(S_b) + label(z_b z*_bᵀ) + ‖g(x'_b) − g*(x''_b)‖² / C_old``

with S over all variants and a view of each; s is the stream batch, b a batch from memory, * the model before the task, g the
logits of the classes that it knows. `label_loss` and `pair_loss` are in `cldnet.methods.parts.contrastive`. Vectors have no
variants and no views but themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.data.views import RandomView, variants
from cldnet.methods.config import FINITE_NOT_NEGATIVE, FINITE_POSITIVE, Limit, LogUniform
from cldnet.methods.gradient import weighted_cross_entropy
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.buffer import Exemplars
from cldnet.methods.parts.contrastive import label_loss, mixed_similarities, pair_loss
from cldnet.methods.parts.teacher import Teacher
from cldnet.methods.rehearsal import RehearsalConfig, RehearsalLearner
from cldnet.nets.layers import linear

#: Width of the projection, unless there are fewer features.
_WIDTH = 128
#: Exemplars per class seen that a step replays at most.
_PER_CLASS = 7
_UP_TO_FOUR = Limit(lambda value: value in (1, 2, 3, 4), "be 1, 2, 3 or 4")
_VIEW = RandomView(scale=0.3, grey=0.25)


@dataclass(frozen=True)
class OCMConfig(RehearsalConfig):
    """Settings of OCM. ``momentum`` is Adam's β₁."""

    lr: float = 1e-3
    momentum: float = 0.9
    replay: int = 64
    weight_decay: float = 1e-4
    temperature: float = 0.07
    rotations: int = 4  # of whole images, by 0°, 90°, 180° and 270°
    inner: int = 4  # of halves of images: none, the right, both, the left; 1 for none

    limits: ClassVar = {
        "weight_decay": FINITE_NOT_NEGATIVE,
        "temperature": FINITE_POSITIVE,
        "rotations": _UP_TO_FOUR,
        "inner": _UP_TO_FOUR,
    }


class Outputs(NamedTuple):
    """Logits, normalised projections and normalised features."""

    logits: Tensor
    z: Tensor
    f: Tensor

    def rows(self, chosen: slice) -> Outputs:
        """The outputs for some of the inputs."""
        return Outputs(*(part[chosen] for part in self))


class OCM(RehearsalLearner):
    """Replay that maximises the information which features have about inputs and classes.

    Every task starts with a new Adam optimiser, because its moments are not saved; the authors use one for all tasks.
    Their teacher normalises by batch statistics, ours by running ones. Sample weights count in the first task's cross-entropy.

    References
    ----------
    Y. Guo, B. Liu, D. Zhao, "Online Continual Learning through Mutual Information Maximization", ICML 2022.
    https://proceedings.mlr.press/v162/guo22g.html
    """

    title = "OCM"
    summary = "replay with contrastive losses on image variants (ICML 2022)"
    kinds: ClassVar = {**RehearsalLearner.kinds, "projection": "weights", "teacher": "teacher", "taught": "teacher"}
    ranges: ClassVar = {"lr": LogUniform(1e-4, 1e-2)}  # of Adam, as wide as that of SGD for other methods
    config_class = OCMConfig
    config: OCMConfig

    def __init__(self, net: nn.Module, setting: Setting, config: OCMConfig) -> None:
        super().__init__(net, setting, config)
        features = self.head.in_features
        self.projection = linear(features, min(_WIDTH, features), self.generator).to(setting.dtype)
        self.teacher = Teacher(self, ("net", "head", "projection"))
        self.taught: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))  # number of classes that the teacher knows

    def start(self, task: TaskData) -> None:
        super().start(task)
        betas, decay = (self.config.momentum, 0.99), self.config.weight_decay
        self.optimizer = torch.optim.Adam(self.parameters(), lr=self.config.lr, betas=betas, weight_decay=decay)

    def forward(self, x: Tensor) -> Outputs:
        """All outputs for scaled inputs; the teacher calls it with its own weights."""
        features = self.net(x)
        return Outputs(self.head(features), F.normalize(self.projection(features)), F.normalize(features))

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        x = self.scale(batch.x)
        stream, y = self.varied(x, batch.y)
        if self.tasks == 0 or len(self.buffer) == 0:
            output = self(torch.cat([stream, self.view(stream)]))
            loss = weighted_cross_entropy(self.score(self.view(x))[:, : self.seen], batch.y, batch.weight)
            return loss + self.stream_loss(output, y), output.logits[: len(x)]
        drawn = self.replayed(batch)
        old = self.scale(drawn.x)
        memory, old_y = self.varied(old, drawn.y)
        output = self(torch.cat([stream, self.view(stream), memory, self.view(memory)]))
        streamed, replayed = output.rows(slice(2 * len(y))), output.rows(slice(2 * len(y), None))
        logits, known = self.score(self.view(old)), int(self.taught)
        loss = (
            weighted_cross_entropy(logits[:, : self.seen], drawn.y, None)
            + self.stream_loss(streamed, y)
            + self.memory_loss(replayed, self.teacher(self, memory).z, old_y)
            + F.mse_loss(logits[:, :known], self.teacher(self, self.view(old)).logits[:, :known])
        )
        return loss, output.logits[: len(x)]

    def stream_loss(self, output: Outputs, y: Tensor) -> Tensor:
        """The loss on all variants of the stream batch and a view of each."""
        return pair_loss(self.similarities(output), y.repeat(2), self.config.temperature)

    def memory_loss(self, output: Outputs, taught: Tensor, y: Tensor) -> Tensor:
        """The loss on all variants of exemplars and a view of each, and on the teacher's projections of those variants."""
        both, temperature = y.repeat(2), self.config.temperature
        loss = label_loss(self.similarities(output), both, both, temperature)
        return loss + label_loss(output.z[: len(y)] @ taught.mT, y, y, temperature)

    def similarities(self, output: Outputs) -> Tensor:
        """``z zᵀ + z f[:, i:i+d]ᵀ`` with a random i."""
        places = output.f.shape[1] - output.z.shape[1] + 1
        offset = int(torch.randint(places, (), generator=self.generator))
        return mixed_similarities(output.z, output.f, offset)

    def varied(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """All variants of scaled inputs, and their pseudo-classes."""
        varied = variants(x, self.config.rotations, self.config.inner)
        numbers = torch.arange(len(varied) // len(x), device=y.device).repeat_interleave(len(x))
        return varied, y.repeat(len(varied) // len(x)) + self.setting.capacity * numbers

    def view(self, x: Tensor) -> Tensor:
        """A random view of scaled inputs."""
        return _VIEW(x, self.generator)

    def replayed(self, batch: Batch) -> Exemplars:
        """Draw exemplars, no more than 7 per class seen, as the authors do."""
        drawn = super().replayed(batch)
        return Exemplars(*(part[: _PER_CLASS * self.seen] for part in drawn))

    def finish(self, task: TaskData) -> None:
        """Make the present model the teacher of the next task."""
        super().finish(task)
        self.teacher.copy_from(self)
        self.taught.fill_(self.seen)
