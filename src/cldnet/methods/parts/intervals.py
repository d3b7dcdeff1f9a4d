"""Interval arithmetic through a net: between which bounds its outputs lie while every weight moves within its own interval.

Weights are ``centre ± radius``. Inputs of a layer are an interval too, but for those of the first, which are a point. The
bounds hold for all weights in the box at once; they are sharp for one layer, and only safe for several, since a weight may
be at its lower end in the bound of one unit and at its upper end in that of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets import CNN, MLP

__all__ = ["Interval", "bounds", "known_layers", "worst_case"]

#: A product of inputs with a weight, linear in both: a linear layer or a convolution without its bias.
Product = Callable[[Tensor, Tensor], Tensor]

_WEIGHTED = (nn.Linear, nn.Conv2d)
#: Layers that never reverse an order, so the bounds of what they give are what they give for the bounds.
_MONOTONE = (nn.ReLU, nn.MaxPool2d, nn.Flatten)
#: Layers that do nothing outside of training. Bounds are those of the net as it answers.
_IDLE = (nn.Dropout, nn.Dropout2d, nn.Identity)
_KNOWN = (*_WEIGHTED, *_MONOTONE, *_IDLE)


@dataclass(frozen=True)
class Interval:
    """All numbers from ``lower`` to ``upper``, entry by entry.

    Attributes
    ----------
    lower, upper : Tensor
        Of the same shape; one and the same tensor for a point.
    positive : bool
        Whether it is known that no number is below zero, as behind a ReLU.
    """

    lower: Tensor
    upper: Tensor
    positive: bool = False

    @classmethod
    def around(cls, centre: Tensor, radius: Tensor) -> Interval:
        """Give ``centre ± radius``."""
        return cls(centre - radius, centre + radius)

    @property
    def is_point(self) -> bool:
        """Whether the interval was made as a single point."""
        return self.lower is self.upper

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.lower - other.upper, self.upper - other.lower)


def known_layers(net: nn.Module) -> list[nn.Module]:
    """List the layers of a net in the order in which they run, or say which of them has no known intervals.

    Parameters
    ----------
    net : nn.Module
        An MLP, a CNN, or an `nn.Sequential` of layers, nested as deep as you like.

    Examples
    --------
    >>> [type(layer).__name__ for layer in known_layers(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU())))]
    ['Linear', 'ReLU']
    >>> known_layers(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    Traceback (most recent call last):
    ...
    ValueError: The intervals of BatchNorm1d are not known: use an nn.Sequential of Linear, Conv2d, ReLU, MaxPool2d, ...
    """
    if type(net) in (MLP, CNN):
        return known_layers(net.layers)  # type: ignore[arg-type]
    if type(net) is nn.Sequential:
        return [layer for part in net for layer in known_layers(part)]
    if type(net) not in _KNOWN:
        names = ", ".join(layer.__name__ for layer in _KNOWN)
        raise ValueError(
            f"The intervals of {type(net).__name__} are not known: use an nn.Sequential of {names}, or backbone 'mlp' or "
            "'cnn'."
        )
    return [net]


def bounds(layers: Sequence[nn.Module], x: Tensor, radii: Mapping[Tensor, Tensor]) -> Interval:
    """Send inputs through layers whose weights may move within their intervals.

    Parameters
    ----------
    layers : sequence of nn.Module
        As `known_layers` lists them. Their parameters are the centres.
    x : Tensor, shape (n, …)
        Inputs, which are points.
    radii : mapping of Tensor to Tensor
        The radius of every parameter, by the parameter itself.

    Returns
    -------
    Interval
        Bounds of the outputs.

    Examples
    --------
    One weight of 2 ± 0.5 and a bias of 0 ± 0.25: at 3 the output lies within 6 ± 1.75.

    >>> import torch
    >>> layer = nn.Linear(1, 1).requires_grad_(False)
    >>> _ = layer.weight.fill_(2.0), layer.bias.zero_()
    >>> found = bounds([layer], torch.tensor([[3.0]]), {layer.weight: torch.tensor([[0.5]]), layer.bias: torch.tensor([0.25])})
    >>> found.lower, found.upper
    (tensor([[4.2500]]), tensor([[7.7500]]))
    """
    inside = Interval(x, x)
    for layer in layers:
        if isinstance(layer, _WEIGHTED):
            inside = _weighted(layer, inside, radii)
        elif isinstance(layer, _MONOTONE):
            positive = inside.positive or isinstance(layer, nn.ReLU)
            lower = layer(inside.lower)
            inside = Interval(lower, lower if inside.is_point else layer(inside.upper), positive)
    return inside


def worst_case(logits: Interval, y: Tensor) -> Tensor:
    """Give the logits of the worst net in the box: the lower bound for the right class, the upper ones for all others.

    Examples
    --------
    >>> import torch
    >>> worst_case(Interval(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])), torch.tensor([1]))
    tensor([[3., 2.]])
    """
    return logits.upper.scatter(1, y[:, None], logits.lower.gather(1, y[:, None]))


def _weighted(layer: nn.Linear | nn.Conv2d, x: Interval, radii: Mapping[Tensor, Tensor]) -> Interval:
    """Bounds of a layer with weights, ``w x + b``."""
    product: Product = F.linear
    if isinstance(layer, nn.Conv2d):
        if x.lower.ndim == 3:  # grey images without a channel, which the CNN takes too
            lower = x.lower.unsqueeze(1)
            x = Interval(lower, lower if x.is_point else x.upper.unsqueeze(1), x.positive)
        convolve = layer._conv_forward  # knows stride, groups and the kind of padding
        product = lambda x, weight: convolve(x, weight, None)  # noqa: E731
    found = _products(product, x, layer.weight, radii[layer.weight])
    if layer.bias is None:
        return found
    bias = layer.bias if isinstance(layer, nn.Linear) else layer.bias[:, None, None]
    return found + Interval.around(bias, radii[layer.bias].reshape(bias.shape))


def _products(product: Product, x: Interval, centre: Tensor, radius: Tensor) -> Interval:
    """Bounds of ``w x``."""
    if x.is_point:  # w x lies within c x ± r |x|
        return Interval.around(product(x.lower, centre), product(x.lower.abs(), radius))
    weight = Interval.around(centre, radius)
    if x.positive:
        return _positive_products(product, x, weight)
    # x = x⁺ − x⁻, each of them positive.
    above = Interval(x.lower.clamp_min(0), x.upper.clamp_min(0))
    below = Interval((-x.upper).clamp_min(0), (-x.lower).clamp_min(0))
    return _positive_products(product, above, weight) - _positive_products(product, below, weight)


def _positive_products(product: Product, x: Interval, weight: Interval) -> Interval:
    """Bounds of ``w x`` where no ``x`` is negative: the least has the least ``w``, and of it ``x`` the least if ``w > 0``."""
    lower, upper = weight.lower, weight.upper
    return Interval(
        product(x.lower, lower.clamp_min(0)) + product(x.upper, lower.clamp_max(0)),
        product(x.upper, upper.clamp_min(0)) + product(x.lower, upper.clamp_max(0)),
    )
