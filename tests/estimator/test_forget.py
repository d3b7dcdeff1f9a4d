"""Rows that are handed back are gone, exactly; classes leave and come back; what fails leaves no trace."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from torch import nn

from cldnet import CLDNetClassifier, MapTraceWarning
from cldnet.nets import RandomReLU

DIGITS, LABELS = load_digits(return_X_y=True)
CENTRES = 5 * np.random.default_rng(7).normal(size=(6, 4))


@cache
def shared_map(features: int = 40) -> RandomReLU:
    """A map that was fitted on data of nobody's."""
    fitted = RandomReLU((4,), features=features, seed=0)
    fitted.fit(torch.from_numpy(CENTRES))
    return fitted


def make(**parameters: Any) -> CLDNetClassifier:
    return CLDNetClassifier(**{"backbone": shared_map(), "capacity": 8, "random_state": 0, **parameters})


def rows(*classes: int, count: int = 10, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng([seed, *classes])
    y = random.permutation(np.repeat(classes, count))
    return CENTRES[y] + random.normal(size=(len(y), 4)), y


def state(clf: CLDNetClassifier) -> dict[str, torch.Tensor]:
    assert clf._model is not None
    tensors = {name: tensor.clone() for name, tensor in clf._model.learner.state_dict().items()}
    return {name: tensor for name, tensor in tensors.items() if name not in ("counters", "random")}


def assert_same_sums(first: CLDNetClassifier, second: CLDNetClassifier) -> None:
    one, other = first.statistics(), second.statistics()
    for name in ("rows", *(name for name in one.tensors if name.startswith("second."))):
        assert torch.equal(one.tensors[name], other.tensors[name]), name
    for name in ("class_sums", "class_weights"):
        own, theirs = (stats.tensors[name][stats.labels.columns] for stats in (one, other))
        assert torch.equal(own, theirs), name
    assert first.classes_.tolist() == second.classes_.tolist()


def stays_as_it_was(clf: CLDNetClassifier, call: Callable[[], Any], match: str, error: type[Exception]) -> None:
    before, model = state(clf), clf._model
    assert model is not None
    labels = model.labels.to_json()
    with pytest.raises(error, match=match):
        call()
    assert clf._model is model
    assert clf._model.labels.to_json() == labels
    assert [name for name, tensor in state(clf).items() if not torch.equal(tensor, before[name])] == []


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ["gcv", 10.0])
def test_a_thousand_rows_forgotten_equal_a_thousand_rows_never_seen(alpha: Any, tmp_path: Path) -> None:
    digits = RandomReLU((64,), features=300, seed=0)
    digits.fit(torch.from_numpy(DIGITS[:100]))
    gone = np.zeros(len(LABELS), dtype=bool)
    gone[np.random.default_rng(0).choice(len(LABELS), 1000, replace=False)] = True
    clf = CLDNetClassifier(backbone=digits, capacity=10, alpha=alpha, dtype="float64")
    for task in range(5):
        now = task == LABELS // 2
        clf.partial_fit(DIGITS[now], LABELS[now])
    assert clf.forget(DIGITS[gone], LABELS[gone]) is clf
    never = CLDNetClassifier(backbone=digits, capacity=10, alpha=alpha, dtype="float64")
    never.fit(DIGITS[~gone], LABELS[~gone])
    assert_same_sums(clf, never)
    clf.save(tmp_path / "forgotten")
    for model in (clf, CLDNetClassifier.load(tmp_path / "forgotten")):
        scores = model.decision_function(DIGITS)
        assert np.abs(scores - never.decision_function(DIGITS)).max() < 1e-6
    assert clf.score(DIGITS[gone], LABELS[gone]) > 0.85


@settings(deadline=None, max_examples=15)
@given(st.lists(st.booleans(), min_size=40, max_size=40), st.integers(1, 40))
def test_whatever_rows_are_forgotten_in_whatever_pieces_no_trace_is_left(gone: list[bool], size: int) -> None:
    X, y = rows(0, 1, 2, 3)
    out = np.flatnonzero(gone)
    clf = make().partial_fit(*rows(4)).partial_fit(X, y)
    for first in range(0, len(out), size):
        part = out[first : first + size]
        clf.forget(X[part], y[part])
    kept = np.setdiff1d(np.arange(40), out)
    never = make().partial_fit(*rows(4))
    if len(kept):
        never.partial_fit(X[kept], y[kept])
    assert_same_sums(clf, never)
    assert clf.classes_.tolist() == sorted({4, *y[kept].tolist()})


