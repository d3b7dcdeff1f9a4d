"""Reservoir and the dependence terms, against loops and counts."""

from __future__ import annotations

import pytest
import torch

from cldnet.device import generator
from cldnet.math import hsic
from cldnet.methods.parts.dependence import NormalisedHSIC, TraceHSIC
from cldnet.methods.parts.reservoir import Reservoir
from cldnet.methods.parts.tensors import NamedTensors


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
    x, y = reservoir.sample(10, generator(1))
    assert sorted(y.tolist()) == [0, 1, 2, 3]
    assert torch.equal(x[:, 0], 2.0 * y)
    assert len(reservoir.sample(3, generator(1))[1].unique()) == 3


def test_named_tensors_are_copies_under_their_own_names():
    source = {"a.b.weight": torch.ones(2), "a": torch.zeros(1)}
    kept = NamedTensors(source)
    source["a.b.weight"].fill_(5)
    assert kept["a.b.weight"].tolist() == [1, 1]
    assert {name: tensor.tolist() for name, tensor in kept.items()} == {"a.b.weight": [1, 1], "a": [0]}


@pytest.mark.parametrize("dependence", [NormalisedHSIC(sigma=2.0, epsilon=1e-3), TraceHSIC()])
def test_the_dependence_is_that_of_the_right_kernels(dependence):
    x, z = (torch.randn(8, d, generator=generator(d), dtype=torch.float64) for d in (5, 3))
    y = torch.arange(8) % 3
    label = hsic.label_kernel(y, dtype=torch.float64)
    z.requires_grad_()
    if isinstance(dependence, TraceHSIC):
        kernel = hsic.median_kernel(z)
        objective = hsic.hsic(kernel, hsic.median_kernel(x)) - 3.0 * hsic.hsic(kernel, label)
    else:
        kernel = hsic.gaussian_kernel(z, 2.0)
        objective = hsic.nhsic(kernel, hsic.gaussian_kernel(x, 2.0), 1e-3) - 3.0 * hsic.nhsic(kernel, label, 1e-3)
    (expected,) = torch.autograd.grad(objective, z)
    torch.testing.assert_close(dependence.of_batch(x, y, beta=3.0)(z.detach()), expected)
