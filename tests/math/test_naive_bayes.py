"""Log shares of class sums are those of scikit-learn's naive Bayes."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.naive_bayes import MultinomialNB

from cldnet.math.naive_bayes import SMOOTHING, log_shares


def test_they_are_those_of_multinomial_naive_bayes() -> None:
    counts, y = np.random.default_rng(0).poisson(1.0, (30, 8)), np.arange(30) % 3
    sums = torch.stack([torch.from_numpy(counts[y == label].sum(0)) for label in range(3)]).double()
    shares = log_shares(sums)
    assert shares is not None
    reference = MultinomialNB(alpha=SMOOTHING).fit(counts, y)
    assert np.allclose(shares.numpy(), reference.feature_log_prob_)


def test_negative_features_have_none_and_a_rest_of_rounding_counts_as_zero() -> None:
    assert log_shares(torch.tensor([[1.0, -0.1]])) is None
    rest, none = (log_shares(torch.tensor([[1e6, value]], dtype=torch.float64)) for value in (-1e-6, 0.0))
    assert rest is not None
    assert none is not None
    assert torch.equal(rest, none)
