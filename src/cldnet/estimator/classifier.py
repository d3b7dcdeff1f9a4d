"""`CLDNetClassifier`, the scikit-learn estimator: learn new classes at any call, keep no data, forget nothing."""

from __future__ import annotations

import copy
import logging
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import _check_feature_names
from torch import Tensor, nn

import cldnet.storage as store
from cldnet.data.arrays import Samples, Session, read_inputs
from cldnet.data.labels import LabelTable, as_labels
from cldnet.device import generator, resolve_device, threads
from cldnet.estimator.accumulator import OpenStream, StreamedSession
from cldnet.estimator.footprint import Footprint
from cldnet.estimator.history import LessonRecord, check_name
from cldnet.estimator.lessons import Lesson
from cldnet.estimator.model import (
    Model,
    ModelParameters,
    TrainingParameters,
    check_integer,
    check_threads,
    load_model,
    save_model,
    shown,
)
from cldnet.estimator.statistics import Statistics
from cldnet.methods.fit import log_tenths
from cldnet.nets import FeatureMap, Hashed, is_described
from cldnet.nets.choice import choose_map
from cldnet.storage.checkpoint import SessionCheckpoint

if TYPE_CHECKING:
    from cldnet.estimator.audit import Audit

__all__ = ["CLDNetClassifier", "MapTraceWarning", "merge"]

#: While a model has fewer samples than this, they are held in memory, and its feature map is made again with each call.
_HELD = 50
_log = logging.getLogger("cldnet")


class MapTraceWarning(UserWarning):
    """Samples were removed from the sums, but the feature map may have been fitted on them."""


class CLDNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes forever: it keeps no data, never grows and does not forget.

    Parameters
    ----------
    solver : {"exact", "hbo"}
        ``"exact"``: one pass over a fixed feature map; the solution of all data ever seen at once. ``"hbo"``: a net
        trained by gradient steps through the paper's projectors towards its class vectors (EAE, Eq. 6 to 9), after an HSIC
        bottleneck (Eq. 5) at the start of the first task. It needs inputs of many dimensions, since each task uses up some
        of them permanently.
    backbone : str or nn.Module
        ``"auto"`` (for vectors, ``"exact"`` chooses a map from the first samples, see `cldnet.nets.choice`), a name in
        `cldnet.nets.BACKBONES`, a `cldnet.nets.FeatureMap` (fitted or not), or a module of your own that maps inputs to
        vectors. A module is copied; ``"exact"`` freezes it, ``"hbo"`` trains it.
    capacity : int or "auto"
        Room for classes. With a number the model's size never changes: memory for so many classes is reserved at once, and
        `extend` makes more room. With ``"auto"``, ``"exact"`` reserves memory for 16 classes at a time and has no limit;
        ``"hbo"`` has room for 1,000.
    embed_dim : int
        ``"hbo"``: dimension of the class vectors. Up to that many classes are orthogonal; with a larger ``capacity`` their
        |cosine| is bounded by 0.04, or by 1.6 times the Welch bound where that is more (and by some more beyond 14 classes
        per dimension, see `cldnet.math.basis.reachable_gamma`; the table of 10,000 classes takes minutes to make). Vectors
        beyond ``capacity`` are for sub-classes: a class of 200 samples or more gets several of them, up to 40. With 25
        classes or fewer, lower ``capacity`` so that each can have 40.
    alpha : "gcv" or float
        ``"exact"``: ridge penalty, by default chosen from the sums by generalised cross-validation. ``"hbo"``: the
        projectors' α (Eq. 6) if it is a number; by default 30.
    gram : "full", "diagonal" or int
        ``"exact"``: what is kept of the features' second moments. Keeping less than ``"full"`` saves memory on small
        devices, at a loss (see `Statistics.loss`). An int is the rank of a sketch, which cannot forget samples.
    epochs, batch_size, lr
        Training of ``"hbo"``. (``"exact"`` sees every sample once.) The unit of ``lr`` depends neither on the inputs' scale
        nor on how much was learned before: 1 weighs new samples as recursive least squares does.
    input_shape : tuple of int, optional
        Shape that flat inputs are folded into, for example ``(28, 28)`` or ``(3, 32, 32)``.
    device, dtype, n_threads
        Where and how to compute (``"exact"`` sums and scores in float64 either way; ``"float64"`` is for features of
        your own that are not whole numbers up to 127). ``n_threads`` is set for the time of a call.
    random_state : int, RandomState or None
        Seed of everything random.
    verbose : int
        1 writes one line per session to the logger ``cldnet``, 2 also one per tenth of it.
    receipts : bool
        ``"exact"``: keep a salted digest of each sample, 16 bytes, so that `forget` refuses every sample that was not learned.
        Without receipts it refuses only what the sums can detect. Anyone with the file and a sample can test whether
        the sample was learned.
    keep_lessons : int
        ``"exact"``: keep the sums of so many of the last lessons, so that `undo` can take each of them back without its data.
        Each takes about 4 · features² bytes of memory, half of that in a file, and 8 per class and feature. Anyone with the
        file can read them: a lesson with one sample of a class reveals that sample's features.

    Attributes
    ----------
    classes_ : ndarray
        Labels seen so far, sorted. All scores have their columns in this order.
    largest_cosine_ : float
        Largest |cosine| between the vectors of two classes; 0 for ``"exact"``.
    feature_map_ : FeatureMap
        A copy of the fitted map of ``"exact"``.
    model_ : cldnet.estimator.model.Model
        What was learned: ``model_.learner``, ``model_.labels`` (with counts and dates), ``model_.inputs``. Do not change it.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0)
    >>> clf.partial_fit([[0.0, 0.1], [0.1, 0.0], [5.0, 5.1], [5.2, 5.0]], ["cat", "cat", "dog", "dog"]).classes_
    array(['cat', 'dog'], dtype='<U3')
    >>> clf.partial_fit([[9.0, 0.0], [9.1, 0.2]], ["owl", "owl"]).predict([[0.0, 0.0], [5.0, 5.0], [9.0, 0.1]])
    array(['cat', 'dog', 'owl'], dtype='<U3')
    """

    # Defaults of the class, because scikit-learn wants __init__ to store its arguments and nothing else.
    _model: Model | None = None
    _session: Session | None = None
    _lesson: Lesson | None = None
    _unsaved: Sequence[SessionCheckpoint] = ()
    _first: Samples | None = None
    _seen = store.SeenFiles()
    receipts: bool = False  # pickles of older versions have none
    keep_lessons: int = 0

    def __init__(
        self,
        solver: str = "exact",
        backbone: str | nn.Module = "auto",
        *,
        capacity: int | str = "auto",
        embed_dim: int = 1000,
        alpha: float | str = "gcv",
        gram: str | int = "full",
        epochs: int = 10,
        batch_size: int = 16,
        lr: float = 7.0,
        input_shape: tuple[int, ...] | None = None,
        device: str = "auto",
        dtype: str = "float32",
        n_threads: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        receipts: bool = False,
        keep_lessons: int = 0,
    ) -> None:
        self.solver = solver
        self.backbone = backbone
        self.capacity = capacity
        self.embed_dim = embed_dim
        self.alpha = alpha
        self.gram = gram
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.input_shape = input_shape
        self.device = device
        self.dtype = dtype
        self.n_threads = n_threads
        self.random_state = random_state
        self.verbose = verbose
        self.receipts = receipts
        self.keep_lessons = keep_lessons

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CLDNetClassifier:
        """Forget everything and learn from ``X`` and ``y`` alone."""
        self._check_no_session("fit")
        parameters, options = self._validated_parameters()
        table, width = LabelTable(parameters.limit), parameters.sparse_width
        parameters.check_text(X)
        samples = Samples.checked(X, y, sample_weight, parameters.input_shape, table, width=width)
        # Whatever an open lesson has is forgotten, too.
        lesson = Lesson() if self._lesson is None else Lesson(name=self._lesson.name, apart=True)
        work, first = self._learned(samples, parameters, options, None, lesson)
        self._replace_model(work, self._model, lesson, first)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> CLDNetClassifier:
        """Learn one more session: new classes, more of old ones, or both. A failed call leaves the model unchanged.

        Parameters
        ----------
        X : array-like or sparse matrix
            Vectors ``(n, d)`` or images ``(n, H, W)``, ``(n, H, W, C)``, ``(n, C, H, W)``; uint8 means 0 to 255. Sparse rows
            of more than 4,096 columns are projected to so many (`cldnet.data.sparse`), never made dense. Or sentences, a list
            of strings, for a backbone that takes them, such as ``"minilm"``.
        y : array-like
            Labels: integers, strings, booleans or whole floats. They need not be declared before.
        classes : array-like, optional
            Never needed. If given, a label outside of it is an error.
        sample_weight : array-like, optional
            One weight per sample: ``"exact"`` counts it as that many samples, ``"hbo"`` weighs the loss and skips weights of 0.
        """
        model, session = self._model, self._session
        parameters, options = self._validated_parameters(model)
        table = self._labels(parameters) if session is None else session.table
        known = model.inputs if model is not None else session.inputs if session is not None else None
        parameters.check_text(X)
        samples = Samples.checked(
            X, y, sample_weight, parameters.input_shape, table, classes, inputs=known, width=parameters.sparse_width
        )
        if model is not None:
            self._check_columns(X, samples.x, model)
        if session is None:
            lesson = self._copied_lesson()
            work, first = self._learned(samples, parameters, options, model, lesson)
            self._replace_model(work, model, lesson, first)
        else:
            with self._computing():
                session.add(samples)
        return self

    @contextmanager
    def session(
        self, checkpoint: str | os.PathLike[str] | None = None, every: float = 30.0, *, stream: bool = False
    ) -> Iterator[CLDNetClassifier]:
        """Learn data that comes in small pieces as one session.

        Within the block, `partial_fit` checks and collects; when the block ends the pieces are learned as one task, exactly
        as if they had come in one call, and dropped. If the block fails, nothing is learned.

        With ``stream=True`` the pieces are not collected: the exact solver adds each to its sums at once, so memory stays flat
        however many there are. The first 50 samples or more are what a new model chooses and fits its feature map on.

        Parameters
        ----------
        checkpoint : path-like, optional
            A file that the session is written to while it is learned. To resume after a crash, load the model that was saved
            before, and open the session again with the same file and data; the result is the same, bit for bit. The file is
            removed when `save` has written the model. Until then ``"hbo"`` may have some of the session's last inputs in it,
            scaled.
        every : float
            Seconds between two checkpoints.
        stream : bool
            Sum the pieces as they come; only for ``solver="exact"``, and without a checkpoint.

        Examples
        --------
        >>> clf = CLDNetClassifier(random_state=0)
        >>> with clf.session():
        ...     for label in ("a", "b"):
        ...         _ = clf.partial_fit([[ord(label), 1.0], [ord(label), 2.0]], [label, label])
        >>> clf.classes_
        array(['a', 'b'], dtype='<U1')
        """
        if self._session is not None:
            raise RuntimeError("A session is already open: end it before you open another one.")
        file = None if checkpoint is None else SessionCheckpoint(checkpoint, every)
        parameters, options = self._validated_parameters(self._model)
        session = Session(self._labels(parameters))
        if stream:
            self._check_streams(parameters, file)
            session = StreamedSession(session.table, partial(self._opened, parameters, options))
        self._session = session
        try:
            yield self
        finally:
            del self._session  # the class has the default, None
        if isinstance(session, StreamedSession):
            self._end_stream(session)
        elif session.pieces:
            model, lesson = self._model, self._copied_lesson()
            work, first = self._learned(session.samples, *self._validated_parameters(model), model, lesson, file)
            if file is not None:
                self._unsaved = (*self._unsaved, file)
            self._replace_model(work, model, lesson, first)

    def _check_streams(self, parameters: ModelParameters, file: SessionCheckpoint | None) -> None:
        if parameters.solver != "exact":
            raise ValueError(f"solver={parameters.solver!r} needs all samples of a session at once: leave stream out.")
        if file is not None:
            raise ValueError("A streamed session has no checkpoint: leave checkpoint out, or stream.")

    def _opened(self, parameters: ModelParameters, options: dict[str, Any], first: Samples) -> OpenStream:
        """A copy of the model, or a new one whose map the first samples decide on, to add the pieces of a stream to."""
        model = self._model
        with self._computing():
            if model is None:
                seed = self._seed()
                features = self._chosen_map(parameters, first, seed)
                work = Model.build(parameters, options, seed=seed, inputs=first.inputs, features=features)
                work.learner.to(resolve_device(self.device))
            else:
                work = self._copied(model, options)
        return OpenStream(model, work, work.sums_before(), work.accumulator(self._copied_lesson()))

    def _end_stream(self, session: StreamedSession) -> None:
        """Replace the model by the one with the session's sums."""
        with self._computing():
            opened = session.opened()
            work = None if opened is None else opened.work.accumulated(opened.sums, opened.before)
        if opened is not None and work is not None:
            self._replace_model(work, opened.model, opened.sums.lesson)

    @contextmanager
    def lesson(self, name: str | None = None) -> Iterator[CLDNetClassifier]:
        """Count the calls of `partial_fit` or `forget` within the block as one lesson, with one id for all their samples.

        Unlike a `session`, every call is carried out at once. `merge` and `forget` refuse to count a lesson twice, and
        `lessons_` and `undo` know it by its number, and by its name if it has one.

        Parameters
        ----------
        name : str, optional
            Up to 200 characters.

        Examples
        --------
        >>> clf = CLDNetClassifier(random_state=0)
        >>> with clf.lesson("birds of March"):
        ...     _ = clf.partial_fit([[0.0, 0.1], [5.0, 5.1]], ["emu", "owl"]).partial_fit([[5.2, 5.0]], ["owl"])
        >>> [(record.name, record.samples) for record in clf.lessons_]
        [('birds of March', {'emu': 1, 'owl': 2})]
        """
        if self._lesson is not None:
            raise RuntimeError("A lesson is already open: end it before you open another one.")
        check_name(name)
        self._lesson = Lesson(name=name, apart=True)
        try:
            yield self
        finally:
            del self._lesson  # the class has the default, None

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Score of every class, columns as `classes_`; for two classes the difference, as in scikit-learn."""
        scores = self._scores(X, self._usable_model())
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of every class, columns as `classes_`: a softmax over the scores.

        The temperature of the exact solver follows from its sums: how far scores of samples not learned lie from their
        targets.
        """
        model = self._usable_model()
        scores = self._scores(X, model)
        with self._threads():
            return model.probabilities(scores)

    def known_probability(self, X: Any) -> NDArray[np.float64]:
        """How well each sample fits the classes known, from 0 to 1; only for the exact solver.

        It estimates the fraction of samples of known classes that fit as badly as this one or worse: about 5% of them are
        below 0.05. Samples of a class that was never learned are near 0. Small values are what it is made for, to reject
        samples; above some 0.2 it only tells which of two samples fits better.
        """
        return self._known(X, self._usable_model())[1]

    def predict(self, X: Any, reject: float | None = None) -> NDArray[Any]:
        """Label of every sample, in the type in which labels came.

        Parameters
        ----------
        X : array-like
            Vectors, images or sentences, as `partial_fit` takes them.
        reject : float, optional
            The share of known samples that may be rejected, between 0 and 1. The labels come as a masked array, whose
            masked entries are samples that do not look like any known class (`known_probability` below ``reject``):
            perhaps a new class.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["cat", "dog"], 500)
        >>> X = np.where(y == "cat", 0.0, 5.0)[:, None] + rng.normal(size=(1000, 2))
        >>> clf = CLDNetClassifier(random_state=0).partial_fit(X, y)
        >>> clf.predict([[0.0, 0.0], [5.0, 5.0], [9.0, -9.0]], reject=0.01).tolist()
        ['cat', 'dog', None]
        """
        model = self._usable_model()
        if reject is None:
            labels: NDArray[Any] = model.labels.classes[self._scores(X, model).argmax(axis=1)]
            return labels
        if not (isinstance(reject, int | float | np.number) and 0 < reject < 1):
            raise ValueError(f"reject={reject!r} should be a share of known samples, between 0 and 1, or None.")
        scores, known = self._known(X, model)
        return np.ma.masked_array(model.labels.classes[scores.argmax(axis=1)], mask=known < reject)

    def merge(self, others: Iterable[CLDNetClassifier | Statistics], *, allow_duplicates: bool = False) -> Self:
        """Add what other models have learned: the result is the model of all their data, exactly.

        Classes are matched by label, whatever their order, and need not have anything in common. All models have to
        share one feature map (`cldnet.save_map`, `cldnet.load_map`). The others stay as they are. A classifier that has
        learned nothing may begin with sums if its ``backbone`` is a fitted map.

        Parameters
        ----------
        others : iterable of CLDNetClassifier or Statistics
            Models of the exact solver, or sums of such models.
        allow_duplicates : bool
            Merge models that share lessons with this one. Their samples count twice then, so by default they are refused, as
            far as lessons are remembered: the last 256 of a model with ten samples or more.
        """
        self._check_no_session("merge")
        model = self._model
        parts = [each if isinstance(each, Statistics) else each._fitted().statistics for each in _as_models(others)]
        with self._computing():
            if model is not None:
                work = self._copied(model)
            elif isinstance(self.backbone, FeatureMap) and self.backbone.fitted and parts:
                work = Model.build(*self._validated_parameters(), seed=self._seed(), inputs=parts[0].inputs)
                work.learner.to(resolve_device(self.device)).eval()
            else:
                raise NotFittedError(
                    "This CLDNetClassifier is not fitted, so it has no feature map to merge over: call fit first, or pass a "
                    "fitted map as backbone."
                )
            for part in parts:
                work = work.merge(part, allow_duplicates)
            work.check_finite()
        self._replace_model(work, model)
        return self

    def forget(self, X: Any, y: Any, sample_weight: Any = None, *, allow_duplicates: bool = False) -> Self:
        """Remove samples exactly: given the feature map, the result equals a model that never saw them.

        Pass the samples exactly as they were learned, with the same labels and weights, since the model kept none of them.
        Samples that were not learned are refused as far as the sums can tell: if no samples could have the remaining
        sums, or if a model without them would not predict them as it predicts unseen samples. Make the model with
        ``receipts=True`` to have all of them refused. A failed call leaves the model unchanged. A class without any
        samples left leaves `classes_`; it can be taught again. Only for the exact solver, and not over a sketch
        (``gram=rank``).

        A `MapTraceWarning` is given when samples have a label that was among those the map was fitted on (the first call's,
        unless ``backbone`` was a fitted map): the map's few statistics (scales, whitening, filters) keep their trace. To leave
        none, fit a map on other data and pass it as ``backbone``. The shape, column names and largest value of the
        first inputs stay in the model, too.

        Parameters
        ----------
        X, y, sample_weight : array-like
            The samples, labels and weights, as `partial_fit` took them.
        allow_duplicates : bool
            Allow forgetting the same ten or more samples again, or a call with every sample twice, because they were
            learned that often.

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
        self._check_no_session("forget")
        model = self._fitted()
        # Labels are checked against those known.
        shape = model.parameters.input_shape
        samples = Samples.checked(X, y, sample_weight, shape, LabelTable(), inputs=model.inputs)
        self._check_columns(X, samples.x, model)
        traced, lesson = sorted(model.map_labels.intersection(samples.y.tolist())), self._copied_lesson()
        with self._computing():
            work = self._copied(model).forget(samples, lesson, allow_duplicates)
        _warn_of_trace(traced)  # before the model is replaced: who turns the warning into an error keeps the old one
        self._replace_model(work, model, lesson)
        return self

    def undo(self, lesson: int | str | None = None) -> Self:
        """Take a lesson back without its data: the sums are, bit for bit, those of a model that was never given it.

        That holds for weights that are whole numbers over the maps of this library; with others it holds up to rounding.
        Make the model with ``keep_lessons=N`` to be able to take back any of the last N lessons, in any order. Classes that
        only came with the lesson are gone, and their room is free. The lesson leaves `lessons_`, and can be learned or
        merged again. The dates of classes stay.

        The sums of lessons are dropped by `fit`, `forget`, `forget_class` and `add_noise`, since a lesson is then no longer in
        the model as it was learned. Those of other models do not come along with `merge`.

        A `MapTraceWarning` is given as by `forget`.

        Parameters
        ----------
        lesson : int or str, optional
            Number or name of a lesson in `lessons_`, by default the last one. Of several with one name it is the last.

        Examples
        --------
        >>> clf = CLDNetClassifier(keep_lessons=2, random_state=0)
        >>> clf = clf.partial_fit([[0.0, 0.1], [5.0, 5.1]], ["cat", "dog"])
        >>> with clf.lesson("a mistake"):
        ...     _ = clf.partial_fit([[9.0, 0.1], [9.2, 0.0]], ["owl", "owl"])
        >>> clf.undo("a mistake").classes_
        array(['cat', 'dog'], dtype='<U3')
        """
        self._check_no_session("undo")
        if self._lesson is not None:
            raise RuntimeError("A lesson is open: end it before you call undo.")
        model = self._fitted()
        traced = sorted(model.map_labels.intersection(model.kept_of(lesson).labels)) if model.learner.keeps_sums else []
        with self._computing():
            work = self._copied(model).undo(lesson)
        _warn_of_trace(traced)
        self._replace_model(work, model)
        return self

    @property
    def lessons_(self) -> list[LessonRecord]:
        """The lessons that the model has had, oldest first: names, dates, samples by class and ids, never the data.

        The history takes 32 kB, whatever is in it; the oldest lessons make room for the newest. Calls of fewer than ten
        samples on one day, one after another and outside of a `lesson`, are one lesson.
        """
        model = self.model_
        kept = {one.number for one in model.kept}
        return [replace(record, kept=record.number in kept) for record in model.history.records]

    def forget_class(self, label: Any) -> Self:
        """Drop a class without its samples. It is never predicted again, unless it is taught again.

        Guaranteed: the class's sum and weight are gone, and so is its score; its room is free, and its label is in the model
        only if the feature map was fitted on it. Not guaranteed: the second moments ``G`` of the features are of all
        classes together, so the scores of the others keep the trace that its samples left there, and `statistics` still
        counts them. For everything to be gone pass the samples to `forget` instead: afterwards it is too late, and a class
        that is taught again is in ``G`` twice.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1], [9.0, 0.2]], ["cat", "dog", "owl"])
        >>> clf.forget_class("dog").classes_
        array(['cat', 'owl'], dtype='<U3')
        """
        return self._change("forget_class", lambda work: work.forget_class(label))

    def rename_class(self, old: Any, new: Any) -> Self:
        """Give a class another label, of the same type. Nothing else changes.

        Parameters
        ----------
        old : label
            One of `classes_`.
        new : label
            A label that no class has; `join_classes` makes two classes one.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1]], ["cat", "dgo"])
        >>> clf.rename_class("dgo", "dog").classes_
        array(['cat', 'dog'], dtype='<U3')
        """
        return self._change("rename_class", lambda work: work.rename_class(old, new))

    def join_classes(self, labels: Iterable[Any], into: Any) -> Self:
        """Make several classes one: the model is, exactly, the one that was taught with one label for all their samples.

        Only for the exact solver. A class with few samples no longer has a sum of its own then.

        Parameters
        ----------
        labels : iterable
            Labels of the classes to join.
        into : label
            The class that their samples belong to from now on: an existing one, or a new one.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1], [9.0, 0.2]], ["cat", "emu", "owl"])
        >>> clf.join_classes(["emu", "owl"], into="bird").classes_
        array(['bird', 'cat'], dtype='<U4')
        """
        joined = [label for label in _as_list(labels) if label != into]
        if not joined:
            raise ValueError("There is nothing to join: name at least one class besides the one to join it into.")
        return self._change("join_classes", lambda work: work.join_classes(joined, into))

    def add_noise(self, deviation: float, labels: Iterable[Any] | None = None, random_state: int | None = None) -> Self:
        """Add noise to the sums of classes, so that they no longer reveal the features of their samples.

        The model is, exactly, the one whose samples of a class had all been moved by one random vector, so it stays
        consistent; that class is recognised less well. Its samples can no longer be passed to `forget`: use
        `forget_class`. Only for the exact solver. This is not differential privacy: nothing is proven about what can still
        be learned from the sums.

        Parameters
        ----------
        deviation : float
            Standard deviation of the noise in units of a feature, which goes up to 127.
        labels : iterable, optional
            The classes; by default those with fewer than ten samples, which `audit` calls revealing.
        random_state : int, optional
            Seed of the noise; by default it cannot be repeated. Anyone who knows the seed can remove the noise.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1], [9.0, 0.2]], ["cat", "emu", "owl"])
        >>> clf.add_noise(5.0, ["emu"]).classes_
        array(['cat', 'emu', 'owl'], dtype='<U3')
        """
        if not (isinstance(deviation, int | float | np.number) and 0 < deviation < float("inf")):
            raise ValueError(f"deviation={deviation!r} should be a positive number, in units of a feature (up to 127).")
        chosen = list(self.audit().revealing) if labels is None else _as_list(labels)
        if not chosen:
            raise ValueError("No class has few samples, and none was named: name the classes to add noise to.")
        if random_state is None:
            random_state = secrets.randbits(63)
        check_integer("random_state", random_state, least=0)
        source = generator(int(random_state))
        return self._change("add_noise", lambda work: work.add_noise(chosen, float(deviation), source))

    def extend(self, capacity: int) -> Self:
        """Make room for more classes. What was learned stays as it is: all scores are the same, bit for bit.

        The exact solver pays with memory alone. Under ``"hbo"`` the vectors of the classes to come are added to those that
        are there, which do not move: orthogonal to them up to ``embed_dim`` classes, beyond that as far from them as a
        descent can bring them, which is less far than in a table made at once. `largest_cosine_` and a line on the logger
        ``cldnet`` say how near two vectors come, and a warning if it is nearer than the model was made for: better to
        choose ``capacity`` and ``embed_dim`` large from the start.

        A model without a limit (``capacity="auto"`` of the exact solver) need not be extended: it would get a limit.

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
        self._check_no_session("extend")
        check_integer("capacity", capacity)
        model = self._model
        if model is None:
            raise NotFittedError(f"This CLDNetClassifier is not fitted: call set_params(capacity={capacity}) instead.")
        capacity, bound = int(capacity), getattr(model.learner.config, "gamma", 0.0)
        with self._computing():
            work = self._copied(model).extend(capacity)
            cosine = work.largest_cosine
        _log.info("room for %d classes; largest |cosine| between two class vectors %.6f", capacity, cosine)
        if cosine > bound + 1e-6:  # before the model is replaced: who turns the warning into an error keeps the old one
            warnings.warn(
                f"With room for {capacity} classes two class vectors have a cosine of {cosine:.4f}, and the model was made for "
                f"{bound:.4f} at most: such classes are harder to distinguish. A new model with a larger embed_dim has "
                "more room.",
                UserWarning,
                stacklevel=2,
            )
        self._replace_model(work, model)
        self.capacity = capacity
        return self

    def refresh(self) -> Self:
        """Choose the ridge penalty and the decision rule from all samples so far; only for the exact solver.

        `predict` does so when it has to: after a call with a new class or with more than 32 samples, and when samples have
        grown by an eighth. Between that, smaller calls update the solution only, which takes a millisecond. Call this to
        have answers that do not depend on how the samples came. Whatever is saved, copied or pickled is refreshed, too.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1], [9.0, 0.2]], ["cat", "dog", "owl"])
        >>> clf.partial_fit([[8.8, 0.3]], ["owl"]).refresh().predict([[9.0, 0.0]])
        array(['owl'], dtype='<U3')
        """
        self._check_no_session("refresh")
        learner = self._usable_model().exact
        with self._computing():
            learner.refresh()
        return self

    def statistics(self) -> Statistics:
        """The sums of the exact solver, without the map: to be saved, added up, and merged into a model."""
        self._first = None  # they belong to the map as it is
        return copy.deepcopy(self._fitted().statistics)

    def private_statistics(
        self, epsilon: float, delta: float, *, classes: Iterable[Any] | None = None, random_state: int | None = None
    ) -> Statistics:
        """The sums with noise that hides whether any one sample was learned: (ε, δ)-differential privacy.

        Guaranteed: whatever is done with the result, it is at most ``exp(epsilon)`` times as probable, plus ``delta``, with
        any one sample as without it. The feature map has to be a `cldnet.nets.Clipped` one that was fitted on public data.

        Not guaranteed: the model itself, its file, its other methods and the map are not private; only what this returns
        is, and models made of that alone. The labels are released as they are, or those of ``classes``. Each call spends
        ``epsilon`` and ``delta`` again, and those of several calls add up. A person with several samples is hidden less
        well. See docs/privacy.md.

        Only for the exact solver with ``gram="full"`` and weights up to 1. Needs dp-accounting, the extra ``privacy``.

        Parameters
        ----------
        epsilon, delta : float
            How much one sample may show; 1 is strong, above 10 hardly protects. ``delta`` should be far below one divided
            by the number of samples.
        classes : iterable, optional
            The public list of all labels, if the set of labels that were learned should not be released: a class without
            samples gets noise alone. By default the labels learned.
        random_state : int, optional
            Seed of the noise, for experiments only: whoever knows or guesses it can remove the noise, so nothing is guaranteed.
            By default the noise comes from the operating system's random bytes.

        Returns
        -------
        Statistics
            To be saved, added up, and merged into a model without samples over the same map.

        Examples
        --------
        >>> from cldnet.nets import Clipped, RandomReLU
        >>> rng, public = np.random.default_rng(0), RandomReLU((2,), features=16, seed=0)
        >>> public.fit(torch.from_numpy(rng.uniform(-1, 6, size=(500, 2))))
        >>> clipped = Clipped(public, norm=300)
        >>> y = np.repeat(["cat", "dog"], 5000)
        >>> X = np.where(y == "cat", 0.0, 5.0)[:, None] + rng.normal(size=(10_000, 2))
        >>> released = CLDNetClassifier(backbone=clipped).partial_fit(X, y).private_statistics(1.0, 1e-6)
        >>> CLDNetClassifier(backbone=clipped).merge([released]).predict([[0.0, 0.0], [5.0, 5.0]])
        array(['cat', 'dog'], dtype='<U3')
        """
        from cldnet.estimator.private import private_statistics  # noqa: PLC0415  (few need it)

        self._check_no_session("private_statistics")
        named = None if classes is None else _as_list(classes)
        model, self._first = self._fitted(), None
        with self._computing():
            return private_statistics(model, epsilon, delta, named, random_state)

    def footprint(self) -> Footprint:
        """Bytes by kind of everything that the model keeps."""
        return self._fitted().footprint

    def audit(
        self,
        X: Any = None,
        *,
        rows: int | None = 2000,
        random_state: int = 0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Audit:
        """Test the model's promises: bytes after each task, and that nothing stored resembles a training sample.

        Parameters
        ----------
        X : array-like, optional
            Training samples, as `partial_fit` took them, to compare everything that is kept with: as they are, normalised, cut
            into patches and in feature space, flips and quarter turns of images included.
        rows : int or None
            Number of samples to compare with, drawn at random; ``None`` for all.
        random_state : int
            Seed of that draw.
        on_progress : callable, optional
            Called with the number of samples compared, and with their total.

        Returns
        -------
        Audit
            ``print`` it, or use its ``promises``, its ``findings`` and its ``to_json()``;
            `cldnet.bench.report.write_audit` makes a page of it.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.normal(size=(60, 20)), np.repeat(["cat", "dog", "owl"], 20)
        >>> clf = CLDNetClassifier(random_state=0).partial_fit(X[:40], y[:40]).partial_fit(X[40:], y[40:])
        >>> audit = clf.audit(X)
        >>> audit.holds, audit.sizes.constant, audit.revealing
        (True, True, {})
        """
        from cldnet.estimator.audit import audit_model  # noqa: PLC0415  (only an audit needs it)

        model = self._fitted()
        self._first = None
        if rows is not None:
            check_integer("rows", rows)
        check_integer("random_state", random_state, least=0)
        x = None if X is None else self.check_inputs(X)
        with self._threads():
            return audit_model(model, x, rows=rows, seed=random_state, on_progress=on_progress)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Save the model to one file (safetensors with a JSON manifest). The save is atomic.

        A file that this model was loaded from or saved to, and that has changed since, is not replaced: what another process
        saved there would be lost. A `cldnet.FileChangedError` says so. If another process holds the file's lock
        (`cldnet.locked`), save waits for it.

        Parameters
        ----------
        path : path-like
        overwrite : bool
            Whether to replace the file even if it has changed.
        """
        model, self._first = self._fitted(), None  # before there is a lock file
        with store.locked(path):
            if not overwrite:
                self._seen.check_unchanged(path)
            parameters = {**self.get_params(deep=False), **asdict(self._training()), "device": str(self.device)}
            save_model(model, path, parameters)
            self._seen = self._seen.remember(path)
        for checkpoint in self._unsaved:  # their sessions are in the model's file now
            checkpoint.remove(path)
        self._unsaved = ()

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], backbone: nn.Module | None = None, *, device: str | None = None
    ) -> CLDNetClassifier:
        """Load a model that `save` wrote, onto another ``device`` if given.

        A model with your own module as backbone needs that module again as ``backbone``: the file has no code.
        """
        # Before it is read: if the file is replaced in between, `save` refuses once too often rather than too seldom.
        seen = store.SeenFiles().remember(path)
        model, parameters = load_model(path, backbone)
        clf = cls(**{**parameters, **({} if device is None else {"device": device})})
        clf._model = model
        clf._model.learner.to(resolve_device(clf.device))
        clf._seen = seen
        return clf

    @property
    def model_(self) -> Model:
        """What was learned, with the labels and what is known of the inputs. Do not change it."""
        return self._fitted(AttributeError)

    @property
    def n_features_in_(self) -> int:
        """Number of values in one input."""
        return self.model_.inputs.count

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns, if the first inputs had some."""
        names = self.model_.inputs.names
        if names is None:
            raise AttributeError("The columns of the first inputs had no names.")
        return np.array(names, dtype=object)

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels seen so far and not forgotten, sorted."""
        return self.model_.labels.classes

    @property
    def largest_cosine_(self) -> float:
        """Largest |cosine| between the vectors of two classes (Eq. 3); 0 for the exact solver, whose are orthonormal."""
        return self.model_.largest_cosine

    @property
    def feature_map_(self) -> FeatureMap:
        """A copy of the exact solver's fitted map: for `cldnet.save_map`, or as ``backbone`` of models to be merged later."""
        model = self.model_
        if not model.learner.keeps_sums or not is_described(model.exact.features):
            raise AttributeError("Only the exact solver over a map of the library's own has a map that can be shared.")
        self._first = None
        return copy.deepcopy(model.exact.features)

    def check_inputs(self, X: Any) -> Tensor:
        """Check inputs as `predict` does, and return them as a tensor, which may share their memory."""
        return self._checked(X, self._fitted())

    def _checked(self, X: Any, model: Model) -> Tensor:
        x = read_inputs(X, model.parameters.input_shape, model.inputs)
        self._check_columns(X, x, model)
        return x

    def _check_columns(self, X: Any, x: Tensor, model: Model) -> None:
        try:
            # Arrays and sentences have no names, and the check takes its time.
            if model.inputs.names is not None or (type(X) is not np.ndarray and not model.inputs.text):
                _check_feature_names(self, X, reset=False)
        except ValueError as error:  # scikit-learn's message does not say what to do
            raise ValueError(f"{error}Give the model's columns, in their order: X[clf.feature_names_in_].") from error
        model.inputs.check(x)

    # These methods take the model as an argument, because another thread may replace `self._model` during the call.

    def _known(self, X: Any, model: Model) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        x = self._checked(X, model)
        with self._threads():
            return model.scores_and_known(x)

    def _scores(self, X: Any, model: Model) -> NDArray[np.float64]:
        x = self._checked(X, model)
        with self._threads():
            return model.scores(x)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        check_threads(self.n_threads)
        with threads(self.n_threads):
            yield

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Use the threads asked for, and torch's usual mode whatever the caller's: what is made here outlives the call.

        If the call fails, a generator of the user's that it drew from is set back.
        """
        source = self.random_state
        before = source.get_state() if hasattr(source, "get_state") else None
        try:
            with self._threads(), torch.inference_mode(False), torch.enable_grad():
                yield
        except BaseException:
            if before is not None:
                source.set_state(before)
            raise

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return self._model is not None

    def __getstate__(self) -> dict[str, Any]:
        self._first = None  # the copy cannot make the map again, so this one must not either
        temporary = ("_session", "_unsaved", "_lesson", "_first")
        return {name: value for name, value in super().__getstate__().items() if name not in temporary}

    def _fitted(self, error: type[Exception] = NotFittedError) -> Model:
        if self._model is None:
            raise error("This CLDNetClassifier is not fitted: call fit or partial_fit first.")
        return self._model

    def _usable_model(self) -> Model:
        """The model, if there is a class left to predict."""
        model = self._fitted()
        if not len(model.labels.classes):
            raise NotFittedError("This model has forgotten all its classes: teach it some with partial_fit first.")
        return model

    def _check_no_session(self, name: str) -> None:
        if self._session is not None:
            raise RuntimeError(f"A session is open: end it before you call {name}. Only partial_fit adds to it.")

    def _training(self) -> TrainingParameters:
        return TrainingParameters(**{field.name: getattr(self, field.name) for field in fields(TrainingParameters)})

    def _validated_parameters(self, model: Model | None = None) -> tuple[ModelParameters, dict[str, Any]]:
        """Check the parameters; return what a model is built from and its method's options."""
        now = ModelParameters(**{field.name: getattr(self, field.name) for field in fields(ModelParameters)})
        options = now.options(self._training())
        if model is not None:
            model.parameters.check_unchanged(now)
        return now, options

    def _labels(self, parameters: ModelParameters) -> LabelTable:
        return LabelTable(parameters.limit) if self._model is None else self._model.labels

    def _learned(
        self,
        samples: Samples,
        parameters: ModelParameters,
        options: dict[str, Any],
        model: Model | None,
        lesson: Lesson,
        checkpoint: SessionCheckpoint | None = None,
    ) -> tuple[Model, Samples | None]:
        """Teach a new model, or a copy of the one that is there; also return the samples to hold until there are more."""
        first = self._first if model is not None and checkpoint is None else None
        every = samples if first is None else Samples.joined([first, samples])
        with self._computing():
            if model is None or first is not None:
                seed = self._seed(checkpoint) if model is None else model.seed
                features = self._chosen_map(parameters, every, seed)
                work = Model.build(parameters, options, seed=seed, inputs=every.inputs, features=features)
                work = work if model is None else model.restarted(work)
                work.learner.to(resolve_device(self.device))
            else:
                work = self._copied(model, options)
                work.learner.keep_solution(model.learner)
            work, report = work.learn(
                samples,
                lesson,
                first=first,
                epochs=self.epochs,
                batch_size=self.batch_size,
                on_step=log_tenths if self.verbose > 1 else None,
                checkpoint=checkpoint,
            )
            # A map that is made again would be another one than that of the sums of a lesson.
            held = (
                not parameters.keep_lessons
                and len(every.y) < _HELD
                and (model is None or first is not None)
                and work.fits_vectors
            )
            kept = every.copied() if held else None
        if self.verbose:
            _log.info("learned %d samples in %.2f s; %d classes seen", len(samples.y), report.seconds, len(work.labels))
        return work, kept

    def _chosen_map(self, parameters: ModelParameters, samples: Samples, seed: int) -> FeatureMap | None:
        """The map that suits the first samples, if they are vectors and it may be chosen."""
        if parameters.solver != "exact" or parameters.backbone != "auto" or samples.x.ndim != 2:
            return None
        if samples.projection is not None:
            return Hashed(tuple(samples.x.shape[1:]))
        weight = None if samples.weight is None else torch.from_numpy(samples.weight)
        rows = torch.from_numpy(LabelTable().learn(samples.y))
        choice = choose_map(samples.x, rows, seed=seed, weight=weight)
        if self.verbose:
            _log.info("feature map: %s", choice if self.verbose > 1 else f"{choice.name} ({choice.reason})")
        return choice.map

    def _copied_lesson(self) -> Lesson:
        """A copy of the lesson that is open, to be kept if the call succeeds, or a new one for this call alone."""
        return Lesson() if self._lesson is None else copy.copy(self._lesson)

    def _change(self, name: str, change: Callable[[Model], Model]) -> Self:
        """Replace the model by a changed copy."""
        self._check_no_session(name)
        model = self._fitted()
        with self._computing():
            work = change(self._copied(model))
        self._replace_model(work, model)
        return self

    def _copied(self, model: Model, options: dict[str, Any] | None = None) -> Model:
        """Copy what may change of a model: other threads that predict meanwhile use the model as it was."""
        device = resolve_device(self.device)
        moves = device != model.device
        work = model.copy(
            self._validated_parameters(model)[1] if options is None else options, [] if moves else model.fixed_parts
        )
        if moves:
            work.learner.to(device)
        return work

    def _replace_model(
        self, work: Model, model: Model | None, lesson: Lesson | None = None, first: Samples | None = None
    ) -> None:
        if self._model is not model:
            raise RuntimeError(
                "Another thread changed this model during the call, so nothing of this call was kept. Call again, and teach "
                "one model from one thread at a time."
            )
        self._model, self._first = work, first
        if self._lesson is not None and lesson is not None:
            self._lesson = lesson

    def _seed(self, checkpoint: SessionCheckpoint | None = None) -> int:
        """Seed of a new model: ``random_state``, or that of the session to resume, or a random one."""
        try:
            source = None if self.random_state is None else check_random_state(self.random_state)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"random_state={shown(self.random_state)} should be None, a whole number from 0 to {2**32 - 1}, or a "
                "numpy.random.RandomState."
            ) from error
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        saved = None if checkpoint is None else checkpoint.seed
        if saved is not None:
            return saved
        # numpy's global generator is left alone
        return secrets.randbelow(2**31 - 1) if source is None else int(source.randint(2**31 - 1))


