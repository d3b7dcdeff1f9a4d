"""Fixed feature maps for the exact solver: fitted once, then never changed, with an id of their own.

Random maps are exact to the last bit. Inputs are rounded to 16 bits, random weights are 8-bit integers, so every product
``W x`` is a whole number that float64 holds exactly in any order of summation; features are rounded to 8 bits. Sums over
such features are whole numbers too: order, chunks, threads and merging cannot change them.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.nets.described import Described
from cldnet.nets.scale import InputScale

__all__ = ["FEATURE_LIMIT", "INPUT_LIMIT", "INPUT_STEPS", "FeatureMap", "RandomProjection", "RandomReLU", "squeezed"]

#: Features are whole numbers of at most this size; 1,024 products of two of them still fit float32's 24 bits.
FEATURE_LIMIT = 127
#: Whole numbers that stand for one spread of an input, for one standard deviation of a random weight, and the largest input.
INPUT_STEPS = 32767 / 16  # so 16 bits cover 16 spreads
WEIGHT_STEPS = FEATURE_LIMIT / 3  # ±3σ fill the 8 bits; the few weights beyond are clipped
INPUT_LIMIT = 32767
_KNEE = 8.0  # beyond this many spreads inputs are squeezed by _SQUEEZE: classes yet to come may lie far from the first
_SQUEEZE = 16.0
_ACTIVATION_RANGE = 4.0  # root mean squares of the pre-activation that the 8 bits cover
_MOST_WEIGHTS = 1 << 31
#: Rows of the first task that light a unit: three times what an audit asks for, since rows may be alike.
_LEAST_ROWS = 30.0
# Numbers at a time: weights drawn, weights or inputs in float64, and rounded inputs. Photos at once would take gigabytes.
_DRAWN_AT_ONCE = 1 << 20
_WIDENED_AT_ONCE = 1 << 22
_ROUNDED_AT_ONCE = 1 << 25


class FeatureMap(Described, ABC):
    """A map from inputs to feature vectors that is fitted once and fixed from then on.

    What it computes follows from its class, its `describe` and its tensors: `map_id` covers all of them, because it is how
    two models know that their features mean the same.
    """

    #: Rows that `fit` needs at least, and what for.
    min_rows: int = 2
    why_rows: str = "to learn the scale of inputs"
    #: Whether `fit` takes anything from the data, which then leave their trace in the map.
    fits_data: ClassVar[bool] = True
    #: Least and largest feature, if the class's own `forward` guarantees them.
    limits: ClassVar[tuple[float, float] | None] = None
    fitted: Tensor

    @abstractmethod
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Fit whatever the map takes from data, on the first task's training inputs, weighted by row if asked."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to features ``(n, out_features)``, each row by itself."""

    @property
    def work(self) -> int:
        """Products that one input takes: a bound of the time and memory of a trial."""
        return sum(tensor.numel() for tensor in self.state_dict().values())

    def asked(self, x: Tensor) -> Tensor:
        """Features of inputs that are asked about, not learned.

        They need not be whole numbers. Behind float32 they are better not: its last digits differ from machine to machine, and
        from torch to another runtime, and rounding would make steps of them that can be seen in an answer.
        """
        features: Tensor = self(x)
        return features

    @property
    def map_id(self) -> str:
        """Digest of the map's make and tensors: two models add up if and only if their ids are equal."""
        made = {name: part for name, part in self.describe().items() if name != "seed"}
        digest = hashlib.sha256(f"{type(self).__name__}:{json.dumps(made, sort_keys=True)}".encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


class RandomProjection(FeatureMap):
    """What maps over random projections share: scaled, rounded inputs times 8-bit weights, and a frozen net in front.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input, or of one output of ``net``.
    features : int
        Number of random features; the constant column comes on top.
    biased : bool
        Whether there is one more weight a feature, of a constant input of one spread.
    source : torch.Generator
        Where the random weights come from.
    net : nn.Module, optional
        A frozen module whose output is expanded instead of the input itself.
    """

    weight: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int,
        *,
        biased: bool,
        source: torch.Generator,
        net: nn.Module | None,
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.net = net.eval().requires_grad_(False) if net is not None else None
        self.scale = InputScale(self.input_shape, torch.float64)
        self.register_buffer("weight", _random_weights(features, prod(input_shape) + biased, source))
        self.out_features = int(features) + 1

    @property
    def fitted(self) -> Tensor:  # type: ignore[override]
        """Whether `fit` was called."""
        return self.scale.fitted

    def train(self, mode: bool = True) -> RandomProjection:
        """Stay in evaluation mode: the map is fixed."""
        return super().train(False)

    @property
    def options(self) -> dict[str, Any]:
        """What the map is made with beside shape and seed; a net in front is not part of it."""
        return {"features": self.out_features - 1}

    def _embed(self, x: Tensor) -> Tensor:
        if self.net is None:
            return x
        dtype = next((p.dtype for p in self.net.parameters()), torch.float32)
        embedded: Tensor = torch.cat([self.net(block.to(dtype)) for block in x.split(1024)])
        if not torch.isfinite(embedded).all():
            raise ValueError("The backbone gave NaN or infinity for some rows: there is nothing to learn from those.")
        return embedded

    def _round(self, x: Tensor) -> Tensor:
        """Scaled inputs as whole numbers, one row each, in float64."""
        return squeezed(self.scale(x)).round_().clamp_(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)

    def _project(self, x: Tensor) -> Tensor:
        """Products of the rounded inputs and all weights: whole numbers, exact in float64 however they are cut."""
        inputs = prod(self.input_shape)
        bias = self.weight[:, inputs:].double().sum(1) * round(INPUT_STEPS)  # zero without a column for it
        products = bias.repeat(len(x), 1)
        width = max(256, _WIDENED_AT_ONCE // len(self.weight))
        if inputs <= width:
            return products.addmm_(self._round(x), self.weight[:, :inputs].double().T)
        size = max(1, _ROUNDED_AT_ONCE // inputs)
        for rows, part in zip(products.split(size), x.split(size), strict=True):
            blocks = part.split(max(1, _WIDENED_AT_ONCE // inputs))
            rounded = torch.cat([self._round(block).to(torch.int16) for block in blocks])
            for first in range(0, inputs, width):
                columns = slice(first, min(first + width, inputs))
                rows.addmm_(rounded[:, columns].double(), self.weight[:, columns].double().T)
        return products


class RandomReLU(RandomProjection):
    """Random ReLU features ``relu(W x + b)`` in whole numbers from 0 to 127, with a constant column at the end.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input, or of one output of ``net``.
    features : int
        Number of random features; the constant column comes on top.
    seed : int
        Seed of the random weights.
    net : nn.Module, optional
        A frozen module whose output is expanded instead of the input itself.

    Examples
    --------
    >>> x = torch.randn(20, 5, generator=generator(0))
    >>> features = RandomReLU((5,), features=8, seed=0)
    >>> features.fit(x)
    >>> features(x).shape, float(features(x).max()) <= 127
    (torch.Size([20, 9]), True)
    """

    kind = "random-relu"
    limits = (0.0, FEATURE_LIMIT)
    step: Tensor

    def __init__(
        self, input_shape: tuple[int, ...], features: int = 1000, *, seed: int, net: nn.Module | None = None
    ) -> None:
        super().__init__(input_shape, features, biased=True, source=generator(seed), net=net)
        self.seed = seed
        self.register_buffer("step", torch.ones((), dtype=torch.float64))

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take the inputs' mean and spread, the size of the activations and the side of each unit from training inputs."""
        inputs = self._embed(x)
        self.scale.fit(inputs, weight)
        energy = torch.cat([self._project(block).square_().mean(1) for block in inputs.split(1024)])
        rows = torch.ones_like(energy) if weight is None else weight.double()
        rms = ((energy * rows).sum() / rows.sum()).sqrt().clamp_min(1.0)
        self.step.copy_((FEATURE_LIMIT / (_ACTIVATION_RANGE * rms)).float())
        self._turn_round(inputs, rows)

    def _turn_round(self, inputs: Tensor, rows: Tensor) -> None:
        """Let units that hardly any row lights look the other way, where nearly all do.

        The column of ``Σ hhᵀ`` that belongs to a unit is a sum of the rows that light it: of one row alone, it is that row.
        Rows are counted as ``(Σ a)² / Σ a²`` of the unit's activations, which is 1 where one outshines all others.
        """
        bright = torch.zeros(2, 2, len(self.weight), dtype=torch.float64, device=self.weight.device)
        for block, weight in zip(inputs.split(1024), rows.split(1024), strict=True):
            activations = self._project(block).mul_(self.step).round_()
            for side, lit in zip(bright, (activations, -activations), strict=True):
                lit = lit.clamp(0, FEATURE_LIMIT)
                side[0] += weight @ lit
                side[1] += weight @ lit.square_()
        shares = bright[:, 0].square() / bright[:, 1].clamp_min(1.0)
        least = min(_LEAST_ROWS, float(rows.sum()) / 4)  # of few rows no more than half can be on either side
        turned = (shares[0] < least) & (shares[1] > shares[0])
        self.weight[turned] = -self.weight[turned]

    @torch.no_grad()
    def asked(self, x: Tensor) -> Tensor:
        """Features of inputs that are asked about: behind a net those of `unrounded`, else whole numbers."""
        return self(x) if self.net is None else self.unrounded(self._embed(x))

    def unrounded(self, x: Tensor) -> Tensor:
        """Map inputs, or outputs of the net, to the numbers that `forward` would round, in float64."""
        inputs = prod(self.input_shape)
        weight = self.weight.double()
        bias = weight[:, inputs:].sum(1) * round(INPUT_STEPS)
        limited = squeezed(self.scale.scaled(x)).clamp(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)
        features = ((limited @ weight[:, :inputs].T + bias) * self.step).clamp(0, FEATURE_LIMIT)
        return torch.cat([features, features.new_full((features.shape[0], 1), FEATURE_LIMIT)], dim=1)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers from 0 to 127, as float32."""
        activations = self._project(self._embed(x))
        features = activations.mul_(self.step).round_().clamp_(0, FEATURE_LIMIT).float()
        return torch.cat([features, features.new_full((len(x), 1), FEATURE_LIMIT)], dim=1)


def squeezed(scaled: Tensor) -> Tensor:
    """Scaled inputs, which are written over, in `INPUT_STEPS`; what lies far from the first task's is drawn nearer.

    Examples
    --------
    >>> squeezed(torch.tensor([-1.0, 24.0])) / INPUT_STEPS
    tensor([-1.,  9.])
    """
    core = scaled.clamp(-_KNEE, _KNEE)
    return scaled.sub_(core).div_(_SQUEEZE).add_(core).mul_(INPUT_STEPS)


def _random_weights(features: Any, inputs: int, source: torch.Generator) -> Tensor:
    """Gaussian weights in 8 bits, shape ``(features, inputs)``; the number of features is checked first."""
    most = _MOST_WEIGHTS // inputs
    if isinstance(features, bool) or not isinstance(features, int | np.integer) or not 1 <= features <= most:
        raise ValueError(f"features={features!r} should be a whole number from 1 to {most:,} for inputs of that size.")
    weight = torch.empty(int(features) * inputs, dtype=torch.int8)
    if weight.is_meta:  # only the size is asked for
        return weight.reshape(-1, inputs)
    # Blocks of a multiple of 16 and a longer last one: torch draws these as it would draw all at once.
    ends = [*range(_DRAWN_AT_ONCE, len(weight) - _DRAWN_AT_ONCE + 1, _DRAWN_AT_ONCE), len(weight)]
    for first, end in zip([0, *ends], ends, strict=False):
        gaussian = torch.randn(end - first, generator=source, dtype=torch.float64)
        weight[first:end] = gaussian.mul_(WEIGHT_STEPS).round_().clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
    return weight.reshape(-1, inputs)
