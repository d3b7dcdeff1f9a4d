"""The HSIC bottleneck (Eq. 5) of a batch: how to move a representation to depend less on the input and more on the label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cldnet.math import bottleneck, hsic

__all__ = ["Dependence", "NormalisedHSIC", "TraceHSIC"]

#: Takes a layer's representation Z and returns the derivative of ``HSIC(Z, X) − β HSIC(Z, Y)`` by it.
Derivative = Callable[[Tensor], Tensor]


class Dependence(Protocol):
    """A measure of dependence."""

    def of_batch(self, x: Tensor, y: Tensor, beta: float) -> Derivative:
        """Prepare what all layers share for a batch of inputs and class rows."""


@dataclass(frozen=True)
class NormalisedHSIC:
    """nHSIC with a Gaussian kernel scaled by dimension, Ma et al.'s; β is comparable across layers only in this form.

    For a batch of two classes nHSIC(Z, Y) is at most 1, whatever the layer.
    """

    sigma: float = 5.0
    epsilon: float = 1e-5

    def of_batch(self, x: Tensor, y: Tensor, beta: float) -> Derivative:
        """Normalise the kernels of X and Y once: all layers take their difference."""
        on_input = bottleneck.normalised(bottleneck.gaussian(x, self.sigma), self.epsilon)
        against = on_input.sub_(bottleneck.label_normalised(y, self.epsilon), alpha=beta).to(x.dtype)

        def derivative(z: Tensor) -> Tensor:
            kernel = bottleneck.gaussian(z, self.sigma)
            pulled = bottleneck.pull_back(kernel, bottleneck.nhsic_derivative(kernel, against, self.epsilon))
            return pulled.reshape(z.shape).to(z.dtype)

        return derivative


@dataclass(frozen=True)
class TraceHSIC:
    """The trace form that the paper writes (Eq. 2), with bandwidths by the median rule so that it is not vanishing."""

    def of_batch(self, x: Tensor, y: Tensor, beta: float) -> Derivative:
        """Compute the kernels of X and Y once: all layers take their difference."""
        on_input = bottleneck.median_gaussian(x).less_one
        against = hsic.center(on_input - beta * hsic.label_kernel(y, dtype=on_input.dtype)) / max(len(y) - 1, 1) ** 2

        def derivative(z: Tensor) -> Tensor:
            pulled = bottleneck.pull_back(bottleneck.median_gaussian(z), against)
            return pulled.reshape(z.shape).to(z.dtype)

        return derivative
