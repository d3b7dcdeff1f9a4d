"""Pretrained backbones: frozen nets that turn images into vectors, each with the preprocessing that it was trained with.

Images are numbers from 0 to 255, ``(n, 3, height, width)`` of any size, or grey ones without the 3; bytes or floats. They are
brought to the net's size, normalised as in its training, and go through it in blocks of one size, so that an image's vector
does not depend on the images beside it, nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import share_out

__all__ = ["Pretrained"]

#: Images that go through a net at once. Always as many: how a product is cut up, and so its last bit, depends on their number.
BLOCK = 8


class Pretrained(nn.Module):
    """A frozen net behind its preprocessing.

    Parameters
    ----------
    net : nn.Module
        Maps normalised images ``(n, 3, size, size)`` to vectors ``(n, out_features)``.
    out_features : int
    size : int
        Side of the images that the net is given.
    mean, spread : sequence of float
        Of the pixels of each colour, from 0 to 255: what the net's training subtracted and divided by.
    mirror : bool
        Give the mean of an image's vector and its mirror image's, at twice the cost.

    Examples
    --------
    >>> net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> colours = Pretrained(net, 3, size=4, mean=[100.0, 100.0, 100.0], spread=[10.0, 10.0, 10.0])
    >>> colours(torch.full((1, 8, 9), 120, dtype=torch.uint8))
    tensor([[2., 2., 2.]])
    """

    pixel_mean: Tensor
    pixel_spread: Tensor

    def __init__(
        self,
        net: nn.Module,
        out_features: int,
        *,
        size: int,
        mean: Sequence[float],
        spread: Sequence[float],
        mirror: bool = False,
    ) -> None:
        super().__init__()
        self.net = net.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.out_features, self.size, self.mirror = int(out_features), int(size), bool(mirror)
        for name, values in (("pixel_mean", mean), ("pixel_spread", spread)):
            self.register_buffer(name, torch.tensor(list(values), dtype=torch.float32).reshape(3, 1, 1))

    def train(self, mode: bool = True) -> Pretrained:
        """Stay in evaluation mode: the net is fixed."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Vectors of images ``(n, 3, height, width)`` or ``(n, height, width)``, each by itself."""
        images = x.unsqueeze(1) if x.ndim == 3 else x
        # Threads do not know of the caller's inference mode, and could not write into what was made in it.
        with torch.inference_mode(False):
            vectors = torch.empty(len(x), self.out_features, dtype=self.pixel_mean.dtype, device=x.device)

            @torch.no_grad()
            def work(piece: range) -> None:
                vectors[piece.start : piece.stop] = self._block(images[piece.start : piece.stop])

            share_out(work, len(images), BLOCK)  # each block on one thread: how many there are changes no bit either
        return vectors

    def _block(self, images: Tensor) -> Tensor:
        count = len(images)
        if count < BLOCK:  # filled up, and cut off again
            images = torch.cat([images, images[-1:].expand(BLOCK - count, -1, -1, -1)])
        return self.embedded(self.preprocessed(images))[:count]

    def embedded(self, pixels: Tensor) -> Tensor:
        """Vectors of normalised images of the net's size, all at once."""
        vectors: Tensor = self.net(pixels)
        return (vectors + self.net(pixels.flip(3))) / 2 if self.mirror else vectors

    def preprocessed(self, images: Tensor) -> Tensor:
        """Normalised images of the net's size: the shorter side is brought to it, and the middle is cut out."""
        pixels = images.to(self.pixel_mean.dtype).expand(-1, 3, -1, -1)
        height, width = pixels.shape[2:]
        if (height, width) != (self.size, self.size):
            sides, (top, left) = self.cut(height, width)
            pixels = F.interpolate(pixels, sides, mode="bicubic", antialias=True).clamp_(0, 255)
            pixels = pixels[:, :, top : top + self.size, left : left + self.size]
        return self.normalised(pixels).contiguous(memory_format=torch.channels_last)

    def cut(self, height: int, width: int) -> tuple[list[int], list[int]]:
        """The sides that an image is brought to, and where what the net is given begins in it."""
        short = min(height, width)
        sides = [max(self.size, round(side * self.size / short)) for side in (height, width)]
        return sides, [(side - self.size) // 2 for side in sides]

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 255 as the net was trained on them."""
        return (pixels - self.pixel_mean) / self.pixel_spread
