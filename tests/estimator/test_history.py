"""The history of lessons: what it says, that it takes a fixed number of bytes, and that it trusts no file."""

from __future__ import annotations

import copy
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cldnet.storage as store
from cldnet import CLDNetClassifier, Statistics
from cldnet.estimator import history
from cldnet.estimator.history import HISTORY_BYTES, History, LessonRecord
from cldnet.nets import RandomReLU

PUBLIC = RandomReLU((2,), features=16, seed=0)
PUBLIC.fit(torch.tensor([[0.0, 0.0], [9.0, 9.0]]))
FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "today", lambda: "2026-11-18")


def model(**parameters: Any) -> CLDNetClassifier:
    return CLDNetClassifier(**{"backbone": PUBLIC, "random_state": 0, **parameters})


def batch(seed: int, samples: int = 20, labels: str = "ab") -> tuple[np.ndarray, list[str]]:
    return np.random.default_rng(seed).normal(size=(samples, 2)), [labels[i % len(labels)] for i in range(samples)]


def told(clf: CLDNetClassifier) -> list[tuple[Any, ...]]:
    return [(one.number, one.name, one.action, one.total, one.samples) for one in clf.lessons_]


# -- what it says ------------------------------------------------------------------------------------------------------


def test_lessons_are_named_numbered_dated_and_counted_by_class() -> None:
    clf = model().fit(*batch(0))
    with clf.lesson("in pieces"):
        clf.partial_fit(*batch(1, 6)).partial_fit(*batch(2, 6, "c"))
    with clf.session():
        clf.partial_fit(*batch(3, 3)).partial_fit(*batch(4, 10))
    assert told(clf) == [
        (1, None, "learned", 20, {"a": 10, "b": 10}),
        (2, "in pieces", "learned", 12, {"a": 3, "b": 3, "c": 6}),
        (3, None, "learned", 13, {"a": 7, "b": 6}),
    ]
    assert {one.date for one in clf.lessons_} == {"2026-11-18"}
    assert [one.digest for one in clf.lessons_] == [known.hex() for known in clf.model_.lessons.ids]
    assert told(clf.fit(*batch(5))) == [(1, None, "learned", 20, {"a": 10, "b": 10})], "fit begins a new history"


def test_a_lesson_of_hbo_is_recorded_too() -> None:
    clf = CLDNetClassifier("hbo", embed_dim=8, capacity=4, epochs=1, random_state=0)
    with clf.lesson("first"):
        clf.partial_fit(*batch(0))
    clf.rename_class("a", "z")
    assert told(clf) == [(1, "first", "learned", 20, {"z": 10, "b": 10})]
    assert clf.predict(batch(0)[0]).tolist()
    assert clf.classes_.tolist() == ["b", "z"]


def test_small_calls_of_one_day_are_one_lesson_unless_something_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = model()
    for seed in range(3):
        clf.partial_fit(*batch(seed, 2))
    with clf.lesson():
        clf.partial_fit(*batch(3, 2))
    clf.partial_fit(*batch(4, 2)).partial_fit(*batch(5, 2))
    clf.partial_fit(*batch(6, 10)).partial_fit(*batch(7, 2))
    monkeypatch.setattr(history, "today", lambda: "2026-11-19")
    clf.partial_fit(*batch(8, 9))
    clf.forget(*batch(8, 9)).forget(*batch(7, 2))
    assert [(one.total, one.action, one.date[-2:]) for one in clf.lessons_] == [
        *[
            (6, "learned", "18"),
            (2, "learned", "18"),
            (4, "learned", "18"),
            (10, "learned", "18"),
            (2, "learned", "18"),
        ],
        *[(9, "learned", "19"), (11, "forgot", "19")],
    ]


