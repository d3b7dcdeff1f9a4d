"""Sums over samples of a power of each sample's own gradient: squares for the Fisher information, magnitudes for MAS.

A linear layer's gradient for one sample is the outer product ``δ hᵀ`` of its output's derivative and its input, so the sum
over samples of ``|δ_i h_j|^p`` is one product of matrices, ``(|δ|^p)ᵀ (|h|^p)``. A convolution adds up its positions before
the power is taken: one product a sample, ``|Δ_nᵀ H_n|^p``. Neither needs a gradient a sample in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cldnet.nets.taps import Flow, Layer, Taps

__all__ = ["AT_ONCE", "Losses", "PerSample", "mean_powers"]

#: One loss a sample, from outputs ``(n, classes)`` and targets ``(n,)``.
Losses = Callable[[Tensor, Tensor], Tensor]
#: Targets ``(n,)`` for outputs ``(n, classes)`` that carry no gradient.
Targets = Callable[[Tensor], Tensor]
#: Samples that go through the net at once.
AT_ONCE = 64
#: Numbers that gradients of single samples may take up at once, where a layer's inputs do not tell them.
_NUMBERS = 1 << 26
#: Images whose gradients by a convolution are made at once: more would not stay in the processor's cache.
_IN_CACHE = 16
#: Samples on which the two ways are compared, and the share by which they may differ: rounding is far below it.
_COMPARED = 4
_TOLERANCE = 1e-3


class PerSample:
    """Gradients of single samples, layer by layer where that is exact, else with `torch.func`.

    Layer by layer is exact for a net whose parameters all belong to linear layers and convolutions that run once, on one
    row a sample. Normalisation, shared weights or weights used behind the layer's back are not seen from there: the two
    ways are compared on the first few samples, and the quick one is taken only if it gives the same.

    Parameters
    ----------
    net : nn.Module
        In evaluation mode: samples must not depend on each other.
    input_shape : tuple of int
        Shape of one input.
    losses : callable
        One loss a sample, from outputs and targets.
    power : int
        1 for magnitudes, 2 for squares.

    Examples
    --------
    >>> net = nn.Linear(2, 1, bias=False)
    >>> squares = PerSample(net, (2,), lambda outputs, targets: outputs[:, 0], power=2)
    >>> squares.sums(torch.tensor([[1.0, 2.0], [3.0, 0.0]]), lambda outputs: outputs[:, 0])
    {'weight': tensor([[10.,  4.]])}
    """

    def __init__(self, net: nn.Module, input_shape: tuple[int, ...], losses: Losses, power: int) -> None:
        self.net, self.losses, self.power = net, losses, power
        self.taps = Taps(net, input_shape)
        self.name_of = {parameter: name for name, parameter in net.named_parameters()}
        self.quick: bool | None = None  # not known before the first samples

    def sums(self, x: Tensor, targets: Targets, weight: Tensor | None = None) -> dict[str, Tensor]:
        """Sum ``w_n |∂ℓ_n/∂θ|^p`` over samples ``(n, …)``, a tensor a parameter; ``targets`` is asked once, for all of them."""
        if self.quick is None:
            self.quick = not self.taps.free and self._ways_agree(x[:_COMPARED])
        if self.quick:
            return self._by_layers(x, targets, weight)
        with torch.no_grad():
            chosen = targets(self.net(x))
        at_once = max(1, _NUMBERS // sum(parameter.numel() for parameter in self.name_of))
        total: dict[str, Tensor] = {}
        for part in torch.arange(len(x), device=x.device).split(at_once):
            weighed = None if weight is None else weight[part]
            for name, value in self._by_samples(x[part], chosen[part], weighed).items():
                total[name] = total[name] + value if name in total else value
        return total

    def _by_layers(self, x: Tensor, targets: Targets, weight: Tensor | None) -> dict[str, Tensor]:
        # Inputs that ask for a gradient let every output have one, below frozen layers too. It is never computed.
        with torch.enable_grad(), self.taps.watch() as flow:
            outputs = self.net(x.detach().requires_grad_())
            losses = self._weighed(self.losses(outputs, targets(outputs.detach())), weight)
            deltas = torch.autograd.grad(losses.sum(), flow.outputs)
        sums = {}
        for layer, h, delta in zip(flow.layers, flow.inputs, deltas, strict=True):
            for parameter, value in layer.split(self._layer_sum(layer, h.detach(), delta)).items():
                sums[self.name_of[parameter]] = value  # type: ignore[index]
        return sums

    def _layer_sum(self, layer: Layer, h: Tensor, delta: Tensor) -> Tensor:
        """Sum of a layer's powers, shape ``(groups, outputs, width)``."""
        if isinstance(layer.module, nn.Linear):  # |δ_i h_j|^p = |δ_i|^p |h_j|^p
            return self._powered(layer.deltas(delta)).mT @ self._powered(layer.rows(h))
        few = zip(h.split(_IN_CACHE), delta.split(_IN_CACHE), strict=True)
        return torch.stack([self._powered(layer.each_gradient(*part)).sum(0) for part in few]).sum(0)

    def _by_samples(self, x: Tensor, targets: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self.net, parameters, (sample[None],))
            return self.losses(outputs, target[None])[0]

        parameters = {name: parameter.detach() for parameter, name in self.name_of.items()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, targets)
        ones = x.new_ones(len(x)) if weight is None else weight.to(x)
        return {name: torch.tensordot(ones, self._powered(gradient), 1) for name, gradient in each.items()}

    def _ways_agree(self, x: Tensor) -> bool:
        def unlikely(outputs: Tensor) -> Tensor:  # far from what the net says, so that no gradient vanishes
            return outputs.argmin(1)

        with torch.enable_grad(), self.taps.watch() as flow:
            outputs = self.net(x.detach().requires_grad_())
        targets = unlikely(outputs.detach())
        if not _once_a_sample(flow, len(x)) or not _all_reached(flow, outputs):
            return False
        quick, slow = self._by_layers(x, unlikely, None), self._by_samples(x, targets, None)
        return quick.keys() == slow.keys() and all(
            bool((quick[name] - value).norm() <= _TOLERANCE * value.norm()) for name, value in slow.items()
        )

    def _weighed(self, losses: Tensor, weight: Tensor | None) -> Tensor:
        return losses if weight is None else losses * weight.to(losses) ** (1 / self.power)  # |w^(1/p) g|^p = w |g|^p

    def _powered(self, values: Tensor) -> Tensor:
        return values.square() if self.power == 2 else values.abs()


