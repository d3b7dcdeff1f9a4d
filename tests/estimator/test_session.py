"""Data in small pieces, taken as one session."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

from cldnet import CLDNetClassifier

SOLVERS = ("exact", "hbo")
Y = np.arange(15) % 3
X = np.random.default_rng(0).normal(size=(15, 4)) + 3 * Y[:, None]


def make(solver: str, **parameters: Any) -> CLDNetClassifier:
    small: dict[str, Any] = {"alpha": 1.0} if solver == "exact" else {"embed_dim": 6, "epochs": 2}
    return CLDNetClassifier(solver, **{"capacity": 6, "batch_size": 4, "random_state": 0, **small, **parameters})


def assert_same(first: CLDNetClassifier, second: CLDNetClassifier) -> None:
    assert first._model is not None
    assert second._model is not None
    one, other = first._model.learner.state_dict(), second._model.learner.state_dict()
    assert [name for name in {*one, *other} if not torch.equal(one[name], other[name])] == []
    assert first._model.labels.to_json() == second._model.labels.to_json()
    assert np.array_equal(first.decision_function(X), second.decision_function(X))


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_session_equals_one_call_with_all_its_pieces_bit_for_bit(solver: str, begun: bool) -> None:
    whole, pieces = make(solver), make(solver)
    if begun:
        whole.partial_fit(X, Y)
        pieces.partial_fit(X, Y)
    with pieces.session():
        for part in (slice(0, 1), slice(1, 9), slice(9, 15)):
            assert pieces.partial_fit(X[part], Y[part] + 3) is pieces
    assert_same(pieces, whole.partial_fit(X, Y + 3))
    assert_same(pieces.partial_fit(X, Y), whole.partial_fit(X, Y))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_buffer_that_is_filled_anew_for_every_piece_will_do(solver: str) -> None:
    whole, pieces = make(solver), make(solver)
    inputs, labels = np.empty((5, 4)), np.empty(5, int)
    with pieces.session():
        for part in (slice(0, 5), slice(5, 10), slice(10, 15)):
            inputs[:], labels[:] = X[part], Y[part]
            pieces.partial_fit(inputs, labels)
        inputs[:], labels[:] = 0, 0
    assert_same(pieces, whole.partial_fit(X, Y))


@pytest.mark.parametrize("solver", SOLVERS)
def test_pieces_without_weights_weigh_one_a_row(solver: str) -> None:
    whole, pieces = make(solver), make(solver)
    with pieces.session():
        pieces.partial_fit(X[:5], Y[:5])
        pieces.partial_fit(X[5:], Y[5:], sample_weight=np.full(10, 2.5))
    assert_same(pieces, whole.partial_fit(X, Y, sample_weight=np.repeat([1.0, 2.5], [5, 10])))


@pytest.mark.parametrize("solver", SOLVERS)
def test_inside_a_session_the_model_before_it_answers(solver: str) -> None:
    clf = make(solver)
    with clf.session():
        clf.partial_fit(X, Y)
        with pytest.raises(NotFittedError):
            clf.predict(X)
    scores = clf.decision_function(X)
    with clf.session():
        clf.partial_fit(X, Y + 3)
        assert clf.classes_.tolist() == [0, 1, 2]
        assert np.array_equal(clf.decision_function(X), scores)
    assert clf.classes_.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_session_that_fails_changes_nothing_and_the_next_one_is_clean(
    solver: str, error: type[BaseException]
) -> None:
    clf, expected = make(solver).partial_fit(X, Y), make(solver).partial_fit(X, Y)

    def fail() -> None:
        with clf.session():
            clf.partial_fit(X, Y + 3)
            raise error

    with pytest.raises(error):
        fail()
    assert_same(clf, expected)
    with clf.session():
        clf.partial_fit(X, Y)
    assert_same(clf, expected.partial_fit(X, Y))


def test_an_empty_session_changes_nothing() -> None:
    clf, expected = make("exact").partial_fit(X, Y), make("exact").partial_fit(X, Y)
    with clf.session():
        pass
    assert_same(clf, expected)
    with make("exact").session() as fresh:
        pass
    assert not hasattr(fresh, "classes_")


def test_a_session_within_a_session_is_refused_and_so_is_fit() -> None:
    clf = make("exact")
    with clf.session():
        clf.partial_fit(X, Y)
        with pytest.raises(RuntimeError, match="A session is already open"), clf.session():
            pass
        with pytest.raises(RuntimeError, match="end it before you call fit"):
            clf.fit(X, Y)
    assert_same(clf, make("exact").partial_fit(X, Y))


BAD_PIECES: dict[str, tuple[Any, Any, str]] = {
    "NaN": (np.full((2, 4), np.nan), [0, 1], "contains NaN"),
    "other columns": (np.zeros((2, 3)), [0, 1], "X has 3 features"),
    "other labels": (np.zeros((2, 4)), ["a", "b"], "Labels of type str cannot follow labels of type int"),
    "booleans": (np.zeros((2, 4)), [True, False], "Labels of type bool cannot follow labels of type int"),
    "no room": (np.zeros((4, 4)), [10, 11, 12, 13], "The model has room for 6 classes, 3 are taken and y has 4 new"),
    "names": (pd.DataFrame(np.zeros((2, 4)), columns=list("abcd")), [0, 1], "columns have other names"),
}


@pytest.mark.parametrize("name", BAD_PIECES)
def test_a_bad_piece_of_a_first_session_is_refused_when_it_comes(name: str) -> None:
    bad_x, bad_y, complaint = BAD_PIECES[name]
    clf = make("exact")
    with clf.session():
        clf.partial_fit(X, Y)
        with pytest.raises(ValueError, match=complaint):
            clf.partial_fit(bad_x, bad_y)
    assert_same(clf, make("exact").partial_fit(X, Y))


def test_images_of_one_session_are_in_one_range() -> None:
    pictures = np.arange(15 * 6, dtype=np.uint8).reshape(15, 2, 3)
    clf = make("exact")
    with clf.session():
        clf.partial_fit(pictures, Y)
        with pytest.raises(ValueError, match="learned uint8 inputs"):
            clf.partial_fit(pictures / 255, Y)
    assert clf.predict(pictures).shape == (15,)


def test_names_of_columns_and_the_fold_of_rows_survive_a_session() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    clf = make("exact", input_shape=(2, 2))
    for _ in range(2):
        with clf.session():
            clf.partial_fit(frame[:7], Y[:7])
            clf.partial_fit(frame[7:], Y[7:])
    assert clf.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert clf.n_features_in_ == 4
    assert clf.predict(frame).shape == (15,)
