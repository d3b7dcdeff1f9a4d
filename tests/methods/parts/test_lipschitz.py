"""Lipschitz constants between feature maps: against singular values of matrices that are written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods.parts import lipschitz
from cldnet.methods.parts.lipschitz import Lipschitz, lipschitz_constants
from cldnet.nets import ResNet


def slow(front, back):
    """The constants sample by sample and channel by channel, for a back map with a multiple of the front's channels."""
    result = []
    for a, b in zip(front.double(), back.double(), strict=True):
        group = b.shape[0] // a.shape[0]
        b = torch.stack([b[i * group : (i + 1) * group].mean(0) for i in range(a.shape[0])])
        a, b = a / a.square().sum(0).sqrt(), b / b.square().sum(0).sqrt()
        tile = a.shape[1] // b.shape[1]
        a = a.unflatten(1, (-1, tile)).unflatten(3, (-1, tile)).mean((2, 4))
        m = a.flatten(1) @ b.flatten(1).T / b[0].numel()
        result.append(torch.linalg.eigvalsh(m @ m.T)[-1].sqrt())
    return torch.stack(result)


@pytest.mark.parametrize("channels", [3, 20], ids=["more positions", "more channels"])
def test_the_constant_is_the_largest_singular_value(channels, monkeypatch):
    monkeypatch.setattr(lipschitz, "_ITERATIONS", 600)  # so that nothing is left to the start vector
    front = torch.randn(5, channels, 8, 8, generator=generator(0), requires_grad=True)
    back = torch.randn(5, 2 * channels, 4, 4, generator=generator(1), requires_grad=True)
    fast, expected = lipschitz_constants(front, back, generator(2)), slow(front, back)
    torch.testing.assert_close(fast, expected, rtol=1e-9, atol=0)
    for mine, theirs in zip(
        *(torch.autograd.grad(each.sum(), (front, back)) for each in (fast, expected)), strict=True
    ):
        assert theirs.abs().max() > 1e-4
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-7)


def test_ten_iterations_without_a_gradient_but_in_the_last():
    front, back = torch.randn(2, 4, 6, 9, generator=generator(0), dtype=torch.float64).requires_grad_().unbind()
    m = F.normalize(front, dim=1) @ F.normalize(back, dim=1).mT / 9
    v = torch.rand(4, 6, 1, generator=generator(1), dtype=torch.float64)
    for _ in range(9):
        v = F.normalize(m.detach() @ m.detach().mT @ v, dim=1)
    expected = (m @ m.mT @ v).norm(dim=(1, 2)).sqrt()
    fast = lipschitz_constants(front, back, generator(1))
    torch.testing.assert_close(fast, expected)
    mine, theirs = (torch.autograd.grad(each.sum(), front)[0] for each in (fast, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("front", "back"),
    [
        ((7,), (5,)),
        ((3, 8, 8), (10,)),
        ((10,), (4, 2, 2)),
        ((4, 9), (6, 3)),
        ((1, 4, 4), (1, 8, 8)),
        ((6, 5), (3, 4, 4)),
    ],
)
def test_maps_of_any_shapes_have_constants_from_0_to_1_with_finite_gradients(front, back):
    for scale in (1.0, 0.0):  # dead units have no direction
        a = (scale * torch.randn(4, *front, generator=generator(0))).requires_grad_()
        b = (scale * torch.randn(4, *back, generator=generator(1))).requires_grad_()
        constants = lipschitz_constants(a, b, generator(2))
        assert constants.shape == (4,)
        assert ((constants >= 0) & (constants < 1 + 1e-9)).all()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(constants.sum(), (a, b)))


def test_between_vectors_every_constant_is_one():
    a, b = torch.randn(3, 7, generator=generator(0)), torch.randn(3, 20, generator=generator(1))
    torch.testing.assert_close(lipschitz_constants(a, b, generator(2)), torch.ones(3, dtype=torch.float64))


def test_targets_start_as_the_mean_of_the_untrained_net_in_evaluation_mode(monkeypatch):
    net = ResNet((6, 6), 2, generator=generator(0))
    part = Lipschitz(net, (6, 6), torch.float32)
    assert len(part) == 5
    x = torch.randint(256, (7, 6, 6), generator=generator(1)).float()
    monkeypatch.setattr(lipschitz, "_AT_A_TIME", 3)
    monkeypatch.setattr(lipschitz, "_ITERATIONS", 200)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    part.fit(net.train(), x, lambda x: x / 255 - 0.5, generator(2))
    assert net.training
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items()), (
        "running statistics moved"
    )
    constants = part.constants(net.eval(), x / 255 - 0.5, generator(3))
    torch.testing.assert_close(part.targets.detach().double(), constants.mean(0), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(lipschitz, "_SAMPLES", 1)
    part.fit(net, x, lambda x: x / 255 - 0.5, generator(2))
    nearest = (part.targets.detach() - constants).abs().amax(1)
    assert nearest.min() < 1e-4, "one sample alone counts"


def test_targets_are_learned_and_count_from_zero_on():
    part = Lipschitz(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)), (3,), torch.float32)
    part.targets.data = torch.tensor([0.5, -1.0])
    distance = part.distance(torch.tensor([[0.7, 0.1], [0.4, 0.3]], dtype=torch.float64))
    assert distance.item() == pytest.approx((0.2 + 0.1 + 0.1 + 0.3) / 4)
    part.distance(torch.tensor([[0.7, 0.1], [0.6, 0.3]], dtype=torch.float64)).backward()
    assert part.targets.grad.tolist() == [-0.5, 0.0]


def test_a_net_without_layers_has_no_pairs():
    part = Lipschitz(nn.Flatten(), (3,), torch.float32)
    assert len(part) == 0
    assert part.constants(nn.Flatten(), torch.zeros(4, 3), generator(0)).shape == (4, 0)
