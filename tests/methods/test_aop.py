"""AOP: its α, written out, and what sets it apart from OWM."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.fit import fit_task
from cldnet.methods import build_learner
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.alpha import AdaptiveAlpha, ConstantAlpha, DecayingAlpha, KindAlphas, PerTask


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(27, 6), nn.ReLU())


def task(classes, seed=0):
    y = torch.tensor(classes).repeat(10)
    return TaskData(torch.randn(len(y), 1, 4, 4, generator=generator(seed)) + y[:, None, None, None], y)


def learner_of(method="aop", **options):
    setting = Setting((1, 4, 4), 6, 0, dtype=torch.float64, scaling=((0.0,), (1.0,)))
    return build_learner(method, setting, options, net())


@pytest.mark.parametrize("step", [0, 3, 9])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_alpha_is_the_papers_for_linear_layers_and_owms_for_convolutions(step, scale):
    learner, data = learner_of(scale=scale), task([0, 1])
    learner.begin_task(data)
    x = data.x.double()
    with torch.no_grad():
        hidden = learner.net[2](learner.net[1](learner.net[0](x))).numpy()
        features = learner.net(x).numpy()
    learner.observe(Batch(data.x.double(), data.y, None, step, 10, 0))
    learner.projection.rebuild()
    progress, sums = step / 9, learner.projector_sums()
    for name, inputs in (("net.3", hidden), ("head", features)):
        r = np.append(inputs.mean(0), 1.0)
        alpha = scale * (r.mean() ** 2 + r.var(ddof=1)) ** progress
        np.testing.assert_allclose(sums[name][0].numpy(), np.outer(r, r) / alpha, rtol=1e-9, atol=1e-12)
    mean_map = x.mean(0)[0].numpy()
    patches = [mean_map[i : i + 2, j : j + 2].ravel() for i in range(3) for j in range(3)]
    expected = sum(np.outer(r, r) for r in patches) / (scale * 1e-5**progress)
    np.testing.assert_allclose(sums["net.0"][0].numpy(), expected, rtol=1e-9, atol=1e-12)


def test_it_is_owm_but_for_alpha():
    alpha = PerTask(KindAlphas(AdaptiveAlpha(0.7), convolution=DecayingAlpha(0.7, 1e-5)), 5)
    learners = [
        learner_of(scale=0.7, updates=5),
        learner_of("owm", alpha=alpha),
        learner_of("owm", alpha=ConstantAlpha()),
    ]
    for learner in learners:
        for seed, classes in enumerate(([0, 1], [2, 3])):
            fit_task(learner, task(classes, seed), epochs=3, batch_size=5)
    same, other = (
        [torch.equal(p, q) for p, q in zip(learners[0].parameters(), learner.parameters(), strict=True)]
        for learner in learners[1:]
    )
    assert all(same)
    assert not any(other)


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": float("nan")}, {"updates": 0}, {"lr": 0.0}])
def test_settings_that_cannot_be_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}="):
        learner_of(**options)
