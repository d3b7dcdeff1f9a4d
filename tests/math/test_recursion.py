"""Recursive least squares against solutions from scratch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.math.recursion import Recursion, begun, followed

numbers = st.integers(0, 2**31 - 1)


def from_scratch(h, targets, alpha):
    return begun(h.mT @ h, h.mT @ targets, alpha)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 6), st.sampled_from([1e-2, 1.0, 100.0]), numbers)
def test_followed_rows_give_the_solution_of_all_rows(m, k, alpha, seed):
    source = torch.Generator().manual_seed(seed)
    h = torch.randint(-9, 10, (20 + 3 * k, m), generator=source).double()
    targets = torch.eye(3, dtype=torch.float64)[torch.randint(3, (len(h),), generator=source)]
    last = first = from_scratch(h[:20], targets[:20], alpha)
    before = first.inverse.clone(), first.solution.clone()
    for start in range(20, len(h), k):
        last = followed(last, h[start : start + k], targets[start : start + k])
        assert last is not None
    gram = h.mT @ h + alpha * torch.eye(m, dtype=torch.float64)
    assert torch.allclose(last.solution, torch.linalg.solve(gram, h.mT @ targets), atol=1e-8)
    assert torch.allclose(last.inverse, torch.linalg.inv(gram), atol=1e-8)
    assert torch.equal(first.inverse, before[0])
    assert torch.equal(first.solution, before[1])


def test_a_weight_is_a_row_and_a_target_times_its_root():
    h = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    targets, root = torch.eye(2, dtype=torch.float64), 2.0**0.5
    twice = followed(from_scratch(h, targets, 1.0), root * h[:1], root * targets[:1])
    thrice = from_scratch(h[[0, 0, 0, 1]], targets[[0, 0, 0, 1]], 1.0)
    assert torch.allclose(twice.solution, thrice.solution)


def test_an_inverse_that_rounding_has_spoiled_is_refused():
    spoiled = Recursion(-torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64))
    row = torch.ones(1, 2, dtype=torch.float64)
    assert followed(spoiled, row, row) is None
