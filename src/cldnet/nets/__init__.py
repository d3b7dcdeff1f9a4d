"""Backbones: nets that learn, fixed feature maps and frozen pretrained nets, by name or from a description in a file."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import nn

from cldnet.device import generator
from cldnet.nets.clipped import Clipped
from cldnet.nets.features import Described, FeatureMap, Linear, RandomFourier, RandomReLU
from cldnet.nets.fingerprint import evaluating
from cldnet.nets.frozen import EFFICIENT, Expanded, ExpandedNet, FrozenNet, described_options
from cldnet.nets.hashed import Hashed
from cldnet.nets.layers import CNN, MLP
from cldnet.nets.lenet import LeNet
from cldnet.nets.patches import WhitenedPatches
from cldnet.nets.resnet import ResNet
from cldnet.nets.sentences import MINILM
from cldnet.text import nearest_names

__all__ = [
    "BACKBONES",
    "CNN",
    "FEATURE_MAPS",
    "FROZEN",
    "MLP",
    "PRETRAINED",
    "TEXT",
    "Clipped",
    "Described",
    "Expanded",
    "ExpandedNet",
    "FeatureMap",
    "FrozenNet",
    "Hashed",
    "LeNet",
    "Linear",
    "RandomFourier",
    "RandomReLU",
    "ResNet",
    "WhitenedPatches",
    "auto_backbone",
    "backbone_defaults",
    "build_backbone",
    "build_described",
    "is_described",
    "out_features",
    "takes_text",
]

#: Backbones by name, with what each is.
BACKBONES: Mapping[str, str] = {
    "mlp": "two hidden layers of 400 ReLU units, the paper's net for MNIST and FashionMNIST",
    "cnn": "three convolutions and two hidden layers, the net of the OWM and AOP papers for CIFAR-10",
    "lenet": "two 5×5 convolutions and two hidden layers, the net of APD's and other papers on growing nets; images only",
    "resnet": "ResNet-18 for small images; width=64 is the full net, width=20 the slim one of GEM",
    "random-relu": "1,000 fixed random ReLU features in 8 bits, for the exact solver",
    "random-fourier": "1,000 fixed random Fourier features in 8 bits, a Gaussian kernel, for the exact solver",
    "linear": "the scaled inputs themselves in 8 bits, for the exact solver",
    "hashed": "the inputs as whole numbers with one scale, for the exact solver; the default for wide sparse inputs",
    "patches": "whitened patches: filters from the first task's images, for the exact solver; images only",
    "efficientnet-lite0": "a net pretrained on ImageNet, frozen; for the exact solver with 4,000 random ReLU features; photos",
    "efficientnet-lite1": "the same with a larger net",
    "efficientnet-lite2": "the same with a still larger net",
    "minilm": "all-MiniLM-L6-v2, frozen; for the exact solver with 4,000 random Fourier features; English sentences",
    "expanded": "frozen nets of your choice with random features, for the exact solver; see docs/photos.md and docs/text.md",
    "frozen": "frozen nets of your choice, for methods that train what comes behind them",
}
#: The class of each kind of feature map.
FEATURE_MAPS: Mapping[str, type[Any]] = {
    made.kind: made for made in (RandomReLU, RandomFourier, Linear, Hashed, WhitenedPatches, ExpandedNet, Expanded)
}
_NETS: Mapping[str, type[Any]] = {**FEATURE_MAPS, FrozenNet.kind: FrozenNet}
_DESCRIBED: Mapping[str, type[Any]] = {**_NETS, Clipped.kind: Clipped}
#: Names of maps over pretrained nets, with their options.
PRETRAINED: Mapping[str, dict[str, Any]] = {name: {"version": version} for name, version in EFFICIENT.items()}
#: Names of maps over pretrained nets for sentences, with their options.
TEXT: Mapping[str, dict[str, Any]] = {MINILM: {"bodies": [MINILM]}}
#: The same nets for methods that train layers behind them.
FROZEN: Mapping[str, dict[str, Any]] = {f"{FrozenNet.kind}-{name}": {"bodies": [name]} for name in (*EFFICIENT, *TEXT)}
_NAMED: Mapping[str, tuple[type[Any], Mapping[str, Any]]] = {
    "mlp": (MLP, {}),
    "cnn": (CNN, {}),
    "lenet": (LeNet, {}),
    "resnet": (ResNet, {}),
    **{kind: (made, {}) for kind, made in _NETS.items()},
    **{name: (ExpandedNet, fixed) for name, fixed in PRETRAINED.items()},
    **{name: (Expanded, fixed) for name, fixed in TEXT.items()},
    **{name: (FrozenNet, fixed) for name, fixed in FROZEN.items()},
}
_NOT_OPTIONS = {"self", "input_shape", "seed", "net", "generator"}


def auto_backbone(input_shape: tuple[int, ...]) -> str:
    """Name of the trainable backbone for inputs of a shape: a CNN for images with channels, else an MLP."""
    return "cnn" if len(input_shape) == 3 and min(input_shape[1:]) >= 16 else "mlp"


def build_backbone(
    name: str, input_shape: tuple[int, ...], seed: int, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build a backbone by name for inputs of a shape, with weights from a seed.

    Examples
    --------
    >>> build_backbone("mlp", (8, 8), seed=0, options={"widths": (16,)})(torch.zeros(3, 8, 8)).shape
    torch.Size([3, 16])
    """
    if name not in _NAMED:
        raise ValueError(f"Unknown backbone {name!r}. Use one of {sorted(BACKBONES)}, or a torch.nn.Module.")
    made, fixed = _NAMED[name]
    source = {"generator": generator(seed)} if made in (MLP, CNN, LeNet, ResNet) else {"seed": seed}
    net: nn.Module = made(input_shape, **source, **fixed, **(options or {}))
    return net