def test_the_same_data_again_are_a_repetition() -> None:
    clf = model().fit(*batch(0)).partial_fit(*batch(1))
    with clf.lesson():
        clf.partial_fit(batch(0)[0][:12], batch(0)[1][:12])
        assert not clf.lessons_[-1].repeated
        clf.partial_fit(batch(0)[0][12:], batch(0)[1][12:])
    assert [one.repeated for one in clf.lessons_] == [False, False, True]
    assert clf.lessons_[2].digest == clf.lessons_[0].digest
    assert not clf.forget(*batch(1)).partial_fit(*batch(1)).lessons_[-1].repeated, "it was forgotten in between"


def test_data_that_were_learned_twice_are_known_until_they_are_forgotten_twice() -> None:
    clf = model().fit(*batch(0)).partial_fit(*batch(0)).forget(*batch(0))
    assert copy.deepcopy(clf).partial_fit(*batch(0)).lessons_[-1].repeated, "one copy is still there"
    clf.forget(*batch(0), allow_duplicates=True)
    assert not clf.partial_fit(*batch(0)).lessons_[-1].repeated


def test_data_that_were_forgotten_and_whose_second_lesson_was_undone_can_be_learned_again() -> None:
    clf = model(keep_lessons=3).fit(*batch(0)).forget(*batch(0))
    clf.partial_fit(*batch(0)).partial_fit(*batch(0))
    assert [one.repeated for one in clf.undo(3).lessons_ if one.action == "learned"] == [False, False]
    assert not clf.undo(4).partial_fit(*batch(0)).lessons_[-1].repeated


def test_what_was_forgotten_renamed_and_joined() -> None:
    clf = model().fit(*batch(0, 30, "abc")).forget(*batch(0, 30, "abc"), sample_weight=[1.0] * 5 + [0.0] * 25)
    assert told(clf)[1] == (2, None, "forgot", 5, {"a": 2, "b": 2, "c": 1})
    clf.rename_class("a", "z").join_classes(["b"], into="z")
    assert told(clf) == [(1, None, "learned", 30, {"z": 20, "c": 10}), (2, None, "forgot", 5, {"z": 4, "c": 1})]
    clf.forget_class("c")
    assert told(clf) == [
        (1, None, "learned", 30, {"z": 20}),
        (2, None, "forgot", 5, {"z": 4}),
        (3, None, "forgot", 9, {}),
    ], "the label of a class that is gone is not there"


def test_merging_adds_the_lessons_of_the_others(tmp_path: Path) -> None:
    here, there, old = model().fit(*batch(0)), model(), model().fit(*batch(2, 20, "c"))
    with there.lesson("there"):
        there.fit(*batch(1))
    there.statistics().save(tmp_path / "sums")
    sums = old.statistics()
    sums.history = History()  # as in files of older versions
    here.merge([Statistics.load(tmp_path / "sums"), sums])
    assert told(here)[1:] == [(2, "there", "learned", 20, {"a": 10, "b": 10}), (3, None, "merged", 20, {"c": 20})]
    assert told(model().fit(*batch(3)).merge([sums + there.statistics()]))[1:] == [
        (2, "there", "learned", 20, {"a": 10, "b": 10})
    ]
    here.partial_fit(*batch(4, 2))
    assert told(here)[-1][0] == 4
    here.merge([model().fit(*batch(5, 3))]).partial_fit(*batch(6, 2))
    assert [(one[0], one[3]) for one in told(here)[-2:]] == [(5, 3), (6, 2)], (
        "small calls join no lesson of another model"
    )


def test_a_failed_call_is_not_recorded() -> None:
    clf = model(capacity=2).fit(*batch(0))
    before = clf.model_
    with clf.lesson("bad"):
        for call in (lambda: clf.partial_fit(*batch(1, 20, "cd")), lambda: clf.forget(*batch(5))):
            with pytest.raises(ValueError, match=r"room|not learned"):
                call()
    assert clf.model_ is before
    for name in ("", "x" * 201, 7):
        with pytest.raises(ValueError, match=r"name=.* should be a text of 1 to 200 characters"), clf.lesson(name):
            pass
    with clf.lesson("x" * 200):
        clf.partial_fit(*batch(2))


