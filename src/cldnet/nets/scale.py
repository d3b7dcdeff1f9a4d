"""Input scaling, fitted once on the first task's training data and fixed from then on."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

__all__ = ["AsTheyAre", "InputScale"]


class InputScale(nn.Module):
    """Subtract a mean and divide by a spread: one pair a feature for vectors, one a channel for images.

    A feature that never varied in the first task gets the common spread, so that it cannot explode when it does later.
    The arithmetic is in float64, whatever the inputs are, so that large offsets cost no digits.

    Parameters
    ----------
    input_shape : tuple of int
        ``(features,)``, ``(height, width)`` or ``(channels, height, width)``.
    dtype : torch.dtype
        Type of the scaled inputs.

    Examples
    --------
    >>> scale = InputScale((2,))
    >>> scale.fit(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
    >>> scale(torch.tensor([[3.0, 6.0]]))
    tensor([[2., 1.]])
    """

    mean: Tensor
    spread: Tensor
    fitted: Tensor

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        shape = {1: input_shape, 2: (1, 1)}.get(len(input_shape), (input_shape[0], 1, 1))
        self.dtype = dtype
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("spread", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take mean and spread from training inputs ``(n, …)``, weighted by row if there are weights."""
        dims = [0, *(1 + i for i, size in enumerate(self.mean.shape) if size == 1 and x.shape[1 + i] != 1)]
        rows = x.new_ones(len(x), dtype=torch.float64) if weight is None else weight.double()
        share = (rows / (rows.sum() * prod(x.shape[d] for d in dims[1:]))).reshape(-1, *[1] * (x.ndim - 1))
        # In blocks: all of the data in float64 could be eight times its size.
        blocks = [slice(first, first + 4096) for first in range(0, len(x), 4096)]
        mean, variance = torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        for block in blocks:
            mean += (x[block] * share[block]).sum(dims, keepdim=True)[0]
        for block in blocks:
            variance += ((x[block] - mean).square() * share[block]).sum(dims, keepdim=True)[0]
        deviation = variance.sqrt()
        varies = deviation > 1e-6 * mean.abs()
        common = deviation[varies].square().mean().sqrt() if varies.any() else deviation.new_ones(())
        # Rounded to float32, so that the order in which rows were added up leaves no trace.
        self.mean.copy_(mean.float())
        self.spread.copy_(torch.where(varies, deviation, common).float())
        self.fitted.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """Scale inputs of any number type."""
        return ((x - self.mean) / self.spread).to(self.dtype)


class AsTheyAre(nn.Module):
    """No scaling, for nets that do their own.

    Examples
    --------
    >>> AsTheyAre()(torch.tensor([3]))
    tensor([3])
    """

    fitted = True

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take nothing from the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs."""
        return x
