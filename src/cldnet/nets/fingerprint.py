"""Fingerprints of modules: a saved model checks that a user's module is the one it was trained with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.device import generator


class WrongModule(ValueError):
    """The user's module is not the one that a file was saved with; the file itself may be fine."""


@dataclass(frozen=True)
class Fingerprint:
    """Names and shapes of a module's tensors, and its output for a fixed random input."""

    names: dict[str, list[int]]
    input_shape: tuple[int, ...]
    output: list[float]

    @classmethod
    def of(cls, module: nn.Module, input_shape: tuple[int, ...]) -> Fingerprint:
        """Take a module's fingerprint."""
        return cls(_names(module), tuple(input_shape), _probe(module, input_shape).tolist())

    def check_names(self, module: nn.Module) -> None:
        """Refuse a module with other tensors."""
        names = _names(module)
        different = sorted(name for name in {*names, *self.names} if names.get(name) != self.names.get(name))
        if different:
            raise WrongModule(
                f"The module is not the one that the model was trained with: {different[0]!r} differs "
                f"(and {len(different) - 1} more). Build the module with the original code and arguments."
            )

    def check_output(self, module: nn.Module) -> None:
        """Refuse a module with the same weights but another output."""
        output = _probe(module, self.input_shape)
        expected = torch.tensor(self.output, dtype=output.dtype)
        if output.shape != expected.shape or not torch.allclose(output, expected, rtol=1e-3, atol=1e-4):
            raise WrongModule(
                "The module has the same weights as the one that the model was trained with, but another output. "
                "Load the model with the original code."
            )

    def to_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {"names": self.names, "input_shape": list(self.input_shape), "output": self.output}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Fingerprint:
        """Read a fingerprint from `to_json`, as untrusted input."""
        mark = cls(dict(state["names"]), tuple(state["input_shape"]), list(state["output"]))
        if not all(isinstance(number, int | float) for number in mark.output):
            raise ValueError("the output of its module should be a list of numbers")
        return mark


def _names(module: nn.Module) -> dict[str, list[int]]:
    """Names and shapes of a module's tensors."""
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run a module in evaluation mode without gradients; afterwards each part is back in its own mode."""
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad():
            yield
    finally:
        for part, training in modes.items():  # a user may have frozen some of them
            part.training = training


def _probe(module: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    """First outputs for a fixed random input."""
    like = next(module.parameters(), torch.zeros(()))
    probe = torch.randn(1, *input_shape, generator=generator(0)).to(like)
    with evaluating(module):
        output: Tensor = module(probe)
    return output.flatten()[:64].double().cpu()
