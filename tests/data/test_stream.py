"""Streams: values that say which classes come when."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet import Stream
from cldnet.data.stream import Task

LABELS = np.array(["ant", "bee", "cat", "dog", "eel"])


def arrays(classes: int = 5, count: int = 8) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows that are all different, so that each can be found again."""
    y = np.arange(classes * count) % classes
    return np.arange(3.0 * len(y)).reshape(len(y), 3), LABELS[y]


def make(**options: Any) -> Stream:
    return Stream.from_arrays(*arrays(), **{"classes_per_task": 2, **options})


def ids(data: Any) -> set[float]:
    return set(data.x[:, 0].tolist())


@settings(deadline=None, max_examples=40)
@given(
    classes=st.integers(1, 5),
    count=st.integers(3, 8),
    per_task=st.integers(1, 6),
    seed=st.none() | st.integers(0, 99),
    share=st.floats(0.05, 0.6),
)
def test_tasks_share_out_all_rows_and_rows_go_by_order_of_arrival(
    classes: int, count: int, per_task: int, seed: int | None, share: float
) -> None:
    X, y = arrays(classes, count)
    stream = Stream.from_arrays(X, y, classes_per_task=per_task, seed=seed, test_size=share)
    label_of = dict(zip(X[:, 0], y.tolist(), strict=True))
    assert sorted(stream.class_order) == sorted(set(y.tolist()))
    assert len(stream) == len(list(stream)) == -(-classes // per_task)
    found: list[float] = []
    for task, names in zip(stream, stream.tasks, strict=True):
        assert task.classes == names
        for part in (task.train, task.test):
            found += part.x[:, 0].tolist()
            assert {stream.class_order[row] for row in part.y.tolist()} == set(names)  # every class in either part
            for row, number in zip(part.y.tolist(), part.x[:, 0].tolist(), strict=True):
                assert stream.class_order[row] == label_of[number]
    assert sorted(found) == sorted(X[:, 0])


def test_classes_stay_sorted_without_a_seed() -> None:
    assert make(seed=None).tasks == (("ant", "bee"), ("cat", "dog"), ("eel",))


def test_the_test_part_is_the_same_for_every_class_order() -> None:
    first, second = make(seed=0), make(seed=1)
    assert first.class_order != second.class_order
    assert ids(first.test) == ids(second.test)
    assert ids(first.train) == ids(second.train)
    assert ids(make(split_seed=1).test) != ids(first.test)


def test_a_test_part_can_be_given() -> None:
    X, y = arrays()
    stream = Stream.from_arrays(X, y, X_test=X[:5] + 1000, y_test=y[:5])
    assert len(stream.train) == len(y)
    assert ids(stream.test) == set((X[:5] + 1000)[:, 0])
    assert [stream.class_order[row] for row in stream.test.y] == y[:5].tolist()


def test_a_stream_can_be_indexed_like_a_list() -> None:
    stream = make()
    assert isinstance(stream[0], Task)
    assert stream[-1].classes == stream.tasks[-1]
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"There is no task {index}: the stream has 3"):
            stream[index]


@pytest.mark.parametrize("cut", [slice(2), slice(0, 2), slice(None, -1), slice(0, 2, 1)])
def test_a_slice_is_the_stream_of_the_first_tasks(cut: slice) -> None:
    stream = make()
    part = stream[cut]
    assert part.tasks == stream.tasks[:2]
    assert len(part.train) == len(stream[0].train) + len(stream[1].train)
    assert int(part.test.y.max()) == 3
    assert torch.equal(part[1].train.x, stream[1].train.x)
    assert part != stream
    assert stream[:3] == stream


def test_an_empty_slice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stream\[:0\] has no task"):
        make()[:0]


@pytest.mark.parametrize("cut", [slice(1, None), slice(-1, None), slice(None, None, 2), slice(None, None, -1)])
def test_a_slice_that_does_not_begin_at_the_first_task_is_refused(cut: slice) -> None:
    with pytest.raises(ValueError, match=r"A slice of a stream must start at its first task: use stream\[:n\]"):
        make()[cut]


def test_equal_streams_are_equal_and_have_equal_hashes() -> None:
    assert make() == make()
    assert len({make(), make(), make(seed=1)}) == 2
    assert make() != "a stream"


