"""How well a learner knows the tasks so far, on their test parts. Every image is scored on its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cldnet.data.stream import Stream
from cldnet.fit import predict_logits
from cldnet.methods.learner import Learner, Represents

__all__ = ["Evaluation"]

_AT_ONCE = 1024


class Evaluation:
    """The test parts of a stream, scored after every task.

    A learner whose map of inputs never changes once it is fitted maps every test image once; what it made of them is kept
    here, outside of the learner, for the next time.

    Parameters
    ----------
    stream : Stream
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._place = torch.full((len(stream.test_part.y),), -1)
        self._represented: Tensor | None = None
        self._seen_by: Learner | None = None

    def accuracies(self, learner: Learner, count: int) -> tuple[list[float], list[float]]:
        """Accuracy on each of the first ``count`` tasks, among all classes seen and among the task's own.

        Examples
        --------
        >>> from cldnet.data.streams import split_digits
        >>> from cldnet.fit import fit_task
        >>> from cldnet.methods import build_learner
        >>> from cldnet.methods.learner import Setting
        >>> stream = split_digits(0)
        >>> learner = build_learner("exact", Setting(stream.input_shape, capacity=10, seed=0))
        >>> _ = fit_task(learner, stream[0].train, epochs=1, batch_size=1024)
        >>> class_il, task_il = Evaluation(stream).accuracies(learner, 1)
        >>> class_il == task_il, class_il[0] > 0.9
        (True, True)
        """
        class_il: list[float] = []
        task_il: list[float] = []
        for logits, y, classes in self._scored(learner, count):
            class_il.append(_share(logits.argmax(1) == y))
            own = self.stream.class_rows(classes).sort().values
            task_il.append(_share(own[logits[:, own].argmax(1)] == y))
        return class_il, task_il

    def _scored(self, learner: Learner, count: int) -> Iterator[tuple[Tensor, Tensor, tuple[Any, ...]]]:
        """Scores, class rows and classes of the first tasks' test parts.

        In one pass, unless tasks change their images or the learner has to be told the task.
        """
        stream, plans = self.stream, self.stream.plans[:count]
        told = learner.traits.needs_task_id
        if told or any(plan.change is not None for plan in plans):
            for task, plan in enumerate(plans):
                test = stream.rows(stream.test_part, plan.test, plan.change)
                yield predict_logits(learner, test.x, task=task if told else None), test.y, plan.classes
            return
        pooled = torch.cat([plan.test for plan in plans]).unique()
        logits, y = self._logits(learner, pooled), stream.rows(stream.test_part, pooled).y
        for plan in plans:
            here = torch.searchsorted(pooled, plan.test)
            yield logits[here], y[here], plan.classes

    def _logits(self, learner: Learner, rows: Tensor) -> Tensor:
        """Scores of rows of the test part over the classes seen."""
        if not isinstance(learner, Represents):
            return predict_logits(learner, self.stream.rows(self.stream.test_part, rows).x)
        if self._seen_by is not learner:  # another one has another map
            self._place.fill_(-1)
            self._represented, self._seen_by = None, learner
        fresh = rows[self._place[rows] < 0]
        if len(fresh):
            known = self._represented
            new = learner.represent(self.stream.rows(self.stream.test_part, fresh).x)
            self._place[fresh] = torch.arange(len(fresh)) + (0 if known is None else len(known))
            self._represented = new if known is None else torch.cat([known, new])
        assert self._represented is not None
        parts = self._place[rows].split(_AT_ONCE)
        return torch.cat([learner.score_represented(self._represented[part]) for part in parts])


def _share(right: Tensor) -> float:
    return float(right.double().mean())