@pytest.mark.parametrize("way", ["file", "pickle", "deepcopy"])
def test_a_history_goes_wherever_the_model_goes(way: str, tmp_path: Path) -> None:
    clf = model().fit(*batch(0)).partial_fit(*batch(1, 3))
    with clf.lesson("“Vögel”\n\ud800"):
        clf.partial_fit(*batch(2))
    clf.save(tmp_path / "model")
    twins = {
        "file": lambda: CLDNetClassifier.load(tmp_path / "model"),
        "pickle": lambda: pickle.loads(pickle.dumps(clf)),
        "deepcopy": lambda: copy.deepcopy(clf),
    }
    twin = twins[way]()
    assert twin.lessons_ == clf.lessons_
    twin.partial_fit(*batch(3))
    assert told(twin)[:-1] == told(clf)
    assert told(twin)[-1][0] == 4


def test_files_and_pickles_of_before_have_an_empty_history() -> None:
    old = [CLDNetClassifier.load(FIXTURES / "store" / layout / "exact.cldnet") for layout in "12345"]
    old.append(pickle.loads((FIXTURES / "goldens" / "exact.pickle").read_bytes()))
    for clf in old:
        assert clf.lessons_ == []
        assert clf.keep_lessons == 0
        clf.partial_fit(np.zeros((1, 4)), ["emu"])
        assert told(clf) == [(1, None, "learned", 1, {"emu": 1})]
    new = CLDNetClassifier.load(FIXTURES / "store" / "6" / "exact.cldnet")
    assert told(new) == [(1, "the first lesson", "learned", 18, {"cat": 6, "dog": 6, "owl": 6})]


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_the_bytes_are_constant_and_the_oldest_lessons_make_room() -> None:
    made = History()
    for number in range(1, 1001):
        made, own = made.noted("learned", {"cat": 20, "dog": number}, name=f"lesson {number}", digest=f"{number:032x}")
        assert own == number
        assert len(made.to_bytes()) == HISTORY_BYTES
    assert made.count == 1000
    numbers = [one.number for one in made.records]
    assert numbers == list(range(numbers[0], 1001))
    assert 200 < len(numbers) < 400
    assert History.from_bytes(made.to_bytes(), "str") == made


def test_the_classes_of_a_lesson_that_do_not_fit_are_not_named() -> None:
    made, _ = History().noted("learned", {"cat": 3})
    made, number = made.noted("learned", {f"class {i}": 2 for i in range(200)})
    assert made.records[1].samples is not None
    made, _ = made.noted("learned", {f"another class {i}": 2 for i in range(200)}, number=number)
    assert (made.records[1].samples, made.records[1].total) == (None, 800)
    made, _ = made.noted("learned", {"cat": 1}, number=number)
    assert (made.records[1].samples, made.records[1].total) == (None, 801)
    assert made.records[0].samples == {"cat": 3}
    renamed = made.relabelled({"cat": "x" * 5000})
    assert renamed.records[0].samples is None
    assert History.from_bytes(made.to_bytes(), "str") == made


LABELS = {"str": st.text(max_size=20), "int": st.integers(-(2**63), 2**63 - 1), "bool": st.booleans()}
LABELS["float"] = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x == int(x))


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from(sorted(LABELS)))
def test_whatever_is_noted_is_read_again(data: Any, kind: str) -> None:
    made = History()
    for _ in range(data.draw(st.integers(0, 12))):
        counts = data.draw(st.dictionaries(LABELS[kind], st.integers(1, 10**6), min_size=1))
        made, _ = made.noted(
            data.draw(st.sampled_from(["learned", "forgot"])),
            counts,
            number=data.draw(st.none() | st.integers(1, max(1, made.count))),
            name=data.draw(st.none() | st.text(min_size=1, max_size=200)),
            apart=data.draw(st.booleans()),
        )
        assert len(made.to_bytes()) == HISTORY_BYTES
    assert History.from_bytes(made.to_bytes(), kind) == made


