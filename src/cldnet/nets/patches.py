"""Whitened patches: a fixed map of images, fitted on the first task without a gradient step.

Filters are spherical k-means centroids of contrast-normalised, whitened patches (Coates & Ng 2012). An image's patches
are normalised, compared with every filter, cut off on both sides of a threshold, and pooled over a few overlapping
windows. A mirrored image shows the same thing, so the features of an image and of its mirror image are added up.

No filter is a piece of somebody's image: each is the mean of at least `LEAST_PATCHES` patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cldnet.device import generator, share_out
from cldnet.math.kmeans import spherical_kmeans
from cldnet.nets.features import FEATURE_LIMIT, FeatureMap

__all__ = ["LEAST_PATCHES", "WhitenedPatches"]

#: Patches that a filter is the mean of, at least.
LEAST_PATCHES = 100
_PATCHES_A_FILTER = 250
_SCALE_IMAGES = 2000  # images of the first task whose features give means and spreads
_CONTRAST_FLOOR = 0.01  # share of the mean variance of patches below which a patch counts as flat
_EPSILON = 0.1  # added to the eigenvalues before whitening; a normalised pixel has variance 1
_SPREADS = 5.0  # a feature is cut off at so many spreads from its mean
_FILTERS_AT_ONCE = 400  # their responses to an image stay in a core's cache
_IMAGES_AT_ONCE = 16


class WhitenedPatches(FeatureMap):
    """Responses of an image's patches to whitened filters, pooled, in whole numbers from −127 to 127.

    Parameters
    ----------
    input_shape : tuple of int
        ``(height, width)`` or ``(channels, height, width)``.
    filters : int
        Number of filters. There are ``2 · filters · windows²`` features, and a constant one.
    seed : int
        Seed of the patches that are drawn and of k-means.
    size : int
        Side of a patch.
    windows : int
        Pooling windows along a side; each reaches to the middles of its neighbours.
    threshold : float
        Responses within this distance of 0 count as 0.
    mirror : bool
        Add up the features of the image and of its mirror image. Not for digits and letters.

    Examples
    --------
    >>> images = torch.randint(0, 256, (300, 3, 12, 12), generator=generator(0), dtype=torch.uint8)
    >>> features = WhitenedPatches((3, 12, 12), filters=10, seed=0)
    >>> features.fit(images)
    >>> features(images[:5]).shape
    torch.Size([5, 181])
    >>> float((features(images[:1]) - features(images[:1].flip(3))).abs().max()) <= 1
    True
    """

    kind: ClassVar[str] = "patches"

    filters: Tensor
    offset: Tensor
    floor: Tensor
    mean: Tensor
    spread: Tensor
    fitted: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        filters: int = 400,
        *,
        seed: int,
        size: int = 6,
        windows: int = 3,
        threshold: float = 0.25,
        mirror: bool = True,
    ) -> None:
        super().__init__()
        _check(input_shape, filters, size, windows, threshold)
        self.input_shape = tuple(input_shape)
        self.seed, self.size, self.windows, self.threshold, self.mirror = seed, size, windows, threshold, mirror
        self.channels = 1 if len(input_shape) == 2 else input_shape[0]
        self.sides = input_shape[-2] - size + 1, input_shape[-1] - size + 1
        self.out_features = 2 * filters * windows**2 + 1
        length = self.channels * size**2
        self.register_buffer("filters", torch.zeros(length, filters))
        self.register_buffer("offset", torch.zeros(filters))
        self.register_buffer("floor", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(self.out_features - 1))
        self.register_buffer("spread", torch.ones(self.out_features - 1))
        # Here so that two maps that differ in them have different ids.
        self.register_buffer("settings", torch.tensor([threshold, float(mirror)], dtype=torch.float64))
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def options(self) -> dict[str, Any]:
        """What the map is made with, beside its shape and seed."""
        return {
            "filters": self.filters.shape[1],
            "size": self.size,
            "windows": self.windows,
            "threshold": self.threshold,
            "mirror": self.mirror,
        }

    @property
    def min_rows(self) -> int:  # type: ignore[override]
        """Images that have as many patches as the filters need."""
        positions = self.sides[0] * self.sides[1]
        return max(2, -(-LEAST_PATCHES * self.filters.shape[1] // positions))

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Learn filters and the scale of features from the first task's images; those of weight 0 are left out."""
        images = x if weight is None else x[weight > 0]
        random = generator(self.seed)
        patches = self._draw(images, random)
        variance = patches.var(1, correction=0)
        self.floor.copy_(_CONTRAST_FLOOR * variance.double().mean().clamp_min(1e-12))
        patches = _normalised(patches[variance > self.floor], self.floor)
        count = self.filters.shape[1]
        if len(patches) < LEAST_PATCHES * count:
            raise ValueError(
                f"{count} filters need {LEAST_PATCHES * count:,} patches that show something, and the first images have "
                f"{len(patches):,}: begin with more images, or make the map with fewer filters."
            )
        whitening, centre = _whitening(patches)
        centroids = spherical_kmeans((patches - centre) @ whitening, count, random, least=LEAST_PATCHES)
        # Whitening is folded into the filters: the response to a patch p is cᵀ W (p − m).
        self.filters.copy_(whitening @ centroids.T)
        self.offset.copy_(-(centre @ self.filters))
        chosen = torch.randperm(len(images), generator=random)[:_SCALE_IMAGES].to(images.device)
        responses = self._responses(images[chosen]).double()
        self.mean.copy_(responses.mean(0))
        self.spread.copy_(responses.std(0, correction=0).clamp_min(1e-6))
        self.fitted.fill_(True)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map images to whole numbers from −127 to 127, as float32; each image by itself."""
        features = self._responses(x, extra=1)
        scaled = features[:, :-1]
        scaled.sub_(self.mean).mul_(FEATURE_LIMIT / _SPREADS / self.spread)
        scaled.round_().clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
        features[:, -1] = FEATURE_LIMIT
        return features

    def _draw(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Draw patches from all over the images, none of them twice."""
        pixels = images.reshape(len(images), self.channels, *self.input_shape[-2:])
        rows, columns = self.sides
        total = len(images) * rows * columns
        wanted = min(total, _PATCHES_A_FILTER * self.filters.shape[1])
        places = _distinct(total, wanted, random).to(images.device)
        side = torch.arange(self.size, device=images.device)
        channel = torch.arange(self.channels, device=images.device)[:, None, None]
        drawn = torch.empty(len(places), self.filters.shape[0], device=images.device)
        for into, block in zip(drawn.split(1 << 14), places.split(1 << 14), strict=True):
            image, place = (block // (rows * columns))[:, None, None, None], block % (rows * columns)
            row = (place // columns)[:, None, None, None] + side[:, None]
            column = (place % columns)[:, None, None, None] + side
            into.copy_(pixels[image, channel, row, column].flatten(1))
        return drawn

    def _responses(self, x: Tensor, extra: int = 0) -> Tensor:
        """Pooled responses of every image, with room for ``extra`` columns; images are shared out among threads.

        One image at a time, so that no number depends on the images beside it, and some hundred filters at a time, so that
        their responses never leave the cache.
        """
        pixels = x.reshape(len(x), self.channels, *self.input_shape[-2:])
        pooled = torch.empty(len(x), self.out_features - 1 + extra, device=x.device)
        banks = self._banks()

        def work(piece: range) -> None:
            positions, most = self.sides[0] * self.sides[1], max(bank.filters.shape[1] for bank in banks)
            scratch = torch.empty(2, positions * most, device=x.device)
            for number in piece:
                patches = _normalised(_unfolded(pixels[number].float(), self.size), self.floor)
                sums = pooled[number, : self.out_features - 1].view(2, self.windows**2, -1).zero_()
                for bank in banks:
                    bank.add(patches, self.threshold, scratch, sums)

        share_out(work, len(x), _IMAGES_AT_ONCE)
        return pooled

    def _banks(self) -> list[_Bank]:
        """Filters in portions; those that see the mirror image are mirrored themselves, and so are their windows."""
        height, width = (_windows(side, self.windows) for side in self.sides)
        images = [(self.filters, width)]
        if self.mirror:
            square = self.filters.view(self.channels, self.size, self.size, -1)
            images.append((square.flip(2).reshape(self.filters.shape), width.flip(1)))
        return [
            _Bank(
                slice(first, first + _FILTERS_AT_ONCE),
                filters[:, first : first + _FILTERS_AT_ONCE].contiguous(),
                self.offset[first : first + _FILTERS_AT_ONCE],
                torch.einsum("ai,bj->abij", height, across).flatten(2).flatten(0, 1).to(filters).contiguous(),
            )
            for filters, across in images
            for first in range(0, filters.shape[1], _FILTERS_AT_ONCE)
        ]


@dataclass(frozen=True)
class _Bank:
    """Some filters, their offsets, and the windows that their responses are pooled over."""

    columns: slice
    filters: Tensor
    offset: Tensor
    windows: Tensor

    def add(self, patches: Tensor, threshold: float, scratch: Tensor, sums: Tensor) -> None:
        """Add an image's pooled responses above the threshold, and those below minus it, to ``sums``.

        Responses in between are set to the threshold instead of 0: that moves every feature by a constant, which scaling
        takes away again.
        """
        shape = len(patches), self.filters.shape[1]
        responses, cut = (buffer[: shape[0] * shape[1]].view(shape) for buffer in scratch)
        torch.addmm(self.offset, patches, self.filters, out=responses)
        sums[0, :, self.columns] += self.windows @ torch.clamp(responses, min=threshold, out=cut)
        sums[1, :, self.columns] += self.windows @ torch.clamp(responses, max=-threshold, out=cut)


def _check(input_shape: tuple[int, ...], filters: int, size: int, windows: int, threshold: float) -> None:
    for name, value in (("filters", filters), ("size", size), ("windows", windows)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} should be a whole number of at least 1.")
    if not isinstance(threshold, int | float) or not 0 <= threshold < float("inf"):
        raise ValueError(f"threshold={threshold!r} should be a number from 0 on.")
    if len(input_shape) not in (2, 3):
        raise ValueError(
            f"backbone='patches' is for images, and inputs have shape {tuple(input_shape)}: fold flat rows with "
            "input_shape=(height, width), or use 'random-relu'."
        )
    if min(input_shape[-2:]) - size + 1 < windows:
        raise ValueError(
            f"Images of {input_shape[-2]}×{input_shape[-1]} pixels are too small for patches of side {size} in {windows} "
            "windows a side: make one of them smaller."
        )


def _distinct(total: int, count: int, random: torch.Generator) -> Tensor:
    """``count`` different numbers below ``total``; without a list of all of them when there are very many."""
    if total <= 1 << 24:
        return torch.randperm(total, generator=random)[:count]
    drawn: Tensor = torch.randint(total, (count + count // 8,), generator=random).unique()
    return drawn[torch.randperm(len(drawn), generator=random)[:count]]


def _unfolded(image: Tensor, size: int) -> Tensor:
    """All patches of an image ``(channels, height, width)``, one a row."""
    patches = image.unfold(1, size, 1).unfold(2, size, 1)
    return patches.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)


def _normalised(patches: Tensor, floor: Tensor) -> Tensor:
    """Subtract each patch's mean and divide by its contrast; what is nearly flat stays so."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred.div_((centred.square().mean(1, keepdim=True) + floor).sqrt_())


def _whitening(patches: Tensor) -> tuple[Tensor, Tensor]:
    """The symmetric matrix ``(C + εI)^(−1/2)`` that evens out the directions of patches, and their mean."""
    mean = patches.mean(0)
    covariance = torch.zeros(patches.shape[1], patches.shape[1], dtype=torch.float64, device=patches.device)
    for block in patches.split(1 << 16):
        centred = (block - mean).double()
        covariance += centred.T @ centred / len(patches)
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    return ((vectors * (eigenvalues + _EPSILON).rsqrt()) @ vectors.T).float(), mean


def _windows(side: int, count: int) -> Tensor:
    """Weights of ``count`` windows along a side: triangles that reach to the middles of their neighbours; each sums to 1."""
    middles = (torch.arange(count) + 0.5) * side / count - 0.5
    weights = (1 - (torch.arange(side) - middles[:, None]).abs() * count / side).clamp_min(0)
    return weights / weights.sum(1, keepdim=True)
