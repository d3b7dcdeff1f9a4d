"""The shards of a lesson in a model's history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cldnet.estimator.history import HISTORY_BYTES, History, LessonRecord, Manifest, ShardRecord


def record(count: int) -> LessonRecord:
    shards = [ShardRecord(f"data/part-{at}.parquet", 0, 1000, 8000, f"{at:032x}"[::-1]) for at in range(count)]
    return LessonRecord(
        1, "march", "2026-11-20", "learned", count, {"a": count}, manifest=Manifest.of(shards)
    ).limited()


def again(one: LessonRecord) -> LessonRecord:
    history = History((one,), 1)
    assert len(history.to_bytes()) == HISTORY_BYTES
    return History.from_bytes(history.to_bytes(), "str").records[0]


@pytest.mark.parametrize(("count", "listed", "known"), [(1, 1, 1), (30, 30, 30), (150, 0, 150), (5000, 0, 0)])
def test_a_history_lists_the_shards_as_far_as_there_is_room(count: int, listed: int, known: int) -> None:
    found = again(record(count)).manifest
    assert found is not None
    assert (found.count, len(found.shards), len(found.ids)) == (count, listed, known)
    assert len(set(found.ids)) == known


def test_shards_come_back_as_they_were() -> None:
    one = again(record(2))
    assert one == record(2)
    assert one.manifest is not None
    assert one.manifest.shards[1] == ShardRecord("data/part-1.parquet", 0, 1000, 8000, "1" + "0" * 15)


def test_a_shard_of_few_samples_has_no_id() -> None:
    manifest = Manifest.of([ShardRecord("x.csv", 0, 3, 20, None)])
    assert manifest.ids == ()
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        [0, [], ""],
        [True, [], ""],
        [1, [["a", 0, 1, 2]], ""],
        [1, [["a", -1, 1, 2, None]], ""],
        [1, [["a", 0, True, 2, None]], ""],
        [1, [["a", 0, 1, 2, "xyz"]], ""],
        [2, [["a", 0, 1, 2, None]], ""],
        [1, [], "0123"],
        [1, [], "0" * 32],
        [1, [], "g" * 16],
    ],
)
def test_a_forged_list_of_shards_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="list of shards"):
        Manifest.from_json(wrong)


def test_records_without_shards_are_written_as_before() -> None:
    one = LessonRecord(1, None, "2026-11-20", "learned", 1, {"a": 1})
    assert len(json.loads(one.line)) == 9
    assert again(one).manifest is None
