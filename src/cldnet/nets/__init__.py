"""Things that map inputs to vectors, and tell which of their layers can be projected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from cldnet.device import generator
from cldnet.nets.cnn import CNN
from cldnet.nets.features import FeatureMap, RandomReLU
from cldnet.nets.mlp import MLP

__all__ = [
    "BACKBONES",
    "CNN",
    "MLP",
    "FeatureMap",
    "RandomReLU",
    "auto_backbone",
    "build_backbone",
    "may_draw",
    "out_features",
]

_Stochastic = nn.modules.dropout._DropoutNd | nn.RReLU | nn.MultiheadAttention | nn.RNNBase
#: What each name of a backbone means.
BACKBONES: Mapping[str, str] = {
    "mlp": "two hidden layers of 400 ReLU units, the paper's net for MNIST and FashionMNIST",
    "cnn": "three convolutions and two hidden layers, the net of the OWM and AOP papers for CIFAR-10",
    "random-relu": "1,000 fixed random ReLU features in 8 bits, for the exact solver",
}


def auto_backbone(input_shape: tuple[int, ...]) -> str:
    """Name the trainable backbone that fits inputs of a shape: a CNN for images with channels, else an MLP.

    Examples
    --------
    >>> auto_backbone((64,)), auto_backbone((28, 28)), auto_backbone((3, 32, 32))
    ('mlp', 'mlp', 'cnn')
    """
    return "cnn" if len(input_shape) == 3 and min(input_shape[1:]) >= 16 else "mlp"


def may_draw(module: nn.Module) -> bool:
    """Tell whether a module may draw from torch's global generators: dropout does, code that we do not know might.

    Examples
    --------
    >>> may_draw(nn.Sequential(nn.Linear(2, 2), nn.ReLU())), may_draw(nn.Dropout())
    (False, True)
    """
    return any(
        isinstance(part, _Stochastic) or not type(part).__module__.startswith(("torch.nn.", "cldnet."))
        for part in module.modules()
    )


def build_backbone(
    name: str, input_shape: tuple[int, ...], seed: int, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """Make a backbone by name for inputs of a shape, with weights from a seed.

    Examples
    --------
    >>> build_backbone("mlp", (8, 8), seed=0, options={"widths": (16,)})(torch.zeros(3, 8, 8)).shape
    torch.Size([3, 16])
    """
    options = dict(options or {})
    if name == "mlp":
        return MLP(input_shape, generator=generator(seed), **options)
    if name == "cnn":
        return CNN(input_shape, generator=generator(seed), **options)
    if name == "random-relu":
        return RandomReLU(input_shape, seed=seed, **options)
    raise ValueError(f"backbone={name!r} is not known; use one of {sorted(BACKBONES)}, or a torch.nn.Module.")


def out_features(net: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Count the features that a net gives for one input, by trying it on zeros.

    Examples
    --------
    >>> out_features(nn.Flatten(), (2, 3))
    6
    """
    training = net.training
    net.eval()
    try:
        with torch.no_grad():
            features = net(next(net.parameters(), torch.zeros(())).new_zeros(1, *input_shape))
    finally:
        net.train(training)
    if features.ndim != 2:
        raise ValueError(
            f"The backbone gives an output of shape {tuple(features.shape)} for one input; "
            "it should give one vector a row, shape (n, features). End it with a pooling layer or nn.Flatten()."
        )
    return int(features.shape[1])
