"""The derivatives in closed form against automatic differentiation of the values, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.math import hsic_reference as reference

from cldnet.device import generator
from cldnet.math import hsic
from cldnet.methods.parts.variants import NormalisedHSIC


def rows(n, d, seed, dtype=torch.float64):
    return torch.randn(n, d, generator=generator(seed), dtype=dtype)


def labels(n, classes, seed):
    return torch.randint(0, classes, (n,), generator=generator(seed))


def derivative(z, against, epsilon=1e-5, sigma=5.0):
    """The derivative of ``tr(R M)`` by the representation, step by step."""
    kernel, ridge = hsic.gaussian(z, sigma), epsilon * len(z)
    inverse = hsic.centred_inverse(kernel.less_one, ridge)
    return hsic.pull_back(kernel, hsic.nhsic_derivative(inverse, against.to(inverse.dtype), ridge))


def by_autograd(objective, z):
    leaf = z.double().requires_grad_()
    return torch.autograd.grad(objective(leaf), leaf)[0]


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6), st.sampled_from([1e-5, 1e-2]))
def test_the_derivative_of_nhsic_is_that_of_its_value(n, d, classes, seed, epsilon):
    x, z, y = rows(n, 3, seed), rows(n, d, seed + 1), labels(n, classes, seed)
    r_x = reference.normalise(reference.gaussian_kernel(x, 2.0), epsilon)
    r_y = reference.normalise(hsic.label_kernel(y, torch.float64), epsilon)
    found = derivative(z, r_x - 3.0 * r_y, epsilon, 2.0)

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
    in_float32 = hsic.label_normalised(7 * y - 3, epsilon, torch.float32)
    assert in_float32.dtype == torch.float32
    torch.testing.assert_close(in_float32.double(), r_y, rtol=1e-6, atol=1e-7)
    assert torch.equal(in_float32, in_float32.mT)


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0, 1e4])
def test_float32_is_as_good_as_its_inputs_at_any_scale(n, scale):
    x, y = rows(n, 784, 0, torch.float32), labels(n, 2, 1)
    z = scale * rows(n, 100, 2, torch.float32).clamp_min(0) + 5 * scale  # a mean that float32 must not trip over
    against = reference.normalise(hsic.gaussian(x).less_one.double()) - 500 * hsic.label_normalised(y)
    found, exact = derivative(z, against), derivative(z.double(), against)
    assert float((found - exact).norm()) <= 1e-3 * float(exact.norm())


def test_what_depends_on_nothing_is_not_moved():
    for z in (rows(1, 4, 0), rows(1, 4, 0).expand(6, 4), rows(1, 4, 0, torch.float32).expand(6, 4)):
        against = hsic.label_normalised(torch.arange(len(z)) % 2)
        assert derivative(z, against).abs().max() < 1e-5
        assert hsic.pull_back(hsic.median_gaussian(z), against).abs().max() < 1e-5
    assert bool((hsic.label_normalised(torch.zeros(5, dtype=torch.int64)) == 0).all())


# The centred inverse


def slow_inverse(less_one, ridge):
    """``C (C K C + cI)⁻¹ C`` by numpy."""
    n = less_one.shape[-1]
    centring = np.eye(n) - 1 / n
    kernel = 1 + less_one.double().numpy()
    return torch.from_numpy(centring @ np.linalg.inv(centring @ kernel @ centring + ridge * np.eye(n)) @ centring)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 4), st.integers(0, 10**6), st.sampled_from([1e-5, 1e-3, 0.1]))
def test_the_centred_inverse_and_the_normalised_kernel_are_their_formulas_in_any_batch(n, kernels, seed, epsilon):
    less_one = torch.stack([hsic.gaussian(rows(n, 3, seed + i), 1.0 + i).less_one for i in range(kernels)])
    kept, ridge = less_one.clone(), epsilon * n
    inverses = hsic.centred_inverse(less_one, ridge)
    assert torch.equal(less_one, kept)
    again = inverses.clone()
    found = hsic.normalised(inverses, ridge)
    assert torch.equal(inverses, again)
    for each, inverse, entries in zip(less_one, inverses, found, strict=True):
        expected = slow_inverse(each, ridge)
        torch.testing.assert_close(inverse, expected, rtol=1e-7, atol=1e-9 / ridge)
        torch.testing.assert_close(hsic.centred_inverse(each, ridge), inverse, rtol=1e-9, atol=1e-12 / ridge)
        torch.testing.assert_close(entries, reference.normalise(1 + each, epsilon), rtol=1e-7, atol=1e-8)
        kernel = 1 + each
        centred = kernel - kernel.mean(0) - kernel.mean(1, keepdim=True) + kernel.mean()
        slow = centred @ torch.linalg.inv(centred + ridge * torch.eye(n, dtype=torch.float64))
        torch.testing.assert_close(entries, slow, rtol=1e-7, atol=1e-8)


# Float32


def smooth_inputs(n, classes, seed):
    """Images of 28 × 28 as digits are: a smooth pattern per class and one per sample, grey values from 0 to 1."""
    y = labels(n, classes, seed)
    noise = rows(classes, 49, seed + 1)[y] + 0.5 * rows(n, 49, seed + 2)
    images = torch.nn.functional.interpolate(noise.reshape(n, 1, 7, 7), (28, 28), mode="bicubic")
    return images.clamp(0, 1).reshape(n, 784).float(), y


def relu_net(x, seed, widths=(100, 100)):
    """Activations of a ReLU net with the usual first weights."""
    found = []
    for number, width in enumerate(widths):
        weight = rows(width, x.shape[1], seed + number, torch.float32) * (2 / x.shape[1]) ** 0.5
        x = (x @ weight.T).clamp_min(0)
        found.append(x)
    return found


@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_in_float32_derivatives_of_a_relu_net_are_close_to_those_in_float64(n, classes, seed):
    x, y = smooth_inputs(n, classes, seed)
    layers = relu_net(x, seed)
    ridge = 1e-5 * n
    for z in (x, *layers):
        exact = reference.normalise(reference.gaussian_kernel(z.double()))
        found = hsic.normalised(hsic.centred_inverse(hsic.gaussian(z).less_one, ridge), ridge)
        assert found.dtype == torch.float32
        assert float((found - exact).abs().max()) < 1e-4
    found = NormalisedHSIC().derivatives(x, y, layers, 500.0)
    exact = NormalisedHSIC().derivatives(x.double(), y, [z.double() for z in layers], 500.0)
    for short, long in zip(found, exact, strict=True):
        assert short.dtype == torch.float32
        assert float((short - long).norm()) < 5e-4 * float(long.norm())


def test_float64_takes_over_where_the_ridge_is_tiny_beside_the_kernel():
    """In float32 the inverse would have no digits left, or no Cholesky factor. One such kernel of a batch is enough."""
    n = 128
    flat, steep = (hsic.gaussian(scale * rows(n, 50, 0, torch.float32), 1.0).less_one for scale in (1e-2, 1.0))
    kernels = torch.stack([(kernel + kernel.mT) / 2 for kernel in (flat, steep)])
    for epsilon in (1e-8, 1e-6):
        found = hsic.centred_inverse(kernels, epsilon * n)
        assert found.dtype == torch.float32
        for inverse, kernel in zip(found, kernels, strict=True):
            expected = slow_inverse(kernel, epsilon * n)
            assert float((inverse - expected).norm()) < 1e-6 * float(expected.norm())


def test_float64_takes_over_beyond_a_trace_of_ten_thousand_ridges():
    less_one = hsic.gaussian(rows(64, 20, 0, torch.float32), 2.0).less_one
    trace = float(hsic.center(less_one.double()).trace())
    for share, wide in ((0.99, True), (1.01, False)):
        ridge = share * 1e-4 * trace
        in_float64 = hsic.centred_inverse(less_one.double(), ridge).float()
        assert torch.equal(hsic.centred_inverse(less_one, ridge), in_float64) is wide


def test_numbers_that_are_not_finite_do_not_pass_as_an_inverse():
    less_one = torch.zeros(4, 4)
    less_one[1, 2] = less_one[2, 1] = torch.nan
    with pytest.raises(RuntimeError):
        hsic.centred_inverse(less_one, 0.1)
