"""Columns of pandas frames: numbers of any kind are taken; of others the message names each, and says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from cldnet.data.arrays import as_inputs

TWO = pd.Series([1, 0])


@pytest.mark.parametrize(
    "column",
    [
        TWO,
        TWO.astype("Int64"),
        TWO.astype("Float64"),
        TWO.astype("UInt8"),
        TWO.astype(bool),
        TWO.astype("boolean"),
        TWO.astype(object),
    ],
    ids=lambda column: str(column.dtype),
)
def test_numbers_of_any_type_are_taken(column: Any) -> None:
    assert as_inputs(pd.DataFrame({"a": [0.5, 0.25], "b": column})).tolist() == [[0.5, 1.0], [0.25, 0.0]]


NOT_NUMBERS = {
    "category": (TWO.astype("category"), r"column 'b' holds categories: encode them, .*OneHotEncoder\(.*\['b'\]"),
    "object": (pd.Series(["u", 1], dtype=object), r"column 'b' holds text: .*\['b'\].*pd\.to_numeric"),
    "string": (pd.Series(["1", "2"], dtype="string"), r"column 'b' holds text: .*pd\.to_numeric"),
    "str": (pd.Series(["u", None], dtype="str"), "column 'b' holds text"),
    "date": (
        pd.to_datetime(["2026-01-01", "2026-01-02"]),
        r"column 'b' holds dates: .*X\['b'\]\.dt\.dayofweek or .*int64",
    ),
    "zone": (pd.to_datetime(["2026-01-01"] * 2, utc=True), "column 'b' holds dates"),
    "duration": (pd.to_timedelta([1, 2], unit="s"), r"column 'b' holds durations: .*X\['b'\]\.dt\.total_seconds\(\)"),
    "period": (pd.period_range("2026", periods=2), "column 'b' holds objects: convert them to numbers, or drop them"),
    "lists": (pd.Series([[1], [2]]), "column 'b' holds objects"),
}


@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_a_column_without_numbers_is_named_with_what_to_do(name: str) -> None:
    column, sentence = NOT_NUMBERS[name]
    with pytest.raises(ValueError, match=f"^X should hold numbers, and {sentence}"):
        as_inputs(pd.DataFrame({"a": [0.5, 0.25], "b": column}))


def test_columns_of_one_kind_are_named_together_and_a_long_list_is_cut() -> None:
    frame = pd.DataFrame({f"c{number}": ["u", "v"] for number in range(7)})
    with pytest.raises(
        ValueError, match=r"^X should hold numbers, and columns 'c0', 'c1', 'c2', 'c3', 'c4' and 2 more hold text"
    ):
        as_inputs(frame)


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (None, "NaN"), (np.inf, "infinity")])
def test_the_column_that_lacks_a_number_is_named(value: Any, what: str) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, value], "c": [3.0, 4.0]}).astype({"a": "Int64", "b": float})
    with pytest.raises(ValueError, match=rf"^Input X contains {what}.* \(column 'b'\)\. Drop those samples"):
        as_inputs(frame)


def test_columns_of_one_name_are_told_apart() -> None:
    frame = pd.DataFrame([[1.0, "u"], [2.0, "v"]], columns=["a", "a"])
    with pytest.raises(ValueError, match="column 'a' holds text"):
        as_inputs(frame)
