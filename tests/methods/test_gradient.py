"""Steps of gradient descent: the fused kind where it is right, and clipping."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cldnet.methods.gradient import NamedTensors, descend, sgd


def _walk(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        descend(optimizer, {parameter: gradient.clone()}, clip=0.7, unit=2.0)
    return parameter.detach().clone()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("gaps", [False, True])
def test_steps_are_those_of_plain_sgd_also_along_gradients_with_gaps(momentum, gaps):
    torch.manual_seed(0)
    wide = torch.randn(6, 5)
    gradient = wide[:, :-1] if gaps else wide[:, :-1].contiguous()  # the fused kernel alone would read over the gaps
    expected, buffer = torch.ones(6, 4), torch.zeros(6, 4)
    for _ in range(3):
        buffer = momentum * buffer + gradient * min(1.0, 0.7 / float(gradient.norm())) * 2.0
        expected = expected - 0.1 * buffer
    parameter = nn.Parameter(torch.ones(6, 4))
    torch.testing.assert_close(_walk(sgd([parameter], lr=0.1, momentum=momentum), parameter, gradient), expected)


def test_a_parameter_that_does_not_lie_row_after_row_gets_the_usual_sgd():
    torch.manual_seed(0)
    gradient = torch.randn(2, 3, 4, 4)
    turned = nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    plain = nn.Parameter(torch.ones(2, 3, 4, 4))
    moved = [_walk(sgd([p], lr=0.1, momentum=0.9), p, gradient) for p in (turned, plain)]
    torch.testing.assert_close(*moved)


def test_groups_keep_their_own_rates_and_what_has_no_gradient_stays():
    first, second, resting = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    optimizer = sgd([{"params": [first], "lr": 0.1}, {"params": [second, resting]}], lr=1.0, momentum=0.9)
    resting.grad = torch.ones(2)  # left over from somewhere else
    descend(optimizer, {first: torch.ones(2), second: torch.ones(2)}, clip=10.0)
    assert (first.tolist(), second.tolist(), resting.tolist()) == (pytest.approx([-0.1] * 2), [-1.0] * 2, [0.0] * 2)


def test_a_step_without_gradients_moves_nothing():
    weight = nn.Parameter(torch.ones(3))
    descend(sgd([weight], lr=0.5, momentum=0.9), {}, clip=1.0, unit=2.0)
    assert torch.equal(weight, torch.ones(3))


def test_named_tensors_are_copies_under_their_own_names():
    source = {"a.b.weight": torch.ones(2), "a": torch.zeros(1)}
    kept = NamedTensors(source)
    source["a.b.weight"].fill_(5)
    assert kept["a.b.weight"].tolist() == [1, 1]
    assert {name: tensor.tolist() for name, tensor in kept.items()} == {"a.b.weight": [1, 1], "a": [0]}
