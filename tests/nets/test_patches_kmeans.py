"""Spherical k-means: every centre is the mean of enough vectors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.device import generator
from cldnet.nets.patches import spherical_kmeans

relaxed = settings(deadline=None, max_examples=20)


def bundles(per_bundle=60, noise=0.05, seed=0):
    """Vectors around three axes, of any length."""
    axes = torch.eye(5)[:3].repeat_interleave(per_bundle, 0)
    spread = noise * torch.randn(axes.shape, generator=generator(seed))
    return (axes + spread) * (0.1 + 10 * torch.rand(len(axes), 1, generator=generator(seed + 1)))


def test_directions_that_many_vectors_share_are_found_whatever_their_length():
    centres = spherical_kmeans(bundles(), 3, generator(4), least=20)
    assert (centres[:, :3].max(0).values > 0.99).all()


@relaxed
@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 1000))
def test_every_centre_is_a_unit_vector_and_the_mean_of_at_least_so_many(count, least, seed):
    vectors = torch.randn(200, 16, generator=generator(seed))
    centres = spherical_kmeans(vectors, count, generator(seed), least=least, iterations=3)
    assert centres.shape == (count, 16)
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(count))
    if least >= 10:  # a mean of ten random directions is none of them
        assert float((torch.nn.functional.normalize(vectors) @ centres.T).max()) < 0.99


def test_more_centres_than_bundles_still_have_neighbours_enough():
    vectors = torch.cat([bundles(per_bundle=30), torch.tensor([[0.0, 0, 0, 0, 9.0]])])
    centres = spherical_kmeans(vectors, 40, generator(0), least=10)
    unit = torch.nn.functional.normalize(vectors)
    assert float((centres @ unit[-1]).max()) < 0.9  # the one that stands alone is no centre
    assert ((centres @ unit.T) > 0.5).sum(1).min() >= 10


def test_the_same_seed_gives_the_same_centres():
    first, second = (spherical_kmeans(bundles(), 7, generator(3), least=5) for _ in range(2))
    assert torch.equal(first, second)


def test_too_few_vectors_are_refused():
    with pytest.raises(ValueError, match="at least 100 vectors, and there are only 99"):
        spherical_kmeans(torch.ones(99, 2), 1, generator(0), least=100)


def test_vectors_without_a_direction_give_finite_centres():
    assert torch.isfinite(spherical_kmeans(torch.zeros(50, 3), 4, generator(0), least=10)).all()
