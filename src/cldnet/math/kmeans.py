"""k-means by Lloyd's algorithm, deterministic for a given generator."""

from __future__ import annotations

import torch
from torch import Tensor


def nearest(x: Tensor, centers: Tensor) -> Tensor:
    """Index of the nearest center of every row ``(n, d)``."""
    return center_scores(x, centers).argmax(1)


def center_scores(x: Tensor, centers: Tensor) -> Tensor:
    """Scores that are higher for nearer centers: ``x·c − ‖c‖²/2``, which is ``(‖x‖² − ‖x − c‖²)/2``."""
    return x @ centers.mT - centers.square().sum(1) / 2


def kmeans(x: Tensor, count: int, generator: torch.Generator, steps: int = 8) -> Tensor:
    """Cluster rows ``(n, d)``, ``n ≥ count``, and return the centers ``(count, d)``; an empty cluster keeps its center.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [1.0], [10.0], [12.0]])
    >>> sorted(kmeans(x, 2, torch.Generator().manual_seed(0)).flatten().tolist())
    [0.5, 11.0]
    """
    first = torch.randperm(len(x), generator=generator)[:count]
    centers = x[first.to(x.device)].clone()
    for _ in range(steps):
        place = nearest(x, centers)
        size = torch.bincount(place, minlength=count)
        sums = torch.zeros_like(centers).index_add_(0, place, x)
        centers = torch.where(size[:, None] > 0, sums / size.clamp_min(1)[:, None], centers)
    return centers
