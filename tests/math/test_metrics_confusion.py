from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score
from sklearn.metrics import confusion_matrix as sklearn_matrix

from cldnet.math.metrics import balanced_accuracy, class_accuracies, confusion_matrix, ranks_of, worst_pairs

relaxed = settings(deadline=None)
CLASSES = 5
number = st.integers(0, CLASSES - 1)
answers = st.lists(st.tuples(number, number), min_size=1, max_size=60)


def slow_matrix(pairs: list[tuple[int, int]]) -> list[list[int]]:
    """By counting, one cell at a time."""
    return [[pairs.count((i, j)) for j in range(CLASSES)] for i in range(CLASSES)]


@relaxed
@given(answers)
def test_the_matrix_counts(pairs: list[tuple[int, int]]) -> None:
    matrix = confusion_matrix(*zip(*pairs, strict=True), CLASSES)
    assert matrix.tolist() == slow_matrix(pairs)
    assert matrix.tolist() == sklearn_matrix(*zip(*pairs, strict=True), labels=range(CLASSES)).tolist()


@relaxed
@given(answers)
def test_accuracies_are_those_of_the_definitions(pairs: list[tuple[int, int]]) -> None:
    matrix = np.array(slow_matrix(pairs))
    expected = []
    for label in range(CLASSES):
        own = [answer == label for true, answer in pairs if true == label]
        expected.append(sum(own) / len(own) if own else math.nan)
    assert class_accuracies(matrix).tolist() == pytest.approx(expected, nan_ok=True)
    there = [accuracy for accuracy in expected if not math.isnan(accuracy)]
    assert balanced_accuracy(matrix) == pytest.approx(sum(there) / len(there))


def test_the_mean_over_classes_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 7, 500)
    answer = np.where(rng.random(500) < 0.7, true, rng.integers(0, 7, 500))
    found = balanced_accuracy(confusion_matrix(true, answer, 7))
    assert found == pytest.approx(balanced_accuracy_score(true, answer))


@relaxed
@given(answers, st.integers(1, 30))
def test_the_worst_pairs_are_the_most_frequent_wrong_answers(pairs: list[tuple[int, int]], most: int) -> None:
    found = worst_pairs(np.array(slow_matrix(pairs)), most)
    wrong = {pair: pairs.count(pair) for pair in pairs if pair[0] != pair[1]}
    assert len(found) == min(most, len(wrong))
    for true, answer, times, of in found:
        assert wrong[true, answer] == times
        assert of == sum(one == true for one, _ in pairs)
    left_out = set(wrong) - {(pair.true, pair.answer) for pair in found}
    assert all(wrong[pair] <= found[-1].times for pair in left_out)
    assert [(-pair.times, pair.of) for pair in found] == sorted((-pair.times, pair.of) for pair in found)


@relaxed
@given(st.lists(st.lists(st.integers(0, 3), min_size=CLASSES, max_size=CLASSES), min_size=1, max_size=20), st.data())
def test_a_rank_is_the_place_in_a_stable_order(rows: list[list[int]], data: st.DataObject) -> None:
    true = data.draw(st.lists(number, min_size=len(rows), max_size=len(rows)))
    found = ranks_of(np.array(rows), true)
    for row, own, rank in zip(rows, true, found, strict=True):
        assert sorted(range(CLASSES), key=lambda at: -row[at]).index(own) == rank
        assert (rank == 0) == (int(np.argmax(row)) == own)


def test_ranks_give_the_top_accuracies_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    scores, true = rng.random((300, 6)), rng.integers(0, 6, 300)
    for k in (1, 2, 3):
        assert np.mean(ranks_of(scores, true) < k) == pytest.approx(top_k_accuracy_score(true, scores, k=k))
