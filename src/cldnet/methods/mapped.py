"""Methods over a fixed feature map: the map, and sums over its features that are gathered in one pass.

The state is the gram matrix ``G = Σ hhᵀ`` and, per class, a feature sum ``Σ h`` and a weight ``n_c``. With a map that gives
integers up to 127, as all of ours do, these sums are exact to the last bit, for any order and batches of the samples: 1,024
products of two 7-bit integers fit float32, and float64 adds integers without error up to 2⁵³.
"""

from __future__ import annotations

import copy
import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from cldnet.device import run_in_threads
from cldnet.math import ridge, symmetric
from cldnet.math.leave_one_out import RidgeSolution
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.nets import FeatureMap, RandomReLU, out_features
from cldnet.nets.features import NoScaling, RandomProjection

#: Samples that are added without threads, whose start would take longer.
_FEW = 8
#: Samples whose products are added up in the features' own type before float64 takes over.
BLOCK = 1024
#: Relative error of sums of weights that are not integers, from the order in which they were added.
ROUNDING = 1e-9
#: Smallest sum of a model's weights, in samples and as a share of its samples: below, estimates become unreliable.
_LEAST_WEIGHT = 2.0
_LEAST_SHARE = 0.25
_log = logging.getLogger("cldnet")


class SecondMoments(nn.Module, ABC):
    """The gram matrix ``G = Σ w hhᵀ`` over samples, or an approximation, and the ridge solution.

    ``width`` is the length ``m`` of a feature vector.
    """

    #: Whether what was added can be subtracted again, exactly.
    invertible: ClassVar[bool] = True
    _shared: bool = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the tensors, which may have gigabytes, until either side changes them."""
        twin: Self = memo.setdefault(id(self), copy.copy(self))
        twin._buffers = dict(self._buffers)
        self._shared = twin._shared = True
        return twin

    def _own(self) -> None:
        """Clone tensors that are shared with a copy, before they are changed in place."""
        if self._shared:
            self._buffers = {name: None if each is None else each.clone() for name, each in self._buffers.items()}
            self._shared = False

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._own()
        super()._load_from_state_dict(*arguments)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert the tensors, unless they were not read from a file: these stay on the meta device."""
        unread = any(tensor.is_meta for tensor in self.buffers())
        return self if unread else super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    @abstractmethod
    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        """Add the products of features ``(n, m)``, made in their own type, or in float64 if there are weights ``(n,)``."""

    @abstractmethod
    def merge(self, other: Self, sign: float = 1.0) -> None:
        """Add another one of the same kind and shape; with ``sign=-1.0`` subtract it."""

    @abstractmethod
    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> RidgeSolution:
        """Solve for the given α, or for the one that generalised cross-validation chooses, as `cldnet.math.ridge` does."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The diagonal of ``G``, as far as it is known."""

    def least_diagonal(self) -> float:
        """The smallest diagonal element; below zero (beyond rounding) only if unknown samples were subtracted."""
        diagonal = self.diagonal()
        least = float(diagonal.min())
        return least if least < -ROUNDING * float(diagonal.max()) else max(least, 0.0)

    def has_scatter(self, class_sums: Tensor, class_weights: Tensor, rounding: float) -> bool:
        """Whether samples with these class sums can have this ``G``, judged by its diagonal.

        Then the scatter within classes, ``G − Σ_c s_c s_cᵀ / n_c``, is positive semi-definite, up to ``rounding``.
        """
        return bool((self.diagonal() - (class_sums.square() / class_weights[:, None]).sum(0) >= -rounding).all())

    @property
    def energy(self) -> float:
        """The trace of ``G``: ``Σ w‖h‖²``."""
        return float(self.diagonal().sum())

    @property
    def loss(self) -> float:
        """Largest difference of ``vᵀGv`` from its approximation, for any unit vector ``v``: 0 for the full ``G``."""
        return 0.0


