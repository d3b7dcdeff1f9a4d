"""Steps of gradient descent: the quickest SGD that is right for the parameters, and clipped steps along given gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["are_surely_below", "descend", "sgd"]

#: The share of the largest norm below which a norm certainly lies under it, however it was rounded.
_SURELY_BELOW = 0.99


def sgd(parameters: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, momentum: float) -> torch.optim.SGD:
    """SGD of parameters, or of groups of them, in one pass over the memory where torch has that; the usual one elsewhere.

    Examples
    --------
    >>> weight = nn.Parameter(torch.ones(2))
    >>> optimizer = sgd([weight], lr=0.5, momentum=0.9)
    >>> descend(optimizer, {weight: torch.tensor([1.0, 0.0])}, clip=10.0)
    >>> weight.tolist()
    [0.5, 1.0]
    """
    given: list[Any] = list(parameters)
    moved = [parameter for part in given for parameter in (part["params"] if isinstance(part, dict) else [part])]
    # The fused kernel walks through memory: parameters, gradients and momenta have to lie in it one number after the other.
    fused = all(p.is_contiguous() and p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in moved)
    return torch.optim.SGD(given, lr=lr, momentum=momentum, fused=fused)


def are_surely_below(gradients: Iterable[Tensor], largest: float) -> bool:
    """Tell whether gradients together have a smaller norm, where that can be told quickly; else there is no saying.

    A norm takes several passes over all gradients, also where there is nothing to clip. On a CPU a product of each with itself
    takes a fraction of the time; on other devices looking at it would have to wait for it.

    Examples
    --------
    >>> are_surely_below([torch.tensor([3.0, 4.0])], 6.0), are_surely_below([torch.tensor([3.0, 4.0])], 5.0)
    (True, False)
    """
    if largest == float("inf"):
        return True
    flat = [gradient.flatten() for gradient in gradients]
    squares = sum(float(torch.dot(gradient, gradient)) for gradient in flat if gradient.is_cpu)
    return all(gradient.is_cpu for gradient in flat) and squares < (_SURELY_BELOW * largest) ** 2


@torch.no_grad()
def descend(
    optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], clip: float, unit: float = 1.0
) -> None:
    """Take one step along gradients that were projected before, clipped after that; learning rates count in ``unit``.

    The gradients are changed.
    """
    moved = {parameter: gradient.contiguous() for parameter, gradient in gradients.items()}
    if moved and not are_surely_below(moved.values(), clip):
        norm = nn.utils.get_total_norm(moved.values())
        torch._foreach_mul_([*moved.values()], (clip / (norm + 1e-6)).clamp(max=1.0) * unit)
    elif moved and unit != 1:
        torch._foreach_mul_([*moved.values()], unit)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = moved.get(parameter)
    optimizer.step()
