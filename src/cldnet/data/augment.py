"""Random crop, flip and cutout of a whole batch of images at once, in the type that the images have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.names import nearest_names

__all__ = ["Augment", "Draws"]

_NOTHING = "none"


class Draws(NamedTuple):
    """What chance decides about the images of a batch, one number an image; ``None`` for what is not asked for.

    Attributes
    ----------
    crop : pair of Tensor
        Row and column of the padded image at which its crop begins.
    flip : Tensor
        1 for an image that is mirrored, else 0.
    cutout : pair of Tensor
        Row and column of the centre of its square.
    """

    crop: tuple[Tensor, Tensor] | None
    flip: Tensor | None
    cutout: tuple[Tensor, Tensor] | None


@dataclass(frozen=True)
class Augment:
    """Vary a batch of images: crop, then flip, then cut out, each image by a draw of its own.

    Images are ``(n, height, width)`` or ``(n, channels, height, width)``, of any number type, and keep it. Zeros are put
    in *before* images are normalised: they are black, not the mean colour.

    Parameters
    ----------
    crop : int
        Pixels of zeros put around the image, out of which a random part of the image's size is cut.
    flip : bool
        Mirror images left to right, each with probability 1/2.
    cutout : int
        Side of a square set to zero (DeVries & Taylor 2017). Its centre is uniform over the image's pixels, so that it may
        reach over the border.

    Examples
    --------
    >>> augment = Augment.from_text("crop=1,flip")
    >>> augment
    Augment(crop=1, flip=True, cutout=0)
    >>> augment(torch.tensor([[[1, 2], [3, 4]]], dtype=torch.uint8), torch.Generator().manual_seed(0))
    tensor([[[3, 0],
             [0, 0]]], dtype=torch.uint8)
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0

    def __post_init__(self) -> None:
        for name in ("crop", "cutout"):
            pixels = getattr(self, name)
            if not isinstance(pixels, int) or isinstance(pixels, bool) or pixels < 0:
                raise ValueError(f"{name}={pixels!r} should be a number of pixels, 0 for none.")
        if not isinstance(self.flip, bool):
            raise ValueError(f"flip={self.flip!r} should be True or False.")

    @classmethod
    def from_text(cls, text: str) -> Augment:
        """Read what `str` writes: names with commas between them, with pixels where they take some.

        Examples
        --------
        >>> str(Augment.from_text("flip, cutout=8")), str(Augment.from_text("none"))
        ('flip,cutout=8', 'none')
        >>> Augment.from_text("crops=4")
        Traceback (most recent call last):
        ...
        ValueError: There is no augmentation 'crops'. Did you mean 'crop'?
        """
        known = [field.name for field in fields(cls)]
        chosen: dict[str, int | bool] = {}
        for part in [] if text.strip() == _NOTHING else text.split(","):
            name, equals, pixels = (piece.strip() for piece in part.partition("="))
            if name not in known:
                raise ValueError(f"There is no augmentation {name!r}. {nearest_names(name, known)}")
            if name in chosen:
                raise ValueError(f"{name!r} is twice in the augmentation {text!r}: give it once.")
            if name == "flip" and not equals:
                chosen[name] = True
            elif name != "flip" and pixels.isascii() and pixels.isdigit():
                chosen[name] = int(pixels)
            else:
                raise ValueError(f"{part.strip()!r} is no augmentation; write it as in 'crop=4,flip,cutout=8'.")
        return cls(**chosen)  # type: ignore[arg-type]

    def __str__(self) -> str:
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return ",".join(n if v is True else f"{n}={v}" for n, v in chosen.items() if v) or _NOTHING

    def __call__(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return a varied copy of a batch of images, with all chance from ``source``."""
        return self.apply(x, self.draw(x, source))

    def draw(self, x: Tensor, source: torch.Generator) -> Draws:
        """Draw what is to happen to each image of a batch."""
        self._check(x)
        height, width = x.shape[-2:]
        shifts = 2 * self.crop + 1

        def below(limit: int) -> Tensor:
            return torch.randint(limit, (len(x),), generator=source, device=source.device).to(x.device)

        return Draws(
            crop=(below(shifts), below(shifts)) if self.crop else None,
            flip=below(2) if self.flip else None,
            cutout=(below(height), below(width)) if self.cutout else None,
        )

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        """Do to each image what was drawn for it. Nothing is left to chance here."""
        if all(drawn is None for drawn in draws):
            return x.clone()
        images = x.contiguous() if x.ndim == 4 else x.contiguous().unsqueeze(1)
        if draws.crop is not None:
            images = _crop(images, *draws.crop, self.crop)
        if draws.flip is not None:
            images = _flip(images, draws.flip)
        if draws.cutout is not None:
            images = _cut_out(images, *draws.cutout, self.cutout)
        return images if x.ndim == 4 else images.squeeze(1)

    def _check(self, x: Tensor) -> None:
        if x.ndim not in (3, 4) or x.numel() == 0:
            raise ValueError(
                f"Inputs of shape {tuple(x.shape)} cannot be augmented: only images can, "
                "(n, height, width) or (n, channels, height, width). Leave the augmentation out, or reshape the inputs."
            )
        height, width = x.shape[-2:]
        for name in ("crop", "cutout"):
            if getattr(self, name) >= min(height, width):
                raise ValueError(
                    f"{name}={getattr(self, name)} could leave nothing of images of {height}×{width} pixels: "
                    f"use at most {min(height, width) - 1}."
                )


def _crop(images: Tensor, rows: Tensor, columns: Tensor, pixels: int) -> Tensor:
    padded = F.pad(images, (pixels, pixels, pixels, pixels)).contiguous()
    firsts = torch.arange(0, padded.numel(), padded.stride(0), device=images.device)
    return _windows(padded, firsts.add_(rows, alpha=padded.stride(2)).add_(columns), *images.shape[2:])


def _flip(images: Tensor, which: Tensor) -> Tensor:
    places = torch.arange(len(images), device=images.device).add_(which, alpha=len(images))
    return torch.cat([images, images.flip(-1)]).index_select(0, places)


def _cut_out(images: Tensor, rows: Tensor, columns: Tensor, side: int) -> Tensor:
    # Every image sees another part of one large mask, in whose middle the hole is.
    height, width = images.shape[2:]
    mask = images.new_ones(1, 1, 2 * height, 2 * width)
    top, left = height - side // 2, width - side // 2
    mask[..., top : top + side, left : left + side] = 0
    starts = mask.stride(2) * height + width - columns.add(rows, alpha=mask.stride(2))
    return images * _windows(mask, starts, height, width)


def _windows(planes: Tensor, starts: Tensor, height: int, width: int) -> Tensor:
    """Copy the window that begins at each start, counted in pixels from the first of contiguous planes, of all channels.

    Of ways to do this for all images at once, this is the quickest: rows are copied as they lie, and no index has as many
    entries as there are pixels.
    """
    channels, rows, columns = planes.shape[1:]
    last = (channels - 1) * rows * columns + (height - 1) * columns + width - 1
    shape, strides = (planes.numel() - last, channels, height, width), (1, rows * columns, columns, 1)
    return planes.as_strided(shape, strides).index_select(0, starts)
