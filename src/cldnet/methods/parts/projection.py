"""Gradient steps through projectors: one projector per layer, which absorbs the layer's inputs (Eq. 6)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cldnet.math import projector
from cldnet.methods.parts.alpha import Alpha, Place
from cldnet.methods.parts.ranks import ALONE, Ranks
from cldnet.nets.hooks import Flow, Layer, LayerHooks

#: By how many eps subtracting ``UᵀU`` rounds a projector (5 were measured).
_SUBTRACTION = 8


class LayerProjector(nn.Module):
    """A layer's projector ``P = (I + A)⁻¹`` and the sum ``A``, of shape ``(groups, width, width)``, both in float64.

    During a task ``P`` is followed by a working copy in the net's dtype. Single rows do not change it at once: what they
    subtract waits as rows ``U``, so that the projector is ``P − UᵀU``, and is then `settled <settle>` by one product. ``A``
    stays exact; ``P`` and the working copy are rebuilt from it at a task's end, and when the estimate of how far rounding has
    moved the copy exceeds ``most_drift``. The copy then stays within four times ``most_drift`` of ``(I + A)⁻¹``. ``P`` and
    ``A`` are complete after `rebuild` only.
    """

    P: Tensor
    A: Tensor
    running = ("_working", "_corrections", "_inputs", "_waiting", "_drift")
    #: Rows that wait. More make products with the projector more expensive, fewer settle it more often.
    settle_every = 32
    #: Estimated distance between the working copy and ``(I + A)⁻¹``, in the spectral norm, from which on it is rebuilt.
    most_drift = 1e-3

    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        identity = torch.eye(width, dtype=torch.float64).repeat(groups, 1, 1)
        self.register_buffer("P", identity)
        self.register_buffer("A", torch.zeros_like(identity))
        self._clear()

    def _clear(self) -> None:
        self._working: Tensor | None = None  # P in the net's dtype
        self._corrections: Tensor | None = None  # U of the rows that wait, in the net's dtype
        self._inputs: Tensor | None = None  # these rows divided by √α, in float64
        self._waiting = 0
        self._drift = 0.0  # how far rounding may have moved the working copy, see `projector.update`

    def absorb(self, rows: Tensor, alpha: float, projected: Tensor | None = None) -> Tensor | None:
        """Absorb rows ``R`` ``(groups, rows, width)`` with one α (Eq. 6), and return them behind the new projector.

        ``projected`` is ``R P``, if it is known. The result is None if the projector had to be rebuilt.
        """
        update = None
        if rows.shape[1] < rows.shape[2]:  # else Woodbury's matrix would not be smaller
            update = projector.update(rows, self.project(rows) if projected is None else projected, alpha)
        if update is None or self._drift + update.rounding > self.most_drift:
            projector.add_to_sum_(self.A, rows.double(), 1 / alpha)
            self.rebuild()
            return None
        self._drift += update.rounding
        if rows.shape[1] < self.settle_every:
            self._wait(update.corrections, rows, alpha)
        else:
            self._subtract(update.corrections)
            projector.add_to_sum_(self.A, rows.double(), 1 / alpha)
        return update.projected

    def _wait(self, corrections: Tensor, rows: Tensor, alpha: float) -> None:
        groups, count, width = rows.shape
        if self._waiting + count > self.settle_every:
            self.settle()
        if self._corrections is None or self._inputs is None:
            self._corrections = corrections.new_empty(groups, self.settle_every, width)
            self._inputs = rows.new_empty(groups, self.settle_every, width, dtype=torch.float64)
        own = slice(self._waiting, self._waiting + count)
        self._corrections[:, own] = corrections
        self._inputs[:, own].copy_(rows).mul_(alpha**-0.5)
        self._waiting = own.stop

    def _subtract(self, corrections: Tensor) -> None:
        if self._working is None:
            self._working = self.P.to(corrections.dtype, copy=True)
        projector.subtract_(self._working, corrections)
        self._drift += _SUBTRACTION * torch.finfo(corrections.dtype).eps

    def settle(self) -> None:
        """Apply the waiting rows to the working copy and to ``A``."""
        if self._corrections is not None and self._inputs is not None and self._waiting:
            own = slice(0, self._waiting)
            self._subtract(self._corrections[:, own])
            projector.add_to_sum_(self.A, self._inputs[:, own])
        self._waiting = 0

    def rebuild(self) -> None:
        """Compute ``P`` from ``A``; nothing waits after that."""
        self.settle()
        projector.mirror_(self.A)
        self.P = projector.from_sum(self.A)
        self._clear()

    def project(self, rows: Tensor) -> Tensor:
        """Multiply rows (inputs or gradients) ``(groups, n, width)`` by the projector: ``R P − (R Uᵀ) U``."""
        if self._working is None and self._waiting == 0 and not bool(self.A.diagonal(dim1=-2, dim2=-1).any()):
            return rows  # nothing was absorbed yet
        if self._working is None:
            self._working = self.P.to(rows.dtype, copy=True)
        product = rows @ self._working.to(rows.dtype)
        if self._corrections is None or self._waiting == 0:
            return product
        corrections = self._corrections[:, : self._waiting].to(rows.dtype)
        return product.baddbmm_(rows @ corrections.mT, corrections, alpha=-1)

    def check_running(self) -> None:
        """Raise an error if what was read from a file does not fit this layer."""
        groups, width, _ = self.P.shape
        shapes = {
            "_working": (groups, width, width),
            "_corrections": (groups, self.settle_every, width),
            "_inputs": (groups, self.settle_every, width),
        }
        found = {name: tensor for name in shapes if (tensor := getattr(self, name)) is not None}
        fit = all(tensor.shape == shapes[name] and tensor.is_floating_point() for name, tensor in found.items())
        both = {"_corrections", "_inputs"} <= found.keys()
        if not fit or self._waiting > (self.settle_every if both else 0):
            raise ValueError(f"{self._waiting} waiting rows of a projector with {width} inputs are missing")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if "_working" not in state:  # pickled by version 0.1, between two tasks
            self._clear()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._clear()  # it belonged to the previous state


class Feed(Protocol):
    """What of a layer's input its projector absorbs: that of the whole batch, of which ``x`` may be one rank's part."""

    def __call__(self, layer: Layer, x: Tensor, ranks: Ranks = ALONE) -> Tensor:
        """Return rows ``(groups, rows, width)``."""

    def combine(self, rows: Tensor) -> Tensor:
        """Return the same from a row per sample of the whole batch, for linear layers.

        It is linear in the rows, so that it can follow ``P``.
        """


@dataclass(frozen=True)
class BatchMean:
    """The batch's mean input, one row per batch (for a convolution, the patches of the mean map), as OWM does."""

    def __call__(self, layer: Layer, x: Tensor, ranks: Ranks = ALONE) -> Tensor:
        return layer.rows(ranks.mean(x))

    def combine(self, rows: Tensor) -> Tensor:
        return rows.mean(1, keepdim=True)


