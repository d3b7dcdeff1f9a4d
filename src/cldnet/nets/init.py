"""Layers whose first weights come from a generator of ours instead of the global one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import skip_init

__all__ = ["conv2d", "linear"]


def linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Make a linear layer with He's initial weights (uniform) and a zero bias.

    Examples
    --------
    >>> linear(3, 2, torch.Generator().manual_seed(0)).weight.shape
    torch.Size([2, 3])
    """
    layer = skip_init(nn.Linear, inputs, outputs, bias=bias, device=_place())
    assert isinstance(layer, nn.Linear)
    _initialise(layer, generator)
    return layer


def conv2d(
    inputs: int,
    outputs: int,
    kernel_size: int,
    generator: torch.Generator,
    *,
    padding: int = 0,
    bias: bool = True,
) -> nn.Conv2d:
    """Make a convolution with He's initial weights; its padding repeats the border, as in the OWM paper's net.

    Examples
    --------
    >>> conv2d(3, 8, 2, torch.Generator().manual_seed(0), padding=1)(torch.zeros(1, 3, 4, 4)).shape
    torch.Size([1, 8, 5, 5])
    """
    layout = {"padding": padding, "bias": bias, "padding_mode": "replicate", "device": _place()}
    layer = skip_init(nn.Conv2d, inputs, outputs, kernel_size, **layout)
    assert isinstance(layer, nn.Conv2d)
    _initialise(layer, generator)
    return layer


def _place() -> str:
    """On the CPU, where the generator is; or nowhere, under ``torch.device("meta")``, where only sizes are asked for."""
    return "meta" if torch.get_default_device().type == "meta" else "cpu"


def _initialise(layer: nn.Linear | nn.Conv2d, generator: torch.Generator) -> None:
    if layer.weight.is_meta:
        return
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
