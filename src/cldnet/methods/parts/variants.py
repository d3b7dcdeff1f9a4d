"""Variants of CLDNet's Algorithm 1: what the paper leaves open, one small class per choice.

`cldnet.methods.cldnet.CLDNetConfig` takes them, and `cldnet.methods.cldnet.CLDNet` implements what they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cldnet.math import hsic
from cldnet.methods.parts.alpha import Alpha, ConstantAlpha

# When the projectors absorb inputs (Eq. 6).


@dataclass(frozen=True)
class EveryStep:
    """At every batch, including those of the current and of the first task, as OWM does."""


@dataclass(frozen=True)
class TaskEnd:
    """After a task, in one more pass: its own gradients are not projected by its own inputs."""

    batch_size: int = 64


When = EveryStep | TaskEnd


# How the two objectives take their steps.


@dataclass(frozen=True)
class InTurn:
    """Algorithm 1, lines 9 and 10: one step of HBO, then a fresh forward pass and one step of EAE."""


@dataclass(frozen=True)
class Together:
    """One step on ``L_EAE + weight · L_HBO``, from one forward pass: half the work."""

    weight: float = 1.0


@dataclass(frozen=True)
class BottleneckFirst:
    """HBO alone at the start of the first task, while all projectors are the identity; then EAE alone.

    The hidden layers take ``epochs`` passes over the task in batches of ``batch_size``, by Adam.
    """

    epochs: int = 1
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"BottleneckFirst takes a positive {name}, not {getattr(self, name)}.")


@dataclass(frozen=True)
class EmbeddingAlone:
    """Line 10 alone: one step of EAE, without the HSIC bottleneck."""


Steps = InTurn | Together | BottleneckFirst | EmbeddingAlone


# How the embedding layer learns.


@dataclass(frozen=True)
class Last:
    """Through its projector, as the layers in front do."""

    absorbs: ClassVar[bool] = True
    learns: ClassVar[bool] = True


@dataclass(frozen=True)
class FreeLast(Last):
    """Without its projector, which stays empty: a plain output layer (the paper's first ablation)."""

    absorbs: ClassVar[bool] = False


@dataclass(frozen=True)
class FixedLast(Last):
    """Not at all: a random output layer, so that only the layers in front learn."""

    absorbs: ClassVar[bool] = False
    learns: ClassVar[bool] = False


# The hidden layers' first weights.


@dataclass(frozen=True)
class Given:
    """Those that the net comes with: random ones, or a trained net's."""


@dataclass(frozen=True)
class Principal:
    """Principal directions of each layer's inputs in the first task, in mirrored pairs; see `cldnet.nets.principal`."""

    samples: int = 4096  # most samples that they are computed from

    def __post_init__(self) -> None:
        if not self.samples >= 1:
            raise ValueError(f"Principal takes a positive number of samples, not {self.samples}.")


FirstWeights = Given | Principal


# Which vectors the softmax of Eq. 8 runs over.


@dataclass(frozen=True)
class SeenClasses:
    """Those of all classes seen so far: new classes are contrasted with old ones."""


@dataclass(frozen=True)
class TaskClasses:
    """Those of the current task's classes only ("local softmax"); tasks are never contrasted."""


@dataclass(frozen=True)
class AllClasses:
    """The whole table, including vectors that no class is bound to yet."""


Softmax = SeenClasses | TaskClasses | AllClasses


# How near an embedding ``(n, d)`` is to class vectors ``(classes, d)`` (Eq. 8), shape ``(n, classes)``. ``from_zero`` says
# whether training may start from embeddings of zero.


@dataclass(frozen=True)
class Cosine:
    """The cosine, as the paper's text says. Its gradient decreases with the embedding's length."""

    from_zero = False

    def __call__(self, z: Tensor, basis: Tensor) -> Tensor:
        # The length divides the few products instead of the many entries of z.
        lengths: Tensor = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        return z @ basis.T / lengths.clamp_min(1e-12)


@dataclass(frozen=True)
class InnerProduct:
    """The inner product of Eq. 8. The nearest vector is the same as by the cosine, but the embedding's length counts."""

    from_zero = True

    def __call__(self, z: Tensor, basis: Tensor) -> Tensor:
        return z @ basis.T


Similarity = Cosine | InnerProduct


# The unit of the learning rates (Eq. 9).


@dataclass(frozen=True)
class FixedRate:
    """A plain learning rate, ``θ ← θ − λ P g`` (Eq. 9). The stronger the projectors, the smaller the steps."""

    def unit(self, alpha: Alpha, samples: int) -> float:
        """Return the unit, which is 1 for any batch."""
        return 1.0


@dataclass(frozen=True)
class PerAlpha:
    """A learning rate in units of samples/α, for a constant α and projectors that absorb every sample.

    ``P/α = (αI + Σ r rᵀ)⁻¹`` is the matrix of recursive least squares: with a squared loss and one pass, a rate of 1 is its
    step. However many samples came before, and whatever their scale, a step then weighs new samples against old ones.
    """

    def unit(self, alpha: Alpha, samples: int) -> float:
        """Return samples/α."""
        if not isinstance(alpha, ConstantAlpha):
            raise ValueError(f"PerAlpha needs a constant α, not {alpha}: use ConstantAlpha.")
        return samples / alpha.value


Rate = FixedRate | PerAlpha


# The measure of dependence of the HSIC bottleneck (Eq. 5).


@dataclass(frozen=True)
class NormalisedHSIC:
    """nHSIC (Ma et al.) with a Gaussian kernel scaled by dimension; β is comparable across layers only in this form.

    For a batch of two classes nHSIC(Z, Y) is at most 1, whatever the layer.
    """

    sigma: float = 5.0
    epsilon: float = 1e-5

    def derivatives(self, x: Tensor, y: Tensor, layers: Sequence[Tensor], beta: float) -> list[Tensor]:
        """Derivatives of ``nHSIC(Z, X) − β nHSIC(Z, Y)`` by the representations ``Z`` of some layers."""
        kernels = [hsic.gaussian(z, self.sigma) for z in (x, *layers)]
        ridge = self.epsilon * len(x)
        wide = any(kernel.rows.dtype == torch.float64 for kernel in kernels)
        dtype = torch.float64 if wide else x.dtype
        on_input, *inverses = hsic.centred_inverse(torch.stack([k.less_one.to(dtype) for k in kernels]), ridge)
        against = hsic.normalised(on_input, ridge).sub_(hsic.label_normalised(y, self.epsilon, dtype), alpha=beta)
        pulled = [
            hsic.pull_back(kernel, hsic.nhsic_derivative(inverse, against, ridge).to(kernel.rows.dtype))
            for kernel, inverse in zip(kernels[1:], inverses, strict=True)
        ]
        return [rows.reshape(z.shape).to(z.dtype) for rows, z in zip(pulled, layers, strict=True)]


@dataclass(frozen=True)
class TraceHSIC:
    """The trace form of Eq. 2, with bandwidths by the median rule so that it does not vanish."""

    def derivatives(self, x: Tensor, y: Tensor, layers: Sequence[Tensor], beta: float) -> list[Tensor]:
        """Derivatives of ``HSIC(Z, X) − β HSIC(Z, Y)`` by the representations ``Z`` of some layers."""
        on_input = hsic.median_gaussian(x).less_one
        against = hsic.center(on_input - beta * hsic.label_kernel(y, dtype=on_input.dtype)) / max(len(y) - 1, 1) ** 2
        pulled = [hsic.pull_back(hsic.median_gaussian(z), against) for z in layers]
        return [rows.reshape(z.shape).to(z.dtype) for rows, z in zip(pulled, layers, strict=True)]


Dependence = NormalisedHSIC | TraceHSIC
