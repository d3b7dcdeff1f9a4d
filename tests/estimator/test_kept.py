"""Lessons are taken back by their sums: as if they had never been given, to the last bit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.estimator.test_forget import assert_same_sums, make, rows

import cldnet.storage as store
from cldnet import CLDNetClassifier, MapTraceWarning
from cldnet.estimator.predictor import Predictor

Lesson = tuple[np.ndarray, np.ndarray, np.ndarray]


def lesson(data: Any) -> Lesson:
    classes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True))
    x, y = rows(*classes, count=data.draw(st.integers(1, 12)), seed=data.draw(st.integers(0, 5)))
    weight = np.array(data.draw(st.lists(st.integers(1, 3), min_size=len(y), max_size=len(y))), dtype=float)
    return x, y, weight


def teach(clf: CLDNetClassifier, part: Lesson, name: str, cut: int = 0) -> None:
    """One lesson, in one call or in two."""
    x, y, weight = part
    with clf.lesson(name):
        for piece in (slice(cut), slice(cut, None)):
            if len(y[piece]):
                clf.partial_fit(x[piece], y[piece], sample_weight=weight[piece])


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from(["full", "diagonal"]))
def test_lessons_that_are_undone_in_any_order_were_never_given(data: Any, gram: str) -> None:
    parts = [lesson(data) for _ in range(data.draw(st.integers(1, 5)))]
    clf = make(keep_lessons=4, gram=gram)
    for number, part in enumerate(parts):
        teach(clf, part, f"lesson {number}", data.draw(st.integers(0, len(part[1]))))
    assert [one.kept for one in clf.lessons_] == [len(parts) - place <= 4 for place in range(len(parts))]
    if data.draw(st.booleans()):
        clf = pickle.loads(pickle.dumps(clf))
    order = data.draw(st.permutations(range(max(0, len(parts) - 4), len(parts))))
    gone = order[: data.draw(st.integers(1, len(order)))]
    for number in gone:
        clf.undo(data.draw(st.sampled_from([number + 1, f"lesson {number}"])))
    left = [part for number, part in enumerate(parts) if number not in gone]
    never = make(keep_lessons=4, gram=gram)
    for number, part in enumerate(left):
        teach(never, part, f"lesson {number}")
    if left:
        assert_same_sums(clf, never)
        assert clf.model_.labels.counts == never.model_.labels.counts
        assert [(one.total, one.samples, one.digest) for one in clf.lessons_] == [
            (one.total, one.samples, one.digest) for one in never.lessons_
        ]
        assert {*clf.model_.lessons.ids} == {*never.model_.lessons.ids}
        np.testing.assert_allclose(clf.decision_function(parts[0][0]), never.decision_function(parts[0][0]), atol=1e-6)
    else:
        assert clf.classes_.tolist() == []
        assert not any(tensor.any() for tensor in clf.statistics().tensors.values())
    for number in gone:  # and they can be given again
        teach(clf, parts[number], "again")
        teach(never, parts[number], "again")
    assert_same_sums(clf, never)


def test_a_lesson_is_undone_in_a_file_and_after_it_and_predictions_do_not_read_its_sums(tmp_path: Path) -> None:
    clf = make(keep_lessons=2).partial_fit(*rows(0, 1))
    never = copy.deepcopy(clf)
    clf.partial_fit(*rows(1, 2))
    clf.save(tmp_path / "model")
    _, manifest = store.read(tmp_path / "model")
    assert [one["number"] for one in manifest["kept"]] == [1, 2]
    assert manifest["kept"][1] == {"number": 2, "labels": manifest["kept"][1]["labels"], "counts": [10, 10]}
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert_same_sums(loaded.undo(), never)
    loaded.save(tmp_path / "model")
    assert_same_sums(CLDNetClassifier.load(tmp_path / "model"), never)
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 8, 8), dtype=np.uint8)
    large = CLDNetClassifier(keep_lessons=1, random_state=0).fit(images, [0, 1] * 15)
    large.save(tmp_path / "large")
    assert "kept.0.second.packed" in store.read(tmp_path / "large")[1]["integers"]
    assert Predictor.load(tmp_path / "large").model.kept == ()


def test_a_model_that_grew_or_has_fractions_takes_a_lesson_back() -> None:
    names = np.array([f"class {i}" for i in range(20)]).repeat(3)
    x = np.random.default_rng(0).normal(size=(60, 4))
    clf = make(capacity="auto", keep_lessons=1).partial_fit(x[:6], names[:6])
    never, size = copy.deepcopy(clf), clf.footprint().bytes["sums"]
    clf.partial_fit(x[6:], names[6:], sample_weight=np.linspace(0.1, 2, 54))
    assert clf.footprint().bytes["sums"] > size
    clf.undo()
    assert clf.classes_.tolist() == ["class 0", "class 1"]
    assert clf.footprint().bytes["sums"] == size, "the room for new classes is given back"
    np.testing.assert_allclose(clf.decision_function(x), never.decision_function(x), atol=1e-6)


def test_the_last_lessons_are_kept_and_an_error_says_what_to_do_about_others() -> None:
    clf = make(keep_lessons=2)
    for seed in range(3):
        clf.partial_fit(*rows(0, 1, seed=seed))
    before = clf.model_
    for wrong, sentence in {
        1: r"The sums of lesson 1 .* the last 2, .*clf\.forget\(X, y\), or `cldnet forget MODEL DATA`.*keep_lessons=N",
        "none": "There is no lesson 'none' in the model's history. The last ones are: 1, 2, 3",
        7: "There is no lesson 7",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            clf.undo(wrong)
    with pytest.raises(ValueError, match="There is no lesson to take back"):
        CLDNetClassifier.load(Path(__file__).parents[1] / "fixtures" / "store" / "5" / "exact.cldnet").undo()
    with pytest.raises(
        ValueError, match=r"this model keeps no sums of lessons\..*--keep-lessons N\), at 4 · features²"
    ):
        make().fit(*rows(0)).undo()
    with clf.lesson(), pytest.raises(RuntimeError, match="A lesson is open"):
        clf.undo()
    with clf.session(), pytest.raises(RuntimeError, match="A session is open"):
        clf.undo()
    assert clf.model_ is before
    hbo = CLDNetClassifier("hbo", embed_dim=8, capacity=4, epochs=1).fit(*rows(0, 1))
    with pytest.raises(ValueError, match=r"cannot take back lesson 1 .* solver='hbo' .*a copy of the file from before"):
        hbo.undo()
    with pytest.raises(ValueError, match=r"In lesson 4 .* has forgotten samples.*Learn them again: clf\.partial_fit"):
        clf.forget(*rows(0, 1)).undo()


@pytest.mark.parametrize(
    "change",
    [
        lambda clf: clf.forget(*rows(0, seed=9)),
        lambda clf: clf.forget_class(0),
        lambda clf: clf.add_noise(3.0, [0], random_state=0),
        lambda clf: clf.fit(*rows(0)),
    ],
)
def test_what_changes_a_lesson_drops_its_sums(change: Callable[[CLDNetClassifier], Any]) -> None:
    clf = make(keep_lessons=3).partial_fit(*rows(0, seed=9)).partial_fit(*rows(0, 1, 2))
    change(clf)
    assert [one for one in clf.lessons_ if one.kept and one.number > 1] == []
    clf.partial_fit(*rows(3))
    assert clf.lessons_[-1].kept


def test_a_part_of_a_lesson_is_not_taken_back() -> None:
    clf = make(keep_lessons=3).partial_fit(*rows(0, 1))
    with clf.lesson():
        clf.partial_fit(*rows(1, 2))
        clf.add_noise(3.0, [0], random_state=0)
        clf.partial_fit(*rows(2, 3))
    assert [one.kept for one in clf.lessons_] == [False, False]


def test_renaming_joining_extending_and_merging_keep_the_sums() -> None:
    clf, never, other = make(keep_lessons=3), make(), make().fit(*rows(3, 4))
    clf.partial_fit(*rows(0, 1)).partial_fit(*rows(1, 2))
    clf.rename_class(2, 5).join_classes([1, 5], into=0).extend(20).merge([other])
    never.partial_fit(*rows(0, 1)).join_classes([1], into=0).extend(20).merge([other])
    assert clf.undo(2).capacity == 20
    assert_same_sums(clf, never)
    clf.undo(1)
    assert_same_sums(clf, make(capacity=20).merge([other]))


@pytest.mark.parametrize(
    "change",
    [
        lambda clf: clf.rename_class("b" * 3000, "c" * 3900),
        lambda clf: clf.join_classes(["b" * 3000], into="c" * 3900),
        lambda clf: clf.merge([copy.deepcopy(clf)], allow_duplicates=True),
    ],
)
def test_the_sums_of_a_lesson_that_no_longer_fits_into_the_history_are_dropped(
    change: Callable[[CLDNetClassifier], Any], tmp_path: Path
) -> None:
    clf = make(keep_lessons=10)
    for seed in range(10):
        clf.partial_fit(rows(0, seed=seed)[0], ["b" * 3000] * 10)
    assert len(clf.model_.kept) == 10
    change(clf)
    numbers = [one.number for one in clf.lessons_]
    assert 1 not in numbers
    assert [one.number for one in clf.model_.kept] == [number for number in numbers if number <= 10]
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert [one.kept for one in loaded.lessons_] == [number <= 10 for number in numbers]


def test_a_lesson_given_twice_is_known_as_long_as_one_of_them_is_there() -> None:
    for first in (1, 2):
        clf = make(keep_lessons=3).partial_fit(*rows(0, 1)).partial_fit(*rows(0, 1))
        assert [one.repeated for one in clf.lessons_] == [False, True]
        clf.undo(first)
        assert [one.repeated for one in clf.lessons_] == [False]
        assert len(clf.model_.lessons.learned) == 1
        assert clf.undo().model_.lessons.learned == ()
        assert not clf.partial_fit(*rows(0, 1)).lessons_[0].repeated


def test_the_map_keeps_its_trace_and_a_warning_made_an_error_changes_nothing() -> None:
    x, y = rows(0, 1, 2)
    clf = CLDNetClassifier(keep_lessons=2, random_state=0)
    clf.partial_fit(x[:5], y[:5])
    features = clf.feature_map_.map_id
    with clf.lesson("second"):
        clf.partial_fit(x[5:], y[5:])
    assert clf.feature_map_.map_id == features, "with sums to keep, the map of a young model is not made again"
    before = clf.model_
    with pytest.raises(MapTraceWarning, match="fitted when labels"):
        clf.undo(1)
    assert clf.model_ is before
    with pytest.warns(MapTraceWarning):
        clf.undo(1)
    with pytest.warns(MapTraceWarning):
        clf.undo("second")
    assert len(clf.classes_) == 0
    clf.partial_fit(x, y)
    with pytest.warns(MapTraceWarning):
        clf.forget(x[:5], y[:5])


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"solver": "hbo"}, "keep_lessons=2 should be 0 with solver='hbo'"),
        ({"gram": 5}, r"keep_lessons=2 should be 0 with a sketch \(gram=5\)"),
        ({"receipts": True}, "keep_lessons=2 should be 0 with receipts=True"),
        ({"keep_lessons": -1}, "keep_lessons=-1 should be a whole number of at least 0"),
        ({"keep_lessons": True}, "keep_lessons=True should be a whole number"),
    ],
)
def test_models_that_cannot_take_lessons_back_refuse_to_keep_them(parameters: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(**{"keep_lessons": 2, **parameters}).fit(*rows(0, 1))


def test_kept_sums_are_counted_and_named_by_the_audit_and_shared_by_copies() -> None:
    clf = make(keep_lessons=2).partial_fit(*rows(0, 1)).partial_fit(*rows(1, 2, count=20))
    width = clf.feature_map_.out_features
    second = clf.model_.exact.second.packed.nbytes
    assert clf.footprint().bytes["kept lessons"] == 2 * (second + 8 * (2 * width + 2) + 8)
    audit = clf.audit()
    assert audit.holds
    assert f"{clf.footprint().bytes['kept lessons']:,} bytes of sums of 2 lessons (keep_lessons=2)" in str(audit)
    assert copy.deepcopy(clf).model_.kept[0] is clf.model_.kept[0]
    clf.partial_fit(*rows(0, count=1)).partial_fit(*rows(0, 2, count=5, seed=5))
    audit = clf.audit()
    assert not audit.holds
    assert audit.revealing == {}
    assert "one sample of a class are that sample's features, whatever is compared: lesson 3 (0)." in str(audit)
    assert "So may the sums that are kept of lesson 3 (0: 1), lesson 4 (0: 5), lesson 4 (2: 5)" in str(audit)
    assert audit.to_json()["kept_lessons"] == [[3, [[0, 1]]], [4, [[0, 5], [2, 5]]]]


def test_an_audit_compares_kept_sums_with_samples() -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 30)), np.arange(40) % 2
    clf = CLDNetClassifier(keep_lessons=1, random_state=0).fit(x, y).partial_fit(x[:20] * 0 + x[3], y[:20])
    found = {
        finding.tensor: finding for finding in clf.audit(x, rows=None).findings or () if finding.space == "features"
    }
    assert {"kept.0.class_sums", "kept.0.second.packed", "class_sums"} <= found.keys()
    assert found["class_sums"].verdict == "clear"
    assert found["kept.0.class_sums"].verdict == "revealing"


SPOILED: dict[str, Callable[[dict[str, torch.Tensor], dict[str, Any]], Any]] = {
    "a missing tensor": lambda t, m: t.pop("kept.0.rows"),
    "another shape": lambda t, m: t.update({"kept.0.class_sums": t["kept.0.class_sums"][:1]}),
    "another type": lambda t, m: t.update({"kept.0.rows": t["kept.0.rows"].float()}),
    "one too many": lambda t, m: t.update({"kept.9.rows": t["kept.0.rows"]}),
    "not described": lambda t, m: m.update(kept=[]),
    "not a list": lambda t, m: m.update(kept={"0": 1}),
    "a description without labels": lambda t, m: m["kept"][0].pop("labels"),
    "an unknown label": lambda t, m: m["kept"][0].update(labels=[0, 7]),
    "a label twice": lambda t, m: m["kept"][0].update(labels=[0, 0]),
    "a label of another type": lambda t, m: m["kept"][0].update(labels=["a", "b"]),
    "negative counts": lambda t, m: m["kept"][0].update(counts=[-1, 5]),
    "too few counts": lambda t, m: m["kept"][0].update(counts=[5]),
    "an unknown lesson": lambda t, m: m["kept"][0].update(number=9),
    "a lesson twice": lambda t, m: m["kept"][0].update(number=2),
    "more lessons than said": lambda t, m: m["parameters"].update(keep_lessons=1),
    "NaN": lambda t, m: t["kept.0.class_sums"].fill_(float("nan")),
    "negative weights": lambda t, m: t["kept.0.class_weights"].neg_(),
    "more weight": lambda t, m: t["kept.0.class_weights"].mul_(5),
    "more rows": lambda t, m: t["kept.0.rows"].mul_(5),
    "larger squares": lambda t, m: t["kept.0.second.packed"].mul_(5),
    "more in all": lambda t, m: [t[f"kept.{n}.rows"].mul_(1.6) for n in (0, 1)],
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_sums_of_lessons_that_no_model_has_are_refused(spoil: Callable[..., Any], tmp_path: Path) -> None:
    clf = make(keep_lessons=2).partial_fit(*rows(0, 1)).partial_fit(*rows(1, 2))
    clf.save(tmp_path / "model")
    tensors, manifest = store.read(tmp_path / "model")
    spoil(tensors, manifest)
    store.write(tmp_path / "model", tensors, manifest)
    with pytest.raises(ValueError, match=r"is not a valid model \(.*\): restore a backup"):
        CLDNetClassifier.load(tmp_path / "model")
