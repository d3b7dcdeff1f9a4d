"""Input scaling: fitted once on the first task's training data, or by given constants, and fixed from then on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import isfinite, prod

import torch
from torch import Tensor, nn

__all__ = ["AsFloats", "AsTheyAre", "InputScale"]

#: Numbers that are in float64 at a time, when inputs are scaled and when the scale is fitted.
_SCALED_AT_ONCE = 1 << 19
_FITTED_AT_ONCE = 1 << 24
#: The share of its mean by which a feature varies at least, if it is more than rounding: 1e-6 for what comes in float32.
_RESOLUTION = {torch.float64: 1e-13}
#: A column is constant if it varies by no more than this many times the rounding of its values.
_ROUNDINGS = 8
#: A column whose range is less than this share of the spread that it is divided by tells a model nothing.
_LEAST_RANGE = 1 / 1024
_log = logging.getLogger("cldnet")


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
    >>> grey = InputScale((28, 28))
    >>> grey.set(mean=[33.25], spread=[78.5])
    >>> grey(torch.full((1, 28, 28), 190.25))[0, 0, 0]
    tensor(2.)
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
        size = min(4096, _rows(x, _FITTED_AT_ONCE))
        mean, variance, reach = (torch.zeros_like(self.mean) for _ in range(3))
        for block, part in zip(x.split(size), share.split(size), strict=True):
            mean += _float64(block).mul_(part).sum(dims, keepdim=True)[0]
        for block, part in zip(x.split(size), share.split(size), strict=True):
            apart = _float64(block).sub_(mean).abs_()
            reach = torch.maximum(reach, apart.amax(dims, keepdim=True)[0])
            variance += apart.square_().mul_(part).sum(dims, keepdim=True)[0]
        deviation, least = variance.sqrt(), _RESOLUTION.get(x.dtype, 1e-6) * mean.abs()
        if bool(((deviation == 0) & (reach > least) & (reach < 1e-100)).any()):
            raise ValueError(
                "Some features of X vary by less than 1e-150, which is too little to reckon with: multiply X by a large number."
            )
        varies = deviation > least
        common = deviation[varies].square().mean().sqrt() if varies.any() else deviation.new_ones(())
        # What never varied may be a huge number, which is not known to within the common spread.
        spread = _rounded(torch.where(varies, deviation, torch.maximum(common, 1e-6 * mean.abs())))
        _check_told_apart(x, dims, mean, spread, varies)
        self.mean.copy_(_rounded_within(mean, spread))
        self.spread.copy_(spread)
        self.fitted.fill_(True)

    def set(self, mean: Sequence[float], spread: Sequence[float]) -> None:
        """Take mean and spread as given, in the units of the inputs (0 to 255 for bytes), instead of fitting them.

        There is one of each a channel for images, one a feature for vectors.
        """
        for name, numbers in (("mean", mean), ("spread", spread)):
            if len(numbers) != self.mean.numel():
                raise ValueError(
                    f"There are {len(numbers)} numbers in {name} for inputs that have {self.mean.numel()} "
                    "channels or features: give one for each."
                )
            if not all(isfinite(number) for number in numbers):
                raise ValueError(f"{name}={numbers!r} should be finite numbers, in the units of the inputs.")
        if not all(number > 0 for number in spread):
            raise ValueError(f"spread={spread!r} should be positive: inputs are divided by it.")
        self.mean.copy_(self.mean.new_tensor(mean).reshape(self.mean.shape))
        self.spread.copy_(self.spread.new_tensor(spread).reshape(self.spread.shape))
        self.fitted.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """Scale inputs ``(n, …)`` of any number type; those that were scaled beforehand are copied."""
        if not self.mean.any() and bool((self.spread == 1).all()):
            return x.to(self.dtype, copy=True)
        size = _rows(x, _SCALED_AT_ONCE)
        if len(x) <= size:
            return self.scaled(x).to(self.dtype)
        scaled = torch.empty(x.shape, dtype=self.dtype, device=x.device)
        for first in range(0, len(x), size):
            scaled[first : first + size] = self.scaled(x[first : first + size])
        return scaled

    def scaled(self, x: Tensor) -> Tensor:
        """Scale inputs in float64, all at once."""
        return _float64(x).sub_(self.mean).div_(self.spread)


def _check_told_apart(x: Tensor, dims: list[int], mean: Tensor, spread: Tensor, varies: Tensor) -> None:
    """Refuse inputs that vary, but by too little for their distance from zero to survive scaling; log it for single columns."""
    if len(x) < 2 or bool((varies | (mean == 0)).all() & varies.any()):
        return
    span = (x.amax(dims, keepdim=True).double() - x.amin(dims, keepdim=True).double())[0]
    rounding = torch.finfo(x.dtype if x.is_floating_point() else torch.float32).eps * mean.abs()
    told = varies | (span >= _LEAST_RANGE * spread)
    lost = ~told & (span > _ROUNDINGS * rounding)
    if bool(lost.any()):
        first, others = int(lost.flatten().nonzero()[0]), int(lost.sum()) - 1
        what = (
            f"{'Column' if x.ndim == 2 else 'Channel'} {first} of X{f', and {others} more,' if others else ''} varies by "
            f"{span.flatten()[first]:.3g} around {mean.flatten()[first]:.3g}, which is too little to tell its values apart: "
            "subtract an offset first, for example X - X[0]."
        )
        if not told.any():
            raise ValueError(what)
        _log.warning("%s It is taken as constant.", what)
    elif not told.any():
        _log.warning(
            "X does not vary, so nothing in it tells classes apart. If its values were different once, numbers of their size "
            "could not hold the difference: subtract an offset from X where it is made."
        )


def _float64(x: Tensor) -> Tensor:
    """Copy inputs, so that what comes next can be done in place: making room anew for each step takes longer than the sums."""
    return x.to(torch.float64, copy=True)


def _rounded(numbers: Tensor) -> Tensor:
    """Numbers with as many digits as float32 has, so that the order in which rows were added up leaves no trace."""
    mantissa, exponent = torch.frexp(numbers)
    power: Tensor = torch.pow(numbers.new_tensor(2.0), exponent)
    return mantissa.mul(1 << 24).round().div(1 << 24) * power


def _rounded_within(mean: Tensor, spread: Tensor) -> Tensor:
    """A mean rounded as the spread is, or to a small part of the spread where that is less than float32 can tell."""
    rounded = _rounded(mean)
    step: Tensor = torch.pow(spread.new_tensor(2.0), torch.frexp(spread).exponent - 8)
    return torch.where((rounded - mean).abs() > 0.01 * spread, (mean / step).round() * step, rounded)


def _rows(x: Tensor, numbers: int) -> int:
    """Rows of inputs that have about so many numbers, at least one."""
    return max(1, numbers // max(1, prod(x.shape[1:])))


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
        """Return a copy of the inputs: a net may write over what it takes, and the data are somebody else's."""
        return x.clone()


class AsFloats(AsTheyAre):
    """No scaling but floats, for nets that do their own in front of layers that learn: gradients are of floats.

    Examples
    --------
    >>> AsFloats(torch.float32)(torch.tensor([3]))
    tensor([3.])
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        """Return a copy of the inputs in floats."""
        return x.to(self.dtype, copy=True)
