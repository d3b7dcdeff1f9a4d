"""Whether anything that a learner keeps is a training row in disguise: the |cosine| of every stored vector with every row.

Flips and quarter turns of images are included, and every form in which the learner meets a row (`cldnet.audit.spaces`).
The mean of many rows that are like each other is like each of them, and tells what they have in common. So of every stored
vector that is like a row it is counted how many rows are about as like to it (their |cosine| is beyond the square of
`LIMIT`, as that of two rows with each other whose |cosine| with their mean is `LIMIT`): if they are `FEW` or more it is
shared by them, else it reveals one of them. A vector that *is* a row, but for its length, is shared only by rows that it is
as well.

Filters are means of many patches by the way they are made, and those of small patches come near to some patch. Only one that
is nearer to a whitened patch than a mean would be reveals it; of others it cannot be told.

Short vectors are like each other by chance, and so is what is made of inputs of a few numbers, however long it is. What is no
nearer than random directions of as many numbers would be tells nothing.

Where rows were drawn from all that there are, those drawn say what is like a row, and the others are looked through before it
is said that few rows have that in common.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.audit.chance import chance_of_likeness, likely_cosine
from cldnet.audit.different import Different
from cldnet.audit.spaces import Space, patch_sides, spaces, views
from cldnet.audit.stored import LIMIT, Stored, folded_vectors, stored_vectors
from cldnet.methods.learner import Learner

__all__ = ["FEW", "LIMIT", "Finding", "compare"]

#: What fewer examples than this have in common may tell of one of them.
FEW = 10
#: Rows beyond this |cosine| with a stored vector have in common what it tells of one that is like it.
_KIN = LIMIT**2
#: Beyond this |cosine| a stored vector is a row.
_COPY = 1 - 1e-6
#: Likenesses that random directions may be expected to have before a comparison tells nothing.
_CHANCE = 0.01
_MOST_VIEWS = 8
_ROWS_AT_ONCE = 256
_PATCH_NUMBERS_AT_ONCE = 1 << 23
_SAMPLE = 2000  # rows that tell which forms there are


@dataclass(frozen=True)
class Finding:
    """How like the vectors of one tensor are to training rows in one form.

    Attributes
    ----------
    tensor, form : str
        What was compared, as `cldnet.audit.stored.Stored` has it.
    space : str
        The form of the rows, as `cldnet.audit.spaces.spaces` calls it.
    vectors, length : int
        How many were compared, and their length.
    largest : float
        The largest |cosine|.
    at : int
        The number of the stored vector that tells most: of those that reveal a row, else of those that are nearer than chance,
        the nearest of those that the fewest rows are like.
    cosine : float
        The largest |cosine| of that one.
    beyond, copies : int
        Stored vectors beyond `LIMIT`, and those that are a row but for their length.
    telling, revealing : int
        Stored vectors that are nearer to a row than chance would have it; and those of them that fewer than `FEW` rows are like
        and nothing but a row can be so near to.
    fewest : int
        Different rows that are about as like to the vector ``at`` as one that is like it (equal to it, if any are). Counted as
        far as it matters: where it is `FEW` or more, there may be more in the rows that were not drawn.
    chance : float
        How many likenesses there would be if all directions were random.
    """

    tensor: str
    form: str
    space: str
    vectors: int
    length: int
    largest: float
    at: int
    cosine: float
    beyond: int
    copies: int
    telling: int
    revealing: int
    fewest: int
    chance: float

    @property
    def verdict(self) -> str:
        """``"clear"``, ``"chance"`` (too short to tell), ``"shared"`` (by `FEW` rows or more), ``"near"`` or ``"revealing"``.

        Near is what few rows are like, and the mean of many might be as well.
        """
        if not self.beyond:
            return "clear"
        if not self.telling:
            return "chance"
        if self.revealing:
            return "revealing"
        return "shared" if self.fewest >= FEW else "near"


class _Comparison:
    """Stored vectors against rows of one form, block by block, and view by view within a block."""

    def __init__(self, stored: Stored, space: Space, length: int, inputs: int) -> None:
        self.stored, self.space, self.length = stored, space.name, length
        self.degrees, self.sure = min(length, inputs) - space.fixed, space.sure
        # A layer's last entry may be the constant one of a bias.
        self.units = normalize(space.read(stored.units[:, :length]))
        self.largest = torch.zeros(len(self.units))
        self.alike, self.equal = (torch.zeros(len(self.units), dtype=torch.int64) for _ in range(2))
        self.active = torch.arange(len(self.units))
        self.views: set[int] = {*range(_MOST_VIEWS)}
        self._found: set[int] = set()
        self._nearest: Tensor | None = None
        self._pairs = 0

    def wants(self, view: int) -> bool:
        """Whether there is anything to learn from a view."""
        return len(self.active) > 0 and view in self.views

    def see(self, rows: Tensor, view: int) -> None:
        """Compare with unit vectors ``(n, vectors an input, length)`` of one view of some inputs."""
        cosines = (rows.flatten(0, 1) @ self.units[self.active].T).abs_()
        self._pairs += cosines.numel()
        cosines = cosines.unflatten(0, rows.shape[:2]).amax(1)
        if bool((cosines > LIMIT).any()):
            self._found.add(view)
        self._nearest = cosines if self._nearest is None else torch.maximum(self._nearest, cosines)

    def end_block(self) -> None:
        """Count every input of the block once, in the view that is nearest."""
        if self._nearest is not None:
            self.largest[self.active] = torch.maximum(self.largest[self.active], self._nearest.amax(0))
            self.alike[self.active] += (self._nearest > _KIN).sum(0)
            self.equal[self.active] += (self._nearest > _COPY).sum(0)
            self._nearest = None

    def narrow(self) -> None:
        """From now on, count only for vectors that are like a row and fewer than `FEW` are, in views in which there was one."""
        self.active = (self.telling & (self.shared < FEW)).nonzero()[:, 0]
        self.views = self._found

    @property
    def shared(self) -> Tensor:
        """How many rows are about as like to each vector as one that is like it; or equal to it, if any are."""
        return torch.where(self.equal > 0, self.equal, self.alike)

    @property
    def telling(self) -> Tensor:
        """Which vectors are nearer to a row than random directions would be."""
        limit = max(LIMIT, likely_cosine(self.degrees, _CHANCE / max(1, self._pairs)))
        return self.largest > limit if limit <= _COPY else torch.zeros_like(self.largest, dtype=torch.bool)

    def finding(self) -> Finding:
        """Say what was found in all blocks."""
        beyond, telling = self.largest > LIMIT, self.telling
        revealing = telling & (self.shared < FEW) & (self.largest > self.sure)
        worst = self._nearest_of_fewest(revealing if bool(revealing.any()) else telling)
        return Finding(
            self.stored.tensor,
            self.stored.form,
            self.space,
            vectors=len(self.units),
            length=self.length,
            largest=min(1.0, float(self.largest.max())),
            at=worst,
            cosine=min(1.0, float(self.largest[worst])),
            beyond=int(beyond.sum()),
            copies=int((self.equal > 0).sum()),
            telling=int(telling.sum()),
            revealing=int(revealing.sum()),
            fewest=int(self.shared[worst]) if bool(telling.any()) else 0,
            chance=self._pairs * chance_of_likeness(self.degrees),
        )

    def _nearest_of_fewest(self, among: Tensor) -> int:
        """The nearest of those vectors that the fewest rows are like; of all if there are none."""
        if not bool(among.any()):
            return int(self.largest.argmax())
        fewest = among & (self.shared == self.shared[among].min())
        return int((self.largest * fewest).argmax())


_Pairs = Sequence[tuple[Space, list[_Comparison]]]


@torch.no_grad()
def compare(
    learner: Learner,
    x: Tensor,
    on_progress: Callable[[int, int], None] | None = None,
    drawn: Tensor | None = None,
) -> list[Finding]:
    """Compare everything that a learner keeps with inputs ``(n, …)``, rows that are there twice counting once.

    Parameters
    ----------
    learner : Learner
    x : Tensor
        Training inputs.
    on_progress : callable, optional
        Told how many rows are compared, and of how many.
    drawn : Tensor, optional
        Numbers of the rows to compare with; the others are used to count how many are like what was found.

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
    different, size = Different(x), _rows_at_once(learner)
    rows = different.new(torch.arange(len(x)) if drawn is None else drawn)
    pairs = _pairs(learner, x)
    done = 0
    for numbers in rows.split(size):
        _see(learner, x[numbers], pairs)
        done += len(numbers)
        if on_progress is not None:
            on_progress(done, len(rows))
    if drawn is not None:
        left = torch.ones(len(x), dtype=torch.bool)
        left[drawn] = False
        for numbers in left.nonzero()[:, 0].split(size):
            if not _still_counted(pairs):
                break
            _see(learner, x[different.new(numbers)], pairs)
            if on_progress is not None:
                on_progress(int(numbers[-1]) + 1, len(x))
    return [comparison.finding() for _, comparisons in pairs for comparison in comparisons]


