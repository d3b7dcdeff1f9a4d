"""The two terms of the HSIC bottleneck (Eq. 5) for a batch: dependence on the input and on the label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cldnet.math import hsic

__all__ = ["Dependence", "NormalisedHSIC", "TraceHSIC"]

#: Takes a layer's representation Z and returns its dependence on the batch's inputs X and on its labels Y.
Terms = Callable[[Tensor], tuple[Tensor, Tensor]]


class Dependence(Protocol):
    """A measure of dependence."""

    def of_batch(self, x: Tensor, y: Tensor) -> Terms:
        """Prepare what all layers share for a batch of inputs and class rows."""


@dataclass(frozen=True)
class NormalisedHSIC:
    """nHSIC with a Gaussian kernel scaled by dimension, Ma et al.'s; β is comparable across layers only in this form.

    For a batch of two classes nHSIC(Z, Y) is at most 1, whatever the layer.
    """

    sigma: float = 5.0
    epsilon: float = 1e-5

    def of_batch(self, x: Tensor, y: Tensor) -> Terms:
        """Normalise the kernels of X and Y once."""
        # In float64 from the start: the kernels are computed in it, so there and back would only cost time.
        r_x = hsic.normalise(hsic.gaussian_kernel(x.double(), self.sigma), self.epsilon)
        r_y = hsic.normalise(hsic.label_kernel(y, dtype=torch.float64), self.epsilon)

        def terms(z: Tensor) -> tuple[Tensor, Tensor]:
            r_z = hsic.normalise(hsic.gaussian_kernel(z.double(), self.sigma), self.epsilon)
            return hsic.nhsic_normalised(r_z, r_x), hsic.nhsic_normalised(r_z, r_y)

        return terms


@dataclass(frozen=True)
class TraceHSIC:
    """The trace form that the paper writes (Eq. 2), with bandwidths by the median rule so that it is not vanishing."""

    def of_batch(self, x: Tensor, y: Tensor) -> Terms:
        """Compute the kernels of X and Y once."""
        k_x, k_y = hsic.median_kernel(x.double()), hsic.label_kernel(y, dtype=torch.float64)

        def terms(z: Tensor) -> tuple[Tensor, Tensor]:
            k_z = hsic.median_kernel(z.double())
            return hsic.hsic(k_z, k_x), hsic.hsic(k_z, k_y)

        return terms
