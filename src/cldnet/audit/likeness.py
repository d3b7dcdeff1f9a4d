"""Whether anything that a learner keeps is a training row in disguise: the |cosine| of every stored vector with every row.

Flips and quarter turns of images are included, and every form in which the learner meets a row (`cldnet.audit.spaces`).
The mean of many rows that are like each other is like each of them, and tells what they have in common. So of every row that
something stored is like, it is counted how many others are about as like to it: two rows whose cosine with their mean is
`LIMIT` have a cosine of its square with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.audit.spaces import forms, patch_sides, views
from cldnet.audit.stored import Stored, stored_vectors
from cldnet.methods.learner import Learner

__all__ = ["FEW", "LIMIT", "Finding", "compare"]

#: A stored vector with a |cosine| beyond this is like a row.
LIMIT = 0.99
#: What fewer examples than this have in common may tell of one of them.
FEW = 10
#: Rows as like to each other as this may have a mean that is like all of them; beyond the other one, it is a copy.
_KIN = LIMIT**2
_COPY = 1 - 1e-6
#: Rows that something stored is like, whose kin are counted.
_FOLLOWED = 500
#: Likenesses that random directions may be expected to have before a comparison tells nothing.
_CHANCE = 0.01
_ROWS_AT_ONCE = 256
_PATCH_NUMBERS_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Finding:
    """How like the vectors of one tensor are to training rows in one form.

    Attributes
    ----------
    tensor, form : str
        What was compared, as `cldnet.audit.stored.Stored` has it.
    space : str
        The form of the rows, as `cldnet.audit.spaces.forms` calls it.
    vectors, length : int
        How many were compared, and their length.
    largest : float
        The largest |cosine|.
    at : int
        The number of the stored vector that has it.
    beyond, copies : int
        Stored vectors beyond `LIMIT`, and those that are a row but for their length.
    fewest : int
        Of the rows that those are like, the one with the fewest rows as like to it, itself included, has so many.
    chance : float
        How many likenesses vectors of this length would have if their directions were random.
    """

    tensor: str
    form: str
    space: str
    vectors: int
    length: int
    largest: float
    at: int
    beyond: int
    copies: int
    fewest: int
    chance: float

    @property
    def verdict(self) -> str:
        """``"clear"``, ``"chance"`` (too short to tell), ``"shared"`` (by `FEW` rows or more) or ``"revealing"``."""
        if not self.beyond:
            return "clear"
        if self.chance >= _CHANCE:
            return "chance"
        return "shared" if self.fewest >= FEW and not self.copies else "revealing"


class _Comparison:
    """Stored vectors against rows of one form, block by block."""

    def __init__(self, stored: Stored, space: str, length: int) -> None:
        self.stored, self.space, self.length = stored, space, length
        # A layer's last entry may be the constant one of a bias.
        self.units = stored.units if stored.units.shape[1] == length else normalize(stored.units[:, :length])
        self.largest = torch.zeros(len(self.units))
        self.compared = 0
        self.like = torch.empty(0, length)
        self.kin = torch.empty(0, dtype=torch.int64)

    def see(self, rows: Tensor) -> None:
        """Compare with unit vectors ``(n, vectors an input, length)`` of one view of some inputs."""
        cosines = (rows.flatten(0, 1) @ self.units.T).abs_()
        self.largest = torch.maximum(self.largest, cosines.amax(0))
        self.compared += len(cosines)
        found, place = cosines.amax(1).unflatten(0, rows.shape[:2]).max(1)
        followed = (found > LIMIT).nonzero()[: _FOLLOWED - len(self.like), 0]
        self.like = torch.cat([self.like, rows[followed, place[followed]]])
        self.kin = self.like.new_zeros(len(self.like), dtype=torch.int64)

    def count_kin(self, rows: Tensor) -> None:
        """Count which inputs are about as like to the rows that something stored is like."""
        cosines = (rows.flatten(0, 1) @ self.like.T).abs_().unflatten(0, rows.shape[:2]).amax(1)
        self.kin += (cosines > _KIN).sum(0)

    def finding(self) -> Finding:
        """Say what was found in all blocks."""
        beyond = self.largest > LIMIT
        chance = len(self.units) * self.compared * _chance_of_likeness(self.length)
        return Finding(
            self.stored.tensor,
            self.stored.form,
            self.space,
            vectors=len(self.units),
            length=self.length,
            largest=min(1.0, float(self.largest.max())),
            at=int(self.largest.argmax()),
            beyond=int(beyond.sum()),
            copies=int((self.largest > _COPY).sum()),
            fewest=int(self.kin.min()) if len(self.kin) else 0,
            chance=chance,
        )


@torch.no_grad()
def compare(learner: Learner, x: Tensor, on_progress: Callable[[int, int], None] | None = None) -> list[Finding]:
    """Compare everything that a learner keeps with inputs ``(n, …)``, rows that are there twice counting once.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting, TaskData
    >>> from cldnet.fit import fit_task
    >>> x = torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
    >>> learner = build_learner("exact", Setting((16,), capacity=2, seed=0), backbone_options={"features": 30})
    >>> _ = fit_task(learner, TaskData(x, torch.arange(40) % 2), epochs=1, batch_size=40)
    >>> {finding.verdict for finding in compare(learner, x)}
    {'clear'}
    """
    rows = x.unique(dim=0)
    by_length: dict[int, list[Stored]] = {}
    for stored in stored_vectors(learner):
        by_length.setdefault(stored.units.shape[1], []).append(stored)
    comparisons: dict[str, list[_Comparison]] = {}
    for first, block in _blocks(learner, rows):
        for view in views(block):
            for space, vectors in _units(learner, view):
                length = vectors.shape[2]
                if space not in comparisons:
                    matching = [*by_length.get(length, []), *by_length.get(length + 1, [])]
                    comparisons[space] = [_Comparison(stored, space, length) for stored in matching]
                for comparison in comparisons[space]:
                    comparison.see(vectors)
        if on_progress is not None:
            on_progress(first + len(block), len(rows))
    _count_kin(learner, rows, {space: [one for one in many if len(one.like)] for space, many in comparisons.items()})
    return [one.finding() for several in comparisons.values() for one in several]


def _count_kin(learner: Learner, rows: Tensor, comparisons: Mapping[str, list[_Comparison]]) -> None:
    if not any(comparisons.values()):
        return
    for _, block in _blocks(learner, rows):
        for space, vectors in _units(learner, block):
            for comparison in comparisons[space]:
                comparison.count_kin(vectors)


def _units(learner: Learner, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Unit vectors that inputs become, by form."""
    for space, vectors in forms(learner, x.to(learner.counters.device)).items():
        yield space, normalize(vectors, dim=2).cpu()


def _blocks(learner: Learner, rows: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Inputs in blocks that leave room for all of their patches."""
    channels = prod(rows.shape[1:]) // max(1, prod(rows.shape[-2:])) if rows.ndim > 2 else 1
    numbers = sum(channels * side**2 * prod(rows.shape[-2:]) for side in patch_sides(learner))
    size = min(_ROWS_AT_ONCE, max(1, _PATCH_NUMBERS_AT_ONCE // max(1, numbers)))
    for first in range(0, len(rows), size):
        yield first, rows[first : first + size]


def _chance_of_likeness(length: int) -> float:
    """The probability that two random directions have a |cosine| beyond `LIMIT`.

    Examples
    --------
    >>> round(_chance_of_likeness(2), 3), _chance_of_likeness(16) < 1e-12
    (0.09, True)
    """
    from scipy.special import betainc  # noqa: PLC0415  (heavy)

    return 1.0 if length < 2 else float(betainc((length - 1) / 2, 0.5, 1 - LIMIT**2))
