"""Whitened patches: a fixed map of images, fitted on the first task without a gradient step.

Filters are spherical k-means centroids of contrast-normalised, whitened patches (Coates & Ng 2012). An image's patches
are normalised, compared with every filter, cut off on both sides of a threshold, and pooled over a few overlapping
windows. A mirrored image shows the same thing, so the features of an image and of its mirror image are added up.

A patch itself would be a piece of somebody's image; a filter is the mean of at least `LEAST_PATCHES` different ones.

Fitting gives the same numbers on any number of threads: sums that could be split up otherwise are made on one of them.
"""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cldnet.device import generator, share_out, threads
from cldnet.nets.features import FEATURE_LIMIT, FeatureMap
from cldnet.nets.kmeans import spherical_kmeans
from cldnet.nets.patch_parts import (
    FILTERS_AT_ONCE,
    PLACES_AT_ONCE,
    Bank,
    banks,
    distinct,
    normalised,
    unfolded,
    whitening,
)

__all__ = ["LEAST_PATCHES", "WhitenedPatches"]

#: Patches that a filter is the mean of, at least.
LEAST_PATCHES = 100
_PATCHES_A_FILTER = 250
_SCALE_IMAGES = 2000  # images of the first task whose features give means and spreads
_CONTRAST_FLOOR = 0.01  # share of the mean variance of patches below which a patch counts as flat
SPREADS = 5.0  # a feature is cut off at so many spreads from its mean
_IMAGES_AT_ONCE = 16
_PLACES_TOGETHER = (
    1100  # of small images that are worked on at once: their responses stay in the cache, and steps are fewer
)
_MOST_FEATURES = 1 << 24


