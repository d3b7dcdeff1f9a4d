"""`CLDNetClassifier`: the scikit-learn face. New labels at any call, nothing kept, nothing forgotten."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_feature_names
from torch import Tensor, nn

import cldnet.store as store
from cldnet.data.arrays import as_inputs, layout
from cldnet.data.rows import Rows, Session
from cldnet.device import resolve_device, threads
from cldnet.fit import log_tenths
from cldnet.footprint import Footprint, footprint
from cldnet.labels import LabelTable
from cldnet.model import Model, Structure, check_whole, read_backbone, solver_options

__all__ = ["CLDNetClassifier"]

_log = logging.getLogger("cldnet")


class CLDNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes for ever: it keeps no data, never grows and does not forget.

    Parameters
    ----------
    solver : {"exact", "hbo"}
        ``"exact"``: one pass over a fixed feature map; the solution of all data ever seen at once. ``"hbo"``: the paper's
        algorithm, a net trained by gradient steps through projectors; it wants inputs of many dimensions, since each
        task takes up some of them for good.
    backbone : str or nn.Module
        ``"auto"``, a name out of `cldnet.nets.BACKBONES`, or a module of your own that maps inputs to vectors. A module is
        copied; ``"exact"`` freezes it, ``"hbo"`` trains it.
    capacity : int
        Room for classes. The model's size depends on it, and never on the number of classes seen.
    embed_dim : int
        ``"hbo"``: dimension of the class vectors. Up to that many classes are orthogonal; with a larger ``capacity`` their
        |cosine| is bounded by 0.04, or by 1.6 times the Welch bound where that is more.
    alpha : "gcv" or float
        ``"exact"``: ridge penalty, by default chosen from the sums by generalised cross-validation. ``"hbo"``: the
        projectors' α (Eq. 6) if it is a number; by default it adapts to each batch.
    epochs, batch_size, lr
        Training of ``"hbo"``. (``"exact"`` sees every row once.)
    input_shape : tuple of int, optional
        Shape that flat rows are folded into, for example ``(28, 28)`` or ``(3, 32, 32)``.
    device, dtype, n_threads
        Where and how to compute (``"exact"`` scores in float64 either way). ``n_threads`` is set for the time of a call.
    random_state : int, RandomState or None
        Seed of everything random.
    verbose : int
        1 writes a line a session to the logger ``cldnet``, 2 also one a tenth of it.

    Attributes
    ----------
    classes_ : ndarray
        Labels seen so far, sorted. All scores have their columns in this order.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0)
    >>> clf.partial_fit([[0.0, 0.1], [0.1, 0.0], [5.0, 5.1], [5.2, 5.0]], ["cat", "cat", "dog", "dog"]).classes_
    array(['cat', 'dog'], dtype='<U3')
    >>> clf.partial_fit([[9.0, 0.0], [9.1, 0.2]], ["owl", "owl"]).predict([[0.0, 0.0], [5.0, 5.0], [9.0, 0.1]])
    array(['cat', 'dog', 'owl'], dtype='<U3')
    """

    def __init__(
        self,
        solver: str = "exact",
        backbone: str | nn.Module = "auto",
        *,
        capacity: int = 1000,
        embed_dim: int = 1000,
        alpha: float | str = "gcv",
        epochs: int = 10,
        batch_size: int = 16,
        lr: float = 0.05,
        input_shape: tuple[int, ...] | None = None,
        device: str = "auto",
        dtype: str = "float32",
        n_threads: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.solver = solver
        self.backbone = backbone
        self.capacity = capacity
        self.embed_dim = embed_dim
        self.alpha = alpha
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.input_shape = input_shape
        self.device = device
        self.dtype = dtype
        self.n_threads = n_threads
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CLDNetClassifier:
        """Forget everything and learn from ``X`` and ``y`` alone."""
        if self._session is not None:
            raise RuntimeError("A session is open: partial_fit adds to it, and fit has to wait for its end.")
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
    def session(self) -> Iterator[CLDNetClassifier]:
        """Take data that comes in small pieces as one session.

        Within the block, `partial_fit` checks and collects; when the block ends the pieces are learned as one task, exactly
        as if they had come in one call, and dropped. If the block fails, nothing is learned.

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
        self._session = session = Session(self._table(self._parameters(self._model)[0]))
        try:
            yield self
        finally:
            del self._session
        if session.pieces:
            model = self._model
            self._swap_in(self._learned(session.rows, *self._parameters(model), model), model)

    def _swap_in(self, work: Model, model: Model | None) -> None:
        if self._model is not model:
            raise RuntimeError(
                "Another thread taught this model meanwhile, and this call began from the model before: nothing of it "
                "was kept. Call again, and teach one model from one thread at a time."
            )
        self._model = work

    def _learned(self, rows: Rows, structure: Structure, options: dict[str, Any], model: Model | None) -> Model:
        """Teach a new model, or a copy: whoever predicts meanwhile, in another thread, has the model as it was."""
        device = resolve_device(self.device)
        with threads(self.n_threads), torch.inference_mode(False), torch.enable_grad():
            if model is None:
                work = Model.build(structure, options, seed=self._seed(), inputs=rows.inputs)
            else:
                work = model.copy()
                work.learner.configure(options)
            work.learner.to(device)
            on_step = log_tenths if self.verbose > 1 else None
            report = work.learn(rows, epochs=self.epochs, batch_size=self.batch_size, on_step=on_step)
        if self.verbose:
            _log.info("learned %d rows in %.2f s; %d classes seen", len(rows.y), report.seconds, len(work.labels))
        return work

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Score of every class, columns as `classes_`; for two classes the difference, as scikit-learn has it."""
        scores = self._scores(X, self._fitted())
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of every class, columns as `classes_`: a softmax over the scores."""
        model = self._fitted()
        return model.probabilities(self._scores(X, model))

    def predict(self, X: Any) -> NDArray[Any]:
        """Label of every row, in the type in which labels came."""
        model = self._fitted()
        labels: NDArray[Any] = model.labels.classes[self._scores(X, model).argmax(axis=1)]
        return labels

    def _scores(self, X: Any, model: Model) -> NDArray[np.float64]:
        # One model from the first line to the last: another thread may put the next one in its place meanwhile.
        x = layout(as_inputs(X), model.structure.input_shape)
        self._check_inputs(X, x, model)
        with threads(self.n_threads):
            return model.scores(x)

    @property
    def n_features_in_(self) -> int:
        """Numbers in one input."""
        return self._fitted(AttributeError).inputs.count

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns, where the first inputs had some."""
        names = self._fitted(AttributeError).inputs.names
        if names is None:
            raise AttributeError("The columns of the first inputs had no names.")
        return np.array(names, dtype=object)

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels seen so far, sorted."""
        return self._fitted(AttributeError).labels.classes

    def footprint(self) -> Footprint:
        """Bytes by kind of everything that the model keeps."""
        model = self._fitted()
        return footprint(model.learner, labels=len(str(model.labels.to_json()["labels"]).encode()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file (safetensors with a JSON manifest): there whole or not at all."""
        self._fitted().save(path, {**self.get_params(deep=False), "device": str(self.device)})

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], backbone: nn.Module | None = None, *, device: str | None = None
    ) -> CLDNetClassifier:
        """Read a model that `save` wrote, onto another ``device`` if asked.

        A model over a module of your own needs that module again as ``backbone``, for its code.
        """
        given = {name: value for name, value in (("backbone", backbone), ("device", device)) if value is not None}
        tensors, manifest = store.read(path)
        try:
            parameters = dict(manifest["parameters"])
            parameters["backbone"] = read_backbone(parameters.get("backbone", "auto"))
            clf = cls(**{**parameters, **given})
            structure, options = clf._parameters(None)
            clf.input_shape = structure.input_shape  # JSON has no tuples
            clf._model = Model.load(tensors, manifest, structure, options)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(
                f"{os.fspath(path)!r} does not hold a whole model ({error}): use the last good copy."
            ) from error
        clf._model.learner.to(resolve_device(clf.device))
        return clf

    # Class attributes, so that __init__ stores its arguments and nothing else, as scikit-learn wants it.
    _model: Model | None = None
    _session: Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_session"}

    def __sklearn_is_fitted__(self) -> bool:
        return self._model is not None

    def _fitted(self, error: type[Exception] = NotFittedError) -> Model:
        if self._model is None:
            raise error("This CLDNetClassifier has not learned anything yet: call fit or partial_fit first.")
        return self._model

    def _seed(self) -> int:
        if self.random_state is None:  # numpy's global generator is left alone
            return secrets.randbelow(2**31 - 1)
        source = check_random_state(self.random_state)
        return int(self.random_state) if isinstance(self.random_state, Integral) else int(source.randint(2**31 - 1))

    def _parameters(self, model: Model | None) -> tuple[Structure, dict[str, Any]]:
        """Check the parameters; return what a model is built from and its solver's options."""
        now = Structure(self.solver, self.backbone, self.capacity, self.embed_dim, self.input_shape, self.dtype)
        check_whole("epochs", self.epochs)
        check_whole("batch_size", self.batch_size)
        if model is not None:
            model.structure.check_unchanged(now)
        return now, solver_options(now, lr=self.lr, alpha=self.alpha)

    def _table(self, structure: Structure) -> LabelTable:
        return LabelTable(structure.capacity) if self._model is None else self._model.labels

    def _check_inputs(self, X: Any, x: Tensor, model: Model) -> None:
        _check_feature_names(self, X, reset=False)
        model.inputs.check(x)
