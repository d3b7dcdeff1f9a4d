from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.math.hsic_reference import gaussian_kernel, hsic, median_kernel, nhsic, normalise

from cldnet.math.hsic import center, label_kernel, squared_distances


def linear_kernel(x):
    gram = x.double() @ x.double().T
    return ((gram + gram.T) / 2).to(x.dtype)


KERNELS = [gaussian_kernel, median_kernel]
relaxed = settings(deadline=None)  # the first call of a torch function may be slow
seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(2, 9)
exact = {"rtol": 1e-9, "atol": 1e-10}


def rows(n, *shape, seed=0, dtype=torch.float64):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def labels(n, classes, seed=0):
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(seed))


def hsic_by_expectations(h, g):
    """Eq. 1, its expectations taken by loops over the batch."""
    n = len(h)
    both = sum(h[i, j] * g[i, j] for i in range(n) for j in range(n)) / n**2
    mean_h = sum(h[i, j] for i in range(n) for j in range(n)) / n**2
    mean_g = sum(g[i, j] for i in range(n) for j in range(n)) / n**2
    cross = sum((sum(h[i, j] for j in range(n)) / n) * (sum(g[i, j] for j in range(n)) / n) for i in range(n))
    return both + mean_h * mean_g - 2 * cross / n


def centring_matrix(n):
    return torch.eye(n, dtype=torch.float64) - 1 / n


def nhsic_right_sided(kernel_x, kernel_y, epsilon):
    """Ma et al.'s formula as their code has it: K H (K H + ε n I)⁻¹ with an explicit inverse."""
    n = len(kernel_x)
    ridge = epsilon * n * torch.eye(n, dtype=torch.float64)
    r_x, r_y = (k @ centring_matrix(n) @ torch.linalg.inv(k @ centring_matrix(n) + ridge) for k in (kernel_x, kernel_y))
    return torch.trace(r_x @ r_y)


# Kernels


@relaxed
@given(sizes, st.integers(1, 5), st.floats(0.3, 10), seeds)
def test_gaussian_kernel_is_its_formula(n, d, sigma, seed):
    x = rows(n, d, seed=seed)
    distances = (x.unsqueeze(0) - x.unsqueeze(1)).square().sum(-1)
    torch.testing.assert_close(gaussian_kernel(x, sigma), torch.exp(-distances / (2 * sigma**2 * d)), **exact)


@relaxed
@given(sizes, seeds)
def test_median_kernel_is_its_formula(n, seed):
    x = rows(n, 3, seed=seed)
    distances = (x.unsqueeze(0) - x.unsqueeze(1)).norm(dim=-1)
    s = torch.stack([distances[i, j] for i in range(n) for j in range(i)]).median()
    torch.testing.assert_close(median_kernel(x), torch.exp(-(distances**2) / (2 * s**2)), **exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [gaussian_kernel, median_kernel])
def test_gaussian_kernels_are_exactly_symmetric_with_unit_diagonal(kernel, dtype):
    k = kernel(rows(67, 31, dtype=dtype))
    assert k.dtype == dtype
    assert torch.equal(k, k.mT)
    assert torch.equal(k.diagonal(), torch.ones(67, dtype=dtype))