class WhitenedPatches(FeatureMap):
    """Responses of an image's patches to whitened filters, pooled, in whole numbers from −127 to 127.

    Parameters
    ----------
    input_shape : tuple of int
        ``(height, width)`` or ``(channels, height, width)``.
    filters : int
        Number of filters. There are ``2 · filters · windows²`` features, and a constant one. More are better and slower: time
        for the sums grows with the square, for a solution with the cube of the features.
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
    limits = (-FEATURE_LIMIT, FEATURE_LIMIT)

    filters: Tensor
    offset: Tensor
    floor: Tensor
    mean: Tensor
    spread: Tensor
    fitted: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        filters: int = 200,
        *,
        seed: int,
        size: int = 6,
        windows: int = 3,
        threshold: float = 0.25,
        mirror: bool = True,
    ) -> None:
        super().__init__()
        _check(input_shape, filters, size, windows, threshold)
        self.input_shape, self.seed = tuple(input_shape), seed
        self.size, self.windows, self.threshold, self.mirror = int(size), int(windows), float(threshold), bool(mirror)
        self.channels = 1 if len(input_shape) == 2 else input_shape[0]
        self.sides = input_shape[-2] - size + 1, input_shape[-1] - size + 1
        self.out_features = 2 * filters * windows**2 + 1
        length, count = self.channels * size**2, self.out_features - 1
        for name, shape in {"filters": (length, filters), "offset": (filters,), "floor": (), "mean": (count,)}.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float32))
        self.register_buffer("spread", torch.ones(count, dtype=torch.float32))
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def options(self) -> dict[str, Any]:
        """What the map is made with, beside its shape and seed."""
        return {
            "filters": int(self.filters.shape[1]),
            "size": self.size,
            "windows": self.windows,
            "threshold": self.threshold,
            "mirror": self.mirror,
        }

    @property
    def work(self) -> int:
        """At each place of a patch, products with all filters, and sums over all windows."""
        length, count = self.filters.shape
        return prod(self.sides) * count * (length + 2 * self.windows**2) * (1 + self.mirror)

    @property
    def min_rows(self) -> int:  # type: ignore[override]
        """Images that have as many patches as the filters need."""
        return max(2, -(-LEAST_PATCHES * self.filters.shape[1] // (self.sides[0] * self.sides[1])))

    @property
    def why_rows(self) -> str:  # type: ignore[override]
        """Why `fit` needs so many images, and what else would help."""
        count = self.filters.shape[1]
        return (
            f"because {count} filters need {LEAST_PATCHES * count:,} patches and an image has {self.sides[0] * self.sides[1]} "
            f"of them (a map with fewer filters or smaller patches needs fewer: WhitenedPatches(shape, filters=…, size=…), "
            "or --backbone-set on the command line)"
        )

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Learn filters and the scale of features from the first task's images; those of weight 0 are left out."""
        images = x if weight is None else x[weight > 0]
        random, count = generator(self.seed), self.filters.shape[1]
        with threads(1):
            patches = self._shown(images, random)
            white, centre = whitening(patches)
            directions = (patches - centre) @ white
        centroids = spherical_kmeans(directions, count, random, least=LEAST_PATCHES)
        chosen = torch.randperm(len(images), generator=random)[:_SCALE_IMAGES].to(images.device)
        with threads(1):  # whitening is folded into the filters: the response to a patch p is cᵀ W (p − m)
            self.filters.copy_(white @ centroids.T)
            self.offset.copy_(-(centre @ self.filters))
        responses = self._responses(images[chosen]).double()
        with threads(1):
            self.mean.copy_(responses.mean(0))
            self.spread.copy_(responses.std(0, correction=0).clamp_min(1e-6))
        self.fitted.fill_(True)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map images to whole numbers from −127 to 127, as float32; each image by itself."""
        return self.asked(x).round_()

    @torch.no_grad()
    def asked(self, x: Tensor) -> Tensor:
        """Map images to the numbers that `forward` rounds."""
        if not self.fitted:
            raise ValueError("This map has no filters yet: call its fit with images first.")
        features = self._responses(x, extra=1)
        scaled = features[:, :-1]
        scaled.sub_(self.mean).mul_(FEATURE_LIMIT / SPREADS / self.spread).clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
        features[:, -1] = FEATURE_LIMIT
        return features

    def _shown(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Draw normalised patches that show something, and set the floor of contrast by them."""
        patches = self._draw(images, random)
        variance = patches.var(1, correction=0)
        self.floor.copy_((_CONTRAST_FLOOR * variance.double().mean()).clamp_min(torch.finfo(torch.float32).tiny))
        patches = normalised(patches[variance > self.floor], self.floor)
        needed = LEAST_PATCHES * self.filters.shape[1]
        if len(patches) < needed:
            raise ValueError(
                f"{self.filters.shape[1]} filters need {needed:,} patches that show something, and the first images have "
                f"{len(patches):,}: begin with more images, or make the map with fewer filters."
            )
        return patches

    def _draw(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Draw patches from all over the images, none of them twice."""
        pixels = images.reshape(len(images), self.channels, *self.input_shape[-2:])
        rows, columns = self.sides
        total = len(images) * rows * columns
        wanted = min(total, _PATCHES_A_FILTER * self.filters.shape[1])
        places = distinct(total, wanted, random).to(images.device)
        side = torch.arange(self.size, device=images.device)
        channel = torch.arange(self.channels, device=images.device)[:, None, None]
        drawn = torch.empty(len(places), self.filters.shape[0], dtype=torch.float32, device=images.device)
        for into, block in zip(drawn.split(1 << 14), places.split(1 << 14), strict=True):
            image, place = (block // (rows * columns))[:, None, None, None], block % (rows * columns)
            row = (place // columns)[:, None, None, None] + side[:, None]
            column = (place % columns)[:, None, None, None] + side
            into.copy_(pixels[image, channel, row, column].flatten(1))
        return drawn

    def _responses(self, x: Tensor, extra: int = 0) -> Tensor:
        """Pooled responses of every image, with room for ``extra`` columns; images are shared out among threads.

        Small images are worked on a few at once, since each step takes little, and large ones in bands; some hundred filters at
        a time, so that responses never leave the cache. No number depends on the images beside it.
        """
        # Threads do not know of the caller's inference mode, and could not write into what was made in it.
        with torch.inference_mode(False):
            pixels = x.reshape(len(x), self.channels, *self.input_shape[-2:])
            pooled = torch.empty(len(x), self.out_features - 1 + extra, dtype=torch.float32, device=x.device)
            all_sums = pooled[:, : self.out_features - 1].unflatten(1, (2, self.windows**2, -1))
            portions = self.portions()
            few = max(1, min(_IMAGES_AT_ONCE, _PLACES_TOGETHER // (self.sides[0] * self.sides[1])))

            def work(piece: range) -> None:
                size = few * PLACES_AT_ONCE * FILTERS_AT_ONCE
                scratch = torch.empty(2, size, dtype=torch.float32, device=x.device)
                own = slice(piece.start, piece.stop)
                for images, sums in zip(pixels[own].split(few), all_sums[own].split(few), strict=True):
                    patches = normalised(unfolded(images.float(), self.size), self.floor)
                    sums.zero_()
                    for bank in portions:
                        bank.add(patches, self.threshold, bank.room(scratch, len(images)), sums)

            share_out(work, len(x), _IMAGES_AT_ONCE)
        return pooled

    def portions(self) -> list[Bank]:
        """The filters in portions, and those for the mirror image if it counts."""
        square = self.filters.view(self.channels, self.size, self.size, -1)
        mirrored = square.flip(2).reshape(self.filters.shape) if self.mirror else None
        return banks(self.filters, self.offset, self.sides, self.windows, mirrored)


def _check(input_shape: tuple[int, ...], filters: int, size: int, windows: int, threshold: float) -> None:
    for name, value in (("filters", filters), ("size", size), ("windows", windows)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} should be a whole number of at least 1.")
    if 2 * filters * windows**2 > _MOST_FEATURES or filters * size**2 > _MOST_FEATURES:
        raise ValueError(
            f"filters={filters} with patches of side {size} in {windows} windows a side are more than any machine holds."
        )
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
