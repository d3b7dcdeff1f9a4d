"""The classifier is a scikit-learn classifier: scikit-learn's own checks, and its tools, run over both solvers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from cldnet import CLDNetClassifier

EXACT = CLDNetClassifier(random_state=0)
# float64, because scikit-learn wants scores to be equal to 1e-7 for any batch.
HBO = CLDNetClassifier("hbo", capacity=8, embed_dim=8, epochs=3, dtype="float64", random_state=0)

_STEPS = (
    "a row of weight 2 comes in one mini-batch, two equal rows come in two, and weights act on the loss alone, not on "
    "kernels and projectors: gradient steps differ"
)
EXCEPTIONS = {
    "exact": {},
    "hbo": {f"check_sample_weight_equivalence_on_{kind}_data": _STEPS for kind in ("dense", "sparse")},
}


def expected_failures(classifier: CLDNetClassifier) -> dict[str, str]:
    return EXCEPTIONS[classifier.solver]


@parametrize_with_checks([EXACT, HBO], expected_failed_checks=expected_failures)
def test_scikit_learn_is_content(estimator: CLDNetClassifier, check: Callable[[Any], None]) -> None:
    check(estimator)


def blobs() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    y = np.repeat(["ant", "bee", "cat"], 12)
    return random.normal(size=(36, 3)) + 4 * np.eye(3).repeat(12, axis=0), y


def test_scikit_learns_tools_take_the_classifier() -> None:
    X, y = blobs()
    assert cross_val_score(EXACT, X, y, cv=3).mean() > 0.9
    pipeline = make_pipeline(StandardScaler(), clone(EXACT).set_params(backbone="random-relu"))
    search = GridSearchCV(pipeline, {"cldnetclassifier__alpha": [1.0, 1e12]}, cv=3)
    assert search.fit(X, y).best_params_ == {"cldnetclassifier__alpha": 1.0}


@pytest.mark.parametrize("classifier", [EXACT, HBO], ids=["exact", "hbo"])
def test_a_clone_is_unfitted_and_a_pickle_or_deep_copy_goes_on_like_the_original(classifier: CLDNetClassifier) -> None:
    X, y = blobs()
    original = clone(classifier).partial_fit(X[:24], y[:24])
    assert not hasattr(clone(original), "classes_")
    for twin in (pickle.loads(pickle.dumps(original)), copy.deepcopy(original)):
        assert np.array_equal(twin.decision_function(X), original.decision_function(X))
        twin.partial_fit(X[24:], y[24:])
        assert twin.classes_.tolist() == ["ant", "bee", "cat"]
        assert original.classes_.tolist() == ["ant", "bee"]
        expected = copy.deepcopy(original).partial_fit(X[24:], y[24:])
        assert np.array_equal(twin.decision_function(X), expected.decision_function(X))


def test_a_classifier_over_a_users_module_can_be_cloned_and_pickled() -> None:
    X, y = blobs()
    classifier = CLDNetClassifier(backbone=nn.Sequential(nn.Linear(3, 8), nn.ReLU()), random_state=0)
    original = clone(classifier).partial_fit(X, y)
    twin = pickle.loads(pickle.dumps(original)).partial_fit(X, y)
    assert np.array_equal(twin.decision_function(X), original.partial_fit(X, y).decision_function(X))


def test_a_pickle_made_inside_a_session_holds_none_of_its_rows() -> None:
    X, y = blobs()
    classifier = clone(EXACT).partial_fit(X, y)
    before = pickle.dumps(classifier)
    with classifier.session():
        classifier.partial_fit(X, y)
        assert len(pickle.dumps(classifier)) == len(before)
        twin = copy.deepcopy(classifier)
    twin.fit(X, y)  # no session is open in the copy
    assert twin.score(X, y) > 0.9
