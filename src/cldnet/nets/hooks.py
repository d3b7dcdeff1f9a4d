"""Hooks on the linear and convolutional layers of any module: what goes in, and what comes out.

A layer's gradient is ``Δᵀ H``: ``H`` its inputs as rows (for a convolution its unfolded patches; a bias is the weight of an
appended one), ``Δ`` the loss's derivative by its outputs. Forward hooks record both, so a user's module needs no rewriting.
Grouped convolutions have one ``H`` and ``Δ`` per group: shapes are ``(groups, rows, columns)``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv1d_weight, conv2d_weight

from cldnet.nets.fingerprint import evaluating
from cldnet.nets.pretrained import FrozenBody, zero_outputs

Projectable = nn.Linear | nn.Conv1d | nn.Conv2d
#: What such a layer computes. A subclass that computes something else has another gradient.
_FORWARDS = (nn.Linear.forward, nn.Conv1d.forward, nn.Conv2d.forward)
_CONVOLUTIONS = (nn.Conv1d._conv_forward, nn.Conv2d._conv_forward)


@dataclass(frozen=True)
class Layer:
    """One layer that can be projected.

    ``width`` is the length of an input row, with the appended one if there is a bias. ``owner`` is the module whose weight and
    bias are projected: ``module`` itself, or the first one that has its weight.
    """

    name: str
    module: Projectable
    groups: int
    width: int
    owner: Projectable

    @property
    def convolution(self) -> bool:
        """Whether the layer is a convolution."""
        return not isinstance(self.module, nn.Linear)

    @property
    def outputs(self) -> int:
        """Outputs per group."""
        return self.module.weight.shape[0] // self.groups

    def rows(self, x: Tensor, every: int = 1) -> Tensor:
        """The layer's input as rows ``(groups, rows, width)``; for a convolution, only every ``every``-th position per axis."""
        if isinstance(self.module, nn.Linear):
            rows = x.reshape(1, -1, x.shape[-1])
        else:
            rows = _columns(self.module, x, every).permute(1, 0, 3, 2).flatten(1, 2)
        if self.owner.bias is None:
            return rows
        # A module with a shared weight but its own bias does not use the owner's bias.
        return F.pad(rows, (0, 1), value=float(self.module.bias is self.owner.bias))

    def deltas(self, delta: Tensor) -> Tensor:
        """The derivative by the layer's output as rows ``(groups, rows, outputs)``."""
        if isinstance(self.module, nn.Linear):
            return delta.reshape(1, -1, delta.shape[-1])
        per_group = delta.flatten(2).unflatten(1, (self.groups, self.outputs))  # (n, g, out, positions)
        rows: Tensor = per_group.permute(1, 0, 3, 2).flatten(1, 2)
        return rows

    def gradient(self, x: Tensor, delta: Tensor) -> Tensor:
        """``Δᵀ H`` from the layer's input and the derivative by its output, shape ``(groups, outputs, width)``."""
        if isinstance(self.module, nn.Linear):
            return self.deltas(delta).mT @ self.rows(x)
        # The same sum over patches without unfolding them: several times faster.
        module = self.module
        by_weight: Any = conv1d_weight if isinstance(module, nn.Conv1d) else conv2d_weight
        strides: dict[str, Any] = {"stride": module.stride, "dilation": module.dilation, "groups": module.groups}
        weight: Tensor = by_weight(_padded(module, x), module.weight.shape, delta, **strides)
        weight = weight.reshape(self.groups, self.outputs, -1)
        if self.owner.bias is None:
            return weight
        by_bias = delta.flatten(2).sum((0, 2)).reshape(self.groups, self.outputs, 1)
        return torch.cat([weight, by_bias * float(self.module.bias is self.owner.bias)], dim=2)

    def each_gradient(self, x: Tensor, delta: Tensor) -> Tensor:
        """``Δ_nᵀ H_n`` of every image of a convolution, shape ``(n, groups, outputs, width)``."""
        by_position = delta.flatten(2).unflatten(1, (self.groups, self.outputs))  # (n, g, out, positions)
        weight: Tensor = by_position @ _columns(self.module, x).mT  # type: ignore[arg-type]
        if self.owner.bias is None:
            return weight
        by_bias = by_position.sum(3, keepdim=True) * float(self.module.bias is self.owner.bias)
        return torch.cat([weight, by_bias], dim=3)

    def products(self, deltas: Tensor, rows: Tensor) -> dict[Tensor, Tensor]:
        """``Δᵀ H`` of such rows, separately for weight and bias, each contiguous."""
        weight, bias = self.owner.weight, self.owner.bias
        if bias is None:
            return {weight: (deltas.mT @ rows).reshape(weight.shape)}
        return {
            weight: (deltas.mT @ rows[..., :-1]).reshape(weight.shape),
            bias: (deltas.mT @ rows[..., -1:]).reshape(bias.shape),
        }

    def split(self, gradient: Tensor) -> dict[Tensor, Tensor]:
        """Split a gradient ``(groups, outputs, width)`` into those of weight and bias."""
        weight, bias = self.owner.weight, self.owner.bias
        if bias is None:
            return {weight: gradient.reshape(weight.shape)}
        return {weight: gradient[..., :-1].reshape(weight.shape), bias: gradient[..., -1].reshape(bias.shape)}


