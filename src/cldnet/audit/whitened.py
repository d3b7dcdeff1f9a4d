"""How patches were whitened before a map made filters of them, so that filters can be compared with whitened patches.

A filter is ``W c``: a unit vector ``c`` among whitened patches ``W (p − m)``, with the whitening ``W`` folded into it. So one
that is made of a single patch looks nothing like that patch, unless ``W`` is known. A map does not keep ``W``. It was made of
the first task's patches, and follows from the rows at hand as far as they are like those; what they get wrong, the filters
themselves tell: unfolded by the right ``W`` each has length 1, and their offsets are ``−mᵀ W c``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.nets.patch_parts import normalised, unfolded, whitening
from cldnet.nets.patches import WhitenedPatches

__all__ = ["Whitening", "whitenings"]

_NUMBERS = 1 << 25  # of the patches that the whitening is made of
#: Share of the mean diagonal that keeps the equations for the filters' lengths solvable where filters are alike.
_STEADY = 1e-6
_CERTAIN = 0.1  # share of the largest singular value below which what the offsets tell of the mean is uncertain


class Whitening(NamedTuple):
    """A whitening of patches.

    Attributes
    ----------
    matrix : Tensor, shape (length, length)
        ``W``, symmetric.
    mean : Tensor, shape (length,)
        ``m``, the mean of normalised patches.
    floor : Tensor
        The variance up to which a patch counts as flat.
    """

    matrix: Tensor
    mean: Tensor
    floor: Tensor

    def whiten(self, patches: Tensor) -> Tensor:
        """Whiten patches ``(…, length)`` as they come out of images; flat ones have no direction and become zeros."""
        flat = patches.flatten(0, -2)
        shown = flat.var(1, correction=0, keepdim=True) > self.floor
        white = (normalised(flat, self.floor) - self.mean) @ self.matrix
        return white.mul_(shown).reshape(patches.shape)

    def unfold(self, filters: Tensor) -> Tensor:
        """Take the whitening out of filters ``(count, length)``: what is left are directions of whitened patches."""
        found: Tensor = torch.linalg.solve(self.matrix.double(), filters.double().T).T.float()
        return found


def whitenings(features: WhitenedPatches, images: Tensor) -> dict[str, Whitening]:
    """Tell a map's whitening twice: by images alone, and mended by what the filters tell of it.

    The second is nearer where the images are not quite those that the map was fitted on, the first where filters were put in
    afterwards. There is none where the images show nothing.

    Examples
    --------
    >>> from cldnet.device import generator
    >>> images = torch.randint(0, 256, (60, 8, 8), generator=generator(0), dtype=torch.uint8)
    >>> features = WhitenedPatches((8, 8), filters=3, size=4, windows=2, seed=0)
    >>> features.fit(images)
    >>> for name, found in whitenings(features, images).items():
    ...     lengths = found.unfold(features.filters.T).norm(dim=1)
    ...     print(f"{name}: {lengths.min():.1f} to {lengths.max():.1f}")
    whitened: 1.0 to 1.0
    whitened as the filters tell: 1.0 to 1.0
    """
    pixels = images.reshape(len(images), features.channels, *images.shape[-2:])
    most = max(1, _NUMBERS // (features.sides[0] * features.sides[1] * len(features.filters)))
    spread = torch.linspace(0, len(pixels) - 1, min(most, len(pixels))).long()
    patches = torch.cat([unfolded(image.float(), features.size) for image in pixels[spread]])
    shown = patches[patches.var(1, correction=0) > features.floor]
    if len(shown) < 2:
        return {}
    by_images = Whitening(*whitening(normalised(shown, features.floor)), features.floor)
    return {"whitened": by_images, "whitened as the filters tell": _mended(by_images, features)}


def _mended(found: Whitening, features: WhitenedPatches) -> Whitening:
    """Change ``W⁻²`` by as little as gives every unfolded filter the length 1, and ``m`` so that the offsets are as they are.

    With ``u = W⁻¹ f`` for each filter ``f``, ``W⁻¹ (I + Σ μ uuᵀ) W⁻¹`` is the nearest such matrix, seen from the old one.
    """
    filters, mean = features.filters.double(), found.mean.double()
    root = torch.linalg.inv(found.matrix.double())
    directions = filters.T @ root
    products = (directions @ directions.T).square()
    products.diagonal().add_(_STEADY * products.diagonal().mean())
    shares = torch.linalg.solve(products, 1 - directions.square().sum(1))
    inverse_square = root @ root + root @ (directions.T * shares) @ directions @ root
    values, vectors = torch.linalg.eigh(inverse_square)
    least = torch.linalg.eigvalsh(root).min().square() / 2  # it stays positive
    matrix = (vectors * values.clamp_min(least).rsqrt()) @ vectors.T
    missed = -features.offset.double() - mean @ filters
    mean = mean + root @ (torch.linalg.pinv(directions, rtol=_CERTAIN) @ missed)
    return Whitening(matrix.float(), mean.float(), found.floor)
