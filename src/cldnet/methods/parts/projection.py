"""Gradient steps through projectors: one projector per layer, which absorbs the layer's inputs (Eq. 6)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.math import projector
from cldnet.methods.parts.alpha import Alpha, Place
from cldnet.nets.hooks import Flow, Layer, LayerHooks


class LayerProjector(nn.Module):
    """A layer's projector ``P``, and the sum ``A`` from which it can be computed, both in float64.

    A step does not change the matrices: what it subtracts from ``P`` is kept as rows ``U``, so that the projector is
    ``P − UᵀU``. Some steps together are then `settled <settle>` by one product. ``P`` is rebuilt from ``A`` when rounding
    shows, every 1,000 updates, and on request.

    ``P`` and ``A`` have the shape ``(groups, width, width)`` and are complete after `settle` and `rebuild`.
    """

    P: Tensor
    A: Tensor
    running = ("_updates", "_waiting", "_rows")
    rebuild_every = 1000
    #: Most rows that wait. More make products with the projector more expensive, fewer settle it more often.
    settle_every = 32
    #: Relative rounding of a step above which the projector is rebuilt instead.
    most_rounding = 1e-6

    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        identity = torch.eye(width, dtype=torch.float64).repeat(groups, 1, 1)
        self.register_buffer("P", identity)
        self.register_buffer("A", torch.zeros_like(identity))
        self._clear()

    def _clear(self) -> None:
        self._updates = 0
        self._waiting = 0
        self._rows: Tensor | None = None  # rows that wait: U for P, and r/√α for A
        self._rounded: Tensor | None = None  # P in the net's dtype

    def absorb(self, rows: Tensor, alpha: Tensor) -> None:
        """Absorb rows ``(groups, rows, width)`` with one α (Eq. 6)."""
        weighted = rows.double() * alpha.double().rsqrt()
        corrections = self._corrections(weighted)
        if corrections is None:
            self.settle()
            self.A.baddbmm_(weighted.mT, weighted)
            self.rebuild()
            return
        self._wait(corrections, weighted)
        self._updates += 1
        if self._waiting >= self.settle_every:
            self.settle()
            if self._updates >= self.rebuild_every or projector.has_drifted(self.P, weighted[:, -1], 1.0):
                self.rebuild()

    def _corrections(self, weighted: Tensor) -> Tensor | None:
        """What rows subtract from the projector; None if a rebuild is cheaper, or needed because of rounding."""
        if weighted.shape[1] >= weighted.shape[2]:  # Woodbury's matrix would not be smaller
            return None
        # The rounding of P makes rᵀPr, which is compared with 1, wrong by as much of ‖r‖².
        largest = float(torch.linalg.vecdot(weighted, weighted).amax())
        if largest * weighted.shape[2] * torch.finfo(torch.float64).eps > self.most_rounding:
            return None
        try:
            corrections = projector.correction(self._times(weighted, self.P), weighted)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not list it
            return None
        return corrections if math.isfinite(float(corrections.sum())) else None  # faster than isfinite of each

    def _wait(self, corrections: Tensor, weighted: Tensor) -> None:
        groups, count, width = weighted.shape
        if self._rows is None or self._waiting + count > self._rows.shape[2]:
            self.settle()
            self._rows = weighted.new_empty(2, groups, max(count, self.settle_every), width)
        end = self._waiting + count
        self._rows[0, :, self._waiting : end], self._rows[1, :, self._waiting : end] = corrections, weighted
        self._waiting = end

    def settle(self) -> None:
        """Apply the waiting rows to ``P`` and ``A``."""
        if self._rows is None or self._waiting == 0:
            return
        corrections, weighted = self._rows[:, :, : self._waiting]
        self.P.baddbmm_(corrections.mT, corrections, alpha=-1)
        self.A.baddbmm_(weighted.mT, weighted)
        self._waiting = 0
        if self._rounded is not None:
            self._rounded.copy_(self.P)

    def rebuild(self) -> None:
        """Compute ``P`` from ``A``; nothing waits after that."""
        self.settle()
        self.P = projector.from_sum(self.A)
        self._clear()

    def project(self, rows: Tensor) -> Tensor:
        """Multiply rows (inputs or gradients) ``(groups, n, width)`` by the projector from the right."""
        if self._rounded is None or self._rounded.dtype != rows.dtype:
            self._rounded = self.P.to(rows.dtype)
        return self._times(rows, self._rounded)

    def _times(self, rows: Tensor, P: Tensor) -> Tensor:
        """``R P − (R Uᵀ) U``."""
        product = rows @ P
        if self._rows is None or self._waiting == 0:
            return product
        corrections = self._rows[0, :, : self._waiting].to(rows.dtype)
        return product.baddbmm_(rows @ corrections.mT, corrections, alpha=-1)

    def check_running(self) -> None:
        """Raise an error if waiting rows that were read from a file do not fit this layer."""
        rows, (groups, width, _) = self._rows, self.P.shape
        fit = rows is None or (rows.dtype == self.P.dtype and (*rows.shape[:2], *rows.shape[3:]) == (2, groups, width))
        if not fit or self._waiting > (0 if rows is None else rows.shape[2]):
            raise ValueError(f"{self._waiting} waiting rows of a projector with {width} inputs are missing")

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._clear()  # it belonged to the previous state


#: What of a layer's input its projector absorbs: takes both and returns rows ``(groups, rows, width)``.
Feed = Callable[[Layer, Tensor], Tensor]


@dataclass(frozen=True)
class BatchMean:
    """The batch's mean input, one row per batch (for a convolution, the patches of the mean map), as OWM does."""

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        return layer.mean_rows(x)


