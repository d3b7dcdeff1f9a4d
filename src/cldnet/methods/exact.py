"""The exact solver: ridge regression onto the class vectors over a fixed feature map, from sums, in one pass.

``P = α(HᵀH + αI)⁻¹`` is the projector of Eq. 6 with a constant α, and also the matrix of recursive least squares: over a fixed
map the weights ``(G + αI)⁻¹ Σ_c s_c w_cᵀ`` are the solution for all data ever seen, in any order. The state is a sum: the gram
matrix ``G = Σ hhᵀ``, and a feature sum ``s_c`` and a weight ``n_c`` per class. Sums of other models over the same map can be
added, and samples can be subtracted again.

The class vectors ``w_c`` are orthonormal here for any number of classes (else they would mix classes, and the prediction would
depend on their order), so they drop out: the predicted vector has the length ``h (G + αI)⁻¹ s_c`` along ``w_c``. The prediction
is not simply the nearest class vector, which difficult and rare classes never are: the sums also tell where the predicted
vectors of each class lie, and a linear discriminant decides between them (`cldnet.math.discriminant`). Of sentences both decide
(`cldnet.math.calibration.joint_decision`).

Over integer features the sums are exact to the last bit; see `cldnet.methods.mapped`.

**Samples one by one.** Choosing α and the discriminant takes some ``m³`` steps. Calls of up to `FEW` samples of known classes
keep both, and follow the solution by recursive least squares in ``m²`` steps (`cldnet.math.recursion`). When the samples have
grown by a share of `GROWTH`, after any larger call and after every other change, all is *refreshed* from the sums: from then on
nothing depends on how the samples came.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.math.calibration import Calibration, calibrate, joint_decision
from cldnet.math.discriminant import Discriminant, LowRankDiscriminant, linear_discriminant
from cldnet.math.leave_one_out import LeaveOneOut, LowRankLeaveOneOut, RidgeSolution, leave_one_out
from cldnet.math.naive_bayes import log_shares
from cldnet.math.recursion import Recursion, begun, followed
from cldnet.math.ridge import squared_error
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.methods.mapped import (
    BLOCK,
    ROUNDING,
    FullMoments,
    MappedLearner,
    check_gram,
    moments_for,
    moments_from,
    upgraded,
)
from cldnet.methods.parts.unlearning import Summed, check_predictions, without
from cldnet.nets import takes_text


@dataclass(frozen=True)
class ExactConfig:
    """Settings of the exact solver."""

    #: Ridge penalty in units of the features, or chosen from the sums by generalised cross-validation.
    alpha: float | str = "gcv"
    #: What is kept of ``G``: all of it, its diagonal, or a sketch with this many rows. Only "full" is exact.
    gram: str | int = "full"
    #: Type of the products within a block. Use "float64" for features that are not integers up to 127.
    products: str = "float32"

    def __post_init__(self) -> None:
        numeric = isinstance(self.alpha, int | float) and not isinstance(self.alpha, bool)
        if self.alpha != "gcv" and not (numeric and 0 < float(self.alpha) < float("inf")):
            raise ValueError(f"alpha={self.alpha!r} should be 'gcv' or a positive number.")
        check_gram(self.gram)
        if self.products not in ("float32", "float64"):
            raise ValueError(f"products={self.products!r} should be 'float32' or 'float64'.")


#: Samples per feature from which on predictions tell whether a sample was learned.
_ENOUGH = 4
#: A call of at most so many samples of known classes keeps α and the discriminant, until the samples have grown by that share.
FEW, GROWTH = 32, 1 / 8
#: With more features than this every call solves anew: an inverse takes several times as long as a solution, and much memory.
MOST_FOLLOWED = 4096
#: Weight of the evidence of naive Bayes beside the discriminant's scores, chosen on the validation part of CLINC150.
EVIDENCE = 6.0
_log = logging.getLogger("cldnet")


class Solved(NamedTuple):
    """The ridge solution, the classes that have samples, and what decides between those."""

    ridge: RidgeSolution
    live: Tensor
    discriminant: Discriminant | LowRankDiscriminant
    rows: float  # the samples' total weight when α and the discriminant were chosen
    used: float  # degrees of freedom that the solution used then
    #: Where the solution is followed from, sample by sample, if it is.
    recursion: Recursion | None = None
    #: Whether samples were added that the solution does not include yet.
    stale: bool = False
    calibration: Calibration | None = None


class Exact(MappedLearner):
    """One pass, no gradient, nothing forgotten: the ridge solution of all data seen.

    References
    ----------
    H. Zhuang et al., "ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy Protection",
    NeurIPS 2022: recursive least squares over a fixed map. https://arxiv.org/abs/2205.14922
    """

    title = "CLDNet (exact)"
    summary = "ridge solution of all data seen, over a fixed feature map, one pass"
    kinds: ClassVar = {**MappedLearner.kinds, "rows": "sums", "first_classes": "counters"}
    keeps_sums = True
    config_class = ExactConfig
    fixed = ("gram",)

    config: ExactConfig
    _solved: Solved | None

    def __init__(self, net: nn.Module, setting: Setting, config: ExactConfig) -> None:
        super().__init__(net, setting, config.gram)
        self.config = config
        self.rows: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))
        # Classes below this number were in the task that the map was fitted on, if it was fitted here.
        self.first_classes: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy what may change, without torch's detour over the storage of each tensor, which takes longer than a sample."""
        twin: Self = memo.setdefault(id(self), copy.copy(self))
        twin._buffers = {name: None if each is None else each.clone() for name, each in self._buffers.items()}
        twin._modules = {name: copy.deepcopy(module, memo) for name, module in self._modules.items()}
        return twin

    def start(self, task: TaskData) -> None:
        """Fit the map on the first task if it is not fitted yet, and remember the classes of this task."""
        fits = self.features.fits_data and not self.features.fitted
        super().start(task)
        if fits:
            self.first_classes.fill_(self.seen)

    def add(self, h: Tensor, y: Tensor, weight: Tensor | None) -> None:
        solved = self._solved
        super().add(h.to(getattr(torch, self.config.products)) if weight is None else h, y, weight)
        self.rows += len(y) if weight is None else weight.sum()
        if solved is not None and self._may_follow(solved, y):
            self._solved = self._followed(solved, h.double(), y, weight)

    def _may_follow(self, solved: Solved, y: Tensor) -> bool:
        """Whether samples that were just added are few, of known classes, and leave α and the discriminant as they are."""
        few = len(y) <= FEW and float(self.rows) <= (1 + GROWTH) * solved.rows
        known = solved.ridge.solution.shape[1] == self.seen and bool(torch.isin(y, solved.live).all())
        return few and known and isinstance(self.second, FullMoments)

    def _followed(self, solved: Solved, h: Tensor, y: Tensor, weight: Tensor | None) -> Solved:
        """The solution with more samples, or without them until it is needed if there is nothing to follow it from."""
        if solved.recursion is None:
            return solved._replace(stale=True)
        targets = F.one_hot(y, self.seen).double()
        if weight is not None:
            h, targets = (part * weight.sqrt()[:, None] for part in (h, targets))
        recursion = followed(solved.recursion, h, targets)
        if recursion is None:
            return solved._replace(recursion=None, stale=True)
        return self._with_solution(solved, recursion.solution, recursion)

    def _with_solution(self, solved: Solved, solution: Tensor, recursion: Recursion | None) -> Solved:
        """A solution for more samples and the same α, as if it took as many degrees of freedom as the last one."""
        moments, weights, ridge = self.class_sums[: self.seen].T, self.class_weights[: self.seen], solved.ridge
        error, freedom = (
            squared_error(moments, weights, ridge.alpha, solution),
            max(float(self.rows) - solved.used, 0.0),
        )
        ridge = ridge._replace(solution=solution, residual=error, freedom=freedom)
        return solved._replace(ridge=ridge, recursion=recursion, stale=False)

    def keep_solution(self, before: Learner) -> None:
        """Follow the solution of a learner that this one is a copy of."""
        if isinstance(before, Exact) and before.config == self.config:
            self._solved = before._solved

    @property
    def is_fresh(self) -> bool:
        """Whether a solution is there, and follows from the sums as they are and from nothing else."""
        return self._solved is not None and not self._solved.stale and float(self.rows) == self._solved.rows

    def refresh(self) -> None:
        """Choose α and the discriminant from the sums as they are, unless that has been done."""
        self.settle()
        self.solve()

    def settle(self) -> None:
        """Drop a solution that was followed from sample to sample: the next prediction refreshes it."""
        if not self.is_fresh:
            self._solved = None

    def solution_error(self) -> float | None:
        """Largest difference between a fresh solution and one solved again from the sums, relative to the largest number."""
        if self._solved is None or not self.is_fresh:
            return None
        again = self._refreshed()
        pairs = zip(
            (self._solved.ridge.solution, *self._solved.discriminant),
            (again.ridge.solution, *again.discriminant),
            strict=True,
        )
        return max(
            float((kept - made).abs().max() / made.abs().max().clamp_min(1e-300))
            for kept, made in pairs
            if made.numel()
        )

    def solution_state(self) -> dict[str, Tensor]:
        """What was solved, if it is fresh: not part of the state, but a file may have it to save the time."""
        if self._solved is None or not self.is_fresh:
            return {}
        ridge, rule = self._solved.ridge, self._solved.discriminant
        numbers = [ridge.alpha, ridge.residual, ridge.freedom, float(ridge.known), self._solved.rows, self._solved.used]
        numbers.append(ridge.log_determinant)
        parts = {f"rule.{name}": part for name, part in rule._asdict().items()}
        return {"weights": ridge.solution, "numbers": torch.tensor(numbers, dtype=torch.float64), **parts}

    def load_solution(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `solution_state` returned, as untrusted input, after the state."""
        live = (self.class_weights[: self.seen] > 0).nonzero()[:, 0]
        low_rank, c, m = "rule.axes" in tensors, len(live), self.class_width
        count = tensors["numbers"].numel() if "numbers" in tensors else 0
        shapes = {"weights": (m, self.seen), "numbers": (6 if count == 6 else 7,), "rule.offset": (c,)}
        wide = {"rule.axes": (c, m), "rule.along": (m, c), "rule.across": (c,), "rule.center": (c,)}
        shapes |= wide if low_rank else {"rule.weights": (c, c)}
        if {name: (tuple(part.shape), part.dtype) for name, part in tensors.items()} != {
            name: (shape, torch.float64) for name, shape in shapes.items()
        }:
            raise ValueError("its solution has other parts or shapes than its sums")
        alpha, error, freedom, known, rows, used, *more = tensors["numbers"].tolist()
        logarithm = more[0] if more else 0.0  # older files have none
        if not (alpha > 0 and error >= 0 and known in (0, 1) and rows == float(self.rows) and logarithm >= 0):
            raise ValueError("its solution is not that of its sums")
        kind = LowRankDiscriminant if low_rank else Discriminant
        tensors = {name: part.to(self.rows.device) for name, part in tensors.items()}
        rule = kind(*(tensors[f"rule.{name}"] for name in kind._fields))
        ridge = RidgeSolution(alpha, tensors["weights"], error, freedom, bool(known), logarithm)
        self._solved = Solved(ridge, live, rule, rows, used)

    @torch.no_grad()
    def forget(self, task: TaskData, names: Sequence[Any] | None = None, n_samples: int = 0) -> None:
        """Subtract samples that were learned: the model is then as if they had never been seen, given the map.

        Samples that were not learned are refused as far as sums can tell (`cldnet.methods.parts.unlearning`): they tell more
        if the number of samples learned is known, and large. ``names`` are the labels of the classes, for errors.
        """
        if not self.second.invertible:
            raise ValueError(f"A sketch (gram={self.config.gram!r}) cannot forget: make the model with gram='full'.")
        taken = type(self)(self.features, self.setting, self.config).to(self.rows.device)
        h = self.represent(task.x)
        for first in range(0, len(h), BLOCK):
            part = slice(first, first + BLOCK)
            weight = None if task.weight is None else task.weight[part].double()
            taken.add(h[part] if h.is_floating_point() else h[part].float(), task.y[part], weight)
        n = max(self.seen, int(task.y.max()) + 1)
        known, gone = (Summed(own.second, own.class_sums[:n], own.class_weights[:n]) for own in (self, taken))
        left = without(known, gone, self.features.own_limits, names)
        if isinstance(self.second, FullMoments) and n_samples - len(h) >= _ENOUGH * self.class_width:
            counted = slice(None) if task.weight is None else task.weight > 0
            check_predictions(known, left, h[counted], task.y[counted])
        self._solved, self.rows, self.second = None, self.rows - taken.rows, left.second
        self.class_sums[:n], self.class_weights[:n] = left.class_sums, left.class_weights
        self._clear_rest(taken.rows)

    def forget_class(self, row: int) -> None:
        """Remove a class's sum and weight: it is never predicted again. ``G`` still contains its samples."""
        if not 0 <= row < self.seen:
            raise ValueError(f"There is no class {row}: {self.seen} classes were seen.")
        self._solved = None
        self.class_sums[row], self.class_weights[row] = 0.0, 0.0

    def join(self, rows: Sequence[int], into: int) -> None:
        """Move the samples of some classes to another one, which may be new. ``G`` does not change."""
        self._solved = None
        for row in rows:
            for sums in (self.class_sums, self.class_weights):
                sums[into] += sums[row]
                sums[row] = 0.0
        self.counters[1] = max(self.seen, into + 1)

    @torch.no_grad()
    def move(self, row: int, by: Tensor) -> None:
        """Move the features of all samples of a class by the same vector: ``Σ hhᵀ`` follows from the class's mean.

        With the mean ``μ`` of ``n`` samples, ``Σ (h + v)(h + v)ᵀ = Σ hhᵀ + n ((μ + v)(μ + v)ᵀ − μμᵀ)``.
        """
        self._solved, weight = None, self.class_weights[row : row + 1]
        mean = self.class_sums[row] / weight
        taken = moments_for(self.config.gram, self.class_width).to(weight.device)
        taken.add(mean[None], weight)
        self.second.merge(taken, sign=-1.0)
        self.second.add((mean + by)[None], weight)
        self.class_sums[row] += weight * by

    def drop(self, rows: Tensor, capacity: int) -> None:
        """Give back the room of classes: those behind them move up. ``capacity`` is how many have room from now on."""
        kept = torch.ones(self.seen, dtype=torch.bool, device=rows.device).index_fill_(0, rows, False).nonzero()[:, 0]
        self._solved, self.setting = None, replace(self.setting, capacity=capacity)
        for name in ("class_sums", "class_weights"):
            sums = getattr(self, name)
            room = sums.new_zeros(capacity, *sums.shape[1:])
            room[: len(kept)] = sums[kept]
            setattr(self, name, room)
        self.counters[1] = len(kept)
        self.first_classes -= (rows < self.first_classes).sum()

    def sums(self) -> dict[str, Tensor]:
        """All that was learned, without the map, for another learner to `merge_sums`. The tensors are not copied."""
        second = {f"second.{name}": tensor for name, tensor in self.second.state_dict().items()}
        classes = {"class_sums": self.class_sums[: self.seen], "class_weights": self.class_weights[: self.seen]}
        return {**second, **classes, "rows": self.rows}

    @torch.no_grad()
    def merge_sums(self, other_sums: Mapping[str, Tensor], rows_of: Tensor) -> None:
        """Add the sums of another learner over the same map and `gram`; its class ``j`` is class ``rows_of[j]`` here."""
        self._solved = None
        self.second.merge(moments_from(self.config.gram, self.class_width, other_sums, prefix="second."))
        self.class_sums.index_add_(0, rows_of, other_sums["class_sums"].clone())  # may be this learner's own
        self.class_weights.index_add_(0, rows_of, other_sums["class_weights"].clone())
        self.rows += other_sums["rows"]
        self.counters[1] = max([self.seen, *(rows_of + 1).tolist()])

    @torch.no_grad()
    def subtract_sums(self, sums: Mapping[str, Tensor], rows_of: Tensor) -> None:
        """Take back sums that were added, to what was there before; class ``j`` of them is class ``rows_of[j]`` here."""
        self._solved = None
        self.second.merge(moments_from(self.config.gram, self.class_width, sums, prefix="second."), sign=-1.0)
        slack = ROUNDING * self.class_weights
        self.class_sums.index_add_(0, rows_of, sums["class_sums"], alpha=-1)
        self.class_weights.index_add_(0, rows_of, sums["class_weights"], alpha=-1)
        gone = self.class_weights <= slack  # rounding of weights may leave a rest
        self.class_sums[gone], self.class_weights[gone] = 0.0, 0.0
        self.rows -= sums["rows"]
        self._clear_rest(sums["rows"])

    def _clear_rest(self, taken: Tensor) -> None:
        """Leave no rest of rounding when everything was taken off."""
        if self.rows <= ROUNDING * taken:
            for tensor in (self.rows, *self.second.buffers()):
                tensor.zero_()

    @property
    def ridge(self) -> RidgeSolution:
        """α and the weights from features to the predicted vectors."""
        return self.solve().ridge

    def solve(self) -> Solved:
        """Solve for the weights and the discriminant when first needed; the result is cached."""
        solved = self._solved
        if solved is None:
            solved = self._solved = self._refreshed()
        elif solved.stale:
            solved = self._solved = self._solved_again(solved)
        return solved

    def _refreshed(self) -> Solved:
        """Choose α and the discriminant, and solve."""
        alpha = None if self.config.alpha == "gcv" else float(self.config.alpha)
        moments, weights, rows = self.class_sums[: self.seen].T, self.class_weights[: self.seen], float(self.rows)
        _warn_of_extremes(alpha, self.second.energy)
        ridge = self.second.solve(moments, weights, rows, alpha)
        ridge = ridge._replace(solution=ridge.solution.contiguous())  # as in a file: rounding depends on the layout
        live = (weights > 0).nonzero()[:, 0]  # not forgotten
        live_ridge = ridge._replace(solution=ridge.solution[:, live])
        rule = self._decide(leave_one_out(live_ridge, moments[:, live], weights[live], rows))
        return Solved(
            ridge,
            live,
            type(rule)(*(part.to(weights.device).contiguous() for part in rule)),
            rows,
            rows - ridge.freedom,
        )

    @property
    def _decide(self) -> Callable[[LeaveOneOut | LowRankLeaveOneOut], Discriminant | LowRankDiscriminant]:
        """What decides between the classes: of sentences both the discriminant and the nearest class vector."""
        return joint_decision if takes_text(self.features) else linear_discriminant

    def _solved_again(self, solved: Solved) -> Solved:
        """Solve for the same α and discriminant, so that more samples can follow unless there are very many features."""
        moments, weights, alpha = self.class_sums[: self.seen].T, self.class_weights[: self.seen], solved.ridge.alpha
        assert isinstance(self.second, FullMoments)
        if self.class_width <= MOST_FOLLOWED:
            recursion = begun(self.second.dense(), moments, alpha)
            return self._with_solution(solved, recursion.solution, recursion)
        solution = self.second.solve(moments, weights, float(self.rows), alpha).solution
        return self._with_solution(solved, solution, None)

    def calibration(self, classes: Tensor) -> Calibration:
        """How scores of new samples are distributed, from the sums; it is kept for as long as the discriminant.

        ``classes`` are all that have samples, in the order in which they are drawn from.
        """
        solved = self.solve()
        if solved.calibration is None:
            ridge = solved.ridge._replace(solution=solved.ridge.solution[:, classes])
            sums = self.class_sums[classes].T, self.class_weights[classes], float(self.rows)
            made = calibrate(ridge, *sums, decide=self._decide)
            solved = self._solved = solved._replace(calibration=made)
        assert solved.calibration is not None
        return solved.calibration

    def score_represented(self, h: Tensor) -> Tensor:
        return self.decide(self._predicted(h))

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Predicted vectors of inputs, along the vectors of the classes seen: the output of the ridge regression.

        If features are counts, as many columns follow with the log-likelihoods of naive Bayes.
        """
        return self._predicted(self.features.predict_features(self.scale(x)))

    def _predicted(self, h: Tensor) -> Tensor:
        h, count = h.double(), self.features.count  # the discriminant would amplify rounding of float32
        vectors = torch.mm(h, self.ridge.solution)
        shares = None if count is None else log_shares(self.class_sums[: self.seen, :-1])  # without the constant
        if count is None or shares is None:
            return vectors
        return torch.cat([vectors, h[:, :-1] @ shares.T / count], dim=1)

    def decide(self, vectors: Tensor) -> Tensor:
        """Scores of predicted vectors. A class without samples scores below all others."""
        _, live, rule, *_ = self.solve()
        known = rule.scores(vectors[:, live])
        if vectors.shape[1] > self.seen:
            # Half of it, because the temperature is that of the discriminant alone.
            known = (known + EVIDENCE * vectors[:, self.seen + live]) / 2
        lowest = known.amin(1, keepdim=True) - 1 if len(live) else known.new_zeros(len(known), 1)
        return lowest.expand(-1, self.seen).index_copy(1, live, known)

    def upgraded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Pack ``G``, which older states have as a matrix."""
        return upgraded(state)


def _warn_of_extremes(alpha: float | None, energy: float) -> None:
    """Warn if a given α dominates the sums or vanishes beside them: predictions would silently be wrong."""
    if alpha is None or not energy > 0:
        return
    rounding = torch.finfo(torch.float64).eps * energy
    if alpha > energy:
        _log.warning(
            f"alpha={alpha:g} is larger than the sum of all squared features ({energy:g}) and hides what was learned: use a "
            "smaller alpha, or 'gcv'."
        )
    elif alpha < rounding:
        _log.warning(
            f"alpha={alpha:g} is below the rounding of the sums ({rounding:g}) and has no effect: use a larger alpha, or "
            "'gcv'."
        )
