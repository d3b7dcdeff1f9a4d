"""X-DER-RPC: DER++ whose stored logits learn of classes that came later, before a fixed simplex head.

With S a regular simplex in C − 1 dimensions, one column per class, the logits are ``f(x) = o(x) S``. The loss of a step is
``CE(f(x)|present, y) + α ‖f(x') − z'‖² / C + β CE(f(x'')|past, y'') + η F`` with two draws from the buffer.

- The future constraint F holds unseen classes down: the mean of ``max f|unseen + m − max f|own task`` over the samples, new or
  replayed, for which this is positive.
- Stored logits z of past classes' exemplars have nothing to say about classes that came after them. What the net says now is
  transplanted there, scaled by ``γ z_y / max`` if its maximum exceeds ``z_y``, the logit of the true class.
- The buffer is filled when a task is over, in equal parts by class, so the first task has no replay.

The paper has a constraint on past classes, too. The authors' released code comments it out, and it is not here either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import FINITE_NOT_NEGATIVE, SHARE
from cldnet.methods.derpp import DERppConfig
from cldnet.methods.gradient import weighted_cross_entropy, weighted_mean
from cldnet.methods.learner import Batch, Setting, TaskData, portions
from cldnet.methods.parts.buffer import Exemplars
from cldnet.methods.rehearsal import RehearsalLearner
from cldnet.nets.resnet import frozen_statistics


@dataclass(frozen=True)
class XDERConfig(DERppConfig):
    """Settings of X-DER."""

    distil: float = 0.1  # α, the weight of stored logits
    gamma: float = 0.85  # γ, the largest share of the true class's logit that a transplanted one may have
    eta: float = 0.1  # η, the weight of the future constraint
    margin: float = 0.3  # m, by which classes of the own task should be ahead of unseen ones

    limits: ClassVar = {"gamma": SHARE, "eta": FINITE_NOT_NEGATIVE, "margin": FINITE_NOT_NEGATIVE}


class XDERRPC(RehearsalLearner):
    """Extended dark experience replay with a regular polytope classifier.

    References
    ----------
    M. Boschini et al., "Class-Incremental Continual Learning into the eXtended DER-verse", TPAMI 2022.
    https://arxiv.org/abs/2201.00766
    """

    title = "X-DER-RPC"
    summary = "DER++ that updates its stored logits, with a fixed simplex head (TPAMI 2022)"
    kinds: ClassVar = {**RehearsalLearner.kinds, "first": "counters"}
    running: ClassVar = (*RehearsalLearner.running, "draws")
    keeps_logits = True
    config_class = XDERConfig
    config: XDERConfig
    #: During a task: how often each place of the buffer was drawn.
    draws: Tensor
    #: During a task, by class: this task's number if it occurs, else that of its first task, and −1 if it is unseen.
    slices: Tensor

    def __init__(self, net: nn.Module, setting: Setting, config: XDERConfig) -> None:
        super().__init__(net, setting, config)
        # A formula gives the simplex, so the state need not contain it.
        self.simplex: Tensor = nn.Buffer(simplex(setting.capacity).to(setting.dtype), persistent=False)
        self.first: Tensor = nn.Buffer(torch.full((setting.capacity,), -1))  # the task in which a class first came

    @property
    def present(self) -> Tensor:
        """Which classes occur in this task."""
        return self.slices == self.tasks

    @property
    def past(self) -> Tensor:
        """Which classes were seen and do not occur in this task."""
        return (self.slices >= 0) & ~self.present

    @property
    def unseen(self) -> Tensor:
        """Which classes are still to come."""
        return self.slices < 0

    def score(self, x: Tensor) -> Tensor:
        return super().score(x)[:, :-1] @ self.simplex

    def start(self, task: TaskData) -> None:
        """Note which classes are new, and which occur."""
        super().start(task)
        self.buffer.check(task.x)
        rows = task.class_rows
        self.first[rows] = torch.where(self.first[rows] < 0, self.tasks, self.first[rows])
        self.slices = self.first.clone()
        self.slices[rows] = self.tasks
        self.draws = torch.zeros(len(self.buffer.x), dtype=torch.int64, device=task.x.device)

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.score(self.scale(batch.x))
        loss = slice_cross_entropy(logits, batch.y, self.present, batch.weight)
        outputs, y, weight = logits, batch.y, batch.weight
        if len(self.buffer) and self.config.replay:
            old, again = self.replayed(batch), self.replayed(batch)
            with frozen_statistics(self.net):  # they should be those of the stream
                replayed, labelled = self.score(self.scale(old.x)), self.score(self.scale(again.x))
            loss = loss + self.config.distil * F.mse_loss(replayed, old.logits.to(replayed))
            past = self.past[again.y]
            if past.any():  # the stream teaches classes that came back
                by_label = slice_cross_entropy(labelled[past], again.y[past], self.past, None)
                loss = loss + self.config.label * by_label
            other = ~torch.isin(again.places, old.places)  # an exemplar in both draws counts once
            drawn = Exemplars(*(torch.cat([a, b[other]]) for a, b in zip(old, again, strict=True)))
            replayed = torch.cat([replayed, labelled[other]])
            self.update(drawn, replayed.detach())
            outputs, y = torch.cat([logits, replayed]), torch.cat([y, drawn.y])
            weight = None if weight is None else torch.cat([weight, weight.new_ones(len(drawn.y))])
        return loss + self.config.eta * self.future_loss(outputs, y, weight), logits

    def future_loss(self, logits: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        """By how much unseen classes come too near to those of the sample's own task; mean over samples where they do."""
        if not self.unseen.any():
            return logits.new_zeros(())
        elsewhere = self.slices != self.slices[y][:, None]
        own = logits.masked_fill(elsewhere, -torch.inf).amax(1)
        excess = logits[:, self.unseen].amax(1) + self.config.margin - own
        near = excess > 0
        if not near.any():
            return logits.new_zeros(())
        return weighted_mean(excess[near], None if weight is None else weight[near])

    def update(self, drawn: Exemplars, outputs: Tensor) -> None:
        """Transplant logits into past exemplars, with probability one over the number of times that each was drawn."""
        past = self.past[drawn.y]
        self.draws[drawn.places[past]] += 1
        chance = torch.rand(len(past), generator=self.generator).to(outputs.device)
        chosen = past & (chance * self.draws[drawn.places] < 1)
        stored = self.buffer.get_buffer("logits")
        z = transplant(drawn.logits[chosen], outputs[chosen], drawn.y[chosen], ~self.past, self.config.gamma)
        stored[drawn.places[chosen]] = z.to(stored)

    def remember(self, batch: Batch, logits: Tensor) -> None:
        """Do nothing: the buffer is filled when the task is over."""

    def finish(self, task: TaskData) -> None:
        """Fill the buffer."""
        if len(self.buffer.x):
            self.refill(task)
        del self.draws, self.slices
        super().finish(task)

    @torch.no_grad()
    def refill(self, task: TaskData) -> None:
        """Keep an equal share of each old class, fill up evenly with the task's classes, and bring all logits up to date."""
        size, held = len(self.buffer.x), self.buffer.y[: len(self.buffer)]
        kept = self.buffer.take((ranks(held) < size // self.seen).nonzero()[:, 0])
        new = evenly(task.y, kept.y, size - len(kept.y), self.generator)
        x, y = torch.cat([kept.x, task.x[new]]), torch.cat([kept.y, task.y[new]])
        outputs = torch.cat([self.score(self.scale(part)) for part in portions(x)])
        gamma, count = self.config.gamma, len(kept.y)
        # New samples were trained against their own task only, so past classes may be too large; for old ones it is later ones.
        fresh = transplant(outputs[count:], outputs[count:], y[count:], self.past, gamma)
        updated = transplant(kept.logits.to(outputs), outputs[:count], kept.y, ~self.past, gamma)
        z = torch.where(self.past[kept.y][:, None], updated, kept.logits.to(outputs))
        self.buffer = self._empty(size, task.x)
        self.buffer.put(torch.arange(len(y)), x, y, torch.cat([z, fresh]))
        self.buffer.met.fill_(len(y))


def simplex(count: int) -> Tensor:
    """``count`` unit vectors with zero mean and equal angles as columns, shape ``(count − 1, count)``, in double precision."""
    m = max(count - 1, 1)
    axis, last = (1 + 1 / m) ** 0.5, m**-0.5
    others = axis * torch.eye(count - 1, dtype=torch.float64) - (axis - last) / m
    return torch.cat([others, torch.full((count - 1, 1), -last, dtype=torch.float64)], dim=1)


def slice_cross_entropy(logits: Tensor, y: Tensor, rows: Tensor, weight: Tensor | None) -> Tensor:
    """Cross-entropy among the classes that ``rows`` marks; ``y`` should be among them."""
    return weighted_cross_entropy(logits[:, rows], (rows.cumsum(0) - 1)[y], weight)


def transplant(stored: Tensor, now: Tensor, y: Tensor, rows: Tensor, gamma: float) -> Tensor:
    """Replace the marked classes' stored logits by present ones, scaled to at most ``gamma`` of the true class's logit.

    The true class's logit is positive for a sample that was learned, and then the factor lies in [0, 1]. The authors use it
    beyond, too, where it turns signs or overflows; here it is limited to [0, 1].
    """
    if not rows.any():
        return stored
    part, truth = now[:, rows], stored.gather(1, y[:, None])
    largest = part.amax(1, keepdim=True)
    factor = (gamma * truth / largest).clamp(0, 1)
    result = stored.clone()
    result[:, rows] = torch.where(largest > truth, factor * part, part).to(stored)
    return result


def ranks(y: Tensor) -> Tensor:
    """How many samples of the same class are before each one."""
    order, counts = y.argsort(stable=True), y.bincount()
    starts = counts.cumsum(0) - counts
    result = torch.empty_like(y)
    result[order] = torch.arange(len(y), device=y.device) - starts[y[order]]
    return result


def evenly(y: Tensor, held: Tensor, free: int, source: torch.Generator) -> Tensor:
    """Choose ``free`` samples so that classes, with what is held of them, become equally large; chance deals the remainder."""
    order = torch.randperm(len(y), generator=source).to(y.device)
    count = int(y.max()) + 1
    turns = torch.randperm(count, generator=source).to(y.device)
    counts, y = held.bincount(minlength=count), y[order]
    # A sample that is the third of its class comes after all that are the second of theirs.
    return order[((counts[y] + ranks(y)) * count + turns[y]).argsort()[:free]]
