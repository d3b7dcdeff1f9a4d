"""A multi-layer perceptron: the paper's net for MNIST and FashionMNIST."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from cldnet.nets.init import linear

__all__ = ["MLP"]


class MLP(nn.Module):
    """Hidden ReLU layers over flattened inputs; the last hidden layer is the feature vector.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input, without the batch.
    widths : sequence of int
        Units of each hidden layer.
    generator : torch.Generator
        Source of the first weights.
    bias : bool
        Whether the layers have biases.

    Examples
    --------
    >>> net = MLP((28, 28), widths=(400, 400), generator=torch.Generator().manual_seed(0))
    >>> net(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 400])
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        widths: Sequence[int] = (400, 400),
        *,
        generator: torch.Generator,
        bias: bool = True,
    ) -> None:
        super().__init__()
        sizes = [prod(input_shape), *widths]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(sizes):
            layers += [linear(inputs, outputs, generator, bias=bias), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to features ``(n, widths[-1])``."""
        features: Tensor = self.layers(x)
        return features
