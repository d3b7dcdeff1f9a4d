"""Variants of Algorithm 1: the dependence terms, against kernels."""

from __future__ import annotations

import pytest
import torch
from tests.math import hsic_reference as reference

from cldnet.device import generator
from cldnet.math import hsic
from cldnet.methods.parts.variants import NormalisedHSIC, TraceHSIC


@pytest.mark.parametrize("dependence", [NormalisedHSIC(sigma=2.0, epsilon=1e-3), TraceHSIC()])
def test_the_dependence_is_that_of_the_right_kernels(dependence):
    x, z = (torch.randn(8, d, generator=generator(d), dtype=torch.float64) for d in (5, 3))
    y = torch.arange(8) % 3
    label = hsic.label_kernel(y, dtype=torch.float64)
    z.requires_grad_()
    if isinstance(dependence, TraceHSIC):
        kernel = reference.median_kernel(z)
        objective = reference.hsic(kernel, reference.median_kernel(x)) - 3.0 * reference.hsic(kernel, label)
    else:
        kernel = reference.gaussian_kernel(z, 2.0)
        objective = reference.nhsic(kernel, reference.gaussian_kernel(x, 2.0), 1e-3) - 3.0 * reference.nhsic(
            kernel, label, 1e-3
        )
    (expected,) = torch.autograd.grad(objective, z)
    torch.testing.assert_close(dependence.of_batch(x, y, beta=3.0)(z.detach()), expected)
