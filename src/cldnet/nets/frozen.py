"""Frozen pretrained nets in front of what a gradient method learns: the paper's "Ours(1)" with one, "Ours(2)" with two.

The paper leaves open which layers of its ViT learn. Read here: none of the net's; its vectors, brought to mean 0 and spread 1,
go to hidden layers of our own (none by default) and on to the method's head, an embedding layer through projectors for CLDNet.
With ``adapt``, the linear layers of a ViT's last blocks learn too, through projectors of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.nets.bodies import bodies_beside, describe_bodies, described_options
from cldnet.nets.described import Described
from cldnet.nets.expanded import check_image_shape, usual_size
from cldnet.nets.mlp import MLP
from cldnet.nets.pretrained import Beside, Pretrained

__all__ = ["FrozenNet", "count_weights", "learning_state"]

#: Hidden layers behind the nets at most.
_MOST_HIDDEN = 64


class FrozenNet(Described):
    """Frozen nets beside each other, their vectors brought to mean 0 and spread 1, and hidden layers that learn.

    Parameters
    ----------
    input_shape : tuple of int
        ``(3, height, width)`` or ``(height, width)``; images are brought to each net's size.
    widths : sequence of int
        Units of each hidden ReLU layer behind the nets.
    seed : int
        Seed of the hidden layers' first weights.
    bodies : sequence
        Names of nets, or tables with options; see `cldnet.nets.bodies.build_body`.
    mirror : bool
        Take the mean of an image's vector and its mirror image's.

    Examples
    --------
    >>> net = FrozenNet((3, 32, 32), seed=0, widths=(16,), bodies=[{"net": "efficientnet-lite0", "size": 32}])
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 16])
    """

    kind: ClassVar[str] = "frozen"
    #: Pixels come as they are, from 0 to 255: each net scales them as its training did.
    takes_pixels: ClassVar[bool] = True

    loaded: Tensor
    mean: Tensor
    spread: Tensor

    def __init__(
        self,
        input_shape: tuple[int, ...],
        widths: Sequence[int] = (),
        *,
        seed: int,
        bodies: Sequence[str | Mapping[str, Any]] = ("efficientnet-lite0",),
        mirror: bool = False,
    ) -> None:
        super().__init__()
        check_image_shape(input_shape)
        if len(widths) > _MOST_HIDDEN or not all(type(width) is int and width >= 1 for width in widths):
            raise ValueError(f"widths={widths!r:.80} should be at most {_MOST_HIDDEN} whole numbers from 1 on.")
        self.input_shape, self.seed, self.mirror, self.widths = tuple(input_shape), seed, bool(mirror), tuple(widths)
        self.body: Pretrained | Beside = bodies_beside(bodies, mirror=mirror)
        features = self.body.out_features
        for name, value in (("mean", torch.zeros(features)), ("spread", torch.ones(features))):
            self.register_buffer(name, value)
        self.register_buffer("loaded", torch.zeros((), dtype=torch.bool))
        self.hidden = MLP((features,), self.widths, generator=generator(seed)) if self.widths else nn.Identity()
        self.out_features = self.widths[-1] if self.widths else features

    @classmethod
    def from_description(cls, input_shape: tuple[int, ...], seed: int, options: Mapping[str, Any]) -> Self:
        """Make an empty one from what a file says; no name in it is looked up."""
        return super().from_description(input_shape, seed, described_options(options))

    @property
    def options(self) -> dict[str, Any]:
        """What the net is made with, beside its shape and seed."""
        return {"widths": list(self.widths), "bodies": describe_bodies(self.body), "mirror": self.mirror}

    @torch.no_grad()
    def load_published(self) -> FrozenNet:
        """Bring the weights that were published, if there are none yet."""
        if not self.loaded:
            mean, spread = usual_size(self.body)
            self.mean.copy_(mean)
            self.spread.copy_(spread)
            self.loaded.fill_(True)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Features of images, each by itself."""
        features: Tensor = self.hidden((self.body(x) - self.mean) / self.spread)
        return features


def learning_state(net: nn.Module) -> dict[str, Tensor]:
    """A net's state without what is frozen in it: all that beginning again takes.

    Examples
    --------
    >>> net = FrozenNet((3, 32, 32), seed=0, widths=(16,), bodies=[{"net": "efficientnet-lite0", "size": 32}])
    >>> sorted(learning_state(net))
    ['hidden.layers.1.bias', 'hidden.layers.1.weight']
    """
    fixed = {
        name if not prefix else f"{prefix}.{name}"
        for prefix, part in net.named_modules()
        if isinstance(part, FrozenNet)
        for name, _ in part.named_buffers()
    }
    return {name: tensor for name, tensor in net.state_dict().items() if name not in fixed}


def count_weights(net: nn.Module) -> int:
    """How many numbers a net's parameters are, and those of frozen nets in it, which are none.

    Examples
    --------
    >>> count_weights(nn.Linear(2, 3))
    9
    """
    frozen = [part for part in net.modules() if isinstance(part, Pretrained)]
    numbers = [*net.parameters(), *(buffer for part in frozen for buffer in part.net.buffers())]
    return sum(tensor.numel() for tensor in numbers)