@dataclass(frozen=True)
class EverySecondPatch:
    """As `BatchMean`, but only every second patch of a convolution, vertically and horizontally, as OWM's released code does.

    It slides over the mean map in steps of 2 although the convolution has steps of 1: a quarter of the rows.
    """

    def __call__(self, layer: Layer, x: Tensor, ranks: Ranks = ALONE) -> Tensor:
        return layer.rows(ranks.mean(x), every=2)

    def combine(self, rows: Tensor) -> Tensor:
        return rows.mean(1, keepdim=True)


@dataclass(frozen=True)
class EverySample:
    """Every sample's input, one row each. It fills the space much faster than means do."""

    def __call__(self, layer: Layer, x: Tensor, ranks: Ranks = ALONE) -> Tensor:
        (whole,) = ranks.gather(x)
        return layer.rows(whole)

    def combine(self, rows: Tensor) -> Tensor:
        return rows


@dataclass(frozen=True)
class EveryVector:
    """Every sample of a linear layer; of a convolution the mean map's patches, weighted as if each sample had them.

    A map has hundreds of patches, so those of every sample would cost more than the rest of a step.
    """

    def __call__(self, layer: Layer, x: Tensor, ranks: Ranks = ALONE) -> Tensor:
        if layer.convolution:
            root: float = ranks.length(x) ** 0.5
            return layer.rows(ranks.mean(x)) * root
        (whole,) = ranks.gather(x)
        return layer.rows(whole)

    def combine(self, rows: Tensor) -> Tensor:
        return rows


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
    def absorb(self, flow: Flow, feed: Feed, alpha: Alpha, progress: float, updates: int, ranks: Ranks = ALONE) -> None:
        """Let every layer's projector absorb the layer's inputs (Eq. 6), those of all ranks: each has the same projectors."""
        flow.projected.clear()
        for call, (layer, x) in enumerate(zip(flow.layers, flow.inputs, strict=True)):
            own, rule = self.layers[self._index[layer.name]], alpha.of_layer(self.places[layer.name])
            if self._projects_samples(flow, call, ranks):
                # The product that projects the inputs also gives what their projector absorbs.
                rows = layer.rows(x)
                before = own.project(rows)
                whole, whole_before = ranks.gather(rows, before, dim=1)
                taken = feed.combine(whole)
                strength = _positive(rule(taken, progress, updates))
                after = own.absorb(taken, strength, feed.combine(whole_before))
                if after is not None and taken is whole:
                    (flow.projected[call],) = ranks.own(after, dim=1)
                elif after is not None:
                    flow.projected[call] = torch.baddbmm(before, before @ taken.mT, after, alpha=-1 / strength)
            else:
                rows = feed(layer, x, ranks)
                own.absorb(rows, _positive(rule(rows, progress, updates)))

    def _projects_samples(self, flow: Flow, call: int, ranks: Ranks) -> bool:
        """Whether `_projected` will project a row per sample, and no other call changes the projector before that."""
        layer, x = flow.layers[call], flow.inputs[call]
        learns = flow.outputs[call].requires_grad and layer.owner.weight.requires_grad
        single = sum(other.name == layer.name for other in flow.layers) == 1
        fewer = ranks.length(x) < layer.outputs  # of the whole batch: all ranks decide alike
        return not layer.convolution and x.ndim == 2 and fewer and learns and single

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


def _positive(alpha: Tensor) -> float:
    """The value of α, or the least positive number where it is too small for its dtype."""
    return max(float(alpha), sys.float_info.min)
