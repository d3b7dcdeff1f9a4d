"""Normalisation constants, and random crop, flip and cutout of a whole batch of images at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.text import nearest_names

#: Mean and std of the first task's training data; nothing of later tasks or of the test part.
FIRST_TASK = "first-task"
#: Each image's own mean and std: nothing is learned from other images. See `standardised`.
PER_IMAGE = "image"

#: Mean and std per channel, as papers use them, in the units of uint8. Those of a data set are over all its training images,
#: so they know a little of later tasks; ImageNet's do not.
CONSTANTS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "half": ((127.5,), (127.5,)),
    "mnist": ((33.32,), (78.57,)),
    "fashion-mnist": ((72.94,), (90.02,)),
    "cifar-10": ((125.31, 122.95, 113.87), (62.99, 62.09, 66.70)),
    "cifar-100": ((129.30, 124.07, 112.43), (68.17, 65.39, 70.42)),
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
}


def constants(
    text: str, input_shape: tuple[int, ...], pixels: bool = True
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Parse how to normalise: ``None`` for the first task's or the image's own statistics, else mean and std per channel.

    ``text`` is ``"first-task"``, ``"image"``, a name in `CONSTANTS`, or ``MEAN:STD`` with plus signs between channels; a
    single constant serves all channels. With ``pixels``, inputs are uint8: constants that only fit 0 to 1 are then an error.
    """
    if text == FIRST_TASK:
        return None
    if len(input_shape) < 2:
        raise ValueError(f"normalise={text!r} is for images; for tables use {FIRST_TASK!r}.")
    if text == PER_IMAGE:
        return None
    try:
        mean, std = CONSTANTS.get(text) or [tuple(map(float, part.split("+"))) for part in text.split(":")]
    except ValueError:
        raise ValueError(
            f"normalise={text!r} should be {FIRST_TASK}, {PER_IMAGE}, one of {', '.join(CONSTANTS)}, or numbers as "
            "125.3+123.0+113.9:63.0+62.1+66.7 (means, then stds, in the units of the images)."
        ) from None
    if pixels and max(std) <= 1:
        raise ValueError(
            f"normalise={text!r} is for pixels from 0 to 1, but these are from 0 to 255: multiply it by 255."
        )
    channels = input_shape[0] if len(input_shape) == 3 else 1
    if {len(mean), len(std)} - {1, channels}:
        raise ValueError(
            f"normalise={text!r} has {len(mean)} means and {len(std)} stds; the images have {channels} channels."
        )
    return mean * (channels // len(mean)), std * (channels // len(std))


def standardised(images: Tensor) -> Tensor:
    """Subtract each image's own mean and divide by its own std, over all of its channels; a constant image becomes zeros.

    Examples
    --------
    >>> standardised(torch.tensor([[[0, 2], [2, 0]]], dtype=torch.uint8))
    tensor([[[-1.,  1.],
             [ 1., -1.]]])
    """
    result = torch.empty(images.shape, dtype=torch.float32, device=images.device)
    for part, into in zip(images.split(4096), result.split(4096), strict=True):
        flat = part.flatten(1).float()
        flat = flat - flat.mean(1, keepdim=True)
        into.copy_((flat / flat.square().mean(1, keepdim=True).sqrt().clamp_min(1e-6)).reshape(part.shape))
    return result


@dataclass(frozen=True)
class Augment:
    """Augment a batch of images: crop, then flip, then cutout, at random for each image.

    Images are ``(n, height, width)`` or ``(n, channels, height, width)``, of any number type, which they keep. ``crop`` pads
    that many zeros and crops a random part of the image's size; ``flip`` mirrors half of the images; ``cutout`` is the side
    of a square set to zero, centred anywhere (DeVries & Taylor 2017). Zeros are filled in *before* normalisation: they are
    black, not the mean colour.
    """

    crop: int = 0
    flip: bool = False
    cutout: int = 0

    @classmethod
    def from_text(cls, text: str) -> Augment:
        """Parse what `str` writes, as in ``"crop=4,flip,cutout=8"``."""
        known = [field.name for field in fields(cls)]
        chosen: dict[str, int | bool] = {}
        for part in [] if text.strip() == "none" else text.split(","):
            name, equals, pixels = (piece.strip() for piece in part.partition("="))
            if name not in known:
                raise ValueError(f"There is no augmentation {name!r}. {nearest_names(name, known)}")
            if name in chosen:
                raise ValueError(f"{name!r} appears twice in the augmentation {text!r}: give it once.")
            if name == "flip" and not equals:
                chosen[name] = True
            elif name != "flip" and pixels.isascii() and pixels.isdigit():
                chosen[name] = int(pixels)
            else:
                raise ValueError(f"{part.strip()!r} is not an augmentation; write it as in 'crop=4,flip,cutout=8'.")
        return cls(**chosen)  # type: ignore[arg-type]

    def __str__(self) -> str:
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return ",".join(n if v is True else f"{n}={v}" for n, v in chosen.items() if v) or "none"

    def __call__(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return an augmented copy of a batch of images, with all randomness from ``source``."""
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

        def draw(limit: int) -> Tensor:
            return torch.randint(limit, (len(x),), generator=source, device=source.device).to(x.device)

        if not (self.crop or self.flip or self.cutout):
            return x.clone()
        images = x.contiguous() if x.ndim == 4 else x.contiguous().unsqueeze(1)
        if self.crop:
            images = _crop(images, draw(2 * self.crop + 1), draw(2 * self.crop + 1), self.crop)
        if self.flip:
            images = _flip(images, draw(2))
        if self.cutout:
            images = _cut_out(images, draw(height), draw(width), self.cutout)
        return images if x.ndim == 4 else images.squeeze(1)


def _crop(images: Tensor, rows: Tensor, columns: Tensor, pixels: int) -> Tensor:
    padded = F.pad(images, (pixels, pixels, pixels, pixels)).contiguous()
    firsts = torch.arange(0, padded.numel(), padded.stride(0), device=images.device)
    return _windows(padded, firsts.add_(rows, alpha=padded.stride(2)).add_(columns), *images.shape[2:])


def _flip(images: Tensor, which: Tensor) -> Tensor:
    places = torch.arange(len(images), device=images.device).add_(which, alpha=len(images))
    return torch.cat([images, images.flip(-1)]).index_select(0, places)


def _cut_out(images: Tensor, rows: Tensor, columns: Tensor, side: int) -> Tensor:
    # Every image takes another window of one large mask with the hole in its middle.
    height, width = images.shape[2:]
    mask = images.new_ones(1, 1, 2 * height, 2 * width)
    top, left = height - side // 2, width - side // 2
    mask[..., top : top + side, left : left + side] = 0
    starts = mask.stride(2) * height + width - columns.add(rows, alpha=mask.stride(2))
    return images * _windows(mask, starts, height, width)


def _windows(planes: Tensor, starts: Tensor, height: int, width: int) -> Tensor:
    """Copy the window at each start, counted in pixels from the first of contiguous planes, in all channels.

    This is the fastest of several ways: rows are copied as they are, without an index per pixel.
    """
    channels, rows, columns = planes.shape[1:]
    last = (channels - 1) * rows * columns + (height - 1) * columns + width - 1
    shape, strides = (planes.numel() - last, channels, height, width), (1, rows * columns, columns, 1)
    return planes.as_strided(shape, strides).index_select(0, starts)
