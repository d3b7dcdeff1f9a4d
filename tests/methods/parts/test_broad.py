"""The random map of CRNet, against its formulas written out row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Lasso

from cldnet.device import generator
from cldnet.methods.parts.broad import BroadMap, sparse_weights

relaxed = settings(deadline=None, max_examples=8)
seeds = st.integers(0, 2**31 - 1)
X = torch.randn(50, 2, 3, generator=generator(1)) * 3 + 1


def broad(**options: Any) -> BroadMap:
    sizes = {"enhanced": 15, "hidden": 11, "sharpness": 20.0, **options}
    return BroadMap((2, 3), 4, 2, source=generator(0), **sizes)


def shrink(x: np.ndarray, by: float) -> np.ndarray:
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


def by_formula(features: BroadMap, fitted_on: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The map as the paper's code has it, for plain arrays: fitted on some rows, applied to others."""

    def inputs(rows: np.ndarray) -> np.ndarray:
        flat = rows.reshape(len(rows), -1).astype(float)
        scaled = (flat - flat.mean(1, keepdims=True)) / flat.std(1, keepdims=True)
        return np.hstack([scaled, np.full((len(rows), 1), 0.1)])

    known, new = inputs(fitted_on), inputs(x)
    z_known, z_new = [], []
    for random in features.first.numpy():
        product = known @ random
        scaled = (product - product.min(0)) / (product.max(0) - product.min(0))
        inverse = np.linalg.inv(scaled.T @ scaled + np.eye(scaled.shape[1]))
        sparse = dual = np.zeros((scaled.shape[1], known.shape[1]))
        for _ in range(50):
            dense = inverse @ (scaled.T @ known + sparse - dual)
            sparse = shrink(dense + dual, 1e-3)
            dual = dual + dense - sparse
        mapped = known @ sparse.T
        low, span = mapped.min(0), mapped.max(0) - mapped.min(0)
        z_known.append((mapped - low) / span)
        z_new.append((new @ sparse.T - low) / span)
    mixing = features.mixing.numpy()

    def mixed(z: np.ndarray) -> np.ndarray:
        return np.hstack([z, np.full((len(z), 1), 0.1)]) @ mixing

    z = np.hstack(z_new)
    enhanced = np.tanh(mixed(z) * features.sharpness / mixed(np.hstack(z_known)).max())
    return np.maximum(np.hstack([z, enhanced]) @ features.weight.numpy() + features.bias.numpy(), 0)


def test_the_map_is_its_formula_for_rows_that_it_was_not_fitted_on() -> None:
    features = broad()
    features.fit(X[:30])
    np.testing.assert_allclose(
        features(X).numpy(), by_formula(features, X[:30].numpy(), X.numpy()), rtol=1e-8, atol=1e-10
    )


def test_a_row_has_the_same_features_in_any_company() -> None:
    features = broad()
    features.fit(X)
    alone = torch.cat([features(row) for row in X.split(1)])
    torch.testing.assert_close(alone, features(X))


def test_fitting_in_blocks_is_fitting_at_once_and_weights_are_repetitions() -> None:
    weight = torch.arange(50) % 3
    weighted, repeated = broad(), broad()
    weighted.fit(X, weight.float())
    repeated.fit(X.repeat_interleave(weight, 0))
    torch.testing.assert_close(weighted(X), repeated(X))
    many = X.repeat(30, 1, 1)  # more than a block
    blocks, once = broad(), broad()
    blocks.fit(many)
    once.fit(X, torch.full((50,), 30.0))
    torch.testing.assert_close(blocks(X), once(X))


def test_random_parts_have_the_ranges_that_they_should() -> None:
    wide, tall = broad(enhanced=15), broad(enhanced=5)
    torch.testing.assert_close(wide.mixing @ wide.mixing.T, torch.eye(9, dtype=torch.float64))
    torch.testing.assert_close(tall.mixing.T @ tall.mixing, torch.eye(5, dtype=torch.float64))
    assert float(wide.weight.abs().max()) <= 1


def test_inputs_without_any_variation_are_safe() -> None:
    features = broad()
    features.fit(torch.ones(3, 2, 3))
    assert torch.isfinite(features(torch.cat([X, torch.ones(1, 2, 3)]))).all()


@relaxed
@given(seeds, st.sampled_from((0.01, 0.1, 1.0)))
def test_sparse_weights_are_those_of_the_lasso(seed: int, penalty: float) -> None:
    source = generator(seed)
    f = torch.randn(40, 3, generator=source, dtype=torch.float64)
    x = torch.randn(40, 4, generator=source, dtype=torch.float64)
    found = sparse_weights(f.T @ f, f.T @ x, penalty, steps=1000)
    lasso = Lasso(alpha=penalty / 40, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(f.numpy(), x.numpy())
    np.testing.assert_allclose(found.T.numpy(), lasso.coef_, atol=1e-6)


def test_random_weights_have_the_distributions_of_the_papers_code() -> None:
    """``2 · randn − 1`` before the sparse weights, and orthonormal or uniform in [−1, 1] behind them."""
    features = BroadMap((50,), 20, 30, enhanced=40, hidden=60, sharpness=20.0, source=generator(0))
    assert float(features.first.mean()) == pytest.approx(-1, abs=0.05)
    assert float(features.first.std()) == pytest.approx(2, abs=0.05)
    torch.testing.assert_close(features.mixing.T @ features.mixing, torch.eye(40, dtype=torch.float64))
    for uniform in (features.weight, features.bias):
        assert -1 <= float(uniform.min()) < -0.8
        assert 0.8 < float(uniform.max()) <= 1
    assert float(features.weight.mean()) == pytest.approx(0, abs=0.02)
    assert float(features.weight.std()) == pytest.approx(3**-0.5, abs=0.02)


def test_a_mixture_that_is_never_positive_is_not_turned_round() -> None:
    features = broad()
    features.mixing.copy_(-features.mixing.abs())
    features.fit(X)
    assert float(features.largest) > 0
    assert features(X).isfinite().all()