def merge(models: Iterable[CLDNetClassifier | Statistics], *, allow_duplicates: bool = False) -> CLDNetClassifier:
    """Make the model of all data that several models have learned, over one feature map. They stay as they are.

    Parameters
    ----------
    models : iterable of CLDNetClassifier or Statistics
        At least one is a classifier; the result has the parameters of the first of them.
    allow_duplicates : bool
        Merge models that share lessons, whose samples count twice then.

    Examples
    --------
    >>> import torch
    >>> from cldnet.nets import RandomReLU
    >>> shared = RandomReLU((2,), features=16, seed=0)
    >>> shared.fit(torch.tensor([[0.0, 0.0], [9.0, 9.0]]))
    >>> here = CLDNetClassifier(backbone=shared).fit([[0.0, 0.1], [5.0, 5.1]], ["cat", "dog"])
    >>> there = CLDNetClassifier(backbone=shared).fit([[9.0, 0.1], [0.1, 0.0]], ["owl", "cat"])
    >>> merge([here, there]).classes_
    array(['cat', 'dog', 'owl'], dtype='<U3')
    """
    parts = _as_models(models)
    for number, base in enumerate(parts):
        if isinstance(base, CLDNetClassifier):
            result = CLDNetClassifier(**base.get_params(deep=False))
            result._model = base._fitted()  # shared, since merging makes a copy
            return result.merge([*parts[:number], *parts[number + 1 :]], allow_duplicates=allow_duplicates)
    raise ValueError("merge needs a classifier among its models, for its feature map: statistics have none.")


