"""Steps of gradient descent: the quickest SGD that is right for the parameters, and clipped steps along given gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["descend", "sgd"]


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


@torch.no_grad()
def descend(
    optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], clip: float, unit: float = 1.0
) -> None:
    """Take one step along gradients that were projected before, clipped after that; learning rates count in ``unit``.

    The gradients are changed.
    """
    moved = {parameter: gradient.contiguous() for parameter, gradient in gradients.items()}
    if moved:
        norm = nn.utils.get_total_norm(moved.values())
        torch._foreach_mul_([*moved.values()], (clip / (norm + 1e-6)).clamp(max=1.0) * unit)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = moved.get(parameter)
    optimizer.step()
