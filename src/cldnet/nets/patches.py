"""Whitened patches: a fixed map of images, fitted on the first task without a gradient step.

Filters are spherical k-means centroids of contrast-normalised, whitened patches (Coates & Ng 2012). An image's patches are
normalised, compared with every filter, thresholded on both sides, and pooled over a few overlapping windows. The features of an
image and of its mirror image are added up, unless the first task's images can be told from their mirror images, as letters can.

For privacy, a filter is never a single patch but the mean of at least `LEAST_PATCHES` different ones.

Fitting gives the same numbers on any number of threads: sums that could be split up are made on one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from threading import local
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cldnet.device import generator, run_in_threads, threads
from cldnet.math.ridge import leave_one_out_scores
from cldnet.nets.features import FEATURE_LIMIT, FeatureMap

_log = logging.getLogger("cldnet")


def spherical_kmeans(
    vectors: Tensor, count: int, generator: torch.Generator, *, least: int = 1, iterations: int = 10
) -> Tensor:
    """Find ``count`` unit vectors, each the direction of the mean of at least ``least`` of the normalised vectors.

    A smaller cluster is restarted at a random vector; after the last round it becomes the mean of the ``least`` vectors that
    are nearest to a random one.
    """
    if len(vectors) < least:
        raise ValueError(f"A cluster should have at least {least} vectors, and there are only {len(vectors)}.")
    unit = torch.nn.functional.normalize(vectors)
    centers = unit[_some(unit, count, generator)]
    for left in reversed(range(iterations)):
        sums, sizes = _assigned(unit, centers)
        small = sizes < least
        seeds = unit[_some(unit, int(small.sum()), generator)]
        if left == 0:
            for place, seed in enumerate(seeds):
                seeds[place] = unit[(unit @ seed).topk(least).indices].mean(0)
        sums[small] = seeds
        centers = torch.nn.functional.normalize(sums)
    return centers


def _some(vectors: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Indices of random vectors, all different if there are enough."""
    order = torch.randperm(len(vectors), generator=generator)
    return order.repeat(-(-count // len(vectors)))[:count].to(vectors.device)


def _assigned(unit: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and number of the vectors nearest to each center.

    Each block is on one thread, and blocks are added up in order, so that the number of threads does not matter.
    """
    parts: dict[int, tuple[Tensor, Tensor]] = {}

    def assign(block: range) -> None:
        own = unit[block.start : block.stop]
        nearest = (own @ centers.T).argmax(1)
        sizes = nearest.bincount(minlength=len(centers))
        parts[block.start] = torch.zeros_like(centers).index_add_(0, nearest, own), sizes

    run_in_threads(assign, len(unit), 4096)
    sums, sizes = parts.pop(0)
    for first in sorted(parts):
        sums += parts[first][0]
        sizes += parts[first][1]
    return sums, sizes


#: Filters and positions of an image whose responses fit a core's cache.
FILTERS_AT_ONCE, PLACES_AT_ONCE = 400, 1024
_EPSILON = 0.1  # added to the eigenvalues before whitening; a normalised pixel has variance 1


class Scratch(local):
    """Memory for the responses of a tile and for a clipped copy of them; every thread has its own."""

    def __init__(self, numbers: int, device: torch.device) -> None:
        self.parts = [torch.empty(numbers, dtype=torch.float32, device=device) for _ in range(2)]

    def views(self, images: int, places: int, filters: int) -> list[Tensor]:
        """Both as tensors ``(images, places, filters)``."""
        strides = (places * filters, filters, 1)
        return [part.as_strided((images, places, filters), strides) for part in self.parts]


class Tile(NamedTuple):
    """Patches ``(images, places, numbers)`` whose responses fit the cache, and the row of sums that they are added to."""

    row: int
    patches: Tensor


@dataclass(frozen=True)
class Bank:
    """Some filters ``(numbers, filters)`` and their offsets."""

    columns: slice
    filters: Tensor
    offset: Tensor

    def add(
        self, tiles: Sequence[Tile], weights: Sequence[Tensor], threshold: float, scratch: Scratch, sums: Tensor
    ) -> None:
        """Pool the responses above the threshold, and those below minus it, and add them to ``sums``.

        ``weights`` are those of the tiles' patches in all windows; ``sums`` are ``(rows, images, 2, windows², filters)``.
        Products are made image by image, so that none depends on the others. Responses in between are set to the threshold
        instead of 0: that adds a constant to every feature, which scaling removes.
        """
        count = sums.shape[1]
        filters = self.filters.expand(count, -1, -1)
        above, below = (side.unbind() for side in sums[..., self.columns].unbind(2))
        for (row, patches), windows in zip(tiles, weights, strict=True):
            responses, clipped = scratch.views(count, patches.shape[1], filters.shape[2])
            torch.baddbmm(self.offset, patches, filters, out=responses)
            above[row].baddbmm_(windows, torch.clamp(responses, min=threshold, out=clipped))
            below[row].baddbmm_(windows, responses.clamp_(max=-threshold))


class View(NamedTuple):
    """The filters for an image or for its mirror image, and the windows ``(windows², places)`` of their responses."""

    windows: Tensor
    banks: list[Bank]


def unfolded(images: Tensor, size: int) -> Tensor:
    """All patches of images ``(…, channels, height, width)``, one per row."""
    # First (…, channels, columns, height · size): a patch is then one piece of a column, and not ``size`` short ones to copy.
    columns = images.unfold(-1, size, 1).transpose(-3, -2).flatten(-2)
    patches = columns.unfold(-1, size**2, size)  # (…, channels, columns, rows, size²)
    return patches.movedim(-4, -2).transpose(-4, -3).flatten(-2).flatten(-3, -2)


def normalised(patches: Tensor, floor: Tensor) -> Tensor:
    """Subtract each patch's mean and divide by its contrast; nearly flat patches stay flat."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred.div_((centred.square().mean(-1, keepdim=True) + floor).sqrt_())


def whitening(patches: Tensor) -> tuple[Tensor, Tensor]:
    """The whitening matrix ``(C + εI)^(−1/2)`` of patches, and their mean."""
    mean = patches.mean(0)
    covariance = torch.zeros(patches.shape[1], patches.shape[1], dtype=torch.float64, device=patches.device)
    for block in patches.split(1 << 16):
        centred = (block - mean).double()
        covariance += centred.T @ centred / len(patches)
    eigenvalues, vectors = torch.linalg.eigh(covariance)
    return ((vectors * (eigenvalues + _EPSILON).rsqrt()) @ vectors.T).float(), mean


def _triangles(side: int, count: int) -> Tensor:
    """Weights of ``count`` windows along a side: triangles that reach to the centers of their neighbours, each with sum 1."""
    centers = (torch.arange(count) + 0.5) * side / count - 0.5
    weights = (1 - (torch.arange(side) - centers[:, None]).abs() * count / side).clamp_min(0)
    return weights / weights.sum(1, keepdim=True)


#: Images that ``mirror="auto"`` looks at, and how many of a class if there are as many.
_TRIED, _TRIED_OF_A_CLASS = 500, 20
#: Mirror images are not added if more than this share of images can be told from theirs.
MIRROR_LIMIT = 0.9
#: Least number of patches that a filter is the mean of.
LEAST_PATCHES = 100
_PATCHES_PER_FILTER = 250
_SCALE_IMAGES = 2000  # images of the first task whose features give means and stds
_CONTRAST_FLOOR = 0.01  # a patch is flat below this share of the mean variance of patches
CLIP_STDS = 5.0  # features are clipped at so many stds from their mean
_IMAGES_AT_ONCE = 16
_NUMBERS_AT_ONCE = 5 << 16  # of patches made at once: few of them fit the cache, many take fewer steps
_MAX_FEATURES = 1 << 24


class WhitenedPatches(FeatureMap):
    """Pooled responses of an image's patches to whitened filters, as whole numbers from −127 to 127.

    Parameters
    ----------
    input_shape : tuple of int
        ``(height, width)`` or ``(channels, height, width)``.
    filters : int
        Number of filters. There are ``2 · filters · windows²`` features and a constant one. More are better and slower: the
        time for sums grows with the square of the features, for a solution with the cube.
    seed : int
        Seed of the patches that are drawn and of k-means.
    size : int
        Side of a patch.
    windows : int
        Pooling windows per side.
    threshold : float
        Responses within this distance of 0 count as 0.
    mirror : bool or "auto"
        Add the features of the mirror image: better for photos, worse for digits and letters. With "auto", `fit` decides by
        leave-one-out on up to 500 images, and `options` then have True or False. Mirror images are not added if more than
        nine of ten images can be told from theirs. Below that, the squared error of the classes decides, and they are added
        if there is one class. Without labels, `fit` takes "auto" for True.

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
    uses_labels: ClassVar[bool] = True
    limits = (-FEATURE_LIMIT, FEATURE_LIMIT)

    def __init__(
        self,
        input_shape: tuple[int, ...],
        filters: int = 200,
        *,
        seed: int,
        size: int = 6,
        windows: int = 3,
        threshold: float = 0.25,
        mirror: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__()
        _check(input_shape, filters, size, windows, threshold)
        if mirror not in (True, False, "auto"):
            raise ValueError(f"mirror={mirror!r} should be True, False or 'auto'.")
        self.input_shape, self.seed = tuple(input_shape), seed
        self.size, self.windows, self.threshold = int(size), int(windows), float(threshold)
        self.mirror: bool | Literal["auto"] = "auto" if mirror == "auto" else bool(mirror)
        self.channels = 1 if len(input_shape) == 2 else input_shape[0]
        self.sides = input_shape[-2] - size + 1, input_shape[-1] - size + 1
        self.out_features = 2 * filters * windows**2 + 1
        length, count = self.channels * size**2, self.out_features - 1
        self.filters: Tensor = nn.Buffer(torch.zeros(length, filters, dtype=torch.float32))
        self.offset: Tensor = nn.Buffer(torch.zeros(filters, dtype=torch.float32))
        self.floor: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float32))
        self.mean: Tensor = nn.Buffer(torch.zeros(count, dtype=torch.float32))
        self.spread: Tensor = nn.Buffer(torch.ones(count, dtype=torch.float32))
        self.fitted: Tensor = nn.Buffer(torch.tensor(False))

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed."""
        return {
            "filters": int(self.filters.shape[1]),
            "size": self.size,
            "windows": self.windows,
            "threshold": self.threshold,
            "mirror": self.mirror,
        }

    @property
    def work(self) -> int:
        """Products per image with all filters at all positions, and sums over all windows."""
        length, count = self.filters.shape
        return prod(self.sides) * count * (length + 2 * self.windows**2) * (1 if self.mirror is False else 2)

    @property
    def min_rows(self) -> int:  # type: ignore[override]
        """Number of images that have enough patches for the filters."""
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
    def fit(self, x: Tensor, weight: Tensor | None = None, y: Tensor | None = None) -> None:
        """Learn filters and the scale of features from the first task's images; images of weight 0 are ignored.

        With ``mirror="auto"``, classes ``y`` decide whether mirror images are added; without them they are.
        """
        kept = slice(None) if weight is None else weight > 0
        images = x[kept]
        random, count = generator(self.seed), self.filters.shape[1]
        with threads(1):
            patches = self._contrasty_patches(images, random)
            white, centre = whitening(patches)
            directions = (patches - centre) @ white
        centroids = spherical_kmeans(directions, count, random, least=LEAST_PATCHES)
        chosen = torch.randperm(len(images), generator=random)[:_SCALE_IMAGES].to(images.device)
        with threads(1):  # whitening is folded into the filters: the response to a patch p is cᵀ W (p − m)
            self.filters.copy_(white @ centroids.T)
            self.offset.copy_(-(centre @ self.filters))
        if self.mirror == "auto":
            self.mirror = y is None or self._choose_mirror(images, y[kept])
        responses = self._responses(images[chosen], self.out_features - 1).double()
        with threads(1):
            self.mean.copy_(responses.mean(0))
            self.spread.copy_(responses.std(0, correction=0).clamp_min(1e-6))
        self.fitted.fill_(True)

    def _choose_mirror(self, images: Tensor, y: Tensor) -> bool:
        """Whether the first task's images, by leave-one-out on some of them, are better off with mirror images."""
        drawn = _draw_from_classes(y, generator(self.seed))
        views, y = (images[drawn], images[drawn].flip(-1)), y[drawn]
        own, other = (self._responses(view, self.out_features - 1) for view in views)  # "auto" adds none yet
        with threads(1):
            share = chirality(own - other, y)
            said = f"{share:.1%} of {len(y)} images can be told from their mirror images"
            mirror = share <= MIRROR_LIMIT
            if mirror and bool((y != y[0]).any()):
                without, added = (leave_one_out_error(features, y) for features in (own, own + other))
                said += f"; the squared error of their classes, left out, is {without:.4f} without and {added:.4f} with them"
                mirror = added <= without
        _log.info("Patches: mirror=%s. %s.", mirror, said)
        return mirror

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map images to whole numbers from −127 to 127, as float32; each image by itself."""
        return self._features(x, rounded=True)

    @torch.no_grad()
    def predict_features(self, x: Tensor) -> Tensor:
        """Map images to the numbers that `forward` rounds."""
        return self._features(x, rounded=False)

    def _features(self, x: Tensor, rounded: bool) -> Tensor:
        """Pooled responses of images as multiples of their std, and a constant feature."""
        if not self.fitted:
            raise ValueError("This map has no filters yet. Call fit with images first.")
        if self.mirror == "auto":
            raise ValueError(
                "The tensors of a fitted map do not say whether it adds mirror images. Load them into one that was made with "
                "the other's options: WhitenedPatches(shape, seed=…, **fitted.options)."
            )
        scale = FEATURE_LIMIT / CLIP_STDS / self.spread

        def finish(features: Tensor) -> None:
            scaled = features[:, :-1]
            scaled.sub_(self.mean).mul_(scale).clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
            if rounded:
                scaled.round_()
            features[:, -1] = FEATURE_LIMIT

        return self._responses(x, self.out_features, finish)

    def _contrasty_patches(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Draw patches that are not flat, normalised, and set the contrast floor."""
        patches = self._draw(images, random)
        variance = patches.var(1, correction=0)
        self.floor.copy_((_CONTRAST_FLOOR * variance.double().mean()).clamp_min(torch.finfo(torch.float32).tiny))
        patches = normalised(patches[variance > self.floor], self.floor)
        needed = LEAST_PATCHES * self.filters.shape[1]
        if len(patches) < needed:
            raise ValueError(
                f"{self.filters.shape[1]} filters need {needed:,} patches that are not flat, and the first images have "
                f"{len(patches):,}. Start with more images, or use fewer filters."
            )
        return patches

    def _draw(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Draw patches from all images without replacement."""
        pixels = images.reshape(len(images), self.channels, *self.input_shape[-2:])
        rows, columns = self.sides
        total = len(images) * rows * columns
        wanted = min(total, _PATCHES_PER_FILTER * self.filters.shape[1])
        if total <= 1 << 24:
            places = torch.randperm(total, generator=random)[:wanted]
        else:  # without a list of all numbers
            drawn = torch.randint(total, (wanted + wanted // 8,), generator=random).unique()
            places = drawn[torch.randperm(len(drawn), generator=random)[:wanted]]
        places = places.to(images.device)
        side = torch.arange(self.size, device=images.device)
        channel = torch.arange(self.channels, device=images.device)[:, None, None]
        patches = torch.empty(len(places), self.filters.shape[0], dtype=torch.float32, device=images.device)
        for into, block in zip(patches.split(1 << 14), places.split(1 << 14), strict=True):
            image, place = (block // (rows * columns))[:, None, None, None], block % (rows * columns)
            row = (place // columns)[:, None, None, None] + side[:, None]
            column = (place % columns)[:, None, None, None] + side
            into.copy_(pixels[image, channel, row, column].flatten(1))
        return patches

    def _responses(self, x: Tensor, columns: int, finish: Callable[[Tensor], None] | None = None) -> Tensor:
        """Pooled responses of every image in the first of ``columns``, in parallel; ``finish`` is called on pieces of them.

        Tiny images are processed a few at once and others in bands, without their flat patches, some hundred filters at
        a time, so that responses fit the cache. No number depends on the other images.
        """
        # Other threads are not in the caller's inference mode, and could not write into its tensors.
        with torch.inference_mode(False):
            pixels = x.reshape(len(x), self.channels, *self.input_shape[-2:])
            pooled = torch.empty(len(x), columns, dtype=torch.float32, device=x.device)
            all_sums = pooled[:, : self.out_features - 1].unflatten(1, (2, self.windows**2, -1))
            views, places, (length, filters) = self.views(), prod(self.sides), self.filters.shape
            few = max(1, min(_IMAGES_AT_ONCE, PLACES_AT_ONCE // 4 // places))  # fewer steps for tiny images
            group = few if few > 1 else max(1, min(_IMAGES_AT_ONCE, _NUMBERS_AT_ONCE // (places * length)))
            scratch = Scratch(few * min(places, PLACES_AT_ONCE) * min(filters, FILTERS_AT_ONCE), x.device)

            def work(piece: range) -> None:
                own = slice(piece.start, piece.stop)
                for images, sums in zip(pixels[own].split(group), all_sums[own].split(group), strict=True):
                    patches = normalised(unfolded(images.float(), self.size), self.floor)
                    if few > 1:
                        together = sums.zero_()[None]
                        tiles = [Tile(0, patches)]
                        weights: list[Sequence[Tensor]] = [[view.windows.expand(len(images), -1, -1)] for view in views]
                    else:
                        together = sums[:, None]
                        tiles, weights = self._tiles(patches, [view.windows for view in views], sums)
                    for view, windows in zip(views, weights, strict=True):
                        for bank in view.banks:
                            bank.add(tiles, windows, self.threshold, scratch, together)
                if finish is not None:
                    finish(pooled[own])

            run_in_threads(work, len(x), _IMAGES_AT_ONCE)
        return pooled

    def _tiles(self, patches: Tensor, windows: list[Tensor], sums: Tensor) -> tuple[list[Tile], list[Sequence[Tensor]]]:
        """Set sums to those of all flat patches; return the other patches in tiles, and their weights in all windows."""
        peaks = patches.amax(-1)  # a centred patch has a positive number, or it is all zeros
        counts = peaks.count_nonzero(1).tolist()
        sizes = [
            (image, min(PLACES_AT_ONCE, count - first))
            for image, count in enumerate(counts)
            for first in range(0, count, PLACES_AT_ONCE)
        ]
        rows = patches.flatten(0, 1)
        if len(rows) > sum(counts):  # the response to a flat patch is the offset
            sides = torch.stack([self.offset.clamp(min=self.threshold), self.offset.clamp(max=-self.threshold)])
            shares = torch.stack(windows).sum(0).expand(len(patches), -1, -1) @ (peaks == 0).float()[..., None]
            torch.mul(shares[:, None], sides[:, None], out=sums)
            kept = peaks.flatten().nonzero()[:, 0]
            rows, kept = rows.index_select(0, kept), kept % peaks.shape[1]
            windows = [some.mT.index_select(0, kept).mT for some in windows]
        else:
            sums.zero_()
            windows = [some.mT.repeat(len(patches), 1).mT for some in windows]
        lengths = [length for _, length in sizes]
        tiles = [Tile(image, tile) for (image, _), tile in zip(sizes, rows[None].split(lengths, 1), strict=True)]
        return tiles, [some[None].split(lengths, 2) for some in windows]

    def views(self) -> list[View]:
        """The filters in banks. Those for the mirror image are mirrored themselves, and so are their windows."""
        height, width = (_triangles(side, self.windows) for side in self.sides)
        sides = [(self.filters, width)]
        if self.mirror is True:
            square = self.filters.view(self.channels, self.size, self.size, -1)
            sides.append((square.flip(2).reshape(self.filters.shape), width.flip(1)))
        found = []
        for filters, across in sides:
            # One place after the other in memory, because `_tiles` selects places.
            windows = torch.einsum("ai,bj->ijab", height, across).flatten(2).flatten(0, 1).to(filters).contiguous().mT
            columns = [slice(first, first + FILTERS_AT_ONCE) for first in range(0, filters.shape[1], FILTERS_AT_ONCE)]
            banks = [Bank(some, filters[:, some].contiguous(), self.offset[some]) for some in columns]
            found.append(View(windows, banks))
        return found


def _draw_from_classes(y: Tensor, random: torch.Generator) -> Tensor:
    """Indices of at most `_TRIED` samples: of all classes, or enough each of some of them."""
    order = torch.randperm(len(y), generator=random).to(y.device)
    classes, place = y.unique(return_inverse=True)
    chosen, drawn = torch.randperm(len(classes), generator=random).tolist(), []
    each = max(_TRIED_OF_A_CLASS, _TRIED // len(classes))
    for number in chosen[: -(-_TRIED // each)]:
        drawn.append(order[place[order] == number][:each])
    return torch.cat(drawn)[:_TRIED]


def chirality(differences: Tensor, y: Tensor) -> float:
    """Share of images that can be told from their mirror images, given their class.

    ``differences`` are the features of an image less those of its mirror image. Ridge regression maps them to the class of the
    image, and so the negative ones to minus that. Each image is left out in turn, and its mirror image with it. Distributions
    that differ from their reflection are known as visually chiral.

    References
    ----------
    Z. Lin et al., "Visual Chirality", CVPR 2020. https://arxiv.org/abs/2006.09512
    """
    scaled = differences / differences.square().mean(0).sqrt().clamp_min(1e-6)
    targets = _targets(y)
    scores = leave_one_out_scores(scaled, targets).scores
    return float(((scores * targets).sum(1) > 0).double().mean())


def leave_one_out_error(features: Tensor, y: Tensor) -> float:
    """Mean squared error of ridge regression onto the classes, each image left out in turn."""
    scaled = (features - features.mean(0)) / features.std(0).clamp_min(1e-6)
    constant = features.new_ones(len(y), 1)
    return float(
        leave_one_out_scores(torch.cat([scaled.clamp(-CLIP_STDS, CLIP_STDS), constant], 1), _targets(y)).error.mean()
    )


def _targets(y: Tensor) -> Tensor:
    """One-hot rows of the classes that there are."""
    return torch.nn.functional.one_hot(y.unique(return_inverse=True)[1])


def _check(input_shape: tuple[int, ...], filters: int, size: int, windows: int, threshold: float) -> None:
    """Refuse arguments that do not fit each other."""
    for name, value in (("filters", filters), ("size", size), ("windows", windows)):
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} should be a positive whole number.")
    if 2 * filters * windows**2 > _MAX_FEATURES or filters * size**2 > _MAX_FEATURES:
        raise ValueError(
            f"filters={filters} with patches of side {size} and {windows} windows per side need too much memory."
        )
    if not isinstance(threshold, int | float) or not 0 <= threshold < float("inf"):
        raise ValueError(f"threshold={threshold!r} should be a non-negative number.")
    if len(input_shape) not in (2, 3):
        raise ValueError(
            f"backbone='patches' is for images, and inputs have shape {tuple(input_shape)}. Reshape flat inputs with "
            "input_shape=(height, width), or use 'random-relu'."
        )
    if min(input_shape[-2:]) - size + 1 < windows:
        raise ValueError(
            f"Images of {input_shape[-2]}×{input_shape[-1]} pixels are too small for patches of side {size} and {windows} "
            "windows per side. Use smaller patches or fewer windows."
        )
