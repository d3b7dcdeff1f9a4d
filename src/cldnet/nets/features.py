"""Fixed feature maps for the exact solver: fitted once, then never changed, with an id of their own.

The random ReLU map is exact to the last bit. Inputs are rounded to 16 bits, random weights are 8-bit integers, so every
pre-activation is a whole number that float64 holds exactly in any order of summation; activations are rounded to 8 bits.
Sums over such features are whole numbers too: order, chunks, threads and merging cannot change them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from math import prod

import torch
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.nets.scale import InputScale

__all__ = ["FEATURE_LIMIT", "FeatureMap", "RandomReLU"]

#: Features are whole numbers from 0 to this one; 1,024 products of two of them still fit float32's 24 bits.
FEATURE_LIMIT = 127
_INPUT_LIMIT = 32767  # 16 bits
_INPUT_RANGE = 16.0  # spreads that the 16 bits cover
_KNEE = 8.0  # beyond this many spreads inputs are squeezed by _SQUEEZE: classes yet to come may lie far from the first
_SQUEEZE = 16.0
_ACTIVATION_RANGE = 4.0  # root mean squares of the pre-activation that the 8 bits cover


class FeatureMap(nn.Module, ABC):
    """A map from inputs to feature vectors that is fitted once and fixed from then on."""

    #: Rows that `fit` needs at least.
    min_rows: int = 2
    #: Length of a feature vector.
    out_features: int
    fitted: Tensor

    @abstractmethod
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Fit whatever the map takes from data, on the first task's training inputs, weighted by row if asked."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to features ``(n, out_features)``, each row by itself."""

    @property
    def map_id(self) -> str:
        """Digest of the map's tensors: two models add up if and only if their ids are equal."""
        digest = hashlib.sha256(type(self).__name__.encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


class RandomReLU(FeatureMap):
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

    weight: Tensor
    step: Tensor

    def __init__(
        self, input_shape: tuple[int, ...], features: int = 1000, *, seed: int, net: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.net = net.eval().requires_grad_(False) if net is not None else None
        self.scale = InputScale(input_shape, torch.float64)
        self.out_features = features + 1
        inputs = prod(input_shape) + 1  # the bias is the weight of a constant input
        gaussian = torch.randn(features, inputs, generator=generator(seed), dtype=torch.float64)
        # ±3σ fill the 8 bits; the few weights beyond are clipped.
        self.register_buffer("weight", (gaussian * (FEATURE_LIMIT / 3)).round().clamp(-127, 127).to(torch.int8))
        self.register_buffer("step", torch.ones((), dtype=torch.float64))

    @property
    def fitted(self) -> Tensor:  # type: ignore[override]
        """Whether `fit` was called."""
        return self.scale.fitted

    def train(self, mode: bool = True) -> RandomReLU:
        """Stay in evaluation mode: the map is fixed."""
        return super().train(False)

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take the inputs' mean and spread and the size of the activations from training inputs."""
        inputs = self._embed(x)
        self.scale.fit(inputs, weight)
        energy = torch.cat([self._project(block).square().mean(1) for block in inputs.split(1024)])
        rows = torch.ones_like(energy) if weight is None else weight.double()
        rms = ((energy * rows).sum() / rows.sum()).sqrt().clamp_min(1.0)
        self.step.copy_((FEATURE_LIMIT / (_ACTIVATION_RANGE * rms)).float())

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers from 0 to 127, as float32."""
        activations = self._project(self._embed(x))
        features = (activations * self.step).round_().clamp_(0, FEATURE_LIMIT).float()
        return torch.cat([features, features.new_full((len(x), 1), FEATURE_LIMIT)], dim=1)

    def _embed(self, x: Tensor) -> Tensor:
        if self.net is None:
            return x
        dtype = next((p.dtype for p in self.net.parameters()), torch.float32)
        embedded: Tensor = torch.cat([self.net(block.to(dtype)) for block in x.split(1024)])
        if not torch.isfinite(embedded).all():
            raise ValueError("The backbone gave NaN or infinity for some rows: there is nothing to learn from those.")
        return embedded

    def _project(self, x: Tensor) -> Tensor:
        step = _INPUT_LIMIT / _INPUT_RANGE
        scaled = self.scale(x)
        core = scaled.clamp(-_KNEE, _KNEE)
        squeezed = core + (scaled - core) / _SQUEEZE
        rounded = (squeezed * step).round_().clamp_(-_INPUT_LIMIT, _INPUT_LIMIT).flatten(1)
        constant = rounded.new_full((len(x), 1), float(round(step)))
        return torch.cat([rounded, constant], dim=1) @ self.weight.double().T
