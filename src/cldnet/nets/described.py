"""Nets that say in JSON's types what an empty one of the same make is built from, so that a file can hold them in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import nn

__all__ = ["Described"]


class Described(nn.Module):
    """A net that its class, its `describe` and its tensors determine."""

    #: Name of the net's make, by which `cldnet.nets.build_described` finds it; "own" for one whose code only its user has.
    kind: ClassVar[str] = "own"
    #: Seed of what is random in the net.
    seed: int = 0
    #: Shape of one input.
    input_shape: tuple[int, ...]
    #: Length of a feature vector.
    out_features: int

    @property
    def options(self) -> dict[str, Any]:
        """What the net is made with beside shape and seed, in JSON's types."""
        return {}

    @classmethod
    def from_description(cls, input_shape: tuple[int, ...], seed: int, options: Mapping[str, Any]) -> Self:
        """Make an empty net from what a file says: a stranger may have written it."""
        return cls(input_shape, seed=seed, **options)

    def describe(self) -> dict[str, Any]:
        """Say in JSON's types what an empty net of the same make is built from; its numbers are loaded afterwards."""
        return {
            "kind": self.kind,
            "input_shape": list(getattr(self, "input_shape", ())),
            "seed": self.seed,
            "options": self.options,
        }
