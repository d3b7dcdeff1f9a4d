"""The LeNet of papers on growing nets, and nets as chains of stages."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.nets import CNN, MLP, LeNet, ResNet, build_backbone
from cldnet.nets.chain import resized, stages
from cldnet.nets.hooks import watch_stages
from cldnet.nets.layers import linear
from cldnet.nets.lenet import ChannelNorm


def test_the_lenet_has_the_sizes_of_apds_net():
    net = build_backbone("lenet", (3, 32, 32), seed=0)
    assert [tuple(stage.layer.weight.shape) for stage in stages(net)] == [
        (20, 3, 5, 5), (50, 20, 5, 5), (800, 3200), (500, 800),
    ]  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3, 9, 12])
def test_maps_are_normalised_as_torch_does(channels):
    x = 50 * torch.randn(2, channels, 3, 4, generator=generator(0))
    torch.testing.assert_close(ChannelNorm()(x), nn.LocalResponseNorm(9, alpha=1e-3)(x))


def test_the_lenet_is_its_formula():
    net = LeNet((7, 9), channels=(4, 5), hidden=(6, 3), generator=generator(0)).double()
    x = torch.randn(2, 7, 9, generator=generator(1), dtype=torch.float64)
    first, second, third, fourth = (part for part in net.modules() if isinstance(part, nn.Conv2d | nn.Linear))
    maps = x[:, None]
    for layer in (first, second):
        maps = F.conv2d(F.pad(maps, (2, 2, 2, 2)), layer.weight, layer.bias).clamp_min(0)
        maps = F.local_response_norm(maps, 9, alpha=1e-3)
        # Even sides are padded at the end, with what never is a maximum.
        pad = (0, 1 - maps.shape[3] % 2, 0, 1 - maps.shape[2] % 2)
        maps = F.max_pool2d(F.pad(maps, pad, value=-torch.inf), 3, 2)
    hidden = (maps.flatten(1) @ third.weight.T + third.bias).clamp_min(0)
    torch.testing.assert_close(net(x), (hidden @ fourth.weight.T + fourth.bias).clamp_min(0))


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (MLP((2, 3), (5, 4), generator=generator(0)), torch.randn(3, 2, 3, generator=generator(1))),
        (CNN((3, 9, 9), (4, 3, 2), hidden=(5,), generator=generator(0)), torch.rand(3, 3, 9, 9)),
        (LeNet((3, 8, 8), (4, 3), (6, 5), generator=generator(0)), torch.rand(3, 3, 8, 8)),
        (CNN((9, 9), (4, 3, 2), hidden=(5,), generator=generator(0)), torch.rand(3, 9, 9)),
        (LeNet((8, 8), (4, 3), (6, 5), generator=generator(0)), torch.rand(3, 8, 8)),
    ],
)
def test_the_stages_of_a_net_compute_what_it_computes(net, x):
    net.eval()
    y = x
    for stage in stages(net):
        y = stage.after(stage.weigh(y, stage.layer.weight, stage.layer.bias))
    assert torch.equal(y, net(x))


def test_methods_can_watch_the_stages_of_a_lenet():
    net = LeNet((3, 8, 8), (4, 3), (6, 5), generator=generator(0))
    with watch_stages(net) as seen:
        net(torch.rand(2, 3, 8, 8))
    assert [tuple(each.shape[1:]) for each in seen] == [(4, 8, 8), (3, 4, 4), (6,), (5,)]


def test_a_net_that_is_no_chain_and_inputs_that_are_no_images_are_refused():
    with pytest.raises(ValueError, match="a ResNet is not: use the backbone 'mlp', 'cnn' or 'lenet'"):
        stages(ResNet((3, 8, 8), width=2, generator=generator(0)))
    with pytest.raises(ValueError, match="needs images"):
        LeNet((64,), generator=generator(0))
    with pytest.raises(ValueError, match=r"too small for a LeNet. Use an MLP\."):
        LeNet((3, 4, 8), generator=generator(0))
    with pytest.raises(ValueError, match="two channels and two hidden widths"):
        LeNet((3, 8, 8), channels=(4,), generator=generator(0))


def test_a_layer_of_other_sizes_is_laid_out_as_the_one_it_is_like():
    layout = {"kernel_size": (2, 3), "stride": 2, "padding": 1, "dilation": 2, "padding_mode": "replicate"}
    for bias in (True, False):
        made = resized(nn.Conv2d(3, 4, bias=bias, **layout), 5, 2, generator(0))
        assert made.weight.shape == (2, 5, 2, 3)
        maps = torch.randn(1, 5, 9, 9, generator=generator(1))
        same = nn.Conv2d(5, 2, bias=bias, **layout)
        same.load_state_dict(made.state_dict())
        assert torch.equal(made(maps), same(maps))
        dense = resized(nn.Linear(3, 4, bias=bias), 5, 2, generator(0))
        assert torch.equal(dense.weight, linear(5, 2, generator(0)).weight)
        assert (dense.bias is not None) == bias
