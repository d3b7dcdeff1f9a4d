"""Orders of classes, and their shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cldnet.data.stream import divide_classes, order_classes, set_aside

CLASSES = np.array(["ant", "bee", "cat", "dog"])


@given(st.integers(1, 30), st.integers(1, 12), st.none() | st.integers(1, 30))
def test_every_class_has_one_task_in_the_given_order(count: int, per_task: int, first: int | None) -> None:
    if first is not None and first > count:
        with pytest.raises(ValueError, match=f"first={first} is more than the number of classes, {count}"):
            divide_classes(range(count), per_task, first)
        return
    tasks = divide_classes(range(count), per_task, first)
    assert [label for task in tasks for label in task] == list(range(count))
    assert len(tasks[0]) == min(first or per_task, count)
    assert all(len(task) == per_task for task in tasks[1:-1])
    assert all(1 <= len(task) <= per_task for task in tasks[1:])


def test_a_split_can_be_given_size_by_size() -> None:
    assert [len(task) for task in divide_classes(range(10), 2, split=[5, 1, 4])] == [5, 1, 4]
    with pytest.raises(ValueError, match=r"split=\[5, 1\] adds up to 6 classes; expected 10"):
        divide_classes(range(10), 2, split=[5, 1])
    with pytest.raises(ValueError, match=r"A task of split=0 should be an integer of at least 1"):
        divide_classes(range(10), 2, split=[10, 0])


def test_an_order_can_be_given_and_may_leave_classes_out() -> None:
    assert order_classes(CLASSES, 0, ["dog", "ant"]) == ["dog", "ant"]
    assert order_classes(np.arange(4), 0, np.array([3, 1])) == [3, 1]
    assert order_classes(CLASSES, None, None) == CLASSES.tolist()
    assert str(order_classes(np.arange(4), 0, [True, 2])) == "[1, 2]"


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        (["dog", "yak"], "The class order has 'yak', .* such as 'ant'"),
        (["dog", "dog"], "names a class twice"),
        ([], "The class order is empty"),
        ("random", "should be labels, or numpy:SEED"),
    ],
)
def test_an_order_that_cannot_be_is_refused(order: str | list[str], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        order_classes(CLASSES, 0, order)


def test_the_papers_seed_1993_is_numpys_old_permutation() -> None:
    # The first ten of PyCIL's order for CIFAR-100, as its logs print it.
    assert order_classes(np.arange(100), 0, "numpy:1993")[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]


def test_orders_of_seeds_differ_and_come_again() -> None:
    classes = np.arange(50)
    assert order_classes(classes, 1, None) == order_classes(classes, 1, None) != order_classes(classes, 2, None)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=5), st.floats(0.05, 0.5), st.integers(0, 5))
def test_a_share_of_every_class_is_set_aside(counts: list[int], share: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    chosen = set_aside(labels, range(len(counts)), share, seed)
    for label, count in enumerate(counts):
        assert chosen[labels == label].sum() == max(1, round(share * count)) < count
