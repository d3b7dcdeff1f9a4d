"""What can be asked of a classifier's model. Nothing here changes it, so several threads may ask at once."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _check_feature_names
from torch import Tensor

from cldnet.data.arrays import layout, seen_as_inputs
from cldnet.device import threads
from cldnet.footprint import Footprint
from cldnet.methods.exact import Exact
from cldnet.model import Model
from cldnet.modelfile import save_model
from cldnet.nets import FeatureMap, is_described
from cldnet.statistics import Statistics
from cldnet.structure import Settings, check_threads, check_whole

if TYPE_CHECKING:
    from cldnet.audit import Audit

__all__ = ["Answers", "as_models"]


class Answers(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The half of `cldnet.CLDNetClassifier` that answers: labels, probabilities, sizes, sums, files."""

    # Class attributes, so that __init__ stores its arguments and nothing else, as scikit-learn wants it.
    _model: Model | None = None
    n_threads: int | None = None
    device: str = "auto"

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Score of every class, columns as `classes_`; for two classes the difference, as scikit-learn has it."""
        scores = self._scores(X, self._able())
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of every class, columns as `classes_`: a softmax over the scores.

        Its temperature follows from the sums of the exact solver: how far scores of rows not learned lie from their targets.
        """
        model = self._able()
        scores = self._scores(X, model)
        with self._threads():
            return model.probabilities(scores)

    def known_probability(self, X: Any) -> NDArray[np.float64]:
        """How well each row goes with the classes known, from 0 to 1; only the exact solver can tell.

        It is the share of rows of known classes that look as strange as this one or stranger, so rows of known classes
        are spread evenly from 0 to 1, and rows of a class never taught lie near 0.
        """
        return self._known(X, self._able())[1]

    def predict(self, X: Any, reject: float | None = None) -> NDArray[Any]:
        """Label of every row, in the type in which labels came.

        Parameters
        ----------
        X : array-like
            Rows or images, as `partial_fit` takes them.
        reject : float, optional
            The share of known rows that may be turned away, between 0 and 1. The labels come as a masked array, whose
            masked entries are rows that look like no known class (`known_probability` below ``reject``), perhaps a new one.

        Examples
        --------
        >>> from cldnet import CLDNetClassifier
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat(["cat", "dog"], 500)
        >>> X = np.where(y == "cat", 0.0, 5.0)[:, None] + rng.normal(size=(1000, 2))
        >>> clf = CLDNetClassifier(random_state=0).partial_fit(X, y)
        >>> clf.predict([[0.0, 0.0], [5.0, 5.0], [5.0, -9.0]], reject=0.01).tolist()
        ['cat', 'dog', None]
        """
        model = self._able()
        if reject is None:
            labels: NDArray[Any] = model.labels.classes[self._scores(X, model).argmax(axis=1)]
            return labels
        if not (isinstance(reject, int | float | np.number) and 0 < reject < 1):
            raise ValueError(f"reject={reject!r} should be a share of known rows, between 0 and 1, or None.")
        scores, known = self._known(X, model)
        return np.ma.masked_array(model.labels.classes[scores.argmax(axis=1)], mask=known < reject)

    def _known(self, X: Any, model: Model) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        x = self._checked(X, model)
        with self._threads():
            return model.known(x)

    def _scores(self, X: Any, model: Model) -> NDArray[np.float64]:
        # One model from the first line to the last: another thread may put the next one in its place meanwhile.
        x = self._checked(X, model)
        with self._threads():
            return model.scores(x)

    def _checked(self, X: Any, model: Model) -> Tensor:
        x = layout(seen_as_inputs(X), model.structure.input_shape)
        self._check_inputs(X, x, model)
        return x

    def _check_inputs(self, X: Any, x: Tensor, model: Model) -> None:
        try:
            _check_feature_names(self, X, reset=False)
        except ValueError as error:  # in scikit-learn's words, which do not say what to do
            raise ValueError(f"{error}Give the model's columns, in their order: X[clf.feature_names_in_].") from error
        model.inputs.check(x)

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """On the threads asked for, unless they are so many that starting them would end the process."""
        check_threads(self.n_threads)
        with threads(self.n_threads):
            yield

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
        """Labels seen so far and not forgotten, sorted."""
        return self._fitted(AttributeError).labels.classes

    @property
    def largest_cosine_(self) -> float:
        """Largest |cosine| between the vectors of two classes (Eq. 3); 0 for the exact solver, whose are orthonormal."""
        return self._fitted(AttributeError).largest_cosine

    @property
    def feature_map_(self) -> FeatureMap:
        """A copy of the exact solver's fitted map: for `cldnet.save_map`, or as ``backbone`` of models to be merged later."""
        model = self._fitted(AttributeError)
        if not isinstance(model.learner, Exact) or not is_described(model.learner.features):
            raise AttributeError("Only the exact solver over a map of the library's own has a map that can be shared.")
        return copy.deepcopy(model.learner.features)

    def statistics(self) -> Statistics:
        """The sums of the exact solver, without the map: to be written to disk, added up, and merged into a model."""
        return copy.deepcopy(self._fitted().statistics)

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
        """Prove the model's promises: bytes after each task, and that nothing stored is a training row in disguise.

        Parameters
        ----------
        X : array-like, optional
            Training rows, as `partial_fit` took them, to compare everything that is kept with: as they are, normalised, cut
            into patches and in feature space, flips and quarter turns of images included.
        rows : int or None
            Compare with so many of them, drawn at random; ``None`` with all.
        random_state : int
            Seed of that draw.
        on_progress : callable, optional
            Told how many rows are compared, and of how many.

        Returns
        -------
        Audit
            ``print`` it, or take its ``promises``, its ``findings`` and its ``to_json()``;
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
        from cldnet.audit import audit_model  # noqa: PLC0415  (only an audit needs it)

        model = self._fitted()
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1):
            raise ValueError(f"rows={rows!r} should be a whole number of at least 1, or None for all of X.")
        check_whole("random_state", random_state, least=0)
        x = None if X is None else self._checked(X, model)
        with self._threads():
            return audit_model(model, x, rows=rows, seed=random_state, on_progress=on_progress)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file (safetensors with a JSON manifest): there whole or not at all."""
        settings = asdict(Settings.of(self))  # what cannot be would be written, and refused by `load`
        save_model(self._fitted(), path, {**self.get_params(deep=False), **settings, "device": str(self.device)})

    def __sklearn_is_fitted__(self) -> bool:
        return self._model is not None

    def _fitted(self, error: type[Exception] = NotFittedError) -> Model:
        if self._model is None:
            raise error("This CLDNetClassifier has not learned anything yet: call fit or partial_fit first.")
        return self._model

    def _able(self) -> Model:
        """The model, if there is a class left to answer with."""
        model = self._fitted()
        if not len(model.labels.classes):
            raise NotFittedError("This model has forgotten all its classes: teach it some with partial_fit first.")
        return model


def as_models(models: Any) -> list[Answers | Statistics]:
    """Models to be merged, as a list; one model alone is none.

    Examples
    --------
    >>> as_models(None)
    Traceback (most recent call last):
    ...
    ValueError: A NoneType cannot be merged: give a list of models (CLDNetClassifier) or of their sums (Statistics).
    """
    if isinstance(models, Answers | Statistics) or not isinstance(models, Iterable):
        one = ", for example [model]" if isinstance(models, Answers | Statistics) else ""
        raise ValueError(
            f"A {type(models).__name__} cannot be merged: give a list of models (CLDNetClassifier) or of their sums "
            f"(Statistics){one}."
        )
    return list(models)
