"""Experience replay: its reservoir, against counts."""

from __future__ import annotations

import pytest
import torch

from cldnet.device import generator
from cldnet.methods.parts.buffer import Reservoir


@pytest.mark.parametrize("sizes", [(50,), (7,) * 7 + (1,), (1,) * 50])
def test_the_reservoir_is_a_uniform_sample_of_the_stream(sizes):
    source, counts, trials = generator(0), torch.zeros(50), 300
    x = torch.arange(50.0).reshape(50, 1)
    for _ in range(trials):
        reservoir = Reservoir(5, like=x)
        for part in x.split(sizes):
            reservoir.add(part, part[:, 0].long(), source)
        assert torch.equal(reservoir.x[:, 0].long(), reservoir.y), "inputs stay with their labels"
        counts[reservoir.y] += 1
    assert counts.sum() == 5 * trials, "no example is held twice"
    expected = trials * 5 / 50
    chi_squared = float(((counts - expected) ** 2 / expected).sum() / (1 - 5 / 50))
    assert chi_squared < 85.4, "the 99.9 % quantile for 49 degrees of freedom"


def test_a_reservoir_holds_everything_until_it_is_full():
    reservoir = Reservoir(6, like=torch.zeros(0, 2))
    reservoir.add(torch.arange(8.0).reshape(4, 2), torch.arange(4), generator(0))
    assert len(reservoir) == 4
    x, y, _, _ = reservoir.sample(10, generator(1))
    assert sorted(y.tolist()) == [0, 1, 2, 3]
    assert torch.equal(x[:, 0], 2.0 * y)
    assert len(reservoir.sample(3, generator(1)).y.unique()) == 3
