from __future__ import annotations

import re
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.math import basis as module
from cldnet.math.basis import basis_vectors, extend_basis, largest_cosine, reachable_gamma, welch_bound

relaxed = settings(deadline=None, max_examples=50)
seeds = st.integers(0, 2**31 - 1)
up_to_dim = st.integers(1, 40).flatmap(lambda dim: st.tuples(st.integers(1, dim), st.just(dim)))
above_dim = st.integers(2, 12).flatmap(lambda dim: st.tuples(st.integers(dim + 1, 3 * dim), st.just(dim)))


def largest_cosine_by_loops(vectors):
    unit = [v / v.norm() for v in vectors.double()]
    return max((float(abs(a @ b)) for i, a in enumerate(unit) for b in unit[:i]), default=0.0)


def quiet_table(count, dim, gamma, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return basis_vectors(count, dim, gamma, **options)


# Welch's bound and the largest cosine


@relaxed
@given(above_dim, seeds)
def test_no_vectors_have_a_smaller_largest_cosine_than_welch(sizes, seed):
    vectors = torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))
    assert 0 < welch_bound(*sizes) <= largest_cosine(vectors)


@pytest.mark.parametrize("dim", [1, 2, 3, 10, 400])
def test_welch_bound_of_known_packings(dim):
    assert welch_bound(dim, dim) == 0
    assert welch_bound(dim + 1, dim) == pytest.approx(1 / dim)  # the regular simplex reaches it


def test_the_icosahedron_reaches_the_welch_bound():
    golden = (1 + 5**0.5) / 2
    axes = torch.tensor(
        [[0, 1, golden], [0, 1, -golden], [1, golden, 0], [1, -golden, 0], [golden, 0, 1], [-golden, 0, 1]],
        dtype=torch.float64,
    )
    assert largest_cosine(axes) == pytest.approx(welch_bound(6, 3), abs=1e-12)


@relaxed
@given(st.integers(1, 12), st.integers(1, 6), seeds)
def test_largest_cosine_is_its_definition(count, dim, seed):
    vectors = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    before = vectors.clone()
    assert largest_cosine(vectors) == pytest.approx(largest_cosine_by_loops(vectors), abs=1e-12)
    assert torch.equal(vectors, before)


