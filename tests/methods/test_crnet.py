"""CRNet: output weights and Fisher information against slow dense formulas, and a map that is fixed at the first task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.fit import fit_task, predict_logits
from cldnet.methods import build_learner
from cldnet.methods.crnet import CRNet, CRNetConfig
from cldnet.methods.learner import Setting, TaskData

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
        ({"strength": -1.0}, "strength=-1.0 should be a number from 0 on"),
        ({"sharpness": 0.0}, "sharpness=0.0 should be a positive number"),
        ({"hidden": 0}, "hidden=0 should be a whole number from 1 on"),
        ({"groups": 2.5}, "groups=2.5 should be a whole number from 1 on"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        CRNetConfig(**options)
