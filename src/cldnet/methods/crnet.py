"""CRNet-I: random features, and output weights in closed form that stay where old tasks need them.

Over hidden units ``A`` and one-hot targets ``y_q``, the column ``q`` of the output weights minimises, for each task,

    ``‖A β_q − y_q‖² + λ Σ_t (β_q − β_q^old)ᵀ F_t,q (β_q − β_q^old)``, so
    ``β_q = (AᵀA + λ Σ_t F_t,q)⁻¹ (Aᵀ y_q + λ Σ_t F_t,q β_q^old)``

with diagonal ``F_t,q``: EWC of the last layer, solved in closed form instead of by gradient descent. One pass over a
task gathers ``AᵀA`` and ``AᵀY``; a second one at its end, when the weights are known, gives its ``F``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import FINITE_NOT_NEGATIVE, FINITE_POSITIVE, Config, Limit, LogUniform
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.nets.features import NoScaling

#: Samples per block in float64.
BLOCK = 1024
#: Share of the mean diagonal of ``AᵀA`` that is added to it where the release uses a pseudo-inverse.
RIDGE = 2.0**-30
_CONSTANT = 0.1
_POSITIVE_INTEGER = Limit(lambda value: type(value) is int and value >= 1, "be a positive integer")


@dataclass(frozen=True)
class CRNetConfig(Config):
    """Settings of CRNet-I. The defaults are the release's for FashionMNIST, except for λ, which it sets for each task."""

    strength: float = 5000.0  # λ, the weight of the penalty for old tasks
    groups: int = 10  # this and the next three: sizes of the random map
    group_width: int = 10
    enhanced: int = 670
    hidden: int = 900
    sharpness: float = 300.0  # steepness of its enhanced features

    limits: ClassVar = {
        "strength": FINITE_NOT_NEGATIVE,
        "sharpness": FINITE_POSITIVE,
        **dict.fromkeys(("groups", "group_width", "enhanced", "hidden"), _POSITIVE_INTEGER),
    }


