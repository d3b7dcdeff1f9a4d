"""A model gets room for more classes, and what it has learned stays as it is, bit for bit."""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

import cldnet
from cldnet import CLDNetClassifier, MapTraceWarning
from cldnet.nets import RandomReLU

CENTRES = 5 * np.random.default_rng(7).normal(size=(12, 8))
SHARED = RandomReLU((8,), features=30, seed=0)
SHARED.fit(torch.from_numpy(CENTRES))
SOLVERS: dict[str, dict[str, Any]] = {
    "exact": {"backbone": SHARED},
    "hbo": {"solver": "hbo", "embed_dim": 16, "epochs": 3},
    "hbo, crowded": {"solver": "hbo", "embed_dim": 3, "epochs": 3},
}


def make(solver: str, **parameters: Any) -> CLDNetClassifier:
    return CLDNetClassifier(**{"capacity": 4, "random_state": 0, **SOLVERS[solver], **parameters})


def rows(*classes: int, count: int = 8) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    noise = [np.random.default_rng(number).normal(size=(count, 8)) for number in classes]
    y = np.repeat(classes, count)
    return CENTRES[y] + 0.1 * np.concatenate(noise), y


def extended(clf: CLDNetClassifier, capacity: int) -> CLDNetClassifier:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="With room for .* two class vectors have a cosine")
        return clf.extend(capacity)


def state_of(clf: CLDNetClassifier) -> dict[str, Any]:
    model = clf._fitted()
    tensors = {name: tensor.tolist() for name, tensor in model.learner.state_dict().items()}
    return {**tensors, "labels": model.labels.to_json(), "room": (model.parameters.capacity, clf.capacity)}


@pytest.mark.parametrize("solver", SOLVERS)
def test_scores_are_the_same_bits_after_it_and_a_fifth_class_is_learned(solver: str, tmp_path: Path) -> None:
    clf = make(solver).partial_fit(*rows(0, 1, 2)).partial_fit(*rows(3))
    X, _ = rows(*range(5))
    before = clf.decision_function(X)
    with pytest.raises(
        ValueError, match=r"room for 4 classes, 4 are taken and y has 1 new ones: clf.extend\(8\) makes room"
    ):
        clf.partial_fit(*rows(4))
    assert extended(clf, 10) is clf
    assert clf.get_params()["capacity"] == 10
    np.testing.assert_array_equal(clf.decision_function(X), before)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.decision_function(X), before)
    assert loaded.capacity == 10
    for one in (clf, loaded):
        one.partial_fit(*rows(4))
        with one.session():
            one.partial_fit(*rows(5))
            one.partial_fit(*rows(6))
        assert one.classes_.tolist() == list(range(7))
    assert state_of(loaded) == state_of(clf)
    known = (
        [4] if solver == "hbo, crowded" else range(7)
    )  # three dimensions are not enough to learn seven classes in turn
    X, y = rows(*known)
    assert (clf.predict(X) == y).mean() > (0.0 if solver == "hbo, crowded" else 0.9)


def test_the_exact_solver_is_what_it_would_have_been_with_the_room_from_the_start() -> None:
    late, early = make("exact").partial_fit(*rows(0, 1)), make("exact", capacity=9).partial_fit(*rows(0, 1))
    late.extend(6).partial_fit(*rows(2, 3, 4, 5))
    early.partial_fit(*rows(2, 3, 4, 5))
    late.extend(9)
    assert state_of(late)["class_sums"] == state_of(early)["class_sums"]
    np.testing.assert_array_equal(late.predict_proba(CENTRES), early.predict_proba(CENTRES))
    assert late.largest_cosine_ == 0.0


def test_models_are_merged_and_rows_forgotten_after_it() -> None:
    here, there = make("exact").partial_fit(*rows(0, 1, 2)), make("exact").partial_fit(*rows(3, 4, 5))
    with pytest.raises(ValueError, match=r"clf.extend\(8\)"):
        here.merge([there])
    assert here.extend(6).merge([there]).classes_.tolist() == list(range(6))
    assert cldnet.merge([here, make("exact").partial_fit(*rows(0))]).capacity == 6
    here.forget(*rows(4))
    assert here.classes_.tolist() == [0, 1, 2, 3, 5]
    assert here.forget_class(5).extend(7).partial_fit(*rows(7, 4)).classes_.tolist() == [0, 1, 2, 3, 4, 7]