def _pairs(learner: Learner, x: Tensor) -> _Pairs:
    """All that a learner keeps, read for each form in which it meets rows: by tensors' sides, and folded to whole rows."""
    spread = torch.linspace(0, len(x) - 1, min(_SAMPLE, len(x))).long()
    sample = x[spread].to(learner.counters.device)
    by_length: dict[int, list[Stored]] = {}
    for stored in stored_vectors(learner):
        by_length.setdefault(stored.units.shape[1], []).append(stored)
    pairs, inputs = [], prod(x.shape[1:])
    for space in spaces(learner, sample):
        _, each, length = space.vectors(sample[:1]).shape
        matching = [stored for longer in (0, 1) for stored in by_length.get(length + longer, [])]
        if each == 1:  # there are so many patches that only what has their length is compared with them
            matching += [stored for longer in (0, 1) for stored in folded_vectors(learner, length + longer)]
        pairs.append((space, [_Comparison(stored, space, length, inputs) for stored in matching]))
    return pairs


def _see(learner: Learner, block: Tensor, pairs: _Pairs) -> None:
    """Compare with one block of inputs in all views."""
    for number, view in enumerate(views(block)):
        placed = view.to(learner.counters.device)
        for space, comparisons in pairs:
            wanting = [comparison for comparison in comparisons if len(block) and comparison.wants(number)]
            vectors = normalize(space.vectors(placed), dim=2).cpu() if wanting else placed
            for comparison in wanting:
                comparison.see(vectors, number)
    for _, comparisons in pairs:
        for comparison in comparisons:
            comparison.end_block()


def _still_counted(pairs: _Pairs) -> bool:
    """Leave out what enough rows have in common by now, and tell whether anything is left."""
    every = [comparison for _, comparisons in pairs for comparison in comparisons]
    for comparison in every:
        comparison.narrow()
    return any(len(comparison.active) for comparison in every)


def _rows_at_once(learner: Learner) -> int:
    """Inputs in a block, so many as leave room for all of their patches."""
    shape = learner.setting.input_shape
    numbers = sum(prod(shape) * side**2 for side in patch_sides(learner))
    return min(_ROWS_AT_ONCE, max(1, _PATCH_NUMBERS_AT_ONCE // max(1, numbers)))
