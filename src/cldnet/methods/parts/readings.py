"""The readings of the paper that CLDNet can take: when projectors are fed, how steps are taken, what the softmax spans.

Each reading is an object with one job, handed to `cldnet.methods.cldnet.CLDNetConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
from torch import Tensor

from cldnet.methods.learner import Batch, TaskData
from cldnet.nets.taps import Flow

if TYPE_CHECKING:
    from cldnet.methods.cldnet import CLDNet

__all__ = [
    "AllClasses",
    "EmbeddingAlone",
    "EveryStep",
    "FixedLast",
    "FreeLast",
    "InTurn",
    "Last",
    "Range",
    "SeenClasses",
    "Steps",
    "TaskClasses",
    "TaskEnd",
    "Together",
    "When",
]


class When(Protocol):
    """When the projectors are fed."""

    def on_step(self, learner: CLDNet, flow: Flow, batch: Batch) -> None:
        """Called for every batch, before its gradient is projected."""

    def on_end(self, learner: CLDNet, task: TaskData) -> None:
        """Called when the task's last batch was learned."""


@dataclass(frozen=True)
class EveryStep:
    """OWM's: every batch, the current task's own and the first task's included."""

    def on_step(self, learner: CLDNet, flow: Flow, batch: Batch) -> None:
        """Absorb the batch."""
        learner.absorb(flow, batch.progress, batch.steps)

    def on_end(self, learner: CLDNet, task: TaskData) -> None:
        """Nothing is left to absorb."""


@dataclass(frozen=True)
class TaskEnd:
    """Only when a task is over, in one more pass: its own gradients are not projected by its own inputs."""

    batch_size: int = 64

    def on_step(self, learner: CLDNet, flow: Flow, batch: Batch) -> None:
        """Leave the projectors alone while the task is learned."""

    def on_end(self, learner: CLDNet, task: TaskData) -> None:
        """Absorb the task's batches with the final weights."""
        for batch in map(Batch.without_zeros, task.batches(self.batch_size)):
            if len(batch.x) == 0:
                continue
            with learner.projection.taps.watch() as flow, torch.no_grad():
                learner.embed(learner.scale(batch.x))
            # The task is over for all of them, so α is what it is at a task's end.
            learner.absorb(flow, progress=1.0, updates=batch.steps)


class Steps(Protocol):
    """How the two objectives take their steps."""

    def take(self, learner: CLDNet, x: Tensor, batch: Batch) -> Tensor:
        """Take one batch's steps and return the EAE loss."""


@dataclass(frozen=True)
class InTurn:
    """Algorithm 1, lines 9 and 10: one step of HBO, then a fresh forward pass and one step of EAE."""

    def take(self, learner: CLDNet, x: Tensor, batch: Batch) -> Tensor:
        """Take both steps."""
        config = learner.config
        flow, _ = learner.forward_pass(x)
        config.when.on_step(learner, flow, batch)
        bottleneck = learner.projection.gradients(flow, learner.bottleneck_deltas(flow, x, batch.y))
        learner.descend(learner.hbo_optimizer, bottleneck, batch)
        again, z = learner.forward_pass(x)
        again.reuse(flow)
        loss = learner.embedding_loss(z, batch)
        learner.descend(learner.eae_optimizer, learner.projection.backward(again, loss), batch)
        return loss.detach()


@dataclass(frozen=True)
class Together:
    """One step on ``L_EAE + weight · L_HBO``, from one forward pass: half the work."""

    weight: float = 1.0

    def take(self, learner: CLDNet, x: Tensor, batch: Batch) -> Tensor:
        """Take one step on the sum of both gradients."""
        config = learner.config
        flow, z = learner.forward_pass(x)
        config.when.on_step(learner, flow, batch)
        bottleneck = [
            None if delta is None else self.weight * delta for delta in learner.bottleneck_deltas(flow, x, batch.y)
        ]
        loss = learner.embedding_loss(z, batch)
        learner.descend(learner.eae_optimizer, learner.projection.backward(flow, loss, bottleneck), batch)
        return loss.detach()


@dataclass(frozen=True)
class EmbeddingAlone:
    """Line 10 alone: one step of EAE, without the HSIC bottleneck."""

    def take(self, learner: CLDNet, x: Tensor, batch: Batch) -> Tensor:
        """Take the step."""
        flow, z = learner.forward_pass(x)
        learner.config.when.on_step(learner, flow, batch)
        loss = learner.embedding_loss(z, batch)
        learner.descend(learner.eae_optimizer, learner.projection.backward(flow, loss), batch)
        return loss.detach()


@dataclass(frozen=True)
class Last:
    """How the last layer learns: through its projector, as the layers in front do."""

    absorbs: ClassVar[bool] = True
    learns: ClassVar[bool] = True


@dataclass(frozen=True)
class FreeLast(Last):
    """Without its projector, which stays empty: a plain output layer (the paper's first ablation)."""

    absorbs: ClassVar[bool] = False


@dataclass(frozen=True)
class FixedLast(Last):
    """Not at all: a random output layer that stays as it is, so that only the layers in front can learn."""

    absorbs: ClassVar[bool] = False
    learns: ClassVar[bool] = False


class Range(Protocol):
    """Which classes the softmax of Eq. 8 runs over."""

    def mask(self, learner: CLDNet, batch: Batch) -> Tensor:
        """True for the class rows that take part, shape ``(capacity,)``."""


@dataclass(frozen=True)
class SeenClasses:
    """All classes seen so far: new classes are contrasted with old ones."""

    def mask(self, learner: CLDNet, batch: Batch) -> Tensor:
        """Rows below ``seen``."""
        return torch.arange(len(learner.basis), device=batch.y.device) < learner.seen


@dataclass(frozen=True)
class TaskClasses:
    """The current task's classes only ("local softmax"); tasks are never contrasted."""

    def mask(self, learner: CLDNet, batch: Batch) -> Tensor:
        """Rows of the task."""
        return learner.task_rows


@dataclass(frozen=True)
class AllClasses:
    """Every vector of the table, those of classes still to come as inert negatives."""

    def mask(self, learner: CLDNet, batch: Batch) -> Tensor:
        """All rows."""
        return torch.ones(len(learner.basis), dtype=torch.bool, device=batch.y.device)