@dataclass(frozen=True)
class EverySecondPatch:
    """As `BatchMean`, but only every second patch of a convolution, vertically and horizontally, as OWM's released code does.

    It slides over the mean map in steps of 2 although the convolution has steps of 1: a quarter of the rows.
    """

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        return layer.mean_rows(x, every=2)


@dataclass(frozen=True)
class EverySample:
    """Every sample's input, one row each. It fills the space much faster than means do."""

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        return layer.rows(x)


@dataclass(frozen=True)
class EveryVector:
    """Every sample of a linear layer; of a convolution the mean map's patches, weighted as if each sample had them.

    A map has hundreds of patches, so those of every sample would cost more than the rest of a step.
    """

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        return layer.mean_rows(x) * len(x) ** 0.5 if layer.convolution else layer.rows(x)


class Projection(nn.Module):
    """The projectors of all layers of any module; see `cldnet.nets.hooks.LayerHooks`.

    Parameters that no projector can protect are named in a warning and frozen after the first task.
    """

    def __init__(self, net: nn.Module, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.hooks = LayerHooks(net, input_shape)
        self._index = {layer.name: i for i, layer in enumerate(self.hooks.layers)}
        self.places = {  # for rules of α that differ between layers
            layer.name: Place(i, len(self.hooks.layers), layer.convolution) for i, layer in enumerate(self.hooks.layers)
        }
        self.layers: Sequence[LayerProjector] = nn.ModuleList(  # type: ignore[assignment]
            LayerProjector(layer.groups, layer.width) for layer in self.hooks.layers
        )
        statistics = [name for name, _ in net.named_buffers() if name.endswith(("running_mean", "running_var"))]
        unprotected = sorted({*self.hooks.free, *statistics})
        if unprotected:
            warnings.warn(
                f"No projector can protect {', '.join(unprotected)}: they are frozen after the first task. "
                "Use layers without them to keep learning everywhere.",
                UserWarning,
                stacklevel=2,
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        hooks = {"hooks": state["taps"]} if "taps" in state else {}  # its name in estimators pickled by version 0.1
        super().__setstate__({**state, **hooks})  # type: ignore[no-untyped-call]

    @classmethod
    def of_sequence(cls, input_shape: tuple[int, ...], alpha: Alpha, **modules: nn.Module) -> Projection:
        """Make the projectors of modules that follow each other; raise an error if the rule for α does not fit them."""
        whole = nn.Sequential()
        for name, module in modules.items():
            whole.add_module(name, module)
        projection = cls(whole, input_shape)
        for place in projection.places.values():
            alpha.of_layer(place)
        return projection

    @torch.no_grad()
    def absorb(self, flow: Flow, feed: Feed, alpha: Alpha, progress: float, updates: int) -> None:
        """Let every layer's projector absorb the layer's inputs (Eq. 6)."""
        flow.projected.clear()
        for layer, x in zip(flow.layers, flow.inputs, strict=True):
            rows, rule = feed(layer, x), alpha.of_layer(self.places[layer.name])
            self.layers[self._index[layer.name]].absorb(rows, rule(rows, progress, updates))

    def backward(self, flow: Flow, loss: Tensor, extra: Sequence[Tensor | None] | None = None) -> dict[Tensor, Tensor]:
        """Projected gradients of a loss, and plain ones of free parameters.

        ``extra`` are other derivatives by the layers' outputs: they are added before anything is projected, which costs no more
        than the loss alone.
        """
        flow.check_not_overwritten()
        free = [parameter for parameter in self.hooks.free.values() if parameter.requires_grad]
        outputs = [output for output in flow.outputs if output.requires_grad]
        derivatives = iter(torch.autograd.grad(loss, [*outputs, *free], allow_unused=True))
        deltas = [next(derivatives) if out.requires_grad else None for out in flow.outputs]
        if extra is not None:
            deltas = [b if a is None else a if b is None else a + b for a, b in zip(deltas, extra, strict=True)]
        gradients = self.gradients(flow, deltas)
        for parameter, gradient in zip(free, derivatives, strict=True):
            if gradient is not None:
                gradients[parameter] = gradient
        return gradients

    @torch.no_grad()
    def gradients(self, flow: Flow, deltas: Sequence[Tensor | None]) -> dict[Tensor, Tensor]:
        """Projected gradients ``P (HᵀΔ)`` of all layers, from the derivatives ``Δ`` by their outputs."""
        gradients: dict[Tensor, Tensor] = {}
        for call, delta in enumerate(deltas):
            if delta is None:
                continue
            for parameter, gradient in self._projected(flow, call, delta).items():
                if parameter.requires_grad:  # else the user froze it
                    gradients[parameter] = gradients[parameter] + gradient if parameter in gradients else gradient
        return gradients

    def _projected(self, flow: Flow, call: int, delta: Tensor) -> dict[Tensor, Tensor]:
        """``Δᵀ H P`` of one call's weight and bias: project the inputs or the gradient, whichever has fewer rows."""
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
        """Compute every projector from its sum."""
        for layer in self.layers:
            layer.rebuild()

    def freeze_unprotected(self, net: nn.Module) -> None:
        """Stop gradients of parameters that cannot be projected, and freeze normalisation statistics."""
        for parameter in self.hooks.free.values():
            parameter.requires_grad_(False)
        for module in net.modules():
            if isinstance(getattr(module, "running_mean", None), Tensor):
                module.eval()
