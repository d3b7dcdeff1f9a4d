"""Pretrained backbones: frozen nets that turn images into vectors, each with the preprocessing that it was trained with.

Images are numbers from 0 to 255, ``(n, 3, height, width)`` of any size, or grey ones without the 3; bytes or floats. They are
brought to the net's size, normalised as in its training, and go through it in blocks of one size, so that an image's vector
does not depend on the images beside it, nor on the number of threads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import share_out

__all__ = ["Adapted", "Beside", "Memory", "Preprocessing", "Pretrained", "at_rest"]

#: Images that go through a net at once. Always as many: how a product is cut up, and so its last bit, depends on their number.
BLOCK = 8
BLOCK_ELSEWHERE = 64  # on a device that is not the CPU


class Memory(Protocol):
    """Remembers vectors of images that a net has seen, as `cldnet.data.features.FeatureCache` does."""

    def vectors(self, body: str, images: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Vectors of images; those that are not known yet are computed."""


@dataclass(frozen=True)
class Preprocessing:
    """What is done to an image before a net sees it.

    Attributes
    ----------
    size : int
        Side of the images that the net is given.
    mean, spread : sequence of float
        Of the pixels of each colour, from 0 to 255: what the net's training subtracted and divided by.
    shorter : int, optional
        What the shorter side is brought to, before the middle is cut out; without it, an image is squeezed to the size.
    interpolation : str
        "bicubic" or "bilinear".
    """

    size: int
    mean: Sequence[float]
    spread: Sequence[float]
    shorter: int | None = None
    interpolation: str = "bicubic"

    def cut(self, height: int, width: int) -> tuple[list[int], list[int]]:
        """The sides that an image is brought to, and where what the net is given begins in it."""
        sides = [self.size, self.size]
        if self.shorter is not None:
            short = min(height, width)
            sides = [max(self.size, round(side * self.shorter / short)) for side in (height, width)]
        return sides, [(side - self.size) // 2 for side in sides]

    def resized(self, pixels: Tensor) -> Tensor:
        """Images of the net's size."""
        sides, (top, left) = self.cut(*pixels.shape[2:])
        if sides != list(pixels.shape[2:]):
            pixels = F.interpolate(pixels, sides, mode=self.interpolation, antialias=True).clamp_(0, 255)
        return pixels[:, :, top : top + self.size, left : left + self.size]


class Pretrained(nn.Module):
    """A frozen net behind its preprocessing.

    What does not learn is no parameter: its numbers are buffers, with the same names. So no method can step along them, and
    none makes room for a gradient, an importance or a projector of theirs.

    Parameters
    ----------
    net : nn.Module
        Maps normalised images ``(n, 3, size, size)`` to vectors ``(n, out_features)``.
    out_features : int
    preprocessing : Preprocessing
    mirror : bool
        Give the mean of an image's vector and its mirror image's, at twice the cost.
    made : mapping, optional
        What the net is made from, in JSON's types.

    Examples
    --------
    >>> net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> colours = Pretrained(net, 3, Preprocessing(4, mean=[100.0] * 3, spread=[10.0] * 3))
    >>> colours(torch.full((1, 8, 9), 120, dtype=torch.uint8))
    tensor([[2., 2., 2.]])
    """

    #: Where vectors are remembered, if anywhere. No part of the state.
    memory: Memory | None = None
    #: Whether vectors are zeros, and nothing is computed; see `at_rest`.
    resting: bool = False

    pixel_mean: Tensor
    pixel_spread: Tensor

    def __init__(
        self,
        net: nn.Module,
        out_features: int,
        preprocessing: Preprocessing,
        *,
        mirror: bool = False,
        made: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        laid: nn.Module = net.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.net: Any = _freeze(laid, all_but=self._learning(net))
        self.out_features, self.preprocessing, self.mirror = int(out_features), preprocessing, bool(mirror)
        self.made = dict(made or {})
        self._known_as: tuple[Any, str] | None = None
        for name, values in (("pixel_mean", preprocessing.mean), ("pixel_spread", preprocessing.spread)):
            self.register_buffer(name, torch.tensor(list(values), dtype=torch.float32).reshape(3, 1, 1))

    @staticmethod
    def _learning(net: nn.Module) -> set[Tensor]:
        """Parameters of the net that are to learn."""
        return set()

    @property
    def size(self) -> int:
        """Side of the images that the net is given."""
        return self.preprocessing.size

    def train(self, mode: bool = True) -> Pretrained:
        """Stay in evaluation mode: the net is fixed."""
        return super().train(False)

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Bring the net's published weights; returns the mean and the spread that each feature usually has."""
        mean, spread = self.net.load_published()
        return mean, spread

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of images ``(n, 3, height, width)`` or ``(n, height, width)``, each by itself; no gradient comes back."""
        if self.resting:
            return self._zeros(len(x))
        vectors: Tensor = _Looked.apply(x, self)  # type: ignore[no-untyped-call]
        return vectors

    def _zeros(self, count: int) -> Tensor:
        return self.pixel_mean.new_zeros(count, self.out_features)

    @torch.no_grad()
    def recall(self, x: Tensor) -> Tensor:
        """Vectors of images, out of memory where there is one and it knows them."""
        return self.compute(x) if self.memory is None else self.memory.vectors(self.identity, x, self.compute)

    @torch.no_grad()
    def compute(self, x: Tensor) -> Tensor:
        """Vectors of images from the net itself."""
        images, where = x.unsqueeze(1) if x.ndim == 3 else x, self.pixel_mean.device
        if where.type != "cpu":  # a net that was moved to another device takes images there, and gives vectors back
            blocks = [self.at_once(block.to(where)).to(x.device) for block in images.split(BLOCK_ELSEWHERE)]
            return torch.cat(blocks) if blocks else torch.empty(0, self.out_features, device=x.device)
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
        return self.at_once(images)[:count]

    def at_once(self, images: Tensor) -> Tensor:
        """Vectors of images ``(n, 3, height, width)``, all in one go: for whoever traces, or learns."""
        return self.embedded(self.preprocessed(images))

    def embedded(self, pixels: Tensor) -> Tensor:
        """Vectors of normalised images of the net's size, all in one go."""
        vectors: Tensor = self.net(pixels)
        return (vectors + self.net(pixels.flip(3))) / 2 if self.mirror else vectors

    def preprocessed(self, images: Tensor) -> Tensor:
        """Normalised images of the net's size."""
        pixels = self.preprocessing.resized(images.to(self.pixel_mean.dtype).expand(-1, 3, -1, -1))
        return self.normalised(pixels).contiguous(memory_format=torch.channels_last)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 255 as the net was trained on them."""
        return (pixels - self.pixel_mean) / self.pixel_spread

    @property
    def identity(self) -> str:
        """Digest of all that a vector follows from: what the net is made from, its numbers, and torch's version."""
        tensors = self.state_dict()
        now = tuple((name, tensor.data_ptr(), tensor._version) for name, tensor in tensors.items())
        if self._known_as is None or self._known_as[0] != now:
            said = [self.made, vars(self.preprocessing), self.mirror, torch.__version__, str(self.pixel_mean.dtype)]
            said += [] if self.pixel_mean.device.type == "cpu" else [self.pixel_mean.device.type]
            digest = hashlib.sha256(json.dumps(said, sort_keys=True, default=list).encode())
            for name, tensor in sorted(tensors.items()):
                digest.update(f"{name}:{tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._known_as = now, digest.hexdigest()[:32]
        return self._known_as[1]


class _Looked(torch.autograd.Function):
    """A fixed net as one step, through which no gradient passes: for `torch.func` too, which cannot see into threads."""

    @staticmethod
    def forward(x: Tensor, net: Pretrained) -> Tensor:
        return net.recall(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, None], x: Tensor, net: Pretrained) -> tuple[Tensor, int]:
        rows = x.movedim(dims[0] or 0, 0)
        return net.recall(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]), 0


class Adapted(Pretrained):
    """A net behind its preprocessing of which some layers learn: those whose parameters ask for gradients."""

    @staticmethod
    def _learning(net: nn.Module) -> set[Tensor]:
        return {parameter for parameter in net.parameters() if parameter.requires_grad}

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of images, with a way back for gradients; nothing is remembered, since it changes."""
        if self.resting:
            for part in self.net.modules():
                if isinstance(part, nn.Linear) and "weight" in part._parameters:
                    part(part.weight.new_zeros(1, part.in_features))
            return self._zeros(len(x))
        return self.at_once(x.unsqueeze(1) if x.ndim == 3 else x)


class Beside(nn.Module):
    """Several nets' vectors beside each other.

    Examples
    --------
    >>> net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> made = [Pretrained(net, 3, Preprocessing(side, mean=[0.0] * 3, spread=[1.0] * 3)) for side in (2, 4)]
    >>> Beside(made)(torch.ones(1, 8, 8)).shape
    torch.Size([1, 6])
    """

    def __init__(self, bodies: Sequence[Pretrained]) -> None:
        super().__init__()
        self.bodies: Sequence[Pretrained] = nn.ModuleList(bodies)  # type: ignore[assignment]
        self.out_features = sum(body.out_features for body in bodies)

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Bring the published weights of all; returns the mean and the spread that each feature usually has."""
        found = [body.load_published() for body in self.bodies]
        return torch.cat([mean for mean, _ in found]), torch.cat([spread for _, spread in found])

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of images, each by itself."""
        return torch.cat([body(x) for body in self.bodies], dim=1)

    def at_once(self, images: Tensor) -> Tensor:
        """Vectors of images, all in one go."""
        return torch.cat([body.at_once(images) for body in self.bodies], dim=1)


@contextmanager
def at_rest(module: nn.Module) -> Iterator[None]:
    """Have the pretrained nets in a module give zeros without computing anything; layers that learn are still called.

    For whoever looks for layers: what a net costs to run does not follow from the size of the file that it came from.

    Examples
    --------
    >>> colours = Pretrained(nn.Flatten(), 3, Preprocessing(1, mean=[0.0] * 3, spread=[1.0] * 3))
    >>> with at_rest(colours):
    ...     colours(torch.ones(1, 8, 8))
    tensor([[0., 0., 0.]])
    """
    nets = [part for part in module.modules() if isinstance(part, Pretrained)]
    for net in nets:
        net.resting = True
    try:
        yield
    finally:
        for net in nets:
            net.resting = False


def _freeze(net: nn.Module, all_but: set[Tensor]) -> nn.Module:
    """Turn parameters into buffers."""
    for module in net.modules():
        for name, parameter in [*module._parameters.items()]:
            if parameter is not None and parameter not in all_but:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())
    return net
