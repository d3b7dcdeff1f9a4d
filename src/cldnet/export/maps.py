"""Feature maps in a form that can be traced: whole batches, one product after the other, no threads and nothing in place.

Each computes what the map's own `asked` gives. Products of whole numbers in float64 are exact in any order, so random maps of
inputs as they are give the same bits; behind float32, as that of a net or of filters, the last digits may differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import pi

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets import Expanded, FeatureMap, FrozenNet, RandomFourier, RandomReLU, WhitenedPatches, is_described
from cldnet.nets.features import FEATURE_LIMIT, INPUT_LIMIT, INPUT_STEPS, WEIGHT_STEPS, RandomProjection, squeezed
from cldnet.nets.fourier import DIRECTIONS, cosines
from cldnet.nets.patch_parts import Bank, normalised, unfolded
from cldnet.nets.patches import SPREADS
from cldnet.nets.pretrained import Beside, Pretrained

__all__ = ["traceable", "traceable_net"]


def traceable(features: FeatureMap) -> nn.Module:
    """Give a fitted map in a form that can be traced, or say that it has none.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 3.0], [2.0, 1.0]])
    >>> made = RandomReLU((2,), features=50, seed=0)
    >>> made.fit(x)
    >>> torch.equal(traceable(made)(x), made(x).double())
    True
    """
    if isinstance(features, Expanded):
        return nn.Sequential(_vectors_of(features.body, features.input_shape), _Unrounded(features.expansion))
    if type(features) is RandomReLU and features.net is not None:
        return _Unrounded(features)
    if is_described(features):
        if isinstance(features, RandomReLU):
            return _ReLU(features)
        if isinstance(features, RandomFourier):
            return _Fourier(features)
        if isinstance(features, WhitenedPatches):
            return _Patches(features)
    raise ValueError(
        f"A model over {type(features).__name__} cannot be exported: only maps of the library's own can, and modules of yours "
        "that are given as backbone themselves."
    )


def traceable_net(net: nn.Module) -> nn.Module:
    """Give a net that was trained in a form that can be traced: as it is, unless frozen nets are in front of it."""
    return _Frozen(net) if isinstance(net, FrozenNet) else net


class _Frozen(nn.Module):
    """Vectors of frozen nets, brought to mean 0 and spread 1, and the layers that learned."""

    mean: Tensor
    spread: Tensor

    def __init__(self, net: FrozenNet) -> None:
        super().__init__()
        self.body, self.hidden = _vectors_of(net.body, net.input_shape), net.hidden
        self.register_buffer("mean", net.mean)
        self.register_buffer("spread", net.spread)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.hidden((self.body(x) - self.mean) / self.spread)
        return features


def _vectors_of(body: Pretrained | Beside, input_shape: tuple[int, ...]) -> nn.Module:
    """Give one pretrained net, or several beside each other, in a form that can be traced."""
    if isinstance(body, Beside):
        return _Beside(_Embedded(part, input_shape) for part in body.bodies)
    return _Embedded(body, input_shape)


class _Beside(nn.Module):
    """Vectors of several nets beside each other."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=1)


