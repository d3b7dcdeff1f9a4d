"""What whitened patches do to images: cut them up, normalise, compare with filters, pool. Tensors in, tensors out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["FILTERS_AT_ONCE", "PLACES_AT_ONCE", "Bank", "banks", "distinct", "normalised", "unfolded", "whitening"]

#: Filters and places of an image whose responses stay in a core's cache.
FILTERS_AT_ONCE, PLACES_AT_ONCE = 400, 1024
_EPSILON = 0.1  # added to the eigenvalues before whitening; a normalised pixel has variance 1


@dataclass(frozen=True)
class Bank:
    """Some filters, their offsets, and the windows that their responses are pooled over, in bands of an image's places."""

    columns: slice
    filters: Tensor
    offset: Tensor
    windows: tuple[Tensor, ...]

    def room(self, scratch: Tensor, images: int) -> list[tuple[Tensor, Tensor]]:
        """Two places in scratch memory for the responses of so many images, for every band."""
        shapes = [(images, band.shape[1], self.filters.shape[1]) for band in self.windows]
        first, second = scratch
        return [(first[: a * b * c].view(a, b, c), second[: a * b * c].view(a, b, c)) for a, b, c in shapes]

    def add(self, patches: Tensor, threshold: float, room: list[tuple[Tensor, Tensor]], sums: Tensor) -> None:
        """Add images' pooled responses above the threshold, and those below minus it, to ``sums``.

        Products are made image by image, so that none depends on the images beside it. Responses in between are set to the
        threshold instead of 0: that moves every feature by a constant, which scaling takes away again.
        """
        above, below = sums[..., self.columns].unbind(1)
        filters = self.filters.expand(len(patches), -1, -1)
        for band, windows, (responses, cut) in zip(patches.split(PLACES_AT_ONCE, 1), self.windows, room, strict=True):
            windows = windows.expand(len(patches), -1, -1)
            torch.baddbmm(self.offset, band, filters, out=responses)
            above.baddbmm_(windows, torch.clamp(responses, min=threshold, out=cut))
            below.baddbmm_(windows, responses.clamp_(max=-threshold))


def banks(filters: Tensor, offset: Tensor, sides: tuple[int, int], windows: int, mirrored: Tensor | None) -> list[Bank]:
    """Filters in portions; those that see the mirror image are mirrored themselves, and so are their windows.

    Parameters
    ----------
    filters : Tensor, shape (length, count)
    offset : Tensor, shape (count,)
    sides : tuple of int
        Places of a patch along the image's height and width.
    windows : int
        Pooling windows along a side.
    mirrored : Tensor or None
        The filters for the mirror image, if its responses are to be added.
    """
    height, width = (_triangles(side, windows) for side in sides)
    views = [(filters, width)] if mirrored is None else [(filters, width), (mirrored, width.flip(1))]
    found = []
    for own, across in views:
        weights = torch.einsum("ai,bj->abij", height, across).flatten(2).flatten(0, 1).to(filters)
        bands = tuple(band.contiguous() for band in weights.split(PLACES_AT_ONCE, 1))
        for first in range(0, own.shape[1], FILTERS_AT_ONCE):
            columns = slice(first, first + FILTERS_AT_ONCE)
            found.append(Bank(columns, own[:, columns].contiguous(), offset[columns], bands))
    return found


def distinct(total: int, count: int, random: torch.Generator) -> Tensor:
    """``count`` different numbers below ``total``; without a list of all of them when there are very many."""
    if total <= 1 << 24:
        return torch.randperm(total, generator=random)[:count]
    drawn: Tensor = torch.randint(total, (count + count // 8,), generator=random).unique()
    return drawn[torch.randperm(len(drawn), generator=random)[:count]]


def unfolded(images: Tensor, size: int) -> Tensor:
    """All patches of images ``(…, channels, height, width)``, one a row."""
    patches = images.unfold(-2, size, 1).unfold(-2, size, 1)  # (…, channels, rows, columns, size, size)
    return patches.movedim(-5, -3).flatten(-3).flatten(-3, -2)


def normalised(patches: Tensor, floor: Tensor) -> Tensor:
    """Subtract each patch's mean and divide by its contrast; what is nearly flat stays so."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred.div_((centred.square().mean(-1, keepdim=True) + floor).sqrt_())


def whitening(patches: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric matrix ``(C + εI)^(−1/2)`` that evens out the directions of patches, and their mean."""
    mean = patches.mean(0)
    covariance = torch.zeros(patches.shape[1], patches.shape[1], dtype=torch.float64, device=patches.device)
    for block in patches.split(1 << 16):
        centred = (block - mean).double()
        covariance += centred.T @ centred / len(patches)
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    return ((vectors * (eigenvalues + _EPSILON).rsqrt()) @ vectors.T).float(), mean


def _triangles(side: int, count: int) -> Tensor:
    """Weights of ``count`` windows along a side: triangles that reach to the middles of their neighbours; each sums to 1."""
    middles = (torch.arange(count) + 0.5) * side / count - 0.5
    weights = (1 - (torch.arange(side) - middles[:, None]).abs() * count / side).clamp_min(0)
    return weights / weights.sum(1, keepdim=True)
