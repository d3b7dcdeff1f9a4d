"""ResNet-18 for images of 32×32 pixels: a 3×3 stem without pooling, and four stages of two blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

#: Fewer channels than this are laid out one after the other.
_NARROW = 4


def _convolution(inputs: int, outputs: int, kernel: int, stride: int, generator: torch.Generator) -> nn.Conv2d:
    layout: dict[str, Any] = {"stride": stride, "padding": kernel // 2, "bias": False, "device": "cpu"}
    layer: nn.Conv2d = skip_init(nn.Conv2d, inputs, outputs, kernel, **layout)
    # torch's own default, as GEM's and Mammoth's nets have it: behind BatchNorm the scale sets how far a step goes.
    nn.init.kaiming_uniform_(layer.weight, a=5**0.5, generator=generator)
    return layer


class Block(nn.Module):
    """Two 3×3 convolutions with BatchNorm beside a shortcut. It returns their sum *before* the ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1 = _convolution(inputs, outputs, 3, stride, generator)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _convolution(outputs, outputs, 3, 1, generator)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            projection = _convolution(inputs, outputs, 1, stride, generator)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, inputs, height, width)`` to ``(n, outputs, height/stride, width/stride)``."""
        inner = F.relu(self.bn1(self.conv1(x)))
        output: Tensor = self.bn2(self.conv2(inner)) + self.shortcut(x)
        return output


class ResNet(nn.Module):
    """ResNet-18 as continual learning uses it on CIFAR.

    ``width`` is the number of channels of the first stage: 64 for the full net (11.2 million weights), 20 for the "slim" one of
    GEM (1.1 million).

    References
    ----------
    K. He et al., "Deep Residual Learning for Image Recognition", CVPR 2016. https://arxiv.org/abs/1512.03385

    D. Lopez-Paz, M. Ranzato, "Gradient Episodic Memory for Continual Learning", NeurIPS 2017.
    https://arxiv.org/abs/1706.08840
    """

    #: Modules whose outputs are the net's stages, before the ReLU; see `cldnet.nets.hooks.watch_stages`.
    stages = ("bn", "layer1.2", "layer2.2", "layer3.2", "layer4.2")

    def __init__(self, input_shape: tuple[int, ...], width: int = 64, *, generator: torch.Generator) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3):
            raise ValueError(
                f"The ResNet needs images, (height, width) or (channels, height, width); got {input_shape}."
            )
        if type(width) is not int or width < 1:
            raise ValueError(f"width={width!r} should be a whole number of at least 1.")
        self.conv = _convolution(input_shape[0] if len(input_shape) == 3 else 1, width, 3, 1, generator)
        self.bn = nn.BatchNorm2d(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for number, (inputs, outputs) in enumerate(itertools.pairwise(widths), start=1):
            first = Block(inputs, outputs, 1 if number == 1 else 2, generator)
            self.add_module(f"layer{number}", nn.Sequential(first, nn.ReLU(), Block(outputs, outputs, 1, generator)))

    def forward(self, x: Tensor) -> Tensor:
        """Map images to features ``(n, 8 · width)``."""
        x = x.unsqueeze(1) if x.ndim == 3 else x
        # A third faster on CPUs. With two channels, torch 2.13's derivatives corrupt memory on machines without AVX-512.
        narrow = self.conv.out_channels < _NARROW
        x = x.contiguous(memory_format=torch.contiguous_format if narrow else torch.channels_last)
        x = F.relu(self.bn(self.conv(x)))
        for number in range(1, 5):
            x = F.relu(self.get_submodule(f"layer{number}")(x))
        return x.mean((2, 3))


@contextmanager
def frozen_statistics(net: nn.Module) -> Iterator[None]:
    """Leave the running statistics of BatchNorm as they are while the block runs; batches are normalised by their own."""
    normalising = [part for part in net.modules() if getattr(part, "track_running_stats", False) and part.training]
    try:
        for part in normalising:
            part.track_running_stats = False  # type: ignore[assignment]
        yield
    finally:
        for part in normalising:
            part.track_running_stats = True  # type: ignore[assignment]
