"""The choice of a feature map for vectors, by leave-one-out on some rows of the first call.

The map never changes again, and later calls bring classes that the first one has no sample of. So there is a robust map that
needs no choice, `RandomFourier` with its own wide bandwidth: over one, two or all classes of the first call it was the best
single map on validation parts, or close to it. Another map takes its place only on clear evidence: it gets clearly more
samples right that were left out of the fit. On two easy classes, all maps are right, and the robust one stays.

More features do not help against noise but where classes have many parts. That shows if 1,000 features are clearly better than
500, on as many rows as can be had: then twice or four times as many are taken, with a bandwidth smaller by √2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.math.discriminant import linear_discriminant
from cldnet.math.leave_one_out import LeaveOneOut
from cldnet.math.ridge import leave_one_out_scores
from cldnet.nets.features import FeatureMap, Linear, RandomFourier, RandomReLU, TailScale

#: Features of the robust map; of one that a single class of so many samples chooses blindly.
WIDTH, BLIND_WIDTH = 1000, 2000
#: Rows on which kinds of maps are compared, and numbers of features.
_ROWS, _MANY_ROWS = 800, 2000
#: Fewer rows, or fewer of the second largest class, tell nothing.
_LEAST_ROWS, _LEAST_MEMBERS = 50, 10
#: By how many standard errors another map must be better: a map for all classes to come is not given up lightly.
_CLEAR = 3.0
#: By how many standard errors 1,000 features must be better than 500 for more to be taken, which can only cost memory.
_CLEAR_WIDTH = 2.0
#: Least share of errors that 1,000 features must save against 500, for twice and four times as many to be taken.
_GAINS = {2: 0.05, 4: 0.10}
#: Rows of the first call per feature that these need.
_ROWS_PER_FEATURE = 2
#: Most columns of which a linear map is tried.
_LINEAR_COLUMNS = 1000


@dataclass(frozen=True)
class Candidate:
    """A map that was tried, and what it got wrong."""

    name: str
    #: Share of samples that were wrong when left out of the fit, and of how many.
    error: float
    rows: int
    #: By how many standard errors it is better than the robust map on the same rows.
    better: float


@dataclass(frozen=True)
class Choice:
    """The map that was chosen, not fitted yet, and why."""

    map: FeatureMap
    name: str
    reason: str
    candidates: tuple[Candidate, ...] = ()

    def __str__(self) -> str:
        """A table of the candidates below the choice."""
        lines = [f"{self.name}: {self.reason}"]
        for each in self.candidates:
            lines.append(f"  {100 * each.error:6.2f} % wrong of {each.rows:,}  {each.better:+5.1f} SE  {each.name}")
        return "\n".join(lines)


@torch.no_grad()
def choose_map(x: Tensor, y: Tensor, *, seed: int, weight: Tensor | None = None) -> Choice:
    """Choose a feature map for vectors from the samples of the first call.

    Neither the order of samples nor how many there are beyond some thousand matters for the time or the choice.

    Parameters
    ----------
    x : Tensor
        Samples ``(n, d)``.
    y : Tensor
        Indices of their classes, ``(n,)``.
    seed : int
        Seed of the rows that are drawn and of the maps.
    weight : Tensor, optional
        Weights of the samples. Samples of weight 0 do not count; all others count alike.

    Examples
    --------
    >>> x = torch.randn(200, 3, generator=generator(0))
    >>> choice = choose_map(x, (x[:, 0] > 0).long(), seed=0)
    >>> choice.name
    'random-fourier, 1000 features'
    >>> choice.map.fitted
    tensor(False)
    """
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; a map is chosen for vectors (n, d) of n classes."
        )
    if weight is not None:
        x, y = x[weight > 0], y[weight > 0]
    classes, y = y.unique(return_inverse=True)
    drawn = drawn_rows(x, y, _MANY_ROWS, seed)
    trial = _Trial(x[drawn].cpu(), y[drawn].cpu(), seed)
    members = y.bincount(minlength=2).sort(descending=True).values
    if len(classes) < 2:
        width = BLIND_WIDTH if len(y) >= BLIND_WIDTH else WIDTH
        return trial.robust("the first call has a single class, so nothing can be compared", width)
    if len(y) < _LEAST_ROWS or int(members[1]) < _LEAST_MEMBERS:
        return trial.robust(f"the first call has too few samples to compare maps ({len(y)})")
    return trial.choice(len(y))


def drawn_rows(x: Tensor, y: Tensor, count: int, seed: int) -> Tensor:
    """Indices of about ``count`` rows, drawn by what they contain, of each class its share.

    The order is that of the rows' own hash, so the same rows in another order are drawn in the same order.
    """
    random = generator(seed)
    factors = torch.randint(-(2**62), 2**62, (x.shape[1],), generator=random).mul_(2).add_(1).to(x.device)
    keys = torch.cat([_mixed((part.double().view(torch.int64) * factors).sum(1)) for part in x.split(1 << 16)])
    order = keys.argsort(stable=True)
    order = order[y[order].argsort(stable=True)]  # by class, and by hash within a class
    sizes = y.bincount()
    place = torch.arange(len(y), device=y.device) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    quota = (sizes * min(1.0, count / len(y))).ceil().repeat_interleave(sizes)
    kept = order[place < quota]
    return kept[keys[kept].argsort(stable=True)]


def _mixed(numbers: Tensor) -> Tensor:
    """Whole numbers whose high bits depend on all bits."""
    numbers = (numbers ^ (numbers >> 29)) * 0x3F58476D1CE4E5B9
    return numbers ^ (numbers >> 32)


class _Trial:
    """Candidates over the rows that were drawn."""

    def __init__(self, x: Tensor, y: Tensor, seed: int) -> None:
        self.x, self.y, self.seed = x, y, seed
        self.shape = (x.shape[1],)
        scale = TailScale(self.shape)
        if len(x) >= _LEAST_ROWS:  # quartiles of fewer say little
            scale.fit(x)
        self.tails = bool(scale.unit.any())

    def fourier(self, features: int = WIDTH, bandwidth: float | None = None) -> RandomFourier:
        return RandomFourier(self.shape, features, seed=self.seed, bandwidth=bandwidth, tails=self.tails)

    def robust(self, reason: str, features: int = WIDTH) -> Choice:
        """The robust map, without a trial."""
        made = self.fourier(features)
        return Choice(made, self.name(made), reason)

    def name(self, made: FeatureMap) -> str:
        """Kind and options in words."""
        parts = [made.kind, f"{made.out_features - 1} features"]
        if isinstance(made, RandomFourier) and made.given_bandwidth:
            parts.append(f"bandwidth {made.given_bandwidth:.3g}")
        return ", ".join(parts + ["logarithms of heavy tails"] * self.tails)

    def choice(self, available: int) -> Choice:
        """Compare kinds and bandwidths, then numbers of features."""
        rows = drawn_rows(self.x, self.y, _ROWS, self.seed)
        robust = self.fourier()
        base = self.wrong(robust, rows)
        tried = [Candidate(self.name(robust), _share(base), len(rows), 0.0)]
        best, made = _CLEAR, None
        for candidate in self.others(float(robust.bandwidth)):
            wrong = self.wrong(candidate, rows)
            better = standard_errors(base, wrong)
            tried.append(Candidate(self.name(candidate), _share(wrong), len(rows), better))
            if better > best:
                best, made = better, candidate
        bandwidth = made.given_bandwidth if isinstance(made, RandomFourier) else None
        times = 1
        if made is None or isinstance(made, RandomFourier):
            times = self.worth(bandwidth, available, tried)
            if times > 1:  # more features can show more detail
                bandwidth = (bandwidth or float(robust.bandwidth)) / sqrt(2)
            made = self.fourier(WIDTH * times, bandwidth)
        evident = best > _CLEAR or times > 1
        reason = "clearly fewer errors in leave-one-out" if evident else "no other map is clearly better"
        return Choice(_unfitted(made), self.name(made), reason, tuple(tried))

    def others(self, bandwidth: float) -> list[FeatureMap]:
        """Maps to compare with the robust one, whose bandwidth is given."""
        made: list[FeatureMap] = [self.fourier(bandwidth=bandwidth / 2), self.fourier(bandwidth=bandwidth * 2)]
        made.append(RandomReLU(self.shape, WIDTH, seed=self.seed, tails=self.tails))
        if self.shape[0] <= _LINEAR_COLUMNS:
            made.append(Linear(self.shape, seed=self.seed, tails=self.tails))
        return made

    def worth(self, bandwidth: float | None, available: int, tried: list[Candidate]) -> int:
        """How many times 1,000 features are worth it: if there are rows for them, and 1,000 beat 500 clearly enough."""
        possible = {times: least for times, least in _GAINS.items() if available >= _ROWS_PER_FEATURE * times * WIDTH}
        if not possible:
            return 1
        every = torch.arange(len(self.x))
        half, whole = self.fourier(WIDTH // 2, bandwidth), self.fourier(WIDTH, bandwidth)
        few, many = self.wrong(half, every), self.wrong(whole, every)
        better = standard_errors(few, many)
        tried.append(Candidate(self.name(half), _share(few), len(every), -better))
        tried.append(Candidate(self.name(whole), _share(many), len(every), 0.0))
        saved = 1 - _share(many) / max(_share(few), 1e-9)
        return max([1, *(times for times, least in possible.items() if saved >= least and better >= _CLEAR_WIDTH)])

    def wrong(self, made: FeatureMap, rows: Tensor) -> Tensor:
        """Fit a map, and find the rows that are wrong when each is left out of the fit."""
        x, y = self.x[rows], self.y[rows]
        made.fit(x)
        targets = F.one_hot(y).double()
        scores = leave_one_out_scores(made(x), targets).scores
        counts = targets.sum(0)
        present = counts > 0
        scores, counts, targets = scores[:, present], counts[present], targets[:, present]
        means = targets.mT @ scores / counts[:, None]
        rest = scores - targets @ means
        covariance = rest.mT @ rest / len(x) + torch.eye(len(counts)) / (len(counts) * (len(x) + 1))
        rule = linear_discriminant(LeaveOneOut(means, covariance, counts, 1.0))
        return rule.scores(scores).argmax(1) != targets.argmax(1)


def standard_errors(base: Tensor, other: Tensor) -> float:
    """By how many standard errors fewer samples are wrong in the second: the test of McNemar."""
    fewer, more = int((base & ~other).sum()), int((other & ~base).sum())
    return (fewer - more) / sqrt(max(fewer + more, 1))


def _unfitted(made: FeatureMap) -> FeatureMap:
    """An empty map of the same description: it is to be fitted on all samples."""
    return type(made)(made.input_shape, seed=made.seed, **made.options)


def _share(wrong: Tensor) -> float:
    return float(wrong.double().mean())
