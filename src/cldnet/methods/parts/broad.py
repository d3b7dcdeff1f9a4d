"""The random feature map of CRNet, that of a broad learning system (Chen & Liu 2018), fitted once and then fixed.

An input is standardised by its own mean and spread, and gets a constant 0.1 at its end: ``x``. Then come

- groups of *mapped* features ``z``: random Gaussian features of ``x``, scaled to [0, 1], say which weights to take, namely the
  sparse ones with which they rebuild ``x`` (lasso); ``z`` are the products with these, scaled to [0, 1] too;
- *enhanced* features ``h = tanh(s · (z, 0.1) W / m)`` with ``W`` random with orthonormal rows, ``m`` the largest product;
- *hidden* units ``a = relu((z, h) V + b)`` with ``V`` and ``b`` uniform in [−1, 1]. They are what the map gives.

Scales, sparse weights and ``m`` come from the data that the map is fitted on. All arithmetic is in float64.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

__all__ = ["BroadMap", "sparse_weights"]

#: Rows that are in float64 at a time while the map is fitted.
_BLOCK = 1024
_CONSTANT = 0.1


class BroadMap(nn.Module):
    """Mapped, enhanced and hidden random features.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input.
    groups, group_width : int
        Number of groups of mapped features, and of features in each.
    enhanced, hidden : int
        Numbers of enhanced features and of hidden units.
    sharpness : float
        ``s``: how near the enhanced features are to a step.
    source : torch.Generator
        Where what is random comes from.

    Examples
    --------
    >>> features = BroadMap((5,), 2, 3, enhanced=9, hidden=7, sharpness=30.0, source=torch.Generator().manual_seed(0))
    >>> x = torch.randn(20, 5, generator=torch.Generator().manual_seed(1))
    >>> features.fit(x)
    >>> features(x).shape, float(features(x).min())
    (torch.Size([20, 7]), 0.0)
    """

    first: Tensor
    mapped: Tensor
    low: Tensor
    range: Tensor
    mixing: Tensor
    largest: Tensor
    weight: Tensor
    bias: Tensor
    fitted: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        groups: int,
        group_width: int,
        *,
        enhanced: int,
        hidden: int,
        sharpness: float,
        source: torch.Generator,
    ) -> None:
        super().__init__()
        self.out_features, self.sharpness = hidden, sharpness
        inputs, features = prod(input_shape) + 1, groups * group_width
        self.register_buffer("first", 2 * _normal((groups, inputs, group_width), source) - 1)
        self.register_buffer("mapped", torch.zeros(inputs, features, dtype=torch.float64))
        self.register_buffer("low", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("range", torch.ones(features, dtype=torch.float64))
        self.register_buffer("mixing", _orthonormal(2 * _normal((features + 1, enhanced), source) - 1))
        self.register_buffer("largest", torch.ones((), dtype=torch.float64))
        self.register_buffer("weight", _uniform((features + enhanced, hidden), source))
        self.register_buffer("bias", _uniform((hidden,), source))
        self.register_buffer("fitted", torch.tensor(False))

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take scales and sparse weights from training inputs. A row of weight 2 counts as two, one of weight 0 not at all."""
        rows = torch.ones(len(x), dtype=torch.float64, device=x.device) if weight is None else weight.double()
        x, rows = x[rows > 0], rows[rows > 0]
        blocks, shares = x.split(_BLOCK), rows.split(_BLOCK)
        random = torch.cat([self._inputs(block) @ self.first for block in blocks], dim=1)  # (groups, n, width)
        scaled = (random - random.amin(1, keepdim=True)) / _or_one(random.amax(1) - random.amin(1))[:, None]
        parts = list(zip(blocks, scaled.split(_BLOCK, 1), shares, strict=True))
        gram = sum((part.mT * share) @ part for _, part, share in parts)
        moments = sum((part.mT * share) @ self._inputs(block) for block, part, share in parts)
        self.mapped.copy_(sparse_weights(gram, moments).flatten(0, 1).T)
        z = torch.cat([self._inputs(block) @ self.mapped for block in blocks])
        self.low.copy_(z.amin(0))
        self.range.copy_(_or_one(z.amax(0) - z.amin(0)))
        largest = [self._mixed((block - self.low) / self.range).max() for block in z.split(_BLOCK)]
        self.largest.copy_(torch.stack(largest).max().clamp_min(1e-12))
        self.fitted.fill_(True)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to the hidden units ``(n, hidden)``, each row by itself, in float64."""
        z = (self._inputs(x) @ self.mapped - self.low) / self.range
        h = torch.tanh(self._mixed(z) * (self.sharpness / self.largest))
        return torch.relu(torch.cat([z, h], dim=1) @ self.weight + self.bias)

    def _inputs(self, x: Tensor) -> Tensor:
        """Standardise inputs, each by itself, and append the constant."""
        rows = x.double().flatten(1)
        rows = rows - rows.mean(1, keepdim=True)
        return _with_constant(rows / _or_one(rows.square().mean(1, keepdim=True).sqrt()))

    def _mixed(self, z: Tensor) -> Tensor:
        return _with_constant(z) @ self.mixing


def sparse_weights(gram: Tensor, moments: Tensor, penalty: float = 1e-3, steps: int = 50) -> Tensor:
    """Weights ``w`` that are small in ``½‖f w − x‖² + penalty·Σ|w|``, by so many steps of ADMM with ρ = 1.

    Parameters
    ----------
    gram : Tensor, shape (…, k, k)
        ``fᵀ f``.
    moments : Tensor, shape (…, k, d)
        ``fᵀ x``.

    Returns
    -------
    Tensor, shape (…, k, d)

    Examples
    --------
    >>> sparse_weights(4 * torch.eye(2), torch.tensor([[8.0], [0.0005]]), penalty=0.4)
    tensor([[1.9000],
            [0.0000]])
    """
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + eye)
    sparse, dual = torch.zeros_like(moments), torch.zeros_like(moments)
    for _ in range(steps):
        dense = torch.cholesky_solve(moments + sparse - dual, factor)
        sparse = nn.functional.softshrink(dense + dual, penalty)
        dual = dual + dense - sparse
    return sparse


def _with_constant(rows: Tensor) -> Tensor:
    return nn.functional.pad(rows, (0, 1), value=_CONSTANT)


def _or_one(spread: Tensor) -> Tensor:
    """What does not vary is not stretched."""
    return torch.where(spread > 1e-12, spread, 1.0)


def _orthonormal(random: Tensor) -> Tensor:
    """A basis of the rows' space if the matrix is wide, of the columns' if it is tall."""
    wide = random.shape[0] < random.shape[1]
    basis: Tensor = torch.linalg.svd(random.T if wide else random, full_matrices=False)[0]
    return (basis.T if wide else basis).contiguous()


def _normal(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=source, dtype=torch.float64)


def _uniform(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=source, dtype=torch.float64) - 1