class FullMoments(SecondMoments):
    """The full ``G``, stored as its upper triangle."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.packed: Tensor = nn.Buffer(torch.zeros(symmetric.packed_length(width), dtype=torch.float64))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.packed = symmetric.repacked(self.packed, self.width)  # in pickles of earlier versions

    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        """Add the upper triangle of the products, tile by tile, in several threads."""
        right = h if weight is None else h.double()
        left = h if weight is None else right * weight.double()[:, None]
        if len(h) <= _FEW:
            self.packed = symmetric.plus_few(self.packed, left.double(), right.double())
            return
        self._own()
        tiles = symmetric.tiles(self.packed, self.width)

        def work(piece: range) -> None:
            with torch.no_grad():  # a thread does not inherit the caller's mode
                for number in piece:
                    symmetric.add_to_tile_(tiles[number], left, right)

        run_in_threads(work, len(tiles), 1)

    def merge(self, other: Self, sign: float = 1.0) -> None:
        self._own()
        self.packed.add_(other.packed, alpha=sign)

    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> RidgeSolution:
        _log.info("%s %s features", "Solving for" if alpha else "Choosing alpha and solving for", f"{self.width:,}")
        return ridge.ridge(self.dense(), moments, class_weights, rows, alpha)

    def dense(self) -> Tensor:
        """``G`` as a new matrix."""
        return symmetric.unpack(self.packed, self.width)

    def diagonal(self) -> Tensor:
        return symmetric.diagonal(self.packed, self.width)

    def has_scatter(self, class_sums: Tensor, class_weights: Tensor, rounding: float) -> bool:
        """Whether samples with these class sums can have this ``G``: by a Cholesky factorisation of their scatter."""
        scatter = self.dense().addmm_(class_sums.mT / class_weights, class_sums, alpha=-1.0)
        scatter.diagonal().add_(rounding)
        return not bool(torch.linalg.cholesky_ex(scatter).info)


class DiagonalMoments(SecondMoments):
    """The diagonal of ``G``: ``m`` numbers. Features are assumed to be independent within a class."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.squares: Tensor = nn.Buffer(torch.zeros(width, dtype=torch.float64))

    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        self._own()
        squares = h.double().square()
        self.squares += squares.sum(0) if weight is None else weight.double() @ squares

    def merge(self, other: Self, sign: float = 1.0) -> None:
        self._own()
        self.squares.add_(other.squares, alpha=sign)

    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> RidgeSolution:
        return ridge.diagonal_ridge(self.squares, moments, class_weights, rows, alpha)

    def diagonal(self) -> Tensor:
        return self.squares.clone()

    @property
    def loss(self) -> float:
        """A bound of ``‖G − diag G‖`` (Frobenius): ``√((tr G)² − Σ G_jj²)``. With the class sums `solve` does better."""
        return float((self.squares.sum().square() - self.squares.square().sum()).clamp_min(0).sqrt())


class SketchedMoments(SecondMoments):
    """A Frequent Directions sketch of ``G`` with ``rank`` rows, and the most that any direction has lost.

    It takes less memory than ``G`` for a rank below half the width. It can be merged, but not subtracted from, and it
    depends on the order of the samples as far as it loses anything.
    """

    invertible = False

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(width)
        self.directions: Tensor = nn.Buffer(torch.zeros(min(rank, width), width, dtype=torch.float64))
        self.shrinkage: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.trace: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))

    def add(self, h: Tensor, weight: Tensor | None = None) -> None:
        """Append rows to the sketch and shrink it to its size."""
        self._own()
        rows = h.double() if weight is None else h.double() * weight.double().sqrt()[:, None]
        self.trace += rows.square().sum()
        self._extend(rows)

    def merge(self, other: Self, sign: float = 1.0) -> None:
        """Append another sketch; the losses of both add up."""
        if sign != 1.0:
            raise ValueError("Nothing can be subtracted from a sketch. Use gram='full' to forget.")
        self._own()
        self.trace += other.trace
        self.shrinkage += other.shrinkage
        self._extend(other.directions)

    def _extend(self, rows: Tensor) -> None:
        directions, shrinkage = ridge.shrink(torch.cat([self.directions, rows]), len(self.directions))
        self.directions.copy_(directions)
        self.shrinkage += shrinkage

    def solve(self, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None) -> RidgeSolution:
        return ridge.sketched_ridge(self.directions, self.loss, moments, class_weights, rows, alpha, energy=self.energy)

    def diagonal(self) -> Tensor:
        return self.directions.square().sum(0) + self.shrinkage / 2

    @property
    def energy(self) -> float:
        return float(self.trace)

    @property
    def loss(self) -> float:
        """``Δ``: the most that a direction has lost, ``0 ⪯ G − BᵀB ⪯ ΔI``."""
        return float(self.shrinkage)


