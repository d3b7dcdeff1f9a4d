"""Where a batch is computed: in this process alone, or split over several, the ranks.

A learner whose class says ``spreads = True`` asks its ``ranks`` for its share of every batch, and for what belongs to the whole
batch. `Alone` has nothing to do, bit for bit. `cldnet.distributed.torchrun.TorchrunRanks` talks to other processes.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from cldnet.data.arrays import Batch


class Ranks(ABC):
    """The processes that learn each batch together. All of them call the same methods in the same order.

    Attributes
    ----------
    rank, count : int
        This process's number, from 0, and the number of processes.
    """

    rank: int
    count: int

    @abstractmethod
    def prepare(self, net: nn.Module) -> None:
        """Prepare a learner's modules, before its first task: what they compute over a batch is over the whole batch."""

    @abstractmethod
    def reseed(self) -> None:
        """Give torch's global generator a state of this rank's own for the next step. Call it where that one is isolated."""

    @abstractmethod
    def share(self, batch: Batch) -> AbstractContextManager[Batch]:
        """Split a batch, and yield this rank's part. The methods below are about that batch while the block runs."""

    @abstractmethod
    def weigh(self, loss: Tensor) -> Tensor:
        """Turn the mean loss of this rank's samples into its part of the whole batch's: the sum over ranks is the mean."""

    @abstractmethod
    def length(self, rows: Tensor) -> int:
        """Count the rows of all ranks, given this rank's."""

    @abstractmethod
    def gather(self, *rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """Collect the rows of all ranks, in the batch's order, for each tensor. No gradient flows through it."""

    @abstractmethod
    def own(self, *rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """Take this rank's rows from those that `gather` returned, or from what was computed from them row by row."""

    @abstractmethod
    def mean(self, rows: Tensor) -> Tensor:
        """Mean over the rows of all ranks, as one row."""

    @abstractmethod
    def total(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sum of each tensor over all ranks, with the same bits on all of them."""

    def total_gradients(self, gradients: Mapping[Tensor, Tensor]) -> dict[Tensor, Tensor]:
        """Sum over all ranks of gradients by parameter."""
        return dict(zip(gradients, self.total([*gradients.values()]), strict=True))

    @abstractmethod
    def check_equal(self, value: Callable[[], str], otherwise: str) -> None:
        """Raise a ValueError with the text ``otherwise`` unless all ranks have the same value."""


class Alone(Ranks):
    """One process that computes whole batches."""

    rank, count = 0, 1

    def prepare(self, net: nn.Module) -> None:
        """Nothing to prepare."""

    def reseed(self) -> None:
        """The generator goes on as it is."""

    def share(self, batch: Batch) -> AbstractContextManager[Batch]:
        return nullcontext(batch)

    def weigh(self, loss: Tensor) -> Tensor:
        return loss

    def length(self, rows: Tensor) -> int:
        return len(rows)

    def gather(self, *rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        return rows

    def own(self, *rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        return rows

    def mean(self, rows: Tensor) -> Tensor:
        return rows.mean(0, keepdim=True)

    def total(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors

    def check_equal(self, value: Callable[[], str], otherwise: str) -> None:
        """One process agrees with itself."""


#: Every learner's ranks, unless a run gives it others.
ALONE = Alone()


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Digest of every bit of a state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
