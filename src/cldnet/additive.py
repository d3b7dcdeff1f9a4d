"""Models that add up: rows are taken out again, and what other models have learned is taken in, exactly."""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from sklearn.exceptions import NotFittedError
from torch import nn

from cldnet.answers import Answers, as_models
from cldnet.data.rows import Rows, Session
from cldnet.device import resolve_device
from cldnet.labels import LabelTable
from cldnet.lessons import Lesson, Lessons
from cldnet.model import Model
from cldnet.nets import FeatureMap
from cldnet.statistics import Statistics
from cldnet.structure import Structure, check_whole

__all__ = ["Additive", "MapTraceWarning"]

_log = logging.getLogger("cldnet")


class MapTraceWarning(UserWarning):
    """Rows were taken out of the sums, but the feature map may have been fitted on them."""


class Additive(Answers, ABC):
    """The part of `cldnet.CLDNetClassifier` that takes sums out of its model and adds others to it."""

    backbone: str | nn.Module
    capacity: int
    random_state: Any
    _session: Session | None = None  # of the class, so that __init__ stores its arguments and nothing else
    _lesson: Lesson | None = None

    def forget(self, X: Any, y: Any, sample_weight: Any = None, *, allow_duplicates: bool = False) -> Self:
        """Take rows out again, exactly: given the map, what is left equals a model that never saw them.

        Pass the rows exactly as they were learned, with the same labels and weights, since the model kept none of them.
        Rows that were not learned are refused as far as sums can tell: if no rows could have the sums that would be left, or
        if a model without the rows would predict them as it predicts no row that it has not seen. Make the model with
        ``receipts=True`` to have all of them refused. A failed call leaves the model as it was. A class without any rows
        left leaves `classes_`; it can be taught again. Only for the exact solver, and not over a sketch (``gram=rank``).

        A `MapTraceWarning` tells when rows have a label that was among those the map was fitted on (the first call's, unless
        ``backbone`` was a fitted map): the map's few statistics (scales, whitening, filters) keep their trace. To leave
        none, fit a map on other data and give it as ``backbone``. What a model remembers of the inputs that it was begun with
        (their shape, their columns' names, their largest value) stays, too.

        Parameters
        ----------
        X, y, sample_weight : array-like
            The rows, labels and weights, as `partial_fit` took them.
        allow_duplicates : bool
            Forget the same ten rows or more once again, or rows that are all passed twice: they were learned as often.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> from cldnet.nets import RandomReLU
        >>> public = RandomReLU((2,), features=16, seed=0)
        >>> public.fit(torch.tensor([[0.0, 0.0], [9.0, 9.0]]))
        >>> clf = CLDNetClassifier(backbone=public).fit([[0.0, 0.1], [5.0, 5.1], [5.2, 5.0]], ["cat", "dog", "dog"])
        >>> clf.forget([[5.0, 5.1]], ["dog"]).statistics().rows
        2.0
        """
        self._outside_session("forget")
        model = self._fitted()
        shape, anything = model.structure.input_shape, LabelTable(1 << 62)  # labels are checked against those known
        rows = Rows.checked(X, y, sample_weight, shape, anything)
        self._check_inputs(X, rows.x, model)
        model.labels.known_rows(rows.y)
        traced = sorted(model.fitted_on.intersection(rows.y.tolist()))
        with self._computing():
            work = self._copied(model)
            work = work.forget(rows, self._lesson or Lesson(work.lessons), allow_duplicates)
        if traced:  # before the swap: who makes an error of the warning keeps the model as it was
            warnings.warn(
                f"The feature map was fitted when labels {traced[:6]} came, perhaps on some of these rows: they are gone from "
                "the sums, but their trace in the map's few statistics stays. To leave none, give a map that was fitted on "
                "other data: backbone=map.",
                MapTraceWarning,
                stacklevel=2,
            )
        self._swap_in(work, model)
        return self

    def forget_class(self, label: Any) -> Self:
        """Let go of a class without its rows. It is never predicted again, unless it is taught again.

        Guaranteed: the class's sum and weight are gone, and so is its score. Not guaranteed: the second moments ``G`` of
        the features are of all classes together, so the scores of the others keep the trace that its rows left there,
        `statistics` still counts them, and the label itself stays in the table, since its row is reserved. For
        everything to be gone hand the rows back with `forget` instead: afterwards it is too late, and a class that is taught
        again is in ``G`` twice.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1], [9.0, 0.2]], ["cat", "dog", "owl"])
        >>> clf.forget_class("dog").classes_
        array(['cat', 'owl'], dtype='<U3')
        """
        self._outside_session("forget_class")
        model = self._fitted()
        model.labels.known_rows([label])
        with self._computing():
            work = self._copied(model)
            work = work.forget_class(label)
        self._swap_in(work, model)
        return self

    def merge(self, others: Iterable[Answers | Statistics], *, allow_duplicates: bool = False) -> Self:
        """Take in what other models have learned: the result is the model of all their data, exactly.

        Classes are matched by label, whatever the order in which they came, and need not have anything in common. All
        models have to share one feature map (`cldnet.save_map`, `cldnet.load_map`). The others stay as they are. A
        classifier that has learned nothing may begin with sums if its ``backbone`` is a fitted map.

        Parameters
        ----------
        others : iterable of CLDNetClassifier or Statistics
            Models of the exact solver, or sums of such models.
        allow_duplicates : bool
            Merge models that share lessons with this one. Their rows count twice then, so by default they are refused, as
            far as lessons are remembered: the last 256 of a model with ten rows or more.
        """
        self._outside_session("merge")
        model = self._model
        parts = [_sums(other) for other in as_models(others)]
        with self._computing():
            work = self._begun(parts) if model is None else self._copied(model)
            for part in parts:
                work = work.absorb(part, allow_duplicates)
            work.check_finite()
        self._swap_in(work, model)
        return self

    def extend(self, capacity: int) -> Self:
        """Make room for more classes. What was learned stays as it is: all scores are the same, bit for bit.

        The exact solver pays with memory alone. Under ``"hbo"`` the vectors of the classes to come are added to those that
        are there, which do not move: orthogonal to them up to ``embed_dim`` classes, beyond that as far from them as a
        descent can bring them, which is less far than in a table made at once. `largest_cosine_` and a line on the logger
        ``cldnet`` say how near two vectors come, and a warning if it is nearer than the model was made for: better to
        choose ``capacity`` and ``embed_dim`` large from the start.

        Parameters
        ----------
        capacity : int
            The new number of classes that there is room for; it becomes the classifier's parameter ``capacity``.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(capacity=2, random_state=0).fit([[0.0, 0.1], [5.0, 5.1]], ["cat", "dog"])
        >>> clf.extend(3).partial_fit([[9.0, 0.1]], ["owl"]).classes_
        array(['cat', 'dog', 'owl'], dtype='<U3')
        """
        self._outside_session("extend")
        check_whole("capacity", capacity)
        model = self._model
        if model is None:
            raise NotFittedError(
                f"This CLDNetClassifier has learned nothing yet: set_params(capacity={capacity}) is all it takes."
            )
        capacity, bound = int(capacity), model.gamma
        with self._computing():
            work = self._copied(model).extend(capacity)
            cosine = work.largest_cosine
        _log.info("room for %d classes; largest |cosine| between two class vectors %.6f", capacity, cosine)
        if cosine > bound + 1e-6:  # before the swap: who makes an error of the warning keeps the model as it was
            warnings.warn(
                f"With room for {capacity} classes two class vectors have a cosine of {cosine:.4f}, and the model was made for "
                f"{bound:.4f} at most: such classes are told apart less well. A new model with a larger embed_dim has "
                "more room.",
                UserWarning,
                stacklevel=2,
            )
        self._swap_in(work, model)
        self.capacity = capacity
        return self

    def _begun(self, parts: list[Statistics]) -> Model:
        """Make a model over a map that came fitted, to hold what others have learned."""
        if not (isinstance(self.backbone, FeatureMap) and self.backbone.fitted and parts):
            raise NotFittedError(
                "This CLDNetClassifier has learned nothing, so it has no feature map to merge over: call fit first, or "
                "give a map that is fitted as backbone."
            )
        work = Model.build(*self._parameters(None), seed=self._seed(), inputs=parts[0].inputs)
        work.learner.to(resolve_device(self.device)).eval()
        return work

    @abstractmethod
    def _parameters(self, model: Model | None) -> tuple[Structure, dict[str, Any]]:
        """Check the parameters; return what a model is built from and its solver's options."""

    @abstractmethod
    def _seed(self) -> int:
        """Seed of a new model."""

    @contextmanager
    def _as_one_lesson(self) -> Iterator[None]:
        """Take the calls within the block as one lesson: one id stands for all their rows."""
        self._lesson = Lesson(Lessons() if self._model is None else self._model.lessons)
        try:
            yield
        finally:
            del self._lesson

    def _outside_session(self, name: str) -> None:
        if self._session is not None:
            raise RuntimeError(f"A session is open: partial_fit adds to it, and {name} has to wait for its end.")

    def _copied(self, model: Model) -> Model:
        """Copy a model to change it: whoever predicts meanwhile, in another thread, has the model as it was."""
        work = model.copy(self._parameters(model)[1])
        work.learner.to(resolve_device(self.device))
        return work

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """On the threads asked for, and in torch's usual mode whatever the caller's: what is made here outlives the call.

        A generator of the user's own that a call which failed has drawn from is set back.
        """
        source = self.random_state
        drawn_from = source.get_state() if hasattr(source, "get_state") else None
        try:
            with self._threads(), torch.inference_mode(False), torch.enable_grad():
                yield
        except BaseException:
            if drawn_from is not None:
                source.set_state(drawn_from)
            raise

    def _swap_in(self, work: Model, model: Model | None) -> None:
        if self._model is not model:
            raise RuntimeError(
                "Another thread taught this model meanwhile, and this call began from the model before: nothing of it "
                "was kept. Call again, and teach one model from one thread at a time."
            )
        self._model = work


def _sums(other: Any) -> Statistics:
    if isinstance(other, Statistics):
        return other
    if not isinstance(other, Answers):
        raise ValueError(f"A {type(other).__name__} cannot be merged: give a list of CLDNetClassifier or Statistics.")
    return other._fitted().statistics
