"""``backbone="auto"``: the map that is chosen from the first samples, what is said of it, and a stored solution."""

import logging

import numpy as np
import pytest

from cldnet import CLDNetClassifier
from cldnet.nets import RandomReLU


def rings(count, seed=0):
    rng = np.random.default_rng(seed)
    y, angle = rng.integers(0, 3, count), rng.uniform(0, 2 * np.pi, count)
    radius = 1 + 2 * y + rng.normal(0, 0.2, count)
    return np.c_[radius * np.cos(angle), radius * np.sin(angle)], y


def linear(count, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(count, 300))
    return X, (X[:, :20].sum(1) > 0).astype(int)


def test_rings_get_fourier_features_and_many_noisy_columns_a_linear_map():
    curved = CLDNetClassifier(random_state=0).fit(*rings(900))
    assert curved.feature_map_.kind == "random-fourier"
    assert curved.score(*rings(300, seed=1)) > 0.95
    straight = CLDNetClassifier(random_state=0).fit(*linear(800))
    assert straight.feature_map_.kind == "linear"
    forced = CLDNetClassifier(backbone="random-relu", random_state=0).fit(*linear(800))
    assert straight.score(*linear(2000, seed=1)) > forced.score(*linear(2000, seed=1))


def test_it_is_chosen_once_and_the_same_for_the_same_seed():
    X, y = rings(600)
    clf = CLDNetClassifier(random_state=0).partial_fit(X[:300], y[:300])
    chosen = clf.feature_map_.map_id
    assert clf.partial_fit(*linear_like(X)).feature_map_.map_id == chosen
    again = CLDNetClassifier(random_state=0).partial_fit(X[:300], y[:300])
    assert again.feature_map_.map_id == chosen


def linear_like(X):
    return X[:100] * 5.0, np.full(100, 9)


@pytest.mark.parametrize("verbose", [0, 1, 2])
def test_the_choice_is_said_if_asked_for(verbose, caplog):
    with caplog.at_level(logging.INFO, logger="cldnet"):
        CLDNetClassifier(random_state=0, verbose=verbose).fit(*rings(300))
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert ("feature map: random-fourier, 1000 features" in said) == (verbose > 0)
    assert ("% wrong of" in said) == (verbose > 1)


def test_a_map_that_was_chosen_is_in_the_file(tmp_path):
    X, y = linear(800)
    clf = CLDNetClassifier(random_state=0).fit(X, y)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded.backbone == "auto"
    assert loaded.feature_map_.map_id == clf.feature_map_.map_id
    assert np.array_equal(loaded.decision_function(X), clf.decision_function(X))
    assert loaded.partial_fit(X[:50] + 9, np.full(50, 2)).classes_.tolist() == [0, 1, 2]


def test_images_and_a_named_map_are_left_as_they_were():
    images = np.random.default_rng(0).normal(size=(60, 5, 5))
    assert CLDNetClassifier(random_state=0).fit(images, [0, 1] * 30).feature_map_.kind == "random-relu"
    assert CLDNetClassifier(backbone="random-relu", random_state=0).fit(*rings(60)).feature_map_.kind == "random-relu"


def test_a_single_class_may_come_first_and_the_others_are_learned():
    X, y = rings(900)
    clf = CLDNetClassifier(random_state=0)
    for label in (1, 0, 2):
        clf.partial_fit(X[y == label], y[y == label])
    assert clf.score(*rings(300, seed=1)) > 0.95


def test_an_audit_solves_a_stored_solution_again(tmp_path):
    X, y = rings(200)
    clf = CLDNetClassifier(backbone=RandomReLU((2,), 60, seed=0), random_state=0).fit(X, y)
    assert len(clf.audit().promises) == 2  # nothing was solved yet
    clf.refresh().save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    found = {promise.name: promise.holds for promise in loaded.audit().promises}
    assert found["The solution is that of the sums"] is True
    learner = loaded.model_.exact
    spoiled = learner.ridge.solution.clone()
    spoiled[0, 0] += 0.01
    learner._solved = learner._solved._replace(ridge=learner.ridge._replace(solution=spoiled))
    assert not loaded.audit().holds
