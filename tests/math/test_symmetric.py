"""The packed upper triangle, against dense products written out."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.math import symmetric

relaxed = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(0, 40)
blocks = st.integers(1, 16)


@contextlib.contextmanager
def blocks_of(rows, columns=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(symmetric, "BLOCK_ROWS", rows)
        patch.setattr(symmetric, "THIN_ROWS", max(1, rows // 3))
        patch.setattr(symmetric, "_TILE_ROWS", max(1, rows // 3) * 2)  # a multiple
        patch.setattr(symmetric, "_TILE_COLUMNS", columns or rows + 1)
        yield


def whole_numbers(rows, m, seed):
    return np.random.default_rng(seed).integers(-127, 128, (rows, m))


def packed_products(h, weight=None, dtype=torch.float32):
    right = torch.from_numpy(h).to(dtype)
    left = right if weight is None else right * torch.from_numpy(weight)[:, None].to(dtype)
    packed = torch.zeros(symmetric.packed_length(h.shape[1]), dtype=torch.float64)
    for tile in symmetric.tiles(packed, h.shape[1]):
        symmetric.add_to_tile_(tile, left, right)
    return packed


@relaxed
@given(st.integers(0, 30), sizes, blocks, blocks, seeds)
def test_products_are_those_of_integers(rows, m, block, columns, seed):
    h = whole_numbers(rows, m, seed)
    weight = np.random.default_rng(seed).integers(0, 4, rows)
    with blocks_of(block, columns):
        assert np.array_equal(symmetric.unpack(packed_products(h), m), h.T @ h)
        assert torch.equal(packed_products(h), symmetric.pack(torch.from_numpy(h.T @ h)))  # below the diagonal too
        assert np.array_equal(symmetric.unpack(packed_products(h, weight), m), h.T @ (weight[:, None] * h))


@relaxed
@given(st.integers(0, 5), sizes, blocks, seeds)
def test_few_samples_are_added_as_many_are(rows, m, block, seed):
    h = whole_numbers(rows, m, seed)
    with blocks_of(block):
        packed = packed_products(h)
        before = packed.clone()
        total = symmetric.plus_few(packed, 3 * torch.from_numpy(h).double(), torch.from_numpy(h).double())
        assert torch.equal(total, 4 * packed_products(h))
        assert torch.equal(packed, before)


@relaxed
@given(sizes, blocks, seeds)
def test_products_of_fractions_are_those_of_numpy(m, block, seed):
    h = np.random.default_rng(seed).normal(size=(20, m))
    weight = np.random.default_rng(seed).random(20)
    with blocks_of(block):
        dense = symmetric.unpack(packed_products(h, weight, torch.float64), m)
    assert torch.equal(dense, dense.T)
    np.testing.assert_allclose(dense, h.T @ (weight[:, None] * h), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("m", [511, 512, 513, 1100])
def test_the_blocks_that_are_used_give_the_whole_matrix(m):
    h = whole_numbers(30, m, seed=m)
    packed = packed_products(h)
    assert np.array_equal(symmetric.unpack(packed, m), h.T @ h)
    assert len(packed) <= m * m / 2 + symmetric.THIN_ROWS * m / 2


def test_the_largest_block_of_the_largest_numbers_is_exact_in_float32():
    h = np.full((1024, 3), 127)
    h[:, 1] = -127
    assert np.array_equal(symmetric.unpack(packed_products(h), 3), h.T @ h)


@relaxed
@given(sizes, blocks, seeds)
def test_float32_and_float64_give_the_same_bits_in_any_order_and_grouping(m, block, seed):
    h = whole_numbers(24, m, seed)
    with blocks_of(block):
        expected = packed_products(h, dtype=torch.float64)
        shuffled = np.random.default_rng(seed).permutation(h)
        parts = sum(packed_products(part) for part in np.array_split(shuffled, 5))
    assert torch.equal(parts, expected)


@relaxed
@given(sizes, blocks, seeds)
def test_what_is_taken_back_leaves_nothing(m, block, seed):
    h = torch.from_numpy(whole_numbers(10, m, seed)).float()
    with blocks_of(block):
        packed = packed_products(h.numpy())
        for tile in symmetric.tiles(packed, m):
            symmetric.add_to_tile_(tile, h, h, sign=-1.0)
    assert not packed.any()


@relaxed
@given(sizes, blocks, seeds)
def test_packing_and_unpacking_return_the_matrix(m, block, seed):
    dense = torch.from_numpy(whole_numbers(5, m, seed)).double()
    dense = dense.T @ dense
    with blocks_of(block):
        packed = symmetric.pack(dense.float())
        assert packed.dtype == torch.float64
        assert len(packed) == symmetric.packed_length(m)
        assert torch.equal(symmetric.unpack(packed, m), dense)
        assert torch.equal(symmetric.unpack(packed, m, torch.float32), dense.float())
        assert torch.equal(symmetric.diagonal(packed, m), dense.diagonal())


def test_pieces_are_views_that_can_be_written():
    with blocks_of(2):
        packed = symmetric.pack(torch.zeros(5, 5))
        for rows, columns, entries in symmetric.pieces(packed, 5):
            if rows.start == columns.start:
                entries.diagonal().add_(rows.start + 1.0)
        assert symmetric.unpack(packed, 5).tolist() == np.diag([1.0, 2, 3, 4, 5]).tolist()


@pytest.mark.parametrize("m", [3, 16, 17, 512, 513, 1100])
def test_the_layout_of_earlier_versions_is_converted(m):
    dense = torch.from_numpy(whole_numbers(9, m, seed=m)).double()
    dense = dense.T @ dense
    rows = range(0, m, symmetric.BLOCK_ROWS)
    earlier = torch.cat([dense[first : first + symmetric.BLOCK_ROWS, first:].flatten() for first in rows])
    assert torch.equal(symmetric.in_block_rows(symmetric.pack(dense), m), earlier)
    assert torch.equal(symmetric.repacked(earlier, m), symmetric.pack(dense))
    assert torch.equal(symmetric.repacked(symmetric.pack(dense), m), symmetric.pack(dense))


def test_the_diagonal_is_a_copy():
    packed = symmetric.pack(torch.eye(3))
    symmetric.diagonal(packed, 3).zero_()
    assert torch.equal(symmetric.unpack(packed, 3), torch.eye(3, dtype=torch.float64))


def test_a_vector_of_another_matrix_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"of 4 rows is a vector of 16 entries, but the shape is \(9,\)\. Pass what"):
        symmetric.unpack(symmetric.pack(torch.eye(3)), 4)
