"""Input scaling and fixed feature maps: fitted once, on the first task's training data, and never changed.

Random maps are exact to the last bit. Inputs are rounded to 16 bits and random weights are 8-bit integers, so every product
``W x`` is a whole number that float64 holds exactly in any order of summation; features are rounded to 8 bits. Sums over such
features are whole numbers too: order, chunks, threads and merging cannot change them.

Inner products of random Fourier features approximate a Gaussian kernel (Rahimi and Recht, 2007). Their angle, a whole number
times one constant, is rounded to one of 65,536 directions, and the cosine is read from a table. No cosine of the table is near
the middle between two whole numbers, so it is the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from math import isfinite, pi, prod, sqrt
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from cldnet.device import generator

#: Numbers converted to float64 at a time, to scale inputs and to fit.
_SCALED_AT_ONCE = 1 << 19
_FITTED_AT_ONCE = 1 << 24
#: Least std of a feature relative to its mean, above rounding: 1e-6 for float32.
_RESOLUTION = {torch.float64: 1e-13}
#: A column is constant if its range is at most this many times the rounding of its values.
_ROUNDINGS = 8
#: A column whose range is less than this share of the std that it is divided by is useless to a model.
_LEAST_RANGE = 1 / 1024
_log = logging.getLogger("cldnet")


class InputScale(nn.Module):
    """Subtract a mean and divide by a std: one pair per feature for vectors, one per channel for images.

    A feature that was constant in the first task gets the common std, so that it cannot explode later. The arithmetic is in
    float64, so that large offsets cost no digits.
    """

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shape = {1: input_shape, 2: (1, 1)}.get(len(input_shape), (input_shape[0], 1, 1))
        self.dtype = dtype
        self.mean: Tensor = nn.Buffer(torch.zeros(shape, dtype=torch.float64))
        self.spread: Tensor = nn.Buffer(torch.ones(shape, dtype=torch.float64))
        self.fitted: Tensor = nn.Buffer(torch.tensor(False))

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Compute mean and std of training inputs ``(n, …)``, with optional sample weights."""
        dims = [0, *(1 + i for i, size in enumerate(self.mean.shape) if size == 1 and x.shape[1 + i] != 1)]
        weights = x.new_ones(len(x), dtype=torch.float64) if weight is None else weight.double()
        share = (weights / (weights.sum() * prod(x.shape[d] for d in dims[1:]))).reshape(-1, *[1] * (x.ndim - 1))
        # In blocks: all data in float64 could take eight times the memory.
        size = min(4096, _chunk(x, _FITTED_AT_ONCE))
        mean, variance, reach = (torch.zeros_like(self.mean) for _ in range(3))
        for block, part in zip(x.split(size), share.split(size), strict=True):
            mean += self._wide(block).mul_(part).sum(dims, keepdim=True)[0]
        for block, part in zip(x.split(size), share.split(size), strict=True):
            distance = self._wide(block).sub_(mean).abs_()
            reach = torch.maximum(reach, distance.amax(dims, keepdim=True)[0])
            variance += distance.square_().mul_(part).sum(dims, keepdim=True)[0]
        deviation, least = variance.sqrt(), _RESOLUTION.get(x.dtype, 1e-6) * mean.abs()
        if bool(((deviation == 0) & (reach > least) & (reach < 1e-100)).any()):
            raise ValueError(
                "Some features of X vary by less than 1e-150, which is too little for float64. Multiply X by a large number."
            )
        varies = deviation > least
        common = deviation[varies].square().mean().sqrt() if varies.any() else deviation.new_ones(())
        # A constant feature may be a huge number, whose rounding is larger than the common std.
        spread = _rounded(torch.where(varies, deviation, torch.maximum(common, 1e-6 * mean.abs())))
        _check_distinguishable(x, dims, mean, spread, varies)
        self.mean.copy_(_rounded_within(mean, spread))
        self.spread.copy_(spread)
        self.fitted.fill_(True)

    def set(self, mean: Sequence[float], spread: Sequence[float]) -> None:
        """Set mean and std, one of each per channel or feature, in the units of the inputs (0 to 255 for bytes)."""
        for name, numbers in (("mean", mean), ("spread", spread)):
            if len(numbers) != self.mean.numel():
                raise ValueError(
                    f"{name} has {len(numbers)} numbers; expected {self.mean.numel()}, one per channel or feature."
                )
            if not all(isfinite(number) for number in numbers):
                raise ValueError(f"{name}={numbers!r} should be finite, in the units of the inputs.")
        if not all(number > 0 for number in spread):
            raise ValueError(f"spread={spread!r} should be positive; inputs are divided by it.")
        self.mean.copy_(self.mean.new_tensor(mean).reshape(self.mean.shape))
        self.spread.copy_(self.spread.new_tensor(spread).reshape(self.spread.shape))
        self.fitted.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """Scale inputs ``(n, …)`` of any number type; with mean 0 and std 1 they are only copied."""
        if self._is_identity:
            return x.to(self.dtype, copy=True)
        size = _chunk(x, _SCALED_AT_ONCE)
        if len(x) <= size:
            return self.scaled(x).to(self.dtype)
        scaled = torch.empty(x.shape, dtype=self.dtype, device=x.device)
        for first in range(0, len(x), size):
            scaled[first : first + size] = self.scaled(x[first : first + size])
        return scaled

    def scaled(self, x: Tensor) -> Tensor:
        """Scale inputs in float64, all at once."""
        return self._wide(x).sub_(self.mean).div_(self.spread)

    @property
    def _is_identity(self) -> bool:
        return not self.mean.any() and bool((self.spread == 1).all())

    def _wide(self, x: Tensor) -> Tensor:
        """Copy inputs to float64, so that the next steps can be in place."""
        return x.to(torch.float64, copy=True)


