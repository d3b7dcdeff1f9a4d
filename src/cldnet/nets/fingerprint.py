"""A module's fingerprint: how a saved model recognises the code that its weights belong to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.device import generator

__all__ = ["Fingerprint", "WrongModule", "evaluating"]


class WrongModule(ValueError):
    """The module that a user handed over is not the one that a file needs; the file may be whole."""


@dataclass(frozen=True)
class Fingerprint:
    """Names and shapes of a module's tensors, and its output for a fixed random input.

    Examples
    --------
    >>> mark = Fingerprint.of(nn.Linear(2, 1), (2,))
    >>> mark.names
    {'weight': [1, 2], 'bias': [1]}
    >>> mark.check_names(nn.Linear(3, 1))
    Traceback (most recent call last):
    ...
    cldnet.nets.fingerprint.WrongModule: The module is not the one that the model was made over: 'weight' differs...
    """

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
                f"The module is not the one that the model was made over: {different[0]!r} differs "
                f"(and {len(different) - 1} more). Make the module as it was made then."
            )

    def check_output(self, module: nn.Module) -> None:
        """Refuse a module that computes something else with the same weights."""
        output = _probe(module, self.input_shape)
        expected = torch.tensor(self.output, dtype=output.dtype)
        if output.shape != expected.shape or not torch.allclose(output, expected, rtol=1e-3, atol=1e-4):
            raise WrongModule(
                "The module has the same weights but computes something else than the one that the model was made over. "
                "Load it with the code of that time."
            )

    def to_json(self) -> dict[str, Any]:
        """Describe the fingerprint in types that JSON has."""
        return {"names": self.names, "input_shape": list(self.input_shape), "output": self.output}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Fingerprint:
        """Rebuild a fingerprint from `to_json`, checking it as input from a stranger."""
        mark = cls(dict(state["names"]), tuple(state["input_shape"]), list(state["output"]))
        if not all(isinstance(number, int | float) for number in mark.output):
            raise ValueError("the output of its module should be a list of numbers")
        return mark


def _names(module: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Have a module answer, without gradients, and learn nothing; afterwards each of its parts is in the mode that it was in.

    Examples
    --------
    >>> module = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
    >>> with evaluating(module):
    ...     [part.training for part in module]
    [False, False]
    >>> [part.training for part in module]
    [True, False]
    """
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        with torch.no_grad():
            yield
    finally:
        for part, training in modes.items():  # one by one: a user may have frozen some of them
            part.training = training


def _probe(module: nn.Module, input_shape: tuple[int, ...]) -> Tensor:
    like = next(module.parameters(), torch.zeros(()))
    probe = torch.randn(1, *input_shape, generator=generator(0)).to(like)
    with evaluating(module):
        output: Tensor = module(probe)
    return output.flatten()[:64].double().cpu()