def test_rows_are_forgotten_with_the_weight_that_they_had() -> None:
    X, y = rows(0, 1, 2)
    weight = np.random.default_rng(1).integers(1, 5, len(y)) / 4
    clf = make().fit(X, y, sample_weight=weight)
    clf.forget(X[:12], y[:12], sample_weight=weight[:12])
    never = make().fit(X[12:], y[12:], sample_weight=weight[12:])
    np.testing.assert_allclose(clf.decision_function(X), never.decision_function(X), rtol=0, atol=1e-6)


def test_a_part_of_a_rows_weight_can_be_forgotten() -> None:
    X, y = rows(0, 1)
    clf = make().fit(X, y, sample_weight=np.full(len(y), 3.0)).forget(X, y, sample_weight=np.full(len(y), 2.0))
    assert_same_sums(clf, make().fit(X, y))


@pytest.mark.parametrize("make_array", [list, torch.from_numpy, pd.DataFrame])
def test_rows_come_back_in_any_make_of_array(make_array: Callable[[Any], Any]) -> None:
    X, y = rows(0, 1)
    clf = make().fit(X, y).forget(make_array(X[:5]), y[:5].tolist())
    assert_same_sums(clf, make().fit(X[5:], y[5:]))


def test_features_that_are_no_whole_numbers_are_forgotten_to_rounding() -> None:
    class Waves(RandomReLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(super().forward(x).double() / 20)

    waves = Waves((4,), features=30, seed=0)
    waves.fit(torch.from_numpy(CENTRES))
    X, y = rows(0, 1, 2, count=30)
    clf = make(backbone=waves, dtype="float64").fit(X, y).forget(X[:40], y[:40])
    never = make(backbone=waves, dtype="float64").fit(X[40:], y[40:])
    np.testing.assert_allclose(clf.decision_function(X), never.decision_function(X), rtol=0, atol=1e-6)


# -- classes that leave ------------------------------------------------------------------------------------------------


def test_a_class_without_rows_leaves_and_can_be_taught_again(tmp_path: Path) -> None:
    X, y = rows(0, 1, 2)
    clf = make().fit(X, y).forget(X[y == 1], y[y == 1])
    assert clf.classes_.tolist() == [0, 2]
    assert clf.predict_proba(X).shape == (30, 2)
    assert clf.decision_function(X).shape == (30,)
    assert set(clf.predict(X).tolist()) == {0, 2}
    clf.save(tmp_path / "model")
    clf = CLDNetClassifier.load(tmp_path / "model")
    assert clf.classes_.tolist() == [0, 2]
    clf.partial_fit(X[y == 1], y[y == 1])
    assert_same_sums(clf, make().fit(X, y))
    assert np.array_equal(clf.decision_function(X), make().fit(X, y).decision_function(X))  # the same row, too


def test_a_class_taught_twice_half_each_time_equals_once_whole() -> None:
    X, y = rows(0, 1, 2)
    half = np.arange(len(y)) % 2 == 0
    twice = make().partial_fit(X[half], y[half]).partial_fit(X[~half], y[~half])
    assert_same_sums(twice, make().fit(X, y))


def test_weights_that_are_no_whole_numbers_leave_no_remains_of_a_class() -> None:
    X, y = rows(0, 1)
    weight = np.full(len(y), 0.1)
    clf = make().partial_fit(X, y, sample_weight=weight)
    order = np.random.default_rng(0).permutation(np.flatnonzero(y == 0))
    for part in (order[:3], order[3:]):
        clf.forget(X[part], y[part], sample_weight=weight[part])
    assert clf.classes_.tolist() == [1]
    with pytest.raises(ValueError, match="There is no class 0"):
        clf.forget(X[order[:1]], [0])


def test_a_model_may_forget_everything_and_begin_again() -> None:
    X, y = rows(0, 1)
    clf = make().fit(X, y).forget(X, y)
    assert clf.classes_.tolist() == []
    for ask in (clf.predict, clf.predict_proba, clf.decision_function, clf.known_probability):
        with pytest.raises(NotFittedError, match="has forgotten all its classes"):
            ask(X)
    assert_same_sums(clf.partial_fit(*rows(2, 3)), make().fit(*rows(2, 3)))


def test_a_class_is_let_go_without_its_rows_and_the_others_keep_their_sums(tmp_path: Path) -> None:
    X, y = rows(0, 1, 2)
    clf = make().fit(X, y)
    before = clf.statistics()
    assert clf.forget_class(1) is clf
    clf.save(tmp_path / "model")
    for model in (clf, CLDNetClassifier.load(tmp_path / "model")):
        assert model.classes_.tolist() == [0, 2]
        assert set(model.predict(X).tolist()) == {0, 2}
        after = model.statistics()
        assert torch.equal(after.tensors["second.packed"], before.tensors["second.packed"])  # the trace that stays
        assert after.rows == before.rows
        others = before.labels.rows([0, 2])
        assert torch.equal(after.tensors["class_sums"][after.labels.rows([0, 2])], before.tensors["class_sums"][others])
    clf.partial_fit(*rows(1))
    assert clf.classes_.tolist() == [0, 1, 2]
    assert clf.score(X, y) > 0.8


@pytest.mark.parametrize("gram", ["diagonal", 5])
def test_a_class_can_be_let_go_of_whatever_is_kept_of_the_moments_but_no_rows(gram: Any) -> None:
    X, y = rows(0, 1, 2)
    clf = make(gram=gram).fit(X, y)
    assert clf.score(X, y) > 0.6
    if gram == 5:
        stays_as_it_was(clf, lambda: clf.forget(X, y), "gram='full'", ValueError)
    assert clf.forget_class(0).classes_.tolist() == [1, 2]


# -- what is refused ---------------------------------------------------------------------------------------------------


X, Y = rows(0, 1, 2)
BAD_CALLS: dict[str, tuple[Callable[[CLDNetClassifier], Any], str]] = {
    "a label never learned": (lambda clf: clf.forget(X, Y + 1), "There is no class 3: 0, 1, 2 are known"),
    "labels of another type": (lambda clf: clf.forget(X, Y.astype(str)), "Labels of type str cannot follow"),
    "rows never learned": (lambda clf: clf.forget(X[Y == 0] + 1, Y[Y == 0]), "These samples were not learned"),
    "rows twice": (lambda clf: clf.forget(np.vstack([X, X]), [*Y, *Y]), "are all passed more than once"),
    "swapped labels": (lambda clf: clf.forget(X, (Y + 1) % 3), "These samples were not learned"),
    "too much weight": (lambda clf: clf.forget(X[:1], Y[:1], [20.0]), "These samples were not learned"),
    "NaN": (lambda clf: clf.forget(np.full((1, 4), np.nan), [0]), "contains NaN"),
    "other columns": (lambda clf: clf.forget(X[:, :3], Y), "X has 3 features"),
    "too few labels": (lambda clf: clf.forget(X, Y[:3]), "X has 30 samples and y has 3 labels"),
    "no labels": (lambda clf: clf.forget(X, None), "requires y"),
    "no rows": (lambda clf: clf.forget(X[:0], Y[:0]), "0 sample"),
    "weights of nothing": (lambda clf: clf.forget(X, Y, np.zeros(30)), "zero"),
    "a class never learned": (lambda clf: clf.forget_class(7), "There is no class 7"),
    "a class of another type": (lambda clf: clf.forget_class("1"), "Labels of type str cannot follow"),
    "no class": (lambda clf: clf.forget_class(None), "None or NaN"),
}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            lambda X, y: (X[:10], (y[:10] + 1) % 10),
            "features lie between 0 and 127, and the mean of class .* would not",
        ),
        (lambda X, y: (np.vstack([X[:100], X[:99]]), [*y[:100], *y[:99]]), "features lie between 0 and 127"),
        (lambda X, y: (16 - X[:10], y[:10]), "features lie between 0 and 127"),
        (lambda X, y: (0.9 * X[:5], y[:5]), "scatter within classes would no longer be positive semi-definite"),
        (
            lambda X, y: (np.vstack([X, X[1:]]), [*y, *y[1:]]),
            "class .* would be left with a negative number of samples",
        ),
        (
            lambda X, y: (X[y != 3][: np.sum(y == 3)], np.full(np.sum(y == 3), 3)),
            "class 3 would be left with no samples, but",
        ),
        (lambda X, y: (X[:5], y[:5], np.full(5, 0.5)), "class .* was learned without weights"),
        (lambda X, y: (X[:5], y[:5], np.full(5, 2.0)), "class .* was learned without weights"),
    ],
    ids=["labels", "twice", "negatives", "dimmed", "all twice", "a class by others' rows", "half", "double"],
)
def test_forgetting_digits_that_were_not_learned_is_refused_with_the_reason(wrong: Any, reason: str) -> None:
    clf = _digits()
    stays_as_it_was(clf, lambda: clf.forget(*wrong(DIGITS[:1400], LABELS[:1400])), reason, ValueError)


