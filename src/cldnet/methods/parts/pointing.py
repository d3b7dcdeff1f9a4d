"""Readings of how the embedding points at a class vector (Eq. 8), and of what the learning rate counts in (Eq. 9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from cldnet.methods.parts.alpha import Alpha, ConstantAlpha

__all__ = ["Cosine", "FixedRate", "InnerProduct", "PerAlpha", "Rate", "Similarity"]


class Similarity(Protocol):
    """How near an embedding is to the class vectors."""

    #: Whether an embedding of zeros is no harm: it has no direction.
    from_zero: bool

    def __call__(self, z: Tensor, basis: Tensor) -> Tensor:
        """Compare embeddings ``(n, d)`` with vectors ``(classes, d)``, shape ``(n, classes)``."""


@dataclass(frozen=True)
class Cosine:
    """The cosine, of which the paper's text speaks. Its gradient falls with the embedding's length.

    Examples
    --------
    >>> import torch
    >>> Cosine()(torch.tensor([[3.0, 4.0]]), torch.eye(2))
    tensor([[0.6000, 0.8000]])
    """

    from_zero = False

    def __call__(self, z: Tensor, basis: Tensor) -> Tensor:
        """Return the cosines."""
        return F.normalize(z, dim=1) @ basis.T


@dataclass(frozen=True)
class InnerProduct:
    """The inner product that Eq. 8 writes. The nearest vector is the same one, but the embedding's length counts.

    Examples
    --------
    >>> import torch
    >>> InnerProduct()(torch.tensor([[3.0, 4.0]]), torch.eye(2))
    tensor([[3., 4.]])
    """

    from_zero = True

    def __call__(self, z: Tensor, basis: Tensor) -> Tensor:
        """Return the inner products."""
        return z @ basis.T


class Rate(Protocol):
    """What a learning rate counts in."""

    def unit(self, alpha: Alpha, rows: int) -> float:
        """Return the unit for a batch of so many rows."""


@dataclass(frozen=True)
class FixedRate:
    """A plain learning rate, ``θ ← θ − λ P g`` (Eq. 9). The stronger the projectors, the smaller the steps."""

    def unit(self, alpha: Alpha, rows: int) -> float:
        """Return one."""
        return 1.0


@dataclass(frozen=True)
class PerAlpha:
    """A learning rate in units of rows/α, for a constant α and projectors that are fed with every sample.

    ``P/α = (αI + Σ r rᵀ)⁻¹`` is the matrix of recursive least squares: with a squared loss and one pass, a rate of 1 is its
    very step. However many samples came before, and whatever their scale, a step then weighs new samples against old ones.

    Examples
    --------
    >>> PerAlpha().unit(ConstantAlpha(16.0), rows=64)
    4.0
    """

    def unit(self, alpha: Alpha, rows: int) -> float:
        """Return rows/α."""
        if not isinstance(alpha, ConstantAlpha):
            raise ValueError(f"PerAlpha counts learning rates in a constant α, not in {alpha}: use ConstantAlpha.")
        return rows / alpha.value
