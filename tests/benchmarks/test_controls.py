"""Controls against slow formulas of their own."""

from __future__ import annotations

import pytest
import torch
from benchmarks.controls import NormalisedGDumb, ReleasedOWM, SubclassSLDA, WarmUp
from torch import nn

from cldnet.methods.cldnet import CLDNetConfig
from cldnet.methods.fit import fit_task
from cldnet.methods.gdumb import GDumbConfig
from cldnet.methods.learner import Setting, TaskData
from cldnet.methods.owm import OWMConfig
from cldnet.methods.parts.variants import BottleneckFirst
from cldnet.methods.slda import SLDAConfig
from cldnet.nets import RandomReLU
from cldnet.nets.layers import MLP


def tasks() -> list[TaskData]:
    """Two tasks of two classes, each class in three clusters, with features of one scale."""
    draw = torch.Generator().manual_seed(0)
    centers = 5 * torch.randn(12, 4, generator=draw)
    cluster = torch.arange(12).repeat(40)
    x, y = centers[cluster] + torch.randn(480, 4, generator=draw), cluster // 3
    return [TaskData(x[own], y[own]) for own in (y < 2, y >= 2)]


def test_slda_with_sub_classes_is_discriminant_analysis_by_gaussian_mixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SubclassSLDA, "count", 3)
    monkeypatch.setattr(SubclassSLDA, "samples", 40)
    learner = SubclassSLDA(RandomReLU((4,), features=20, seed=0), Setting((4,), 4, seed=0), SLDAConfig(shrinkage=0.1))
    means, weights, scatter, count = [], [], torch.zeros((), dtype=torch.float64), 0
    for task in tasks():
        fit_task(learner, task, epochs=1, batch_size=64)
        for row in task.class_rows.tolist():
            h = learner.features(task.x[task.y == row]).double()
            place = torch.cdist(h, learner.centers[row].double()).argmin(1)
            for each in range(3):
                own = h[place == each]
                means.append(own.mean(0))
                weights.append(len(own) / len(h))
                scatter = scatter + (own - own.mean(0)).T @ (own - own.mean(0))
                count += len(own)
    covariance = scatter / count
    covariance = 0.9 * covariance + 0.1 * covariance.diagonal().mean() * torch.eye(len(covariance))
    x = tasks()[0].x[:7]
    h = learner.features(x).double()
    near = [-((h - mean) @ covariance.inverse() * (h - mean)).sum(1) / 2 for mean in means]
    expected = (torch.stack(near, 1) + torch.tensor(weights).log()).unflatten(1, (4, 3)).logsumexp(2).log_softmax(1)
    torch.testing.assert_close(learner.logits(x).double().log_softmax(1), expected, rtol=1e-6, atol=1e-6)


def test_a_warm_up_moves_layers_that_learn_and_no_others() -> None:
    net = MLP((4,), (8, 6), generator=torch.Generator().manual_seed(0))
    config = CLDNetConfig(embed_dim=20, layer_decay=0.0, steps=BottleneckFirst(epochs=2))
    learner = WarmUp(net, Setting((4,), 4, seed=0), config)
    first, second = (module for module in net.layers if isinstance(module, nn.Linear))
    before = first.weight.clone(), second.weight.clone(), learner.embedding.weight.clone()
    learner.begin_task(tasks()[0])
    assert torch.equal(first.weight, before[0])
    assert not torch.equal(second.weight, before[1])
    assert torch.equal(learner.embedding.weight, before[2])


def test_gdumb_with_normalisation_normalises_behind_every_hidden_layer() -> None:
    setting = Setting((4,), 4, seed=0)
    net = MLP((4,), (6, 5), generator=torch.Generator().manual_seed(0))
    learner = NormalisedGDumb(net, setting, GDumbConfig(memory=20, passes=2))
    kinds = [type(layer).__name__ for layer in learner.net]
    assert kinds == ["Flatten", "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU"]
    fit_task(learner, tasks()[0], epochs=1, batch_size=16)
    assert int(learner.net[2].num_batches_tracked) == 2 * 2  # passes, batches of 16 from 20 exemplars


def test_owm_as_released_learns_from_a_first_task_of_one_class() -> None:
    net = MLP((4,), (6,), generator=torch.Generator().manual_seed(0))
    learner = ReleasedOWM(net, Setting((4,), 4, seed=0), OWMConfig())
    before = learner.head.weight.clone()
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    fit_task(learner, TaskData(x, torch.zeros(32, dtype=torch.long)), epochs=1, batch_size=16)
    assert not torch.equal(learner.head.weight, before)
