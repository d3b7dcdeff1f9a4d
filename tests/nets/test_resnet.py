"""The CIFAR ResNet: sizes as published, stages before their activations, statistics that can be frozen."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import MLP, build_backbone
from cldnet.nets.hooks import LayerHooks, watch_stages
from cldnet.nets.resnet import ResNet, frozen_statistics


def _net(width: int = 2, shape: tuple[int, ...] = (3, 16, 16)) -> ResNet:
    return ResNet(shape, width, generator=generator(0))


@pytest.mark.parametrize(("width", "weights"), [(64, 11_168_832), (20, 1_093_140)])
def test_it_has_as_many_weights_as_the_published_nets(width: int, weights: int) -> None:
    net = build_backbone("resnet", (3, 32, 32), seed=0, options={"width": width})
    assert sum(parameter.numel() for parameter in net.parameters()) == weights  # without a head
    assert isinstance(net, ResNet)


def test_it_takes_grey_and_colour_images_and_returns_a_vector_of_eight_widths() -> None:
    assert _net(3)(torch.randn(2, 3, 16, 16)).shape == (2, 24)
    assert _net(3, (16, 16))(torch.randn(2, 16, 16)).shape == (2, 24)
    for shape, width in (((5,), 3), ((3, 8, 8), 0), ((3, 8, 8), True)):
        with pytest.raises(ValueError, match=r"needs images|at least 1"):
            _net(width, shape)


def test_its_stages_are_recorded_before_the_relu_and_only_inside_the_block() -> None:
    net, x = _net().eval(), torch.randn(2, 3, 16, 16, generator=generator(1))
    with watch_stages(net) as stages:
        features = net(x)
    net(x)
    assert [tuple(stage.shape[1:]) for stage in stages] == [(2, 16, 16), (2, 16, 16), (4, 8, 8), (8, 4, 4), (16, 2, 2)]
    assert all(bool((stage < 0).any()) for stage in stages)
    torch.testing.assert_close(F.relu(stages[-1]).mean((2, 3)), features)


def test_the_stages_of_another_net_are_its_layers() -> None:
    net = MLP((4,), (5, 3), generator=generator(0))
    with watch_stages(net) as stages:
        features = net(torch.randn(2, 4, generator=generator(1)))
    assert [tuple(stage.shape) for stage in stages] == [(2, 5), (2, 3)]
    assert torch.equal(F.relu(stages[-1]), features)


def test_running_statistics_stay_while_they_are_frozen_and_batches_are_normalised_as_before() -> None:
    net, x = _net(), torch.randn(4, 3, 16, 16, generator=generator(1))
    before, other = copy.deepcopy(net.state_dict()), copy.deepcopy(net)
    with frozen_statistics(net):
        frozen = net(x)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert torch.equal(frozen, other(x))
    net(x)
    assert not torch.equal(before["bn.running_mean"], net.bn.running_mean)


def test_every_convolution_can_be_projected() -> None:
    hooks = LayerHooks(_net(), (3, 16, 16))
    assert len(hooks.layers) == 20  # 1 + 4 stages of 4, and 3 shortcuts
    assert all("bn" in name or "shortcut.1" in name for name in hooks.free)


@pytest.mark.parametrize("method", ["cldnet", "owm", "aop"])
@pytest.mark.filterwarnings("ignore:No projector can protect")
def test_methods_with_projectors_train_it_and_freeze_its_normalisation_after_the_first_task(method: str) -> None:
    options = {"embed_dim": 16} if method == "cldnet" else {}
    learner = build_learner(method, Setting((3, 8, 8), 4, seed=0), options, "resnet", {"width": 2})
    states = []
    for first in (0, 2):
        x = torch.randint(0, 256, (24, 3, 8, 8), dtype=torch.uint8, generator=generator(first))
        fit_task(learner, TaskData(x, first + torch.arange(24) % 2), epochs=1, batch_size=8)
        states.append(copy.deepcopy(learner.state_dict()))
    same = {name for name in states[0] if torch.equal(states[0][name], states[1][name])}
    frozen = {name for name in states[0] if name.startswith("net.") and ("bn" in name or "shortcut.1" in name)}
    assert frozen <= same
    assert "net.layer4.2.conv2.weight" not in same
