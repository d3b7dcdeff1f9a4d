"""First weights from data: mirrored principal directions of each layer's inputs.

A layer of random weights and a ReLU loses much of what its input says. With pairs of units ``w`` and ``−w`` it loses nothing
along ``w``, since ``relu(a) − relu(−a) = a``. Principal directions of the inputs are those along which there is most to keep.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cldnet.nets.hooks import Layer, LayerHooks

#: Added to the eigenvalues, as a share of their mean: directions with less power than that are not amplified to the same size.
_DAMPING = 1.0


@torch.no_grad()
def set_principal_weights(
    net: nn.Module, hooks: LayerHooks, batches: Iterable[Tensor], generator: torch.Generator
) -> None:
    """Set the weights of layers that may learn, from the first to the last, by the inputs that each gets from those before it.

    Parameters
    ----------
    net : nn.Module
    hooks : LayerHooks
        Those of ``net``, or of a module that contains it. Layers that are frozen stay as they are.
    batches : iterable of Tensor
        Inputs; they are iterated once per layer.
    generator : torch.Generator
        Draws directions where a layer has more pairs of units than inputs.

    References
    ----------
    P. Krähenbühl et al., "Data-dependent Initializations of Convolutional Neural Networks", ICLR 2016 (principal components
    of a layer's inputs as its weights). https://arxiv.org/abs/1511.06856

    D. Balduzzi et al., "The Shattered Gradients Problem", ICML 2017 (mirrored pairs). https://arxiv.org/abs/1702.08591
    """
    inside = set(net.modules())
    for layer in hooks.layers:
        if layer.owner in inside and layer.owner.weight.requires_grad:
            moments = input_moments(net, hooks, layer, batches)
            rows = torch.stack([principal_rows(moment, layer.outputs, generator) for moment in moments])
            for parameter, value in layer.split(rows.to(layer.owner.weight)).items():
                parameter.copy_(value)


def input_moments(net: nn.Module, hooks: LayerHooks, layer: Layer, batches: Iterable[Tensor]) -> Tensor:
    """Mean of ``h hᵀ`` over a layer's inputs, ``(groups, width, width)``."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for x in batches:
        with hooks.watch() as flow:
            net(x)
        for called, inputs in zip(flow.layers, flow.inputs, strict=True):
            if called.name == layer.name:
                rows = called.rows(inputs)
                total, count = total.to(rows.device) + (rows.mT @ rows).double(), count + rows.shape[1]
    return total / max(count, 1)


def principal_rows(moment: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Weights ``(count, width)`` of units in mirrored pairs, whose outputs have a mean square of 1.

    They are the eigenvectors with the largest eigenvalues, over the root of those; random mixtures of all of them if there are
    more pairs than eigenvectors.

    Examples
    --------
    >>> principal_rows(torch.tensor([[4.0, 0.0], [0.0, 1.0]]).double(), 2, torch.Generator()).abs()
    tensor([[0.5000, 0.0000],
            [0.5000, 0.0000]], dtype=torch.float64)
    """
    values, vectors = torch.linalg.eigh(moment)
    values, vectors = values.clamp_min(0).flip(0), vectors.flip(1)
    whitened = (vectors * (values + _DAMPING * values.mean()).rsqrt()).nan_to_num(0, 0, 0).mT
    pairs = (count + 1) // 2
    if pairs > len(whitened):
        draws = torch.randn(pairs, len(whitened), dtype=moment.dtype, generator=generator)
        whitened = draws.to(moment.device) @ vectors @ whitened
    rows = torch.cat([whitened[:pairs], -whitened[:pairs]])[:count]
    power = (rows @ moment * rows).sum(1).mean()
    return rows * torch.where(power > 0, power, torch.ones_like(power)).rsqrt()