@cache
def _digits() -> CLDNetClassifier:
    digits = RandomReLU((64,), features=1000, seed=0)
    digits.fit(torch.from_numpy(DIGITS[1400:]))
    return CLDNetClassifier(backbone=digits, capacity=10, random_state=0).fit(DIGITS[:1400], LABELS[:1400])


def test_rows_that_the_remaining_model_cannot_have_missed_are_refused() -> None:
    """Many rows, few features: every sum that would be left is possible, but one foreign row would ruin the model."""
    random = np.random.default_rng(0)
    X, y = random.normal(size=(3000, 4)) * [1, 1, 1, 0.02], np.arange(3000) % 3
    X[:, 0] += 2 * y
    shared = RandomReLU((4,), features=30, seed=0)
    shared.fit(torch.from_numpy(X) * torch.tensor([1, 1, 1, 50.0]))
    clf = make(backbone=shared).fit(X, y)
    outlier = np.array([[0.0, 0.0, 0.0, 1.0]])
    before = clf.score(X, y)
    for strength in (1.4, 1.6, 1.7, 2.0):
        with contextlib.suppress(ValueError):
            work = copy.deepcopy(clf).forget(strength * outlier, [0])
            assert work.score(X, y) > before - 0.02, strength
    with pytest.raises(ValueError, match="sample 0 would be predicted worse than any sample that was learned"):
        clf.forget(1.8 * outlier, [0])
    learned = make(backbone=shared).fit(np.vstack([X, outlier]), [*y, 0]).forget(outlier, [0])
    assert_same_sums(learned, clf)  # an outlier that was learned can be forgotten


