"""The gate before a lesson is saved."""

from __future__ import annotations

import numpy as np
import pytest

from cldnet import CLDNetClassifier
from cldnet.estimator.gate import ClassChange, Gate

RNG = np.random.default_rng(0)
CENTERS = {"cat": (0.0, 0.0), "dog": (6.0, 0.0), "owl": (0.0, 6.0)}


def samples(*labels: str, count: int = 40, at: str | None = None) -> tuple[np.ndarray, list[str]]:
    x = [CENTERS[at or label] + RNG.normal(size=(count, 2)) for label in labels]
    return np.concatenate(x), [label for label in labels for _ in range(count)]


def test_a_lesson_that_helps_passes_and_one_with_wrong_labels_shows_whom_it_harms() -> None:
    clf = CLDNetClassifier(random_state=0).fit(*samples("cat", "dog", count=100))
    held_out = [samples("cat", count=20), samples("dog", "owl", count=20)]
    gate = Gate.of(clf, held_out)
    assert gate.samples == {"cat": 20, "dog": 20}  # owl is not known yet
    good = gate.compare(clf.partial_fit(*samples("owl", count=100)), held_out)
    assert good.drop <= 5
    assert [*good.samples] == ["cat", "dog"]
    bad = gate.compare(clf.partial_fit(*samples("owl", at="cat", count=3000)), held_out)
    assert bad.drop > 30
    assert bad.harmed[0].label == "cat"
    assert bad.harmed[0].before > bad.harmed[0].after
    before, after = bad.accuracies
    assert bad.drop == pytest.approx(100 * (before - after))


def test_harmed_classes_come_worst_first_and_those_that_gained_not_at_all() -> None:
    gate = Gate({"a": 5, "b": 5, "c": 1}, {"a": 5, "b": 5, "c": 5}, {"a": 4, "b": 1, "c": 5})
    assert gate.harmed == [ClassChange("b", 5, 5, 1), ClassChange("a", 5, 5, 4)]
    assert gate.drop == pytest.approx(100 * (11 - 10) / 15)


def test_labels_are_compared_as_text_and_unknown_or_changed_samples_are_refused() -> None:
    x, y = samples("cat", "dog")
    clf = CLDNetClassifier(random_state=0).fit(x, [1 if label == "cat" else 2 for label in y])
    named = ["1" if label == "cat" else "2" for label in y]
    assert Gate.of(clf, [(x, named)]).right == {"1": 40, "2": 40}
    with pytest.raises(ValueError, match="None of the held-out samples is of a class that the model knows"):
        Gate.of(clf, [(x, y)])
    with pytest.raises(ValueError, match="have changed during the lesson"):
        Gate.of(clf, [(x, named)]).compare(clf, [(x[:5], named[:5])])
