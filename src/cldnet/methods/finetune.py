"""Fine-tuning: plain gradient descent on each task in turn. It forgets, so it is the lower bound."""

from __future__ import annotations

from typing import ClassVar

from cldnet.methods.config import LEARNING_RATES
from cldnet.methods.gradient import GradientLearner
from cldnet.methods.learner import Traits


class Finetune(GradientLearner):
    """Learn each task as if there had been none before."""

    title = "Fine-tuning"
    summary = "plain gradient descent: the lower bound"
    traits = Traits(rehearsal_free=True, constant_size=True)
    ranges: ClassVar = {"lr": LEARNING_RATES}
    spreads = True