def test_rows_are_forgotten_once_unless_they_were_learned_twice(tmp_path: Path) -> None:
    X, y = rows(0, 1, 2, count=300)  # so many that sums cannot tell
    clf = make().fit(X, y).forget(X[:12], y[:12])
    clf.save(tmp_path / "model")
    for model in (clf, CLDNetClassifier.load(tmp_path / "model")):
        order = np.random.default_rng(0).permutation(12)
        stays_as_it_was(model, partial(model.forget, X[order], y[order]), "were forgotten before", ValueError)
    both = np.vstack([X[20:40]] * 2), np.tile(y[20:40], 2)
    stays_as_it_was(clf, lambda: clf.forget(*both), "are all passed more than once", ValueError)
    twice = make().fit(X, y).partial_fit(X, y).forget(*both, allow_duplicates=True)
    twice.forget(X[:12], y[:12]).forget(X[:12], y[:12], allow_duplicates=True)
    assert twice.statistics().rows == 2 * 900 - 2 * 20 - 2 * 12


def test_mislabelled_rows_can_be_forgotten() -> None:
    wrong = np.arange(1400) % 50 == 0
    y = np.where(wrong, (LABELS[:1400] + 1) % 10, LABELS[:1400])
    clf = CLDNetClassifier(backbone=_digits().feature_map_, capacity=10).fit(DIGITS[:1400], y)
    clf.forget(DIGITS[:1400][wrong], y[wrong])
    never = CLDNetClassifier(backbone=_digits().feature_map_, capacity=10).fit(DIGITS[:1400][~wrong], y[~wrong])
    assert_same_sums(clf, never)


def test_features_in_limits_of_a_users_own_are_not_held_to_ours() -> None:
    class Signed(RandomReLU):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) - 64

    signed = Signed((4,), features=30, seed=0)
    signed.fit(torch.from_numpy(CENTRES))
    X, y = rows(0, 1, 2)
    assert_same_sums(make(backbone=signed).fit(X, y).forget(X[:9], y[:9]), make(backbone=signed).fit(X[9:], y[9:]))


# -- receipts ----------------------------------------------------------------------------------------------------------


