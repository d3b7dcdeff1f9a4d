"""Nets as chains of weighted layers, for methods that widen them or compute with other weights than the layers' own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets.layers import CNN, MLP, _initialised, linear
from cldnet.nets.lenet import LeNet

Weighted = nn.Linear | nn.Conv2d


@dataclass(frozen=True)
class Stage:
    """A weighted layer, what comes before it (flattening), and what follows it (ReLU, normalisation, pooling).

    What comes before and after has no weights and works for any number of units.
    """

    layer: Weighted
    before: nn.Sequential
    after: nn.Sequential

    def weigh(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Outputs of the layer for its inputs, with the given weight and bias."""
        x = self.before(x)
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, weight, bias)
        x = x.unsqueeze(1) if x.ndim == 3 else x  # images without channels have one
        maps: Tensor = self.layer._conv_forward(x, weight, bias)
        return maps


def stages(net: nn.Module) -> list[Stage]:
    """Split an MLP, a CNN or a LeNet into its stages.

    Examples
    --------
    >>> import torch
    >>> net = MLP((6,), widths=(4, 3), generator=torch.Generator())
    >>> [tuple(stage.layer.weight.shape) for stage in stages(net)]
    [(4, 6), (3, 4)]
    """
    if not isinstance(net, MLP | CNN | LeNet):
        raise ValueError(
            f"This method needs a net that is a chain of layers, which a {type(net).__name__} is not: use the backbone 'mlp', "
            "'cnn' or 'lenet'."
        )
    found: list[Stage] = []
    before: list[nn.Module] = []
    for module in net.layers:
        if isinstance(module, Weighted):
            found.append(Stage(module, nn.Sequential(*before), nn.Sequential()))
            before = []
        elif isinstance(module, nn.Flatten) or not found:
            before.append(module)
        else:
            found[-1].after.append(module)
    return found


def resized(layer: Weighted, inputs: int, outputs: int, generator: torch.Generator) -> Weighted:
    """Build a layer like another one, with other numbers of inputs and outputs, and with He's initial weights.

    Examples
    --------
    >>> like = torch.nn.Conv2d(3, 20, 5, padding=2, bias=False)
    >>> resized(like, 8, 4, torch.Generator())
    Conv2d(8, 4, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2), bias=False)
    """
    bias = layer.bias is not None
    if isinstance(layer, nn.Linear):
        return linear(inputs, outputs, generator, bias=bias)
    names = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
    layout = {name: getattr(layer, name) for name in names}
    made: nn.Conv2d = _initialised(nn.Conv2d, inputs, outputs, generator=generator, bias=bias, **layout)
    return made
