"""Ids of lessons are kept in a table of fixed size; receipts are read from files as from a stranger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cldnet import CLDNetClassifier
from cldnet.data.arrays import Samples
from cldnet.data.labels import LabelTable
from cldnet.estimator.history import History
from cldnet.estimator.lessons import Lesson, Lessons, Receipts, read_lessons, sample_digests, write_lessons
from cldnet.nets import RandomReLU

IDS = st.lists(st.binary(min_size=16, max_size=16).filter(any), max_size=300)


def rows(x: Any, y: Any, weight: Any = None) -> Samples:
    return Samples.checked(x, y, weight, None, LabelTable(capacity=100))


@given(IDS)
def test_the_table_keeps_the_newest_ids_in_a_fixed_number_of_bytes(ids: list[bytes]) -> None:
    lessons = Lessons()
    for one in ids:
        lessons = lessons.added(one)
    newest_first = list(dict.fromkeys(reversed(ids)))
    assert [*reversed(lessons.ids)] == newest_first[:256]
    assert lessons.to_tensor().shape == (256, 16)
    assert Lessons.from_tensor(lessons.to_tensor()) == lessons


@pytest.mark.parametrize(
    "spoil",
    [
        lambda table: table[:255],
        lambda table: table.to(torch.int16),
        lambda table: torch.cat([table[:1], table[:1], table[2:]]),
        lambda table: torch.cat([table[1:2] * 0, table[1:]]),
    ],
    ids=["size", "type", "twice", "gap"],
)
def test_ids_that_no_model_has_are_refused(spoil: Any) -> None:
    lessons = Lessons().added(b"a" * 16, b"b" * 16)
    with pytest.raises(ValueError, match="lessons should"):
        Lessons.from_tensor(spoil(lessons.to_tensor()))


def test_a_lesson_of_nine_rows_leaves_no_id_and_one_of_ten_does() -> None:
    x, y = np.arange(20.0).reshape(10, 2), ["a"] * 10
    for weight, known in (([1.0] * 10, 1), ([0.0] + [1.0] * 9, 0)):  # a row without weight does not count
        lesson, part = Lesson(), rows(x, y, weight)
        lesson.add(part, sample_digests(part))
        learned = lesson.learned(Lessons())
        assert len(learned.ids) == known
        assert learned.shared(lesson.forgotten(learned, History())) == 0


def test_a_lesson_is_forgotten_once_unless_it_is_learned_again() -> None:
    part = rows(np.arange(20.0).reshape(10, 2), ["a"] * 10)

    def lesson() -> Lesson:
        made = Lesson()
        made.add(part, sample_digests(part))
        return made

    learned = lesson().learned(Lessons())
    lesson().check_once(learned, part, sample_digests(part))
    gone = lesson().forgotten(learned, History())
    assert gone.learned == ()
    with pytest.raises(ValueError, match=r"were forgotten before.*allow_duplicates=True"):
        lesson().check_once(gone, part, sample_digests(part))
    assert lesson().learned(gone) == learned
    assert Lessons().merged(gone) == Lessons()  # what another model forgot may have been learned here
    part = rows(np.tile(np.arange(10.0).reshape(5, 2), (2, 1)), ["a"] * 10)
    with pytest.raises(ValueError, match="are all passed more than once"):
        lesson().check_once(Lessons(), part, sample_digests(part))


def test_a_digest_is_of_the_numbers_and_the_weight() -> None:
    x = np.array([[0.0, 1.0], [2.0, 3.0]])
    plain = sample_digests(rows(x, ["a", "b"]))
    assert (
        plain
        == sample_digests(rows(x.astype(np.float32), [1, 2]))
        == sample_digests(rows(x.tolist(), ["a", "b"], [1, 1]))
    )
    assert plain == sample_digests(rows(np.array([[-0.0, 1.0], [2.0, 3.0]]), ["a", "b"]))
    assert len({*plain, *sample_digests(rows(x + 1, ["a", "b"])), *sample_digests(rows(x, ["a", "b"], [2, 2]))}) == 6


def table() -> LabelTable:
    labels = LabelTable(capacity=4)
    labels.learn(["a", "b"])
    return labels


def test_receipts_are_written_and_read() -> None:
    part = rows([[1.0], [2.0], [3.0]], ["a", "b", "b"])
    receipts = (
        Receipts.new().learned(part, sample_digests(part)).merged(Receipts.new().learned(part, sample_digests(part)))
    )
    tensors, manifest = write_lessons(Lessons(), receipts, table())
    assert tensors["receipts"].shape == (6, 16)
    lessons, read, _ = read_lessons(tensors, manifest, table())
    assert lessons == Lessons()
    assert read is not None
    assert (read.salts, write_lessons(lessons, read, table())[1]) == (receipts.salts, manifest)
    left = read.forgotten(part, sample_digests(part)).forgotten(part, sample_digests(part))
    assert not any(left.digests.values())
    assert read_lessons({}, {}, table()) == (Lessons(), None, {})  # a file of before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors, said: tensors.pop("receipts"),
        lambda tensors, said: said.update(receipts=None),
        lambda tensors, said: said["receipts"][0].update(salt="00"),
        lambda tensors, said: said["receipts"][0].update(salt=7),
        lambda tensors, said: said["receipts"][0].update(counts=[1, 1]),
        lambda tensors, said: said["receipts"][0].update(counts=[-1, 4]),
        lambda tensors, said: said["receipts"][0].update(counts=[3]),
        lambda tensors, said: said["receipts"].append(said["receipts"][0] | {"counts": [0, 0]}),
        lambda tensors, said: said.update(receipts="all"),
        lambda tensors, said: tensors.update(receipts=tensors["receipts"][:, :8]),
        lambda tensors, said: tensors.update(receipts=tensors["receipts"].float()),
    ],
)
def test_receipts_that_no_model_has_are_refused(spoil: Any) -> None:
    part = rows([[1.0], [2.0], [3.0]], ["a", "b", "b"])
    tensors, manifest = write_lessons(Lessons(), Receipts.new().learned(part, sample_digests(part)), table())
    spoil(tensors, manifest)
    with pytest.raises(ValueError, match="its receipts"):
        read_lessons(tensors, manifest, table())


PUBLIC = RandomReLU((2,), features=16, seed=0)
PUBLIC.fit(torch.tensor([[0.0, 0.0], [9.0, 9.0]]))


def batch(seed: int, samples: int = 20) -> tuple[np.ndarray, list[str]]:
    return np.random.default_rng(seed).normal(size=(samples, 2)), ["a", "b"] * (samples // 2)


def model() -> CLDNetClassifier:
    return CLDNetClassifier(backbone=PUBLIC, random_state=0)


def ids(clf: CLDNetClassifier) -> tuple[bytes, ...]:
    return clf.model_.lessons.ids


def test_a_model_merged_within_a_lesson_is_not_merged_twice() -> None:
    here, there = model().fit(*batch(0)), model().fit(*batch(1))
    with here.lesson():
        here.merge([there]).partial_fit(*batch(2))
    assert ids(here) == (*ids(model().fit(*batch(0))), *ids(there), *ids(model().fit(*batch(2))))
    with pytest.raises(ValueError, match="allow_duplicates"):
        here.merge([there])


def test_fit_within_a_lesson_begins_it_again() -> None:
    clf = model().fit(*batch(0))
    with clf.lesson():
        clf.partial_fit(*batch(1))
        clf.fit(*batch(2, 10))
        clf.partial_fit(*batch(3, 10))
    fresh = model()
    with fresh.lesson():
        fresh.partial_fit(*batch(3, 10)).partial_fit(*batch(2, 10))
    assert ids(clf) == ids(fresh)


def test_a_lesson_within_a_lesson_is_refused() -> None:
    clf = model()
    with clf.lesson():
        with pytest.raises(RuntimeError, match="already open"), clf.lesson():
            pass
        clf.partial_fit(*batch(0, 10)).partial_fit(*batch(1, 10))
    assert len(ids(clf)) == 1


def test_a_refused_call_adds_nothing_to_its_lesson() -> None:
    strict, clf = model(), model()
    for each in (strict, clf):
        each.fit(*batch(0)).partial_fit(*batch(1))
    with strict.lesson(), clf.lesson():
        with pytest.raises(ValueError, match="more than once"):
            clf.forget(np.zeros((10, 2)), ["a"] * 10)
        for each in (strict, clf):
            each.forget(*batch(0))
    assert ids(clf) == ids(strict)


def test_a_lesson_keeps_the_id_of_an_equal_one_before_it() -> None:
    clf = model().fit(*batch(0))
    with clf.lesson():
        clf.partial_fit(*batch(0)).partial_fit(*batch(1))
    assert {*ids(model().fit(*batch(0)))} < {*ids(clf)}
    assert len(ids(clf)) == 2
