"""LiDER: its two terms, and the methods that it adds to."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.config import config_to_json
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData

VARIANTS = {
    "ERACELiDER": "cldnet.methods.er_ace:ERACE",
    "DERppLiDER": "cldnet.methods.derpp:DERpp",
    "XDERRPCLiDER": "cldnet.methods.xder:XDERRPC",
}


def images(number):
    """Two classes of small images."""
    y = torch.arange(2 * number, 2 * number + 2).repeat(6)
    return TaskData(torch.randn(12, 1, 6, 6, generator=generator(number)) + y[:, None, None, None] % 2, y)


def convolutions():
    """A small net with two stages and BatchNorm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 6, 3, stride=2)
    return nn.Sequential(first, nn.BatchNorm2d(3), nn.ReLU(), second, nn.ReLU(), nn.Flatten())


def taught(method, tasks=2, net=None, **options):
    """A learner of a few tasks of images."""
    given = {"lr": 0.02, "memory": 8, "replay": 4, **options}
    learner = build_learner(method, Setting((1, 6, 6), 6, seed=0), given, convolutions() if net is None else net)
    for number in range(tasks):
        fit_task(learner, images(number), epochs=1, batch_size=4)
    return learner


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_its_terms_it_is_the_base_method_to_the_bit(variant):
    method = f"cldnet.methods.lider:{variant}"
    weights = config_to_json(taught(method, tasks=0).config)
    base = taught(
        VARIANTS[variant], **{name: weights[name] for name in ("distil", "label") if name in weights}
    ).state_dict()
    without = taught(method, lipschitz=0.0, target=0.0).state_dict()
    assert without.keys() - base.keys() == {"lipschitz.targets"}
    assert all(torch.equal(base[name], without[name]) for name in base)
    for off in ("lipschitz", "target"):
        with_one = taught(method, **{off: 0.0}).state_dict()
        assert not torch.equal(base["net.0.weight"], with_one["net.0.weight"]), f"{off} is not the only term"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_is_the_base_methods_and_two_terms_on_two_draws(variant, monkeypatch):
    learner = taught(f"cldnet.methods.lider:{variant}", lipschitz=0.4, target=0.7)
    learner.begin_task(images(2))
    batch = next(images(2).batches(4))
    loss, logits = copy.deepcopy(learner).replay_loss(batch)  # X-DER changes its buffer
    base = VARIANTS[variant].split(":")[1]
    replay_loss = next(each.replay_loss for each in type(learner).__mro__ if each.__name__ == base)
    expected, base_logits = replay_loss(learner, batch)
    draws, drawn = [], learner.replayed
    monkeypatch.setattr(learner, "replayed", lambda batch: draws.append(drawn(batch)) or draws[-1])
    first, second = learner._constants(batch), learner._constants(batch)
    assert not torch.equal(draws[0].places.sort().values, draws[1].places.sort().values)
    distance = (second - learner.lipschitz.targets.relu()).abs()
    expected = expected + 0.4 * first.sum() / first.numel() + 0.7 * distance.sum() / distance.numel()
    torch.testing.assert_close(loss.double(), expected.double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits, base_logits)


def test_targets_are_set_before_the_first_task_only_and_then_learned():
    method = "cldnet.methods.lider:DERppLiDER"
    learner = taught(method, tasks=0)
    assert learner.lipschitz.targets.tolist() == [0.0] * 2
    learner.begin_task(images(0))
    first = learner.lipschitz.targets.clone()
    assert (first > 0).all(), "from the scaled inputs of the first task"
    learner = taught(method, tasks=1)
    after = learner.lipschitz.targets.clone()
    assert not torch.equal(first, after), "the optimiser moves them"
    learner.begin_task(images(1))
    assert torch.equal(learner.lipschitz.targets, after)
    assert taught(method, target=0.0).lipschitz.targets.tolist() == [0.0] * 2


def test_the_constants_fall_when_they_weigh_much():
    def smoothness(weight):
        learner = taught("cldnet.methods.lider:ERACELiDER", tasks=3, lipschitz=weight, target=0.0)
        return learner.lipschitz.constants(learner.net, learner.scale(images(0).x), generator(0)).mean().item()

    assert smoothness(20.0) < 0.9 * smoothness(0.0)


def test_x_der_leaves_running_statistics_to_the_stream():
    learner = taught("cldnet.methods.lider:XDERRPCLiDER")
    learner.begin_task(images(2))
    batch, before = next(images(2).batches(4)), learner.net[1].running_mean.clone()
    learner._constants(batch)
    assert torch.equal(before, learner.net[1].running_mean)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_net_without_layers_has_no_terms(variant):
    method = f"cldnet.methods.lider:{variant}"
    with_terms, without = (taught(method, net=nn.Flatten(), lipschitz=weight, target=0.0) for weight in (1.0, 0.0))
    assert all(torch.equal(each, without.state_dict()[name]) for name, each in with_terms.state_dict().items())
