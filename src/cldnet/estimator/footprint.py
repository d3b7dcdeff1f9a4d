"""The size of a learner: bytes by kind, parameters and multiplications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from cldnet.device import threads
from cldnet.methods.learner import Learner


@dataclass(frozen=True)
class Footprint:
    """The size of everything that a learner keeps.

    Attributes
    ----------
    bytes : dict of str to int
        Bytes by kind: weights, projectors, class vectors, sums, fisher, exemplars, ….
    parameters : int
        Number of trainable parameters.
    labels : int
        Bytes of the label table, which grows by one entry per class; counted separately.
    """

    bytes: dict[str, int]
    parameters: int
    labels: int = 0

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(self.bytes.values())


def footprint(learner: Learner, labels: int = 0) -> Footprint:
    """Count what a learner keeps."""
    return Footprint(learner.bytes_by_kind(), sum(p.numel() for p in learner.parameters()), labels)


@torch.no_grad()
def multiplications(learner: Learner, input_shape: tuple[int, ...]) -> int:
    """Count the multiply-adds that scoring one input takes, in its matrix products and convolutions."""
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415  (only an audit needs it)

    x = torch.zeros(1, *input_shape, device=learner.counters.device)
    learner.logits(x)  # what is solved once is not part of a prediction
    counting = FlopCounterMode(display=False, custom_mapping=_uncounted_products())
    with threads(1), counting as counter:  # the counter does not see other threads
        learner.logits(x)
    return int(counter.get_total_flops()) // 2


def _uncounted_products() -> dict[Any, Callable[..., int]]:
    """Products that torch's counter ignores: those in place, and those with vectors."""
    aten = torch.ops.aten

    def added_product(total: Any, first: Sequence[int], second: Sequence[int], **_: Any) -> int:
        return 2 * prod(first) * second[-1]

    def with_vector(*shapes: Any, **_: Any) -> int:  # of an optional sum, a matrix and a vector
        return int(2 * prod(shapes[-2]))

    return {
        **dict.fromkeys((aten.addmm_, aten.baddbmm_), added_product),
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot, aten.addmv, aten.addmv_), with_vector),
    }


def paper_capacity(learner: Learner, network_at_first: int, seen_at_first: int) -> float:
    """Compute the paper's "Capacity": numbers in use now over numbers in use after the first task, or in `Learner.base_size`.

    It counts the network and one vector per class seen. Unlike `footprint`, it leaves out projectors, Fisher information,
    sums and exemplars.
    """
    now = learner.network_size + learner.class_width * learner.seen
    return now / (learner.base_size or network_at_first + learner.class_width * seen_at_first)