@dataclass
class Flow:
    """Layers, inputs and outputs of one forward pass, call by call.

    ``versions`` are those of the outputs when they were recorded. ``projected`` has the inputs of calls as rows behind their
    layer's projector, where they are known.
    """

    layers: list[Layer] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    projected: dict[int, Tensor] = field(default_factory=dict)

    def reuse(self, earlier: Flow) -> None:
        """Reuse projected inputs of an earlier pass where the same tensor came in again, as at the first layer."""
        for call, (layer, x) in enumerate(zip(self.layers, self.inputs, strict=True)):
            if call in earlier.projected and layer == earlier.layers[call]:
                before = earlier.inputs[call]
                if (x.data_ptr(), x.shape, x.stride()) == (before.data_ptr(), before.shape, before.stride()):
                    self.projected[call] = earlier.projected[call]

    def check_not_overwritten(self) -> None:
        """Refuse a module that overwrites a layer's output: its derivative would be lost."""
        for layer, output, version in zip(self.layers, self.outputs, self.versions, strict=True):
            if output._version != version:
                raise ValueError(
                    f"The output of layer {layer.name!r} is overwritten in place (for example by F.relu_). "
                    "Use the version that returns a new tensor."
                )


class LayerHooks:
    """The layers of a module that can be projected, found by one forward pass on zeros.

    ``layers`` are in the order of their first call; one that is used twice, or whose weight is shared, counts once. ``free``
    are the parameters that no projector can protect: of normalisation, embeddings, and layers that hooks cannot see. In-place
    activations of the module are switched off.
    """

    def __init__(self, net: nn.Module, input_shape: tuple[int, ...]) -> None:
        for module in net.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # type: ignore[assignment]
        self._layer_of: dict[nn.Module, Layer] = {}
        by_weight: dict[int, Layer] = {}
        for name, module in net.named_modules():
            if isinstance(module, Projectable) and _is_plain(module):
                groups = 1 if isinstance(module, nn.Linear) else module.groups
                width = module.weight[0].numel() + (module.bias is not None)
                first = by_weight.setdefault(id(module.weight), Layer(name, module, groups, width, owner=module))
                self._layer_of[module] = replace(first, module=module)
        zero = next(net.parameters(), torch.zeros(())).new_zeros(())
        # A pretrained net never reads its images here, which may be large: they are one number, expanded.
        frozen = any(isinstance(part, FrozenBody) for part in net.modules())
        probe = zero.expand(1, *input_shape) if frozen else zero.new_zeros(1, *input_shape)
        with self.watch() as flow, evaluating(net), zero_outputs(net):
            net(probe)
        called = {layer.name: replace(layer, module=layer.owner) for layer in flow.layers}
        self.layers: list[Layer] = list(called.values())
        self._layer_of = {module: layer for module, layer in self._layer_of.items() if layer.name in called}
        protected = {id(p) for layer in self.layers for p in layer.owner.parameters(recurse=False)}
        self.free = {name: parameter for name, parameter in net.named_parameters() if id(parameter) not in protected}

    @contextmanager
    def watch(self) -> Iterator[Flow]:
        """Record inputs and outputs of the layers while the block runs."""
        flow = Flow()

        def record(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
            flow.layers.append(self._layer_of[module])
            flow.inputs.append(inputs[0] if inputs else named["input"])
            flow.outputs.append(output)
            flow.versions.append(output._version)

        handles = [module.register_forward_hook(record, with_kwargs=True) for module in self._layer_of]
        try:
            yield flow
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def watch_stages(net: nn.Module) -> Iterator[list[Tensor]]:
    """Record the outputs of a net's stages, before their activations, while the block runs.

    A net of ours may name them in ``stages``; of another net they are its linear and convolutional layers.
    """
    named = getattr(net, "stages", None) or [
        name for name, module in net.named_modules() if isinstance(module, Projectable)
    ]
    outputs: list[Tensor] = []
    hooks = [
        net.get_submodule(name).register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for name in named
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _is_plain(module: Projectable) -> bool:
    """Whether a layer multiplies its input by its own weight, and does nothing else."""
    # A reparametrised layer (as by weight_norm) computes its weight: it cannot be updated.
    own_weight = isinstance(module._parameters.get("weight"), nn.Parameter)
    plain = type(module).forward in _FORWARDS
    return own_weight and plain and (isinstance(module, nn.Linear) or type(module)._conv_forward in _CONVOLUTIONS)


def _padded(module: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """Pad a convolution's input as the convolution does."""
    # torch stores the padding of all sides, for numbers and for 'same', in this order.
    if not any(module._reversed_padding_repeated_twice):
        return x
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    return F.pad(x, module._reversed_padding_repeated_twice, mode=mode)


def _columns(module: nn.Conv1d | nn.Conv2d, x: Tensor, every: int = 1) -> Tensor:
    """Unfold a convolution's input, shape ``(n, groups, channels/groups·k·k, positions)``."""
    x = _padded(module, x)
    kernel, dilation, stride = module.kernel_size, module.dilation, tuple(every * step for step in module.stride)
    if isinstance(module, nn.Conv1d):  # an image of height 1
        x, kernel, dilation, stride = x.unsqueeze(2), (1, *kernel), (1, *dilation), (1, *stride)
    columns: Tensor = F.unfold(x, kernel, dilation=dilation, stride=stride).unflatten(1, (module.groups, -1))
    return columns


Taps = LayerHooks  # its name in estimators pickled by version 0.1
