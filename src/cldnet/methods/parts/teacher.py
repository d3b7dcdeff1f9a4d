"""The net before a task as the teacher of the net that learns it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cldnet.methods.gradient import NamedTensors
from cldnet.nets.fingerprint import evaluating


class Teacher(NamedTensors):
    """Weights and running statistics of a learner's ``parts`` as they were at the last `copy_from`.

    It is made with the learner, so that the learner's size is constant. It has no code of its own: `forward` runs the
    learner's ``forward`` with the teacher's weights.
    """

    def __init__(self, learner: nn.Module, parts: Sequence[str] = ("net", "head")) -> None:
        prefixes = tuple(f"{part}." for part in parts)
        super().__init__({name: t for name, t in learner.state_dict().items() if name.startswith(prefixes)})

    @torch.no_grad()
    def copy_from(self, learner: nn.Module) -> None:
        """Become what the learner is now."""
        state = learner.state_dict()
        for name, tensor in self.items():
            tensor.copy_(state[name])

    def forward(self, learner: nn.Module, x: Tensor) -> Any:
        """What the learner's ``forward`` returned for scaled inputs then, in evaluation mode and without gradients."""
        with evaluating(learner):
            return functional_call(learner, dict(self.items()), (x,), tie_weights=False)
