"""Fisher information, reservoir and the dependence terms, against loops and counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.math import hsic
from cldnet.methods.parts.dependence import NormalisedHSIC, TraceHSIC
from cldnet.methods.parts.fisher import squared_gradients
from cldnet.methods.parts.reservoir import Reservoir
from cldnet.methods.parts.tensors import NamedTensors
from cldnet.nets import build_backbone


def test_squared_gradients_are_those_of_a_loop_over_samples():
    net = nn.Sequential(build_backbone("mlp", (4,), 0, {"widths": (5,)}), nn.Flatten())
    x, y = torch.randn(9, 4, generator=generator(0)), torch.arange(9) % 5
    parameters = dict(net.named_parameters())
    fast = squared_gradients(lambda p, x: functional_call(net, p, (x,)), parameters, x, y)
    slow = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for i in range(9):
        loss = -F.log_softmax(net(x[i : i + 1]), 1)[0, y[i]]
        for (name, _), gradient in zip(slow.items(), torch.autograd.grad(loss, parameters.values()), strict=True):
            slow[name] += gradient**2
    batch = torch.autograd.grad(F.cross_entropy(net(x), y), parameters.values())
    for (name, value), mean_gradient in zip(slow.items(), batch, strict=True):
        torch.testing.assert_close(fast[name].detach(), value, rtol=1e-4, atol=1e-7)
        assert not torch.allclose(value, 9 * mean_gradient**2, rtol=0.1), "it is not the batch's gradient squared"


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


def test_the_dependence_terms_are_hsic_of_the_right_kernels():
    x, z = (torch.randn(8, d, generator=generator(d), dtype=torch.float64) for d in (5, 3))
    y = torch.arange(8) % 3
    label = hsic.label_kernel(y, dtype=torch.float64)
    on_x, on_y = NormalisedHSIC(sigma=2.0, epsilon=1e-3).of_batch(x, y)(z)
    kernel = hsic.gaussian_kernel(z, 2.0)
    torch.testing.assert_close(on_x, hsic.nhsic(kernel, hsic.gaussian_kernel(x, 2.0), 1e-3))
    torch.testing.assert_close(on_y, hsic.nhsic(kernel, label, 1e-3))
    on_x, on_y = TraceHSIC().of_batch(x, y)(z)
    torch.testing.assert_close(on_x, hsic.hsic(hsic.median_kernel(z), hsic.median_kernel(x)))
    torch.testing.assert_close(on_y, hsic.hsic(hsic.median_kernel(z), label))
