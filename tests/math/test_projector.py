"""Projectors against (I + A)⁻¹ written out, in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.math import projector

relaxed = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**31 - 1)


def absorb(P: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """The projector after rows ``R`` ``(..., n, d)`` that have one α: ``P − UᵀU``."""
    update = projector.update(rows, rows @ P, alpha)
    assert update is not None
    return P - update.corrections.mT @ update.corrections


def accumulate(total: Tensor, rows: Tensor, alpha: float | Tensor, *, sign: int = 1) -> Tensor:
    """Add inputs to the sum ``A = Σ rrᵀ/α`` in its own precision, or subtract them with ``sign=-1``."""
    weight = torch.as_tensor(alpha, dtype=total.dtype).rsqrt()
    weighted = rows.to(total.dtype) * (weight.unsqueeze(-1) if weight.ndim else weight)
    return total + sign * (weighted.mT @ weighted)


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
        P = absorb(P, r[None], a)
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
def test_for_small_alpha_the_error_in_float64_is_little_more_than_that_of_the_sum(alpha, d, repeats, seed):
    alpha = alpha * repeats
    rows = unit_rows(len(alpha), d, seed)
    total = summed(rows, alpha)
    error = (recursion(rows, alpha) - closed_form(rows, alpha)).abs().max()
    assert error <= error_bound(total, updates=len(alpha))


def test_the_bound_is_not_empty():
    rows, alpha = unit_rows(300, 10, seed=3), [1e-5] * 300
    assert error_bound(summed(rows, alpha), updates=300) < 1e-2


@relaxed
@given(st.integers(1, 12), st.floats(-2, 2), st.integers(1, 12), seeds)
def test_a_block_is_its_rows_one_after_the_other(count, exponent, d, seed):
    rows, alpha = unit_rows(count, d, seed), 10.0**exponent
    start = recursion(unit_rows(3, d, seed=1), [0.1, 1.0, 10.0])
    one_by_one = start
    for r in rows:
        one_by_one = absorb(one_by_one, r[None], alpha)
    torch.testing.assert_close(absorb(start, rows, alpha), one_by_one, rtol=0, atol=1e-10)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 130])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_block_of_any_size_gives_the_closed_form_and_its_rows_behind_the_new_projector(count, groups):
    """The triangular matrix is solved in blocks of 64: sizes below, at and beyond their edges."""
    before, rows = 2 * unit_rows(groups * 5, 150, seed=0), 3 * unit_rows(groups * count, 150, seed=1)
    before, rows = before.reshape(groups, 5, 150), rows.reshape(groups, count, 150)
    P = torch.stack([closed_form(part, [0.3] * 5) for part in before])
    update = projector.update(rows, rows @ P, 0.2)
    exact = torch.stack(
        [closed_form(torch.cat(parts), [0.3] * 5 + [0.2] * count) for parts in zip(before, rows, strict=True)]
    )
    torch.testing.assert_close(P - update.corrections.mT @ update.corrections, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(update.projected, rows @ exact, rtol=0, atol=1e-12)
    assert float((P - exact).abs().max()) > 0.05


@relaxed
@given(st.integers(1, 140), st.integers(1, 20), st.floats(-4, 3), seeds)
def test_rows_behind_the_new_projector_are_those_rows_times_the_closed_form(count, d, exponent, seed):
    """Also where there are more rows than dimensions."""
    rows, alpha = unit_rows(count, d, seed), 10.0**exponent
    start, P = unit_rows(2, d, seed=1), closed_form(unit_rows(2, d, seed=1), [1.0, 10.0])
    update = projector.update(rows[None], rows[None] @ P, alpha)
    exact = closed_form(torch.cat([start, rows]), [1.0, 10.0] + [alpha] * count)
    torch.testing.assert_close(update.projected[0], rows @ exact, rtol=0, atol=1e-10)


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
    single = absorb(P, rows[:, :1], 0.1)
    block = absorb(P, rows, 0.1)
    total = accumulate(torch.zeros(2, 4, 4, dtype=torch.float64), rows, 0.1)
    for g in range(2):
        torch.testing.assert_close(single[g], closed_form(rows[g, :1], [0.1]), rtol=0, atol=1e-12)
        torch.testing.assert_close(block[g], closed_form(rows[g], [0.1] * 4), rtol=0, atol=1e-12)
        torch.testing.assert_close(total[g], summed(rows[g], [0.1] * 4), rtol=1e-12, atol=0)
    torch.testing.assert_close(projector.from_sum(total), block, rtol=0, atol=1e-12)


def test_the_arguments_are_not_changed():
    rows, P = unit_rows(2, 3, seed=0), closed_form(unit_rows(2, 3, seed=1), [0.1, 0.1])
    projected, total = rows @ P, summed(rows, [1.0, 1.0])
    kept = [tensor.clone() for tensor in (rows, projected, total)]
    projector.update(rows[:1], projected[:1], 0.1)
    projector.update(rows, projected, 0.1)
    projector.update(rows, rows, 0.1)  # before anything is absorbed both are the same tensor
    projector.from_sum(total)
    projector.spectrum(total)
    projector.add_to_sum_(torch.zeros(1, 3, 3, dtype=torch.float64), rows[None], 0.1)
    assert all(itertools.starmap(torch.equal, zip(kept, (rows, projected, total), strict=True)))


# The sum


@pytest.mark.parametrize("width", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_a_sum_and_its_mirror_image_are_the_whole_product(width, groups, weight):
    """The upper triangle is added in strips of 128 rows: widths below, at and beyond their edges."""
    rows = unit_rows(groups * 7, width, seed=0).reshape(groups, 7, width)
    total = unit_rows(groups * 3, width, seed=1).reshape(groups, 3, width)
    total = total.mT @ total
    exact = np.stack([t.numpy() + weight * (r.numpy().T @ r.numpy()) for t, r in zip(total, rows, strict=True)])
    projector.add_to_sum_(total, rows, weight)
    np.testing.assert_allclose(np.triu(total.numpy()), np.triu(exact), rtol=0, atol=1e-14)
    projector.mirror_(total)
    assert torch.equal(total, total.mT)
    np.testing.assert_allclose(total.numpy(), exact, rtol=0, atol=1e-14)


def test_a_sum_has_the_weight_one_unless_told():
    total, rows = torch.zeros(1, 4, 4, dtype=torch.float64), unit_rows(3, 4, seed=0)
    projector.add_to_sum_(total, rows[None])
    projector.mirror_(total)
    torch.testing.assert_close(total[0], summed(rows, [1.0] * 3), rtol=1e-14, atol=1e-15)


def test_what_is_below_the_diagonal_is_replaced_by_what_is_above_it():
    upper = torch.tensor([[[1.0, 2.0, 3.0], [9.0, 4.0, 5.0], [9.0, 9.0, 6.0]]]).repeat(2, 1, 1)
    upper[1] *= 10
    projector.mirror_(upper)
    expected = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    assert torch.equal(upper, torch.stack([expected, 10 * expected]))


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
    P, rounding = torch.eye(200), 0.0
    for r in positive_inputs(200, 200):
        update = projector.update(r[None], r[None] @ P, 1e-5)
        rounding += update.rounding
        P -= update.corrections.mT @ update.corrections
    assert torch.linalg.eigvalsh(P.double()).min() < -1e-5
    assert rounding > 1e-3, "nobody would see it"


@relaxed
@given(
    st.sampled_from([1, 2, 70]),
    st.integers(1, 2),
    st.integers(2, 12),
    st.floats(-4, 3),
    st.sampled_from([torch.float32, torch.float64]),
    seeds,
)
def test_the_estimate_of_rounding_is_its_formula(count, groups, d, exponent, dtype, seed):
    rows, alpha = unit_rows(groups * count, d, seed).reshape(groups, count, d), 10.0**exponent
    exact = [closed_form(part, [alpha] * count) for part in rows]
    estimate = sum(
        float(r @ r / alpha * (r @ P @ P @ r) / alpha) for part, P in zip(rows, exact, strict=True) for r in part
    )
    found = projector.update(rows.to(dtype), rows.to(dtype), alpha).rounding
    # In float32 what is left of rows that were almost removed has few digits.
    loss = {} if dtype == torch.float64 else {"abs": torch.finfo(dtype).eps * 1e-2}
    assert found == pytest.approx(torch.finfo(dtype).eps * estimate, rel=2e-2, **loss)


@pytest.mark.parametrize("alpha", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("block", [1, 8])
def test_in_float32_the_estimate_is_above_the_distance_to_the_closed_form(alpha, block):
    """For what layers see. It does not count that every update rounds the projector once, even if it changes little."""
    P, rounding, rows = torch.eye(60), 0.0, positive_inputs(120, 60)
    for count, part in enumerate(rows.split(block), start=1):
        update = projector.update(part, part @ P, alpha)
        P -= update.corrections.mT @ update.corrections
        rounding += update.rounding
        exact = closed_form(rows[: count * block].double(), [alpha] * count * block)
        distance = float(torch.linalg.matrix_norm(P.double() - exact, 2))
        assert distance <= rounding + torch.finfo(torch.float32).eps * (count + 2)
        if rounding > 1e-3:
            break


# What cannot be absorbed in this way


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_rows_that_are_not_finite_or_too_large_give_no_update(count, groups, bad):
    rows = unit_rows(groups * count, 5, seed=0).reshape(groups, count, 5).float()
    assert projector.update(rows, rows, 1.0) is not None
    rows[-1, 0, 2] = bad  # one row of one group is enough
    assert projector.update(rows, rows, 1.0) is None


@pytest.mark.parametrize("count", [1, 3])
def test_a_projector_that_is_no_longer_positive_gives_no_update(count):
    """``I + R P Rᵀ/α`` would not be positive definite."""
    rows = unit_rows(2 * count, 5, seed=0).reshape(2, count, 5)
    signs = torch.tensor([1.0, -10.0], dtype=torch.float64)[:, None, None]
    assert projector.update(rows, rows * signs, 1.0) is None
    assert projector.update(rows, rows * signs.flip(0), 1.0) is None
    assert projector.update(rows, rows * signs.abs(), 1.0) is not None
    assert projector.update(rows[:1], -10 * rows[:1], 1.0) is None


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("scale", "alpha"), [(1.0, 1e-300), (1.0, 1e-40), (1e15, 1e-12)])
def test_an_alpha_very_small_beside_the_rows_gives_no_update_or_the_right_one(count, scale, alpha):
    """``rᵀr/α`` is beyond float32, although the rows are not. The limit takes the rows' directions away."""
    rows = scale * unit_rows(count, 5, seed=0).float()
    update = projector.update(rows, rows, alpha)
    if update is not None:
        directions = torch.linalg.svd(unit_rows(count, 5, seed=0), full_matrices=False).Vh
        found = (update.corrections.mT @ update.corrections).double()
        torch.testing.assert_close(found, directions.mT @ directions, rtol=0, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_rows_of_zeros_change_nothing(count, groups):
    zero = torch.zeros(groups, count, 4)
    update = projector.update(zero, zero, 1e-3)
    assert not update.corrections.any()
    assert not update.projected.any()
    assert update.rounding == 0


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


@pytest.mark.parametrize("count", [1, 127, 128, 200])
@pytest.mark.parametrize("width", [3, 128, 300])
@pytest.mark.parametrize("groups", [1, 2])
def test_corrections_are_subtracted_from_the_whole_projector(count, width, groups):
    make = torch.Generator().manual_seed(0)
    P = torch.eye(width, dtype=torch.float64).repeat(groups, 1, 1)
    corrections = torch.randn(groups, count, width, generator=make, dtype=torch.float64)
    expected = P - corrections.mT @ corrections
    projector.subtract_(P, corrections)
    torch.testing.assert_close(P, expected, rtol=1e-12, atol=1e-10)
