"""Small nets that learn, with initial weights from a given generator instead of the global one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init


def linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Build a linear layer with He's initial weights (uniform) and a zero bias."""
    layer: nn.Linear = _initialised(nn.Linear, inputs, outputs, generator=generator, bias=bias)
    return layer


def _initialised(kind: type[nn.Module], *sizes: int, generator: torch.Generator, **layout: Any) -> Any:
    """Build a layer with He's uniform weights and a zero bias; without memory if ``torch.device("meta")`` is active."""
    meta = torch.get_default_device().type == "meta"  # otherwise on the CPU, where the generator is
    layer: Any = skip_init(kind, *sizes, **layout, device="meta" if meta else "cpu")
    if not meta:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """Hidden ReLU layers over flattened inputs; the last one is the feature vector. The paper's net for MNIST."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        widths: Sequence[int] = (400, 400),
        *,
        generator: torch.Generator,
        bias: bool = True,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise([prod(input_shape), *widths]):
            layers += [linear(inputs, outputs, generator, bias=bias), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to features ``(n, widths[-1])``."""
        features: Tensor = self.layers(x)
        return features


class CNN(nn.Module):
    """Convolution, ReLU, dropout and max-pooling three times, then hidden ReLU layers; no biases anywhere.

    The defaults are OWM's (kernels of 2, hidden layers of 1,000); AOP has kernels of (4, 3, 2) and hidden layers of 1,024.
    Padding replicates the border, as in the OWM paper's net.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        channels: Sequence[int] = (64, 128, 256),
        kernel_sizes: Sequence[int] = (2, 2, 2),
        hidden: Sequence[int] = (1000, 1000),
        dropout: float = 0.2,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if len(input_shape) not in (2, 3):
            raise ValueError(f"The CNN needs images, (height, width) or (channels, height, width); got {input_shape}.")
        previous, height, width = (1, *input_shape) if len(input_shape) == 2 else input_shape
        layout: dict[str, Any] = {"padding": 1, "padding_mode": "replicate", "bias": False}
        layers: list[nn.Module] = []
        for count, kernel in zip(channels, kernel_sizes, strict=True):
            layers.append(_initialised(nn.Conv2d, previous, count, kernel, generator=generator, **layout))
            layers += [nn.ReLU(), nn.Dropout(dropout), nn.MaxPool2d(2)]
            previous, height, width = count, (height + 3 - kernel) // 2, (width + 3 - kernel) // 2
        if min(height, width) < 1:
            raise ValueError(
                f"Images of shape {input_shape} are too small for {len(channels)} convolutions. Use an MLP."
            )
        for inputs, outputs in itertools.pairwise([previous * height * width, *hidden]):
            layers += [nn.Flatten(), linear(inputs, outputs, generator, bias=False), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to features ``(n, hidden[-1])``."""
        x = x.unsqueeze(1) if x.ndim == 3 else x
        features: Tensor = self.layers(x.contiguous(memory_format=torch.channels_last))  # twice as fast on CPUs
        return features
