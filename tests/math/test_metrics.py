from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.math.metrics import (
    Scores,
    average_accuracy,
    average_incremental_accuracy,
    backward_transfer_gem,
    forgetting_chaudhry,
    scores,
)

WORKED = [[0.90], [0.95, 0.98], [0.97, 0.90, 0.96]]
relaxed = settings(deadline=None)
accuracy = st.floats(0, 1)
matrices = st.integers(1, 6).flatmap(
    lambda tasks: st.tuples(*(st.lists(accuracy, min_size=i + 1, max_size=i + 1) for i in range(tasks)))
)


def slow_scores(R) -> Scores:
    """The definitions with plain loops, one pair of tasks at a time."""
    T = len(R)
    incremental = 0.0
    for i in range(T):
        total = 0.0
        for j in range(i + 1):
            total += R[i][j]
        incremental += total / (i + 1) / T
    forgotten = transferred = 0.0
    for j in range(T - 1):
        best = -math.inf
        for i in range(j, T - 1):
            best = R[i][j] if R[i][j] > best else best
        forgotten += (best - R[T - 1][j]) / (T - 1)
        transferred += (R[T - 1][j] - R[j][j]) / (T - 1)
    return Scores(sum(R[T - 1][:T]) / T, incremental, forgotten, transferred)


def full(R, above: float) -> np.ndarray:
    square = np.full((len(R), len(R)), above)
    for i, row in enumerate(R):
        square[i, : i + 1] = row
    return square


def test_the_worked_example():
    assert average_accuracy(WORKED) == pytest.approx(0.943333, abs=1e-6)
    assert average_incremental_accuracy(WORKED) == pytest.approx((0.9 + 0.965 + 0.943333) / 3, abs=1e-6)
    assert forgetting_chaudhry(WORKED) == pytest.approx(0.030)
    assert backward_transfer_gem(WORKED) == pytest.approx(-0.005)


@relaxed
@given(matrices)
def test_scores_follow_their_definitions(R):
    assert dataclasses.astuple(scores(R)) == pytest.approx(dataclasses.astuple(slow_scores(R)), abs=1e-12)


@relaxed
@given(matrices, st.sampled_from([math.nan, -3.0, 100.0, math.inf]))
def test_what_stands_above_the_diagonal_does_not_matter(R, above):
    square = full(R, above)
    for form in (square, torch.from_numpy(square), square.tolist(), list(square)):
        assert scores(form) == scores(R)


@relaxed
@given(matrices)
def test_no_input_is_changed(R):
    ragged, square = [list(row) for row in R], full(R, math.nan)
    tensor = torch.from_numpy(square.copy())
    ragged_before, square_before = copy.deepcopy(ragged), square.copy()
    for form in (ragged, square, tensor):
        scores(form)
    assert ragged == ragged_before
    np.testing.assert_array_equal(square, square_before)
    np.testing.assert_array_equal(tensor.numpy(), square_before)


@relaxed
@given(matrices)
def test_bounds_and_relations(R):
    result = scores(R)
    assert 0 <= result.average_accuracy <= 1
    assert 0 <= result.average_incremental_accuracy <= 1
    assert -1 <= result.backward_transfer_gem <= 1
    # The best earlier accuracy is at least the one just after learning.
    assert result.forgetting_chaudhry >= -result.backward_transfer_gem - 1e-12


def test_one_task_forgets_nothing():
    assert scores([[0.7]]) == Scores(0.7, 0.7, 0.0, 0.0)


def test_forgetting_is_negative_when_old_tasks_get_better():
    assert forgetting_chaudhry([[0.5], [0.8, 0.9]]) == pytest.approx(-0.3)


def test_a_tensor_with_a_gradient_is_read():
    R = torch.tensor([[0.5, 0.0], [0.25, 1.0]], requires_grad=True)
    assert average_accuracy(R) == 0.625


def test_scores_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        scores(WORKED).average_accuracy = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([], "is empty"),
        (np.empty((0, 0)), "is empty"),
        (torch.empty(0, 0), "is empty"),
        ([[]], "Row 0 .* needs an accuracy"),
        ([[0.9], [0.9]], "Row 1 .* tasks 0 to 1"),
        ([0.9, 0.8], "Row 0 .* needs an accuracy"),
        ([[0.9], [math.nan, 0.9]], "Row 1 .* NaN"),
        ([[90.0]], "Divide percentages by 100"),
        ([[-0.1]], r"outside \[0, 1\]"),
        ([[math.inf]], r"outside \[0, 1\]"),
    ],
)
@pytest.mark.parametrize(
    "score",
    [average_accuracy, average_incremental_accuracy, forgetting_chaudhry, backward_transfer_gem, scores],
)
def test_a_bad_matrix_is_refused_with_a_sentence(score, matrix, words):
    with pytest.raises(ValueError, match=words):
        score(matrix)
