"""Views of images for contrastive learning: random crops of other sizes, grey, mirror images, and turned parts.

Images are floating-point, ``(n, height, width)`` or ``(n, channels, height, width)``. Other inputs, such as vectors, have no
views but themselves. All randomness comes from a given generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

#: Parts of red, green and blue in a grey pixel (ITU-R BT.601).
_LUMA = (0.299, 0.587, 0.114)
#: The logarithm of a crop's width by its height, both as parts of the image's, lies between plus and minus this.
_LOG_RATIO = math.log(4 / 3)


def are_images(x: Tensor) -> bool:
    """Whether a batch has the shape of images."""
    return x.ndim in (3, 4)


@dataclass(frozen=True)
class RandomView:
    """Mirror half of the images, make a part of them ``grey``, and crop each to at least ``scale`` of its area.

    Crops have the image's size again, by bilinear interpolation. Only images of three channels can become grey.
    """

    scale: float = 0.3
    grey: float = 0.25

    def __call__(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return one view of each image of a batch; other inputs come back as they are."""
        if not are_images(x):
            return x
        images = x if x.ndim == 4 else x.unsqueeze(1)
        mirror, grey, area, ratio, left, top = torch.rand(6, len(x), generator=source, dtype=torch.float64).to(x.device)
        images = torch.where((mirror < 0.5).reshape(-1, 1, 1, 1), images.flip(-1), images)
        if images.shape[1] == len(_LUMA):
            images = torch.where((grey < self.grey).reshape(-1, 1, 1, 1), grey_images(images), images)
        area, ratio = self.scale + (1 - self.scale) * area, (_LOG_RATIO * (2 * ratio - 1)).exp()
        # A wide crop of a large area would not fit: its width is then the image's.
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        images = resized_crop(images, left * (1 - width), top * (1 - height), width, height)
        return images if x.ndim == 4 else images.squeeze(1)


def grey_images(images: Tensor) -> Tensor:
    """Give the three channels of images ``(n, 3, height, width)`` the same values, their luma."""
    luma = torch.einsum("nchw,c->nhw", images, images.new_tensor(_LUMA))
    return luma.unsqueeze(1).expand_as(images)


def resized_crop(images: Tensor, left: Tensor, top: Tensor, width: Tensor, height: Tensor) -> Tensor:
    """Crop a part of each image ``(n, channels, height, width)`` and resize it to the image's size.

    Places and sizes are tensors ``(n,)`` of parts of the image's sides: 0, 0, 1, 1 is the whole image.
    """
    zero = torch.zeros_like(width)
    # Image coordinates run from −1 to 1, so the middle of the crop is at 2 · left + width − 1.
    across = torch.stack([width, zero, 2 * left + width - 1], dim=1)
    down = torch.stack([zero, height, 2 * top + height - 1], dim=1)
    theta = torch.stack([across, down], dim=1).to(images)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def turned(x: Tensor, count: int) -> list[Tensor]:
    """A batch of images, turned left by 0°, 90°, … (``count`` of them). Turns that would change the images' shape are left out.

    Examples
    --------
    >>> [view.tolist() for view in turned(torch.tensor([[[1, 2], [3, 4]]]), 2)]
    [[[[1, 2], [3, 4]]], [[[2, 4], [1, 3]]]]
    """
    square = x.shape[-1] == x.shape[-2]
    return [torch.rot90(x, quarters, (-2, -1)) for quarters in range(count) if square or quarters % 2 == 0]


def half_turned(x: Tensor, count: int) -> list[Tensor]:
    """A batch of images with halves turned by 180°: none, the right one, both, the left one (the first ``count`` of these).

    Examples
    --------
    >>> [view.tolist() for view in half_turned(torch.tensor([[[1, 2], [3, 4]]]), 4)]
    [[[[1, 2], [3, 4]]], [[[1, 4], [3, 2]]], [[[3, 4], [1, 2]]], [[[3, 2], [1, 4]]]]
    """
    half = x.shape[-1] // 2  # an odd width has a middle column, which stays
    left, middle, right = x[..., :half], x[..., half : x.shape[-1] - half], x[..., x.shape[-1] - half :]
    other_left, other_right = left.flip((-2, -1)), right.flip((-2, -1))
    parts = [(left, right), (left, other_right), (other_left, other_right), (other_left, right)]
    return [torch.cat([first, middle, last], dim=-1) for first, last in parts[:count]]


def variants(x: Tensor, rotations: int, inner: int) -> Tensor:
    """OCM's variants of a batch, one after the other, the batch itself first; shape ``(variants · n, …)``.

    Every turn of whole images (`turned`) is combined with every turn of their halves (`half_turned`).
    """
    if not are_images(x):
        return x
    # All inner variants of one rotation come before the next rotation.
    return torch.cat(turned(torch.cat(half_turned(x, inner)), rotations))
