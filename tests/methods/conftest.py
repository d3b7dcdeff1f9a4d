"""Small tasks and small learners for the tests of methods."""

from __future__ import annotations

from typing import Any, Protocol

import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.learner import Learner, Setting, TaskData


class Blobs(Protocol):
    """Makes a task of vectors around a centre a class."""

    def __call__(self, classes: list[int], count: int = 30, seed: int = 0) -> TaskData: ...


class Small(Protocol):
    """Makes a learner for the inputs of `Blobs`, by the name of its method."""

    def __call__(self, method: str, net: nn.Module | None = None, **options: Any) -> Any: ...


@pytest.fixture
def blobs() -> Blobs:
    """Tasks of 6 numbers a row, classes up to 8."""
    centres = 4.0 * torch.randn(8, 6, generator=generator(0))

    def make(classes: list[int], count: int = 30, seed: int = 0) -> TaskData:
        y = torch.tensor(classes).repeat(count)
        return TaskData(centres[y] + torch.randn(len(y), 6, generator=generator(seed)), y)

    return make


@pytest.fixture
def small() -> Small:
    """Learners with one hidden layer of 10, or with a net of the test's own."""

    def make(method: str, net: nn.Module | None = None, **options: Any) -> Learner:
        arguments = {"widths": (10,)} if net is None else None
        return build_learner(method, Setting((6,), 8, seed=0), options, "mlp" if net is None else net, arguments)

    return make