def test_receipts_refuse_every_row_that_was_not_learned(tmp_path: Path) -> None:
    X, y = rows(0, 1, 2, count=200)
    clf = make(receipts=True).partial_fit(X[:300], y[:300]).partial_fit(X[300:], y[300:])
    clf.save(tmp_path / "model")
    for model in (clf, CLDNetClassifier.load(tmp_path / "model")):
        for call in ((X[:1], (y[:1] + 1) % 3), (X[:1] + 1e-6, y[:1]), (X[:1], y[:1], [0.5]), (X[[5, 5]], y[[5, 5]])):
            stays_as_it_was(model, partial(model.forget, *call), "1 of . samples have no receipt", ValueError)
        model.forget(X[290:310].tolist(), y[290:310])
        again = partial(model.forget, X[309:311], y[309:311])
        stays_as_it_was(model, again, r"1 of 2 samples .* is sample 0", ValueError)
        model.partial_fit(X[290:310], y[290:310]).forget(torch.from_numpy(X[309:311]).float(), y[309:311])


def test_receipts_are_counted_and_named_and_off_by_default(tmp_path: Path) -> None:
    X, y = rows(0, 1)
    assert "receipts" not in make().fit(X, y).footprint().bytes
    clf = make(receipts=True).fit(X, y)
    assert clf.footprint().bytes["receipts"] == 16 * len(y)
    assert "320 bytes of receipts" in str(clf.audit())
    assert "receipts" not in str(make().fit(X, y).audit())
    clf.forget(X[:5], y[:5])
    assert clf.footprint().bytes["receipts"] == 16 * 15
    clf.save(tmp_path / "with")
    make().fit(X, y).save(tmp_path / "without")
    assert CLDNetClassifier.load(tmp_path / "with").get_params()["receipts"] is True
    contents = (tmp_path / "with").read_bytes()
    twin = make(receipts=True).fit(X, y).forget(X[:5], y[:5])
    twin.save(tmp_path / "twin")
    assert (tmp_path / "twin").read_bytes() != contents  # another salt: digests of two models cannot be compared


def test_receipts_follow_merged_joined_and_dropped_classes() -> None:
    here, there, more, other = rows(0, 1), rows(1, 2, seed=1), rows(3), make().fit(*rows(4))
    clf = make(receipts=True).fit(*here).merge([make(receipts=True).fit(*there)]).partial_fit(*more)
    clf.forget(there[0][:3], there[1][:3]).forget(here[0][:3], here[1][:3])
    clf.join_classes([0, 1], into=5)
    stays_as_it_was(clf, lambda: clf.forget(here[0][3:4], here[1][3:4]), "There is no class", ValueError)
    first = next(row for row in range(3, 20) if here[1][row] == 0)
    clf.forget(here[0][[first]], [5]).forget_class(3)
    assert clf.footprint().bytes["receipts"] == 16 * (50 - 7 - 10)
    for sums in (other, other.statistics()):
        stays_as_it_was(clf, partial(clf.merge, [sums]), "keeps receipts and the other", ValueError)
    assert other.merge([clf])._fitted().receipts is None


def test_receipts_are_for_models_that_can_forget() -> None:
    with pytest.raises(ValueError, match="receipts=True should be False, or True for solver='exact'"):
        make(solver="hbo", receipts=True).fit(X, Y)
    clf = make().fit(X, Y).set_params(receipts=True)
    with pytest.raises(ValueError, match="receipts was False when the model was made and is True now"):
        clf.partial_fit(X, Y)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_what_was_not_learned_is_refused_and_the_model_stays_bit_for_bit(name: str) -> None:
    call, complaint = BAD_CALLS[name]
    clf = make(capacity=3).fit(X, Y)
    stays_as_it_was(clf, lambda: call(clf), complaint, ValueError)
    clf.forget(X[:5], Y[:5])
    assert_same_sums(clf, make(capacity=3).fit(X[5:], Y[5:]))


@pytest.mark.parametrize("name", ["forget", "forget_class"])
def test_a_session_has_to_end_first(name: str) -> None:
    clf = make().fit(X, Y)
    arguments = (X, Y) if name == "forget" else (0,)
    with clf.session():
        stays_as_it_was(clf, lambda: getattr(clf, name)(*arguments), f"end it before you call {name}", RuntimeError)


def test_gradient_steps_cannot_be_taken_back() -> None:
    small = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    clf = make(solver="hbo", backbone=small, embed_dim=8, epochs=1, batch_size=32).fit(X, Y)
    for call in (lambda: clf.forget(X, Y), lambda: clf.forget_class(0), clf.statistics):
        stays_as_it_was(clf, call, "solver='hbo' learns by gradient steps", ValueError)


def test_nothing_can_be_forgotten_before_something_was_learned() -> None:
    for call in (lambda: make().forget(X, Y), lambda: make().forget_class(0), make().statistics):
        with pytest.raises(NotFittedError, match="call fit or partial_fit first"):
            call()