class BroadMap(nn.Module):
    """The random feature map of a broad learning system (Chen & Liu 2018), fitted once and then fixed, in float64.

    An input is standardised by its own mean and std, and a constant 0.1 is appended: ``x``. Then come

    - groups of *mapped* features ``z``: products of ``x`` with sparse weights (lasso) by which random Gaussian features of
      ``x``, scaled to [0, 1], reconstruct ``x``; ``z`` is scaled to [0, 1] too;
    - *enhanced* features ``h = tanh(s · (z, 0.1) W / m)`` with random orthonormal ``W``, the largest product ``m`` and the
      sharpness ``s``;
    - *hidden* units ``a = relu((z, h) V + b)`` with ``V`` and ``b`` uniform in [−1, 1]: the outputs.
    """

    def __init__(self, input_shape: tuple[int, ...], config: CRNetConfig, source: torch.Generator) -> None:
        super().__init__()
        self.out_features, self.sharpness, enhanced = config.hidden, config.sharpness, config.enhanced
        inputs, features = prod(input_shape) + 1, config.groups * config.group_width
        self.first: Tensor = nn.Buffer(2 * _normal((config.groups, inputs, config.group_width), source) - 1)
        self.mapped: Tensor = nn.Buffer(torch.zeros(inputs, features, dtype=torch.float64))
        self.low: Tensor = nn.Buffer(torch.zeros(features, dtype=torch.float64))
        self.range: Tensor = nn.Buffer(torch.ones(features, dtype=torch.float64))
        self.mixing: Tensor = nn.Buffer(_orthonormal(2 * _normal((features + 1, enhanced), source) - 1))
        self.largest: Tensor = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.weight: Tensor = nn.Buffer(_uniform((features + enhanced, config.hidden), source))
        self.bias: Tensor = nn.Buffer(_uniform((config.hidden,), source))
        self.fitted: Tensor = nn.Buffer(torch.tensor(False))

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Fit scales and sparse weights to training inputs. A sample of weight 2 counts as two."""
        each = torch.ones(len(x), dtype=torch.float64, device=x.device) if weight is None else weight.double()
        x, each = x[each > 0], each[each > 0]
        blocks, shares = x.split(BLOCK), each.split(BLOCK)
        random = torch.cat([self._inputs(block) @ self.first for block in blocks], dim=1)  # (groups, n, width)
        scaled = (random - random.amin(1, keepdim=True)) / _or_one(random.amax(1) - random.amin(1))[:, None]
        parts = list(zip(blocks, scaled.split(BLOCK, 1), shares, strict=True))
        gram = sum((part.mT * share) @ part for _, part, share in parts)
        moments = sum((part.mT * share) @ self._inputs(block) for block, part, share in parts)
        self.mapped.copy_(sparse_weights(gram, moments).flatten(0, 1).T)
        z = torch.cat([self._inputs(block) @ self.mapped for block in blocks])
        self.low.copy_(z.amin(0))
        self.range.copy_(_or_one(z.amax(0) - z.amin(0)))
        largest = [self._mixed((block - self.low) / self.range).max() for block in z.split(BLOCK)]
        self.largest.copy_(torch.stack(largest).max().clamp_min(1e-12))
        self.fitted.fill_(True)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to hidden units ``(n, hidden)`` in float64."""
        z = (self._inputs(x) @ self.mapped - self.low) / self.range
        h = torch.tanh(self._mixed(z) * (self.sharpness / self.largest))
        return torch.relu(torch.cat([z, h], dim=1) @ self.weight + self.bias)

    def _inputs(self, x: Tensor) -> Tensor:
        """Standardise each input by itself, and append the constant."""
        rows = x.double().flatten(1)
        rows = rows - rows.mean(1, keepdim=True)
        return _with_constant(rows / _or_one(rows.square().mean(1, keepdim=True).sqrt()))

    def _mixed(self, z: Tensor) -> Tensor:
        return _with_constant(z) @ self.mixing


def sparse_weights(gram: Tensor, moments: Tensor, penalty: float = 1e-3, steps: int = 50) -> Tensor:
    """Minimise ``½‖f w − x‖² + penalty·Σ|w|`` given ``gram = fᵀ f`` and ``moments = fᵀ x``, by steps of ADMM with ρ = 1."""
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + eye)
    sparse, dual = torch.zeros_like(moments), torch.zeros_like(moments)
    for _ in range(steps):
        dense = torch.cholesky_solve(moments + sparse - dual, factor)
        sparse = nn.functional.softshrink(dense + dual, penalty)
        dual = dual + dense - sparse
    return sparse


def _with_constant(rows: Tensor) -> Tensor:
    return nn.functional.pad(rows, (0, 1), value=_CONSTANT)


def _or_one(spread: Tensor) -> Tensor:
    """Replace zeros by one: what does not vary is not scaled."""
    return torch.where(spread > 1e-12, spread, 1.0)


def _orthonormal(random: Tensor) -> Tensor:
    """An orthonormal basis of the row space of a wide matrix, or of the column space of a tall one."""
    wide = random.shape[0] < random.shape[1]
    basis: Tensor = torch.linalg.svd(random.T if wide else random, full_matrices=False)[0]
    return (basis.T if wide else basis).contiguous()


def _normal(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=source, dtype=torch.float64)


def _uniform(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=source, dtype=torch.float64) - 1


