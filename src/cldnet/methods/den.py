"""DEN, dynamically expandable networks: retrain what a task needs, add units if that is not enough, split those that moved.

Task 1 trains the net with ``ℓ1``. A later task has four phases, which share its steps (10, 30, 30 and 30 %):

1. Train a new head alone.
2. Selective retraining: walk from the head down along non-zero weights, and train the sub-network that this finds, with
   ``½ pull ‖W − W_before‖²`` (Eq. 4).
3. If the loss is still above a threshold, dynamic expansion: add units to every layer and train only them and the head, with a
   group lasso on each unit's new incoming weights (Eq. 5). Units without incoming weights are dropped.
4. Split and duplication: a unit whose incoming weights moved too far becomes two, one as it was before the task and one as it
   is now. Then the net is trained again (Eq. 4).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import torch
from torch import Tensor, nn

from cldnet.methods.config import FINITE_NOT_NEGATIVE, NOT_NEGATIVE, POSITIVE, Config, Limit, LogUniform
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.widening import WideningLearner

#: Factor of the learning rate after each epoch of a phase.
_EPOCH_DECAY = 0.95


class Phase(IntEnum):
    """What is trained."""

    HEAD = 0
    SELECTED = 1
    EXPANDED = 2
    SPLIT = 3


#: Shares of a task's steps after which the second, third and fourth phase begin.
_BEGINS = (0.1, 0.4, 0.7)


@dataclass(frozen=True)
class DENConfig(Config):
    """Settings of the optimiser, which is Adam, of the penalties and of the thresholds."""

    lr: float = 1e-3
    units: int = 10  # that a task adds to a layer
    splits: int = 10  # of a layer's units at most; those that moved least are split first
    loss_threshold: float = 0.01  # of the loss, from which on units are added
    split_threshold: float = 0.05  # of the distance by which a unit's incoming weights moved
    l1: float = 1e-5
    group: float = 1e-3  # of the group lasso
    l2: float = 1e-4
    pull: float = 0.5

    limits: ClassVar = {
        "lr": POSITIVE,
        **dict.fromkeys(("units", "splits"), NOT_NEGATIVE),
        **dict.fromkeys(("loss_threshold", "split_threshold"), Limit(lambda value: value >= 0, "not be negative")),
        **dict.fromkeys(("l1", "group", "l2", "pull"), FINITE_NOT_NEGATIVE),
    }


class DEN(WideningLearner):
    """One net for all tasks, whose units are retrained, added and split.

    Choices where the paper and the authors' code differ or are open: The loss is the cross-entropy over the task's classes,
    not a binary one for each class. Each phase has a new Adam, whose rate falls by 5 % after each of the phase's epochs.
    Both lassos are proximal steps after each step of Adam, with the code's thresholds per step. In the code each phase has
    up to 4,300 steps of its own; with a few hundred for all phases hardly any unit is dropped, and ``units`` and ``splits``
    decide the growth. The paper has no limit to splits; ours is the code's. All columns of the head count in the selection,
    of which the code looks at one. The loss compared with the threshold is that of the last batch before, as in the code.
    Units may split without an expansion, as in the paper. Where a unit is split, the head and new units take their input
    from the new one, which leaves the task's outputs nearly as they were; old units take theirs from the old one. What
    belongs to the old one then stays as it was before the task; the authors only pull it back.

    References
    ----------
    J. Yoon, E. Yang, J. Lee, S. J. Hwang, "Lifelong Learning with Dynamically Expandable Networks", ICLR 2018.
    https://arxiv.org/abs/1708.01547
    """

    title = "DEN"
    summary = "retrains, adds and splits units of one net; needs the task at test (ICLR 2018)"
    config_class = DENConfig
    ranges: ClassVar = {"lr": LogUniform(1e-4, 1e-2)}  # of Adam, as wide as that of SGD for other methods
    running = (*WideningLearner.running, "phase", "since", "loss", "selected")
    config: DENConfig

    phase: int
    since: int  # epoch in which the phase began
    loss: Tensor  # of the last batch
    selected: dict[str, Tensor]  # per stage, 1 for each old unit that is retrained and 0 for others
    _before: list[Tensor]  # the net's weights and biases before the task

    def __init__(self, net: nn.Module, setting: Setting, config: DENConfig) -> None:
        super().__init__(net, setting)
        self.config = config

    def start(self, task: TaskData) -> None:
        """Add a head, and make room for the units of phases 3 and 4."""
        old = [*self.net.corners(self.net.old)]
        self._before = [corner.value.clone() for corner in old]
        self.selected = {str(corner.stage): corner.value.new_zeros(len(corner.value)) for corner in old}
        self.make_room(task, self.config.units + self.config.splits if self.tasks > 0 else 0)
        self.phase, self.since, self.loss = Phase.HEAD if self.tasks > 0 else Phase.SELECTED, 0, torch.zeros(())
        self.optimizer = self.new_optimizer()

    def observe(self, batch: Batch) -> Tensor:
        while self.tasks > 0 and self.phase < sum(batch.step >= share * batch.steps for share in _BEGINS):
            self._begin_phase(self.phase + 1, batch.epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * _EPOCH_DECAY ** (batch.epoch - self.since)
        self.net.requires_grad_(self.phase != Phase.HEAD)
        loss = self.task_loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        masks = self._masks()
        self._regularise(masks)
        self.optimizer.step()
        self._shrink(masks)
        self.loss = loss.detach()
        return self.loss

    @torch.no_grad()
    def _begin_phase(self, phase: int, epoch: int) -> None:
        """Change what is trained, with a new optimiser."""
        self.phase, self.since = phase, epoch
        if phase == Phase.SELECTED:
            self.selected = self._reached()
        elif phase == Phase.EXPANDED and self.loss >= self.config.loss_threshold:
            self.widths = self.widths + self.config.units
            self.net.draw(self.net.old, self.widths.tolist(), self.generator)
        elif phase == Phase.SPLIT:
            self._drop()
            self._split()
        self.optimizer = self.new_optimizer()

    @property
    def _expanding(self) -> bool:
        """Whether new units are trained, and old ones are not."""
        return self.phase == Phase.EXPANDED and self.widths.tolist() != self.net.old

    def _reached(self) -> dict[str, Tensor]:
        """Find the units from which the new head can be reached along non-zero weights (Algorithm 2)."""
        reached, above = dict[str, Tensor](), self.corners()[-2].value  # the head's weight
        rows = torch.ones(len(above), dtype=torch.bool, device=above.device)
        for corner in reversed([corner for corner in self.net.corners(self.net.old) if corner.parameter.ndim > 1]):
            width = len(corner.value)
            rows = (above[rows] != 0).any(0).reshape(width, -1).any(1)
            reached[str(corner.stage)], above = rows.to(above.dtype), corner.value
        return reached

    def _masks(self) -> list[Tensor]:
        """Tell for each weight and bias of the net which old numbers are trained, as 1 or 0."""
        masks, free = list[Tensor](), 0 if self.phase == Phase.HEAD or self._expanding else 1
        for old in self.net.corners(self.net.old):
            mask = free * self.selected[str(old.stage)]
            if old.parameter.ndim > 1:
                below = self.selected.get(str(old.stage - 1), mask.new_ones(self.net.inputs))
                mask = mask[:, None] * below.repeat_interleave(self.net.positions[old.stage])
            masks.append(mask[(..., *[None] * (old.parameter.ndim - mask.ndim))])
        return masks

    def _regularise(self, masks: list[Tensor]) -> None:
        """Add the gradients of the ``ℓ2`` penalty and of the pull (Eq. 4), and drop those of what is not trained."""
        self.decay(self.config.l2)
        for old, before, mask in zip(self.net.corners(self.net.old), self._before, masks, strict=True):
            if old.gradient is not None:
                old.gradient.add_(old.value - before, alpha=self.config.pull).mul_(mask)

    def _shrink(self, masks: list[Tensor]) -> None:
        """Take the proximal steps of ``ℓ1`` and of the group lasso, one group for the new weights into each unit (Eq. 5)."""
        for corner, mask in itertools.zip_longest(self.corners(), masks):  # the head is last, and has no old weights
            if corner.gradient is not None:
                step = corner.value.clamp(-self.config.l1, self.config.l1)
                if mask is not None:
                    step[tuple(map(slice, mask.shape[:2]))].mul_(mask)
                corner.value.sub_(step)
        if self._expanding:
            for rows, columns in self.net.added(self.net.old, self.widths.tolist()):
                shrink_groups(rows, self.config.group)
                shrink_groups(columns, self.config.group)

    def _drop(self) -> None:
        """Drop the task's units that have no incoming weights; the others move up."""
        kept = list[Tensor]()
        for corner in self.net.corners(self.widths.tolist()):
            if corner.parameter.ndim > 1:
                fed = (corner.value != 0).flatten(1).any(1)
                fed[: self.net.old[corner.stage]] = True
                kept.append(fed.nonzero()[:, 0])
        for corner in self.corners():
            if corner.stage < len(kept):
                move_up(corner.value, 0, kept[corner.stage])
            if corner.parameter.ndim > 1 and corner.stage > 0:
                move_up(corner.value, 1, self.net.columns_of(kept[corner.stage - 1], corner.stage))
        self.widths = torch.tensor([*map(len, kept)])

    def _split(self) -> None:
        """Make two units of each that moved too far: one as it was before the task, a new one as it is now (Algorithm 4)."""
        first, present = [*self.net.old, 0], self.widths.tolist()
        split = [self._drifted(moved) for moved in self._moved()]
        self.widths = self.widths + torch.tensor([*map(len, split)])
        for corner in self.net.corners(self.widths.tolist()):
            corner.value[present[corner.stage] :] = corner.value[split[corner.stage]]
        for corner, before in zip(self.net.corners(self.net.old), self._before, strict=True):
            corner.value[split[corner.stage]] = before[split[corner.stage]]
        for corner in self.corners():
            if corner.parameter.ndim > 1 and corner.stage > 0:  # the head and new units read the new ones below
                below, listening = split[corner.stage - 1], corner.value[first[corner.stage] :]
                copies = torch.arange(len(below), device=below.device) + present[corner.stage - 1]
                source, target = (self.net.columns_of(units, corner.stage) for units in (below, copies))
                listening[:, target] = listening[:, source]
                listening[:, source] = 0
        for number, units in enumerate(split):
            self.selected[str(number)][units] = 0

    def _moved(self) -> list[Tensor]:
        """Distances by which the incoming weights and the bias of each old unit moved since the task began."""
        squares = [self._before[0].new_zeros(width) for width in self.net.old]
        for old, before in zip(self.net.corners(self.net.old), self._before, strict=True):
            squares[old.stage] += (old.value - before).square().reshape(len(before), -1).sum(1)
        return [square.sqrt() for square in squares]

    def _drifted(self, moved: Tensor) -> Tensor:
        """Numbers of the units that moved too far; if they are too many, of those that moved least."""
        far = (moved > self.config.split_threshold).nonzero()[:, 0]
        return far[moved[far].argsort(stable=True)[: self.config.splits]]

    def finish(self, task: TaskData) -> None:
        if self.tasks > 0:
            self._drop()
        self.cut()
        del self.phase, self.since, self.loss, self.selected, self._before


def shrink_groups(weights: Tensor, threshold: float) -> None:
    """Shorten the vector of weights into each unit by a threshold, in place; to zero if it is not longer.

    Examples
    --------
    >>> weights = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]])
    >>> shrink_groups(weights, 1.0)
    >>> weights
    tensor([[2.4000, 3.2000],
            [0.0000, 0.0000],
            [0.0000, 0.0000]])
    """
    if weights.numel() > 0:
        norms = torch.linalg.vector_norm(weights, dim=[*range(1, weights.ndim)], keepdim=True)
        weights.mul_((norms - threshold).clamp_min(0) / norms.clamp_min(torch.finfo(norms.dtype).tiny))


def move_up(values: Tensor, dim: int, kept: Tensor) -> None:
    """Move some rows, or columns, to the front, in place, and set the rest to zero.

    Examples
    --------
    >>> values = torch.tensor([1, 2, 3, 4])
    >>> move_up(values, 0, torch.tensor([0, 2]))
    >>> values
    tensor([1, 3, 0, 0])
    """
    moved = values.index_select(dim, kept)
    values.zero_().narrow(dim, 0, len(kept)).copy_(moved)