def _warn_of_trace(labels: Sequence[Any]) -> None:
    """Warn that the map was fitted when labels came whose samples are being taken off."""
    if labels:
        warnings.warn(trace_text(labels), MapTraceWarning, stacklevel=3)


def trace_text(labels: Sequence[Any]) -> str:
    """Say that the map was fitted when some labels came."""
    return (
        f"The feature map was fitted when labels {[*labels][:6]} came, perhaps on some of these samples: they are gone from "
        "the sums, but their trace in the map's few statistics stays. To leave none, pass a map that was fitted on other "
        "data: backbone=map."
    )


def note_date(clf: CLDNetClassifier, labels: Any, date: str) -> None:
    """Record the date, as ``"2026-11-17"``, on which a classifier learned labels. Its model is replaced, not changed."""
    model = clf._fitted()
    table = copy.deepcopy(model.labels)
    table.note_date(labels, date)
    clf._replace_model(replace(model, labels=table), model)


def _as_models(models: Any) -> list[CLDNetClassifier | Statistics]:
    """The models to be merged; one alone is not a list of models."""
    known = (CLDNetClassifier, Statistics)
    alone = isinstance(models, known) or not isinstance(models, Iterable)
    parts = [models] if alone else list(models)
    for part in parts:
        if alone or not isinstance(part, known):
            raise ValueError(
                f"A {type(part).__name__} cannot be merged: pass a list of models (CLDNetClassifier) or of their sums "
                "(Statistics)."
            )
    return parts


def _as_list(labels: Iterable[Any]) -> list[Any]:
    """Labels that a user named, each once. A string is refused: its letters may be labels, too."""
    if isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise ValueError(f"labels={labels!r} should be a list of labels: write [{labels!r}] for one label.")
    return list(dict.fromkeys(as_labels(list(labels)).tolist()))
