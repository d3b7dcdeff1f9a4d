"""Classes joined are the model that was taught with one label; noise leaves a sound model that tells less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cldnet import CLDNetClassifier, MapTraceWarning

RANDOM = np.random.default_rng(0)
Y = np.arange(60) % 4
X = RANDOM.normal(size=(60, 5)) + 2 * Y[:, None]
NAMES = np.array(["ant", "bee", "cat", "dog"])[Y]


def make(**parameters: Any) -> CLDNetClassifier:
    return CLDNetClassifier(**{"capacity": 6, "random_state": 0, **parameters})


@pytest.mark.parametrize("gram", ["full", "diagonal"])
@pytest.mark.parametrize(("labels", "into"), [(["ant", "bee"], "insect"), (["ant"], "bee"), (["bee", "ant"], "bee")])
def test_joined_classes_are_the_model_that_was_taught_with_one_label(labels: list[str], into: str, gram: str) -> None:
    joined = make(gram=gram).fit(X, NAMES).join_classes(labels, into)
    told = make(gram=gram).fit(X, np.where(np.isin(NAMES, [*labels, into]), into, NAMES))
    assert joined.classes_.tolist() == told.classes_.tolist()
    assert np.allclose(joined.decision_function(X), told.decision_function(X), rtol=0, atol=1e-9)


def test_classes_that_were_joined_can_be_forgotten_under_their_new_name_and_taught_again() -> None:
    clf = make(backbone=make().fit(X, NAMES).feature_map_).fit(X, NAMES).join_classes(["ant"], "bee")
    clf.forget(X[NAMES == "ant"], ["bee"] * 15)
    without = make(backbone=clf.feature_map_).fit(X[NAMES != "ant"], NAMES[NAMES != "ant"])
    assert np.allclose(clf.decision_function(X), without.decision_function(X), rtol=0, atol=1e-9)
    assert clf.partial_fit(X[:4], ["ant"] * 4).classes_.tolist() == ["ant", "bee", "cat", "dog"]


def test_noise_is_that_of_moved_examples_and_leaves_other_classes_nearly_as_they_were() -> None:
    clf = make().fit(X, NAMES)
    before, sums = clf.score(X, NAMES), clf.statistics()
    clf.add_noise(3.0, ["bee"], random_state=7)
    after = clf.statistics()
    row = after.labels.by_row.tolist().index("bee")
    moved = (after.tensors["class_sums"] - sums.tensors["class_sums"]).numpy()
    assert np.count_nonzero(np.abs(moved).sum(1)) == 1
    assert moved[row].std() == pytest.approx(15 * 3.0, rel=0.1)
    assert after.rows == sums.rows
    others = NAMES != "bee"
    assert clf.score(X[others], NAMES[others]) >= before - 0.1
    assert np.isfinite(clf.decision_function(X)).all()


def test_the_second_moments_follow_the_noise() -> None:
    from cldnet.math import symmetric

    clf = make().fit(X, NAMES)
    model = clf._model
    assert model is not None
    h, sums = model.exact.represent(X_tensor()).double().numpy(), clf.statistics()
    clf.add_noise(3.0, ["bee"], random_state=7)
    after = clf.statistics()
    row = after.labels.by_row.tolist().index("bee")
    bees = NAMES == "bee"
    v = ((after.tensors["class_sums"] - sums.tensors["class_sums"])[row] / bees.sum()).numpy()
    h[bees] += v
    gram = symmetric.unpack(after.tensors["second.packed"], after.width).numpy()
    assert np.allclose(gram, h.T @ h, rtol=0, atol=1e-6 * np.abs(gram).max())


def X_tensor() -> Any:
    import torch

    return torch.from_numpy(X)


def test_noise_goes_to_revealing_classes_by_default_and_is_another_each_time() -> None:
    first, second = (make().fit(X, NAMES).partial_fit(X[:2], ["fly"] * 2) for _ in range(2))
    untouched = first.statistics()
    first.add_noise(5.0)
    second.add_noise(5.0)
    row = untouched.labels.by_row.tolist().index("fly")
    changed = (first.statistics().tensors["class_sums"] != untouched.tensors["class_sums"]).any(1).nonzero()
    assert changed.flatten().tolist() == [row]
    assert not np.array_equal(
        first.statistics().tensors["class_sums"][row], second.statistics().tensors["class_sums"][row]
    )


BAD: dict[str, tuple[Callable[[CLDNetClassifier], Any], str]] = {
    "nothing to join": (lambda clf: clf.join_classes([], "bee"), "nothing to join|y has dtype"),
    "only itself": (lambda clf: clf.join_classes(["bee"], "bee"), "nothing to join"),
    "an unknown class": (lambda clf: clf.join_classes(["fox"], "bee"), "no class 'fox'"),
    "into another type": (lambda clf: clf.join_classes(["bee"], 3), "Labels of type int cannot follow"),
    "noise of nothing": (lambda clf: clf.add_noise(0.0, ["bee"]), "deviation=0.0 should be a positive number"),
    "noise that is no number": (lambda clf: clf.add_noise(float("nan"), ["bee"]), "deviation=nan should be"),
    "no class in need": (lambda clf: clf.add_noise(1.0), "No class has few samples"),
    "noise for an unknown class": (lambda clf: clf.add_noise(1.0, ["fox"]), "no class 'fox'"),
    "the letters of a word": (
        lambda clf: clf.join_classes("ant", "bee"),
        r"should be a list of labels: write \['ant'\]",
    ),
    "noise for a word": (lambda clf: clf.add_noise(1.0, "ant"), r"should be a list of labels: write \['ant'\]"),
    "noise for a number": (lambda clf: clf.add_noise(1.0, 3), "should be a list of labels"),  # type: ignore[arg-type]
    "noise beyond all numbers": (lambda clf: clf.add_noise(1e200, ["bee"]), "sums would overflow"),
    "a seed of words": (lambda clf: clf.add_noise(1.0, ["bee"], random_state="x"), "random_state='x' should be"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_done_is_refused_and_changes_nothing(name: str) -> None:
    call, complaint = BAD[name]
    clf = make().fit(X, NAMES)
    before, labels = clf.decision_function(X), clf.audit().to_json()
    with pytest.raises(ValueError, match=complaint):
        call(clf)
    assert np.array_equal(clf.decision_function(X), before)
    assert clf.audit().to_json() == labels


def test_the_other_solver_and_sketches_say_that_they_cannot() -> None:
    hbo = CLDNetClassifier("hbo", capacity=6, embed_dim=8, epochs=1, random_state=0).fit(X, NAMES)
    with pytest.raises(ValueError, match="keeps no sums"):
        hbo.join_classes(["ant"], "bee")
    with pytest.raises(ValueError, match="Nothing can be subtracted from a sketch"):
        make(gram=5).fit(X, NAMES).add_noise(1.0, ["bee"])


def test_a_class_named_twice_is_joined_once() -> None:
    twice, once = (make().fit(X, NAMES).join_classes(labels, "bee") for labels in (["ant", "ant"], ["ant"]))
    assert np.array_equal(twice.decision_function(X), once.decision_function(X))
    assert twice.audit().to_json() == once.audit().to_json()


def test_rows_that_the_map_was_fitted_on_leave_their_trace_under_a_new_name() -> None:
    clf = make().fit(X, NAMES).join_classes(["ant"], "insect")
    with pytest.warns(MapTraceWarning, match="'insect'"):
        clf.forget(X[NAMES == "ant"][:3], ["insect"] * 3)
