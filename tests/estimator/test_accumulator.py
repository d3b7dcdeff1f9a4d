"""Sums that are added up in place, and sessions that stream."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet import CLDNetClassifier, Statistics
from cldnet.estimator.accumulator import Accumulator
from cldnet.nets import RandomReLU

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 6)).astype(np.float32)
Y = np.array(["cat", "dog", "owl", "emu"])[RNG.integers(0, 4, size=len(X))]


@pytest.fixture(scope="module")
def features() -> RandomReLU:
    made = RandomReLU((6,), features=40, seed=0)
    made.fit(torch.from_numpy(X[:50]))
    return made


def by_label(sums: Statistics) -> dict[str, Any]:
    """The sums, with those of classes by label, since their rows may be in another order."""
    places = {label: row for row, label in enumerate(sums.labels.by_row.tolist())}
    found: dict[str, Any] = {label: sums.tensors["class_sums"][row] for label, row in places.items()}
    found |= {f"weight {label}": sums.tensors["class_weights"][row] for label, row in places.items()}
    return found | {name: each for name, each in sums.tensors.items() if not name.startswith("class_")}


def assert_equal(first: Statistics, second: Statistics) -> None:
    one, other = by_label(first), by_label(second)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert first.labels.counts == second.labels.counts
    assert first.lessons == second.lessons
    assert first.map_id == second.map_id


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(1, 399), max_size=6, unique=True), seed=st.integers(0, 5))
def test_pieces_in_any_order_sum_up_to_what_one_model_has(features: RandomReLU, cuts: list[int], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(X))
    sums = Statistics.accumulator(features)
    for part in np.split(order, sorted(cuts)):
        sums.add(X[part], Y[part])
    assert_equal(sums.statistics(), CLDNetClassifier(backbone=features).partial_fit(X, Y).statistics())


def test_sums_that_were_returned_do_not_change_when_more_is_added(features: RandomReLU) -> None:
    sums = Statistics.accumulator(features).add(X[:200], Y[:200])
    before = sums.statistics()
    sums.add(X[200:], Y[200:])
    assert_equal(before, CLDNetClassifier(backbone=features).partial_fit(X[:200], Y[:200]).statistics())
    assert sums.rows == 400
    assert sums.classes.tolist() == ["cat", "dog", "emu", "owl"]


def test_adding_copies_neither_the_map_nor_the_sums(features: RandomReLU) -> None:
    sums = Statistics.accumulator(features).add(X[:20], Y[:20])
    place = sums.learner.sums()["second.packed"].data_ptr()
    sums.add(X[20:200], Y[20:200])
    assert sums.learner.features is features
    assert sums.learner.sums()["second.packed"].data_ptr() == place


def test_weights_count_as_many_samples(features: RandomReLU) -> None:
    weight = RNG.integers(0, 4, size=len(X)).astype(float)
    repeated = np.repeat(np.arange(len(X)), weight.astype(int))
    weighted = by_label(Statistics.accumulator(features).add(X, Y, weight).statistics())
    plain = by_label(Statistics.accumulator(features).add(X[repeated], Y[repeated]).statistics())
    assert all(torch.equal(weighted[name], plain[name]) for name in plain)


def test_more_classes_than_there_was_room_for(features: RandomReLU) -> None:
    y = np.arange(len(X)) % 100
    assert_equal(
        Statistics.accumulator(features).add(X, y).statistics(),
        CLDNetClassifier(backbone=features).partial_fit(X, y).statistics(),
    )


@pytest.mark.parametrize(
    ("wrong", "labels", "said"),
    [
        (X[:3, :5], Y[:3], "5 features"),
        (X[:3], Y[:2], "3 samples and y has 2 labels"),
        (X[:3], [1, 2, 3], "Labels of type int"),
        (X[:3] * np.nan, Y[:3], "NaN"),
    ],
)
def test_what_is_refused_changes_nothing(features: RandomReLU, wrong: Any, labels: Any, said: str) -> None:
    sums = Statistics.accumulator(features).add(X[:100], Y[:100])
    before = sums.statistics()
    with pytest.raises(ValueError, match=said):
        sums.add(wrong, labels)
    assert_equal(sums.statistics(), before)


def test_an_interrupted_call_leaves_no_sums_to_use(features: RandomReLU, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Statistics.accumulator(features).add(X[:100], Y[:100])
    with monkeypatch.context() as patched:
        patched.setattr(sums.learner, "observe", lambda batch: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            sums.add(X[100:], Y[100:])
    for use in (sums.statistics, lambda: sums.add(X, Y)):
        with pytest.raises(RuntimeError, match="start again"):
            use()


def test_a_map_has_to_be_fitted() -> None:
    with pytest.raises(ValueError, match="not a fitted feature map"):
        Statistics.accumulator(RandomReLU((6,), features=40, seed=0))


def test_there_are_no_sums_without_samples(features: RandomReLU) -> None:
    with pytest.raises(ValueError, match="add samples first"):
        Statistics.accumulator(features).statistics()


def test_images_and_sparse_rows_are_taken_as_the_classifier_takes_them() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    rows = sparse.random(60, 9000, density=0.01, format="csr", random_state=0)
    y = np.arange(60) % 3
    clf = CLDNetClassifier(random_state=0).partial_fit(rows, y)
    again = Statistics.accumulator(clf.feature_map_).add(rows, y).statistics()
    assert_equal(again, clf.statistics())
    images = RNG.integers(0, 256, size=(60, 8, 8, 3), dtype=np.uint8)
    clf = CLDNetClassifier(backbone="random-relu", random_state=0).partial_fit(images, y)
    again = Statistics.accumulator(clf.feature_map_).add(images.reshape(60, 8, 8, 3), y).statistics()
    assert_equal(again, clf.statistics())


def test_pickles_send_the_sums_out_of_band(features: RandomReLU) -> None:
    sums = Statistics.accumulator(features).add(X, Y).statistics()
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(sums, protocol=5, buffer_callback=buffers.append)
    assert len(content) < 4000
    assert sum(buffer.raw().nbytes for buffer in buffers) >= sums.tensors["second.packed"].nbytes
    read_only = [bytes(buffer.raw()) for buffer in buffers]
    loaded = pickle.loads(content, buffers=read_only)
    assert_equal(loaded, sums)
    loaded += Statistics.accumulator(features).add(X[:50] + 1, Y[:50]).statistics()
    assert loaded.rows == 450


# --- sessions that stream ---


def streamed(clf: CLDNetClassifier, size: int, x: Any = X, y: Any = Y) -> CLDNetClassifier:
    with clf.session(stream=True):
        for first in range(0, len(x), size):
            clf.partial_fit(x[first : first + size], y[first : first + size])
    return clf


@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_streamed_session_learns_what_one_call_does(features: RandomReLU, size: int) -> None:
    clf, one = streamed(CLDNetClassifier(backbone=features), size), CLDNetClassifier(backbone=features).fit(X, Y)
    assert_equal(clf.statistics(), one.statistics())
    assert (clf.predict(X) == one.predict(X)).all()
    assert [(each.total, each.digest) for each in clf.lessons_] == [(each.total, each.digest) for each in one.lessons_]
    assert clf.model_.learner.tasks == 1


def test_a_new_model_fits_its_map_on_the_first_pieces() -> None:
    clf = streamed(CLDNetClassifier(random_state=0), 10)
    first = CLDNetClassifier(random_state=0).partial_fit(X[:50], Y[:50])
    assert clf.feature_map_.map_id == first.feature_map_.map_id
    assert clf.statistics().rows == 400
    assert clf.model_.map_labels == {*Y[:50].tolist()}


def test_few_pieces_are_learned_at_the_end() -> None:
    clf = streamed(CLDNetClassifier(random_state=0), 5, X[:20], Y[:20])
    assert clf.statistics().rows == 20


def test_a_model_goes_on_with_a_stream(features: RandomReLU) -> None:
    clf = CLDNetClassifier(backbone=features, keep_lessons=2).partial_fit(X[:100], Y[:100])
    before, old = clf.statistics(), clf.model_
    with clf.lesson("more"):
        streamed(clf, 30, X[100:], Y[100:])
    assert clf.statistics().rows == 400
    assert float(old.exact.rows) == 100  # a thread that predicts with it is not disturbed
    assert [each.name for each in clf.lessons_] == [None, "more"]
    clf.undo("more")
    assert_equal(clf.statistics(), before)


def test_receipts_are_kept_of_streamed_samples(features: RandomReLU) -> None:
    clf = streamed(CLDNetClassifier(backbone=features, receipts=True), 100)
    assert clf.forget(X[:100], Y[:100]).statistics().rows == 300
    with pytest.raises(ValueError, match="no receipt"):
        clf.forget(X[:100], Y[:100])


def test_a_stream_that_fails_teaches_nothing(features: RandomReLU) -> None:
    clf = CLDNetClassifier(backbone=features).partial_fit(X[:100], Y[:100])
    before = clf.statistics()

    def stopped() -> None:
        with clf.session(stream=True):
            clf.partial_fit(X[100:], Y[100:])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stopped()
    assert_equal(clf.statistics(), before)


def test_a_piece_that_is_refused_is_left_out(features: RandomReLU) -> None:
    clf = CLDNetClassifier(backbone=features)
    with clf.session(stream=True):
        clf.partial_fit(X[:200], Y[:200])
        with pytest.raises(ValueError, match="features"):
            clf.partial_fit(X[:3, :2], Y[:3])
        clf.partial_fit(X[200:], Y[200:])
    assert clf.statistics().rows == 400


def test_what_a_stream_cannot_do() -> None:
    with pytest.raises(ValueError, match="needs all samples"), CLDNetClassifier("hbo").session(stream=True):
        pass
    with pytest.raises(ValueError, match="no checkpoint"), CLDNetClassifier().session("some.ckpt", stream=True):
        pass
    assert CLDNetClassifier()._session is None


def test_an_empty_stream_changes_nothing(features: RandomReLU) -> None:
    clf = CLDNetClassifier(backbone=features).fit(X, Y)
    with clf.session(stream=True):
        pass
    assert len(clf.lessons_) == 1


def test_the_limit_of_classes_holds_in_a_stream(features: RandomReLU) -> None:
    clf = CLDNetClassifier(backbone=features, capacity=4)
    with clf.session(stream=True):
        clf.partial_fit(X, Y)
        with pytest.raises(ValueError, match="room for 4 classes"):
            clf.partial_fit(X[:60], ["fox"] * 60)
    assert len(clf.classes_) == 4


def test_an_accumulator_is_what_a_model_adds_to(features: RandomReLU) -> None:
    clf = CLDNetClassifier(backbone=features)
    with clf.session(stream=True):
        clf.partial_fit(X, Y)
        opened = clf._session.opened()  # type: ignore[union-attr]
        assert isinstance(opened.sums, Accumulator)
        assert opened.sums.rows == 400


def test_weights_above_one_are_noted_for_private_sums(features: RandomReLU) -> None:
    light, heavy = np.full(len(X), 0.5), np.full(len(X), 2.0)
    assert Statistics.accumulator(features).add(X, Y, light).statistics().bounded
    sums = Statistics.accumulator(features).add(X[:9], Y[:9], heavy[:9]).add(X[9:], Y[9:])
    assert not sums.statistics().bounded
    clf = CLDNetClassifier(backbone=features)
    with clf.session(stream=True):
        clf.partial_fit(X, Y, sample_weight=heavy)
    assert not clf.statistics().bounded
