"""`CLDNetClassifier`: the scikit-learn face. New labels at any call, nothing kept, nothing forgotten."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from torch import nn

import cldnet.store as store
from cldnet.answers import as_models
from cldnet.data.rows import Rows, Session
from cldnet.device import bearable_threads, resolve_device
from cldnet.discreet import Discreet
from cldnet.fit import log_tenths
from cldnet.labels import LabelTable
from cldnet.lessons import Lesson
from cldnet.midway import MidwayFile
from cldnet.model import Model
from cldnet.modelfile import load_model, read_backbone
from cldnet.nets import FeatureMap
from cldnet.plausible import check_parameters, whole
from cldnet.statistics import Statistics
from cldnet.structure import Settings, Structure, random_source, solver_options

__all__ = ["CLDNetClassifier", "merge"]

_log = logging.getLogger("cldnet")


class CLDNetClassifier(Discreet):
    """A classifier that learns new classes for ever: it keeps no data, never grows and does not forget.

    Parameters
    ----------
    solver : {"exact", "hbo"}
        ``"exact"``: one pass over a fixed feature map; the solution of all data ever seen at once. ``"hbo"``: the paper's
        way, a net trained by gradient steps through projectors; it wants inputs of many dimensions, since each
        task takes up some of them for good.
    backbone : str or nn.Module
        ``"auto"``, a name out of `cldnet.nets.BACKBONES`, a `cldnet.nets.FeatureMap` (fitted or not), or a module of your own
        that maps inputs to vectors. A module is copied; ``"exact"`` freezes it, ``"hbo"`` trains it.
    capacity : int
        Room for classes. The model's size depends on it, and never on the number of classes seen. `extend` makes more room.
    embed_dim : int
        ``"hbo"``: dimension of the class vectors. Up to that many classes are orthogonal; with a larger ``capacity`` their
        |cosine| is bounded by 0.04, or by 1.6 times the Welch bound where that is more (and by some more beyond 14 classes
        a dimension, see `cldnet.math.basis.reachable_gamma`; the table of 10,000 classes takes minutes to make).
    alpha : "gcv" or float
        ``"exact"``: ridge penalty, by default chosen from the sums by generalised cross-validation. ``"hbo"``: the
        projectors' α (Eq. 6) if it is a number; by default 30.
    gram : "full", "diagonal" or int
        ``"exact"``: what is kept of the features' second moments. Less than all is for small devices, at a loss (see
        `Statistics.loss`); a sketch of so many directions cannot forget rows.
    epochs, batch_size, lr
        Training of ``"hbo"``. (``"exact"`` sees every row once.) ``lr`` counts in units that depend neither on the inputs'
        scale nor on how much was learned before: 1 weighs new rows as recursive least squares does.
    input_shape : tuple of int, optional
        Shape that flat rows are folded into, for example ``(28, 28)`` or ``(3, 32, 32)``.
    device, dtype, n_threads
        Where and how to compute (``"exact"`` scores in float64 either way, and sums in it; ``"float64"`` is for features of
        your own that are not whole numbers up to 127). ``n_threads`` is set for the time of a call.
    random_state : int, RandomState or None
        Seed of everything random.
    verbose : int
        1 writes a line a session to the logger ``cldnet``, 2 also one a tenth of it.
    receipts : bool
        ``"exact"``: keep a salted digest of each row, 16 bytes, so that `forget` refuses every row that was not learned.
        Without them it refuses what sums can tell. Whoever has the file and a row can test whether that row was learned.

    Attributes
    ----------
    classes_ : ndarray
        Labels seen so far, sorted. All scores have their columns in this order.
    largest_cosine_ : float
        Largest |cosine| between the vectors of two classes; 0 for ``"exact"``.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0)
    >>> clf.partial_fit([[0.0, 0.1], [0.1, 0.0], [5.0, 5.1], [5.2, 5.0]], ["cat", "cat", "dog", "dog"]).classes_
    array(['cat', 'dog'], dtype='<U3')
    >>> clf.partial_fit([[9.0, 0.0], [9.1, 0.2]], ["owl", "owl"]).predict([[0.0, 0.0], [5.0, 5.0], [9.0, 0.1]])
    array(['cat', 'dog', 'owl'], dtype='<U3')
    """

    _unsaved: Sequence[MidwayFile] = ()  # of the class, as `_session` is
    receipts: bool = False  # pickles of older versions have none
    _seen = store.SeenFiles()

    def __init__(
        self,
        solver: str = "exact",
        backbone: str | nn.Module = "auto",
        *,
        capacity: int = 1000,
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CLDNetClassifier:
        """Forget everything and learn from ``X`` and ``y`` alone."""
        self._outside_session("fit")
        structure, options = self._parameters(None)
        rows = Rows.checked(X, y, sample_weight, structure.input_shape, LabelTable(structure.capacity))
        self._model = self._learned(rows, structure, options, None)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> CLDNetClassifier:
        """Learn one more session: new classes, more of old ones, or both. A failed call leaves the model as it was.

        Parameters
        ----------
        X : array-like
            Rows ``(n, d)`` or images ``(n, H, W)``, ``(n, H, W, C)``, ``(n, C, H, W)``; uint8 means 0 to 255.
        y : array-like
            Labels: whole numbers, strings or booleans, not declared anywhere before.
        classes : array-like, optional
            Never needed. If given, a label outside of it is an error.
        sample_weight : array-like, optional
            A weight a row: ``"exact"`` takes it as that many rows, ``"hbo"`` weighs the loss and leaves out rows of 0.
        """
        model, session = self._model, self._session
        structure, options = self._parameters(model)
        table = self._table(structure) if session is None else session.table
        rows = Rows.checked(X, y, sample_weight, structure.input_shape, table, classes)
        if model is not None:
            self._check_inputs(X, rows.x, model)
        if session is None:
            self._swap_in(self._learned(rows, structure, options, model), model)
        else:
            session.add(rows)
        return self

    @contextmanager
    def session(
        self, checkpoint: str | os.PathLike[str] | None = None, every: float = 30.0
    ) -> Iterator[CLDNetClassifier]:
        """Take data that comes in small pieces as one session.

        Within the block, `partial_fit` checks and collects; when the block ends the pieces are learned as one task, exactly
        as if they had come in one call, and dropped. If the block fails, nothing is learned.

        Parameters
        ----------
        checkpoint : path-like, optional
            A file that the session is written to while it is learned. If the process dies, load the model that was saved
            before, open the session again with the same file and data, and it goes on from there, to the same bits. The file
            stays until `save` has written the model that learned the session, for the process may die before that. Until then
            ``"hbo"`` may have some of the session's last inputs in it, scaled.
        every : float
            Seconds between two writings.

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
            raise RuntimeError("A session is open already: end it before the next one begins.")
        kept = None if checkpoint is None else MidwayFile(checkpoint, every)
        self._session = session = Session(self._table(self._parameters(self._model)[0]))
        try:
            yield self
        finally:
            del self._session
        if session.pieces:
            model = self._model
            work = self._learned(session.rows, *self._parameters(model), model, kept)
            if kept is not None:
                self._unsaved = (*self._unsaved, kept)
            self._swap_in(work, model)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model to one file (safetensors with a JSON manifest). The save is atomic.

        A file that this model was loaded from or saved to, and that has changed since, is not replaced: what another process
        saved there would be lost. A `cldnet.FileChangedError` says so. If another process holds the file's lock
        (`cldnet.locked`), save waits for it.

        Parameters
        ----------
        path : path-like
        overwrite : bool
            Whether to replace the file even if it has changed.
        """
        self._fitted()  # before there is a lock file
        with store.locked(path):
            if not overwrite:
                self._seen.check_unchanged(path)
            super().save(path)
            self._seen = self._seen.noted(path)
        for checkpoint in self._unsaved:  # what they would bring back is in the model's file now
            checkpoint.remove(path)
        self._unsaved = ()

    def _learned(
        self,
        rows: Rows,
        structure: Structure,
        options: dict[str, Any],
        model: Model | None,
        kept: MidwayFile | None = None,
    ) -> Model:
        """Teach a new model, or a copy of the one that is there."""
        with self._computing():
            if model is None:
                work = Model.build(structure, options, seed=self._seed(kept), inputs=rows.inputs)
                work.learner.to(resolve_device(self.device))
            else:
                work = self._copied(model)
            on_step = log_tenths if self.verbose > 1 else None
            budget = {"epochs": self.epochs, "batch_size": self.batch_size}
            work, report = work.learn(rows, **budget, on_step=on_step, checkpoint=kept)
            work = work.noting(rows, self._lesson or Lesson(work.lessons))
        if self.verbose:
            _log.info("learned %d rows in %.2f s; %d classes seen", len(rows.y), report.seconds, len(work.labels))
        return work

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], backbone: nn.Module | None = None, *, device: str | None = None
    ) -> CLDNetClassifier:
        """Read a model that `save` wrote, onto another ``device`` if asked.

        A model over a module of your own needs that module again as ``backbone``, for its code.
        """
        given = {name: value for name, value in (("backbone", backbone), ("device", device)) if value is not None}
        # Before it is read: if it is replaced in between, `save` refuses once too often, and never once too seldom.
        seen = store.SeenFiles().noted(path)
        tensors, manifest = store.read(path)
        with whole(path, "a whole model"):
            if manifest["kind"] != "model":
                raise ValueError(f"it is a file of another kind, {manifest['kind']!r:.80}")
            parameters = dict(manifest["parameters"])
            check_parameters(parameters)
            parameters["n_threads"] = bearable_threads(parameters.get("n_threads"))
            parameters["backbone"] = read_backbone(parameters.get("backbone", "auto"), tensors)
            clf = cls(**{**parameters, **given})
            structure, options = clf._parameters(None)
            clf.input_shape = structure.input_shape  # JSON has no tuples
            clf._model = load_model(tensors, manifest, structure, options)
            if backbone is None and isinstance(clf.backbone, FeatureMap) and manifest["fitted_map"]:
                clf.backbone.load_state_dict(clf._model.exact.features.state_dict())
        clf._model.learner.to(resolve_device(clf.device))
        clf._seen = seen
        return clf

    def __getstate__(self) -> dict[str, Any]:
        passing = ("_session", "_unsaved", "_lesson")
        return {name: value for name, value in super().__getstate__().items() if name not in passing}

    def _seed(self, checkpoint: MidwayFile | None = None) -> int:
        """Seed of a new model: as asked for, or that of the session to go on with, or any."""
        source = random_source(self.random_state)
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        begun = None if checkpoint is None else checkpoint.seed
        if begun is not None:
            return begun
        # numpy's global generator is left alone
        return secrets.randbelow(2**31 - 1) if source is None else int(source.randint(2**31 - 1))

    def _parameters(self, model: Model | None) -> tuple[Structure, dict[str, Any]]:
        """Check the parameters; return what a model is built from and its solver's options."""
        sizes = self.capacity, self.embed_dim, self.input_shape
        now = Structure(self.solver, self.backbone, *sizes, self.dtype, self.gram, self.receipts)
        settings = Settings.of(self)
        if model is not None:
            model.structure.check_unchanged(now)
        return now, solver_options(now, settings)

    def _table(self, structure: Structure) -> LabelTable:
        return LabelTable(structure.capacity) if self._model is None else self._model.labels


def merge(models: Iterable[CLDNetClassifier | Statistics], *, allow_duplicates: bool = False) -> CLDNetClassifier:
    """Make the model of all data that several models have learned apart, over one feature map. They stay as they are.

    Parameters
    ----------
    models : iterable of CLDNetClassifier or Statistics
        At least one is a classifier; the result has the parameters of the first of them.
    allow_duplicates : bool
        Merge models that share lessons, whose rows count twice then.

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
    parts = as_models(models)
    for number, base in enumerate(parts):
        if isinstance(base, CLDNetClassifier):
            result = CLDNetClassifier(**base.get_params(deep=False))
            result._model = base._fitted()  # shared, since merging makes a copy
            return result.merge([*parts[:number], *parts[number + 1 :]], allow_duplicates=allow_duplicates)
    raise ValueError("merge needs a classifier among its models, for its feature map: statistics have none.")