def test_a_record_takes_next_to_no_time() -> None:
    made = History()
    for number in range(500):  # a history that is full
        made, _ = made.noted("learned", {"cat": 20}, name=f"lesson {number}", digest="0" * 32)
    seconds = []
    for _ in range(50):
        begun = time.perf_counter()
        made, _ = made.noted("learned", {"cat": 1}, apart=False)
        seconds.append(time.perf_counter() - begun)
    assert sorted(seconds)[25] < 5e-4, "it takes some 50 µs"


# -- files of strangers ------------------------------------------------------------------------------------------------

LINE = [1, None, "2026-11-18", "learned", 3, None, False, False, [["a", 3]]]


def written(*lines: Any, count: int = 5) -> bytes:
    import json

    text = f"{count:020d}\n" + "".join(json.dumps(line) + "\n" for line in lines)
    return text.encode().ljust(HISTORY_BYTES, b"\0")


def with_entry(place: int, value: Any) -> list[Any]:
    return [*LINE[:place], value, *LINE[place + 1 :]]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(HISTORY_BYTES),
        written(LINE)[:-1],
        written(LINE) + b"\0",
        b"5" + written(LINE)[:-1],
        written(LINE, LINE),
        written(with_entry(0, 2), LINE),
        written(with_entry(0, 6)),
        written(LINE, count=2**63),
        *(written(with_entry(0, bad)) for bad in (0, True, "1", 1.0, None)),
        *(written(with_entry(1, bad)) for bad in ("", "x" * 201, 5)),
        *(written(with_entry(2, bad)) for bad in (None, "today", "2026-11-18\n", 20261118)),
        *(written(with_entry(3, bad)) for bad in ("ate", None, [])),
        *(written(with_entry(4, bad)) for bad in (2, -3, True, "3", 1 << 70)),
        *(written(with_entry(5, bad)) for bad in ("0" * 31, "g" * 32, 0)),
        *(written(with_entry(place, bad)) for place in (6, 7) for bad in (0, None)),
        *(
            written(with_entry(8, bad))
            for bad in (3, [["a"]], [["a", -1]], [["a", True]], [[1, 3]], [["a", 1], ["a", 1]])
        ),
        written(LINE[:8]),
        written("lesson"),
        written(LINE).replace(b"learned", b"le\xffrned"),
        written(LINE).replace(b"3,", b"3;"),
    ],
)
def test_a_history_that_no_model_has_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        History.from_bytes(content, "str")
    assert History.from_bytes(written(LINE), "str").records == (
        LessonRecord(1, None, "2026-11-18", "learned", 3, {"a": 3}),
    )


@pytest.mark.parametrize("spoil", [lambda x: x[:-1], lambda x: x.float(), lambda x: x.reshape(2, -1), lambda x: x * 0])
def test_a_file_with_such_a_history_is_refused(spoil: Any, tmp_path: Path) -> None:
    clf = model().fit(*batch(0))
    clf.save(tmp_path / "model")
    clf.statistics().save(tmp_path / "sums")
    for name, load in {"model": CLDNetClassifier.load, "sums": Statistics.load}.items():
        tensors, manifest = store.read(tmp_path / name)
        store.write(tmp_path / name, {**tensors, "history": spoil(tensors["history"])}, manifest)
        with pytest.raises(ValueError, match=r"is not a valid .* history should"):
            load(tmp_path / name)


def test_a_repetition_of_data_that_are_remembered_otherwise_stays_one() -> None:
    made = History()
    for repeated in (True, True):  # the first of three is not in the history any more
        made, _ = made.noted("learned", {"cat": 20}, digest="0" * 32, repeated=repeated)
    assert [(one.number, one.repeated) for one in made.undone(1).records] == [(2, True)]
