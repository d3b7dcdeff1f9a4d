"""The edge: what becomes a tensor, in which type and layout, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.data.arrays import Samples, as_inputs, as_targets, as_weights, layout, plain
from cldnet.data.labels import LabelTable


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


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_large_inputs_are_read_where_they_lie(dtype: Any) -> None:
    array = np.ones((3, 2), dtype)
    x = as_inputs(array, copy=False)
    array[0, 0] = 7
    assert x.tolist() == as_inputs(array).tolist()
    assert x.dtype == as_inputs(array).dtype


def _read_only() -> Any:
    array = np.arange(6, dtype=np.float32).reshape(3, 2)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "inputs",
    [
        _read_only(),
        np.arange(6, dtype=np.float32).reshape(3, 2)[::-1],
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2)),
        np.arange(6, dtype=">f4").reshape(3, 2),
        np.arange(6, dtype=np.float16).reshape(3, 2),
        np.arange(6).reshape(3, 2),
        pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}),
        [[1.0, 2.0], [3.0, 4.0]],
    ],
    ids=["read-only", "backwards", "by columns", "other byte order", "float16", "int64", "frame", "list"],
)
def test_inputs_that_cannot_be_read_where_they_lie_are_copied(inputs: Any) -> None:
    seen, copied = as_inputs(inputs, copy=False), as_inputs(inputs)
    assert torch.equal(seen, copied)
    assert seen.dtype == copied.dtype
    assert seen.is_contiguous()
    assert copied.is_contiguous()


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
    with pytest.raises(ValueError, match=r"X has samples of shape .* but input_shape=.* holds .* Reshape X"):
        layout(torch.zeros(2, *shape), input_shape)


# -- sentences ---------------------------------------------------------------------------------------------------------

ROW = "X should have one row per sample"


@pytest.mark.parametrize(
    ("X", "kind", "sentence"),
    [
        (
            None,
            ValueError,
            rf"^Expected 2D array, got None instead: {ROW}\. Give an array, a tensor, a table or a list of rows\.$",
        ),
        (3.0, ValueError, f"^Expected 2D array, got a float instead: {ROW}"),
        ({"a": [1.0]}, ValueError, f"^Expected 2D array, got a dict instead: {ROW}"),
        ({1, 2}, ValueError, f"^Expected 2D array, got a set instead: {ROW}"),
        ("abc", ValueError, f"^Expected 2D array, got a str instead: {ROW}"),
        (
            ([x] for x in (1.0, 2.0)),
            ValueError,
            rf"^Expected 2D array, got a generator instead: {ROW}\. Give list\(X\)\.$",
        ),
        (
            [1.0, 2.0],
            ValueError,
            rf"^Expected 2D array, got 1D array instead: {ROW}\. Reshape your data: X\.reshape\(1, -1\) if",
        ),
        (np.ones((2, 2)) * 1j, ValueError, r"^Complex data not supported\. Give real numbers, for example X\.real\.$"),
        (
            np.array([["1", "2"]]),
            ValueError,
            r"bytes/strings\. X should hold numbers: convert it to numeric values, for example",
        ),
        ([["1", "b"]], ValueError, r"bytes/strings\. X should hold numbers: convert"),
        (
            np.array([[1, "b"]], dtype=object),
            ValueError,
            r"could not convert string to float: 'b'\. X should hold numbers: drop",
        ),
        (
            np.full((1, 1), object()),
            TypeError,
            r"argument must be a string.*, not 'object'\. X should hold numbers: drop",
        ),
        (
            np.ones((0, 2)),
            ValueError,
            r"^Found array with 0 sample\(s\).* is required\. X should have at least one sample: skip the",
        ),
        (
            np.ones((2, 0)),
            ValueError,
            r"^Found array with 0 feature\(s\).* is required\. X should have at least one column: check",
        ),
        (np.ones((1, 1, 1, 1, 1)), ValueError, r"X has shape .*; expected \(n, features\).*: reshape it\.$"),
        (
            np.ma.masked_array([[1.0, 2.0]], mask=[[0, 1]]),
            ValueError,
            r"^X is a masked array in which 1 of 2 values.*X\.filled",
        ),
        (
            list(np.ma.masked_array([[1.0, 2.0]] * 3, mask=[[0, 1]] * 3)),
            ValueError,
            r"^X has masked arrays in which 3 of 6 values",
        ),
        (
            [(np.ma.masked_array([1.0, 2.0], mask=[0, 1]),)],
            ValueError,
            r"^X has masked arrays in which 1 of 2 .*row\.filled",
        ),
        ([[np.ma.masked, 1.0]], ValueError, "^X has masked arrays in which 1 of 1 values are missing: drop"),
    ],
)
def test_what_are_no_rows_is_refused_with_what_was_expected_and_what_to_do(
    X: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        as_inputs(X)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_masked_rows_that_hide_nothing_are_taken() -> None:
    assert as_inputs(list(np.ma.masked_array([[1.0, 2.0]]))).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floats_of_torch_are_read_to_the_bit(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0.5, -3.0], [0.25, 1.5]]).to(dtype)
    assert as_inputs(tensor).tolist() == tensor.float().tolist() == [[0.5, -3.0], [0.25, 1.5]]


def test_views_of_torch_that_change_signs_are_read() -> None:
    assert as_inputs(torch.tensor([[1 + 2j]]).conj().imag).tolist() == [[-2.0]]


def test_types_that_cannot_be_read_are_refused_with_what_to_do() -> None:
    packed = torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(
        ValueError, match=r"X is a tensor of type .*float4.*; expected plain numbers: convert it, for example with"
    ):
        plain(packed, "X")


@pytest.mark.parametrize(
    ("y", "sentence"),
    [
        (
            np.ones(2) * 1j,
            r"^y has dtype complex128; labels are integers, .*\. Convert them, for example with y\.astype\(str\)",
        ),
        (np.ones((2, 1)) * 1j, "^y should be a 1d array with one label per sample"),
        (
            np.ones((2, 2)),
            r"^y should be a 1d array .* shape \(2, 2\) instead: give one, for example y\[:, 0\], or y\.argmax",
        ),
        (pd.DataFrame({"a": [1, 2], "b": [1, 2]}), r"^y should be a 1d array .* shape \(2, 2\) instead: give one"),
        ((label for label in "ab"), r"got a generator instead: give one, for example list\(y\)\.$"),
        ({"a": 1}, r"got a dict instead: give one, such as a list, an array or a column\.$"),
        ("ab", r"got a str instead: give one, such as a list, an array or a column\.$"),
    ],
)
def test_what_are_no_labels_is_refused_with_what_to_do(y: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        as_targets(y, rows=2)
    assert "\n" not in str(caught.value)


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [
        [1, 0.5],
        (1, 0.5),
        np.array([1, 0.5], dtype=np.float16),
        np.array([1, 0.5], dtype=object),
        np.array([Decimal(1), Decimal("0.5")]),
        torch.tensor([1, 0.5], dtype=torch.bfloat16),
        pd.Series([1, 0.5]),
        pd.Series([1, 0.5], dtype="Float64"),
        np.ma.masked_array([1, 0.5]),
    ],
)
def test_weights_of_any_make_are_taken(weights: Any) -> None:
    found = as_weights(weights, rows=2)
    assert found.dtype == np.float64
    assert found.tolist() == [1.0, 0.5]


def test_weights_are_a_copy_and_one_number_is_for_every_row() -> None:
    weights = np.ones(2)
    as_weights(weights, rows=2)[0] = 9
    assert weights.tolist() == [1.0, 1.0]
    assert as_weights([1e-12, 1e12], rows=2).tolist() == [1e-12, 1e12]
    assert as_weights(np.float32(3), rows=2).tolist() == [3.0, 3.0]
    assert as_weights([True, False], rows=2).tolist() == [1.0, 0.0]


NO_NUMBERS = (
    r"^sample_weight is not an array of numbers; expected one weight of at least 0 for each of 2 samples: convert"
)
NOT_FINITE = "^sample_weight contains NaN, infinity or a value too large.*; expected finite weights of at least 0. Drop"


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([1.0, np.nan], NOT_FINITE),
        ([1.0, np.inf], NOT_FINITE),
        ([1.0, 1e308], NOT_FINITE),
        ([1.0, None], NOT_FINITE),
        (
            [1.0, -0.5],
            r"^sample_weight has negative values \(the smallest is -0.5\); expected weights of at least 0. To remove samples",
        ),
        (
            [1.0, 1e-300],
            r"^sample_weight has the value 1e-300; expected 0, or 1e-12 to 1e\+12, about 1 .* Divide the weights",
        ),
        ([9e-13, 1.0], "^sample_weight has the value 9e-13; expected 0, or 1e-12"),
        ([2e12, 1.0], r"^sample_weight has the value 2e\+12; expected 0, or 1e-12"),
        (
            [1.0] * 3,
            r"^sample_weight has shape \(3,\); expected \(2,\), one weight per sample\. Reshape it, or leave",
        ),
        (np.ones((2, 1)), r"^sample_weight has shape \(2, 1\); expected \(2,\)"),
        ([], r"^sample_weight has shape \(0,\); expected \(2,\)"),
        (["a", "b"], NO_NUMBERS),
        (["1", "2"], NO_NUMBERS),
        ("balanced", NO_NUMBERS),
        (object(), NO_NUMBERS),
        ({0: 1.0, 1: 2.0}, NO_NUMBERS),
        ([[1.0], [1.0, 2.0]], NO_NUMBERS),
        ([1j, 1j], NO_NUMBERS),
        ([10**400, 1], NO_NUMBERS),
        (pd.Series([1, pd.NA], dtype="Int64"), NOT_FINITE),
        (pd.Series([1, pd.NA], dtype=object), NO_NUMBERS),
        ((weight for weight in (1.0, 2.0)), NO_NUMBERS),
        ([0.0, 0.0], "^All sample weights are zero: there is nothing to learn"),
        (np.ma.masked_array([1.0, 1.0], mask=[0, 1]), "^sample_weight is a masked array in which 1 of 2 values"),
    ],
)
def test_what_are_no_weights_is_refused_with_what_was_expected_and_what_to_do(weights: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        as_weights(weights, rows=2)


def test_samples_are_counted_by_label_if_they_have_a_weight() -> None:
    x, y = np.zeros((5, 2)), ["b", "a", "b", "c", "b"]
    assert Samples.checked(x, y, None, None, LabelTable()).counts() == {"a": 1, "b": 3, "c": 1}
    weighted = Samples.checked(x, y, [0.0, 2.0, 0.5, 0.0, 0.0], None, LabelTable())
    assert weighted.counts() == {"a": 1, "b": 1, "c": 0}
