"""The LeNet of APD and other papers on growing nets: two convolutions and two hidden layers for images such as CIFAR's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets.layers import _initialised, linear


class ChannelNorm(nn.Module):
    """Local response normalisation ``x / (1 + α/9 Σ x²)^¾`` over nine neighbouring channels, with ``α = 0.001``.

    It equals ``torch.nn.LocalResponseNorm(9, alpha=1e-3)``, which takes more time than all convolutions of this net.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise maps ``(n, channels, height, width)``."""
        number = torch.arange(x.shape[1], device=x.device)
        near = ((number[:, None] - number).abs() <= 4).to(x.dtype) * (1e-3 / 9)
        # torch 2.13 spoils memory in the derivative of a 1×1 convolution of few channels-last maps on some CPUs.
        squares = x.square() if len(number) >= 4 else x.square().contiguous()
        inverse_root = (1 + F.conv2d(squares, near[:, :, None, None])).rsqrt()
        return x * (inverse_root * inverse_root.sqrt())


class LeNet(nn.Module):
    """Two 5×5 convolutions, each with ReLU, local response normalisation and pooling, then hidden ReLU layers.

    Over images of 32×32 pixels it has 3.0 million weights: 3,200 numbers reach the hidden layers of 800 and 500 units.

    References
    ----------
    J. Yoon, S. Kim, E. Yang, S. J. Hwang, "Scalable and Order-robust Continual Learning with Additive Parameter Decomposition",
    ICLR 2020. https://arxiv.org/abs/1902.09432

    Examples
    --------
    >>> net = LeNet((3, 32, 32), generator=torch.Generator())
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 500])
    """

    #: Modules whose outputs are the net's stages, before the ReLU; see `cldnet.nets.hooks.watch_stages`.
    stages = ("layers.0", "layers.4", "layers.9", "layers.11")

    def __init__(
        self,
        input_shape: tuple[int, ...],
        channels: Sequence[int] = (20, 50),
        hidden: Sequence[int] = (800, 500),
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3):
            raise ValueError(
                f"The LeNet needs images, (height, width) or (channels, height, width); got {input_shape}."
            )
        if len(channels) != 2 or len(hidden) != 2:
            raise ValueError(f"The LeNet takes two channels and two hidden widths, not {channels!r} and {hidden!r}.")
        previous, height, width = (1, *input_shape) if len(input_shape) == 2 else input_shape
        layers: list[nn.Module] = []
        for count in channels:
            layers.append(_initialised(nn.Conv2d, previous, count, 5, generator=generator, padding=2))
            # ceil_mode pads even sides at the end, as TensorFlow's "SAME" does.
            layers += [nn.ReLU(), ChannelNorm(), nn.MaxPool2d(3, 2, ceil_mode=True)]
            previous, height, width = count, height // 2, width // 2
        if min(input_shape[-2:]) < 5:
            raise ValueError(f"Images of shape {input_shape} are too small for a LeNet. Use an MLP.")
        layers.append(nn.Flatten())
        for inputs, outputs in itertools.pairwise([previous * height * width, *hidden]):
            layers += [linear(inputs, outputs, generator), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to features ``(n, hidden[-1])``."""
        features: Tensor = self.layers(x.unsqueeze(1) if x.ndim == 3 else x)
        return features