def backbone_defaults(name: str) -> dict[str, Any]:
    """Options of a backbone by name, with their defaults."""
    if name not in _NAMED:
        raise ValueError(f"There is no backbone {name!r}. {nearest_names(name, BACKBONES)}")
    made, fixed = _NAMED[name]
    parameters = signature(made.__init__).parameters.values()
    return {each.name: each.default for each in parameters if each.name not in {*_NOT_OPTIONS, *fixed}}


def takes_text(backbone: str | nn.Module) -> bool:
    """Whether a backbone, by name or as a module, takes sentences.

    Examples
    --------
    >>> takes_text("minilm"), takes_text("mlp")
    (True, False)
    """
    if isinstance(backbone, str):
        return backbone.removeprefix(f"{FrozenNet.kind}-") in TEXT
    return bool(getattr(backbone, "takes_text", False))


def out_features(net: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Number of features that a net returns for one input: its own attribute if it is ours, else by running it on zeros."""
    if isinstance(net, Described) and is_described(net):
        return net.out_features
    with evaluating(net):
        features = net(next(net.parameters(), torch.zeros(())).new_zeros(1, *input_shape))
    if features.ndim != 2:
        raise ValueError(
            f"The backbone returns shape {tuple(features.shape)} for one input; expected (n, features). "
            "End it with a pooling layer or nn.Flatten()."
        )
    return int(features.shape[1])


def is_described(net: nn.Module) -> bool:
    """Whether a net's description and tensors determine it, unlike a module whose code only its user has."""
    if isinstance(net, Clipped) and not is_described(net.features):
        return False
    # A user's subclass has its parent's kind but other code.
    return isinstance(net, Described) and _DESCRIBED.get(net.kind) is type(net) and getattr(net, "net", None) is None


def build_described(description: Any) -> Described:
    """Build an empty net from what `Described.describe` returned, as untrusted input.

    Under ``torch.device("meta")`` it takes no memory, so that sizes can be compared first.
    """
    if not isinstance(description, Mapping) or not {"kind", "input_shape", "options"} <= {*description}:
        raise ValueError("The description of a feature map should have kind, input_shape and options.")
    kind, shape, options = (description[name] for name in ("kind", "input_shape", "options"))
    if not isinstance(kind, str) or kind not in _DESCRIBED:
        raise ValueError(f"There is no kind of feature map {kind!r}. {nearest_names(str(kind), _DESCRIBED)}")
    made = _DESCRIBED[kind]
    sizes = list(shape) if isinstance(shape, list | tuple) else []
    if not 1 <= len(sizes) <= 3 or not all(type(size) is int and size >= 1 for size in sizes):
        raise ValueError(f"A feature map has input_shape={shape!r}; expected one to three positive whole numbers.")
    allowed = {*signature(made.__init__).parameters} - _NOT_OPTIONS
    if not isinstance(options, Mapping) or not {*options} <= allowed:
        raise ValueError(f"A {kind} map has options {options!r:.200}; known are {', '.join(sorted(allowed))}.")
    if made is Clipped:
        return _build_clipped(sizes, options)
    seed = description.get("seed", 0)
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise ValueError(f"A feature map has seed={seed!r}; expected a whole number from 0 on.")
    try:
        built: Described = made(tuple(sizes), seed=seed, **described_options(options))
    except (TypeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise ValueError(f"Cannot build a {kind} map with options {dict(options)!r:.200} ({error!s:.200}).") from error
    return built


def _build_clipped(sizes: list[int], options: Mapping[str, Any]) -> Clipped:
    """Build a clipped map from its options, as untrusted input."""
    inner, norm = options.get("features"), options.get("norm")
    if not isinstance(inner, Mapping) or inner.get("kind") == Clipped.kind or not isinstance(norm, int | float):
        raise ValueError(
            f"A clipped map has options {dict(options)!r:.200}; expected the map that it clips, and a norm."
        )
    features = build_described(inner)
    if not isinstance(features, FeatureMap) or features.input_shape != tuple(sizes):
        raise ValueError(
            f"A clipped map for inputs of shape {tuple(sizes)} cannot clip a map like {dict(inner)!r:.200}."
        )
    return Clipped(features, norm)
