"""The derivatives in closed form against automatic differentiation of the values, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.math import hsic_reference as reference

from cldnet.device import generator
from cldnet.math import hsic


def rows(n, d, seed, dtype=torch.float64):
    return torch.randn(n, d, generator=generator(seed), dtype=dtype)


def labels(n, classes, seed):
    return torch.randint(0, classes, (n,), generator=generator(seed))


def by_autograd(objective, z):
    leaf = z.double().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0]


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6), st.sampled_from([1e-5, 1e-2]))
def test_the_derivative_of_nhsic_is_that_of_its_value(n, d, classes, seed, epsilon):
    x, z, y = rows(n, 3, seed), rows(n, d, seed + 1), labels(n, classes, seed)
    r_x = reference.normalise(reference.gaussian_kernel(x, 2.0), epsilon)
    r_y = reference.normalise(hsic.label_kernel(y, torch.float64), epsilon)
    kernel = hsic.gaussian(z, 2.0)
    found = hsic.pull_back(kernel, hsic.nhsic_derivative(kernel, r_x - 3.0 * r_y, epsilon))

    def objective(leaf):
        r_z = reference.normalise(reference.gaussian_kernel(leaf, 2.0), epsilon)
        return (r_z * r_x).sum() - 3.0 * (r_z * r_y).sum()

    torch.testing.assert_close(found, by_autograd(objective, z), rtol=1e-6, atol=1e-8)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 10**6))
def test_the_derivative_of_the_trace_form_is_that_of_its_value(n, d, seed):
    z, other = rows(n, d, seed), rows(n, 3, seed + 1)
    against = other @ other.T
    found = hsic.pull_back(hsic.median_gaussian(z), hsic.center(against) / (n - 1) ** 2)
    expected = by_autograd(lambda leaf: reference.hsic(reference.median_kernel(leaf), against), z)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([1e-8, 1e-5, 0.1]))
def test_matrices_of_inputs_and_labels_are_those_of_the_kernels(n, classes, seed, epsilon):
    x, y = rows(n, 4, seed), labels(n, classes, seed)
    r_x = reference.normalise(hsic.gaussian(x).less_one, epsilon)  # centring forgets the 1
    torch.testing.assert_close(r_x, reference.normalise(reference.gaussian_kernel(x), epsilon), rtol=1e-7, atol=1e-9)
    r_y = hsic.label_normalised(7 * y - 3, epsilon)
    torch.testing.assert_close(
        r_y, reference.normalise(hsic.label_kernel(y, torch.float64), epsilon), rtol=1e-7, atol=1e-9
    )
    assert torch.equal(r_y, r_y.mT)


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0, 1e4])
def test_float32_is_as_good_as_its_inputs_at_any_scale(n, scale):
    x, y = rows(n, 784, 0, torch.float32), labels(n, 2, 1)
    z = scale * rows(n, 100, 2, torch.float32).clamp_min(0) + 5 * scale  # a mean that float32 must not trip over
    against = reference.normalise(hsic.gaussian(x).less_one.double()) - 500 * hsic.label_normalised(y)
    found, exact = (
        hsic.pull_back(kernel, hsic.nhsic_derivative(kernel, against))
        for kernel in (hsic.gaussian(z), hsic.gaussian(z.double()))
    )
    assert float((found - exact).norm()) <= 1e-3 * float(exact.norm())


def test_what_depends_on_nothing_is_not_moved():
    for z in (rows(1, 4, 0), rows(1, 4, 0).expand(6, 4), rows(1, 4, 0, torch.float32).expand(6, 4)):
        kernel, y = hsic.gaussian(z), torch.arange(len(z)) % 2
        against = hsic.label_normalised(y)
        assert hsic.pull_back(kernel, hsic.nhsic_derivative(kernel, against)).abs().max() < 1e-5
        assert hsic.pull_back(hsic.median_gaussian(z), against).abs().max() < 1e-5
    assert bool((hsic.label_normalised(torch.zeros(5, dtype=torch.int64)) == 0).all())
