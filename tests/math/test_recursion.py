"""Recursive least squares against solutions from scratch."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.math.recursion import follow, inverse_of

numbers = st.integers(0, 2**31 - 1)


def solved(h, targets, alpha):
    gram = h.mT @ h + alpha * torch.eye(h.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, h.mT @ targets)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(1, 6), st.sampled_from([1e-2, 1.0, 100.0]), numbers)
def test_followed_rows_give_the_solution_of_all_rows(m, k, alpha, seed):
    source = torch.Generator().manual_seed(seed)
    h = torch.randint(-9, 10, (20 + 3 * k, m), generator=source).double()
    targets = torch.eye(3, dtype=torch.float64)[torch.randint(3, (len(h),), generator=source)]
    inverse, solution = inverse_of(h[:20].mT @ h[:20], alpha), solved(h[:20], targets[:20], alpha)
    for first in range(20, len(h), k):
        part = slice(first, first + k)
        solution = follow(inverse, solution, h[part], targets[part])
        assert solution is not None
    assert torch.allclose(solution, solved(h, targets, alpha), atol=1e-8)
    assert torch.allclose(inverse, inverse_of(h.mT @ h, alpha), atol=1e-8)


def test_a_weight_is_a_row_and_a_target_times_its_root():
    h = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    targets, root = torch.eye(2, dtype=torch.float64), 2.0**0.5
    inverse, solution = inverse_of(h.mT @ h, 1.0), solved(h, targets, 1.0)
    twice = follow(inverse, solution, root * h[:1], root * targets[:1])
    assert torch.allclose(twice, solved(torch.cat([h, h[:1], h[:1]]), torch.cat([targets, targets[:1], targets[:1]]), 1.0))


def test_an_inverse_that_rounding_has_spoiled_is_refused_and_left_alone():
    inverse = -torch.eye(2, dtype=torch.float64)
    row, solution = torch.ones(1, 2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    assert follow(inverse, solution, row, row) is None
    assert torch.equal(inverse, -torch.eye(2, dtype=torch.float64))
