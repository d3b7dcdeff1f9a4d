"""Reservoir sampling: a buffer of fixed size that is a uniform sample of everything that went by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Reservoir"]


class Reservoir(nn.Module):
    """A uniform sample of a stream of examples (Vitter's algorithm R), with its randomness from a given generator.

    Parameters
    ----------
    size : int
        Number of examples that it holds.
    like : Tensor
        Inputs whose shape and dtype the buffer takes.

    Examples
    --------
    >>> reservoir = Reservoir(3, like=torch.zeros(0, 2))
    >>> reservoir.add(torch.arange(10.0).reshape(5, 2), torch.arange(5), torch.Generator().manual_seed(0))
    >>> len(reservoir), reservoir.x.shape
    (3, torch.Size([3, 2]))
    """

    x: Tensor
    y: Tensor
    met: Tensor

    def __init__(self, size: int, like: Tensor) -> None:
        super().__init__()
        self.register_buffer("x", like.new_zeros(size, *like.shape[1:]))
        self.register_buffer("y", torch.zeros(size, dtype=torch.int64, device=like.device))
        self.register_buffer("met", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return min(int(self.met), len(self.x))

    def add(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Offer examples to the reservoir."""
        if x.dtype != self.x.dtype:
            raise ValueError(f"The memory holds {self.x.dtype} and {x.dtype} came: convert X to {self.x.dtype}.")
        met = int(self.met)
        # Example number m takes a place drawn from the first m + 1, and is dropped if the buffer has no such place.
        ages = torch.arange(met, met + len(x))
        drawn = (torch.rand(len(x), generator=generator, dtype=torch.float64) * (ages + 1)).long()
        places = torch.where(ages < len(self.x), ages, drawn)
        kept = places < len(self.x)
        latest = torch.full((len(self.x),), -1).scatter_reduce(0, places[kept], torch.arange(len(x))[kept], "amax")
        changed = latest >= 0  # where several examples drew one place, the last one has it
        self.x[changed], self.y[changed] = x[latest[changed]], y[latest[changed]]
        self.met += len(x)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw examples from the reservoir, each at most once."""
        index = torch.randperm(len(self), generator=generator)[:count].to(self.x.device)
        # index_select copies whole rows, several times quicker than x[index], which copies number by number.
        return self.x.index_select(0, index), self.y.index_select(0, index)
