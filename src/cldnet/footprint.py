"""What a learner keeps, in bytes by kind, so that its promises can be checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from cldnet.device import tensor_bytes, threads
from cldnet.methods.learner import Learner

__all__ = ["Footprint", "Size", "Sizes", "footprint", "multiplications", "paper_capacity"]

_COMMON = {"scale": "input scaling", "counters": "counters", "random": "random state"}


@dataclass(frozen=True)
class Footprint:
    """Everything a learner keeps, counted.

    Attributes
    ----------
    bytes : dict of str to int
        Bytes by kind: weights, projectors, class vectors, sums, fisher, exemplars, ….
    parameters : int
        Trainable numbers.
    labels : int
        Bytes of the label table, which grows by an entry a class; counted apart.
    """

    bytes: dict[str, int]
    parameters: int
    labels: int = 0

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return sum(self.bytes.values())


class Size(NamedTuple):
    """Bytes by kind from a task on, and whether they changed because the user asked for it (as by ``extend``)."""

    tasks: int
    bytes: dict[str, int]
    asked: bool = False


@dataclass(frozen=True)
class Sizes:
    """How many bytes of each kind there were after each task: an entry where they changed, so a constant model has one.

    Examples
    --------
    >>> sizes = Sizes().noted(1, {"weights": 80}).noted(2, {"weights": 80}).noted(3, {"weights": 90})
    >>> sizes.changes
    (Size(tasks=1, bytes={'weights': 80}, asked=False), Size(tasks=3, bytes={'weights': 90}, asked=False))
    >>> sizes.constant, Sizes.from_json(sizes.to_json()) == sizes
    (False, True)
    """

    changes: tuple[Size, ...] = ()

    @property
    def constant(self) -> bool:
        """Whether the size has not changed since it was noted first, other than because the user asked for it."""
        return all(size.asked for size in self.changes[1:])

    def noted(self, tasks: int, kept: dict[str, int], asked: bool = False) -> Sizes:
        """Note the bytes by kind after so many tasks; of what is asked for one after the other, the last counts."""
        if not self.changes:
            return Sizes((Size(tasks, kept, asked),))
        *before, last = self.changes
        if last.bytes == kept:
            return self
        repeated = asked and last.asked and last.tasks == tasks
        return Sizes((*(before if repeated else self.changes), Size(tasks, kept, asked)))

    def to_json(self) -> list[list[Any]]:
        """Describe the changes in types that JSON has."""
        return [list(size) for size in self.changes]

    @classmethod
    def from_json(cls, state: Any) -> Sizes:
        """Rebuild from `to_json`, checking it as input from a stranger."""
        try:
            sizes = tuple(Size(tasks, dict(kept), asked) for tasks, kept, asked in state)
            sound = all(
                type(size.asked) is bool and all(type(n) is int and n >= 0 for n in (size.tasks, *size.bytes.values()))
                for size in sizes
            )
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise ValueError(
                "The sizes after each task should each have a number of tasks, bytes by kind, and true or false."
            )
        return cls(sizes)


def footprint(learner: Learner, labels: int = 0) -> Footprint:
    """Count what a learner keeps.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> footprint(learner).bytes["weights"], footprint(learner).parameters
    (232, 58)
    """
    kinds = {**_COMMON, **learner.kinds}
    counted: Counter[str] = Counter()
    for name, tensor in learner.state_dict().items():
        part = name.split(".")[0]
        counted[kinds.get(part, part)] += tensor_bytes(tensor)
    return Footprint(dict(counted), sum(p.numel() for p in learner.parameters()), labels)


@torch.no_grad()
def multiplications(learner: Learner, input_shape: tuple[int, ...]) -> int:
    """Count the multiply-adds that scoring one input takes, in its matrix products and convolutions.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> multiplications(learner, (4,))  # 4 × 8 + 8 × 2
    48
    """
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415  (only an audit needs it)

    x = torch.zeros(1, *input_shape, device=learner.counters.device)
    learner.logits(x)  # what is solved once, when it is first needed, is no part of an answer
    counting = FlopCounterMode(display=False, custom_mapping=_uncounted_products())
    with threads(1), counting as counter:  # it does not see other threads
        learner.logits(x)
    return int(counter.get_total_flops()) // 2


def _uncounted_products() -> dict[Any, Callable[..., int]]:
    """Operations of products that torch's counter passes over: those in place, and those with vectors."""
    aten = torch.ops.aten

    def added_product(total: Any, first: Sequence[int], second: Sequence[int], **_: Any) -> int:
        return 2 * prod(first) * second[-1]

    def with_vector(first: Sequence[int], vector: Any, **_: Any) -> int:
        return 2 * prod(first)

    def added_with_vector(total: Any, first: Sequence[int], vector: Any, **_: Any) -> int:
        return 2 * prod(first)

    return {
        **dict.fromkeys((aten.addmm_, aten.baddbmm_), added_product),
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot), with_vector),
        **dict.fromkeys((aten.addmv, aten.addmv_), added_with_vector),
    }


def paper_capacity(learner: Learner, network_at_first: int, seen_at_first: int) -> float:
    """Compute the paper's "Capacity": numbers in use now over numbers in use after the first task.

    It counts the network and one vector a class seen, but no projectors, Fisher information, sums or exemplars; the bytes
    of `footprint` do.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0))
    >>> paper_capacity(learner, learner.network_size, seen_at_first=0)
    1.0
    """
    now = learner.network_size + learner.class_width * learner.seen
    return now / (network_at_first + learner.class_width * seen_at_first)