def _all_reached(flow: Flow, outputs: Tensor) -> bool:
    """Whether every layer has a part in the outputs that a gradient can follow: not if it runs without one, or for nothing."""
    if not all(output.requires_grad for output in flow.outputs):
        return False
    derivatives = torch.autograd.grad(outputs.sum(), flow.outputs, allow_unused=True)
    return all(derivative is not None for derivative in derivatives)


def mean_powers(
    per_sample: PerSample, parts: Iterable[tuple[Tensor, Tensor | None]], targets: Targets
) -> dict[str, Tensor]:
    """Mean over all samples of the power of their gradients; a weight of 2 counts as two samples, 0 as none.

    Parameters
    ----------
    per_sample : PerSample
    parts : iterable of (Tensor, Tensor or None)
        Samples and their weights, a part at a time.
    targets : callable
        Targets for the outputs of a part.

    Examples
    --------
    >>> magnitudes = PerSample(nn.Linear(1, 1, bias=False), (1,), lambda outputs, targets: outputs[:, 0], power=1)
    >>> parts = [(torch.tensor([[-1.0], [4.0]]), None), (torch.tensor([[7.0]]), torch.tensor([1.0]))]
    >>> mean_powers(magnitudes, parts, lambda outputs: outputs[:, 0])
    {'weight': tensor([[4.]])}
    """
    total = {name: torch.zeros_like(parameter) for parameter, name in per_sample.name_of.items()}
    count = 0.0
    for x, weight in parts:
        for name, value in per_sample.sums(x, targets, weight).items():
            total[name] += value
        count += len(x) if weight is None else float(weight.sum())
    return {name: value / count if count > 0 else value for name, value in total.items()}


def _once_a_sample(flow: Flow, count: int) -> bool:
    """Tell whether every layer ran once, in a module of its own, on one row (or image) a sample."""
    names = [layer.name for layer in flow.layers]
    own = all(layer.module is layer.owner for layer in flow.layers)
    rows = all(
        len(h) == count and h.ndim == (2 if isinstance(layer.module, nn.Linear) else layer.module.weight.ndim)
        for layer, h in zip(flow.layers, flow.inputs, strict=True)
    )
    return own and rows and len(names) == len({*names})
