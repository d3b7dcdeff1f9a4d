"""The exact solver: ridge regression onto the class vectors over a fixed feature map, from sums, in one pass.

``P = α(HᵀH + αI)⁻¹`` is the projector of Eq. 6 with a constant α, and also the matrix of recursive least squares: on top
of a fixed map the weights ``(G + αI)⁻¹ Σ_c s_c w_cᵀ`` are the solution of all data ever seen at once, in whatever order
it came. The state is a sum, ``G = Σ hhᵀ``, one feature sum ``s_c`` and one weight ``n_c`` a class, to which other models'
sums over the same map can be added, and from which examples can be subtracted again.

The class vectors ``w_c`` are orthonormal here whatever the number of classes (else they would mix classes, and the answer
would depend on which came first), so they drop out: the predicted vector has the length ``h (G + αI)⁻¹ s_c`` along ``w_c``.
The answer is not simply the nearest class vector, which hard and rare classes never are: the sums also tell where the
predicted vectors of each class lie, and a linear discriminant decides between them (`cldnet.math.discriminant`).

With a map that gives whole numbers up to 127, as all of ours do, the sums are exact to the last bit: 1,024 products of two
7-bit numbers fit float32, and float64 adds whole numbers without error up to 2⁵³.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from cldnet.math.crowded import CrowdedDiscriminant
from cldnet.math.discriminant import Discriminant, rule_for
from cldnet.math.left_out import Choice, left_out
from cldnet.methods.learner import Setting, TaskData
from cldnet.methods.mapped import BLOCK, MappedLearner
from cldnet.methods.parts.moments import ROUNDING, FullMoments, check_gram, moments_for
from cldnet.methods.parts.sums import check_addable, moments_from, upgraded
from cldnet.methods.parts.unlearning import Summed, check_predictions, without

__all__ = ["Exact", "ExactConfig"]


@dataclass(frozen=True)
class ExactConfig:
    """Settings of the exact solver.

    Attributes
    ----------
    alpha : float or "gcv"
        Ridge penalty in units of the features, or chosen from the sums by generalised cross-validation.
    gram : "full", "diagonal" or int
        What is kept of ``G``: all of it, its diagonal, or a sketch of so many rows. Only "full" is exact.
    products : "float32" or "float64"
        What blocks of products are made in. Features that are not whole numbers up to 127 want "float64".
    """

    alpha: float | str = "gcv"
    gram: str | int = "full"
    products: str = "float32"

    def __post_init__(self) -> None:
        numeric = isinstance(self.alpha, int | float) and not isinstance(self.alpha, bool)
        if self.alpha != "gcv" and not (numeric and 0 < float(self.alpha) < float("inf")):
            raise ValueError(f"alpha={self.alpha!r} should be 'gcv' or a positive number.")
        check_gram(self.gram)
        if self.products not in ("float32", "float64"):
            raise ValueError(f"products={self.products!r} should be 'float32' or 'float64'.")


#: Examples for each feature from which on predictions tell whether a row was learned.
_ENOUGH = 4
_log = logging.getLogger("cldnet")


class _Solved(NamedTuple):
    choice: Choice
    live: Tensor
    discriminant: Discriminant | CrowdedDiscriminant


class Exact(MappedLearner):
    """One pass, no gradient, nothing forgotten: the ridge solution of all data seen.

    Parameters
    ----------
    net : FeatureMap or nn.Module
        The map, which takes inputs as they are; any other module is frozen, takes scaled inputs as a trained one would,
        and is expanded by random ReLU features.
    setting : Setting
    config : ExactConfig

    Examples
    --------
    >>> from cldnet.nets import RandomReLU
    >>> features = RandomReLU((2,), features=16, seed=0)
    >>> learner = Exact(features, Setting((2,), capacity=4, seed=0), ExactConfig())
    >>> task = TaskData(torch.tensor([[-1.0, 0.0], [-0.9, 0.1], [1.0, 0.0], [1.1, 0.1]]), torch.tensor([0, 0, 1, 1]))
    >>> learner.begin_task(task)
    >>> losses = [learner.observe(batch) for batch in task.batches(3)]
    >>> learner.end_task(task)
    >>> learner.logits(task.x).argmax(1)
    tensor([0, 0, 1, 1])
    """

    kinds: ClassVar = {**MappedLearner.kinds, "rows": "sums", "first_classes": "counters"}
    config_class = ExactConfig
    fixed = ("gram",)

    config: ExactConfig
    rows: Tensor
    first_classes: Tensor
    _solved: _Solved | None

    def __init__(self, net: nn.Module, setting: Setting, config: ExactConfig) -> None:
        super().__init__(net, setting, config.gram)
        self.config = config
        self.register_buffer("rows", torch.zeros((), dtype=torch.float64))
        # Class rows below this number were in the task that the map was fitted on, if it was fitted here.
        self.register_buffer("first_classes", torch.zeros((), dtype=torch.int64))

    def start(self, task: TaskData) -> None:
        """Fit the map on the first task if nobody has fitted it before, and remember which classes that task had."""
        fits = self.features.fits_data and not self.features.fitted
        super().start(task)
        if fits:
            self.first_classes.fill_(self.seen)

    def add(self, h: Tensor, y: Tensor, weight: Tensor | None) -> None:
        """Add features to the sums, with products in the type that was asked for."""
        super().add(h.to(getattr(torch, self.config.products)) if weight is None else h, y, weight)
        self.rows += len(y) if weight is None else weight.sum()

    @torch.no_grad()
    def forget(self, task: TaskData, names: Sequence[Any] | None = None, examples: int = 0) -> None:
        """Subtract examples that were learned; what is left is as if they had never been seen, given the map.

        What was not learned is refused as far as sums can tell (`cldnet.methods.parts.unlearning`).

        Parameters
        ----------
        task : TaskData
        names : sequence, optional
            What an error calls the class rows.
        examples : int
            How many examples were learned, if that is known. Sums tell more if there are many for each feature.
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
        # A subclass with another `forward` may leave the limits: it has to declare its own.
        left = without(known, gone, vars(type(self.features)).get("limits"), names)
        if isinstance(self.second, FullMoments) and examples - len(h) >= _ENOUGH * self.class_width:
            counted = slice(None) if task.weight is None else task.weight > 0
            check_predictions(known, left, h[counted], task.y[counted])
        self._solved, self.rows, self.second = None, self.rows - taken.rows, left.second
        self.class_sums[:n], self.class_weights[:n] = left.class_sums, left.class_weights
        if self.rows <= ROUNDING * taken.rows:  # what rounding of weights has left of nothing
            for tensor in (self.rows, *self.second.buffers()):
                tensor.zero_()

    def forget_class(self, row: int) -> None:
        """Let go of a class's sum and weight: it is never the answer again. ``G`` keeps the trace of its examples."""
        if not 0 <= row < self.seen:
            raise ValueError(f"There is no class row {row}: {self.seen} classes were seen.")
        self._solved = None
        self.class_sums[row], self.class_weights[row] = 0.0, 0.0

    def join(self, rows: Sequence[int], into: int) -> None:
        """Make the examples of some class rows those of another one, which may be a new row. ``G`` stays as it is."""
        self._solved = None
        for row in rows:
            for sums in (self.class_sums, self.class_weights):
                sums[into] += sums[row]
                sums[row] = 0.0
        self.counters[1] = max(self.seen, into + 1)

    @torch.no_grad()
    def move(self, row: int, by: Tensor) -> None:
        """Move the features of all examples of a class by the same vector: ``Σ hhᵀ`` follows from the class's mean.

        With the mean ``μ`` of ``n`` examples, ``Σ (h + v)(h + v)ᵀ = Σ hhᵀ + n ((μ + v)(μ + v)ᵀ − μμᵀ)``.
        """
        self._solved, weight = None, self.class_weights[row : row + 1]
        mean = self.class_sums[row] / weight
        taken = moments_for(self.config.gram, self.class_width).to(weight.device)
        taken.add(mean[None], weight)
        self.second.merge(taken, sign=-1.0)
        self.second.add((mean + by)[None], weight)
        self.class_sums[row] += weight * by

    def sums(self) -> dict[str, Tensor]:
        """All that was learned, without the map, for another learner to `absorb`; it shares memory with this one."""
        second = {f"second.{name}": tensor for name, tensor in self.second.state_dict().items()}
        classes = {"class_sums": self.class_sums[: self.seen], "class_weights": self.class_weights[: self.seen]}
        return {**second, **classes, "rows": self.rows}

    @torch.no_grad()
    def absorb(self, other_sums: Mapping[str, Tensor], rows_of: Tensor) -> None:
        """Add the sums of another learner over the same map; its class row ``j`` is row ``rows_of[j]`` here."""
        check_addable(self.sums(), other_sums, rows_of, self.setting.capacity)
        self._solved = None
        self.second.merge(moments_from(self.config.gram, self.class_width, other_sums, prefix="second."))
        self.class_sums.index_add_(0, rows_of, other_sums["class_sums"].clone())  # may be this learner's own
        self.class_weights.index_add_(0, rows_of, other_sums["class_weights"].clone())
        self.rows += other_sums["rows"]
        self.counters[1] = max([self.seen, *(rows_of + 1).tolist()])

    @property
    def choice(self) -> Choice:
        """α and the weights from features to the predicted vectors; solved when first needed, then kept."""
        return self.solve().choice

    def solve(self) -> _Solved:
        """The weights, which class rows have examples, and what decides between those; solved when first needed, then kept."""
        solved = self._solved
        if solved is None:
            alpha = None if self.config.alpha == "gcv" else float(self.config.alpha)
            moments, weights, rows = self.class_sums[: self.seen].T, self.class_weights[: self.seen], float(self.rows)
            _warn_of_extremes(alpha, self.second.energy)
            choice = self.second.solve(moments, weights, rows, alpha)
            live = (weights > 0).nonzero()[:, 0]  # not those that were forgotten
            known = choice._replace(solution=choice.solution[:, live])
            rule = rule_for(left_out(known, moments[:, live], weights[live], rows))
            solved = self._solved = _Solved(choice, live, rule.to(weights.device))
        return solved

    def score_represented(self, h: Tensor) -> Tensor:
        """Scores of features, as `score` gives them for inputs."""
        return self.decide(self._predicted(h))

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Predicted vectors of inputs, along the vectors of the classes seen: the ridge regression itself."""
        return self._predicted(self.features.asked(self.scale(x)))

    def _predicted(self, h: Tensor) -> Tensor:
        return torch.mm(h.double(), self.choice.solution)  # the discriminant magnifies what float32 would round off

    def decide(self, vectors: Tensor) -> Tensor:
        """Scores that go with predicted vectors. A class without examples scores below all others."""
        _, live, rule = self.solve()
        known = rule.scores(vectors[:, live])
        lowest = known.amin(1, keepdim=True) - 1 if len(live) else known.new_zeros(len(known), 1)
        return lowest.expand(-1, self.seen).index_copy(1, live, known)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state, also one from before ``G`` was packed."""
        super().load_state(upgraded(state))


def _warn_of_extremes(alpha: float | None, energy: float) -> None:
    """Say so where a given α leaves nothing of the sums, or is nothing beside them: answers would be wrong without a word."""
    if alpha is None or not energy > 0:
        return
    if alpha > energy:
        _log.warning(
            "alpha=%g is more than all squared features together (%g), so that hardly anything is left of what was learned: "
            "use a smaller one, or 'gcv'.",
            alpha,
            energy,
        )
    elif alpha < torch.finfo(torch.float64).eps * energy:
        _log.warning(
            "alpha=%g is less than the rounding of the sums (%g), so that it penalises nothing: use a larger one, or 'gcv'.",
            alpha,
            torch.finfo(torch.float64).eps * energy,
        )
