"""Interval bounds, against nets drawn from the box and against a layer by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from cldnet.device import generator
from cldnet.methods.parts.intervals import Interval, bounds, known_layers, worst_case
from cldnet.nets import CNN, MLP

relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 1)

SHAPES = {"mlp": (6,), "cnn": (8, 8), "colour": (3, 8, 8), "bare": (5,), "biased": (2, 6, 6)}


def build(kind: str, seed: int) -> nn.Module:
    source = generator(seed)
    if kind == "mlp":
        return MLP((6,), widths=(7, 5), generator=source).double()
    if kind in ("cnn", "colour"):
        return CNN(SHAPES[kind], channels=(3, 4), kernel_sizes=(2, 3), hidden=(6, 4), generator=source).double().eval()
    if kind == "bare":  # no ReLU between: inputs of the second layer are intervals of any sign
        return nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 4), nn.Sequential(nn.ReLU(), nn.Identity())).double()
    convolution = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
    return nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)).double()


def drawn(shape: torch.Size, source: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=source, dtype=torch.float64)


@relaxed
@given(st.sampled_from(sorted(SHAPES)), seeds, st.sampled_from((0.0, 1e-3, 0.1, 1.0)))
def test_every_net_in_the_box_answers_within_the_bounds(kind: str, seed: int, size: float) -> None:
    torch.manual_seed(seed)
    net, source = build(kind, seed), generator(seed)
    x = torch.randn(4, *SHAPES[kind], generator=source, dtype=torch.float64)
    radii = {p: size * drawn(p.shape, source) for p in net.parameters()}
    found = bounds(known_layers(net), x, radii)
    for number in range(20):
        weights = {}
        for name, p in net.named_parameters():
            place = 2 * drawn(p.shape, source) - 1
            # Half of the nets are corners of the box, where outputs are extreme.
            weights[name] = p.detach() + radii[p] * (place.sign() if number % 2 else place)
        output = functional_call(net, weights, (x,))
        slack = 1e-9 * (1 + output.abs())
        assert (found.lower - slack <= output).all()
        assert (output <= found.upper + slack).all()


@pytest.mark.parametrize("kind", SHAPES)
def test_without_radii_the_bounds_are_what_the_net_gives(kind: str) -> None:
    net, x = build(kind, 0), torch.randn(3, *SHAPES[kind], generator=generator(1), dtype=torch.float64)
    found = bounds(known_layers(net), x, {p: torch.zeros_like(p) for p in net.parameters()})
    torch.testing.assert_close(found.lower, net(x))
    torch.testing.assert_close(found.upper, net(x))


def test_bounds_of_one_layer_are_reached_by_hand() -> None:
    layer = nn.Linear(2, 1).double().requires_grad_(False)
    layer.weight.copy_(torch.tensor([[1.0, -2.0]]))
    layer.bias.copy_(torch.tensor([0.5]))
    radii = {layer.weight: torch.tensor([[0.5, 1.0]]).double(), layer.bias: torch.tensor([0.25]).double()}
    found = bounds([layer], torch.tensor([[2.0, -3.0]]).double(), radii)
    # Weights from 0.5 to 1.5 times 2, from −3 to −1 times −3, and a bias from 0.25 to 0.75.
    assert (found.lower.item(), found.upper.item()) == (1.0 + 3.0 + 0.25, 3.0 + 9.0 + 0.75)


def test_two_layers_with_a_relu_are_bounded_by_hand() -> None:
    first, second = (nn.Linear(1, 1, bias=False).double().requires_grad_(False) for _ in range(2))
    first.weight.fill_(1.0)
    second.weight.fill_(-1.0)
    radii = {first.weight: torch.tensor([[3.0]]).double(), second.weight: torch.tensor([[2.0]]).double()}
    found = bounds([first, nn.ReLU(), second], torch.ones(1, 1).double(), radii)
    # The hidden unit is relu of −2 to 4, so 0 to 4; the weight behind it goes from −3 to 1.
    assert (found.lower.item(), found.upper.item()) == (-12.0, 4.0)


@relaxed
@given(seeds)
def test_bounds_of_one_hidden_layer_are_reached_at_corners_of_the_box(seed: int) -> None:
    source = generator(seed)
    net = MLP((2,), widths=(1,), generator=source).double()
    radii = {p: drawn(p.shape, source) for p in net.parameters()}
    x = torch.randn(3, 2, generator=source, dtype=torch.float64)
    found = bounds(known_layers(net), x, radii)
    corners = []
    for signs in itertools.product((-1.0, 1.0), repeat=3):
        place = torch.tensor(signs, dtype=torch.float64)
        moved = {"layers.1.weight": place[None, :2], "layers.1.bias": place[2:]}
        weights = {name: p + radii[p] * moved[name] for name, p in net.named_parameters()}
        corners.append(functional_call(net, weights, (x,)))
    torch.testing.assert_close(found.lower, torch.stack(corners).amin(0))
    torch.testing.assert_close(found.upper, torch.stack(corners).amax(0))


def test_the_worst_case_is_the_lower_bound_of_the_right_class_and_the_upper_one_of_others() -> None:
    lower, upper = torch.tensor([[0.0, 1.0, 2.0]] * 2), torch.tensor([[5.0, 6.0, 7.0]] * 2)
    worst = worst_case(Interval(lower, upper), torch.tensor([2, 0]))
    assert worst.tolist() == [[5.0, 6.0, 2.0], [0.0, 6.0, 7.0]]


class Own(nn.Sequential):
    """A user's own order of layers."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU())), "GELU"),
        (Own(nn.Linear(4, 4)), "Own"),
    ],
)
def test_layers_without_known_intervals_are_refused_with_what_to_use(net: nn.Module, named: str) -> None:
    with pytest.raises(ValueError, match=rf"The intervals of {named} are not known: use an nn\.Sequential of Linear, "):
        known_layers(net)
