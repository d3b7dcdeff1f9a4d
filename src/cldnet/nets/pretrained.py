"""Frozen pretrained nets that turn inputs into vectors, and those for images behind the preprocessing of their training.

Images are numbers from 0 to 255, ``(n, 3, height, width)`` of any size, or grey ones without the 3; bytes or floats. They are
resized and normalised as in the net's training, and go through it in blocks of one size, so that an image's vector depends
neither on the other images nor on the number of threads.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import run_in_threads

#: Images per forward pass. It is fixed, because how a product is split up, and so its last bit, depends on it.
BLOCK = 8
BLOCK_ELSEWHERE = 64  # on a device other than the CPU


@dataclass(frozen=True)
class Preprocessing:
    """How an image is prepared for a net."""

    size: int  # side of the images that the net is given
    mean: Sequence[float]  # of each colour, for pixels from 0 to 255
    spread: Sequence[float]  # std of each colour
    shorter: int | None = None  # resize the shorter side to this, then crop the center; None: resize to a square
    interpolation: str = "bicubic"  # or "bilinear"

    def resize_and_crop(self, height: int, width: int) -> tuple[list[int], list[int]]:
        """Height and width to resize an image to, and the top and left of the crop."""
        sides = [self.size, self.size]
        if self.shorter is not None:
            short = min(height, width)
            sides = [max(self.size, round(side * self.shorter / short)) for side in (height, width)]
        return sides, [(side - self.size) // 2 for side in sides]

    def resize(self, pixels: Tensor) -> Tensor:
        """Resize and crop images to the net's size."""
        sides, (top, left) = self.resize_and_crop(*pixels.shape[2:])
        if sides != list(pixels.shape[2:]):
            pixels = F.interpolate(pixels, sides, mode=self.interpolation, antialias=True).clamp_(0, 255)
        return pixels[:, :, top : top + self.size, left : left + self.size]


class FrozenBody(nn.Module, ABC):
    """A frozen net that turns inputs into vectors, with what it needs in front of it.

    What does not learn is a buffer, with the same name, instead of a parameter: no method can update it or allocate a gradient,
    an importance or a projector for it. ``made`` describes the net in JSON types.
    """

    #: A `cldnet.bench.feature_cache.FeatureCache` where vectors are kept, if any. Not part of the state.
    memory: Any = None
    #: Whether parameters that require gradients learn.
    adapts: bool = False
    #: Whether inputs are rows of bytes of `cldnet.data.sentences`, and not images.
    takes_text: bool = False
    #: Whether vectors are zeros and nothing is computed; see `zero_outputs`.
    outputs_zeros: bool = False

    def __init__(self, net: nn.Module, out_features: int, made: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.net: Any = net.eval()
        for module in net.modules():
            for name, parameter in [*module._parameters.items()]:
                if parameter is not None and not (self.adapts and parameter.requires_grad):
                    del module._parameters[name]
                    module.register_buffer(name, parameter.detach())
        self.out_features, self.made = int(out_features), dict(made or {})
        self._known_as: tuple[Any, str] | None = None

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """A tensor of the net's type, on its device."""

    @property
    def settings(self) -> list[Any]:
        """What a vector depends on besides description and tensors, in JSON types."""
        return []

    @abstractmethod
    def compute(self, x: Tensor) -> Tensor:
        """Vectors of inputs from the net itself, each by itself, without gradients."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode: the net is fixed."""
        return super().train(False)

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Load the net's published weights; returns the usual mean and std of each feature."""
        usual: tuple[Tensor, Tensor] = self.net.load_published()
        return usual

    def described(self) -> list[dict[str, Any]]:
        """Descriptions of the net, for `cldnet.nets.frozen.build_bodies`."""
        return [self.made]

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of inputs ``(n, …)``, each by itself, without gradients."""
        if self.outputs_zeros:
            return self.like.new_zeros(len(x), self.out_features)
        vectors: Tensor = _FrozenForward.apply(x, self)  # type: ignore[no-untyped-call]
        return vectors

    @torch.no_grad()
    def recall(self, x: Tensor) -> Tensor:
        """Vectors of inputs, from the cache if there is one."""
        return self.compute(x) if self.memory is None else self.memory.vectors(self.identity, x, self.compute)

    @property
    def identity(self) -> str:
        """Digest of all that a vector depends on: the net's description, its tensors, and torch's version."""
        tensors = self.state_dict()
        now = tuple((name, tensor.data_ptr(), tensor._version) for name, tensor in tensors.items())
        if self._known_as is None or self._known_as[0] != now:
            parts = [self.made, *self.settings, torch.__version__, str(self.like.dtype)]
            parts += [] if self.like.device.type == "cpu" else [self.like.device.type]
            digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=list).encode())
            for name, tensor in sorted(tensors.items()):
                digest.update(f"{name}:{tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            self._known_as = now, digest.hexdigest()[:32]
        return self._known_as[1]


class Pretrained(FrozenBody):
    """A frozen net for images behind its preprocessing.

    With ``mirror`` the vectors of an image and its mirror image are averaged.
    """

    def __init__(
        self,
        net: nn.Module,
        out_features: int,
        preprocessing: Preprocessing,
        *,
        mirror: bool = False,
        made: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(net.to(memory_format=torch.channels_last), out_features, made)  # type: ignore[call-overload]
        self.preprocessing, self.mirror = preprocessing, bool(mirror)
        self.pixel_mean: Tensor = nn.Buffer(torch.tensor([*preprocessing.mean], dtype=torch.float32).view(3, 1, 1))
        self.pixel_spread: Tensor = nn.Buffer(torch.tensor([*preprocessing.spread], dtype=torch.float32).view(3, 1, 1))

    @property
    def size(self) -> int:
        """Side of the images that the net is given."""
        return self.preprocessing.size

    @property
    def like(self) -> Tensor:
        """A tensor of the net's type, on its device."""
        return self.pixel_mean

    @property
    def settings(self) -> list[Any]:
        """What a vector depends on besides description and tensors."""
        return [vars(self.preprocessing), self.mirror]

    @torch.no_grad()
    def compute(self, x: Tensor) -> Tensor:
        """Vectors of images ``(n, 3, height, width)`` or ``(n, height, width)`` from the net itself."""
        images, where = x.unsqueeze(1) if x.ndim == 3 else x, self.like.device
        if where.type != "cpu":
            blocks = [self.embed_batch(block.to(where)).to(x.device) for block in images.split(BLOCK_ELSEWHERE)]
            return torch.cat(blocks) if blocks else torch.empty(0, self.out_features, device=x.device)
        # Other threads are not in the caller's inference mode, and could not write into its tensors.
        with torch.inference_mode(False):
            vectors = torch.empty(len(x), self.out_features, dtype=self.pixel_mean.dtype, device=x.device)

            @torch.no_grad()
            def work(piece: range) -> None:
                block = images[piece.start : piece.stop]
                full = torch.cat([block, block[-1:].expand(BLOCK - len(block), -1, -1, -1)])
                vectors[piece.start : piece.stop] = self.embed_batch(full)[: len(block)]

            run_in_threads(work, len(images), BLOCK)  # each block on one thread: their number changes no bit
        return vectors

    def embed_batch(self, images: Tensor) -> Tensor:
        """Vectors of images ``(n, 3, height, width)`` as one batch, with gradients."""
        return self.embed_pixels(self.preprocess(images))

    def preprocess(self, images: Tensor) -> Tensor:
        """Resize and normalise images as in the net's training."""
        pixels = self.preprocessing.resize(images.to(self.pixel_mean.dtype).expand(-1, 3, -1, -1))
        return self.normalise(pixels).contiguous(memory_format=torch.channels_last)

    def embed_pixels(self, pixels: Tensor) -> Tensor:
        """Vectors of normalised images of the net's size as one batch."""
        vectors: Tensor = self.net(pixels)
        return (vectors + self.net(pixels.flip(3))) / 2 if self.mirror else vectors

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise pixels from 0 to 255 as in the net's training."""
        return (pixels - self.pixel_mean) / self.pixel_spread


class _FrozenForward(torch.autograd.Function):
    """A fixed net as one step without gradients: for `torch.func` too, which cannot trace threads."""

    @staticmethod
    def forward(x: Tensor, net: FrozenBody) -> Tensor:
        return net.recall(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, None], x: Tensor, net: FrozenBody) -> tuple[Tensor, int]:
        rows = x.movedim(dims[0] or 0, 0)
        return net.recall(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]), 0