@pytest.mark.parametrize(("embed_dim", "capacity"), [(16, 16), (16, 17), (16, 40), (6, 30)])
def test_the_table_keeps_its_rows_and_the_largest_cosine_is_told(
    embed_dim: int, capacity: int, caplog: pytest.LogCaptureFixture
) -> None:
    clf = make("hbo", embed_dim=embed_dim).partial_fit(*rows(0, 1))
    table = clf._fitted().learner.basis
    with caplog.at_level(logging.INFO, "cldnet"):
        extended(clf, capacity)
    longer = clf._fitted().learner.basis
    assert longer.shape == (capacity, embed_dim)
    assert torch.equal(longer[: len(table)], table)
    cosines = (longer.double() @ longer.double().T).fill_diagonal_(0).abs()
    assert clf.largest_cosine_ == pytest.approx(float(cosines.max()), abs=1e-6)
    assert (clf.largest_cosine_ < 1e-6) == (capacity <= embed_dim)
    assert (
        f"room for {capacity} classes; largest |cosine| between two class vectors {clf.largest_cosine_:.6f}"
        in caplog.text
    )


def test_a_cosine_beyond_the_bound_is_warned_of_and_an_error_of_it_leaves_the_model() -> None:
    clf = make("hbo").partial_fit(*rows(0, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.extend(16)
        before = state_of(clf)
        with pytest.raises(
            UserWarning, match=r"room for 17 classes two class vectors have a cosine of 0.25.*made for 0.04"
        ):
            clf.extend(17)
    assert state_of(clf) == before
    with pytest.warns(UserWarning, match="two class vectors have a cosine"):
        clf.extend(17)


@pytest.mark.parametrize(
    ("capacity", "words"),
    [
        (3, "capacity=3 is below the present capacity of 4"),
        (0, "capacity=0 should be a whole number"),
        (4.5, "capacity=4.5 should be a whole number"),
        (True, "capacity=True should be a whole number"),
        (10**15, "capacity=1000000000000000 takes .* GB, and one table may take .* GB"),
    ],
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_what_cannot_be_is_refused_and_leaves_the_model(solver: str, capacity: Any, words: str) -> None:
    clf = make(solver).partial_fit(*rows(0, 1))
    before = state_of(clf)
    with pytest.raises(ValueError, match=words):
        clf.extend(capacity)
    assert state_of(clf) == before


def test_a_model_without_classes_or_with_an_open_session_is_not_extended() -> None:
    clf = make("exact")
    with pytest.raises(NotFittedError, match=r"call set_params\(capacity=9\) instead"):
        clf.extend(9)
    assert clf.capacity == 4
    with clf.session():
        clf.partial_fit(*rows(0, 1))
        with pytest.raises(RuntimeError, match="end it before you call extend"):
            clf.extend(9)
    assert clf.classes_.tolist() == [0, 1]


def test_a_parameter_that_was_changed_instead_is_refused_with_the_way_to_do_it() -> None:
    clf = make("exact").partial_fit(*rows(0, 1)).set_params(capacity=9)
    with pytest.raises(
        ValueError, match=r"capacity was 4 .* is 9 now. Set it back and call clf.extend\(9\), which keeps"
    ):
        clf.partial_fit(*rows(2))
    with pytest.raises(ValueError, match=r"capacity was 4 .* is 2 now. Set it back, or call fit"):
        clf.set_params(capacity=2).partial_fit(*rows(2))


def test_the_same_capacity_changes_nothing_and_a_copy_stays_as_it_was() -> None:
    for solver in SOLVERS:
        clf = make(solver).partial_fit(*rows(0, 1))
        before = state_of(clf)
        other = copy.deepcopy(clf)
        assert state_of(clf.extend(4)) == before
        extended(clf, np.int64(6))  # type: ignore[arg-type]
        assert type(clf.capacity) is int
        assert state_of(other) == before


def test_rows_of_the_first_task_are_still_known_for_the_maps_trace() -> None:
    clf = make("exact", backbone="auto").partial_fit(*rows(0, 1)).extend(8).partial_fit(*rows(2))
    with pytest.warns(MapTraceWarning):
        clf.forget(*rows(0))


@pytest.mark.parametrize(("embed_dim", "capacity", "room"), [(200, 10, 200), (100, 10, 100), (50, 10, 40), (8, 5, 20)])
def test_no_size_of_the_table_changes_how_a_score_rounds(embed_dim: int, capacity: int, room: int) -> None:
    clf = make("hbo", embed_dim=embed_dim, capacity=capacity).partial_fit(*rows(0, 1, 2))
    X, _ = rows(*range(5), count=20)
    before = [clf.decision_function(X[:size]) for size in (1, 3, 7, 16, 33, 64, 100)]
    extended(clf, room)
    for scores in before:
        np.testing.assert_array_equal(clf.decision_function(X[: len(scores)]), scores)
