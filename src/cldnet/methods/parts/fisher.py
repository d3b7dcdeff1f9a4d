"""The diagonal of the Fisher information, from one gradient a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

__all__ = ["squared_gradients"]

Parameters = Mapping[str, Tensor]


def squared_gradients(
    logits: Callable[[Parameters, Tensor], Tensor], parameters: Parameters, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Sum over samples of the squared gradient of ``log p(y | x)``, a tensor a parameter.

    It is the square of each sample's own gradient, not of a batch's mean gradient. With ``y`` drawn from the model it
    estimates the Fisher information; with the true labels, the empirical one.

    Parameters
    ----------
    logits : callable
        Logits ``(n, classes)`` for parameters and inputs.
    parameters : mapping of str to Tensor
    x, y : Tensor
        Samples and class rows.

    Examples
    --------
    >>> import torch
    >>> logits = lambda parameters, x: x * parameters["w"]
    >>> fisher = squared_gradients(logits, {"w": torch.zeros(2)}, torch.ones(3, 2), torch.tensor([0, 0, 1]))
    >>> fisher["w"]
    tensor([0.7500, 0.7500])
    """

    def loss(parameters: Parameters, sample: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(logits(parameters, sample[None]), label[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(dict(parameters), x, y)
    return {name: gradient.square().sum(0) for name, gradient in per_sample.items()}
