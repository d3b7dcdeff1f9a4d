"""The diagonal of the Fisher information: from one gradient a sample, as it is defined, and the shortcut by batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.parts.per_sample import PerSample, mean_powers

__all__ = ["batched_fisher", "cross_entropies", "fisher"]


def fisher(
    net: nn.Module,
    input_shape: tuple[int, ...],
    parts: Iterable[tuple[Tensor, Tensor | None]],
    source: torch.Generator,
) -> dict[str, Tensor]:
    """Estimate ``F = E_x E_{y ~ p(y|x)} (∂ log p(y|x) / ∂θ)²``, a tensor a parameter, with one label drawn a sample.

    It is the mean of the squares of each sample's own gradient, not the square of a batch's mean gradient.

    Parameters
    ----------
    net : nn.Module
        Gives logits ``(n, classes)``.
    input_shape : tuple of int
    parts : iterable of (Tensor, Tensor or None)
        Samples and their weights, a part at a time.
    source : torch.Generator
        What labels are drawn from, on the CPU.

    Examples
    --------
    >>> net = nn.Linear(1, 2, bias=False)
    >>> _ = nn.init.zeros_(net.weight)
    >>> fisher(net, (1,), [(torch.tensor([[1.0], [3.0]]), None)], torch.Generator())["weight"]
    tensor([[1.2500],
            [1.2500]])
    """

    def drawn(logits: Tensor) -> Tensor:
        return torch.multinomial(logits.softmax(1).cpu(), 1, generator=source)[:, 0].to(logits.device)

    return mean_powers(PerSample(net, input_shape, cross_entropies, power=2), parts, drawn)


def batched_fisher(
    loss: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    parameters: Mapping[str, Tensor],
    batches: Iterable[tuple[Tensor, Tensor, Tensor | None]],
) -> dict[str, Tensor]:
    """Average the squares of batches' mean gradients, for the true labels: what several toolboxes call the Fisher.

    In a batch gradients cancel before they are squared, so this is smaller than `fisher`, the more so the larger the
    batch; with batches of one it is the empirical Fisher.

    Parameters
    ----------
    loss : callable
        Mean loss of inputs, class rows and weights; the weights sum to the number of rows.
    parameters : mapping of str to Tensor
    batches : iterable of (Tensor, Tensor, Tensor or None)
        Inputs, class rows and weights. Rows of weight zero are left out; a batch counts by its weight.

    Examples
    --------
    >>> w = torch.zeros(1, requires_grad=True)
    >>> loss = lambda x, y, weight: ((x * w).sum(1)).mean()
    >>> batches = [(torch.tensor([[1.0], [-1.0]]), torch.zeros(2), None), (torch.tensor([[2.0], [4.0]]), torch.zeros(2), None)]
    >>> batched_fisher(loss, {"w": w}, batches)
    {'w': tensor([4.5000])}
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


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Give one cross-entropy a sample.

    Examples
    --------
    >>> cross_entropies(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor([1.3863, 1.3863])
    """
    return F.cross_entropy(logits, y, reduction="none")
