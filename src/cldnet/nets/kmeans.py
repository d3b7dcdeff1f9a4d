"""Spherical k-means: directions that many vectors share."""

from __future__ import annotations

import torch
from torch import Tensor

from cldnet.device import share_out

__all__ = ["spherical_kmeans"]


def spherical_kmeans(
    vectors: Tensor, count: int, generator: torch.Generator, *, least: int = 1, iterations: int = 10
) -> Tensor:
    """Find unit vectors, each the direction of the mean of at least ``least`` of the normalised vectors.

    A cluster that has fewer is begun anew at a random vector; after the last round it becomes the mean of the ``least``
    vectors that are nearest to a random one.

    Parameters
    ----------
    vectors : Tensor, shape (n, d)
        At least ``least`` of them.
    count : int
        Number of clusters.
    generator : torch.Generator
        Source of the first centres and of new ones.
    least : int
        Vectors in a cluster, at least.
    iterations : int
        Rounds of assigning vectors and averaging them.

    Returns
    -------
    Tensor, shape (count, d)

    Examples
    --------
    >>> vectors = torch.tensor([[2.0, 0.1], [3.0, -0.1], [0.1, 1.0], [-0.1, 2.0]])
    >>> centres = spherical_kmeans(vectors, 2, torch.Generator().manual_seed(1), least=2)
    >>> centres.round().sort(0).values
    tensor([[0., 0.],
            [1., 1.]])
    """
    if len(vectors) < least:
        raise ValueError(f"A cluster should have at least {least} vectors, and there are only {len(vectors)}.")
    unit = torch.nn.functional.normalize(vectors)
    centres = unit[_some(unit, count, generator)]
    for left in reversed(range(iterations)):
        sums, sizes = _assigned(unit, centres)
        small = sizes < least
        seeds = unit[_some(unit, int(small.sum()), generator)]
        sums[small] = seeds if left else _neighbourhoods(unit, seeds, least)
        centres = torch.nn.functional.normalize(sums)
    return centres


def _some(vectors: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Numbers of random vectors, different ones as long as there are enough."""
    order = torch.randperm(len(vectors), generator=generator)
    return order.repeat(-(-count // len(vectors)))[:count].to(vectors.device)


def _assigned(unit: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and number of the vectors that are nearest to each centre.

    In blocks that stay small beside the vectors, each on one thread and added up in their order, so that the number of
    threads leaves no trace.
    """
    parts: dict[int, tuple[Tensor, Tensor]] = {}

    def assign(block: range) -> None:
        own = unit[block.start : block.stop]
        nearest = (own @ centres.T).argmax(1)
        sizes = nearest.bincount(minlength=len(centres))
        parts[block.start] = torch.zeros_like(centres).index_add_(0, nearest, own), sizes

    share_out(assign, len(unit), 4096)
    sums, sizes = parts.pop(0)
    for first in sorted(parts):
        sums += parts[first][0]
        sizes += parts[first][1]
    return sums, sizes


def _neighbourhoods(unit: Tensor, seeds: Tensor, count: int) -> Tensor:
    """Mean of the ``count`` vectors nearest to each seed."""
    means = torch.empty_like(seeds)
    for mean, seed in zip(means, seeds, strict=True):
        mean.copy_(unit[(unit @ seed).topk(count).indices].mean(0))
    return means
