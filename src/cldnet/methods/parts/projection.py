"""Gradient steps through projectors: one projector a layer, fed with the layer's inputs (Eq. 6)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from cldnet.methods.parts.alpha import Alpha, Place
from cldnet.methods.parts.layer_projector import LayerProjector
from cldnet.nets.taps import Flow, Layer, Taps

__all__ = ["BatchMean", "EverySample", "EverySecondPatch", "EveryVector", "Feed", "Projection"]


class Feed(Protocol):
    """What of a layer's input a projector absorbs."""

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        """Return the rows to absorb, shape ``(groups, rows, width)``."""


@dataclass(frozen=True)
class BatchMean:
    """OWM's: the batch's mean input, one row a batch (for a convolution, the patches of the mean map)."""

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        """Return the rows of the mean input."""
        return layer.mean_rows(x)


@dataclass(frozen=True)
class EverySecondPatch:
    """OWM's released code: as `BatchMean`, but of a convolution's patches only every second one, down and across.

    The code slides over the mean map in steps of 2 although the convolution has steps of 1: a quarter of the rows.
    """

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        """Return a quarter of the rows of the mean input; all of a linear layer's."""
        return layer.mean_rows(x, every=2)


@dataclass(frozen=True)
class EverySample:
    """Every sample's input, a row each. It fills the space much faster than means do."""

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        """Return the rows of all samples."""
        return layer.rows(x)


@dataclass(frozen=True)
class EveryVector:
    """Every sample where a layer takes vectors; where it takes maps, the mean map's patches, as if each sample had them.

    A map has hundreds of patches, so those of every sample would cost more than all the rest of a step.
    """

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        """Return the rows of all samples, or those of the mean map with the samples' weight."""
        return layer.mean_rows(x) * len(x) ** 0.5 if layer.convolution else layer.rows(x)


class Projection(nn.Module):
    """The projectors of all layers of a net, and the parameters that no projector can protect.

    Parameters
    ----------
    net : nn.Module
        Any module; see `cldnet.nets.taps.Taps`. What cannot be projected is named in a warning and frozen after the
        first task.
    input_shape : tuple of int
        Shape of one input.

    Examples
    --------
    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> [tuple(layer.P.shape) for layer in Projection(net, (3,)).layers]
    [(1, 4, 4), (1, 5, 5)]
    """

    def __init__(self, net: nn.Module, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.taps = Taps(net, input_shape)
        self._index = {layer.name: i for i, layer in enumerate(self.taps.layers)}
        self.places = {  # for rules of α that differ from layer to layer
            layer.name: Place(i, len(self.taps.layers), layer.convolution) for i, layer in enumerate(self.taps.layers)
        }
        self.layers: Sequence[LayerProjector] = nn.ModuleList(  # type: ignore[assignment]
            LayerProjector(layer.groups, layer.width) for layer in self.taps.layers
        )
        unprotected = sorted({*self.taps.free, *_running_statistics(net)})
        if unprotected:
            warnings.warn(
                f"No projector can protect {', '.join(unprotected)}: they are frozen after the first task. "
                "Use layers without them to keep learning everywhere.",
                UserWarning,
                stacklevel=2,
            )

    @classmethod
    def in_turn(cls, input_shape: tuple[int, ...], alpha: Alpha, **modules: nn.Module) -> Projection:
        """Make the projectors of modules that follow each other, and refuse a rule for α that does not fit their layers."""
        whole = nn.Sequential()
        for name, module in modules.items():
            whole.add_module(name, module)
        projection = cls(whole, input_shape)
        for place in projection.places.values():
            alpha.of_layer(place)  # better now than at the first step
        return projection

    @torch.no_grad()
    def absorb(self, flow: Flow, feed: Feed, alpha: Alpha, progress: float, updates: int) -> None:
        """Let every layer's projector absorb what flowed into the layer (Eq. 6)."""
        flow.projected.clear()
        for layer, x in zip(flow.layers, flow.inputs, strict=True):
            rows, rule = feed(layer, x), alpha.of_layer(self.places[layer.name])
            self.layers[self._index[layer.name]].absorb(rows, rule(rows, progress, updates))

    @torch.no_grad()
    def gradients(self, flow: Flow, deltas: Sequence[Tensor | None]) -> dict[Tensor, Tensor]:
        """Projected gradients ``P (HᵀΔ)`` of all layers from the derivatives ``Δ`` by their outputs (none: no part)."""
        gradients: dict[Tensor, Tensor] = {}
        for call, delta in enumerate(deltas):
            if delta is None:
                continue
            for parameter, gradient in self.projected_gradients(flow, call, delta).items():
                if not parameter.requires_grad:  # frozen by the user
                    continue
                gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
        return gradients

    def backward(self, flow: Flow, loss: Tensor, beside: Sequence[Tensor | None] | None = None) -> dict[Tensor, Tensor]:
        """Projected gradients of a loss that depends on the whole net, and plain ones of what is still free.

        Derivatives by the layers' outputs that come from elsewhere can be given beside it: they are added before anything is
        projected, which costs no more than the loss alone.
        """
        flow.check_not_overwritten()
        free = [parameter for parameter in self.taps.free.values() if parameter.requires_grad]
        outputs = [output for output in flow.outputs if output.requires_grad]
        derivatives = iter(torch.autograd.grad(loss, [*outputs, *free], allow_unused=True))
        deltas = [next(derivatives) if out.requires_grad else None for out in flow.outputs]
        if beside is not None:
            deltas = [_sum(*pair) for pair in zip(deltas, beside, strict=True)]
        gradients = self.gradients(flow, deltas)
        for parameter, gradient in zip(free, derivatives, strict=True):
            if gradient is not None:
                gradients[parameter] = gradient
        return gradients

    def projected_gradients(self, flow: Flow, call: int, delta: Tensor) -> dict[Tensor, Tensor]:
        """``Δᵀ H P`` of one call's weight and bias, by projecting the inputs or the gradient, whichever has fewer rows."""
        layer, x = flow.layers[call], flow.inputs[call]
        project = self.layers[self._index[layer.name]].project
        if delta.numel() >= layer.outputs * len(layer.module.weight):  # a group has as many inputs as positions
            return layer.split(project(layer.gradient(x, delta)))
        if call not in flow.projected:
            flow.projected[call] = project(layer.rows(x))
        return layer.products(layer.deltas(delta), flow.projected[call])

    def sums(self) -> dict[str, Tensor]:
        """``A`` of every layer's projector, by the layer's name; complete after `rebuild`."""
        return {name: self.layers[number].A for name, number in self._index.items()}

    def rebuild(self) -> None:
        """Compute every projector afresh from its sum."""
        for layer in self.layers:
            layer.rebuild()

    def freeze_unprotected(self, net: nn.Module) -> None:
        """Keep normalisation statistics as they are and stop gradients of what cannot be projected."""
        for parameter in self.taps.free.values():
            parameter.requires_grad_(False)
        for module in net.modules():
            if isinstance(getattr(module, "running_mean", None), Tensor):
                module.eval()


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


def _running_statistics(net: nn.Module) -> list[str]:
    return [name for name, _ in net.named_buffers() if name.endswith(("running_mean", "running_var"))]