def test_whatever_differs_shows_in_the_hash() -> None:
    X, y = arrays()
    changed = X.copy()
    changed[3, 1] += 1e-9
    relabelled = y.copy()
    relabelled[0] = "bee"
    streams = [
        make(),
        make(seed=1),
        make(classes_per_task=1),
        make(split_seed=1),
        make()[:2],
        make().with_validation(),
        Stream.from_arrays(changed, y),
        Stream.from_arrays(X, relabelled),
        Stream.from_arrays(X.reshape(-1, 1, 3), y),
        Stream.from_arrays(X.astype(np.float32), y),
    ]
    assert len({stream.hash for stream in streams}) == len(streams)


def test_the_hash_knows_what_is_tested() -> None:
    X, y = arrays()
    stream = Stream.from_arrays(X, y, X_test=X + 1000, y_test=y)
    assert Stream.from_arrays(X, y, X_test=X + 1001, y_test=y) != stream
    plans = tuple(replace(plan, test=plan.test[1:]) for plan in stream.plans)
    assert replace(stream, plans=plans) != stream


def test_the_hash_is_the_same_in_another_process() -> None:
    program = (
        "import numpy as np; from cldnet import Stream;"
        "y = np.arange(40) % 5; X = np.arange(120.0).reshape(40, 3);"
        "s = Stream.from_arrays(X, np.array(['ant', 'bee', 'cat', 'dog', 'eel'])[y], classes_per_task=2);"
        "print(s.hash, hash(s))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [make().hash, str(hash(make()))]


def test_printing_shows_the_order_of_the_classes() -> None:
    stream = make(seed=None, name="zoo")
    assert repr(stream) == f"Stream zoo: 3 tasks [ant bee | cat dog | eel], 30 + 10 samples, {stream.hash}"


@settings(deadline=None, max_examples=20)
@given(share=st.floats(0.05, 0.8), seed=st.integers(0, 9))
def test_a_validation_part_divides_the_training_part_and_never_holds_a_test_row(share: float, seed: int) -> None:
    stream = make()
    try:
        held_out = stream.with_validation(share, seed)
    except ValueError as error:
        assert "of them aside for testing" in str(error)  # noqa: PT017
        assert share > 0.7
        return
    assert ids(held_out.train) | ids(held_out.test) == ids(stream.train)
    assert not ids(held_out.train) & ids(held_out.test)
    assert not (ids(held_out.train) | ids(held_out.test)) & ids(stream.test)
    assert held_out.tasks == stream.tasks
    assert set(held_out.test.y.tolist()) == set(stream.train.y.tolist())
    assert held_out.name == f"arrays,validation={share:g}"


X, Y = arrays()
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "labels too few": ({"y": Y[:3]}, "X has 40 samples and y has 3 labels"),
    "labels missing": ({"y": [None] * 40}, "None or NaN"),
    "labels mixed": ({"y": [1, "a"] * 20}, "mixes labels"),
    "NaN": ({"X": np.full((40, 3), np.nan)}, "contains NaN"),
    "no rows": ({"X": X[:0], "y": Y[:0]}, "0 sample"),
    "one row a class": ({"X": X[:5], "y": Y[:5]}, "Class 'ant' has 1 samples: too few to set 0.25"),
    "no classes a task": ({"classes_per_task": 0}, "classes_per_task=0 should be an integer of at least 1"),
    "half a class a task": ({"classes_per_task": 1.5}, "classes_per_task=1.5 should be an integer"),
    "all for testing": ({"test_size": 1.0}, "expected a share between 0 and 1"),
    "none for testing": ({"test_size": 0.0}, "expected a share between 0 and 1"),
    "unknown test label": ({"X_test": X[:1], "y_test": ["yak"]}, "does not have, such as 'yak'"),
    "test labels of another type": ({"X_test": X[:1], "y_test": [1]}, "The test part has labels that"),
    "a task without a test row": ({"X_test": X[:1], "y_test": Y[:1]}, "No test sample has the label .*'bee'"),
    "no test inputs": ({"y_test": ["ant"]}, "y_test was given without X_test"),
    "no test labels": ({"X_test": X[:1]}, "y should be a 1d array"),
    "test rows of another shape": ({"X_test": X[:1, :2], "y_test": ["ant"]}, r"The test part has samples of shape \(2,\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_with_a_sentence(name: str) -> None:
    arguments, complaint = BAD[name]
    with pytest.raises(ValueError, match=complaint):
        Stream.from_arrays(**{"X": X, "y": Y, **arguments})
