"""A pretrained net with random ReLU features on top of it (as RanPAC, McDonnell et al. 2023): a map that no data are fitted to.

A feature's usual mean and spread are known from the net's own training, so the map follows from the net's weights and a seed
alone: whoever makes it has the same one. Models of different users add up without sharing a file, and whatever comes first
leaves no trace in it.
"""

from __future__ import annotations

from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from cldnet.device import generator
from cldnet.nets.efficientnet import PIXEL_MEAN, PIXEL_SPREAD, VERSIONS, EfficientNetLite, packaged_weights
from cldnet.nets.features import FeatureMap, RandomReLU
from cldnet.nets.pretrained import Pretrained

__all__ = ["ExpandedNet", "features_within"]

#: Vectors as the net usually gives them that random features are scaled by.
_DRAWN = 1024
#: A feature that hardly varied in training is not blown up by more than this share of the usual spread would.
_LEAST_SPREAD = 0.1


def features_within(memory: int) -> int:
    """How many features' sums of products, in float64, fit into so many bytes.

    Examples
    --------
    >>> features_within(128 << 20)
    4095
    """
    return max(1, isqrt(memory // 8) - 1)


class ExpandedNet(FeatureMap):
    """EfficientNet-lite, frozen, and random ReLU features of its vectors in whole numbers from 0 to 127.

    It is made without weights; `load_published` brings those of ImageNet, and a model's file those that it was saved with.

    Parameters
    ----------
    input_shape : tuple of int
        ``(3, height, width)`` or ``(height, width)``; images are brought to the net's size.
    features : int
        Random features. Their sums of products take ``8 · features²`` bytes; see `features_within`.
    seed : int
        Seed of the random features.
    version : int
        Of EfficientNet-lite: 0, 1 or 2.
    size : int, optional
        Side of the images that the net is given; that of its training without one.
    stages : tuple of int
        Stages of the net, from 1 to 7, whose averaged maps are expanded too.
    mirror : bool
        Take the mean of an image's vector and its mirror image's.

    Examples
    --------
    >>> made = ExpandedNet((3, 32, 32), features=50, seed=0, size=32)
    >>> made.out_features, bool(made.fitted)
    (51, False)
    """

    kind: ClassVar[str] = "efficientnet-lite"
    fits_data: ClassVar[bool] = False
    min_rows = 1

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 4000,
        *,
        seed: int,
        version: int = 0,
        size: int | None = None,
        stages: tuple[int, ...] = (),
        mirror: bool = False,
    ) -> None:
        super().__init__()
        _check(input_shape, size)
        self.input_shape, self.seed = tuple(input_shape), seed
        net = EfficientNetLite(version, tuple(stages))
        side = VERSIONS[version][2] if size is None else int(size)
        pixels = {"mean": [PIXEL_MEAN] * 3, "spread": [PIXEL_SPREAD] * 3}
        self.body = Pretrained(net, net.out_features, size=side, mirror=mirror, **pixels)
        self.expansion = RandomReLU((net.out_features,), features, seed=seed)
        self.out_features = self.expansion.out_features

    @property
    def fitted(self) -> Tensor:  # type: ignore[override]
        """Whether there are weights."""
        return self.expansion.fitted

    @property
    def options(self) -> dict[str, Any]:
        """What the map is made with, beside its shape and seed."""
        net: Any = self.body.net
        return {
            "features": self.out_features - 1,
            "version": net.version,
            "size": self.body.size,
            "stages": list(net.taken),
            "mirror": self.body.mirror,
        }

    def train(self, mode: bool = True) -> ExpandedNet:
        """Stay in evaluation mode: the map is fixed."""
        return super().train(False)

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Bring the weights; nothing is taken from the images."""
        self.load_published()

    @torch.no_grad()
    def load_published(self) -> ExpandedNet:
        """Take the ImageNet weights out of their package, and scale the random features by what the net was trained on."""
        net: Any = self.body.net
        mean, spread = net.load_published(packaged_weights(net.version))
        spread = spread.clamp_min(_LEAST_SPREAD * float(spread.median()))
        usual = mean + spread * torch.randn(_DRAWN, len(mean), generator=generator(self.seed))
        self.expansion.fit(usual.to(self.body.pixel_mean.device))
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map images to whole numbers from 0 to 127, as float32; each image by itself."""
        return self.expansion(self._vectors(x))  # type: ignore[no-any-return]

    @torch.no_grad()
    def asked(self, x: Tensor) -> Tensor:
        """Map images to the numbers that `forward` would round, in float64."""
        return self.expansion.unrounded(self._vectors(x))

    def _vectors(self, x: Tensor) -> Tensor:
        if not self.fitted:
            raise ValueError("This map has no weights yet: call its load_published, or load a model that has them.")
        return self.body(x)  # type: ignore[no-any-return]


def _check(input_shape: tuple[int, ...], size: int | None) -> None:
    if len(input_shape) not in (2, 3) or (len(input_shape) == 3 and input_shape[0] not in (1, 3)):
        raise ValueError(
            f"EfficientNet-lite is for images, and inputs have shape {tuple(input_shape)}: expected (3, height, width) or "
            "(height, width). Fold flat rows with input_shape=…"
        )
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 32 <= size <= 1024):
        raise ValueError(f"size={size!r} should be a whole number from 32 to 1024, the side of an image in pixels.")