def test_largest_cosine_looks_into_every_slice():
    unit = torch.nn.functional.normalize(
        torch.randn(1100, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1
    )
    cosines = (unit @ unit.mT).fill_diagonal_(0).abs()
    assert largest_cosine(unit) == pytest.approx(float(cosines.max()), abs=1e-12)
    for twin in (0, 600, 1098):
        doubled = torch.cat([unit[:-1], -unit[twin : twin + 1]])
        assert largest_cosine(doubled) == pytest.approx(1.0)


# Up to dim vectors


@relaxed
@given(up_to_dim, seeds)
def test_up_to_dim_vectors_are_orthonormal(sizes, seed):
    table = basis_vectors(*sizes, gamma=0.0, seed=seed)
    assert table.shape == sizes
    assert table.dtype == torch.float32
    assert table.is_contiguous()
    torch.testing.assert_close(table @ table.mT, torch.eye(sizes[0]), rtol=0, atol=1e-6)


# More than dim vectors


@relaxed
@given(above_dim, st.floats(1.0, 2.0), seeds)
def test_rows_are_unit_vectors_whether_gamma_is_reached_or_not(sizes, factor, seed):
    gamma = min(welch_bound(*sizes) * factor, 0.99)
    table = quiet_table(*sizes, gamma, seed=seed, max_steps=20)
    assert table.shape == sizes
    assert table.dtype == torch.float32
    torch.testing.assert_close(table.norm(dim=1), torch.ones(sizes[0]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("count", "dim", "factor"),
    [
        (12, 8, 1.6),
        (40, 20, 1.4),
        (200, 100, 1.6),
        (200, 100, 1.2),
        (101, 100, 1.1),
        (500, 100, 1.4),
        (600, 300, 1.3),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_gamma_is_reached(count, dim, factor, seed):
    gamma = factor * welch_bound(count, dim)
    assert largest_cosine(basis_vectors(count, dim, gamma, seed=seed)) <= gamma + 1e-6


@pytest.mark.parametrize("dim", [2, 5, 8, 30])
def test_one_vector_more_than_dim_is_the_simplex_when_gamma_is_the_bound(dim):
    bound = welch_bound(dim + 1, dim)
    table = basis_vectors(dim + 1, dim, bound).double()
    cosines = (table @ table.mT).abs()
    off_diagonal = cosines[~torch.eye(dim + 1, dtype=torch.bool)]
    torch.testing.assert_close(off_diagonal, torch.full_like(off_diagonal, bound), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("count", "dim", "gamma", "max_steps"), [(10, 2, 0.8, 50), (200, 100, 0.0720, 5)])
def test_a_gamma_that_is_not_reached_is_named_with_the_one_that_was(count, dim, gamma, max_steps):
    with pytest.warns(UserWarning, match=f"instead of gamma={gamma} .* raise dim, gamma or max_steps") as caught:
        table = basis_vectors(count, dim, gamma, max_steps=max_steps)
    named = re.search(r"largest cosine of (\d\.\d+) ", str(caught[0].message))
    assert named is not None
    assert float(named[1]) == pytest.approx(largest_cosine(table), abs=1e-6)
    assert float(named[1]) > gamma
    assert caught[0].filename == __file__


def test_the_best_table_is_returned_so_more_steps_are_never_worse():
    reached = [largest_cosine(quiet_table(30, 10, 0.27, max_steps=steps)) for steps in (1, 3, 10, 30, 100)]
    assert reached == sorted(reached, reverse=True)


# Seeds


@pytest.mark.parametrize(("count", "dim", "gamma"), [(5, 8, 0.04), (8, 8, 0.04), (12, 8, 0.35), (200, 100, 0.12)])
def test_the_seed_alone_decides(count, dim, gamma):
    table = basis_vectors(count, dim, gamma, seed=3)
    state = torch.get_rng_state()
    assert torch.equal(table, basis_vectors(count, dim, gamma, seed=3))
    assert not torch.allclose(table, basis_vectors(count, dim, gamma, seed=4), atol=1e-2)
    assert torch.equal(torch.get_rng_state(), state)


def test_other_machines_make_the_same_tables():
    few = basis_vectors(5, 8, seed=0)[[0, 2, 4]][:, [0, 3, 7]]
    expected_few = [
        [-0.80679935, 0.11803620, 0.31913468],
        [-0.19535713, -0.64730495, -0.61881363],
        [-0.19999170, -0.23258638, 0.11215992],
    ]
    torch.testing.assert_close(few, torch.tensor(expected_few), rtol=0, atol=1e-6)
    many = basis_vectors(12, 8, gamma=0.35, seed=0)[[0, 5, 11]][:, [0, 3, 7]]
    expected_many = [
        [-0.61368239, 0.16665559, -0.12690453],
        [0.26248387, 0.29871678, -0.15501939],
        [-0.12241514, -0.41647488, 0.33029854],
    ]
    torch.testing.assert_close(many, torch.tensor(expected_many), rtol=0, atol=1e-6)


# Errors


@relaxed
@given(above_dim, st.floats(0, 0.999))
def test_a_gamma_below_welch_is_refused_and_the_advice_is_sound(sizes, fraction):
    count, dim = sizes
    bound = welch_bound(count, dim)
    gamma = fraction * bound
    with pytest.raises(ValueError, match=f"largest cosine below {bound:.6f}") as refusal:
        basis_vectors(count, dim, gamma)
    advised = int(re.search(r"dim to (\d+) or more", str(refusal.value))[1])  # type: ignore[index]
    assert dim < advised <= count
    assert welch_bound(count, advised) <= gamma + 1e-12 < welch_bound(count, advised - 1) + 1e-9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": 0, "dim": 3}, "must both be at least 1"),
        ({"count": 3, "dim": 0}, "must both be at least 1"),
        ({"count": 3, "dim": 4, "gamma": -0.1}, r"must be in \[0, 1\)"),
        ({"count": 3, "dim": 4, "gamma": 1.0}, r"must be in \[0, 1\)"),
        ({"count": 3, "dim": 4, "gamma": float("nan")}, r"must be in \[0, 1\)"),
        ({"count": 3, "dim": 2, "gamma": 0.9, "max_steps": 0}, "must be at least 1"),
        ({"count": 3, "dim": 1, "gamma": 0.9}, "below 1.000000"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(arguments, words):
    with pytest.raises(ValueError, match=words):
        basis_vectors(**arguments)


def test_a_bad_size_has_no_welch_bound():
    with pytest.raises(ValueError, match="must both be at least 1"):
        welch_bound(0, 3)


# More vectors


@relaxed
@given(st.integers(1, 12), st.integers(0, 30), st.integers(2, 12), st.integers(0, 5))
def test_vectors_are_added_without_moving_those_that_are_there(old, more, dim, seed):
    table = quiet_table(old, dim, min(0.99, reachable_gamma(old, dim)), seed=seed)
    count = old + more
    longer = extend_basis(table, count, reachable_gamma(count, dim), seed=seed, max_steps=60)
    assert longer.shape == (count, dim)
    assert torch.equal(longer[:old], table)
    torch.testing.assert_close(longer.norm(dim=1), torch.ones(count), rtol=0, atol=1e-6)
    assert largest_cosine(longer) >= welch_bound(count, dim) - 1e-6
    if count <= dim:
        assert largest_cosine(longer) < 1e-6


@pytest.mark.parametrize(
    ("old", "count", "dim", "factor"),
    [
        (16, 17, 16, 1.01),
        (64, 80, 64, 1.05),
        (10, 100, 50, 1.6),
        (100, 200, 50, 1.6),
        (300, 400, 50, 1.7),
        (5, 8, 16, 0),
    ],
)
def test_vectors_that_are_added_keep_away_from_the_others(old, count, dim, factor):
    table = basis_vectors(old, dim, reachable_gamma(old, dim))
    # Beside a whole basis no vector has all its cosines below 1/√dim.
    bound = max(welch_bound(count, dim), dim**-0.5 if old == dim else 0.0)
    assert largest_cosine(extend_basis(table, count, reachable_gamma(count, dim))) <= factor * bound + 1e-6


def test_the_seed_alone_decides_on_vectors_that_are_added():
    for old, counts in ((4, (6, 8)), (12, (16, 20))):
        table = quiet_table(old, 8, 0.5)
        state = torch.get_rng_state()
        longer = extend_basis(table, counts[0], 0.5, seed=3)
        assert torch.equal(longer, extend_basis(table, counts[0], 0.5, seed=3))
        assert not torch.allclose(longer, extend_basis(table, counts[0], 0.5, seed=4), atol=1e-2)
        assert torch.equal(torch.get_rng_state(), state)
        # With one seed for all, what is added the second time is not what was added the first time.
        longest = extend_basis(longer, counts[1], 0.5, seed=3)
        assert largest_cosine(longest) < 0.9


def test_a_table_is_not_cut():
    table = basis_vectors(5, 8)
    assert torch.equal(extend_basis(table, 5), table)
    with pytest.raises(ValueError, match="count=4 must be at least 5"):
        extend_basis(table, 4)


def test_tables_that_would_take_hours_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_MAX_VECTORS", 20)
    for count, dim in ((20, 5), (30, 30)):
        assert len(basis_vectors(count, dim, gamma=0.9)) == count
    with pytest.raises(
        ValueError, match=r"21 vectors of length 5 would take hours .* a length of 21, .* or at most 20 vectors"
    ):
        basis_vectors(21, 5, gamma=0.9)
    with pytest.raises(ValueError, match=r"31 vectors of length 30 would take hours .* at most 30 vectors"):
        extend_basis(basis_vectors(30, 30), 31, gamma=0.9)


def test_the_seed_is_zero_unless_another_is_given():
    table = basis_vectors(9, 8, gamma=0.5)
    assert torch.equal(table, basis_vectors(9, 8, gamma=0.5, seed=0))
    assert torch.equal(extend_basis(table, 12, 0.5), extend_basis(table, 12, 0.5, seed=0))


@pytest.mark.parametrize(("count", "dim"), [(3, 2), (40, 2), (5, 3), (1000, 3), (100, 20), (1000, 20)])
def test_what_can_be_reached_is_its_formula(count, dim):
    """1.6 times Welch's bound, more where it is crowded, but never more than Gilbert's: caps that do not cover the sphere."""
    crowding = max(1, (1 + 1 / dim) * (count / (14 * dim)) ** 0.25)
    gilbert = (1 - count ** (-2 / (dim - 1))) ** 0.5
    assert reachable_gamma(count, dim) == pytest.approx(
        max(0.04, min(1.6 * crowding * welch_bound(count, dim), gilbert))
    )


def test_an_empty_table_cannot_be_extended():
    with pytest.raises(ValueError, match="count=0 and dim=5 must both be at least 1"):
        extend_basis(torch.zeros(0, 5), 3)


def test_the_reachable_gamma_is_the_one_asked_for_while_vectors_can_be_orthogonal() -> None:
    assert reachable_gamma(1000, 1000) == 0.04
    assert reachable_gamma(1000, 200) == pytest.approx(0.101, abs=5e-4)
    assert reachable_gamma(1000, 20) == pytest.approx(0.511, abs=5e-4)
