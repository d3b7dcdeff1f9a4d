"""Nets that widen: corners of weights by hand, and old tasks that keep their bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods.parts.heads import Head
from cldnet.methods.parts.widening import Widening
from cldnet.nets import CNN, MLP, LeNet
from cldnet.nets.chain import Stage


def lenet(channels: tuple[int, int], hidden: tuple[int, int], shape: tuple[int, ...] = (3, 8, 8)) -> LeNet:
    return LeNet(shape, channels, hidden, generator=generator(0))


def grown(net: nn.Module, widths: list[int]) -> Widening:
    """A net that was stamped, and got more units with weights of their own."""
    wide = Widening(net)
    wide.stamp()
    old = wide.widths
    wide.resize(widths)
    wide.draw(old, widths, generator(7))
    for stage in wide.stages:
        nn.init.uniform_(stage.layer.bias, -1, 1, generator=generator(8))
    return wide


def test_a_task_computes_with_the_corners_of_the_weights_that_its_units_have():
    net = grown(MLP((6,), (4, 3), generator=generator(0)), [6, 5])
    x = torch.randn(9, 6, generator=generator(1))
    first, second = (stage.layer for stage in net.stages)
    h = (x @ first.weight[:4].T + first.bias[:4]).relu()
    expected = (h @ second.weight[:3, :4].T + second.bias[:3]).relu()
    torch.testing.assert_close(net(x, [4, 3]), expected)
    torch.testing.assert_close(net(x, [6, 5]), net.net(x), msg="all units are the net itself")


def test_the_columns_of_new_channels_come_last_so_old_channels_keep_theirs():
    """A LeNet that is made with more channels computes the same from the same weights."""
    net, wide = grown(lenet((4, 3), (6, 5)), [5, 7, 8, 6]), lenet((5, 7), (8, 6))
    x = torch.randn(3, 3, 8, 8, generator=generator(1))
    assert [stage.layer.weight.shape for stage in net.stages] == [
        (5, 3, 5, 5), (7, 5, 5, 5), (8, 7 * 4), (6, 8),
    ]  # fmt: skip
    wide.load_state_dict(net.net.state_dict())
    torch.testing.assert_close(net(x, [5, 7, 8, 6]), wide(x))
    small = lenet((4, 3), (6, 5))
    for stage, corner in zip([0, 0, 1, 1, 2, 2, 3, 3], net.corners([4, 3, 6, 5]), strict=True):
        assert corner.stage == stage
        dict(small.named_parameters())[
            next(name for name, p in net.net.named_parameters() if p is corner.parameter)
        ].data.copy_(corner.value)
    torch.testing.assert_close(net(x, [4, 3, 6, 5]), small(x))


@pytest.mark.parametrize(
    ("net", "shape", "more"),
    [
        (MLP((70,), (40, 30), generator=generator(0)), (70,), [69, 59]),
        (lenet((4, 3), (60, 50)), (3, 8, 8), [33, 32, 89, 79]),
        (lenet((4, 3), (60, 50), (8, 8)), (8, 8), [6, 7, 66, 55]),
    ],
)
def test_later_units_change_no_bit_of_an_earlier_task(net, shape, more, monkeypatch):
    wide, x = Widening(net), torch.randn(100, *shape, generator=generator(1))
    old = wide.widths
    before = wide(x, old).detach().clone()
    wide.resize(more)
    wide.draw(old, more, generator(2))
    dense, weigh = [], Stage.weigh
    monkeypatch.setattr(Stage, "weigh", lambda *given: dense.append(given[2].is_contiguous()) or weigh(*given))
    assert torch.equal(wide(x, old), before)
    assert all(dense), "on other processors, rounding might depend on the layout"
    assert not torch.equal(wide(x, more)[:, : old[-1]], before), "new units have no connections into old ones"
    wide.resize(old)
    assert torch.equal(wide(x, old), before)


def test_new_units_get_hes_weights_for_the_inputs_that_they_have_and_old_ones_keep_theirs():
    wide = Widening(lenet((4, 3), (60, 50)))
    old = [*wide.corners(wide.widths)]
    before = [corner.value.clone() for corner in old]
    wide.resize([9, 9, 99, 99])
    for stage in wide.stages:
        stage.layer.bias.data[-1] = 5.0
    wide.draw([4, 3, 60, 50], [7, 6, 90, 80], generator(0))
    for corner, value in zip(old, before, strict=True):
        part = wide.stages[corner.stage].layer
        kept = (part.weight if value.ndim > 1 else part.bias).detach()[corner.part]
        assert torch.equal(kept, value)
    for stage, first, last, inputs, rest in zip(
        wide.stages, [4, 3, 60, 50], [7, 6, 90, 80], [3 * 25, 7 * 25, 6 * 4, 90], [75, 4 * 25, 3 * 4, 60], strict=True
    ):
        weight, bias = stage.layer.weight.detach(), stage.layer.bias.detach()
        flat = weight.flatten(1)
        for drawn in (flat[first:last, :inputs], flat[:first, rest:inputs]):
            largest = (6 / inputs) ** 0.5
            assert drawn.numel() == 0 or 0.8 * largest < drawn.abs().max() <= largest
            assert (drawn != 0).all()
        assert (flat[last:] == 0).all()
        assert (flat[:, inputs:] == 0).all()
        assert bias[first:].tolist() == [0.0] * (len(bias) - first - 1) + [5.0], "biases of other units stay"


def test_what_a_task_added_is_counted_from_its_units_and_its_stamp():
    wide = Widening(CNN((3, 8, 8), (4, 3), (2, 2), (6,), generator=generator(0)))  # no biases
    wide.stamp()
    assert wide.grown == 3 * 8, "the first task adds its time stamp alone"
    wide.resize([5, 3, 8])
    wide.stamp()
    positions = wide.stages[2].layer.weight.shape[1] // 3
    assert wide.grown == 3 * 8 + 4 * (1 * 3 * 4 + 3 * 1 * 4 + 2 * 3 * positions)
    assert wide.stamps.tolist() == [[4, 3, 6], [5, 3, 8]]
    other = Widening(CNN((3, 8, 8), (4, 3), (2, 2), (6,), generator=generator(0)))
    state = {f"a.{name}": tensor for name, tensor in wide.state_dict().items()}
    other.resize_for(state, "a.")
    other.load_state_dict({name.removeprefix("a."): tensor for name, tensor in state.items()})
    assert other.widths == [5, 3, 8]
    assert other.old == [5, 3, 8]


def test_columns_belong_to_the_units_below():
    wide = Widening(lenet((4, 3), (6, 5)))
    assert wide.columns_of(torch.tensor([2, 0]), 1).tolist() == [2, 0]
    assert wide.columns_of(torch.tensor([2, 0]), 2).tolist() == [8, 9, 10, 11, 0, 1, 2, 3]
    assert wide.columns_of(torch.tensor([4, 1]), 4).tolist() == [4, 1], "a head's"


def test_a_head_with_more_room_than_features_uses_its_first_columns():
    head = Head(5, torch.tensor([3, 4]), generator(0), torch.float32)
    h = torch.randn(6, 3, generator=generator(1))
    assert torch.equal(head(h), F.linear(h, head.layer.weight[:, :3], head.layer.bias))
