"""Labels: any kind, one kind a table, rows by order of arrival, nothing ever moves, what left can come back."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.data.labels import LabelTable, as_labels

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
SESSIONS = st.one_of(
    [
        st.lists(st.lists(labels, min_size=1, max_size=6), min_size=1, max_size=5)
        for labels in (st.integers(-(2**63), 2**63 - 1), TEXT, st.booleans(), st.integers(-9, 9).map(float))
    ]
)


@settings(deadline=None)
@given(SESSIONS)
def test_rows_go_by_order_of_arrival_and_never_move(sessions: list[list[Any]]) -> None:
    table, order = LabelTable(capacity=100), []
    for labels in sessions:
        order += [label for label in dict.fromkeys(labels) if label not in order]
        assert table.learn(labels).tolist() == [order.index(label) for label in labels]
        assert table.rows(order).tolist() == list(range(len(order)))
    assert len(table) == len(order)
    assert table.classes.tolist() == sorted(order)
    assert [order[row] for row in table.columns] == sorted(order)
    assert {type(label) for label in table.classes.tolist()} == {type(label) for label in order}


@settings(deadline=None)
@given(SESSIONS)
def test_a_table_goes_through_json_and_learns_on_as_if_nothing_had_been(sessions: list[list[Any]]) -> None:
    table = LabelTable(capacity=100)
    for labels in sessions[:-1]:
        table.learn(labels)
    other = LabelTable.from_json(json.loads(json.dumps(table.to_json())))
    assert other.learn(sessions[-1]).tolist() == table.learn(sessions[-1]).tolist()
    assert other.to_json() == table.to_json()
    assert other.classes.dtype == table.classes.dtype


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([3, -1], dtype=np.int8), [3, -1]),
        (np.array([3, 1], dtype=np.uint64), [3, 1]),
        ([np.int64(3), np.int32(-1)], [3, -1]),
        (np.array([np.int64(3), 4], dtype=object), [3, 4]),
        (np.array([np.bool_(True), False], dtype=object), [True, False]),
        (np.array(["b", "a"], dtype=object), ["b", "a"]),
        ([np.str_("b"), "a"], ["b", "a"]),
        (pd.Series(["b", "a"]), ["b", "a"]),
        (pd.Series(["b", "a"], dtype="category"), ["b", "a"]),
        (pd.Series([3, 1], dtype="Int64"), [3, 1]),
        (["\0a", "b\0c"], ["\0a", "b\0c"]),
        ((1, 2.0), [1.0, 2.0]),
        (range(2), [0, 1]),
    ],
)
def test_labels_of_any_make_are_taken(labels: Any, expected: list[Any]) -> None:
    array = as_labels(labels)
    assert array.tolist() == expected
    assert [type(label) for label in array.tolist()] == [type(label) for label in expected]


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ([1, None], "None or NaN"),
        ([1.0, float("nan")], "NaN"),
        (np.array([1.0, np.nan]), "NaN or infinity"),
        (np.array([1.0, np.inf]), "NaN or infinity"),
        (np.array(["a", np.nan], dtype=object), "None or NaN"),
        (pd.Series(["a", None]), "None or NaN"),
        (pd.Series([1, pd.NA], dtype="Int64"), "NaN"),
        (np.array(["a", pd.NA], dtype=object), "None or NaN"),
        ([1, "a"], r"mixes labels of types \['int', 'str'\]"),
        ([True, 2], r"mixes labels of types \['bool', 'int'\]"),
        (np.array([1, "a"], dtype=object), "mixes labels of types"),
        ([0.5, 1.5], "Unknown label type: continuous"),
        ([object(), object()], "Unknown label type"),
        ([b"a", b"b"], "Unknown label type"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "labels are integers"),
        ([[1], [2]], "y should be a 1d array"),
        ([[1], [2, 3]], "y is ragged"),
        (3, "y should be a 1d array"),
        (np.array([2**63], dtype=np.uint64), "use strings"),
        ([2**70], "labels are integers"),
        (
            ["a\0", "b"],
            r"the label 'a\\x00', which ends in a NUL character, and numpy drops those.*: name the class without it",
        ),
        (np.array(["b", "a\0"], dtype=object), "ends in a NUL character"),
        (pd.Series(["b", "\0"], dtype=object), "ends in a NUL character"),
        ({"a": 1}, "got a dict instead: give one, such as a list, an array or a column"),
    ],
)
def test_what_is_no_label_is_refused_with_a_sentence(labels: Any, complaint: str) -> None:
    table = LabelTable(capacity=5)
    with pytest.raises(ValueError, match=complaint):
        table.learn(labels)
    assert table.to_json() == LabelTable(capacity=5).to_json()


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        ([1, 2], ["a"], "Labels of type str cannot follow labels of type int"),
        ([True], [1], "Labels of type int cannot follow labels of type bool"),
        (["1"], [1], "Labels of type int cannot follow labels of type str"),
        (
            [1, 2],
            [3, 4, 5],
            r"4 classes, 2 are taken and y has 3 new ones: clf.extend\(8\) makes room and keeps .*`cldnet extend MODEL 8`",
        ),
        ([], [1, 2, 3, 4, 5], "room for 4 classes, 0 are taken and y has 5 new ones: make the model with capacity=8"),
    ],
)
def test_labels_that_do_not_go_with_the_table_leave_it_as_it_was(first: Any, second: Any, complaint: str) -> None:
    table = LabelTable(capacity=4)
    table.learn(first)
    before = table.to_json()
    with pytest.raises(ValueError, match=complaint):
        table.learn(second)
    assert table.to_json() == before


def test_rows_of_labels_that_are_not_in_the_table_are_minus_one() -> None:
    table = LabelTable(capacity=4)
    table.learn(["b", "a"])
    assert table.rows(["a", "z", "b"]).tolist() == [1, -1, 0]
    assert len(table) == 2


# -- labels that left --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(SESSIONS, st.data())
def test_a_removed_label_leaves_nothing_and_those_behind_it_move_up(sessions: list[list[Any]], data: Any) -> None:
    table = LabelTable(capacity=100)
    order = list(dict.fromkeys(label for labels in sessions for label in labels))
    table.learn(order)
    gone = data.draw(st.lists(st.sampled_from(order), unique=True))
    assert sorted(table.remove(gone).tolist()) == sorted(order.index(label) for label in gone)
    left = [label for label in order if label not in gone]
    assert len(table) == len(left)
    assert table.classes.tolist() == sorted(left)
    assert table.by_row.tolist() == left
    assert [left[row] for row in table.columns] == sorted(left)
    assert table.rows(order).tolist() == [left.index(label) if label in left else -1 for label in order]
    twin = LabelTable.from_json(json.loads(json.dumps(table.to_json())))
    assert twin.to_json() == table.to_json()
    fresh = LabelTable(capacity=100)
    fresh.learn(left)
    assert {**fresh.to_json(), "kind": table.kind} == table.to_json()
    for other in (table, twin):
        assert other.learn(order).tolist() == [
            [*left, *(each for each in order if each in gone)].index(x) for x in order
        ]
        assert other.classes.tolist() == sorted(order)


def test_a_removed_label_gives_its_room_back_and_the_type_stays() -> None:
    table = LabelTable(capacity=2)
    table.learn(["a", "b"])
    table.remove(["a"])
    assert table.learn(["c"]).tolist() == [1]
    with pytest.raises(ValueError, match="room for 2 classes, 2 are taken and y has 1 new"):
        table.learn(["a"])
    table.remove(["b", "c"])
    for empty in (table, LabelTable.from_json(table.to_json())):
        with pytest.raises(ValueError, match="Labels of type int cannot follow labels of type str"):
            empty.learn([1])


def test_a_label_that_an_older_version_retired_keeps_its_row_until_others_are_removed() -> None:
    state = {"capacity": 4, "kind": "str", "labels": ["a", "b", "c"], "retired": ["a"], "counts": [0, 5, 6]}
    old, again = LabelTable.from_json(state), LabelTable.from_json(state)
    assert old.to_json() == state
    assert (len(old), old.classes.tolist(), old.rows(["a", "b"]).tolist()) == (3, ["b", "c"], [-1, 1])
    assert again.learn(["a"]).tolist() == [0]
    assert again.classes.tolist() == ["a", "b", "c"]
    assert old.remove(["b"]).tolist() == [0, 1]
    assert old.to_json() == {"capacity": 4, "kind": "str", "labels": ["c"], "retired": [], "counts": [6]}


@pytest.mark.parametrize("change", ["remove", "rename"])
@pytest.mark.parametrize(
    ("label", "complaint"),
    [
        (7, "There is no class 7: 1, 2 are known"),
        (3, "There is no class 3: 1, 2 are known"),
        (True, "Labels of type bool cannot follow labels of type int"),
        ("1", "Labels of type str cannot follow labels of type int"),
        (None, "None or NaN"),
    ],
)
def test_a_label_that_is_not_there_cannot_be_removed_or_renamed(label: Any, complaint: str, change: str) -> None:
    table = LabelTable(capacity=4)
    table.learn([3, 1, 2])
    table.remove([3])
    before = table.to_json()
    with pytest.raises(ValueError, match=complaint):
        table.remove([label]) if change == "remove" else table.rename(label, 5)
    assert table.to_json() == before


def test_a_renamed_label_keeps_its_row_its_count_and_its_dates() -> None:
    table = LabelTable(capacity=4)
    table.learn(["b", "a", "c"])
    table.count_samples(["a", "a", "b"])
    table.note_date(["a"], "2026-11-17")
    table.rename("a", "z")
    assert table.by_row.tolist() == ["b", "z", "c"]
    assert table.counts == {"b": 1, "c": 0, "z": 2}
    assert table.dates == {"z": ("2026-11-17", "2026-11-17")}
    before = table.to_json()
    for new, complaint in (
        (1, "type int cannot follow"),
        ("b", r"use join_classes\(\['z'\], into='b'\), or `cldnet join`"),
        (None, "None"),
    ):
        with pytest.raises(ValueError, match=complaint):
            table.rename("z", new)
    assert table.to_json() == before


def test_examples_are_counted_taken_off_and_forgotten_with_their_class() -> None:
    table = LabelTable(capacity=4)
    table.learn(["b", "a"])
    table.count_samples(["a", "a", "b", "a"])
    table.count_samples(["a"], sign=-1)
    assert table.counts == {"a": 2, "b": 1}
    again = LabelTable.from_json(table.to_json())
    assert again.to_json() == table.to_json()
    again.remove(["a"])
    again.learn(["a"])
    assert again.counts == {"a": 0, "b": 1}


def test_no_label_has_fewer_examples_than_none() -> None:
    table = LabelTable(capacity=4)
    table.learn(["a", "b"])
    table.count_samples(["a", "b", "b"])
    table.count_samples(["a", "a", "b"], sign=-1)
    assert table.counts == {"a": 0, "b": 1}
    table.count_samples(["a"])
    assert LabelTable.from_json(table.to_json()).counts == {"a": 1, "b": 1}


def test_rows_without_weight_are_no_examples() -> None:
    table = LabelTable(capacity=4)
    table.learn(["a", "b"])
    table.count_samples(["a"] * 12 + ["b"], np.array([1.0] + [0.0] * 11 + [0.5]))
    assert table.counts == {"a": 1, "b": 1}
    table.count_samples(["b", "a"], np.array([0.5, 0.0]), sign=-1)
    assert table.counts == {"a": 1, "b": 0}


def test_what_was_not_counted_stays_unknown() -> None:
    known, unknown = LabelTable(capacity=4), LabelTable(capacity=4)
    known.learn(["a", "b"])
    known.count_samples(["a", "b"])
    unknown.learn(["a"])
    unknown.add_counts({"a": None})
    known.add_counts(unknown.counts)
    known.count_samples(["a", "b"])
    assert known.counts == {"a": None, "b": 2}


@pytest.mark.parametrize("counts", [[1], [1, -2], [1, 2.0], [1, True], [1, "2"]])
def test_counts_that_cannot_be_are_refused(counts: list[Any]) -> None:
    state = {"capacity": 4, "kind": "str", "labels": ["b", "a"], "retired": [], "counts": counts}
    with pytest.raises(ValueError, match="a number of samples per label"):
        LabelTable.from_json(state)


def test_many_unknown_labels_are_named_in_part() -> None:
    table = LabelTable(capacity=20)
    table.learn(range(10))
    with pytest.raises(ValueError, match=r"no class 20, 21, 22, 23, 24, 25, …: 0, 1, 2, 3, 4, 5, … are known"):
        table.known_rows([*range(10), *range(20, 30)])


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"capacity": 4, "kind": "bytes", "labels": ["a"]}, "unknown type of label"),
        ({"capacity": 4, "kind": "str", "labels": ["a", "a"]}, "has a label twice"),
        ({"capacity": 4, "kind": "str", "labels": ["a", "b\0"]}, "ends in a NUL character"),
        ({"capacity": 1, "kind": "int", "labels": [1, 2]}, "room for 1 classes"),
        ({"capacity": 4, "kind": "int", "labels": [1, 2], "retired": [3]}, "no class 3"),
        ({"capacity": 4, "kind": "int", "labels": [1, 2], "retired": [1, 1]}, "no class 1"),
    ],
)
def test_a_damaged_table_is_refused(state: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        LabelTable.from_json({"retired": [], "counts": [1, 1], **state})


def test_days_of_another_table_are_merged() -> None:
    table, other = LabelTable(3), LabelTable(3)
    for each, days in ((table, ("2025-01-01", "2026-11-17")), (other, ("2024-05-05", "2025-02-02"))):
        each.learn(["cat", "owl"])
        for day in days:
            each.note_date(["cat"], day)
    other.note_date(["owl"], "2024-01-01")
    table.take_over(other)
    assert table.dates == {"cat": ("2024-05-05", "2026-11-17"), "owl": ("2024-01-01", "2024-01-01")}


def test_days_are_kept_through_files_and_gone_with_the_label() -> None:
    table = LabelTable(capacity=3)
    table.learn(["cat", "dog"])
    table.note_date(["cat", "cat"], "2026-11-17")
    table.note_date(["cat"], "2025-01-01")
    again = LabelTable.from_json(json.loads(json.dumps(table.to_json())))
    assert again.dates == table.dates == {"cat": ("2025-01-01", "2026-11-17")}
    twin = copy.deepcopy(table)
    table.remove(["cat"])
    assert table.dates == {}
    assert twin.dates == again.dates
    assert "days" not in table.to_json()


@pytest.mark.parametrize(
    "days", [[], ["2026-11-17"], [["2026-11-17", "2025-01-01"]], [["today", "today"]], [[1, 2]], 5]
)
def test_days_that_cannot_be_are_refused(days: Any) -> None:
    table = LabelTable(capacity=3)
    table.learn(["cat"])
    with pytest.raises(ValueError, match="a first and a last date"):
        LabelTable.from_json({**table.to_json(), "days": days})
