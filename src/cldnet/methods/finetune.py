"""Fine-tuning: plain gradient descent on each task in turn. The lower bound: it forgets."""

from __future__ import annotations

from typing import ClassVar

from cldnet.methods.gradient import GradientLearner
from cldnet.methods.learner import Traits
from cldnet.methods.ranges import LEARNING_RATES

__all__ = ["Finetune"]


class Finetune(GradientLearner):
    """Learn each task as if there had been none before."""

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights"}
    ranges: ClassVar = {"lr": LEARNING_RATES}
