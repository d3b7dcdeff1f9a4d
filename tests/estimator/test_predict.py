"""What can be asked: probabilities that mean something, and which rows look like no known class."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from torch import nn

from cldnet import CLDNetClassifier
from cldnet.nets import RandomReLU

DIGITS, LABELS = load_digits(return_X_y=True)
KNOWN = np.isin(LABELS, [0, 1, 2, 3, 4, 6, 7])
TRAIN = np.arange(len(LABELS)) % 2 == 0


@pytest.fixture(scope="module")
def clf() -> CLDNetClassifier:
    features = RandomReLU((64,), features=300, seed=0)
    model = CLDNetClassifier(backbone=features, capacity=10, random_state=0)
    return model.fit(DIGITS[TRAIN & KNOWN], LABELS[TRAIN & KNOWN])


def entropy(probabilities: Any, classes: Any, y: Any) -> float:
    return float(-np.log(probabilities[np.arange(len(y)), np.searchsorted(classes, y)]).mean())


def test_with_more_features_than_samples_known_probabilities_are_those_of_the_sums(tmp_path: Path) -> None:
    """In whatever order samples came, merged, and from a file, for which the sums are not read."""
    features = RandomReLU((64,), features=400, seed=0)
    features.fit(torch.from_numpy(DIGITS).float())
    X, y = DIGITS[:200], LABELS[:200]
    model = CLDNetClassifier(backbone=features, random_state=0).partial_fit(X, y)
    known = model.known_probability(DIGITS[200:])
    ridge = model._usable_model().exact.ridge
    assert ridge.log_determinant / 200 > np.log(200 / ridge.freedom)  # a geometric mean is above the harmonic one
    backwards = CLDNetClassifier(backbone=features, random_state=0).partial_fit(X[::-1], y[::-1])
    parts = [CLDNetClassifier(backbone=features, random_state=0).partial_fit(X[n::2], y[n::2]) for n in (0, 1)]
    for other in (backwards, parts[0].merge(parts[1:])):
        np.testing.assert_allclose(other.known_probability(DIGITS[200:]), known, rtol=1e-6, atol=1e-9)
    model.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.known_probability(DIGITS[200:]), known)
    learner = loaded._usable_model().exact
    state = learner.solution_state()
    learner.load_solution({**state, "numbers": state["numbers"][:6]})  # as in files that lack the determinant
    assert (loaded.known_probability(DIGITS[200:]) < 0.05).mean() >= (known < 0.05).mean()
    for spoiled in (state["numbers"][:5], -state["numbers"]):
        with pytest.raises(ValueError, match="its solution"):
            learner.load_solution({**state, "numbers": spoiled})


def test_probabilities_of_rows_not_learned_are_neither_bold_nor_shy(clf: CLDNetClassifier) -> None:
    X, y = DIGITS[~TRAIN & KNOWN], LABELS[~TRAIN & KNOWN]
    probabilities, scores = clf.predict_proba(X), clf.decision_function(X)
    assert np.array_equal(probabilities.argmax(1), scores.argmax(1))
    ours = entropy(probabilities, clf.classes_, y)

    def at(temperature: float) -> float:
        weights = np.exp((scores - scores.max(1, keepdims=True)) / temperature)
        return entropy(weights / weights.sum(1, keepdims=True), clf.classes_, y)

    best = min(at(temperature) for temperature in np.geomspace(0.3, 30, 40))
    assert ours < best + 0.03
    assert at(0.3) > best + 0.1  # so a temperature is needed


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_about_the_share_asked_for_of_known_rows_is_turned_away_and_more_of_unknown_ones(
    clf: CLDNetClassifier, share: float
) -> None:
    known, unknown = DIGITS[~TRAIN & KNOWN], DIGITS[~KNOWN]
    turned_away = np.ma.getmaskarray(clf.predict(known, reject=share)).mean()
    assert share / 4 < turned_away < 2.5 * share
    assert np.ma.getmaskarray(clf.predict(unknown, reject=share)).mean() > 3 * turned_away


def test_what_is_not_masked_is_the_label_and_what_is_masked_is_improbable(clf: CLDNetClassifier) -> None:
    X = DIGITS[~TRAIN]
    answers, known = clf.predict(X, reject=0.2), clf.known_probability(X)
    assert isinstance(answers, np.ma.MaskedArray)
    assert answers.dtype == clf.classes_.dtype
    assert np.array_equal(answers.data, clf.predict(X))
    assert np.array_equal(answers.mask, known < 0.2)
    assert known.shape == (len(X),)
    assert ((known >= 0) & (known <= 1)).all()


def test_a_new_class_is_noticed_taught_and_then_known() -> None:
    random = np.random.default_rng(0)
    y = np.repeat(["ant", "bee", "cat"], 200)
    X = random.normal(size=(600, 4)) + 6 * np.eye(4)[:3].repeat(200, axis=0)
    features = RandomReLU((4,), features=100, seed=0)
    model = CLDNetClassifier(backbone=features, capacity=4).fit(X[:400], y[:400])
    assert model.predict(X[400:], reject=0.05).mask.mean() > 0.8
    model.partial_fit(X[400:], y[400:])
    assert model.predict(X, reject=0.05).mask.mean() < 0.15
    assert model.score(X, y) > 0.95


def test_a_forgotten_class_is_unknown_again(tmp_path: Path) -> None:
    X, y = DIGITS[TRAIN], LABELS[TRAIN]
    features = RandomReLU((64,), features=200, seed=0)
    features.fit(torch.from_numpy(DIGITS[:100]))
    model = CLDNetClassifier(backbone=features, capacity=10).fit(X, y)
    threes = DIGITS[~TRAIN & (LABELS == 3)]
    before = model.known_probability(threes).mean()
    model.forget(X[y == 3], y[y == 3])
    never = CLDNetClassifier(backbone=features, capacity=10).fit(X[y != 3], y[y != 3])
    model.save(tmp_path / "model")
    for other in (model, CLDNetClassifier.load(tmp_path / "model")):
        np.testing.assert_allclose(other.known_probability(threes), never.known_probability(threes), atol=1e-6)
        np.testing.assert_allclose(other.predict_proba(threes), never.predict_proba(threes), atol=1e-6)
    assert model.known_probability(threes).mean() < before / 2


def test_merged_models_doubt_as_one_that_learned_everything() -> None:
    X, y = DIGITS[TRAIN & KNOWN], LABELS[TRAIN & KNOWN]
    features = RandomReLU((64,), features=200, seed=0)
    features.fit(torch.from_numpy(DIGITS[:100]))
    joint = CLDNetClassifier(backbone=features).fit(X, y)
    halves = [CLDNetClassifier(backbone=features).fit(X[y % 2 == odd], y[y % 2 == odd]) for odd in (1, 0)]
    merged = halves[0].merge(halves[1:])
    np.testing.assert_allclose(merged.known_probability(DIGITS), joint.known_probability(DIGITS), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reject", [0, 1, 0.0, 1.0, -0.1, 2, float("nan"), True, "auto", [0.1]])
def test_a_share_that_is_none_is_refused(clf: CLDNetClassifier, reject: Any) -> None:
    with pytest.raises(ValueError, match=r"reject=.* should be a share of known samples, between 0 and 1"):
        clf.predict(DIGITS[:2], reject=reject)


def test_only_the_exact_solver_can_tell() -> None:
    net = CLDNetClassifier("hbo", nn.Linear(2, 3), capacity=2, embed_dim=4, epochs=1).fit(np.eye(2), [0, 1])
    asks: list[Callable[[], Any]] = [
        lambda: net.predict(np.eye(2), reject=0.1),
        lambda: net.known_probability(np.eye(2)),
    ]
    for ask in asks:
        with pytest.raises(ValueError, match=r"detect unknown classes: make the model with solver='exact'"):
            ask()
    with pytest.raises(NotFittedError):
        CLDNetClassifier().predict(np.eye(2), reject=0.1)


@pytest.mark.parametrize("gram", ["diagonal", 20])
def test_less_than_all_moments_are_enough_to_tell(gram: Any) -> None:
    features = RandomReLU((64,), features=100, seed=0)
    model = CLDNetClassifier(backbone=features, capacity=10, gram=gram).fit(DIGITS[TRAIN], LABELS[TRAIN])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known, probabilities = model.known_probability(DIGITS), model.predict_proba(DIGITS)
    assert np.isfinite(known).all()
    assert np.allclose(probabilities.sum(1), 1)


def test_one_class_and_few_rows_can_be_judged() -> None:
    features = RandomReLU((2,), features=10, seed=0)
    model = CLDNetClassifier(backbone=features, capacity=4).fit([[0.0, 1.0], [1.0, 0.0]], ["a", "a"])
    assert model.predict([[0.5, 0.5]], reject=0.01).tolist() == ["a"]
    assert model.predict_proba([[0.5, 0.5]]).tolist() == [[1.0]]


def test_four_threads_get_the_same_answers(clf: CLDNetClassifier) -> None:
    fresh = CLDNetClassifier.__new__(CLDNetClassifier)
    fresh.__setstate__(clf.__getstate__())
    expected = clf.known_probability(DIGITS[:50])
    with ThreadPoolExecutor(4) as pool:
        for known in pool.map(lambda _: fresh.known_probability(DIGITS[:50]), range(8)):
            np.testing.assert_allclose(known, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("seed", ["x", -1, 1.5, None, 2**80])
def test_an_audit_takes_a_seed_and_nothing_else(clf: CLDNetClassifier, seed: Any) -> None:
    with pytest.raises(ValueError, match=r"random_state=.* should be a whole number of at (least 0|most)"):
        clf.audit(DIGITS[:20], rows=5, random_state=seed)