@pytest.mark.parametrize("kernel", KERNELS)
def test_samples_of_any_shape_are_flattened(kernel):
    x = rows(5, 3, 2, 2)
    torch.testing.assert_close(kernel(x), kernel(x.flatten(1)))
    torch.testing.assert_close(kernel(x[:, 0, 0, 0]), kernel(x[:, 0, 0, :1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [gaussian_kernel, median_kernel])
@pytest.mark.parametrize("different", [0, 1, 3])
def test_duplicate_rows_have_kernel_one_and_finite_gradients(kernel, dtype, different):
    x = rows(1, 7, dtype=dtype).repeat(8, 1) * 100
    x[:different] += rows(different, 7, seed=1, dtype=dtype)
    x.requires_grad_()
    k = kernel(x)
    torch.testing.assert_close(k[different:, different:], torch.ones_like(k[different:, different:]))
    (k * rows(8, 8, seed=2, dtype=dtype)).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_the_median_is_a_constant_for_the_gradient():
    x = rows(6, 3).requires_grad_()
    distances = torch.pdist(x.detach())
    fixed = gaussian_kernel(x, sigma=float(distances.median()) / 3**0.5)
    weights = rows(6, 6, seed=1)
    (through_median,) = torch.autograd.grad((median_kernel(x) * weights).sum(), x)
    (through_constant,) = torch.autograd.grad((fixed * weights).sum(), x)
    torch.testing.assert_close(through_median, through_constant)


def test_a_far_mean_does_not_spoil_a_float32_kernel():
    x = rows(20, 10, dtype=torch.float32)
    far = (x.double() + 1000).float()
    torch.testing.assert_close(gaussian_kernel(far, 1.0), gaussian_kernel((far.double() - 1000).float(), 1.0))


def test_label_kernel_is_the_linear_kernel_of_one_hot_labels():
    y = labels(20, 4)
    one_hot = torch.nn.functional.one_hot(y, 4).double()
    assert torch.equal(label_kernel(y, dtype=torch.float64), linear_kernel(one_hot))
    assert label_kernel(y).dtype == torch.float32


# HSIC


@relaxed
@given(sizes, seeds)
def test_centring_is_the_explicit_product(n, seed):
    k = rows(n, n, seed=seed)
    torch.testing.assert_close(center(k), centring_matrix(n) @ k @ centring_matrix(n), **exact)


@relaxed
@given(sizes, seeds)
def test_hsic_is_eq_2_and_a_factor_of_eq_1(n, seed):
    h, g = gaussian_kernel(rows(n, 3, seed=seed), 0.7), linear_kernel(rows(n, 2, seed=seed + 1))
    c = centring_matrix(n)
    torch.testing.assert_close(hsic(h, g), torch.trace(h @ c @ g @ c) / (n - 1) ** 2, **exact)
    torch.testing.assert_close(hsic(h, g), hsic_by_expectations(h, g) * n**2 / (n - 1) ** 2, **exact)


@relaxed
@given(sizes, seeds, st.sampled_from([1e-5, 1e-3, 0.1]))
def test_nhsic_is_the_right_sided_formula(n, seed, epsilon):
    k_x = gaussian_kernel(rows(n, 3, seed=seed), 1.0)
    k_y = label_kernel(labels(n, 3, seed), dtype=torch.float64)
    expected = nhsic_right_sided(k_x, k_y, epsilon)
    torch.testing.assert_close(nhsic(k_x, k_y, epsilon), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("measure", [hsic, nhsic])
@relaxed
@given(n=sizes, seed=seeds)
def test_symmetric_and_not_negative_and_blind_to_order(measure, n, seed):
    k_x = gaussian_kernel(rows(n, 3, seed=seed), 1.0)
    k_y = label_kernel(labels(n, 3, seed), dtype=torch.float64)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    value = measure(k_x, k_y)
    assert value >= -1e-12
    torch.testing.assert_close(value, measure(k_y, k_x), **exact)
    torch.testing.assert_close(value, measure(k_x[order][:, order], k_y[order][:, order]), **exact)


@relaxed
@given(st.integers(1, 40), st.integers(1, 6), seeds, st.sampled_from([torch.float32, torch.float64]))
def test_nhsic_with_labels_is_at_most_classes_less_one(n, classes, seed, dtype):
    y = labels(n, classes, seed)
    value = nhsic(gaussian_kernel(rows(n, 4, seed=seed, dtype=dtype), 0.5), label_kernel(y, dtype))
    assert value <= len(y.unique()) - 1 + (1e-5 if dtype == torch.float32 else 0)


@relaxed
@given(sizes, seeds)
def test_the_eigenvalues_of_a_normalised_kernel_lie_between_0_and_1(n, seed):
    r = normalise(gaussian_kernel(rows(n, 4, seed=seed)))
    eigenvalues = torch.linalg.eigvalsh(r)
    assert eigenvalues.min() > -1e-10
    assert eigenvalues.max() < 1


# Gradients


@settings(relaxed, max_examples=10)
@given(n=st.integers(1, 6), seed=seeds)
@pytest.mark.parametrize("measure", [hsic, nhsic])
def test_gradients_through_the_gaussian_kernel(measure, n, seed):
    k_y = label_kernel(labels(n, 2, seed), dtype=torch.float64)
    x, z = rows(n, 2, seed=seed).requires_grad_(), rows(n, 3, seed=seed + 1).requires_grad_()
    epsilon = {} if measure is hsic else {"epsilon": 1e-2}
    assert torch.autograd.gradcheck(lambda z: measure(gaussian_kernel(z, 1.0), k_y, **epsilon), (z,))
    assert torch.autograd.gradcheck(
        lambda x, z: measure(gaussian_kernel(x, 0.8), gaussian_kernel(z, 1.0), **epsilon), (x, z)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("measure", [hsic, nhsic])
@pytest.mark.parametrize("n", [1, 2, 7, 64, 333])
def test_one_sample_or_one_class_is_exactly_zero_with_zero_gradient(measure, kernel, n, dtype):
    z = rows(n, 3, dtype=dtype).requires_grad_()
    value = measure(kernel(z), label_kernel(torch.full((n,), 5), dtype))
    value.backward()
    assert value.item() == 0
    assert z.grad is not None
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_inputs_are_not_changed():
    x, y = rows(6, 3), labels(6, 2)
    k = gaussian_kernel(x)
    before = x.clone(), y.clone(), k.clone()
    nhsic(k, label_kernel(y, torch.float64))
    hsic(k, median_kernel(x))
    assert all(torch.equal(now, then) for now, then in zip((x, y, k), before, strict=True))


# Float32


@pytest.mark.parametrize("n", [2, 3, 64, 512])
@pytest.mark.parametrize("spread", [1e-8, 1e-4, 1e-2, 0.2, 1.0, 1e3])
def test_float32_follows_float64(n, spread):
    x = rows(n, 50, dtype=torch.float32) * spread
    k_y = label_kernel(labels(n, 5))
    if spread <= 0.2:
        assert (gaussian_kernel(x) > 1 - 2e-2).all()
    for measure, tolerance in ((hsic, 1e-7), (nhsic, 2e-2)):
        short, long = x.clone().requires_grad_(), x.double().requires_grad_()
        value = measure(gaussian_kernel(short), k_y)
        reference = measure(gaussian_kernel(long), k_y.double())
        torch.testing.assert_close(value.double(), reference, rtol=1e-2, atol=tolerance)
        value.backward()
        assert short.grad is not None
        assert short.grad.isfinite().all()


@pytest.mark.parametrize("n", [2, 16, 512])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e8])
def test_a_float32_linear_kernel_of_any_scale_can_be_normalised(n, scale):
    # Few dimensions and a far mean: most eigenvalues are 0 and the kernel's rounding makes some negative.
    x = (rows(n, 3, dtype=torch.float32) + 30) * scale
    r = normalise(linear_kernel(x))
    assert r.isfinite().all()
    assert r.abs().max() <= 1


# Errors


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan")])
def test_a_bad_sigma_is_refused(sigma):
    with pytest.raises(ValueError, match="must be positive"):
        gaussian_kernel(rows(3, 2), sigma)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan")])
def test_a_bad_epsilon_is_refused(epsilon):
    with pytest.raises(ValueError, match="must be positive"):
        normalise(torch.eye(3), epsilon)


@pytest.mark.parametrize("kernel", KERNELS)
def test_bad_rows_are_refused(kernel):
    with pytest.raises(TypeError, match=r"floating-point samples, got torch\.uint8"):
        kernel(torch.zeros(3, 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="at least one sample"):
        kernel(torch.zeros(0, 2))


def test_labels_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"shape \(n,\), got \(4, 1\)"):
        label_kernel(torch.zeros(4, 1, dtype=torch.int64))


# Rounding


def test_centring_a_kernel_near_one_keeps_its_digits():
    """With σ = 5 all entries lie within 1e-3 of 1: means of them in float32 would lose what is looked for."""
    k = 1 + 1e-6 * rows(40, 40, dtype=torch.float32)
    exact_centre = centring_matrix(40) @ k.double() @ centring_matrix(40)
    error = (center(k).double() - exact_centre).abs().max()
    assert error < 1e-12


def test_a_constant_kernel_is_centred_to_exact_zeros():
    for value in (0.1, 1 / 3, 1e6 + 0.1):
        k = torch.full((7, 7), value, dtype=torch.float32, requires_grad=True)
        assert not center(k).any()
        center(k).square().sum().backward()
        assert not k.grad.any()


def test_the_gradient_of_centring_is_centring():
    """What is taken off first is a constant: centring is symmetric, so it maps a gradient as it maps a kernel."""
    k, weights = rows(5, 5).requires_grad_(), rows(5, 5, seed=1)
    (center(k) * weights).sum().backward()
    torch.testing.assert_close(k.grad, centring_matrix(5) @ weights @ centring_matrix(5), **exact)


def test_distances_do_not_lose_digits_far_from_zero():
    x = rows(20, 3)
    expected = (x.unsqueeze(0) - x.unsqueeze(1)).square().sum(-1)
    torch.testing.assert_close(squared_distances(x + 2.0**20), expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(gaussian_kernel(x + 2.0**20, 0.5), gaussian_kernel(x, 0.5), rtol=0, atol=1e-7)
