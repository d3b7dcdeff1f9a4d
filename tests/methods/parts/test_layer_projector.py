"""A layer's projector, which lets its steps wait, against (I + A)⁻¹ written out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.device import generator
from cldnet.math import projector
from cldnet.methods.parts.layer_projector import LayerProjector


def random_rows(groups, count, width, seed=0):
    return torch.rand(groups, count, width, generator=generator(seed))


def closed_form(rows, alpha):
    """(I + Σ r rᵀ / α)⁻¹, summed row by row and inverted by numpy."""
    total = np.eye(rows.shape[1])
    for r in rows.double().numpy():
        total += np.outer(r, r) / alpha
    return torch.from_numpy(np.linalg.inv(total))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.integers(1, 2),
    st.integers(2, 45),
    st.integers(0, 2**31 - 1),
)
def test_it_projects_by_the_closed_form_after_every_step_whatever_waits(counts, groups, width, seed):
    kept, probe = LayerProjector(groups, width), random_rows(groups, 3, width, seed).double()
    rows = random_rows(groups, sum(counts), width, seed + 1)
    done = 0
    for part in rows.split(counts, dim=1):
        kept.absorb(part, torch.tensor(0.5))
        done += part.shape[1]
        exact = torch.stack([closed_form(rows[g, :done], 0.5) for g in range(groups)])
        torch.testing.assert_close(kept.project(probe), probe @ exact, rtol=0, atol=1e-10)
        torch.testing.assert_close(kept.project(probe.float()).double(), probe @ exact, rtol=0, atol=1e-4)
    kept.settle()
    torch.testing.assert_close(kept.P, exact, rtol=0, atol=1e-11)
    torch.testing.assert_close(kept.A, (rows.double().mT @ rows.double()) / 0.5, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kept.P, kept.P.mT, rtol=0, atol=1e-14)
    kept.rebuild()
    torch.testing.assert_close(kept.P, exact, rtol=0, atol=1e-11)
    assert torch.equal(kept.P, kept.P.mT)
    eigenvalues = torch.linalg.eigvalsh(kept.P)
    assert 0 < eigenvalues.min() <= eigenvalues.max() <= 1 + 1e-12


@pytest.mark.parametrize("counts", [(1,) * 70, (2, 3, 1, 7), (4, 1, 9, 1, 1)])
def test_removed_rows_leave_nothing_behind(counts):
    rows, kept = random_rows(1, sum(counts), 4), LayerProjector(1, 4)
    for part in rows.split(counts, dim=1):
        kept.absorb(part, torch.tensor(0.5))
    kept.remove(rows[:, :3], torch.tensor(0.5))
    torch.testing.assert_close(kept.P[0], closed_form(rows[0, 3:], 0.5), rtol=0, atol=1e-10)


def test_settling_changes_no_product_and_is_done_by_itself():
    kept, probe = LayerProjector(1, 6), random_rows(1, 5, 6).double()
    for number in range(1, 2 * kept.settle_every + 1):
        kept.absorb(random_rows(1, 1, 6, seed=number), torch.tensor(0.1))
        before = kept.project(probe)
        settled = torch.equal(before, probe @ kept.P)
        assert settled == (number % kept.settle_every == 0)
        other = copy.deepcopy(kept)
        other.settle()
        torch.testing.assert_close(other.project(probe), before, rtol=0, atol=1e-13)


def test_positivity_is_kept_where_float32_loses_it():
    make = generator(0)
    rows, kept = torch.rand(200, generator=make) + 0.1 * torch.rand(1, 200, 200, generator=make), LayerProjector(1, 200)
    for number in range(200):
        kept.absorb(rows[:, number : number + 1], torch.tensor(1e-5))
    kept.settle()
    for P in (kept.P[0].clone(), kept.rebuild() or kept.P[0]):
        assert torch.linalg.eigvalsh(P).min() > 0


@pytest.mark.parametrize("alpha", [1e-5, 1e-2])
def test_it_stays_a_projector_for_100_000_updates(alpha):
    d, strength, make = 6, torch.tensor(alpha), generator(0)
    kept, absorbed = LayerProjector(1, d), 0
    reference = torch.zeros(d, d, dtype=torch.float64)
    while absorbed < 100_000:
        for count in (1,) * 40 + (3, 5, 200):
            rows = torch.rand(1, count, d, generator=make)
            kept.absorb(rows, strength)
            reference += rows[0].double().T @ rows[0].double() / strength.double()
            absorbed += count
        if absorbed % 5 == 0:
            kept.settle()
            eigenvalues = torch.linalg.eigvalsh(kept.P[0])
            assert 0 < eigenvalues.min() <= eigenvalues.max() <= 1
            torch.testing.assert_close(kept.P, kept.P.mT, rtol=0, atol=1e-15)
    exact = torch.linalg.inv(torch.eye(d, dtype=torch.float64) + reference)
    kept.rebuild()
    torch.testing.assert_close(kept.A[0], reference, rtol=1e-10, atol=0)
    torch.testing.assert_close(kept.P[0], exact, rtol=1e-4, atol=float(projector.error_bound(reference)))


def test_a_projector_that_has_drifted_is_rebuilt_when_it_settles():
    kept, rows = LayerProjector(1, 3), random_rows(1, 64, 3)
    for number in range(40):
        kept.absorb(rows[:, number : number + 1], torch.tensor(0.1))
    kept.P.neg_()  # spoilt
    for number in range(40, 64):
        kept.absorb(rows[:, number : number + 1], torch.tensor(0.1))
    torch.testing.assert_close(kept.P[0], closed_form(rows[0], float(torch.tensor(0.1))), rtol=0, atol=1e-10)


def test_what_waited_does_not_leak_into_a_state_that_is_loaded():
    empty = copy.deepcopy(LayerProjector(1, 5).state_dict())
    kept, probe = LayerProjector(1, 5), random_rows(1, 2, 5)
    kept.absorb(random_rows(1, 3, 5), torch.tensor(0.1))
    kept.project(probe)
    kept.load_state_dict(empty)
    assert torch.equal(kept.project(probe), probe)
    kept.rebuild()
    assert torch.equal(kept.A, torch.zeros(1, 5, 5, dtype=torch.float64))
