"""What a learner keeps, in bytes by kind, so that its promises can be checked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cldnet.device import tensor_bytes
from cldnet.methods.learner import Learner

__all__ = ["Footprint", "footprint", "paper_capacity"]

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
