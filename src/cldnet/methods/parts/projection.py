"""Gradient steps through projectors: one projector a layer, fed with the layer's inputs (Eq. 6)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from cldnet.math import projector
from cldnet.methods.parts.alpha import Alpha
from cldnet.nets.taps import Flow, Layer, Taps

__all__ = ["BatchMean", "EverySample", "Feed", "LayerProjector", "Projection", "descend"]


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
class EverySample:
    """Every sample's input, a row each. It fills the space much faster than means do."""

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        """Return the rows of all samples."""
        return layer.rows(x)


class LayerProjector(nn.Module):
    """A layer's projector ``P`` with the sum ``A`` that it comes from, both in float64.

    ``P`` follows Eq. 6 step by step and is rebuilt from ``A`` when rounding shows, every 1,000 updates, and on request.

    Parameters
    ----------
    groups, width : int
        Number of projectors and length of an input row.

    Examples
    --------
    >>> layer = LayerProjector(groups=1, width=2)
    >>> layer.absorb(torch.tensor([[[1.0, 0.0]]]), alpha=torch.tensor(0.25))
    >>> layer.project(torch.tensor([[[1.0, 1.0]]]))
    tensor([[[0.2000, 1.0000]]])
    """

    P: Tensor
    A: Tensor
    rebuild_every = 1000
    check_every = 16

    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        identity = torch.eye(width, dtype=torch.float64).repeat(groups, 1, 1)
        self.register_buffer("P", identity)
        self.register_buffer("A", torch.zeros_like(identity))
        self._updates = 0
        self._pending: list[Tensor] = []  # rows/√α that A has not been given yet: one product for many rows is cheaper
        self._rounded: Tensor | None = None  # P in the net's dtype, until P changes

    def absorb(self, rows: Tensor, alpha: Tensor) -> None:
        """Absorb rows ``(groups, rows, width)`` with one α."""
        rows, alpha = rows.double(), alpha.double()
        self._rounded = None
        self._pending.append(rows * alpha.rsqrt())
        if rows.shape[1] >= rows.shape[2]:  # Woodbury's small matrix would be the larger one
            self.rebuild()
            return
        if rows.shape[1] == 1:
            u = projector.step(self.P, rows[:, 0], alpha)
            self.P.baddbmm_(u.unsqueeze(-1), u.unsqueeze(-2), alpha=-1)  # Eq. 6, in place
        else:
            self.P = projector.update_block(self.P, rows, alpha)
        self._updates += 1
        if len(self._pending) >= self.check_every:
            self._flush()
            if self._updates >= self.rebuild_every or projector.has_drifted(self.P, rows[:, -1], alpha):
                self.rebuild()

    def remove(self, rows: Tensor, alpha: Tensor) -> None:
        """Take rows out again that were absorbed with the same α."""
        self._flush()
        self.A = projector.accumulate(self.A, rows.double(), alpha.double(), sign=-1)
        self.rebuild()

    def rebuild(self) -> None:
        """Compute ``P`` afresh from ``A``."""
        self._flush()
        self.P = projector.from_sum(self.A)
        self._updates, self._rounded = 0, None

    def _flush(self) -> None:
        if self._pending:
            self.A = projector.accumulate(self.A, torch.cat(self._pending, dim=1), 1.0)
            self._pending = []

    def project(self, rows: Tensor) -> Tensor:
        """Multiply rows (inputs or gradients) ``(groups, n, width)`` by ``P`` from the right."""
        rounded = self._rounded
        if rounded is None or rounded.dtype != rows.dtype:
            self._rounded = rounded = self.P.to(rows.dtype)
        return rows @ rounded


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

    @torch.no_grad()
    def absorb(self, flow: Flow, feed: Feed, alpha: Alpha, progress: float, updates: int) -> None:
        """Let every layer's projector absorb what flowed into the layer (Eq. 6)."""
        for layer, x in zip(flow.layers, flow.inputs, strict=True):
            rows = feed(layer, x)
            self.layers[self._index[layer.name]].absorb(rows, alpha(rows, progress, updates))

    @torch.no_grad()
    def gradients(self, flow: Flow, deltas: Sequence[Tensor | None]) -> dict[Tensor, Tensor]:
        """Projected gradients ``P (HᵀΔ)`` of all layers from the derivatives ``Δ`` by their outputs (none: no part)."""
        gradients: dict[Tensor, Tensor] = {}
        for layer, x, delta in zip(flow.layers, flow.inputs, deltas, strict=True):
            if delta is None:
                continue
            projected = self.projected_gradient(layer, layer.rows(x), layer.deltas(delta))
            for parameter, gradient in layer.split(projected).items():
                if not parameter.requires_grad:  # frozen by the user
                    continue
                gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
        return gradients

    def backward(self, flow: Flow, loss: Tensor) -> dict[Tensor, Tensor]:
        """Projected gradients of a loss that depends on the whole net, and plain ones of what is still free."""
        flow.check_not_overwritten()
        free = [parameter for parameter in self.taps.free.values() if parameter.requires_grad]
        outputs = [output for output in flow.outputs if output.requires_grad]
        derivatives = iter(torch.autograd.grad(loss, [*outputs, *free], allow_unused=True))
        gradients = self.gradients(flow, [next(derivatives) if out.requires_grad else None for out in flow.outputs])
        for parameter, gradient in zip(free, derivatives, strict=True):
            if gradient is not None:
                gradients[parameter] = gradient
        return gradients

    def projected_gradient(self, layer: Layer, rows: Tensor, deltas: Tensor) -> Tensor:
        """``Δᵀ H P``, by projecting the inputs or the gradient, whichever has fewer rows."""
        project = self.layers[self._index[layer.name]].project
        if rows.shape[1] < layer.outputs:
            return deltas.mT @ project(rows)
        return project(deltas.mT @ rows)

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


def descend(optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], clip: float) -> None:
    """Take one step along gradients that were projected before, clipped after the projection."""
    optimizer.zero_grad(set_to_none=True)
    for parameter, gradient in gradients.items():
        parameter.grad = gradient
    nn.utils.clip_grad_norm_(gradients.keys(), clip)
    optimizer.step()


def _running_statistics(net: nn.Module) -> list[str]:
    return [name for name, _ in net.named_buffers() if name.endswith(("running_mean", "running_var"))]
