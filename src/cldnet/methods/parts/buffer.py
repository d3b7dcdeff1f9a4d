"""Buffers of exemplars: training samples that a method keeps, with their labels and, if it needs them, its own logits.

Inputs are stored as they came, before augmentation, and in their own type: an image of uint8 takes a byte per pixel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn


class Exemplars(NamedTuple):
    """Samples from a buffer: inputs, class rows, stored logits (of width 0 if none are), and their places in the buffer."""

    x: Tensor
    y: Tensor
    logits: Tensor
    places: Tensor


class Buffer(nn.Module):
    """``size`` places for exemplars with shape and dtype of ``like``, and for ``width`` logits of each."""

    def __init__(self, size: int, like: Tensor, width: int = 0) -> None:
        super().__init__()
        self.x: Tensor = nn.Buffer(like.new_zeros(size, *like.shape[1:]))
        self.y: Tensor = nn.Buffer(torch.zeros(size, dtype=torch.int64, device=like.device))
        self.met: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))  # samples offered so far
        if width:
            self.register_buffer("logits", torch.zeros(size, width, device=like.device))
        self.width = width

    @classmethod
    def like_state(cls, state: Mapping[str, Tensor], prefix: str) -> Self:
        """Make a buffer of the sizes in a state that is about to be loaded; names there begin with ``prefix``."""
        logits = state.get(f"{prefix}logits")
        x = state[f"{prefix}x"]
        return cls(len(x), x, 0 if logits is None else logits.shape[1])

    def __len__(self) -> int:
        """Number of exemplars; they take the first places."""
        return min(int(self.met), len(self.x))

    def check(self, x: Tensor) -> None:
        """Refuse inputs of another type than the buffer holds."""
        if x.dtype != self.x.dtype:
            raise ValueError(f"The memory holds {self.x.dtype}, but X has {x.dtype}: convert X to {self.x.dtype}.")

    def put(self, places: Tensor, x: Tensor, y: Tensor, logits: Tensor | None = None) -> None:
        """Store samples at places."""
        places = places.to(self.x.device)
        self.x[places], self.y[places] = x, y
        if self.width:
            assert logits is not None
            self.get_buffer("logits")[places] = logits.detach().to(self.get_buffer("logits"))

    def take(self, places: Tensor) -> Exemplars:
        """Return copies of the exemplars at places."""
        places = places.to(self.x.device)
        # index_select copies whole samples, several times faster than x[places].
        stored = self.get_buffer("logits").index_select(0, places) if self.width else self.x.new_zeros(len(places), 0)
        return Exemplars(self.x.index_select(0, places), self.y.index_select(0, places), stored, places)

    def sample(self, count: int, generator: torch.Generator) -> Exemplars:
        """Draw exemplars without replacement, fewer than ``count`` if there are not so many."""
        return self.take(torch.randperm(len(self), generator=generator)[:count])


class Reservoir(Buffer):
    """A uniform sample of a stream (Vitter's algorithm R)."""

    def add(self, x: Tensor, y: Tensor, generator: torch.Generator, logits: Tensor | None = None) -> None:
        """Offer samples to the reservoir."""
        self.check(x)
        met = int(self.met)
        # Sample number m gets a random place among the first m + 1, and is dropped if the buffer has no such place.
        numbers = torch.arange(met, met + len(x))
        drawn = (torch.rand(len(x), generator=generator, dtype=torch.float64) * (numbers + 1)).long()
        places = torch.where(numbers < len(self.x), numbers, drawn)
        kept = places < len(self.x)
        latest = torch.full((len(self.x),), -1).scatter_reduce(0, places[kept], torch.arange(len(x))[kept], "amax")
        changed = (latest >= 0).nonzero()[:, 0]  # if several samples drew one place, the last one gets it
        chosen = latest[changed].to(x.device)
        self.put(changed, x[chosen], y[chosen], None if logits is None else logits[chosen])
        self.met += len(x)


class GreedyBalanced(Buffer):
    """GDumb's buffer: equally many samples of every class, as far as they came. ``met`` counts the samples that it holds.

    A sample is stored if its class is new, or has fewer than ``size // classes seen`` exemplars. If there is no free place, it
    takes that of a random exemplar of the largest class (the earliest of several).
    """

    def __init__(self, size: int, like: Tensor, classes: int) -> None:
        super().__init__(size, like)
        # A class stays known after its last exemplar was dropped, which happens if there are more classes than places.
        self.known: Tensor = nn.Buffer(torch.zeros(classes, dtype=torch.bool, device=like.device))

    @classmethod
    def like_state(cls, state: Mapping[str, Tensor], prefix: str) -> Self:
        return cls(len(state[f"{prefix}x"]), state[f"{prefix}x"], len(state[f"{prefix}known"]))

    def add(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Offer samples to the buffer, one after the other."""
        self.check(x)
        size, held = len(self.x), self.y[: len(self)].tolist()
        counts, known = Counter(held), set(self.known.nonzero()[:, 0].tolist())
        chosen: dict[int, int] = {}  # the sample that takes a place
        for number, row in enumerate(y.tolist()):
            if size == 0 or (row in known and counts[row] >= size // len(known)):
                continue
            known.add(row)
            if len(held) < size:
                place = len(held)
                held.append(row)
            else:
                largest = max(sorted(counts), key=counts.__getitem__)
                own = [place for place, other in enumerate(held) if other == largest]
                place = own[int(torch.randint(len(own), (), generator=generator))]
                counts[largest] -= 1
                held[place] = row
            counts[row] += 1
            chosen[place] = number
        numbers = torch.tensor([*chosen.values()], dtype=torch.int64, device=x.device)
        self.put(torch.tensor([*chosen], dtype=torch.int64), x[numbers], y[numbers])
        self.known[[*known]] = True
        self.met.fill_(len(held))
