"""The small convolutional net of the OWM and AOP papers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cldnet.nets.init import conv2d, linear

__all__ = ["CNN"]


class CNN(nn.Module):
    """Convolution, ReLU, dropout and max-pooling three times, then hidden ReLU layers; no biases anywhere.

    The defaults are OWM's (kernels of 2, hidden layers of 1,000); AOP has kernels of (4, 3, 2) and hidden layers of 1,024.

    Parameters
    ----------
    input_shape : tuple of int
        ``(height, width)`` or ``(channels, height, width)``.
    channels, kernel_sizes : sequence of int
        One entry a convolution.
    hidden : sequence of int
        Units of the layers behind the convolutions.
    dropout : float
        Share of activations dropped behind each convolution in training.
    generator : torch.Generator
        Source of the first weights.

    Examples
    --------
    >>> net = CNN((3, 32, 32), hidden=(64,), generator=torch.Generator().manual_seed(0)).eval()
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
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
            raise ValueError(f"The CNN takes images, (height, width) or (channels, height, width); got {input_shape}.")
        previous, height, width = (1, *input_shape) if len(input_shape) == 2 else input_shape
        convolutions: list[nn.Module] = []
        for count, kernel in zip(channels, kernel_sizes, strict=True):
            convolutions += [
                conv2d(previous, count, kernel, generator, padding=1, bias=False),
                nn.ReLU(),
                nn.Dropout(dropout),
                nn.MaxPool2d(2),
            ]
            previous, height, width = count, (height + 3 - kernel) // 2, (width + 3 - kernel) // 2
        if min(height, width) < 1:
            raise ValueError(
                f"Images of shape {input_shape} are too small for {len(channels)} convolutions; use an MLP."
            )
        sizes = [previous * height * width, *hidden]
        for inputs, outputs in itertools.pairwise(sizes):
            convolutions += [nn.Flatten(), linear(inputs, outputs, generator, bias=False), nn.ReLU()]
        self.layers = nn.Sequential(*convolutions)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to features ``(n, hidden[-1])``."""
        features: Tensor = self.layers(x.unsqueeze(1) if x.ndim == 3 else x)
        return features
