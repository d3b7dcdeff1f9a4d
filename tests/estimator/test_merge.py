"""Models that were trained apart over one map become the model of all their data, exactly."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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

import cldnet
from cldnet import CLDNetClassifier, MapTraceWarning, Statistics, load_map, save_map
from cldnet.nets import RandomReLU

DIGITS, LABELS = load_digits(return_X_y=True)
NAMES = np.array(["nought", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
CENTRES = 5 * np.random.default_rng(7).normal(size=(6, 4))
SHARED = RandomReLU((4,), features=30, seed=0)
SHARED.fit(torch.from_numpy(CENTRES))


def make(**parameters: Any) -> CLDNetClassifier:
    return CLDNetClassifier(**{"backbone": SHARED, "capacity": 6, "random_state": 0, **parameters})


def rows(*classes: int, count: int = 8, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng([seed, *classes])
    y = random.permutation(np.repeat(classes, count))
    return CENTRES[y] + random.normal(size=(len(y), 4)), y


def together(*parts: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> tuple[Any, Any]:
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def account(clf: CLDNetClassifier | Statistics) -> dict[str, Any]:
    """Everything summed, whatever the order of rows."""
    stats = clf if isinstance(clf, Statistics) else clf.statistics()
    order = stats.labels.columns
    found = {name: tensor.tolist() for name, tensor in stats.tensors.items() if not name.startswith("class")}
    for name in ("class_sums", "class_weights"):
        found[name] = stats.tensors[name][order].tolist()
    return {**found, "classes": stats.classes.tolist(), "fitted_on": stats.fitted_on}


# -- exactly -----------------------------------------------------------------------------------------------------------


def test_ten_shards_whose_classes_came_in_different_orders_equal_one_pass(tmp_path: Path) -> None:
    digits = RandomReLU((64,), features=200, seed=0)
    digits.fit(torch.from_numpy(DIGITS[:100]))
    save_map(digits, tmp_path / "map")
    random, shards = np.random.default_rng(0), []
    for part in np.array_split(random.permutation(len(LABELS)), 10):
        shard = CLDNetClassifier(backbone=load_map(tmp_path / "map"), capacity=10)
        for label in random.permutation(10)[: random.integers(5, 11)]:
            own = part[LABELS[part] == label]
            shard.partial_fit(DIGITS[own], NAMES[LABELS[own]])
        rest = part[~np.isin(NAMES[LABELS[part]], shard.classes_)]
        shards.append(shard.partial_fit(DIGITS[rest], NAMES[LABELS[rest]]) if len(rest) else shard)
    orders = {tuple(shard._model.labels.by_row.tolist()) for shard in shards if shard._model is not None}
    assert len(orders) == 10
    whole = CLDNetClassifier(backbone=digits, capacity=10).fit(DIGITS, NAMES[LABELS])
    before = [account(shard) for shard in shards]
    merged = cldnet.merge(shards)
    assert [account(shard) for shard in shards] == before
    assert account(merged) == account(whole)
    merged.save(tmp_path / "merged")
    for model in (merged, CLDNetClassifier.load(tmp_path / "merged")):
        np.testing.assert_allclose(model.decision_function(DIGITS), whole.decision_function(DIGITS), rtol=0, atol=1e-9)
        assert np.array_equal(model.predict(DIGITS), whole.predict(DIGITS))


CLASSES = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)


@settings(deadline=None, max_examples=15)
@given(st.lists(CLASSES, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_models_leaves_no_trace(shards: list[list[int]], random: Any) -> None:
    data = [rows(*classes, seed=seed) for seed, classes in enumerate(shards)]
    models = [make().fit(*part) for part in data]
    random.shuffle(models)
    merged, whole = cldnet.merge(models), make().fit(*together(*data))
    assert account(merged) == account(whole)
    assert merged.classes_.tolist() == sorted({label for shard in shards for label in shard})


def test_a_merged_model_learns_on_forgets_and_is_merged_again() -> None:
    first, second, third = rows(0, 1), rows(2, 1, seed=1), rows(3)
    clf = make().fit(*first)
    assert clf.merge([make().fit(*second)]) is clf
    clf.partial_fit(*third).forget(*second)
    assert account(clf) == account(make().fit(*together(first, third)))
    assert account(clf.merge([make().fit(*second)])) == account(make().fit(*together(first, second, third)))


def test_models_add_to_themselves_if_that_is_allowed() -> None:
    clf = make().fit(*rows(0, 1))
    whole = account(make().fit(*together(rows(0, 1), rows(0, 1))))
    assert account(cldnet.merge([clf, clf], allow_duplicates=True)) == whole
    assert account(clf.merge([clf], allow_duplicates=True)) == whole


def test_lessons_that_both_models_have_are_not_counted_twice(tmp_path: Path) -> None:
    first, second, third = rows(0, 1), rows(2, count=12), rows(3, count=12)
    base = make().partial_fit(*first)
    here, there = copy.deepcopy(base).partial_fit(*second), copy.deepcopy(base).partial_fit(*third)
    here.save(tmp_path / "here")
    before = account(here)
    for other in (there, there.statistics(), here, cldnet.merge([make().partial_fit(*third), base])):
        for model in (here, cldnet.CLDNetClassifier.load(tmp_path / "here")):
            with pytest.raises(ValueError, match=r"share . lesson.*would count twice.*allow_duplicates=True"):
                model.merge([other])
            assert account(model) == before
    with pytest.raises(ValueError, match="share 1 lesson"):
        _ = here.statistics() + there.statistics()
    apart = make().partial_fit(*third)
    assert account(here.merge([apart])) == account(make().fit(*together(first, second, third)))


def test_a_lesson_is_known_by_its_rows_whatever_their_order_and_type() -> None:
    X, y = rows(0, 1)
    order = np.random.default_rng(0).permutation(len(y))
    here = make().partial_fit(X, y)
    for shuffled in (
        make().partial_fit(X[order], y[order]),
        make().partial_fit(torch.from_numpy(X).float(), y.tolist()),
    ):
        with pytest.raises(ValueError, match="share 1 lesson"):
            here.merge([shuffled])
    with here.lesson():  # as cldnet learn does: portions of one folder
        for part in np.array_split(order, 3):
            here.partial_fit(X[part] + 1, y[part])
    with pytest.raises(ValueError, match="share 1 lesson"):
        make().partial_fit(X + 1, y).merge([here])
    make().partial_fit(X + 1, 1 - y).merge([here])  # other labels are another lesson


def test_a_lesson_that_was_forgotten_may_be_merged_again() -> None:
    first, second = rows(0, 1), rows(2, count=12)
    base = make().partial_fit(*first).partial_fit(*second)
    with pytest.raises(ValueError, match="share 1 lesson"):
        base.merge([make().partial_fit(*second)])
    base.forget(*second).merge([make().partial_fit(*second)])
    assert account(base) == account(make().fit(*together(first, second)))


def test_models_of_single_rows_have_no_lessons_but_are_told_apart_by_their_sums() -> None:
    X, y = rows(0, 1)
    one_by_one = make()
    for row in range(len(y)):
        one_by_one.partial_fit(X[[row]], y[[row]])
    assert one_by_one._fitted().lessons.ids == ()
    with pytest.raises(ValueError, match="have the same sums"):
        one_by_one.merge([copy.deepcopy(one_by_one)])


def test_a_merge_of_one_or_with_none_changes_nothing() -> None:
    clf = make().fit(*rows(0, 1))
    before = account(clf)
    assert account(clf.merge([])) == account(cldnet.merge([clf])) == before


def test_classes_that_were_forgotten_do_not_come_along() -> None:
    X, y = rows(0, 1, 2)
    clf = make().fit(X, y).forget(X[y == 1], y[y == 1])
    merged = make().fit(*rows(3)).merge([clf])
    assert merged.classes_.tolist() == [0, 2, 3]
    assert account(merged) == account(make().fit(*together((X[y != 1], y[y != 1]), rows(3))))
    assert account(merged.merge([make().fit(*rows(1))]))["classes"] == [0, 1, 2, 3]


def test_a_class_forgotten_here_comes_back_from_there() -> None:
    X, y = rows(0, 1)
    clf = make().fit(X, y).forget(X[y == 1], y[y == 1])
    assert account(clf.merge([make().fit(X[y == 1], y[y == 1])])) == account(make().fit(X, y))


# -- statistics --------------------------------------------------------------------------------------------------------


def test_sums_written_to_disk_are_summed_later_and_merged(tmp_path: Path) -> None:
    parts = [rows(0, 1), rows(2, 0, seed=1), rows(5)]
    for number, part in enumerate(parts):
        make().fit(*part).statistics().save(tmp_path / f"{number}.sums")
    total = Statistics.load(tmp_path / "0.sums")
    for number in (1, 2):
        total += Statistics.load(tmp_path / f"{number}.sums")
    whole = account(make().fit(*together(*parts)))
    merged = make().merge([total])  # it has learned nothing itself, but has the map
    assert account(merged) == whole
    merged.save(tmp_path / "model")
    assert account(CLDNetClassifier.load(tmp_path / "model")) == whole
    mixed = [make().fit(*parts[0]).statistics(), make().fit(*parts[1]), make().fit(*parts[2]).statistics()]
    assert account(cldnet.merge(mixed)) == whole
    assert np.array_equal(merged.predict(CENTRES[[0, 1, 2, 5]]), [0, 1, 2, 5])


def test_sums_alone_have_no_map() -> None:
    with pytest.raises(ValueError, match="needs a classifier among its models"):
        cldnet.merge([make().fit(*rows(0, 1)).statistics()])
    with pytest.raises(ValueError, match="needs a classifier among its models"):
        cldnet.merge([])


@pytest.mark.parametrize("gram", ["diagonal", 30])
def test_models_that_keep_less_can_be_merged_too(gram: Any) -> None:
    parts = rows(0, 1), rows(2, 3)
    merged = cldnet.merge([make(gram=gram).fit(*part) for part in parts])
    X, y = together(*parts)
    whole = make(gram=gram).fit(X, y)
    assert merged.classes_.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(merged.decision_function(X), whole.decision_function(X), rtol=1e-6, atol=1e-6)


# -- what is refused ---------------------------------------------------------------------------------------------------


def other_map() -> RandomReLU:
    other = RandomReLU((4,), features=30, seed=1)
    other.fit(torch.from_numpy(CENTRES))
    return other


REFUSED: dict[str, tuple[Callable[[], Any], str, type[Exception]]] = {
    "another map": (
        lambda: make(backbone=other_map()).fit(*rows(0, 1)),
        rf"different feature maps, {SHARED.map_id} and \w{{16}}, .*save_map.*load_map",
        ValueError,
    ),
    "a map of its own": (
        lambda: make(backbone=RandomReLU((4,), seed=0)).fit(*rows(0, 1)),
        "different feature maps",
        ValueError,
    ),
    "nothing learned": (make, "is not fitted", NotFittedError),
    "no room": (
        lambda: make(capacity=9).fit(*rows(0), None).partial_fit(CENTRES, range(10, 16)),
        "room for",
        ValueError,
    ),
    "other labels": (lambda: make().fit(rows(0)[0], ["a"] * 8), "Labels of type str cannot follow", ValueError),
    "another gram": (lambda: make(gram="diagonal").fit(*rows(0)), "gram='full' .* gram='diagonal'", ValueError),
    "other names": (
        lambda: make().fit(pd.DataFrame(rows(0)[0], columns=list("wxyz")), rows(0)[1]),
        "different names or orders",
        ValueError,
    ),
    "the other solver": (
        lambda: CLDNetClassifier("hbo", nn.Linear(4, 3), capacity=4, embed_dim=4, epochs=1).fit(*rows(0, 1)),
        "solver='hbo' learns by gradient steps",
        ValueError,
    ),
    "another thing": (lambda: "model", "A str cannot be merged: pass a list", ValueError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused_and_the_model_stays_as_it_was(name: str) -> None:
    prepare, complaint, error = REFUSED[name]
    X, y = rows(0, 1)
    clf = make().fit(pd.DataFrame(X, columns=list("abcd")), y)
    model, before = clf._model, account(clf)
    other, good = prepare(), make().fit(*rows(4))
    with pytest.raises(error, match=complaint):
        clf.merge([good, other])
    with pytest.raises(error, match=complaint):
        cldnet.merge([clf, good, other])
    assert clf._model is model
    assert account(clf) == before


def test_a_classifier_without_a_map_cannot_begin_by_merging() -> None:
    stats = make().fit(*rows(0, 1)).statistics()
    for clf in (CLDNetClassifier(), make(backbone=RandomReLU((4,), seed=0)), make(backbone=nn.Linear(4, 3))):
        with pytest.raises(NotFittedError, match="no feature map to merge over"):
            clf.merge([stats])
        assert not hasattr(clf, "classes_")
    with pytest.raises(NotFittedError, match="no feature map to merge over"):
        make().merge([])
    with pytest.raises(ValueError, match="different feature maps"):
        make(backbone=other_map()).merge([stats])
    with pytest.raises(NotFittedError, match="is not fitted"):
        cldnet.merge([make(), stats])


def test_a_session_has_to_end_first() -> None:
    clf = make().fit(*rows(0, 1))
    with clf.session(), pytest.raises(RuntimeError, match="end it before you call merge"):
        clf.merge([make().fit(*rows(2))])


def test_images_in_different_ranges_are_refused_and_in_one_range_joined() -> None:
    random, y = np.random.default_rng(0), np.arange(12) % 3
    images = random.integers(0, 256, (12, 2, 2), dtype=np.uint8)
    pixels = RandomReLU((2, 2), features=10, seed=0)
    pixels.fit(torch.from_numpy(images))
    bytes_, floats = make(backbone=pixels).fit(images, y), make(backbone=pixels).fit(images / 255, y)
    with pytest.raises(ValueError, match="different ranges"):
        bytes_.merge([floats])
    dark = make(backbone=pixels).fit((images // 4).astype(float), y)
    merged = dark.merge([bytes_])
    assert merged.predict(images).shape == (12,)
    with pytest.raises(ValueError, match="lies between -1 and 1"):
        merged.predict(images / 255)


# -- surroundings ------------------------------------------------------------------------------------------------------


def test_rows_that_another_models_map_was_fitted_on_are_remembered(tmp_path: Path) -> None:
    first = make(backbone=RandomReLU((4,), features=10, seed=0)).fit(*rows(0, 1))
    second = make(backbone=first.feature_map_).fit(*rows(2))
    second.merge([first]).save(tmp_path / "model")
    for clf in (second, CLDNetClassifier.load(tmp_path / "model"), make(backbone=first.feature_map_).merge([second])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clf.forget(*rows(2))
        with pytest.warns(MapTraceWarning, match=r"labels \[0, 1\]"):
            clf.forget(*rows(0, 1))
        assert clf.classes_.tolist() == []


def test_a_model_made_by_the_function_has_the_first_ones_parameters_and_lives_by_itself() -> None:
    first = make(alpha=3.0, verbose=1).fit(*rows(0, 1))
    merged = cldnet.merge([make().fit(*rows(2)).statistics(), first, make(alpha=7.0).fit(*rows(3))])
    assert merged.get_params() == first.get_params()
    merged.set_params(verbose=0).partial_fit(*rows(4))
    assert first.classes_.tolist() == [0, 1]
    assert merged.classes_.tolist() == [0, 1, 2, 3, 4]


def test_merging_takes_other_parameters_of_now() -> None:
    clf = make(alpha=1.0).fit(*rows(0, 1))
    clf.set_params(alpha=1e9).merge([make().fit(*rows(2))])
    assert clf._model is not None
    assert clf._model.exact.ridge.alpha == 1e9
    with pytest.raises(ValueError, match="capacity was 6 when the model was made"):
        clf.set_params(capacity=7).merge([])


def test_many_threads_may_ask_for_sums_of_one_model_and_predict_while_it_is_merged() -> None:
    clf, parts = make(alpha=1.0).fit(*rows(0, 1)), [make().fit(*rows(label)) for label in (2, 3, 4, 5)]
    X, _ = rows(0, 1, 2, 3, 4, 5)

    def ask(_: int) -> bool:
        return clf.predict_proba(X).shape[0] == len(X) and account(parts[0].statistics())["rows"] == 8

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(ask, range(24))
        for part in parts:
            clf.merge([part])
        assert all(answers)
    assert account(clf) == account(make().fit(*together(rows(0, 1), *(rows(label) for label in (2, 3, 4, 5)))))


def test_only_a_map_of_the_library_can_be_shared() -> None:
    clf = make().fit(*rows(0, 1))
    assert clf.feature_map_.map_id == SHARED.map_id
    clf.feature_map_.weight.zero_()  # a copy
    assert clf.feature_map_.map_id == SHARED.map_id
    own = make(backbone=nn.Linear(4, 3)).fit(*rows(0, 1))
    net = make(solver="hbo", backbone=nn.Linear(4, 3), embed_dim=6, epochs=1).fit(*rows(0, 1))
    for other in (make(), own, net):
        assert not hasattr(other, "feature_map_")


def test_sums_that_are_too_large_for_numbers_are_refused_and_change_nothing() -> None:
    clf, huge = make().partial_fit(*rows(0)), copy.deepcopy(make().partial_fit(*rows(1)).statistics())
    for tensor in huge.tensors.values():
        tensor.mul_(1e302)
    before = account(clf)
    with pytest.raises(ValueError, match="sums would overflow"):
        clf.merge([huge] * 200)
    assert account(clf) == before
