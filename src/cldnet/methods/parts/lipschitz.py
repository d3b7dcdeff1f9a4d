"""LiDER's estimate of the Lipschitz constants between consecutive stages of a net, and learnable targets for them.

Let ``a`` and ``b`` be one sample's feature maps in front of and behind some layers, with a row per channel and a column per
position. ``b``'s channels are averaged down (or repeated) to the number of ``a``'s, both are divided by their norms over
channels, and ``a`` is averaged to ``b``'s positions. With ``M = a bᵀ / positions`` the estimate is ``L = ‖M‖₂``, the root of
the largest eigenvalue of ``M Mᵀ``, by power iterations.

A vector is a map of one position. ``M`` then has rank one and ``L`` is always 1: between dense layers nothing can be learned.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets.fingerprint import evaluating
from cldnet.nets.hooks import watch_stages
from cldnet.nets.pretrained import zero_outputs

_ITERATIONS = 10
#: Most samples from which the first targets are computed, and how many at a time.
_SAMPLES, _AT_A_TIME = 1024, 64
#: Eigenvalues below this count as it: the root has no derivative at 0.
_SMALLEST = 1e-24


class Lipschitz(nn.Module):
    """Targets ``c`` of a net's Lipschitz constants: one per pair of consecutive maps, from the input to the last stage."""

    def __init__(self, net: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        probe = next(net.parameters(), torch.zeros((), dtype=dtype)).new_zeros(1, *input_shape)
        with evaluating(net), zero_outputs(net):
            pairs = len(_maps(net, probe)) - 1
        self.targets = nn.Parameter(torch.zeros(pairs, dtype=dtype))

    def __len__(self) -> int:
        """Number of pairs; 0 for a net without layers."""
        return len(self.targets)

    def constants(self, net: nn.Module, x: Tensor, source: torch.Generator) -> Tensor:
        """``L`` of each pair for scaled inputs, shape ``(n, pairs)``, in float64."""
        maps = _maps(net, x)[: len(self) + 1]
        each = [lipschitz_constants(front, back, source) for front, back in pairwise(maps)]
        return torch.stack(each, 1) if each else x.new_zeros(len(x), 0, dtype=torch.float64)

    def distance(self, constants: Tensor) -> Tensor:
        """Mean of ``|L − relu(c)|``."""
        return (constants - F.relu(self.targets)).abs().mean()

    def fit(self, net: nn.Module, x: Tensor, scale: Callable[[Tensor], Tensor], source: torch.Generator) -> None:
        """Set the targets to the mean constants of a net in evaluation mode, over at most 1,024 of the inputs."""
        chosen = torch.randperm(len(x), generator=source)[:_SAMPLES].to(x.device)
        with evaluating(net):
            parts = [self.constants(net, scale(x[part]), source) for part in chosen.split(_AT_A_TIME)]
            self.targets.copy_(torch.cat(parts).mean(0))


def _maps(net: nn.Module, x: Tensor) -> list[Tensor]:
    """The input and the outputs of a net's stages, where these have a row per sample."""
    with watch_stages(net) as stages:
        net(x)
    maps = [stage for stage in stages if stage.ndim > 1 and len(stage) == len(x)]
    grey = x.ndim == 3 and bool(maps) and maps[0].ndim == 4  # images without an axis for their one channel
    return [x.unsqueeze(1) if grey else x, *maps]


def lipschitz_constants(front: Tensor, back: Tensor, source: torch.Generator) -> Tensor:
    """``L`` of each sample, shape ``(n,)``, from maps ``(n, channels, …)``; random start vectors come from ``source``."""
    a, b = (stage.double() if stage.ndim > 2 else stage.double().unsqueeze(2) for stage in (front, back))
    if b.shape[1] != a.shape[1]:
        b = F.adaptive_avg_pool1d(b.flatten(2).mT, a.shape[1]).mT.unflatten(2, b.shape[2:])
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    if a.ndim == b.ndim == 4 and a.shape[2:] != b.shape[2:]:
        a = F.adaptive_avg_pool2d(a, (b.shape[2], b.shape[3]))
    a, b = a.flatten(2), b.flatten(2)
    if a.shape[2] != b.shape[2]:
        a = F.adaptive_avg_pool1d(a, b.shape[2])
    channels, positions = b.shape[1:]
    b = b / positions
    # M = a bᵀ has channels² entries, which only pays where there are more positions than channels.
    factors = (a @ b.mT,) if channels <= positions else (a, b.mT)
    v = torch.rand(len(a), channels, 1, generator=source, dtype=torch.float64).to(a.device)
    with torch.no_grad():
        for _ in range(_ITERATIONS - 1):
            v = F.normalize(_gram_times(factors, v), dim=1)
    largest: Tensor = torch.linalg.vector_norm(_gram_times(factors, v), dim=(1, 2))
    return largest.clamp_min(_SMALLEST).sqrt()


def _gram_times(factors: tuple[Tensor, ...], v: Tensor) -> Tensor:
    """``M Mᵀ v`` for a product ``M`` of factors."""
    for factor in factors:
        v = factor.mT @ v
    for factor in reversed(factors):
        v = factor @ v
    return v
