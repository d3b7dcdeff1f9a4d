"""GDumb: a greedy, balanced memory, and a net trained from scratch on that memory alone.

During a task samples are only offered to the memory (`GreedyBalanced`). At its end a net with the initial weights learns the
memory for some passes by SGD, at a rate of ``lr / 10`` in pass 0, then from ``lr`` to ``min_lr`` along cosines of 1, 2, 4, …
passes, with CutMix in half of the steps. The method shows how much of a result the stored samples alone explain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.data.arrays import Augmentation
from cldnet.methods.config import AT_LEAST_ONE, FINITE_NOT_NEGATIVE, LEARNING_RATES, NOT_NEGATIVE, SHARE
from cldnet.methods.gradient import GradientConfig, GradientLearner, NamedTensors, weighted_cross_entropy
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.buffer import GreedyBalanced
from cldnet.nets.frozen import learning_state


@dataclass(frozen=True)
class GDumbConfig(GradientConfig):
    """Settings of the memory, and of the training at a task's end; epochs and batch size of the stream do not matter."""

    memory: int = 200
    passes: int = 256  # over the memory; the authors have 128 on MNIST
    batch_size: int = 16
    min_lr: float = 5e-4  # at the end of a cosine
    weight_decay: float = 1e-6
    cutmix: float = 0.5  # share of the steps with CutMix, on images only; the authors have none on MNIST

    limits: ClassVar = {
        "memory": NOT_NEGATIVE,
        "passes": AT_LEAST_ONE,
        "batch_size": AT_LEAST_ONE,
        "min_lr": FINITE_NOT_NEGATIVE,
        "weight_decay": FINITE_NOT_NEGATIVE,
        "cutmix": SHARE,
    }


class GDumb(GradientLearner):
    """Store samples in `observe`; train a fresh net on them in `finish`. The memory keeps no sample weights, except zero.

    References
    ----------
    A. Prabhu et al., "GDumb: A Simple Approach that Questions Our Progress in Continual Learning", ECCV 2020.
    https://www.robots.ox.ac.uk/~tvg/publications/2020/gdumb.pdf
    """

    title = "GDumb"
    summary = "greedy balanced memory, and a net trained from scratch on it (ECCV 2020)"
    traits = Traits(rehearsal_free=False, constant_size=True, one_pass=True)
    kinds: ClassVar = {**GradientLearner.kinds, "buffer": "exemplars", "initial": "initial weights"}
    config_class = GDumbConfig
    running: ClassVar = ()  # the optimiser exists in `finish` only
    ranges: ClassVar = {"lr": LEARNING_RATES}
    config: GDumbConfig

    _augment: Augmentation | None

    def __init__(self, net: nn.Module, setting: Setting, config: GDumbConfig) -> None:
        super().__init__(net, setting, config)
        trained = {name: t for name, t in learning_state(self).items() if name.startswith(("net.", "head."))}
        self.initial = NamedTensors(trained)
        self.buffer = GreedyBalanced(0, torch.zeros(0, *setting.input_shape), setting.capacity)

    def start(self, task: TaskData) -> None:
        """Make the memory once the inputs' type is known."""
        self._augment = None
        if self.tasks == 0:
            self.buffer = GreedyBalanced(self.config.memory, task.x, self.setting.capacity)

    def observe(self, batch: Batch) -> Tensor:
        """Offer the batch to the memory; nothing is learned yet."""
        self._augment = batch.augment
        kept = batch.without_zeros()
        self.buffer.add(kept.plain, kept.y, self.generator)
        return torch.zeros((), device=batch.x.device)

    def finish(self, task: TaskData) -> None:
        """Train a fresh net on the memory."""
        self.load_state_dict(dict(self.initial.items()), strict=False)  # running statistics of BatchNorm, too
        config, stored = self.config, self.buffer.take(torch.arange(len(self.buffer)))
        self.optimizer = torch.optim.SGD(
            self.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
        )
        self.train()
        for number in range(config.passes if len(stored.x) else 0):
            self.optimizer.param_groups[0]["lr"] = rate(number, config.lr, config.min_lr)
            order = torch.randperm(len(stored.x), generator=self.generator).to(stored.x.device)
            for batch in TaskData(stored.x, stored.y).epoch(order, config.batch_size, number, config.passes):
                varied = batch if self._augment is None else batch.augmented(self._augment, self.generator)
                self.descend(self.loss(varied))
        self.eval()
        del self._augment
        super().finish(task)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the classes seen, for a random part of the steps on mixed images."""
        share = self.config.cutmix if batch.x.ndim > 2 else 0.0
        if share == 0 or float(torch.rand((), generator=self.generator)) >= share:
            return super().loss(batch)
        x, partners, own = cutmix(batch.x, self.generator)
        logits = self.score(self.scale(x))[:, : self.seen]
        first, second = (weighted_cross_entropy(logits, y, None) for y in (batch.y, batch.y[partners]))
        return own * first + (1 - own) * second

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        self.buffer = GreedyBalanced.like_state(state, "buffer.")


def rate(number: int, lr: float, min_lr: float) -> float:
    """Learning rate of a pass: a tenth of ``lr`` in pass 0, then cosines, which begin at every power of two.

    Examples
    --------
    >>> [round(rate(number, 0.05, 0.0), 4) for number in range(9)]
    [0.005, 0.05, 0.05, 0.025, 0.05, 0.0427, 0.025, 0.0073, 0.05]
    """
    if number == 0:
        return lr / 10
    length = 1 << (number.bit_length() - 1)  # the largest power of two up to the pass: its cosine's begin and length
    return min_lr + (lr - min_lr) * (1 + cos(pi * (number - length) / length)) / 2


def cutmix(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, float]:
    """Replace a random box in all images by that of other images; return them, the others' numbers, and the share left.

    The box's share of the area is uniform, Beta(1, 1), before it is cut at the border (Yun et al., "CutMix", ICCV 2019).
    """
    height, width = images.shape[-2:]
    partners = torch.randperm(len(images), generator=generator).to(images.device)
    area, down, across = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
    half_height, half_width = int(height * area**0.5) // 2, int(width * area**0.5) // 2
    y, x = int(height * down), int(width * across)
    box = (
        ...,
        slice(max(0, y - half_height), min(height, y + half_height)),
        slice(max(0, x - half_width), min(width, x + half_width)),
    )
    mixed = images.clone()
    mixed[box] = images[partners][box]
    return mixed, partners, 1 - images[0][box].numel() / images[0].numel()