#: A column has heavy tails if its std is more than so many times that of a normal column with the same quartiles.
_HEAVY = 2.0
_NORMAL_QUARTILES = 1.349  # distance of the quartiles of a normal distribution, in stds
_OCTAVES = 1 << 10  # of float64


class TailScale(InputScale):
    """Scale vectors, columns with heavy tails by the logarithm of the distance from their median.

    The std of such a column is that of a few far values, and would leave no digits for all others. Whether its tails are heavy
    is seen from its quartiles; the other columns are scaled as usual. The logarithm is piecewise linear, hence exact.
    """

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        if len(input_shape) != 1:
            raise ValueError(f"tails=True is for vectors; inputs of shape {tuple(input_shape)} take tails=False.")
        super().__init__(input_shape, dtype)
        self.median: Tensor = nn.Buffer(torch.zeros(input_shape, dtype=torch.float64))
        #: Half the distance of the quartiles of columns with heavy tails, and 0 for others.
        self.unit: Tensor = nn.Buffer(torch.zeros(input_shape, dtype=torch.float64))

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Find the columns with heavy tails among samples of a weight above 0, then compute means and stds."""
        self.unit.zero_()
        super().fit(x, weight)
        low, median, high = _quartiles(x if weight is None else x[weight > 0])
        heavy = (high > low) & (self.spread > _HEAVY / _NORMAL_QUARTILES * (high - low))
        if bool(heavy.any()):
            self.median.copy_(median)
            self.unit.copy_(torch.where(heavy, (high - low) / 2, 0.0))
            super().fit(x, weight)

    @property
    def _is_identity(self) -> bool:
        return super()._is_identity and not self.unit.any()

    def _wide(self, x: Tensor) -> Tensor:
        """Copy inputs to float64, columns with heavy tails as logarithms of their distance from the median."""
        wide, heavy = super()._wide(x), self.unit > 0
        if bool(heavy.any()):
            distance = (wide[:, heavy] - self.median[heavy]) / self.unit[heavy]
            wide[:, heavy] = distance.sign() * log2_linear(1 + distance.abs())
        return wide


def log2_linear(x: Tensor) -> Tensor:
    """Piecewise linear ``log₂ x`` for ``x ≥ 1``, exact at powers of two and the same on every machine.

    Examples
    --------
    >>> log2_linear(torch.tensor([1.0, 1.5, 2.0, 3.0, 1024.0], dtype=torch.float64))
    tensor([ 0.0000,  0.5000,  1.0000,  1.5000, 10.0000], dtype=torch.float64)
    """
    powers = torch.exp2(torch.arange(_OCTAVES, dtype=torch.float64, device=x.device))
    x = x.clamp(1, float(2.0 ** (_OCTAVES - 1)))
    guess = x.log2().floor().long().clamp(0, _OCTAVES - 2)  # the last digit of a logarithm differs between machines
    octave = guess - (x < powers[guess]).long() + (x >= powers[guess + 1]).long()
    return octave + (x / powers[octave] - 1)


def _quartiles(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The quartiles of each column ``(n, d)``: values of samples, so that the order of samples does not matter."""
    ranks = [max(1, -(-len(x) * part // 4)) for part in (1, 2, 3)]
    columns = x.split(max(1, _FITTED_AT_ONCE // max(1, len(x))), dim=1)
    found = [torch.stack([part.double().kthvalue(rank, dim=0).values for rank in ranks]) for part in columns]
    low, median, high = torch.cat(found, dim=1)
    return low, median, high


def _check_distinguishable(x: Tensor, dims: list[int], mean: Tensor, spread: Tensor, varies: Tensor) -> None:
    """Refuse inputs that vary too little for their distance from zero; log a warning for single columns."""
    if len(x) < 2 or bool((varies | (mean == 0)).all() & varies.any()):
        return
    span = (x.amax(dims, keepdim=True).double() - x.amin(dims, keepdim=True).double())[0]
    rounding = torch.finfo(x.dtype if x.is_floating_point() else torch.float32).eps * mean.abs()
    distinct = varies | (span >= _LEAST_RANGE * spread)
    lost = ~distinct & (span > _ROUNDINGS * rounding)
    if bool(lost.any()):
        first, others = int(lost.flatten().nonzero()[0]), int(lost.sum()) - 1
        what = (
            f"{'Column' if x.ndim == 2 else 'Channel'} {first} of X{f', and {others} more,' if others else ''} varies by "
            f"{span.flatten()[first]:.3g} around {mean.flatten()[first]:.3g}, which is too little to tell its values apart. "
            "Subtract an offset first, for example X - X[0]."
        )
        if not distinct.any():
            raise ValueError(what)
        _log.warning("%s It is treated as constant.", what)
    elif not distinct.any():
        _log.warning(
            "X is constant, so it cannot tell classes apart. If its values should differ, their type cannot represent the "
            "difference. Subtract an offset from X before converting it."
        )


def _rounded(numbers: Tensor) -> Tensor:
    """Round to float32's digits, so that the order of samples does not matter."""
    mantissa, exponent = torch.frexp(numbers)
    power: Tensor = torch.pow(numbers.new_tensor(2.0), exponent)
    return mantissa.mul(1 << 24).round().div(1 << 24) * power


def _rounded_within(mean: Tensor, spread: Tensor) -> Tensor:
    """Round a mean to float32's digits, or to a small part of the std where that is finer."""
    rounded = _rounded(mean)
    step: Tensor = torch.pow(spread.new_tensor(2.0), torch.frexp(spread).exponent - 8)
    return torch.where((rounded - mean).abs() > 0.01 * spread, (mean / step).round() * step, rounded)


def _chunk(x: Tensor, numbers: int) -> int:
    """Number of samples, at least one, with about ``numbers`` values in total."""
    return max(1, numbers // max(1, prod(x.shape[1:])))


class NoScaling(nn.Module):
    """No scaling, for nets that do their own; inputs are copied, and converted if a dtype is given."""

    dtype: torch.dtype | None = None

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of the inputs: a net may write over what it is given."""
        return x.to(self.dtype or x.dtype, copy=True)


AsTheyAre = AsFloats = NoScaling  # its names in estimators pickled by version 0.1


#: Features are whole numbers of at most this size; 1,024 products of two of them still fit float32's 24 bits.
FEATURE_LIMIT = 127
#: Whole numbers per standard deviation of an input and of a random weight, and the largest input.
INPUT_STEPS = 32767 / 16  # so 16 bits cover 16 standard deviations
WEIGHT_STEPS = FEATURE_LIMIT / 3  # ±3σ fill the 8 bits; the few weights beyond are clipped
INPUT_LIMIT = 32767
#: Whole numbers of an input per step of a linear feature: 127 of these are 8 standard deviations.
LINEAR_STEP = 129
#: Directions of a random Fourier feature.
DIRECTIONS = 1 << 16
#: Bandwidths outside are useless, and angles of far inputs would run out of digits.
_BANDWIDTHS = (1e-3, 1e6)
_KNEE = 8.0  # beyond this many standard deviations inputs are compressed: later classes may be far from the first
_COMPRESSION = 16.0
_ACTIVATION_RANGE = 4.0  # root mean squares of the pre-activation that the 8 bits cover
_MAX_WEIGHTS = 1 << 31
#: Samples of the first task that must activate a unit: three times what an audit requires, since samples may be similar.
_MIN_ACTIVE = 30.0
# Chunk sizes, in numbers: weights drawn, weights or inputs in float64, rounded inputs. All at once could take gigabytes.
_DRAWN_AT_ONCE = 1 << 20
_WIDENED_AT_ONCE = 1 << 22
_ROUNDED_AT_ONCE = 1 << 25


class Described(nn.Module):
    """A net that its class, its `describe` and its tensors determine, so that a file can hold it in full."""

    #: Name of the class in `cldnet.nets.build_described`; "own" for one whose code only its user has.
    kind: ClassVar[str] = "own"
    #: Seed of what is random in the net.
    seed: int = 0
    #: Shape of one input.
    input_shape: tuple[int, ...]
    #: Length of a feature vector.
    out_features: int
    #: Whether inputs are sentences, as rows of bytes of `cldnet.data.sentences`.
    takes_text: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed, in JSON types."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Describe in JSON types how to build an empty net of the same kind; its tensors are loaded afterwards."""
        return {
            "kind": self.kind,
            "input_shape": list(getattr(self, "input_shape", ())),
            "seed": self.seed,
            "options": self.options,
        }


class FeatureMap(Described, ABC):
    """A map from inputs to feature vectors that is fitted once and fixed from then on.

    `map_id` covers its class, its `describe` and its tensors: two models with the same id have the same features.
    """

    #: Samples that `fit` needs at least, and what for.
    min_rows: int = 2
    why_rows: str = "to learn the scale of inputs"
    #: Whether `fit` takes anything from the data, which then leave their trace in the map.
    fits_data: ClassVar[bool] = True
    #: Least and largest feature, if the class's own `forward` guarantees them.
    limits: ClassVar[tuple[float, float] | None] = None
    #: How large a feature is that counts something once, if features are counts followed by a constant.
    count: ClassVar[float | None] = None
    #: Whether a learner calls ``fit(x, weight, y)``, with the classes of the first task's samples, numbered from 0 on. A class
    #: with a `fit` of its own says so itself.
    uses_labels: ClassVar[bool] = False
    fitted: Tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "fit" in cls.__dict__ and "uses_labels" not in cls.__dict__:
            cls.uses_labels = False  # its parent's `fit` may take labels when this one, from an older program, does not

    @abstractmethod
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Fit the map to the first task's training inputs, with optional sample weights."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to features ``(n, out_features)``, each sample by itself."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: the map is fixed."""
        return super().train(False)

    @property
    def work(self) -> int:
        """Products per input: a bound on the time and memory of a trial."""
        return sum(tensor.numel() for tensor in self.state_dict().values())

    @property
    def own_limits(self) -> tuple[float, float] | None:
        """`limits` of the class itself: a subclass with another `forward` may exceed those of its base class."""
        limits: tuple[float, float] | None = vars(type(self)).get("limits")
        return limits

    def predict_features(self, x: Tensor) -> Tensor:
        """Features for prediction, which need not be whole numbers.

        Behind a float32 net they should not be: its last digits differ between machines and runtimes, and rounding would turn
        them into visible steps.
        """
        features: Tensor = self(x)
        return features

    @property
    def map_id(self) -> str:
        """Digest of the map's description and tensors: two models can be merged if and only if their ids are equal."""
        made = {name: part for name, part in self.describe().items() if name != "seed"}
        digest = hashlib.sha256(f"{type(self).__name__}:{json.dumps(made, sort_keys=True)}".encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


class ScaledMap(FeatureMap):
    """Base of maps over scaled inputs, rounded to 16 bits."""

    #: Of maps pickled by versions that had no other.
    tails: bool = False

    def __init__(self, input_shape: tuple[int, ...], *, tails: bool, net: nn.Module | None = None) -> None:
        super().__init__()
        if not isinstance(tails, bool):
            raise ValueError(f"tails={tails!r} should be True or False.")
        self.input_shape, self.tails = tuple(input_shape), tails
        self.net = net.eval().requires_grad_(False) if net is not None else None
        self.scale = (TailScale if tails else InputScale)(self.input_shape, torch.float64)

    @property
    def fitted(self) -> Tensor:  # type: ignore[override]
        """Whether `fit` was called."""
        return self.scale.fitted

    @property
    def min_rows(self) -> int:  # type: ignore[override]
        """One row of inputs gives a scale of some kind; outputs of a net may be of any size."""
        return 1 if self.net is None else 2

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed; ``tails`` only if set, as ids of older maps have none."""
        return {"tails": True} if self.tails else {}

    def _round(self, x: Tensor) -> Tensor:
        """Scaled inputs as whole numbers, flattened, in float64."""
        return compress(self.scale(x)).round_().clamp_(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)


class Linear(ScaledMap):
    """The scaled inputs themselves, as whole numbers from −127 to 127, and a constant last column.

    They reach to 8 standard deviations in steps of 1/16. Finer steps would need a second digit per input, which is noise to a
    ridge regression of few samples.

    Parameters
    ----------
    input_shape, tails
        As for `RandomReLU`.
    seed : int
        Not used: nothing is random. Every map takes one.

    Examples
    --------
    >>> features = Linear((2,))
    >>> features.fit(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    >>> features(torch.tensor([[2.0, 1.0]]))
    tensor([[ 16., -16., 127.]])
    """

    kind = "linear"
    limits = (-FEATURE_LIMIT, FEATURE_LIMIT)

    def __init__(self, input_shape: tuple[int, ...], *, seed: int = 0, tails: bool = False) -> None:
        super().__init__(input_shape, tails=tails)
        self.seed = seed
        self.out_features = prod(self.input_shape) + 1

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take the inputs' mean and std from training inputs."""
        self.scale.fit(x, weight)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers from −127 to 127, as float32."""
        steps = self._round(x).div_(LINEAR_STEP).round_().clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
        return with_constant(steps.float())


class RandomProjection(ScaledMap):
    """Base of maps over random projections: scaled, rounded inputs times 8-bit weights, behind an optional frozen net."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int,
        *,
        biased: bool,
        source: torch.Generator,
        net: nn.Module | None,
        tails: bool,
    ) -> None:
        super().__init__(input_shape, tails=tails, net=net)
        self.weight: Tensor = nn.Buffer(_random_weights(features, prod(input_shape) + biased, source))
        self.out_features = int(features) + 1

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed; a net in front is not included."""
        return {"features": self.out_features - 1, **super().options}

    def _embed(self, x: Tensor) -> Tensor:
        """Outputs of the net in front, or the inputs themselves."""
        if self.net is None:
            return x
        dtype = next((p.dtype for p in self.net.parameters()), torch.float32)
        embedded: Tensor = torch.cat([self.net(block.to(dtype)) for block in x.split(1024)])
        if not torch.isfinite(embedded).all():
            raise ValueError(
                "The backbone returned NaN or infinity for some samples. Check its weights and the inputs."
            )
        return embedded

    def _project(self, x: Tensor) -> Tensor:
        """Products of the rounded inputs and all weights: whole numbers, exact in float64 in any order."""
        inputs = prod(self.input_shape)
        bias = self.weight[:, inputs:].double().sum(1) * round(INPUT_STEPS)  # zero without a bias column
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
    """Random ReLU features ``relu(W x + b)`` as whole numbers from 0 to 127, and a constant last column.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input, or of one output of ``net``.
    features : int
        Number of random features, without the constant column.
    seed : int
        Seed of the random weights.
    net : nn.Module, optional
        A frozen module whose output is expanded instead of the input itself.
    tails : bool
        Take the logarithm of columns with heavy tails, of vectors only (`TailScale`).

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

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 1000,
        *,
        seed: int,
        net: nn.Module | None = None,
        tails: bool = False,
    ) -> None:
        super().__init__(input_shape, features, biased=True, source=generator(seed), net=net, tails=tails)
        self.seed = seed
        self.step: Tensor = nn.Buffer(torch.ones((), dtype=torch.float64))

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take the inputs' mean and std, the size of the activations and the sign of each unit from training inputs."""
        inputs = self._embed(x)
        self.scale.fit(inputs, weight)
        energy = torch.cat([self._project(block).square_().mean(1) for block in inputs.split(1024)])
        weights = torch.ones_like(energy) if weight is None else weight.double()
        rms = ((energy * weights).sum() / weights.sum()).sqrt().clamp_min(1.0)
        self.step.copy_((FEATURE_LIMIT / (_ACTIVATION_RANGE * rms)).float())
        self._flip_inactive(inputs, weights)

    def _flip_inactive(self, inputs: Tensor, weights: Tensor) -> None:
        """Flip the sign of units that hardly any sample activates.

        A unit's column of ``Σ hhᵀ`` is a sum over the samples that activate it: of a single sample, it is that sample. Samples
        are counted as ``(Σ a)² / Σ a²`` of the unit's activations, which is 1 where one dominates.
        """
        sums = torch.zeros(2, 2, len(self.weight), dtype=torch.float64, device=self.weight.device)
        for block, weight in zip(inputs.split(1024), weights.split(1024), strict=True):
            activations = self._project(block).mul_(self.step).round_()
            for side, active in zip(sums, (activations, -activations), strict=True):
                active = active.clamp(0, FEATURE_LIMIT)
                side[0] += weight @ active
                side[1] += weight @ active.square_()
        counts = sums[:, 0].square() / sums[:, 1].clamp_min(1.0)
        least = min(_MIN_ACTIVE, float(weights.sum()) / 4)  # of few samples no more than half can be on either side
        flipped = (counts[0] < least) & (counts[1] > counts[0])
        self.weight[flipped] = -self.weight[flipped]

    @torch.no_grad()
    def predict_features(self, x: Tensor) -> Tensor:
        """Features for prediction: unrounded behind a net, else whole numbers."""
        return self(x) if self.net is None else self.unrounded(self._embed(x))

    def unrounded(self, x: Tensor) -> Tensor:
        """Map inputs, or outputs of the net, to the numbers that `forward` would round, in float64."""
        inputs = prod(self.input_shape)
        weight = self.weight.double()
        bias = weight[:, inputs:].sum(1) * round(INPUT_STEPS)
        limited = compress(self.scale.scaled(x)).clamp(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)
        features = ((limited @ weight[:, :inputs].T + bias) * self.step).clamp(0, FEATURE_LIMIT)
        return with_constant(features)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers from 0 to 127, as float32."""
        activations = self._project(self._embed(x))
        return with_constant(activations.mul_(self.step).round_().clamp_(0, FEATURE_LIMIT).float())


class RandomFourier(RandomProjection):
    """Random Fourier features ``127 cos(W x / σ + b)`` as whole numbers from −127 to 127, and a constant last column.

    The inner product of two samples, without the constant and divided by ``127² · features / 2``, approximates the Gaussian
    kernel ``exp(−‖x − y‖² / 2σ²)`` of the scaled inputs, the better the more features there are.

    Parameters
    ----------
    input_shape, features, seed, net, tails
        As for `RandomReLU`.
    bandwidth : float, optional
        σ, in standard deviations of the inputs. By default σ² is twice the mean squared distance of two samples of the first
        task, that is four times the total variance of its inputs. That is wider than the usual median distance, because
        later classes are farther off than those of the first task: on validation parts of digits, MNIST and FashionMNIST, with
        two classes in the first task, it was best or within 0.2 points of the best.
    """

    kind = "random-fourier"
    limits = (-FEATURE_LIMIT, FEATURE_LIMIT)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 1000,
        *,
        seed: int,
        net: nn.Module | None = None,
        bandwidth: float | None = None,
        tails: bool = False,
    ) -> None:
        source = generator(seed)
        super().__init__(input_shape, features, biased=False, source=source, net=net, tails=tails)
        self.seed = seed
        least, most = _BANDWIDTHS
        number = isinstance(bandwidth, int | float | np.number) and not isinstance(bandwidth, bool)
        if bandwidth is not None and not (number and least <= bandwidth <= most):
            raise ValueError(
                f"bandwidth={bandwidth!r} should be None or a number from {least:g} to {most:g}, in standard deviations."
            )
        self.given_bandwidth = None if bandwidth is None else float(bandwidth)
        self.phase: Tensor = nn.Buffer(torch.randint(DIRECTIONS, (features,), generator=source, dtype=torch.int32))
        self.bandwidth: Tensor = nn.Buffer(torch.tensor(self.given_bandwidth or 1.0, dtype=torch.float64))

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed; a net in front is not included."""
        return {**super().options, "bandwidth": self.given_bandwidth}

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take the inputs' mean and std, and the bandwidth unless it is given, from training inputs."""
        inputs = self._embed(x)
        self.scale.fit(inputs, weight)
        if self.given_bandwidth is None:
            # For samples that are all equal: as if each input had a standard deviation of 1.
            variance = self._total_variance(inputs, weight) or float(prod(self.input_shape))
            # Rounded to float32, so that the order of samples does not matter.
            self.bandwidth.copy_(torch.tensor(2 * sqrt(variance), dtype=torch.float32).clamp(*_BANDWIDTHS))

    def _total_variance(self, inputs: Tensor, weight: Tensor | None) -> float:
        """Sum of the variances of the scaled inputs."""
        weights = self.scale.mean.new_ones(len(inputs)) if weight is None else weight.double()
        mean = weights.new_zeros(prod(self.input_shape))
        square = weights.new_zeros(())
        size = max(1, (1 << 20) // len(mean))
        for block, part in zip(inputs.split(size), weights.split(size), strict=True):
            rounded = self._round(block)
            mean += part @ rounded
            square += part @ rounded.square_().sum(1)
        variance = square / weights.sum() - (mean / weights.sum()).square().sum()
        return max(0.0, float(variance)) / INPUT_STEPS**2

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers from −127 to 127, as float32."""
        products = self._project(self._embed(x))
        directions = products.mul_(DIRECTIONS / (2 * pi * INPUT_STEPS * WEIGHT_STEPS * float(self.bandwidth))).round_()
        index = directions.to(torch.int64).add_(self.phase).bitwise_and_(DIRECTIONS - 1)
        return with_constant(cosines().to(x.device).index_select(0, index.flatten()).reshape(index.shape))

    def unrounded(self, x: Tensor) -> Tensor:
        """Map inputs, or outputs of the net, to the numbers that `forward` would round, in float64."""
        limited = compress(self.scale.scaled(x)).clamp(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)
        angle = limited @ self.weight.double().T / (INPUT_STEPS * WEIGHT_STEPS * float(self.bandwidth))
        return with_constant(FEATURE_LIMIT * (angle + self.phase * (2 * pi / DIRECTIONS)).cos())


def with_constant(features: Tensor) -> Tensor:
    """Append the constant column."""
    return torch.cat([features, features.new_full((features.shape[0], 1), FEATURE_LIMIT)], dim=1)


def compress(scaled: Tensor) -> Tensor:
    """Convert scaled inputs, in place, to `INPUT_STEPS`; inputs far from the first task's are drawn nearer."""
    core = scaled.clamp(-_KNEE, _KNEE)
    return scaled.sub_(core).div_(_COMPRESSION).add_(core).mul_(INPUT_STEPS)


@cache
def cosines() -> Tensor:
    """127 times the cosine of every direction, as whole numbers."""
    directions = torch.arange(DIRECTIONS, dtype=torch.float64)
    return (directions * (2 * pi / DIRECTIONS)).cos_().mul_(FEATURE_LIMIT).round_().float()


def _random_weights(features: Any, inputs: int, source: torch.Generator) -> Tensor:
    """Gaussian weights in 8 bits, shape ``(features, inputs)``; the number of features is checked first."""
    most = _MAX_WEIGHTS // inputs
    if isinstance(features, bool) or not isinstance(features, int | np.integer) or not 1 <= features <= most:
        raise ValueError(f"features={features!r} should be a whole number from 1 to {most:,} for inputs of that size.")
    weight = torch.empty(int(features) * inputs, dtype=torch.int8)
    if weight.is_meta:  # only the size is needed
        return weight.reshape(-1, inputs)
    # Blocks of a multiple of 16 and a longer last one: torch draws these as it would draw all at once.
    ends = [*range(_DRAWN_AT_ONCE, len(weight) - _DRAWN_AT_ONCE + 1, _DRAWN_AT_ONCE), len(weight)]
    for first, end in zip([0, *ends], ends, strict=False):
        gaussian = torch.randn(end - first, generator=source, dtype=torch.float64)
        weight[first:end] = gaussian.mul_(WEIGHT_STEPS).round_().clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
    return weight.reshape(-1, inputs)
