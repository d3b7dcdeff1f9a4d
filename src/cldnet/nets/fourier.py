"""Random Fourier features: their inner products are those of a Gaussian kernel (Rahimi and Recht, 2007).

Exact to the last bit, as all random maps here: the angle of a feature, a whole number times one constant, is rounded to
one of 65,536 directions, and the cosine is read from a table. No cosine of the table is near the middle between two whole
numbers, so it is the same on every machine.
"""

from __future__ import annotations

from functools import cache
from math import pi, prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.nets.features import FEATURE_LIMIT, INPUT_STEPS, WEIGHT_STEPS, RandomProjection

__all__ = ["DIRECTIONS", "RandomFourier", "cosines"]

#: Angles that are told from each other.
DIRECTIONS = 1 << 16
#: Bandwidths outside are no use, and angles of far inputs would run out of digits.
_BANDWIDTHS = (1e-3, 1e6)


class RandomFourier(RandomProjection):
    """Random Fourier features ``127 cos(W x / σ + b)`` in whole numbers from −127 to 127, and a constant column at the end.

    The inner product of two rows, without the constant and divided by ``127² · features / 2``, approximates the Gaussian
    kernel ``exp(−‖x − y‖² / 2σ²)`` of the scaled inputs, the better the more features there are.

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
    bandwidth : float, optional
        σ, in spreads of the inputs. By default, σ² is twice the mean squared distance of two rows of the first task, that
        is four times the total variance of its inputs, whatever the order of rows. Wider than the usual median distance,
        because later classes lie farther off than those of the first task: on validation parts of digits, MNIST and
        FashionMNIST, with two classes in the first task, it was best or within 0.2 points of the best.

    Examples
    --------
    >>> x = torch.randn(20, 5, generator=generator(0))
    >>> features = RandomFourier((5,), features=8, seed=0)
    >>> features.fit(x)
    >>> features(x).shape, float(features(x).abs().max()) <= 127
    (torch.Size([20, 9]), True)
    >>> round(float(features.bandwidth), 2)  # 2√5, for five inputs with a spread of 1
    4.47
    """

    kind = "random-fourier"
    limits = (-FEATURE_LIMIT, FEATURE_LIMIT)
    phase: Tensor
    bandwidth: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 1000,
        *,
        seed: int,
        net: nn.Module | None = None,
        bandwidth: float | None = None,
    ) -> None:
        source = generator(seed)
        super().__init__(input_shape, features, biased=False, source=source, net=net)
        self.seed = seed
        self.given_bandwidth = _checked(bandwidth)
        phase = torch.randint(DIRECTIONS, (features,), generator=source, dtype=torch.int32)
        self.register_buffer("phase", phase)
        self.register_buffer("bandwidth", torch.tensor(self.given_bandwidth or 1.0, dtype=torch.float64))

    @property
    def options(self) -> dict[str, Any]:
        """What the map is made with beside shape and seed; a net in front is not part of it."""
        return {**super().options, "bandwidth": self.given_bandwidth}

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take the inputs' mean and spread, and the bandwidth unless it is given, from training inputs."""
        inputs = self._embed(x)
        self.scale.fit(inputs, weight)
        if self.given_bandwidth is None:
            # Rows that are all equal tell nothing: as if each of their numbers had a spread of 1.
            variance = self._total_variance(inputs, weight) or float(prod(self.input_shape))
            # Rounded to float32, so that the order in which rows were added up leaves no trace.
            self.bandwidth.copy_(torch.tensor(2 * sqrt(variance), dtype=torch.float32).clamp(*_BANDWIDTHS))

    def _total_variance(self, inputs: Tensor, weight: Tensor | None) -> float:
        """Variance of the scaled inputs, added up over an input's numbers, in squared spreads."""
        rows = self.scale.mean.new_ones(len(inputs)) if weight is None else weight.double()
        mean = rows.new_zeros(prod(self.input_shape))
        square = rows.new_zeros(())
        size = max(1, (1 << 20) // len(mean))
        for block, part in zip(inputs.split(size), rows.split(size), strict=True):
            rounded = self._round(block)
            mean += part @ rounded
            square += part @ rounded.square_().sum(1)
        variance = square / rows.sum() - (mean / rows.sum()).square().sum()
        return max(0.0, float(variance)) / INPUT_STEPS**2

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers from −127 to 127, as float32."""
        products = self._project(self._embed(x))
        directions = products.mul_(DIRECTIONS / (2 * pi * INPUT_STEPS * WEIGHT_STEPS * float(self.bandwidth))).round_()
        index = directions.to(torch.int64).add_(self.phase).bitwise_and_(DIRECTIONS - 1)
        features = cosines().to(x.device).index_select(0, index.flatten()).reshape(index.shape)
        return torch.cat([features, features.new_full((len(x), 1), FEATURE_LIMIT)], dim=1)


def _checked(bandwidth: Any) -> float | None:
    """Refuse a bandwidth that is neither left to the data nor a number that can be used."""
    least, most = _BANDWIDTHS
    if bandwidth is None:
        return None
    if (
        isinstance(bandwidth, bool)
        or not isinstance(bandwidth, int | float | np.number)
        or not least <= bandwidth <= most
    ):
        raise ValueError(f"bandwidth={bandwidth!r} should be None or a number from {least:g} to {most:g}, in spreads.")
    return float(bandwidth)


@cache
def cosines() -> Tensor:
    """127 times the cosine of every direction, as whole numbers."""
    directions = torch.arange(DIRECTIONS, dtype=torch.float64)
    return (directions * (2 * pi / DIRECTIONS)).cos_().mul_(FEATURE_LIMIT).round_().float()