class _Embedded(nn.Module):
    """Images to the vectors of a pretrained net. Resizing is a linear map along each side, so it is two products here."""

    down: Tensor
    across: Tensor

    def __init__(self, body: Pretrained, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.body = body
        height, width = input_shape[-2:]
        sides, begins = body.preprocessing.cut(height, width)
        self.resizes = (height, width) != (body.size, body.size)
        if self.resizes:
            down, across = (
                _resizing(before, after, body.preprocessing.interpolation)[first : first + body.size]
                for before, after, first in zip((height, width), sides, begins, strict=True)
            )
            self.register_buffer("down", down)
            self.register_buffer("across", across.T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        images = x.unsqueeze(1) if x.ndim == 3 else x
        pixels = images.to(self.body.pixel_mean.dtype).expand(-1, 3, -1, -1)
        if self.resizes:
            pixels = (self.down @ (pixels @ self.across)).clamp(0, 255)
        return self.body.embedded(self.body.normalised(pixels))


def _resizing(before: int, after: int, how: str) -> Tensor:
    """The matrix, shape ``(after, before)``, that brings a column of pixels to another length."""
    column = torch.eye(before)[None, None]
    return F.interpolate(column, (after, before), mode=how, antialias=True)[0, 0]


class _Unrounded(nn.Module):
    """Random ReLU features of a net's vectors; a net of the user's own goes first, in the type of its weights."""

    def __init__(self, expansion: RandomReLU) -> None:
        super().__init__()
        self.expansion = expansion
        own = () if expansion.net is None else expansion.net.parameters()
        self.dtype = next((parameter.dtype for parameter in own), torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        net = self.expansion.net
        return self.expansion.unrounded(x if net is None else net(x.to(self.dtype)))


class _Projected(nn.Module):
    """Rounded inputs times whole weights, in float64."""

    weight: Tensor
    bias: Tensor

    def __init__(self, made: RandomProjection) -> None:
        super().__init__()
        self.scale = made.scale
        inputs = made.scale.mean.new_zeros(made.input_shape).numel()
        self.register_buffer("weight", made.weight[:, :inputs])
        self.register_buffer("bias", made.weight[:, inputs:].double().sum(1) * round(INPUT_STEPS))

    def project(self, x: Tensor) -> Tensor:
        rounded = squeezed(self.scale.scaled(x)).round().clamp(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)
        return rounded @ self.weight.double().T + self.bias


class _ReLU(_Projected):
    """Random ReLU features."""

    step: Tensor

    def __init__(self, made: RandomReLU) -> None:
        super().__init__(made)
        self.register_buffer("step", made.step)

    def forward(self, x: Tensor) -> Tensor:
        return _with_constant((self.project(x) * self.step).round().clamp(0, FEATURE_LIMIT))


class _Fourier(_Projected):
    """Random Fourier features: directions as whole numbers, and a table of their cosines."""

    phase: Tensor
    table: Tensor

    def __init__(self, made: RandomFourier) -> None:
        super().__init__(made)
        self.turn = DIRECTIONS / (2 * pi * INPUT_STEPS * WEIGHT_STEPS * float(made.bandwidth))
        self.register_buffer("phase", made.phase)
        self.register_buffer("table", cosines())

    def forward(self, x: Tensor) -> Tensor:
        index = ((self.project(x) * self.turn).round().to(torch.int64) + self.phase) & (DIRECTIONS - 1)
        return _with_constant(self.table[index].double())


class _Patches(nn.Module):
    """Whitened patches: responses of all places to all filters, pooled over windows."""

    floor: Tensor
    mean: Tensor
    factor: Tensor

    def __init__(self, made: WhitenedPatches) -> None:
        super().__init__()
        self.shape, self.size = (-1, made.channels, *made.input_shape[-2:]), made.size
        self.register_buffer("floor", made.floor)
        self.register_buffer("mean", made.mean)
        self.register_buffer("factor", FEATURE_LIMIT / SPREADS / made.spread)
        portions = made.portions()
        self.firsts = [bank.columns.start for bank in portions]
        self.banks = nn.ModuleList(_Bank(bank, made.threshold) for bank in portions)

    def forward(self, x: Tensor) -> Tensor:
        patches = normalised(unfolded(x.reshape(self.shape).float(), self.size), self.floor)
        sums: dict[int, Tensor] = {}
        for first, bank in zip(self.firsts, self.banks, strict=True):  # those of the mirror image are added
            pooled = bank(patches)
            sums[first] = sums[first] + pooled if first in sums else pooled
        responses = torch.cat(list(sums.values()), dim=3).flatten(1)
        scaled = (responses - self.mean) * self.factor
        return _with_constant(scaled.clamp(-FEATURE_LIMIT, FEATURE_LIMIT).double())


class _Bank(nn.Module):
    """Some of the filters, and the windows that their responses are pooled over."""

    filters: Tensor
    offset: Tensor
    windows: Tensor

    def __init__(self, bank: Bank, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.register_buffer("filters", bank.filters)
        self.register_buffer("offset", bank.offset)
        self.register_buffer("windows", torch.cat(bank.windows, dim=1))

    def forward(self, patches: Tensor) -> Tensor:
        responses = patches @ self.filters + self.offset
        sides = responses.clamp(min=self.threshold), responses.clamp(max=-self.threshold)
        return torch.stack([self.windows @ side for side in sides], dim=1)


def _with_constant(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_full((features.shape[0], 1), FEATURE_LIMIT)], dim=1)
