"""`CLDNetClassifier`: the scikit-learn face. New labels at any call, nothing kept, nothing forgotten."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor, nn

import cldnet.store as store
from cldnet.data.arrays import as_inputs, layout
from cldnet.device import resolve_device, threads
from cldnet.fit import Progress, fit_task, predict_logits
from cldnet.footprint import Footprint, footprint
from cldnet.labels import LabelTable
from cldnet.methods.learner import TaskData
from cldnet.model import SOLVERS, Model, Structure, solver_options

__all__ = ["CLDNetClassifier"]

_log = logging.getLogger("cldnet")
#: A call's checked arguments: inputs, labels, weights.
_Piece = tuple[Tensor, NDArray[Any], NDArray[np.float64] | None]
#: Softness of the exact solver's probabilities: its scores estimate class probabilities and lie around 0 and 1.
_EXACT_TEMPERATURE = 0.1


class CLDNetClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes for ever: it keeps no data, never grows and does not forget.

    Parameters
    ----------
    solver : {"exact", "hbo"}
        ``"exact"``: one pass over a fixed feature map; the solution of all data ever seen at once. ``"hbo"``: the paper's
        algorithm, a net trained by gradient steps through projectors.
    backbone : str or nn.Module
        ``"auto"``, a name out of `cldnet.nets.BACKBONES`, or a module of your own that maps inputs to vectors. A module is
        copied; ``"exact"`` freezes it, ``"hbo"`` trains it.
    capacity : int
        Room for classes. The model's size depends on it, and never on the number of classes seen.
    embed_dim : int
        Dimension of the class vectors; up to that many classes are exactly orthogonal.
    alpha : "gcv" or float
        ``"exact"``: ridge penalty, by default chosen from the sums by generalised cross-validation. ``"hbo"``: the
        projectors' α (Eq. 6) if it is a number; by default it adapts to each batch.
    epochs, batch_size, lr
        Training of ``"hbo"``. (``"exact"`` sees every row once.)
    input_shape : tuple of int, optional
        Shape that flat rows are folded into, for example ``(28, 28)`` or ``(3, 32, 32)``.
    device, dtype, n_threads
        Where and in which precision to compute. ``n_threads`` is set for the time of a call.
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
        batch_size: int = 32,
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

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CLDNetClassifier:
        """Forget everything and learn from ``X`` and ``y`` alone."""
        return self._learn(X, y, sample_weight, None)

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
            A weight a row.
        """
        if classes is not None:
            unexpected = np.setdiff1d(np.asarray(y), np.asarray(classes))
            if unexpected.size:
                raise ValueError(
                    f"y has labels {unexpected.tolist()} that are not in classes. Add them, or leave classes out."
                )
        if self._pieces is not None:
            self._pieces.append(self._check(X, y, sample_weight, self._model))
            return self
        return self._learn(X, y, sample_weight, self._model)

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
        if self._pieces is not None:
            raise RuntimeError("A session is open already: end it before the next one begins.")
        pieces: list[_Piece] = []
        self._pieces = pieces
        try:
            yield self
        finally:
            self._pieces = None
        if pieces:
            x, y, weights = zip(*pieces, strict=True)
            weight = None
            if any(part is not None for part in weights):
                weight = np.concatenate([np.ones(len(a)) if w is None else w for a, w in zip(y, weights, strict=True)])
            self._learn(torch.cat(x), np.concatenate(y), weight, self._model)

    def _learn(self, X: Any, y: Any, sample_weight: Any, model: Model | None) -> CLDNetClassifier:
        structure = self._check_parameters(model)
        x, y, weight = self._check(X, y, sample_weight, model)
        options = solver_options(self.solver, lr=self.lr, embed_dim=self.embed_dim, alpha=self.alpha)
        device = resolve_device(self.device)
        with threads(self.n_threads):
            if model is None:
                about: dict[str, Any] = {"pixels": x.dtype == torch.uint8, "largest": float(x.abs().max())}
                work = Model.build(structure, options, input_shape=tuple(x.shape[1:]), seed=self._seed(), **about)
            else:  # the copy learns: whoever predicts meanwhile, in another thread, has the model as it was
                work = copy.deepcopy(model)
                work.learner.configure(options)
            work.learner.to(device)
            rows = torch.from_numpy(work.labels.learn(y)).to(device)
            task = TaskData(x.to(device), rows, None if weight is None else torch.from_numpy(weight).to(device))
            report = fit_task(
                work.learner, task, epochs=self.epochs, batch_size=self.batch_size, on_step=self._progress()
            )
        if model is None:
            validate_data(self, X, skip_check_array=True, reset=True)
        self._model = work
        if self.verbose:
            _log.info("learned %d rows in %.2f s; %d classes seen", len(x), report.seconds, len(work.labels))
        return self

    def _progress(self) -> Callable[[Progress], None] | None:
        if self.verbose < 2:
            return None

        def report(progress: Progress) -> None:
            if progress.step % max(progress.steps // 10, 1) == 0:
                _log.info("step %d of %d", progress.step, progress.steps)

        return report

    # -- answering -----------------------------------------------------------------------------------------------------

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Score of every class, columns as `classes_`; for two classes the difference, as scikit-learn has it."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of every class, columns as `classes_`: a softmax over the scores."""
        scores = self._scores(X)
        if self._fitted().structure.solver == "exact":
            scores = scores / _EXACT_TEMPERATURE
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> NDArray[Any]:
        """Label of every row, in the type in which labels came."""
        model = self._fitted()
        labels: NDArray[Any] = model.labels.classes[self._scores(X).argmax(axis=1)]
        return labels

    def _scores(self, X: Any) -> NDArray[np.float64]:
        model = self._fitted()
        x = self._inputs(X, model)
        with threads(self.n_threads):
            logits = predict_logits(model.learner, x.to(next(model.learner.buffers()).device))
        scores: NDArray[np.float64] = logits[:, torch.from_numpy(model.labels.columns)].double().cpu().numpy()
        return scores

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels seen so far, sorted."""
        return self._fitted(AttributeError).labels.classes

    def footprint(self) -> Footprint:
        """Bytes by kind of everything that the model keeps."""
        model = self._fitted()
        return footprint(model.learner, labels=len(str(model.labels.to_json()["labels"]).encode()))

    # -- on disk -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file (safetensors with a JSON manifest): there whole or not at all."""
        model = self._fitted()
        parameters = self.get_params(deep=False)
        if isinstance(self.backbone, nn.Module):
            del parameters["backbone"]
        names = getattr(self, "feature_names_in_", None)
        columns = {"count": self.n_features_in_, "names": None if names is None else names.tolist()}
        model.save(path, {"parameters": {**parameters, "random_state": model.seed}, "columns": columns})

    @classmethod
    def load(cls, path: str | os.PathLike[str], backbone: nn.Module | None = None) -> CLDNetClassifier:
        """Read a model that `save` wrote. A model over a module of your own needs that module again, for its code."""
        tensors, manifest = store.read(path)
        parameters = dict(manifest["parameters"])
        if parameters["input_shape"] is not None:
            parameters["input_shape"] = tuple(parameters["input_shape"])
        if backbone is not None:
            parameters["backbone"] = backbone
        clf = cls(**parameters)
        options = solver_options(clf.solver, lr=clf.lr, embed_dim=clf.embed_dim, alpha=clf.alpha)
        model = Model.load(tensors, manifest, clf._structure(), options)
        model.learner.to(resolve_device(clf.device))
        clf._model = model
        clf.n_features_in_ = manifest["columns"]["count"]
        if manifest["columns"]["names"] is not None:
            clf.feature_names_in_ = np.array(manifest["columns"]["names"], dtype=object)
        return clf

    # -- checking ------------------------------------------------------------------------------------------------------

    # Class attributes, so that __init__ stores its arguments and nothing else, as scikit-learn wants it.
    _model: Model | None = None
    _pieces: list[_Piece] | None = None

    def _fitted(self, error: type[Exception] = NotFittedError) -> Model:
        if self._model is None:
            raise error("This CLDNetClassifier has not learned anything yet: call fit or partial_fit first.")
        return self._model

    def __sklearn_is_fitted__(self) -> bool:
        return self._model is not None

    def _seed(self) -> int:
        if isinstance(self.random_state, int):
            return self.random_state
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _structure(self) -> Structure:
        return Structure(self.solver, self.backbone, self.capacity, self.embed_dim, self.input_shape, self.dtype)

    def _check_parameters(self, model: Model | None) -> Structure:
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is not known; use one of {sorted(SOLVERS)}.")
        for name in ("capacity", "embed_dim", "epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r} should be a whole number of at least 1.")
        if not (isinstance(self.lr, int | float | np.number) and 0 < self.lr < float("inf")):
            raise ValueError(f"lr={self.lr!r} should be a positive number.")
        now = self._structure()
        for name in Structure.__dataclass_fields__ if model is not None else ():
            then = getattr(self._fitted().structure, name)
            if getattr(now, name) is not then and getattr(now, name) != then:
                raise ValueError(
                    f"{name} was {then!r} when the model was made and is {getattr(now, name)!r} now. "
                    "Set it back, or call fit to begin anew."
                )
        return now

    def _check(self, X: Any, y: Any, sample_weight: Any, model: Model | None) -> _Piece:
        """Check a call's arguments and return them clean. Nothing has changed when this raises."""
        if y is None:
            raise ValueError("This classifier requires y to be passed, but the target y is None.")
        x = self._inputs(X, model)
        y = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        y = column_or_1d(y, warn=True) if isinstance(y, np.ndarray) else y
        labels = (LabelTable(self.capacity) if model is None else model.labels).check(y)
        if len(labels) != len(x):
            raise ValueError(f"X has {len(x)} rows and y has {len(labels)} labels: they should be as many.")
        if labels.dtype.kind == "f":
            check_classification_targets(labels)
        if sample_weight is None:
            return x, labels, None
        weight = _check_sample_weight(sample_weight, np.empty((len(x), 1)), dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("All sample weights are zero: there is nothing to learn. Leave the call out.")
        return x, labels, weight

    def _inputs(self, X: Any, model: Model | None) -> Tensor:
        x = as_inputs(X)
        laid_out = layout(x, self.input_shape)
        if model is None:
            return laid_out
        validate_data(self, X, skip_check_array=True, reset=False)  # names and number of columns
        shape = model.learner.setting.input_shape
        if tuple(laid_out.shape[1:]) != shape:
            raise ValueError(
                f"X has rows of shape {tuple(laid_out.shape[1:])}; the model was made for {shape}. "
                "Bring X into that shape, or make another model."
            )
        model.check_range(x)
        return laid_out
