"""Sums without their map: they add up by label, go through files, and what a stranger's file claims is checked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cldnet.storage as store
from cldnet import CLDNetClassifier, Statistics
from cldnet.data.labels import Inputs
from cldnet.estimator.statistics import merged_inputs
from cldnet.nets import RandomReLU

CENTRES = 5 * np.random.default_rng(7).normal(size=(6, 4))
SHARED = RandomReLU((4,), features=12, seed=0)
SHARED.fit(torch.from_numpy(CENTRES))


def rows(*classes: int, count: int = 6, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng([seed, *classes])
    y = random.permutation(np.repeat(classes, count))
    return CENTRES[y] + random.normal(size=(len(y), 4)), y


def sums(*classes: int, seed: int = 0, names: str = "abcdef", **parameters: Any) -> Statistics:
    X, y = rows(*classes, seed=seed)
    clf = CLDNetClassifier(**{"backbone": SHARED, "capacity": 6, **parameters})
    return clf.fit(X, np.array(list(names))[y]).statistics()


def by_label(stats: Statistics) -> dict[Any, tuple[float, list[float]]]:
    """An account that does not depend on the order of rows."""
    weights, features = stats.tensors["class_weights"].tolist(), stats.tensors["class_sums"].tolist()
    return {label: (weights[row], features[row]) for row, label in enumerate(stats.labels.by_row.tolist())}


def plain(stats: Statistics) -> tuple[Any, ...]:
    tensors = {name: tensor.tolist() for name, tensor in stats.tensors.items()}
    return tensors, stats.labels.to_json(), stats.map_id, stats.gram, stats.inputs, stats.fitted_on


def assert_equal(first: Statistics, second: Statistics) -> None:
    assert by_label(first) == by_label(second)
    assert first.rows == second.rows
    for name in [name for name in first.tensors if name.startswith("second.")]:
        assert torch.equal(first.tensors[name], second.tensors[name])


# -- adding up ---------------------------------------------------------------------------------------------------------

CLASSES = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)


@settings(deadline=None, max_examples=8)
@given(CLASSES, CLASSES, CLASSES)
def test_sums_add_up_by_label_in_any_order_and_grouping(one: list[int], two: list[int], three: list[int]) -> None:
    parts = [sums(*classes, seed=seed) for seed, classes in enumerate((one, two, three))]
    X, y = _all(one, two, three)
    whole = CLDNetClassifier(backbone=SHARED, capacity=6).fit(X, np.array(list("abcdef"))[y]).statistics()
    before = [plain(part) for part in parts]
    assert_equal(parts[0] + parts[1] + parts[2], whole)
    assert_equal(parts[2] + (parts[1] + parts[0]), whole)
    assert [plain(part) for part in parts] == before
    total = parts[1]
    total += parts[2]
    total += parts[0]
    assert total is parts[1]
    assert_equal(total, whole)


def _all(*classes: list[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    parts = [rows(*these, seed=seed) for seed, these in enumerate(classes)]
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def test_the_sums_are_those_of_the_features() -> None:
    X, y = rows(0, 2)
    h = SHARED(torch.from_numpy(X)).double()
    stats = sums(0, 2)
    assert stats.rows == 12
    assert stats.width == 13
    assert stats.map_id == SHARED.map_id
    assert stats.classes.tolist() == ["a", "c"]
    assert by_label(stats) == {
        name: (6.0, h[torch.from_numpy(y == row)].sum(0).tolist()) for row, name in ((0, "a"), (2, "c"))
    }


def test_sums_are_the_users_own_and_the_model_does_not_see_them_change() -> None:
    clf = CLDNetClassifier(backbone=SHARED, capacity=6).fit(*rows(0, 1))
    stats, before = clf.statistics(), plain(clf.statistics())
    stats.add(stats, allow_duplicates=True)
    assert stats.rows == 24
    for tensor in stats.tensors.values():
        tensor.zero_()
    assert plain(clf.statistics()) == before


@pytest.mark.parametrize("gram", ["diagonal", 40])
def test_what_is_kept_of_the_moments_adds_up_too(gram: Any) -> None:
    X, y = _all([0, 1], [2, 1])
    whole = CLDNetClassifier(backbone=SHARED, capacity=6, gram=gram).fit(X, np.array(list("abcdef"))[y]).statistics()
    total = sums(0, 1, gram=gram) + sums(2, 1, seed=1, gram=gram)
    assert by_label(total) == by_label(whole)
    if gram == "diagonal":
        assert_equal(total, whole)
    else:  # a sketch with room for all rows loses nothing; its own rows may be others
        one, other = (stats.tensors["second.directions"] for stats in (total, whole))
        torch.testing.assert_close(one.T @ one, other.T @ other)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another map": (
        lambda: sums(0, 1, backbone=_other_map()),
        f"different feature maps, {SHARED.map_id} and .*save_map",
    ),
    "another type of label": (
        lambda: CLDNetClassifier(backbone=SHARED, capacity=6).fit(*rows(0, 1)).statistics(),
        "Labels of type int cannot follow labels of type str",
    ),
    "another gram": (lambda: sums(0, 1, gram="diagonal"), "gram='full' with 13 features, the other gram='diagonal'"),
    "another rank": (lambda: sums(0, 1, gram=3), "gram=3"),
    "no room": (lambda: sums(0, 1, 2, 3, 4, names="uvwxyz"), "room for 6 classes, 2 are taken and y has 5 new ones"),
}


def _other_map() -> RandomReLU:
    other = RandomReLU((4,), features=12, seed=1)
    other.fit(torch.from_numpy(CENTRES))
    return other


@pytest.mark.parametrize("name", REFUSED)
def test_sums_that_do_not_go_together_are_refused_and_stay_as_they_are(name: str) -> None:
    make, complaint = REFUSED[name]
    stats, other = sums(0, 1), make()
    before = plain(stats), plain(other)
    with pytest.raises(ValueError, match=complaint):
        stats.check_addable(other)
    with pytest.raises(ValueError, match=complaint):
        _ = stats + other
    with pytest.raises(ValueError, match=complaint):
        stats += other
    assert (plain(stats), plain(other)) == before


def test_the_sum_of_two_has_the_larger_room() -> None:
    small, large = sums(0, 1, capacity=2), sums(2, 3, capacity=5)
    assert (small + large).labels.capacity == (large + small).labels.capacity == 5
    assert small.labels.capacity == 2


def test_what_is_not_sums_cannot_be_added() -> None:
    stats = sums(0, 1)
    for other in (1, None, stats.tensors):
        with pytest.raises(TypeError, match="unsupported operand"):
            _ = stats + other  # type: ignore[operator]
        with pytest.raises(TypeError, match="unsupported operand"):
            stats += other  # type: ignore[arg-type]


# -- what is known of inputs -------------------------------------------------------------------------------------------


def test_what_is_known_of_inputs_is_merged_inputs() -> None:
    first, second = Inputs((8, 8), None, True, 200.0), Inputs((8, 8), None, False, 250.0)
    assert merged_inputs(first, second) == merged_inputs(second, first) == Inputs((8, 8), None, True, 250.0)
    named = Inputs((2,), ("a", "b"), False, 1.0)
    assert merged_inputs(named, Inputs((2,), None, False, 1e6)).names == ("a", "b")


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        (Inputs((2,), None, False, 1.0), Inputs((3,), None, False, 1.0), r"shape \(2,\), the other for \(3,\)"),
        (Inputs((2,), ("a", "b"), False, 1.0), Inputs((2,), ("b", "a"), False, 1.0), "different names or orders"),
        (Inputs((8, 8), None, True, 255.0), Inputs((8, 8), None, False, 1.0), "different ranges.*X \\* 255"),
        (Inputs((8, 8), None, False, 1.0), Inputs((8, 8), None, True, 255.0), "different ranges.*X / 255"),
    ],
)
def test_inputs_that_do_not_go_together_are_refused(first: Inputs, second: Inputs, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        merged_inputs(first, second)
    one, two = replace(sums(0, 1), inputs=first), replace(sums(2), inputs=second)
    with pytest.raises(ValueError, match=complaint):
        one.check_addable(two)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gram", ["full", "diagonal", 3])
def test_sums_go_through_a_file_and_add_up_later(gram: Any, tmp_path: Path) -> None:
    one, two = sums(0, 1, gram=gram), sums(2, 1, seed=1, gram=gram)
    for number, part in enumerate((one, two)):
        part.save(tmp_path / f"part{number}")
    loaded = [Statistics.load(tmp_path / f"part{number}") for number in range(2)]
    assert [plain(part) for part in loaded] == [plain(one), plain(two)]
    assert plain(loaded[0] + loaded[1]) == plain(one + two)


def test_sums_of_no_class_go_through_a_file(tmp_path: Path) -> None:
    X, y = rows(0, 1)
    empty = CLDNetClassifier(backbone=SHARED, capacity=6).fit(X, y).forget(X, y).statistics()
    empty.save(tmp_path / "empty")
    assert_equal(Statistics.load(tmp_path / "empty") + sums(0, 1), sums(0, 1))


def test_the_labels_that_a_map_was_fitted_on_are_not_forgotten_in_a_file(tmp_path: Path) -> None:
    stats = CLDNetClassifier(capacity=6, backbone=RandomReLU((4,), features=5, seed=0)).fit(*rows(0, 1)).statistics()
    stats.save(tmp_path / "sums")
    assert Statistics.load(tmp_path / "sums").fitted_on == {0, 1}


def test_a_sum_knows_of_all_labels_that_either_map_was_fitted_on() -> None:
    one, two = replace(sums(0, 1), fitted_on=frozenset({"a"})), replace(sums(2), fitted_on=frozenset({"b", "c"}))
    assert (one + two).fitted_on == (two + one).fitted_on == {"a", "b", "c"}
    assert (one.fitted_on, two.fitted_on) == ({"a"}, {"b", "c"})


def _spoil(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Any], None]:
    def spoil(tensors: dict[str, torch.Tensor], manifest: dict[str, Any]) -> None:
        tensors[name] = change(tensors[name].clone())

    return spoil


def _claim(**claims: Any) -> Callable[[Any, Any], None]:
    return lambda tensors, manifest: manifest.update(claims)


def _put(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.flatten().index_fill(0, torch.tensor([0]), value).reshape(tensor.shape)


LABELS = {"capacity": 6, "kind": "str", "labels": ["a", "b"], "retired": [], "counts": [1, 1]}
DAMAGE: dict[str, tuple[Callable[[Any, Any], None], str]] = {
    "a class sum that is no number": (_spoil("class_sums", _put(float("nan"))), "class_sums has values that are not"),
    "an infinite moment": (
        _spoil("second.packed", _put(float("inf"))),
        "second.packed has values that are not finite",
    ),
    "a negative square": (_spoil("second.packed", _put(-1e6)), "a sum of squares is negative"),
    "a negative weight": (_spoil("class_weights", _put(-1.0)), "class_weights has negative values"),
    "more weight than rows": (_spoil("class_weights", _put(99.0)), "more samples than all together"),
    "rows of nothing": (_spoil("rows", torch.zeros_like), "more samples than all together"),
    "a class too few": (_spoil("class_sums", lambda t: t[:1]), "'class_sums' is .*expected"),
    "other features": (_spoil("class_sums", lambda t: t[:, :5]), "'second.packed' is .*expected"),
    "a flat table": (_spoil("class_sums", lambda t: t.flatten()), "tuple index"),
    "numbers of another type": (_spoil("class_sums", lambda t: t.float()), "'class_sums' is .*expected"),
    "moments of another type": (_spoil("second.packed", lambda t: t.float()), "'second.packed' is .*expected"),
    "moments of another shape": (_spoil("second.packed", lambda t: t[1:]), "'second.packed' is .*expected"),
    "no moments": (lambda tensors, _: tensors.pop("second.packed"), "'second.packed' is .*expected"),
    "other moments": (_claim(gram="diagonal"), "'second.packed' is .*expected"),
    "no rows": (lambda tensors, _: tensors.pop("rows"), "'rows' is missing"),
    "something more": (lambda tensors, _: tensors.update(extra=torch.zeros(2)), "extra"),
    "an unknown gram": (_claim(gram="half"), "gram='half'"),
    "a gram of rank -1": (_claim(gram=-1), "gram=-1"),
    "a label twice": (_claim(labels={**LABELS, "labels": ["a", "a"]}), "has a label twice"),
    "a label more": (
        _claim(labels={**LABELS, "labels": ["a", "b", "c"], "counts": [1, 1, 1]}),
        "'class_sums' is .*expected",
    ),
    "a retired label": (_claim(labels={**LABELS, "retired": ["a"]}), "retired"),
    "labels of a strange type": (_claim(labels={**LABELS, "kind": "pickle"}), "unknown type of label"),
    "no labels": (_claim(labels=None), "not subscriptable"),
    "no inputs": (_claim(inputs={}), "shape"),
    "labels that are no labels": (_claim(fitted_on=[["a"]]), "one label per sample"),
    "no map": (lambda _, manifest: manifest.pop("map_id"), "map_id"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_strangers_file_is_checked(name: str, tmp_path: Path) -> None:
    damage, complaint = DAMAGE[name]
    sums(0, 1).save(tmp_path / "sums")
    tensors, manifest = store.read(tmp_path / "sums")
    damage(tensors, manifest)
    store.write(tmp_path / "sums", tensors, manifest)
    with pytest.raises(ValueError, match=f"is not a valid statistics file .*{complaint}"):
        Statistics.load(tmp_path / "sums")


def test_sums_that_could_not_be_loaded_are_not_written(tmp_path: Path) -> None:
    path, stats = tmp_path / "sums", sums(0, 1)
    stats.save(path)
    before = path.read_bytes()
    stats.tensors["class_sums"][0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"was not saved.*\(class_sums has values that are not finite\).*unchanged"):
        stats.save(path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [before]


def test_sums_that_forgetting_left_some_rounding_in_go_through_a_file(tmp_path: Path) -> None:
    (X, y), draw = rows(0, 1), np.random.default_rng(4)
    for attempt in range(10):
        heavy, light = draw.random(len(X)) * 1e6, draw.random(len(X)) * 1e-3
        clf = CLDNetClassifier(backbone=SHARED, capacity=6).fit(X, y, sample_weight=heavy)
        stats = clf.partial_fit(X, y, sample_weight=light).forget(X, y, sample_weight=heavy).statistics()
        stats.save(tmp_path / f"{attempt}")
        assert Statistics.load(tmp_path / f"{attempt}").rows == stats.rows


@pytest.mark.parametrize("content", [b"", b"\xff" * 100_000])
def test_sums_stay_as_they_were_loaded_whatever_becomes_of_their_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sums"
    sums(0, 1).save(path)
    stats = Statistics.load(path)
    with path.open("r+b") as file:  # in place: what was mapped from it would be other numbers now, or none
        file.truncate(0)
        file.write(content)
    assert_equal(stats, sums(0, 1))


def test_a_model_is_not_read_as_sums_nor_sums_as_a_model(tmp_path: Path) -> None:
    clf = CLDNetClassifier(backbone=SHARED, capacity=6).fit(*rows(0, 1))
    clf.save(tmp_path / "model")
    clf.statistics().save(tmp_path / "sums")
    with pytest.raises(ValueError, match=r"contains no statistics: load a model with CLDNetClassifier\.load"):
        Statistics.load(tmp_path / "model")
    with pytest.raises(ValueError, match="is not a valid model"):
        CLDNetClassifier.load(tmp_path / "sums")
    with pytest.raises(FileNotFoundError, match="no model file"):
        Statistics.load(tmp_path / "nothing")


def test_no_row_of_data_is_in_the_file(tmp_path: Path) -> None:
    X, _ = rows(0, 1)
    sums(0, 1).save(tmp_path / "sums")
    content = (tmp_path / "sums").read_bytes()
    assert not any(row.tobytes() in content or row.astype(np.float32).tobytes() in content for row in X)


def test_a_copy_is_apart() -> None:
    stats = sums(0, 1)
    twin = copy.deepcopy(stats)
    twin += sums(2, 3)
    assert stats.classes.tolist() == ["a", "b"]
