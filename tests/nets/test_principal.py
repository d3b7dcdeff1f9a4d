"""First weights from the principal directions of each layer's inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets.hooks import LayerHooks
from cldnet.nets.layers import CNN, MLP
from cldnet.nets.principal import principal_rows, set_principal_weights


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def set_by(net: nn.Module, x: Tensor) -> None:
    set_principal_weights(net, LayerHooks(net, tuple(x.shape[1:])), x.split(16), generator())


def lost(features: Tensor, wanted: Tensor) -> float:
    """Share of the power of ``wanted`` that no linear map of the features gives."""
    found = features @ torch.linalg.pinv(features) @ wanted
    return float((wanted - found).square().sum() / wanted.square().sum())


def test_nothing_is_lost_along_the_principal_directions() -> None:
    x = torch.randn(300, 9, generator=generator()) * torch.tensor([9.0, 8, 7, 6, 1, 1, 1, 1, 1])
    net = MLP((9,), (8, 16), generator=generator(), bias=False).double()
    x = x.double()
    main = torch.linalg.eigh(x.T @ x).eigenvectors[:, -4:]
    assert lost(net(x).detach(), x @ main) > 0.01  # random weights
    set_by(net, x)
    assert lost(net(x).detach(), x @ main) < 1e-9  # 4 pairs of units, and then a pair for each input


def test_weights_come_in_mirrored_pairs_whose_outputs_have_unit_power() -> None:
    x = torch.randn(50, 6, generator=generator()).double() + 2
    for count in (4, 5, 30):  # fewer pairs than inputs, an odd number, more pairs than inputs
        rows = principal_rows(x.T @ x / 50, count, generator())
        pairs = (count + 1) // 2
        assert rows.shape == (count, 6)
        assert torch.equal(rows[: count - pairs], -rows[pairs:])
        assert float((x @ rows.T).square().mean()) == pytest.approx(1)


def test_a_convolution_has_the_principal_directions_of_its_patches() -> None:
    x = torch.randn(20, 3, 16, 16, generator=generator())
    net = CNN((3, 16, 16), (6, 8, 8), hidden=(10,), dropout=0.0, generator=generator())
    set_by(net, x)
    first = net.layers[0]
    assert isinstance(first, nn.Conv2d)
    patches = F.unfold(F.pad(x, (1, 1, 1, 1), mode="replicate"), 2).mT.flatten(0, 1).double()
    expected = torch.linalg.eigh(patches.T @ patches).eigenvectors.flip(1)[:, :3].T
    found = F.normalize(first.weight[:3].flatten(1).double(), dim=1)
    torch.testing.assert_close((found * expected).sum(1).abs(), torch.ones(3).double(), atol=1e-4, rtol=0)
    assert float(net(x).detach().square().mean()) == pytest.approx(
        0.5, abs=0.2
    )  # of a mirrored pair, one unit is at zero


def test_a_bias_is_the_weight_of_an_input_that_is_one() -> None:
    x = torch.randn(400, 3, generator=generator()) + 5
    net = MLP((3,), (8,), generator=generator())
    set_by(net, x)
    layer = net.layers[1]
    assert isinstance(layer, nn.Linear)
    assert layer.bias.abs().max() > 0.01
    assert float(layer(x).detach().square().mean()) == pytest.approx(1, rel=1e-3)


def test_frozen_layers_stay_and_zeros_give_finite_weights() -> None:
    net = MLP((4,), (6, 6), generator=generator())
    frozen, free = net.layers[1], net.layers[3]
    assert isinstance(frozen, nn.Linear)
    assert isinstance(free, nn.Linear)
    frozen.weight.requires_grad_(False)
    before = frozen.weight.clone()
    set_by(net, torch.zeros(5, 4))
    assert torch.equal(frozen.weight, before)
    assert torch.isfinite(free.weight).all()
