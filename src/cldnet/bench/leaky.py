"""What the same model would seem to reach if it were evaluated as it should not be. None of it is a result.

Published figures often rest on one of these without saying so; beside an honest figure they show what it would have been.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

import torch
from torch import Tensor

from cldnet.bench.evaluate import Evaluation
from cldnet.data.stream import Stream
from cldnet.fit import predict_logits
from cldnet.methods.learner import Learner
from cldnet.nets.scale import InputScale

__all__ = ["LEAKY_NOTE", "EpochWatch", "with_own_statistics"]

LEAKY_NOTE = (
    "Not results. task_known: the test image's task is given. own_test_statistics: every task's test images are normalised by "
    "their own mean and spread. best_epoch: of the last task's epochs, the one with the highest accuracy on test."
)


class EpochWatch:
    """Accuracy on test after every epoch of a task: what choosing the epoch by test data would choose from.

    Parameters
    ----------
    evaluation : Evaluation
    learner : Learner
    count : int
        Tasks to evaluate on, the running one included.
    """

    def __init__(self, evaluation: Evaluation, learner: Learner, count: int) -> None:
        self.evaluation, self.learner, self.count = evaluation, learner, count
        self.accuracies: list[float] = []

    def __call__(self, epoch: int) -> None:
        """Evaluate between two epochs; nothing about the learner changes."""
        with _evaluating(self.learner):
            class_il, _ = self.evaluation.accuracies(self.learner, self.count)
        self.accuracies.append(fmean(class_il))


@contextmanager
def _evaluating(learner: Learner) -> Iterator[None]:
    """Switch all modules to evaluation and back; some may have been in it, so each one's own state is put back."""
    were = {module: module.training for module in learner.modules()}
    learner.eval()
    try:
        yield
    finally:
        for module, training in were.items():
            module.training = training


def with_own_statistics(learner: Learner, stream: Stream) -> float:
    """Average accuracy when each task's test images are first given the mean and spread that training images had.

    Their statistics tell which task they are of, which a classifier of single images cannot know.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> from cldnet.fit import fit_task
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> stream = split_digits(0)[:1]
    >>> learner = build_learner("exact", Setting(stream.input_shape, capacity=2, seed=0))
    >>> _ = fit_task(learner, stream[0].train, epochs=1, batch_size=1024)
    >>> with_own_statistics(learner, stream) > 0.9
    True
    """
    usual = _scale(stream.input_shape, stream[0].train.x)
    shares = []
    for plan in stream.plans:
        test = stream.rows(stream.test_part, plan.test, plan.change)
        own = _scale(stream.input_shape, test.x)
        moved = own(test.x).mul_(usual.spread).add_(usual.mean)
        shares.append(float((predict_logits(learner, _as(moved, test.x.dtype)).argmax(1) == test.y).double().mean()))
    return fmean(shares)


def _scale(shape: tuple[int, ...], x: Tensor) -> InputScale:
    scale = InputScale(shape, torch.float64)
    scale.fit(x)
    return scale


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return x.to(dtype)
    limits = torch.iinfo(dtype)
    return x.round_().clamp_(limits.min, limits.max).to(dtype)
