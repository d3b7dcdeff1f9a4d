"""Projectors against (I + A)⁻¹ written out, in float64."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.math import projector

relaxed = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**31 - 1)


def update(P: Tensor, rows: Tensor, alpha: float | Tensor) -> Tensor:
    """Let a projector absorb inputs: ``P − P Rᵀ (αI + R P Rᵀ)⁻¹ R P``, which for one input is Eq. 6.

    By Woodbury's identity several inputs ``R`` ``(..., n, d)`` at once give the same as one after the other. ``alpha`` is one
    value or one per row; a smaller α removes the directions of the inputs more completely.
    """
    # Cheaper and more accurate in the basis where every row weighs the same: r/√α with α = 1.
    weighted = _weighted(rows, alpha)
    u = projector.correction(weighted @ P, weighted)
    return P - u.mT @ u


def accumulate(total: Tensor, rows: Tensor, alpha: float | Tensor, *, sign: int = 1) -> Tensor:
    """Add inputs to the sum ``A = Σ rrᵀ/α`` in its own precision, or subtract them with ``sign=-1``."""
    weighted = _weighted(rows.to(total.dtype), alpha)
    return total + sign * (weighted.mT @ weighted)


def _weighted(rows: Tensor, alpha: float | Tensor) -> Tensor:
    """Rows divided by the root of their α."""
    weight = torch.as_tensor(alpha, dtype=rows.dtype, device=rows.device).rsqrt()
    return rows * (weight.unsqueeze(-1) if weight.ndim else weight)


def alphas(low, high):
    return st.lists(st.floats(np.log10(low), np.log10(high)).map(lambda e: 10.0**e), min_size=1, max_size=12)


def unit_rows(count, d, seed):
    rows = torch.randn(count, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


def closed_form(rows, alpha):
    """(I + Σ r rᵀ / α)⁻¹, summed row by row and inverted by numpy."""
    total = np.eye(rows.shape[1])
    for r, a in zip(rows.numpy(), alpha, strict=True):
        total += np.outer(r, r) / a
    return torch.from_numpy(np.linalg.inv(total))


def summed(rows, alpha):
    total = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for r, a in zip(rows, alpha, strict=True):
        total += torch.outer(r, r) / a
    return total


def error_bound(total, updates):
    return np.finfo(np.float64).eps * (len(total) + updates) * float(1 + total.trace())


def recursion(rows, alpha):
    P = torch.eye(rows.shape[1], dtype=torch.float64)
    for r, a in zip(rows, alpha, strict=True):
        P = update(P, r[None], a)
    return P


# The recursion and the closed form


@relaxed
@given(alphas(1e-2, 1e2), st.integers(1, 12), seeds)
def test_the_recursion_is_the_inverse_of_the_sum(alpha, d, seed):
    rows = unit_rows(len(alpha), d, seed)
    torch.testing.assert_close(recursion(rows, alpha), closed_form(rows, alpha), rtol=0, atol=1e-10)


def test_the_recursion_is_the_inverse_of_the_sum_after_a_thousand_updates():
    rows = unit_rows(1000, 20, seed=0)
    alpha = [0.01, 0.1, 1.0, 10.0] * 250
    torch.testing.assert_close(recursion(rows, alpha), closed_form(rows, alpha), rtol=0, atol=1e-10)


@relaxed
@given(alphas(1e-5, 1e-2), st.integers(1, 12), st.integers(1, 20), seeds)
def test_for_small_alpha_the_error_is_within_the_stated_bound(alpha, d, repeats, seed):
    alpha = alpha * repeats
    rows = unit_rows(len(alpha), d, seed)
    total = summed(rows, alpha)
    error = (recursion(rows, alpha) - closed_form(rows, alpha)).abs().max()
    assert error <= error_bound(total, updates=len(alpha))


def test_the_bound_is_not_empty():
    rows, alpha = unit_rows(300, 10, seed=3), [1e-5] * 300
    assert error_bound(summed(rows, alpha), updates=300) < 1e-2


@relaxed
@given(alphas(1e-2, 1e2), st.integers(1, 12), seeds)
def test_a_block_is_its_rows_one_after_the_other(alpha, d, seed):
    rows = unit_rows(len(alpha), d, seed)
    start = recursion(unit_rows(3, d, seed=1), [0.1, 1.0, 10.0])
    one_by_one = start
    for r, a in zip(rows, alpha, strict=True):
        one_by_one = update(one_by_one, r[None], a)
    block = update(start, rows, torch.tensor(alpha, dtype=torch.float64))
    torch.testing.assert_close(block, one_by_one, rtol=0, atol=1e-10)
    common = update(start, rows, alpha[0])
    each = update(start, rows, torch.full((len(alpha),), alpha[0], dtype=torch.float64))
    torch.testing.assert_close(common, each, rtol=0, atol=1e-14)


@relaxed
@given(alphas(1e-2, 1e2), st.integers(1, 8), seeds)
def test_the_order_of_inputs_does_not_matter(alpha, d, seed):
    rows = unit_rows(len(alpha), d, seed)
    order = np.random.default_rng(seed).permutation(len(alpha))
    shuffled = recursion(rows[order], [alpha[i] for i in order])
    torch.testing.assert_close(shuffled, recursion(rows, alpha), rtol=0, atol=1e-10)


@relaxed
@given(alphas(1e-4, 1e2), st.integers(1, 12), seeds)
def test_a_projector_is_symmetric_with_eigenvalues_above_zero_and_at_most_one(alpha, d, seed):
    P = recursion(unit_rows(len(alpha), d, seed), alpha)
    assert torch.equal(P, P.T)
    eigenvalues = torch.linalg.eigvalsh(P)
    assert eigenvalues.min() > 0
    assert eigenvalues.max() <= 1 + 1e-12


def test_a_batch_of_projectors_is_each_by_itself():
    rows = unit_rows(8, 4, seed=0).reshape(2, 4, 4)
    P = torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    single = update(P, rows[:, :1], 0.1)
    block = update(P, rows, 0.1)
    total = accumulate(torch.zeros(2, 4, 4, dtype=torch.float64), rows, 0.1)
    for g in range(2):
        torch.testing.assert_close(single[g], closed_form(rows[g, :1], [0.1]), rtol=0, atol=1e-12)
        torch.testing.assert_close(block[g], closed_form(rows[g], [0.1] * 4), rtol=0, atol=1e-12)
        torch.testing.assert_close(total[g], summed(rows[g], [0.1] * 4), rtol=1e-12, atol=0)
    torch.testing.assert_close(projector.from_sum(total), block, rtol=0, atol=1e-12)


def test_the_arguments_are_not_changed():
    P, rows = torch.eye(3, dtype=torch.float64), unit_rows(2, 3, seed=0)
    total = summed(rows, [1.0, 1.0])
    kept = [tensor.clone() for tensor in (P, rows, total)]
    update(P, rows[:1], 0.1)
    update(P, rows, 0.1)
    accumulate(total, rows, 0.1)
    projector.from_sum(total)
    assert all(itertools.starmap(torch.equal, zip(kept, (P, rows, total), strict=True)))


# The sum


@relaxed
@given(alphas(1e-2, 1e2), st.integers(1, 12), seeds)
def test_the_sum_gives_the_same_projector(alpha, d, seed):
    rows = unit_rows(len(alpha), d, seed)
    zero = torch.zeros(d, d, dtype=torch.float64)
    total = accumulate(zero, rows, torch.tensor(alpha, dtype=torch.float64))
    torch.testing.assert_close(total, summed(rows, alpha), rtol=1e-12, atol=1e-12)
    P = projector.from_sum(total)
    assert torch.equal(P, P.T)
    torch.testing.assert_close(P, recursion(rows, alpha), rtol=0, atol=1e-10)


@relaxed
@given(alphas(1e-2, 1e2), st.integers(1, 8), seeds)
def test_taking_inputs_out_again_restores_the_projector(alpha, d, seed):
    kept, passing = unit_rows(4, d, seed), unit_rows(len(alpha), d, seed + 1)
    before = summed(kept, [0.1] * 4)
    weights = torch.tensor(alpha, dtype=torch.float64)
    total = accumulate(before, passing, weights)
    total = accumulate(total, passing, weights, sign=-1)
    torch.testing.assert_close(projector.from_sum(total), projector.from_sum(before), rtol=0, atol=1e-10)


@relaxed
@given(alphas(1e-4, 1e2), st.integers(1, 12), seeds)
def test_the_spectrum_is_that_of_the_projector(alpha, d, seed):
    rows = unit_rows(len(alpha), d, seed)
    P, total = closed_form(rows, alpha), summed(rows, alpha)
    torch.testing.assert_close(projector.spectrum(total), torch.linalg.eigvalsh(P), rtol=0, atol=1e-9)


# Rounding


def positive_inputs(count, d, seed=0):
    """What layers behind a ReLU see: positive numbers around a common direction."""
    make = torch.Generator().manual_seed(seed)
    return torch.rand(d, generator=make) + 0.1 * torch.rand(count, d, generator=make)


def test_in_float32_the_recursion_loses_positivity_for_small_alpha():
    """Why the sum is kept in float64: Eq. 6 as it stands does not survive two hundred updates."""
    P = torch.eye(200)
    for r in positive_inputs(200, 200):
        P = update(P, r[None], 1e-5)
    assert torch.linalg.eigvalsh(P.double()).min() < -1e-5


@relaxed
@given(alphas(1e-5, 1e2), st.integers(1, 8), seeds)
def test_a_sound_projector_has_not_drifted(alpha, d, seed):
    rows = unit_rows(len(alpha), d, seed)
    assert not projector.has_drifted(recursion(rows, alpha), rows[-1], alpha[-1])


def test_drift_is_seen_on_both_sides_and_in_any_group():
    r = torch.tensor([1.0, 0.0])
    sound = update(torch.eye(2), r[None], 0.25)
    assert not projector.has_drifted(sound, r, 0.25)
    assert projector.has_drifted(torch.eye(2), r, 0.25), "r was not absorbed: rᵀPr = 1 > α"
    assert projector.has_drifted(-sound, r, 0.25), "a negative eigenvalue"
    assert projector.has_drifted(torch.stack([sound, -sound]), r.expand(2, 2), 0.25)
    assert projector.has_drifted(torch.full((2, 2), torch.nan), r, 0.25)
    assert not projector.has_drifted(sound, torch.zeros(2), 0.25), "an input of zeros says nothing"


# Where the Cholesky factor is not to be trusted


def test_a_sum_too_flat_for_cholesky_leaves_unused_directions_free():
    """Pivots may be positive and still be nothing but rounding: 1 beside 1e14 has two digits left."""
    rows = unit_rows(3, 5, seed=2) * 1e7
    total = rows.mT @ rows
    P = projector.from_sum(total)
    unused = torch.linalg.svd(rows).Vh[3:]
    torch.testing.assert_close(unused @ P @ unused.mT, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(P @ unused.mT, unused.mT, rtol=0, atol=1e-6)


def test_a_projector_is_symmetric_to_the_last_bit_where_eigenvalues_take_the_place_of_cholesky():
    for d in (20, 32, 57, 64):
        rows = unit_rows(d // 2, d, seed=1) * 1e8
        P = projector.from_sum(rows.mT @ rows)
        assert torch.equal(P, P.mT)


def test_eigenvalues_that_are_only_rounding_count_as_zero():
    """The sum of one long row has rank 1; rounding makes it 1e16 times larger than I in directions that it never used."""
    rows = unit_rows(1, 6, seed=0) * 1e16
    P = projector.from_sum(rows.mT @ rows)
    r = rows[0] / rows[0].norm()
    expected = torch.eye(6, dtype=torch.float64) - torch.outer(r, r)
    torch.testing.assert_close(P, expected, rtol=0, atol=1e-9)


def test_a_sum_that_cholesky_can_factor_is_inverted_to_its_last_digits():
    """Eigenvalues below ``d · eps · λmax`` are lost; a factor of a matrix with large and small diagonal entries keeps them."""
    scales = torch.tensor([1e18, 1.0, 0.5, 3.0], dtype=torch.float64)
    torch.testing.assert_close(projector.from_sum(scales.diag()), (1 / (1 + scales)).diag(), rtol=1e-14, atol=0)


def test_each_projector_of_a_batch_is_rebuilt_whichever_of_them_is_flat():
    flat = unit_rows(2, 4, seed=1) * 1e8
    batch = torch.stack([flat.mT @ flat, torch.eye(4, dtype=torch.float64)])
    found = projector.from_sum(batch)
    torch.testing.assert_close(found[0], projector.from_sum(batch[0]), rtol=0, atol=1e-9)
    torch.testing.assert_close(found[1], torch.eye(4, dtype=torch.float64) / 2, rtol=1e-12, atol=0)


def test_the_spectrum_of_a_sum_that_rounding_made_negative_is_at_most_one():
    total = torch.diag(torch.tensor([-1e-9, 3.0], dtype=torch.float64))
    assert torch.equal(projector.spectrum(total), torch.tensor([0.25, 1.0], dtype=torch.float64))


def test_one_percent_of_rounding_is_tolerated_and_more_is_drift():
    r, one = torch.tensor([1.0, 0.0]), torch.eye(2)
    assert not projector.has_drifted(1.005 * one, r, 1.0)
    assert projector.has_drifted(1.015 * one, r, 1.0)
    assert not projector.has_drifted(1.015 * one, r, 1.0, tolerance=0.02)
