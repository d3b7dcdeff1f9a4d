"""Streams made from streams: what moves, and what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.streams import split_digits

from cldnet import Stream
from cldnet.data.dataset import Dataset, Part
from cldnet.data.streams import (
    blurry,
    domains,
    long_tailed,
    online,
    permutations,
    returning,
    stream_by_name,
    thinned,
)

VARIANTS: dict[str, Callable[[Stream], Stream]] = {
    "online": lambda stream: online(stream, 10),
    "blurry": blurry,
    "returning": returning,
    "long_tailed": long_tailed,
    "thinned": lambda stream: thinned(stream, 0.33),
}


def make(classes: int = 6, count: int = 20, per_task: int = 2) -> Stream:
    y = np.repeat(np.arange(classes), count)
    return Stream.from_arrays(np.arange(2.0 * len(y)).reshape(-1, 2), y, classes_per_task=per_task, seed=0)


def numbers(stream: Stream, part: str = "train") -> list[int]:
    return [row for plan in stream.plans for row in getattr(plan, part).tolist()]


def counts(stream: Stream, task: int) -> Counter[Any]:
    return Counter(stream.train_part.y[stream.plans[task].train.numpy()].tolist())


@pytest.mark.parametrize("name", VARIANTS)
def test_tests_stay_as_they_were_and_the_hash_tells_the_streams_apart(name: str) -> None:
    plain = make()
    varied = VARIANTS[name](plain)
    assert varied != plain
    assert VARIANTS[name](plain) == varied
    assert varied.tasks == plain.tasks
    assert numbers(varied, "test") == numbers(plain, "test")


@pytest.mark.parametrize("name", VARIANTS)
def test_class_rows_go_by_arrival(name: str) -> None:
    stream = VARIANTS[name](make())
    seen = 0
    for task in stream:
        assert [stream.class_order[row] for row in task.test.y.unique()] == [
            label for label in stream.class_order if label in task.classes
        ]
        fresh = [row for row in task.train.class_rows.tolist() if row >= seen]
        assert fresh == list(range(seen, seen + len(fresh)))  # no gap: nothing is a candidate before it has arrived
        seen += len(fresh)
    assert seen == len(stream.class_order) == 6


@settings(deadline=None, max_examples=25)
@given(st.floats(0.05, 0.9), st.integers(0, 9), st.sampled_from([blurry, returning]))
def test_rows_move_and_none_is_lost_or_doubled(share: float, seed: int, vary: Callable[..., Stream]) -> None:
    plain = make()
    moved = vary(plain, share, seed)
    assert sorted(numbers(moved)) == sorted(numbers(plain))
    for task, classes in enumerate(plain.tasks):
        for label in classes:
            here, before = counts(moved, task)[label], counts(plain, task)[label]
            last = vary is returning and task == len(plain) - 1
            assert here == (before if last else before - min(round(share * before), before - 1))


def test_a_blurry_class_turns_up_in_every_other_task_in_equal_parts() -> None:
    stream = blurry(make(count=80), 0.5)  # 60 rows of every class to train on, 30 of them move to 2 other tasks
    for task, classes in enumerate(stream.tasks):
        for label in classes:
            assert [counts(stream, other)[label] for other in range(3) if other != task] == [15, 15]


def test_a_class_that_comes_back_comes_back_once_and_later() -> None:
    stream = returning(make(classes=10, per_task=2), 0.4)
    distances = set()
    for task, classes in enumerate(stream.tasks[:-1]):
        for label in classes:
            found = [other for other in range(len(stream)) if counts(stream, other)[label]]
            assert found[0] == task
            assert len(found) == 2
            distances.add(found[1] - found[0])
    assert len(distances) > 1  # not always the next


def test_a_long_tail_has_the_ratio_that_was_asked_for() -> None:
    drawn = long_tailed(make(classes=5, count=400, per_task=1), 0.01, seed=3)
    sizes = [300, 95, 30, 9, 3]  # 300 · 0.01^(k/4)
    assert sorted((len(task.train) for task in drawn), reverse=True) == sizes
    assert [len(task.train) for task in drawn] != sizes
    assert min(len(task.train) for task in long_tailed(make(), 0.001)) >= 2  # one row a class is left


def test_the_seed_ranks_the_classes_of_a_long_tail_apart_from_their_order() -> None:
    ranked = set()
    for seed in range(3):
        stream = stream_by_name("split-digits,long_tail=0.1", seed)
        found = Counter(stream.train_part.y[numbers(stream)].tolist())
        ranked.add(tuple(sorted(found, key=found.__getitem__)))
    assert len(ranked) == 3


@settings(deadline=None, max_examples=15)
@given(st.floats(0.001, 0.999), st.integers(0, 3))
def test_a_share_of_every_class_stays_and_at_least_one_row(share: float, seed: int) -> None:
    plain, fewer = make(), thinned(make(), share, seed)
    assert set(numbers(fewer)) <= set(numbers(plain))
    for task, classes in enumerate(plain.tasks):
        assert counts(fewer, task) == {label: max(1, round(share * counts(plain, task)[label])) for label in classes}


def test_the_same_rows_stay_in_every_class_order() -> None:
    first, second = (stream_by_name("split-digits,train=0.33", seed) for seed in (0, 1))
    assert first.class_order != second.class_order
    assert sorted(numbers(first)) == sorted(numbers(second))


def test_a_validation_part_is_cut_from_all_training_rows_before_they_are_thinned() -> None:
    whole = stream_by_name("split-digits,validation=0.2", 3)
    for text in ("split-digits,validation=0.2,train=0.33", "split-digits,train=0.33,validation=0.2"):
        fewer = stream_by_name(text, 3)
        assert fewer.name == "split-digits,validation=0.2,train=0.33"
        assert numbers(fewer, "test") == numbers(whole, "test")
        assert set(numbers(fewer)) < set(numbers(whole))
        assert len(numbers(fewer)) == pytest.approx(0.33 * len(numbers(whole)), abs=5)


def test_tasks_that_share_their_rows_keep_the_same_ones() -> None:
    part = make().train_part
    fewer = thinned(domains(Dataset("d", part, part), permutations(2), "permuted"), 0.25)
    assert fewer.plans[0].train.tolist() == fewer.plans[1].train.tolist()
    assert counts(fewer, 1) == dict.fromkeys(range(6), 5)


def test_variants_can_be_combined_and_validated() -> None:
    stream = online(blurry(long_tailed(split_digits(1), 0.2), 0.1), 5)
    assert stream_by_name("split-digits,long_tail=0.2,blurry=0.1,online=5", 1).name.endswith(",blurry=0.1,online=5")
    held = stream.with_validation(0.3)
    assert held.online == 5
    assert not set(numbers(held)) & set(numbers(held, "test"))
    assert set(numbers(held)) | set(numbers(held, "test")) == set(numbers(stream))
    for plan in held.plans:
        assert set(held.test_part.y[plan.test.numpy()].tolist()) == set(plan.classes)


def test_a_blurry_stream_can_be_cut() -> None:
    cut = blurry(make(), 0.3)[:2]
    assert len(cut.class_order) == 6  # rows of the third task's classes have come already
    for task in cut:
        labels = [cut.class_order[row] for row in task.train.y.tolist()]
        assert labels == cut.train_part.y[task.plan.train.numpy()].tolist()


def test_a_task_is_not_tested_on_what_has_not_come() -> None:
    stream = long_tailed(returning(make(classes=10, count=40), 0.9), 0.01, seed=3)
    with pytest.raises(ValueError, match=r"Task \d of arrays is tested on \d, but no training sample of that class"):
        _ = stream.class_order


@pytest.mark.parametrize(
    ("vary", "complaint"),
    [
        (lambda s: online(s, 0), "expected at least 1 sample"),
        (lambda s: blurry(s, 1.5), "A share of 1.5 of every class cannot move"),
        (lambda s: blurry(s[:1]), "arrays has one task"),
        (lambda s: blurry(s, 0.001), "No sample of arrays would move"),
        (lambda s: returning(s, 0.0), "A share of 0.0 of every class cannot move"),
        (lambda s: long_tailed(s, 2.0), "long_tail=2.0 is not possible"),
        (lambda s: thinned(s, 1.0), "train=1.0 is not a share"),
    ],
)
def test_what_cannot_be_is_refused(vary: Callable[[Stream], Stream], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        vary(make())


def test_tasks_that_share_their_classes_have_no_boundary_to_blur() -> None:
    part = Part(make().train_part.x, make().train_part.y)
    with pytest.raises(ValueError, match="The tasks of permuted share their classes"):
        blurry(domains(Dataset("d", part, part), permutations(2), "permuted"))