class CRNet(Learner):
    """CRNet-I with its map fixed at the first task. It has its own map and ignores the backbone.

    The released code fits the map (scales, sparse weights, largest product) on every task's training data *and on every task's
    test part*, two classes at a time: it needs the task of a test input, and its published figures are task-IL.
    Here the map is fitted on the first task's training data only.

    As in the release there are output columns for all classes from the start: a future class has weights of zero, and takes
    part in the softmax whose gradient gives ``F``.

    References
    ----------
    D. Li, Z. Zeng, "CRNet: A Fast Continual Learning Framework With Random Theory", TPAMI 2023.
    https://doi.org/10.1109/TPAMI.2023.3262853
    """

    title = "CRNet"
    summary = "random features, output weights solved with a Fisher penalty (2023)"
    traits = Traits(rehearsal_free=True, constant_size=True, one_pass=True)
    kinds: ClassVar = {"features": "feature map", "weight": "weights", "fisher": "fisher"}
    config_class = CRNetConfig
    fixed = ("groups", "group_width", "enhanced", "hidden", "sharpness")
    default_backbone = "none"
    running = ("gram", "moments")
    min_batch = BLOCK
    ranges: ClassVar = {"strength": LogUniform(100.0, 1e5), "sharpness": LogUniform(1.0, 1000.0)}

    config: CRNetConfig
    gram: Tensor
    moments: Tensor

    def __init__(self, net: nn.Module | None, setting: Setting, config: CRNetConfig) -> None:
        super().__init__(setting)
        self.config = config
        self.scale = NoScaling()
        self.features = BroadMap(setting.input_shape, config, self.generator)
        zeros = torch.zeros(config.hidden, setting.capacity, dtype=torch.float64)
        self.weight: Tensor = nn.Buffer(zeros)  # β
        self.fisher: Tensor = nn.Buffer(zeros.clone())  # Σ_t F_t

    @property
    def class_width(self) -> int:
        return self.config.hidden

    @property
    def network_size(self) -> int:
        return sum(tensor.numel() for tensor in self.features.state_dict().values())

    def start(self, task: TaskData) -> None:
        """Fit the map on the first task, and start with empty sums."""
        if not self.features.fitted:
            self.features.fit(task.x, task.weight)
        self.gram = self.weight.new_zeros(self.config.hidden, self.config.hidden)
        self.moments = torch.zeros_like(self.weight)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Tensor:
        """Add a batch to ``AᵀA`` and ``AᵀY``."""
        for x, y, weight in _blocks(batch):
            hidden = self.features(x)
            weighted = hidden.T * weight
            self.gram.addmm_(weighted, hidden)
            self.moments.index_add_(1, y, weighted)
        return self.gram.new_zeros(())

    @torch.no_grad()
    def finish(self, task: TaskData) -> None:
        """Solve for the weights of the classes seen, then add the task's ``F`` to the sum."""
        self.gram.diagonal().add_(RIDGE * self.gram.diagonal().mean().clamp_min(1e-12))
        held = self.config.strength * self.fisher  # λ Σ_t F_t
        targets = self.moments + held * self.weight
        for q in range(self.seen):
            factor = torch.linalg.cholesky(self.gram + held[:, q].diag())
            self.weight[:, q] = torch.cholesky_solve(targets[:, q, None], factor)[:, 0]
        self.fisher += self._fisher(task)
        del self.gram, self.moments

    def _fisher(self, task: TaskData) -> Tensor:
        """Empirical Fisher information as released: the square of the *mean* gradient, times the number of samples."""
        gradient, samples = torch.zeros_like(self.weight), self.weight.new_zeros(())
        for x, y, weight in _blocks(task):
            hidden = self.features(x)
            wrong = (hidden @ self.weight).softmax(1) - F.one_hot(y, self.setting.capacity)
            gradient.addmm_(hidden.T * weight, wrong)
            samples += weight.sum()
        return gradient.square() / samples.clamp_min(1e-12)

    def score(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.features(x) @ self.weight
        return outputs

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.features(x)
        return hidden


def _blocks(data: Batch | TaskData) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Inputs, classes and weights in blocks."""
    weight = torch.ones(len(data.y), device=data.y.device) if data.weight is None else data.weight
    yield from zip(data.x.split(BLOCK), data.y.split(BLOCK), weight.double().split(BLOCK), strict=True)