def test_a_failure_in_the_middle_of_forgetting_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = make().fit(X, Y)
    with monkeypatch.context() as patch:
        patch.setattr(RandomReLU, "forward", lambda self, x: (_ for _ in ()).throw(MemoryError("out of memory")))
        stays_as_it_was(clf, lambda: clf.forget(X, Y), "out of memory", MemoryError)
    assert clf.score(X, Y) > 0.9


# -- the map's trace ---------------------------------------------------------------------------------------------------


def test_a_map_that_was_fitted_on_the_rows_keeps_a_trace_and_says_so(tmp_path: Path) -> None:
    clf = make(backbone=RandomReLU((4,), features=20, seed=0)).partial_fit(*rows(0, 1, count=30)).partial_fit(*rows(2))
    later, early = rows(2), rows(0, 1, count=30)
    clf.save(tmp_path / "model")
    for model in (clf, CLDNetClassifier.load(tmp_path / "model")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.forget(later[0][:3], later[1][:3])
        with pytest.warns(MapTraceWarning, match=r"labels \[0, 1\].*backbone=map"):
            model.forget(early[0][:5], early[1][:5])
        assert model.statistics().rows == 62


def test_who_makes_an_error_of_the_warning_keeps_the_model_as_it_was() -> None:
    clf = make(backbone=RandomReLU((4,), features=20, seed=0)).fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MapTraceWarning)
        stays_as_it_was(clf, lambda: clf.forget(X[:5], Y[:5]), "feature map was fitted", MapTraceWarning)


def test_a_module_of_ones_own_is_scaled_by_its_first_rows_and_says_so() -> None:
    clf = make(backbone=nn.Linear(4, 6)).fit(X, Y)
    with pytest.warns(MapTraceWarning, match="trace"):
        clf.forget(X[:5], Y[:5])
    assert clf.statistics().rows == 25


def test_a_map_handed_in_is_used_by_several_models_and_not_changed() -> None:
    one = shared_map()
    before = copy.deepcopy(one.state_dict())
    make(backbone=one).fit(X, Y).forget(X[:3], Y[:3])
    make(backbone=one).fit(*rows(4, 5))
    assert all(torch.equal(tensor, before[name]) for name, tensor in one.state_dict().items())


def test_a_model_over_a_fitted_map_begins_anew_over_the_same_map_after_loading(tmp_path: Path) -> None:
    make().fit(X, Y).save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded.feature_map_.map_id == shared_map().map_id
    assert_same_sums(loaded.fit(*rows(4, 5)), make().fit(*rows(4, 5)))


# -- threads -----------------------------------------------------------------------------------------------------------


def test_forgetting_two_things_at_once_loses_neither_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    from cldnet.estimator.model import Model

    clf, forget = make().fit(X, Y), Model.forget

    def interrupted(self: Model, *arguments: Any) -> Model:
        monkeypatch.setattr(Model, "forget", forget)
        clf.forget(X[5:], Y[5:])  # what another thread would do meanwhile
        return forget(self, *arguments)

    monkeypatch.setattr(Model, "forget", interrupted)
    with pytest.raises(RuntimeError, match="Another thread changed this model during the call"):
        clf.forget(X[:5], Y[:5])
    assert_same_sums(clf, make().fit(X[:5], Y[:5]))


def test_whoever_predicts_while_another_thread_forgets_has_one_whole_model() -> None:
    clf = make(alpha=1.0).fit(X, Y)

    def ask(_: int) -> bool:
        probabilities = clf.predict_proba(X)
        return probabilities.shape[1] in (2, 3) and bool(np.allclose(probabilities.sum(1), 1))

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(ask, range(40))
        for row in np.flatnonzero(Y == 2):
            clf.forget(X[[row]], Y[[row]])
        assert all(answers)
    assert clf.classes_.tolist() == [0, 1]


def test_forgetting_works_where_gradients_are_switched_off_and_touches_nothing_global() -> None:
    with torch.inference_mode():
        threads, random = torch.get_num_threads(), torch.get_rng_state()
        clf = make(n_threads=1).fit(X, Y).forget(X[:5], Y[:5])
        assert torch.is_inference_mode_enabled()
        assert torch.get_num_threads() == threads
        assert torch.equal(torch.get_rng_state(), random)
    assert_same_sums(clf.partial_fit(X[:5], Y[:5]), make().fit(X, Y))
