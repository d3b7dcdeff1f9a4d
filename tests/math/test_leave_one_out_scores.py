import pytest
import torch

from cldnet.math.ridge import leave_one_out_scores


@pytest.mark.parametrize(("n", "m"), [(30, 10), (10, 30), (12, 12)])
def test_scores_are_those_of_fits_without_each_sample(n, m):
    source = torch.Generator().manual_seed(n)
    h = torch.randn(n, m, generator=source, dtype=torch.float64)
    y = torch.eye(3, dtype=torch.float64)[torch.randint(3, (n,), generator=source)]
    found = leave_one_out_scores(h, y)
    for i in range(n):
        others = torch.arange(n) != i
        gram = h[others].mT @ h[others] + found.alpha * torch.eye(m, dtype=torch.float64)
        alone = h[i] @ torch.linalg.solve(gram, h[others].mT @ y[others])
        assert torch.allclose(alone, found.scores[i], atol=1e-7)
    assert torch.allclose(found.error, (found.scores - y).square().sum(1))


def test_a_larger_penalty_is_chosen_for_noise():
    source = torch.Generator().manual_seed(0)
    y = torch.eye(2, dtype=torch.float64)[torch.arange(40) % 2]
    noise = torch.randn(40, 20, generator=source, dtype=torch.float64)
    told = noise + 3 * y @ torch.ones(2, 20, dtype=torch.float64).tril()
    assert leave_one_out_scores(noise, y).alpha > leave_one_out_scores(told, y).alpha
