"""The edge: what becomes a tensor, in which type and layout, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.data.arrays import as_inputs, layout


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.uint8, torch.uint8),
        (np.bool_, torch.float32),
        (np.int16, torch.float32),
        (np.float16, torch.float32),
        (np.float32, torch.float32),
        (np.int32, torch.float64),
        (np.int64, torch.float64),
        (np.float64, torch.float64),
    ],
)
def test_numbers_keep_all_their_digits(dtype: Any, expected: torch.dtype) -> None:
    array = np.array([[0, 1], [1, 1]]).astype(dtype)
    tensor = as_inputs(array)
    assert tensor.dtype == expected
    assert np.array_equal(tensor.numpy().astype(dtype), array)


@pytest.mark.parametrize("make", [np.array, torch.tensor, pd.DataFrame, list])
def test_the_tensor_is_a_copy(make: Any) -> None:
    original = make([[1.0, 2.0], [3.0, 4.0]])
    as_inputs(original).fill_(9.0)
    assert np.asarray(original).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_bfloat16_and_gradients_are_taken() -> None:
    tensor = torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True)
    assert as_inputs(tensor).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39, -1e300])
def test_what_is_not_finite_in_float32_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="Input X contains"):
        as_inputs([[1.0, value]])


def test_long_doubles_that_overflow_are_refused() -> None:
    with pytest.raises(ValueError, match="Input X contains"):
        as_inputs(np.full((1, 2), np.finfo(np.longdouble).max))


@settings(deadline=None)
@given(height=st.integers(5, 9), width=st.integers(5, 9), channels=st.sampled_from([1, 3, 4]))
def test_images_come_out_with_channels_first_however_they_came(height: int, width: int, channels: int) -> None:
    first = torch.arange(2.0 * channels * height * width).reshape(2, channels, height, width)
    last = first.permute(0, 2, 3, 1)
    for images in (first, last):
        for shape in (None, (channels, height, width), (height, width, channels)):
            assert torch.equal(layout(images, shape), first)
    assert torch.equal(layout(first.flatten(1), (channels, height, width)), first)
    assert torch.equal(layout(last.flatten(1), (height, width, channels)), first)


def test_grey_images_and_flat_rows_stay_as_they_are() -> None:
    for shape in ((5,), (5, 6)):
        x = torch.rand(2, *shape)
        assert torch.equal(layout(x, None), x)
        assert torch.equal(layout(x, shape), x)
    assert layout(torch.rand(2, 5, 6), (1, 5, 6)).shape == (2, 1, 5, 6)


@pytest.mark.parametrize(
    ("shape", "input_shape"),
    [((63,), (8, 8)), ((4, 16), (8, 8)), ((8, 8), (64,)), ((8, 9, 3), (3, 9, 8)), ((8, 8), (3, 8, 8))],
)
def test_inputs_that_do_not_fit_input_shape_are_refused(shape: tuple[int, ...], input_shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"X has rows of shape .* but input_shape=.* holds .* Reshape X"):
        layout(torch.zeros(2, *shape), input_shape)
