"""Importance of weights: sums over samples of a power of each sample's own gradient.

Squares give the diagonal of the Fisher information (EWC), magnitudes the importance of MAS. A linear layer's gradient for one
sample is the outer product ``δ hᵀ`` of its output's derivative and its input, so the sum over samples of ``|δ_i h_j|^p`` is one
matrix product, ``(|δ|^p)ᵀ (|h|^p)``. A convolution sums over its positions before the power is taken: one product per sample,
``|Δ_nᵀ H_n|^p``. Neither keeps a gradient per sample in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from cldnet.nets.hooks import Flow, Layer, LayerHooks

#: One loss per sample, from outputs ``(n, classes)`` and targets ``(n,)``.
Losses = Callable[[Tensor, Tensor], Tensor]
#: Targets ``(n,)`` for outputs ``(n, classes)`` without a gradient.
Targets = Callable[[Tensor], Tensor]
#: Batches of samples and their weights.
Weighted = Iterable[tuple[Tensor, Tensor | None]]
#: Samples per batch.
AT_ONCE = 64
#: Numbers that gradients of single samples may take up at once, with `torch.func`.
_NUMBERS = 1 << 26
#: Images whose gradients by a convolution are computed at once: more would not fit the processor's cache.
_IN_CACHE = 16
#: Samples on which the two implementations are compared, and their largest relative difference.
_COMPARED = 4
_TOLERANCE = 1e-3


class PerSample:
    """Gradients of single samples: layer by layer if that is exact, else by `torch.func`.

    Layer by layer is exact for a net whose parameters all belong to linear layers and convolutions that run once, on one row
    per sample. Normalisation, shared weights or weights used outside their layer would be missed: both implementations are
    compared on the first few samples, and the fast one is used only if the results agree. The net must be in evaluation mode,
    so that samples do not depend on each other. ``power`` is 1 for magnitudes, 2 for squares.
    """

    def __init__(self, net: nn.Module, input_shape: tuple[int, ...], losses: Losses, power: int) -> None:
        self.net, self.losses, self.power = net, losses, power
        self.hooks = LayerHooks(net, input_shape)
        self.name_of = {parameter: name for name, parameter in net.named_parameters()}
        self.quick: bool | None = None  # unknown before the first samples

    def sums(self, x: Tensor, targets: Targets, weight: Tensor | None = None) -> dict[str, Tensor]:
        """Sum ``w_n |∂ℓ_n/∂θ|^p`` over samples ``(n, …)``, a tensor per parameter; ``targets`` is called once."""
        if self.quick is None:
            self.quick = not self.hooks.free and self._implementations_agree(x[:_COMPARED])
        if self.quick:
            return self._by_layers(x, targets, weight)
        with torch.no_grad():
            chosen = targets(self.net(x))
        at_once = max(1, _NUMBERS // sum(parameter.numel() for parameter in self.name_of))
        total: dict[str, Tensor] = {}
        for part in torch.arange(len(x), device=x.device).split(at_once):
            part_weight = None if weight is None else weight[part]
            for name, value in self._by_samples(x[part], chosen[part], part_weight).items():
                total[name] = total[name] + value if name in total else value
        return total

    def _by_layers(self, x: Tensor, targets: Targets, weight: Tensor | None) -> dict[str, Tensor]:
        # With inputs that require a gradient every output has one, also after frozen layers.
        with torch.enable_grad(), self.hooks.watch() as flow:
            outputs = self.net(x.detach().requires_grad_())
            losses = self.losses(outputs, targets(outputs.detach()))
            if weight is not None:
                losses = losses * weight.to(losses) ** (1 / self.power)  # |w^(1/p) g|^p = w |g|^p
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
        parts = zip(h.split(_IN_CACHE), delta.split(_IN_CACHE), strict=True)
        return torch.stack([self._powered(layer.each_gradient(*part)).sum(0) for part in parts]).sum(0)

    def _by_samples(self, x: Tensor, targets: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        def loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
            outputs = functional_call(self.net, parameters, (sample[None],))
            return self.losses(outputs, target[None])[0]

        parameters = {name: parameter.detach() for parameter, name in self.name_of.items()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, targets)
        ones = x.new_ones(len(x)) if weight is None else weight.to(x)
        return {name: torch.tensordot(ones, self._powered(gradient), 1) for name, gradient in each.items()}

    def _implementations_agree(self, x: Tensor) -> bool:
        with torch.enable_grad(), self.hooks.watch() as flow:
            outputs = self.net(x.detach().requires_grad_())
        targets = outputs.detach().argmin(1)  # far from the net's prediction, so that no gradient vanishes
        if not _ran_once(flow, len(x)) or not _all_reached(flow, outputs):
            return False
        quick, slow = self._by_layers(x, lambda _: targets, None), self._by_samples(x, targets, None)
        return quick.keys() == slow.keys() and all(
            bool((quick[name] - value).norm() <= _TOLERANCE * value.norm()) for name, value in slow.items()
        )

    def _powered(self, values: Tensor) -> Tensor:
        return values.square() if self.power == 2 else values.abs()


def _ran_once(flow: Flow, samples: int) -> bool:
    """Whether every layer ran once, as its own module, on one row (or image) per sample."""
    names = [layer.name for layer in flow.layers]
    own = all(layer.module is layer.owner for layer in flow.layers)
    rows = all(
        len(h) == samples and h.ndim == (2 if isinstance(layer.module, nn.Linear) else layer.module.weight.ndim)
        for layer, h in zip(flow.layers, flow.inputs, strict=True)
    )
    return own and rows and len(names) == len({*names})


def _all_reached(flow: Flow, outputs: Tensor) -> bool:
    """Whether the outputs depend on every layer in a way that a gradient can follow."""
    if not all(output.requires_grad for output in flow.outputs):
        return False
    derivatives = torch.autograd.grad(outputs.sum(), flow.outputs, allow_unused=True)
    return all(derivative is not None for derivative in derivatives)


def mean_powers(per_sample: PerSample, batches: Weighted, targets: Targets) -> dict[str, Tensor]:
    """Mean over all samples of the power of their gradients; a weight of 2 counts as two samples, 0 as none."""
    total = {name: torch.zeros_like(parameter) for parameter, name in per_sample.name_of.items()}
    count = 0.0
    for x, weight in batches:
        for name, value in per_sample.sums(x, targets, weight).items():
            total[name] += value
        count += len(x) if weight is None else float(weight.sum())
    return {name: value / count if count > 0 else value for name, value in total.items()}


def fisher(
    net: nn.Module, input_shape: tuple[int, ...], batches: Weighted, source: torch.Generator
) -> dict[str, Tensor]:
    """Estimate ``F = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ)²`` per parameter of a net that returns logits.

    It is the mean of the squares of each sample's own gradient, not the square of a batch's mean gradient. One label per sample
    is drawn from ``source``, on the CPU.
    """

    def drawn(logits: Tensor) -> Tensor:
        return torch.multinomial(logits.softmax(1).cpu(), 1, generator=source)[:, 0].to(logits.device)

    cross_entropies = partial(F.cross_entropy, reduction="none")
    return mean_powers(PerSample(net, input_shape, cross_entropies, power=2), batches, drawn)


def batched_fisher(
    loss: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    parameters: Mapping[str, Tensor],
    batches: Iterable[tuple[Tensor, Tensor, Tensor | None]],
) -> dict[str, Tensor]:
    """Average the squares of batches' mean gradients, for the true labels: what several toolboxes call the Fisher.

    Gradients cancel within a batch before they are squared, so this is smaller than `fisher`, the more so the larger the
    batch; with batches of one it is the empirical Fisher. ``loss`` gets inputs, classes and weights, which add up to the number
    of samples. A batch counts by its weight.
    """
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    count = 0.0
    for x, y, weight in batches:
        mass = float(len(x) if weight is None else weight.sum())
        if mass <= 0:
            continue
        even = None if weight is None else weight * (len(x) / mass)
        gradients = torch.autograd.grad(loss(x, y, even), list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                total[name].addcmul_(gradient, gradient, value=mass)
        count += mass
    return {name: value / count if count > 0 else value for name, value in total.items()}
