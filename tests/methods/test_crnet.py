"""CRNet: its random map against the paper's formulas, and its closed form against a solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Lasso
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.crnet import BroadMap, CRNet, CRNetConfig, sparse_weights
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData, predict_logits

CENTRES = 2.0 * torch.randn(8, 6, generator=generator(0))
TASKS = ([0, 1], [2, 3], [4, 5])


def blobs(classes: list[int], count: int = 60, seed: int = 0) -> TaskData:
    y = torch.tensor(classes).repeat(count)
    return TaskData(CENTRES[y] + torch.randn(len(y), 6, generator=generator(seed)), y)


def make(**options: Any) -> CRNet:
    sizes = {"groups": 3, "group_width": 4, "enhanced": 20, "hidden": 25, **options}
    learner = build_learner("crnet", Setting((6,), 8, seed=0), sizes)
    assert isinstance(learner, CRNet)
    return learner


def test_every_column_solves_its_own_dense_problem() -> None:
    learner, strength = make(strength=50.0), 50.0
    beta, fishers = np.zeros((25, 8)), []
    for classes in TASKS:
        task = blobs(classes)
        fit_task(learner, task, epochs=1, batch_size=32)
        a, y = learner.features(task.x).numpy(), np.eye(8)[task.y.numpy()]
        columns, ridge = [], np.sqrt(2.0**-30 * (a**2).sum(0).mean()) * np.eye(25)
        for q in range(8):  # least squares with a row √(λ F) for every weight: no sums and no Cholesky
            rows, targets = [a, ridge], [y[:, q], np.zeros(25)]
            for fisher in fishers:
                root = np.sqrt(strength * fisher[:, q])
                rows.append(np.diag(root))
                targets.append(root * beta[:, q])
            columns.append(np.linalg.lstsq(np.vstack(rows), np.concatenate(targets), rcond=None)[0])
        beta = np.stack(columns, 1)
        np.testing.assert_allclose(learner.weight.numpy(), beta, rtol=1e-6, atol=1e-7)
        weight = torch.tensor(beta, requires_grad=True)
        F.cross_entropy(torch.from_numpy(a) @ weight, task.y).backward()
        assert weight.grad is not None
        fishers.append(weight.grad.numpy() ** 2 * len(task))
        np.testing.assert_allclose(learner.fisher.numpy(), sum(fishers), rtol=1e-4, atol=1e-10)


def test_the_first_task_is_plain_least_squares_even_with_fewer_rows_than_units() -> None:
    learner, task = make(hidden=60), blobs([0, 1], count=10)
    fit_task(learner, task, epochs=1, batch_size=32)
    a = learner.features(task.x).numpy()
    expected = a @ (np.linalg.pinv(a) @ np.eye(8)[task.y.numpy()])
    np.testing.assert_allclose(predict_logits(learner, task.x).numpy(), expected[:, :2], atol=1e-4)


def test_the_map_is_fitted_on_the_first_task_and_never_again() -> None:
    learner = make()
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=32)
    before = {name: tensor.clone() for name, tensor in learner.features.state_dict().items()}
    fit_task(learner, blobs([2, 3]), epochs=1, batch_size=32)
    predict_logits(learner, 100 * blobs([4, 5]).x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.features.state_dict().items())


def test_an_inputs_scores_do_not_depend_on_what_else_is_tested() -> None:
    learner = make()
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=32)
    x = torch.cat([blobs([0]).x, 5 * blobs([6]).x])
    torch.testing.assert_close(predict_logits(learner, x)[:60], predict_logits(learner, x[:60]))


def test_strength_keeps_old_classes() -> None:
    kept = []
    for strength in (0.0, 5000.0):
        learner = make(strength=strength, enhanced=100, hidden=200)
        for classes in TASKS:
            fit_task(learner, blobs(classes, count=200), epochs=1, batch_size=64)
        old = blobs([0, 1, 2, 3], seed=5)
        kept.append(float((predict_logits(learner, old.x).argmax(1) == old.y).float().mean()))
    assert kept[0] < 0.3
    assert kept[1] > kept[0] + 0.3


def test_weights_of_rows_count_as_repetitions() -> None:
    task, weight = blobs([0, 1]), torch.arange(120) % 3
    repeated = TaskData(task.x.repeat_interleave(weight, 0), task.y.repeat_interleave(weight, 0))
    one, other = make(), make()
    for again in ([0, 1], [2, 3]):
        shift = again[0]
        fit_task(one, TaskData(task.x, task.y + shift, weight.float()), epochs=1, batch_size=32)
        fit_task(other, TaskData(repeated.x, repeated.y + shift), epochs=1, batch_size=32)
    torch.testing.assert_close(one.fisher, other.fisher, rtol=1e-4, atol=1e-9)
    torch.testing.assert_close(predict_logits(one, task.x), predict_logits(other, task.x), rtol=1e-4, atol=1e-6)


def test_the_sums_of_a_task_are_not_kept() -> None:
    learner = make()
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=32)
    assert not hasattr(learner, "gram")
    assert {name.split(".")[0] for name in learner.state_dict()} == {
        "features",
        "weight",
        "fisher",
        "counters",
        "random",
    }


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"strength": -1.0}, "strength=-1.0 should be a finite number, 0 or more"),
        ({"sharpness": 0.0}, "sharpness=0.0 should be a positive, finite number"),
        ({"hidden": 0}, "hidden=0 should be a positive integer"),
        ({"groups": 2.5}, "groups=2.5 should be a positive integer"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        CRNetConfig(**options)


relaxed = settings(deadline=None, max_examples=8)
seeds = st.integers(0, 2**31 - 1)
X = torch.randn(50, 2, 3, generator=generator(1)) * 3 + 1


def broad(**options: Any) -> BroadMap:
    sizes = {"groups": 4, "group_width": 2, "enhanced": 15, "hidden": 11, "sharpness": 20.0, **options}
    return BroadMap((2, 3), CRNetConfig(**sizes), generator(0))


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
    config = CRNetConfig(groups=20, group_width=30, enhanced=40, hidden=60, sharpness=20.0)
    features = BroadMap((50,), config, generator(0))
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
