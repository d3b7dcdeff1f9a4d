"""k-means against scikit-learn's, and what holds of any clusters."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from cldnet.device import generator
from cldnet.math.kmeans import center_scores, kmeans, nearest


def inertia(x, centers):
    return float(torch.cdist(x, centers).amin(1).square().sum())


def test_from_the_same_start_the_centers_are_those_of_scikit_learn():
    x = torch.randn(200, 5, generator=generator(0), dtype=torch.float64)
    start = x[torch.randperm(200, generator=generator(1))[:7]].numpy()
    theirs = KMeans(7, init=start, n_init=1, max_iter=300, tol=0).fit(x.numpy()).cluster_centers_
    np.testing.assert_allclose(kmeans(x, 7, generator(1), steps=300).numpy(), theirs, atol=1e-9)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 5))
def test_more_steps_never_make_clusters_worse_and_all_numbers_are_finite(rows, count, seed):
    x = torch.randn(max(rows, count), 3, generator=generator(seed), dtype=torch.float64)
    x[::3] = x[0].clone()  # duplicates, so that some clusters are empty
    errors = [inertia(x, kmeans(x, count, generator(seed), steps=steps)) for steps in (0, 1, 2, 8)]
    assert all(b <= a + 1e-9 for a, b in pairwise(errors))


@given(st.integers(1, 20), st.integers(1, 10))
def test_the_nearest_center_has_the_largest_score(rows, count):
    x, centers = torch.randn(rows, 4, generator=generator(0)), torch.randn(count, 4, generator=generator(1))
    distances = torch.cdist(x, centers)
    assert torch.equal(nearest(x, centers), distances.argmin(1))
    expected = (x.square().sum(1, keepdim=True) - distances.square()) / 2
    torch.testing.assert_close(center_scores(x, centers), expected, rtol=1e-4, atol=1e-4)
