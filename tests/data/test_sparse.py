"""Sparse inputs: the projection, which depends on column numbers alone, and what is taken or refused at the edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch

from cldnet.data.arrays import as_inputs
from cldnet.data.labels import Inputs
from cldnet.data.sparse import WIDTH, Projection, is_sparse

RANDOM = np.random.default_rng(0)
X = sp.random_array((30, 5000), density=0.01, format="csr", random_state=RANDOM)
SMALL = Projection(columns=5000, width=64)

FORMATS = [
    getattr(sp, f"{form}_{kind}") for form in ("bsr", "coo", "csc", "csr", "dok", "lil") for kind in ("array", "matrix")
]


def test_each_column_goes_where_its_number_says_for_ever() -> None:
    unit = Projection(columns=1_000_000, width=4000).project(sp.csr_array(np.eye(3)))
    assert unit.argmax(1).tolist() == [3535, 3700, 1679]  # in files, merges and pickles these may never change
    assert unit.sum(1).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.__name__)
def test_every_format_and_dense_rows_give_the_same_bits(form: Any) -> None:
    expected = as_inputs(X, projection=SMALL)
    assert expected.shape == (30, 64)
    assert torch.equal(as_inputs(form(X), projection=SMALL), expected)
    assert torch.equal(as_inputs(X.toarray(), projection=SMALL), expected)


def test_unsorted_and_repeated_entries_count_as_their_sum() -> None:
    turned = sp.csr_array(([3.0, 1.0, 2.0], [7, 2, 7], [0, 3]), shape=(1, 5000))
    plain = sp.csr_array(([1.0, 5.0], [2, 7], [0, 2]), shape=(1, 5000))
    assert torch.equal(SMALL.project(turned), SMALL.project(plain))
    assert turned.indices.tolist() == [7, 2, 7]  # the caller's matrix stays as it is


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = SMALL.project(X)
    monkeypatch.setattr("cldnet.data.sparse._AT_ONCE", 200)
    assert torch.equal(SMALL.project(X), expected)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.float32, np.float64])
def test_few_columns_are_taken_as_dense_ones_are(dtype: Any) -> None:
    rows = (X[:, :50] * 10).astype(dtype)
    taken = as_inputs(rows)
    assert torch.equal(taken, as_inputs(rows.toarray()))
    assert taken.dtype == as_inputs(rows.toarray()).dtype


def test_only_wide_sparse_inputs_are_projected() -> None:
    assert Projection.of(X) == Projection(5000, WIDTH)
    assert Projection.of(X, width=5000) is None
    assert Projection.of(X.toarray()) is None
    assert Projection.of([[1.0]]) is None


def test_a_sparse_frame_is_sparse_and_a_frame_with_one_dense_column_is_not() -> None:
    frame = pd.get_dummies(pd.Series(list("abca")), sparse=True)
    assert is_sparse(frame)
    assert as_inputs(frame).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert not is_sparse(frame.assign(d=1.0))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (X * np.nan, r"^Input X contains NaN\. Drop those samples"),
        (X * np.inf, r"^Input X contains infinity.*rescale X"),
        (X * 1e300, r"^Input X contains infinity or a value too large for float32\. Rescale X\.$"),
        (X * 1j, r"^Complex data not supported\. Give real numbers"),
        (X[:0], r"^Found array with 0 sample\(s\).* skip the call"),
        (X[:, :20], "^X has 20 features, but CLDNetClassifier is expecting 5000 features"),
        (X.toarray()[:, :20], "^X has 20 features, but CLDNetClassifier is expecting 5000 features"),
        (np.zeros((2, 3, 4)), r"^X has \(3, 4\) features, but CLDNetClassifier is expecting 5000"),
        (sp.coo_array(np.ones(5000)), r"X should have one row per sample\. Keep its shape: X\[i:i\+1\]\.$"),
        (torch.from_numpy(X.toarray()).to_sparse(), r"^X is a tensor that is sparse.*X\.to_dense\(\)"),
    ],
    ids=[
        "NaN",
        "infinity",
        "huge",
        "complex",
        "no rows",
        "few columns",
        "few dense ones",
        "images",
        "one row",
        "torch",
    ],
)
def test_what_cannot_be_projected_is_refused_with_what_to_do(rows: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        as_inputs(rows, projection=SMALL)
    assert "\n" not in str(caught.value)


def test_wide_sparse_rows_for_a_model_of_dense_ones_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^X is sparse and has 5,000 columns; without a projection.* X\[i:j\]\.toarray"
    ):
        as_inputs(X)


def test_a_sum_beyond_float32_is_refused() -> None:
    rows = sp.csr_array(np.full((1, 200), 3e38))
    with pytest.raises(ValueError, match="too large for float32"):
        Projection(200, 2).project(rows)


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {"columns": 10},
        {"columns": 10, "width": 4, "seed": 0},
        {"columns": 10, "width": 11},
        {"columns": 10, "width": 0},
        {"columns": 10, "width": True},
        {"columns": 10.0, "width": 4},
        {"columns": 1 << 60, "width": 4},
    ],
)
def test_a_file_with_an_impossible_projection_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="projection"):
        Projection.from_json(state)


def test_inputs_remember_the_projection_and_older_files_have_none() -> None:
    inputs = Inputs((64,), None, False, 1.0, SMALL)
    assert Inputs.from_json({**inputs.to_json(), "shape": [64]}) == inputs
    assert inputs.count == 5000
    plain = Inputs((64,), None, False, 1.0)
    assert "projection" not in plain.to_json()
    assert Inputs.from_json({**plain.to_json(), "shape": [64]}) == plain
    with pytest.raises(ValueError, match="were not projected to 64 columns"):
        Inputs.from_json({**inputs.to_json(), "shape": [65]})
