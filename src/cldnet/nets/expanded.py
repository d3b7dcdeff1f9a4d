"""Pretrained nets with random ReLU features on top of them (as RanPAC, McDonnell et al. 2023): maps that no data are fitted to.

A feature's usual mean and spread are known from the net's own training, so the map follows from the net's weights and a seed
alone: whoever makes it has the same one. Models of different users add up without sharing a file, and whatever comes first
leaves no trace in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from cldnet.device import generator
from cldnet.nets.bodies import bodies_beside, describe_bodies, described_options
from cldnet.nets.efficientnet import VERSIONS
from cldnet.nets.features import FeatureMap, RandomReLU
from cldnet.nets.pretrained import Adapted, Beside, Pretrained

__all__ = ["Expanded", "ExpandedNet", "check_image_shape", "features_within", "usual_size"]

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


class Expanded(FeatureMap):
    """Frozen nets, and random ReLU features of their vectors in whole numbers from 0 to 127.

    It is made without weights; `load_published` brings those that were published, and a model's file those that it was saved
    with.

    Parameters
    ----------
    input_shape : tuple of int
        ``(3, height, width)`` or ``(height, width)``; images are brought to each net's size.
    features : int
        Random features. Their sums of products take ``8 · features²`` bytes; see `features_within`.
    seed : int
        Seed of the random features.
    bodies : sequence
        Names of nets, or tables with options; see `cldnet.nets.bodies.build_body`. Their vectors stand beside each other.
    mirror : bool
        Take the mean of an image's vector and its mirror image's.

    Examples
    --------
    >>> made = Expanded((3, 32, 32), features=50, seed=0, bodies=[{"net": "efficientnet-lite0", "size": 32}])
    >>> made.out_features, bool(made.fitted)
    (51, False)
    """

    kind: ClassVar[str] = "expanded"
    limits = RandomReLU.limits
    fits_data: ClassVar[bool] = False
    min_rows = 1

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 4000,
        *,
        seed: int,
        bodies: Sequence[str | Mapping[str, Any]] = ("efficientnet-lite0",),
        mirror: bool = False,
    ) -> None:
        super().__init__()
        check_image_shape(input_shape)
        self.input_shape, self.seed, self.mirror = tuple(input_shape), seed, bool(mirror)
        self.body: Pretrained | Beside = bodies_beside(bodies, mirror=mirror)
        if any(isinstance(part, Adapted) for part in self.body.modules()):
            raise ValueError(
                "A feature map is fixed: leave adapt=… out, or use a solver that trains its net, as 'hbo'."
            )
        self.expansion = RandomReLU((self.body.out_features,), features, seed=seed)
        self.out_features = self.expansion.out_features

    @property
    def fitted(self) -> Tensor:  # type: ignore[override]
        """Whether there are weights."""
        return self.expansion.fitted

    @classmethod
    def from_description(cls, input_shape: tuple[int, ...], seed: int, options: Mapping[str, Any]) -> Self:
        """Make an empty one from what a file says; no name in it is looked up."""
        return super().from_description(input_shape, seed, described_options(options))

    @property
    def options(self) -> dict[str, Any]:
        """What the map is made with, beside its shape and seed."""
        return {"features": self.out_features - 1, "bodies": describe_bodies(self.body), "mirror": self.mirror}

    def train(self, mode: bool = True) -> Expanded:
        """Stay in evaluation mode: the map is fixed."""
        return super().train(False)

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Bring the weights; nothing is taken from the images."""
        self.load_published()

    @torch.no_grad()
    def load_published(self) -> Expanded:
        """Bring the weights that were published, and scale the random features by what the nets were trained on."""
        mean, spread = usual_size(self.body)
        usual = mean + spread * torch.randn(_DRAWN, len(mean), generator=generator(self.seed))
        self.expansion.fit(usual.to(self.expansion.weight.device))
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
        vectors: Tensor = self.body(x)
        if not torch.isfinite(vectors).all():
            raise ValueError("The pretrained net gave NaN or infinity for some images: load the last good copy of it.")
        return vectors


class ExpandedNet(Expanded):
    """EfficientNet-lite, frozen, and random ReLU features of its vectors in whole numbers from 0 to 127.

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
    limits = RandomReLU.limits

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
        if version not in VERSIONS:
            raise ValueError(f"There is no EfficientNet-lite {version!r} here; use one of {sorted(VERSIONS)}.")
        body = {"net": f"efficientnet-lite{version}", "stages": list(stages)} | ({} if size is None else {"size": size})
        super().__init__(input_shape, features, seed=seed, bodies=[body], mirror=mirror)

    @property
    def options(self) -> dict[str, Any]:
        """What the map is made with, beside its shape and seed."""
        body: Any = self.body
        return {
            "features": self.out_features - 1,
            "version": body.net.version,
            "size": body.size,
            "stages": list(body.net.taken),
            "mirror": self.mirror,
        }


def usual_size(body: Pretrained | Beside) -> tuple[Tensor, Tensor]:
    """Bring a net's published weights; returns the mean and spread of its features, none of them too small to divide by."""
    mean, spread = body.load_published()
    return mean, spread.clamp_min(_LEAST_SPREAD * float(spread.median()))


def check_image_shape(input_shape: tuple[int, ...]) -> None:
    """Refuse inputs that are no images.

    Examples
    --------
    >>> check_image_shape((3, 32, 32))
    """
    if len(input_shape) not in (2, 3) or (len(input_shape) == 3 and input_shape[0] not in (1, 3)):
        raise ValueError(
            f"Pretrained nets are for images, and inputs have shape {tuple(input_shape)}: expected (3, height, width) or "
            "(height, width). Fold flat rows with input_shape=…"
        )