class Adapted(Pretrained):
    """A net behind its preprocessing of which some layers learn: those whose parameters require gradients."""

    adapts = True

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of images, with gradients and without a cache."""
        if self.outputs_zeros:
            for part in self.net.modules():
                if isinstance(part, nn.Linear) and "weight" in part._parameters:
                    part(part.weight.new_zeros(1, part.in_features))
            return self.like.new_zeros(len(x), self.out_features)
        return self.embed_batch(x.unsqueeze(1) if x.ndim == 3 else x)


class Concatenated(nn.Module):
    """Several nets, with their vectors concatenated."""

    def __init__(self, bodies: Sequence[FrozenBody]) -> None:
        super().__init__()
        self.bodies: Sequence[FrozenBody] = nn.ModuleList(bodies)  # type: ignore[assignment]
        self.out_features = sum(body.out_features for body in bodies)

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Load the published weights of all nets; returns the usual mean and std of each feature."""
        found = [body.load_published() for body in self.bodies]
        return torch.cat([mean for mean, _ in found]), torch.cat([std for _, std in found])

    def described(self) -> list[dict[str, Any]]:
        """Descriptions of the nets, for `cldnet.nets.frozen.build_bodies`."""
        return [body.made for body in self.bodies]

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of inputs, each by itself."""
        return torch.cat([body(x) for body in self.bodies], dim=1)


@contextmanager
def zero_outputs(module: nn.Module) -> Iterator[None]:
    """Have the pretrained nets in a module return zeros without computing; layers that learn are still called.

    This finds the layers of a net from a file at no cost, whatever the net would take to run.
    """
    nets = [part for part in module.modules() if isinstance(part, FrozenBody)]
    for net in nets:
        net.outputs_zeros = True
    try:
        yield
    finally:
        for net in nets:
            net.outputs_zeros = False


Beside = Concatenated  # its name in estimators pickled by version 0.1


def frozen_nets(module: nn.Module) -> list[FrozenBody]:
    """The pretrained nets of a module that are not adapted."""
    return [part for part in module.modules() if isinstance(part, FrozenBody) and not part.adapts]
