"""SLDA: linear discriminant analysis of all data seen, in whatever order it came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData, predict_logits
from cldnet.methods.slda import SLDA, SLDAConfig
from cldnet.nets import RandomReLU

CENTRES = 1.5 * torch.randn(6, 5, generator=generator(0))


def blobs(classes: list[int], counts: list[int], seed: int = 0) -> TaskData:
    y = torch.repeat_interleave(torch.tensor(classes), torch.tensor(counts))
    return TaskData(CENTRES[y] + torch.randn(len(y), 5, generator=generator(seed)), y)


def fitted_map() -> RandomReLU:
    features = RandomReLU((5,), features=30, seed=0)
    features.fit(torch.randn(200, 5, generator=generator(3)))
    return features


def make(net: nn.Module | None = None, **options: Any) -> SLDA:
    learner = build_learner("slda", Setting((5,), 8, seed=0), options, net or fitted_map())
    assert isinstance(learner, SLDA)
    return learner


def up_to_a_constant(scores: Tensor | np.ndarray) -> Tensor:
    scores = torch.as_tensor(scores)
    return scores - scores.mean(1, keepdim=True)


@pytest.mark.parametrize("shrinkage", [1e-3, 0.1, 1.0])
def test_scores_are_those_of_linear_discriminant_analysis_of_all_data_at_once(shrinkage: float) -> None:
    learner, tasks = make(shrinkage=shrinkage), [blobs([0, 1], [40, 40]), blobs([2, 3], [40, 40], seed=1)]
    for task in tasks:
        fit_task(learner, task, epochs=3, batch_size=7)
    x, y = torch.cat([task.x for task in tasks]), torch.cat([task.y for task in tasks])
    peer = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage, priors=[0.25] * 4)
    peer.fit(learner.features(x).double().numpy(), y.numpy())
    new = blobs([0, 1, 2, 3], [20] * 4, seed=9).x
    expected = peer.decision_function(learner.features(new).double().numpy())
    torch.testing.assert_close(
        up_to_a_constant(predict_logits(learner, new)), up_to_a_constant(expected), rtol=1e-6, atol=1e-6
    )


def test_rare_classes_are_taken_to_be_as_likely_as_others() -> None:
    task = blobs([0, 1, 2], [100, 50, 10])
    learner = make(shrinkage=0.1)
    fit_task(learner, task, epochs=1, batch_size=64)
    # With the shares of the classes as priors their covariance is the pooled one; then the priors are taken out again.
    peer = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1).fit(learner.features(task.x).double(), task.y)
    expected = peer.decision_function(learner.features(task.x).double().numpy()) - np.log(
        [100 / 160, 50 / 160, 10 / 160]
    )
    torch.testing.assert_close(
        up_to_a_constant(learner.logits(task.x)), up_to_a_constant(expected), rtol=1e-6, atol=1e-6
    )


def test_order_and_batches_leave_no_trace_to_the_last_bit() -> None:
    task = blobs([0, 1, 2], [30, 20, 10])
    order = torch.randperm(60, generator=generator(1))
    states = []
    for index, size, pieces in ((torch.arange(60), 60, 1), (order, 7, 1), (order.flip(0), 13, 4)):
        learner = make()
        for part in index.chunk(pieces):
            learner.begin_task(task)
            for batch in TaskData(task.x[part], task.y[part]).batches(size):
                learner.observe(batch)
            learner.end_task(task)
        states.append((learner.second.packed, learner.class_sums, learner.class_weights, learner.logits(task.x)))
    for other in states[1:]:
        assert all(torch.equal(one, two) for one, two in zip(states[0], other, strict=True))


def test_weights_of_rows_count_as_repetitions() -> None:
    task, weight = blobs([0, 1], [30, 30]), torch.arange(60) % 3
    repeated = TaskData(task.x.repeat_interleave(weight, 0), task.y.repeat_interleave(weight, 0))
    one, other = make(), make()
    fit_task(one, TaskData(task.x, task.y, weight.float()), epochs=1, batch_size=16)
    fit_task(other, repeated, epochs=1, batch_size=16)
    torch.testing.assert_close(one.logits(task.x), other.logits(task.x))


def test_a_class_without_examples_never_wins_and_its_scores_are_finite() -> None:
    task = blobs([0, 1, 2], [20, 20, 20])
    learner = make()
    fit_task(learner, TaskData(task.x, task.y, (task.y != 1).float()), epochs=1, batch_size=16)
    scores = learner.logits(task.x)
    assert torch.isfinite(scores).all()
    assert 1 not in scores.argmax(1)


def test_before_anything_varies_the_nearest_mean_wins() -> None:
    learner, task = make(), blobs([0, 1], [1, 1])
    fit_task(learner, task, epochs=1, batch_size=2)
    assert learner.logits(task.x).argmax(1).tolist() == [0, 1]


def test_scores_in_the_middle_of_a_task_are_those_of_all_that_was_observed() -> None:
    task = blobs([0, 1, 2], [10, 10, 10])
    learner, other = make(), make()
    for each in (learner, other):
        each.begin_task(task)
    first, second = task.batches(15)
    learner.observe(first)
    before = learner.logits(task.x)
    learner.observe(second)
    for batch in (first, second):
        other.observe(batch)
    assert not torch.equal(learner.logits(task.x), before)
    assert torch.equal(learner.logits(task.x), other.logits(task.x))


def test_another_shrinkage_gives_other_scores_of_the_same_sums() -> None:
    task = blobs([0, 1], [30, 30])
    learner, other = make(), make(shrinkage=0.5)
    for each in (learner, other):
        fit_task(each, task, epochs=1, batch_size=16)
    before = learner.logits(task.x)
    learner.configure({"shrinkage": 0.5})
    assert not torch.allclose(learner.logits(task.x), before)
    assert torch.equal(learner.logits(task.x), other.logits(task.x))


def test_features_that_are_kept_give_the_same_scores() -> None:
    learner, task = make(), blobs([0, 1], [30, 30])
    fit_task(learner, task, epochs=1, batch_size=16)
    kept = learner.represent(task.x)
    assert kept.dtype == torch.int8
    assert torch.equal(learner.score_represented(kept), learner.logits(task.x))


def test_a_module_is_frozen_and_a_map_of_patches_is_taken() -> None:
    net = nn.Linear(5, 3)
    learner = make(net)
    fit_task(learner, blobs([0, 1], [30, 30]), epochs=1, batch_size=16)
    assert learner.backbone is net
    assert not net.weight.requires_grad
    patches = build_learner(
        "slda", Setting((8, 8), 4, seed=0), backbone="patches", backbone_options={"filters": 4, "size": 4}
    )
    x = torch.randint(0, 256, (300, 8, 8), generator=generator(0), dtype=torch.uint8)
    x[::2, :4] //= 4
    fit_task(patches, TaskData(x, torch.arange(300) % 2), epochs=1, batch_size=64)
    assert float((predict_logits(patches, x).argmax(1) == torch.arange(300) % 2).float().mean()) > 0.9


def test_a_first_task_that_is_too_small_for_the_map_is_refused() -> None:
    learner = build_learner("slda", Setting((5,), 8, seed=0), backbone=nn.Identity())
    with pytest.raises(ValueError, match="The first call needs at least 2 samples"):
        fit_task(learner, blobs([0], [1]), epochs=1, batch_size=1)


@pytest.mark.parametrize("shrinkage", [0.0, 1.5, float("nan")])
def test_settings_that_cannot_be_are_refused(shrinkage: float) -> None:
    with pytest.raises(ValueError, match="should be above 0 and at most 1"):
        SLDAConfig(shrinkage=shrinkage)


@pytest.mark.parametrize("far", [0.0, 1e-3, 1.0, -5.0, 100.0])
def test_a_class_without_examples_is_the_least_likely_one_wherever_an_input_lies(far: float) -> None:
    """Its mean would be zero, and the nearest to features near zero."""
    task = blobs([0, 1, 2], [20, 20, 20])
    learner = make()
    fit_task(learner, TaskData(task.x, task.y, (task.y != 1).float()), epochs=1, batch_size=16)
    scores = learner.score_represented(far * learner.features(task.x[:4]))
    assert (scores[:, 1] < scores[:, [0, 2]].amin(1)).all()