def check_gram(gram: object) -> None:
    """Raise an error if ``gram`` is neither a kind of second moments nor the rank of a sketch."""
    rank = isinstance(gram, int) and not isinstance(gram, bool) and gram > 0
    if gram not in ("full", "diagonal") and not rank:
        raise ValueError(f"gram={gram!r} should be 'full', 'diagonal', or the number of rows of a sketch, 1 or more.")


def moments_for(gram: str | int, width: int) -> SecondMoments:
    """Make empty second moments: full, diagonal, or a sketch with a given number of rows."""
    check_gram(gram)
    if isinstance(gram, int):
        return SketchedMoments(width, gram)
    return FullMoments(width) if gram == "full" else DiagonalMoments(width)


def moments_from(gram: str | int, width: int, tensors: Mapping[str, Tensor], prefix: str = "") -> SecondMoments:
    """Make second moments of the tensors with this prefix, without copying them: they may have a gigabyte."""
    with torch.device("meta"):
        second = moments_for(gram, width)
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    second.load_state_dict(own, strict=True, assign=True)
    return second


def upgraded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the ``G`` of an earlier version to today's form; others stay as they are.

    A state of before ``G`` was packed does not say which classes the map was fitted on, so it may have been all of them.
    """
    others = {name: tensor for name, tensor in state.items() if name != "gram"}
    if "gram" in state:
        others |= {"second.packed": symmetric.pack(state["gram"]), "first_classes": state["counters"][1].clone()}
    elif {"second.packed", "class_sums"} <= {*state}:
        others["second.packed"] = symmetric.repacked(state["second.packed"], state["class_sums"].shape[1])
    return others


class MappedLearner(Learner, ABC):
    """A learner that sums up features of a fixed map, and predicts by what it solves from the sums.

    The map takes inputs as they are. Any other module is frozen, takes scaled inputs, and is followed by random ReLU features.
    """

    traits = Traits(rehearsal_free=True, constant_size=True, one_pass=True)
    kinds: ClassVar = {"features": "feature map", "second": "sums", "class_sums": "sums", "class_weights": "sums"}
    default_backbone = "random-relu"
    takes_maps = True
    min_batch = BLOCK

    def __init__(self, net: nn.Module, setting: Setting, gram: str | int = "full") -> None:
        super().__init__(setting)
        if isinstance(net, FeatureMap):
            self.features: FeatureMap = net
            self.scale = NoScaling()
        else:
            self.features = RandomReLU((out_features(net, setting.input_shape),), seed=setting.seed, net=net)
        width = self.features.out_features
        self.second: SecondMoments = moments_for(gram, width)
        self.class_sums: Tensor = nn.Buffer(torch.zeros(setting.capacity, width, dtype=torch.float64))
        self.class_weights: Tensor = nn.Buffer(torch.zeros(setting.capacity, dtype=torch.float64))
        #: Cache of what was solved from the sums; it is not part of the state.
        self._solved: Any = None

    @property
    def backbone(self) -> nn.Module:
        """The map, or the frozen module in front of the random features."""
        net = self.features.net if isinstance(self.features, RandomProjection) else None
        return self.features if net is None else net

    @property
    def map_id(self) -> str:
        """Digest of everything between inputs and features: sums can be added if and only if it is the same."""
        identity = self.features.map_id
        scale = self.scale.state_dict()  # in front of a user's module; maps scale their inputs themselves
        if not scale:
            return identity
        digest = hashlib.sha256(identity.encode())
        for _, tensor in sorted(scale.items()):
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def class_width(self) -> int:
        return self.features.out_features

    @property
    def network_size(self) -> int:
        return sum(tensor.numel() for tensor in self.features.state_dict().values())

    def begin_task(self, task: TaskData) -> None:
        """Raise an error if the first task is too small to fit the map."""
        if not self.features.fitted and len(task) < self.features.min_rows:
            raise ValueError(
                f"The first call needs at least {self.features.min_rows} samples, {self.features.why_rows}, and got "
                f"{len(task)} (n_samples={len(task)}). Collect some more, for example with `with clf.session():`."
            )
        if task.weight is not None:
            self._check_weights(task.weight)
        super().begin_task(task)

    def _check_weights(self, weight: Tensor) -> None:
        """Warn if the weights add up to few samples: classes are estimated as if from that many samples."""
        samples, total = int((weight > 0).sum()), float(self.class_weights.sum() + weight.sum())
        if total < max(_LEAST_SHARE * samples, min(samples, _LEAST_WEIGHT)):
            _log.warning(
                f"The weights of {samples} samples add up to {total:.3g}. A sample counts by its weight, so predictions may "
                "be no better than random: use sample_weight / sample_weight.mean()."
            )

    def start(self, task: TaskData) -> None:
        """Fit the map on the first task if it is not fitted yet."""
        if not self.features.fitted:
            as_they_are = isinstance(self.scale, NoScaling)  # fitting only reads: avoid a copy of gigabytes
            x = task.x if as_they_are else self.scale(task.x)
            self.features.fit(x, task.weight, *([task.y] if self.features.uses_labels else []))

    def extend(self, capacity: int) -> None:
        """Give future classes sums and weights of zero."""
        setting = self.setting.extended(capacity)
        more = capacity - self.setting.capacity
        self.class_sums = torch.cat([self.class_sums, self.class_sums.new_zeros(more, self.class_width)])
        self.class_weights = torch.cat([self.class_weights, self.class_weights.new_zeros(more)])
        self.setting = setting

    @torch.no_grad()
    def observe(self, batch: Batch) -> Tensor:
        for first in range(0, len(batch.x), BLOCK):
            part = slice(first, first + BLOCK)
            h = self.features(self.scale(batch.x[part]))
            self.add(h, batch.y[part], None if batch.weight is None else batch.weight[part].double())
        return self.class_weights.new_zeros(())

    def add(self, h: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Add features of a block of samples to the sums: in their own type, or in float64 if there are weights."""
        self._solved = None
        h = h if weight is None else h.double()
        each = self.class_weights.new_ones(len(y)) if weight is None else weight
        self.second.add(h, weight)
        classes, place = y.unique(return_inverse=True)
        members = h.new_zeros(len(y), len(classes)).scatter_(1, place[:, None], each.to(h)[:, None])
        self.class_sums.index_add_(0, classes, (members.T @ h).double())
        self.class_weights.index_add_(0, y, each)

    @torch.no_grad()
    def represent(self, x: Tensor) -> Tensor:
        """Features of inputs, in int8 if they are integers; they can be cached."""
        blocks = (self.features(self.scale(block)) for block in x.split(BLOCK))
        return torch.cat([h.char() if bool((h.char() == h).all()) else h for h in blocks])

    @abstractmethod
    def score_represented(self, h: Tensor) -> Tensor:
        """Scores of features over the classes seen."""

    def score(self, x: Tensor) -> Tensor:
        return self.score_represented(self.features.predict_features(x))

    def watched_state(self) -> list[Tensor]:
        """The sums: nothing else changes."""
        return [*self.second.buffers(), self.class_sums, self.class_weights]

    def configure(self, options: Mapping[str, Any]) -> None:
        super().configure(options)
        self._solved = None

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles should not contain the cache, which grows with the number of classes.
        return {**super().__getstate__(), "_solved": None}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        self._solved = None
