"""Variants of Algorithm 1: the dependence terms, against kernels."""

from __future__ import annotations

import pytest
import torch
from tests.math import hsic_reference as reference

from cldnet.device import generator
from cldnet.math import hsic
from cldnet.methods.parts.variants import NormalisedHSIC, TraceHSIC


def by_autograd(dependence, x, y, z, beta):
    """The derivative of the objective written out, in float64."""
    leaf = z.double().clone().requires_grad_()
    label = hsic.label_kernel(y, dtype=torch.float64)
    if isinstance(dependence, TraceHSIC):
        kernel = reference.median_kernel(leaf)
        objective = reference.hsic(kernel, reference.median_kernel(x)) - beta * reference.hsic(kernel, label)
    else:
        sigma, epsilon = dependence.sigma, dependence.epsilon
        kernel, on_input = reference.gaussian_kernel(leaf, sigma), reference.gaussian_kernel(x.double(), sigma)
        objective = reference.nhsic(kernel, on_input, epsilon) - beta * reference.nhsic(kernel, label, epsilon)
    return torch.autograd.grad(objective, leaf)[0]


DEPENDENCES = [NormalisedHSIC(sigma=2.0, epsilon=1e-3), TraceHSIC()]


@pytest.mark.parametrize("dependence", DEPENDENCES)
def test_the_dependence_is_that_of_the_right_kernels(dependence):
    x, *layers = (torch.randn(8, *d, generator=generator(len(d)), dtype=torch.float64) for d in ((5,), (3,), (2, 3, 3)))
    y = torch.arange(8) % 3
    found = dependence.derivatives(x, y, layers, beta=3.0)
    for z, own in zip(layers, found, strict=True):
        assert own.shape == z.shape
        torch.testing.assert_close(own, by_autograd(dependence, x, y, z, 3.0))
        (alone,) = dependence.derivatives(x, y, [z], beta=3.0)
        torch.testing.assert_close(own, alone, rtol=1e-9, atol=1e-12)
    assert dependence.derivatives(x, y, [], beta=3.0) == []


@pytest.mark.parametrize("dependence", DEPENDENCES)
def test_layers_keep_their_dtype_and_one_with_large_numbers_does_not_spoil_the_others(dependence):
    """The kernel of large numbers is in float64, so all of the batch's are."""
    x, y = torch.randn(16, 5, generator=generator(0)), torch.arange(16) % 3
    layers = [scale * torch.randn(16, 4, generator=generator(1)) for scale in (1.0, 8.0, 1e-2)]
    assert [hsic.gaussian(z, 2.0).rows.dtype == torch.float64 for z in layers] == [False, True, False]
    kept = [tensor.clone() for tensor in (x, *layers)]
    found = dependence.derivatives(x, y, layers, beta=3.0)
    for z, own, tolerance in zip(layers, found, (1e-4, 3e-6, 1e-4), strict=True):
        expected = by_autograd(dependence, x, y, z, 3.0)
        assert own.dtype == torch.float32
        assert float((own - expected).norm()) <= tolerance * float(expected.norm())
    assert all(torch.equal(a, b) for a, b in zip(kept, (x, *layers), strict=True))
