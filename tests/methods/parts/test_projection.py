"""Projected steps: both ways to compute them, what they keep, and what is frozen."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.methods.parts.descent import descend
from cldnet.methods.parts.projection import BatchMean, EverySample, EverySecondPatch, EveryVector, Projection
from cldnet.nets import build_backbone
from cldnet.nets.taps import Taps


def linear_net():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4, bias=False))


def conv_net():
    return nn.Sequential(
        nn.Conv2d(2, 40, 3, padding=1), nn.Tanh(), nn.Conv2d(40, 4, 2, groups=2, bias=False), nn.Flatten()
    )


@pytest.fixture(autouse=True)
def _fixed_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def watched(projection, net, x):
    with projection.taps.watch() as flow:
        output = net(x)
    return flow, output


@pytest.mark.parametrize(
    ("make", "shape", "rows", "fewer"),
    [
        (linear_net, (6,), 3, (True, True)),
        (linear_net, (6,), 20, (False, False)),
        (linear_net, (6,), 5, (True, False)),
        (conv_net, (2, 3, 3), 1, (True, False)),
        (conv_net, (2, 5, 5), 8, (False, False)),
    ],
)
def test_projecting_inputs_or_gradients_is_the_gradient_times_p(make, shape, rows, fewer):
    net = make()
    projection = Projection(net, shape)
    flow, _ = watched(projection, net, torch.randn(7, *shape))
    projection.absorb(flow, BatchMean(), ConstantAlpha(0.1), 0.0, 1)
    for kept in projection.layers:
        kept.settle()
    flow, output = watched(projection, net, torch.randn(rows, *shape))
    loss = (output * torch.randn(output.shape)).sum()
    assert tuple(f.rows(x).shape[1] < f.outputs for f, x in zip(flow.layers, flow.inputs, strict=True)) == fewer
    plain = dict(
        zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()), retain_graph=True), strict=True)
    )
    projected = projection.backward(flow, loss)
    assert set(projected) == set(plain)
    for layer, kept in zip(projection.taps.layers, projection.layers, strict=True):
        module = layer.module
        g = plain[module.weight].reshape(layer.groups, layer.outputs, -1)
        if module.bias is not None:
            g = torch.cat([g, plain[module.bias].reshape(layer.groups, -1, 1)], dim=2)
        expected = torch.einsum("gow,gwv->gov", g.double(), kept.P).float()
        n = module.weight[0].numel()
        torch.testing.assert_close(
            projected[module.weight].flatten(), expected[..., :n].flatten(), rtol=1e-5, atol=1e-5
        )
        if module.bias is not None:
            torch.testing.assert_close(projected[module.bias], expected[..., n].flatten(), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(projected[module.weight], plain[module.weight], atol=1e-3), "P does something"


@pytest.mark.parametrize(("make", "shape"), [(linear_net, (6,)), (conv_net, (2, 3, 3))])
def test_a_projected_step_keeps_the_outputs_for_absorbed_inputs(make, shape):
    """The core promise."""
    net = make()
    projection = Projection(net, shape)
    old, new = torch.randn(2, *shape), torch.randn(30, *shape)
    flow, _ = watched(projection, net, old)
    before = [output.detach().clone() for output in flow.outputs]
    projection.absorb(flow, EverySample(), ConstantAlpha(1e-8), 0.0, 1)

    def change(gradients):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        kept = {p: p.detach().clone() for p in net.parameters()}
        descend(optimizer, gradients, clip=1e9)
        with torch.no_grad():
            after = [layer.module(x) for layer, x in zip(flow.layers, flow.inputs, strict=True)]
            moved = min(float((p - kept[p]).abs().max()) for p in net.parameters())
            for p in net.parameters():
                p.copy_(kept[p])
        return [float((a - b).abs().max()) for a, b in zip(after, before, strict=True)], moved

    next_flow, output = watched(projection, net, new)
    loss = output.square().sum()
    plain = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    projected = projection.backward(next_flow, loss)
    changed, _ = change(dict(zip(net.parameters(), plain, strict=True)))
    assert min(changed) > 1e-2
    unchanged, moved = change(projected)
    if shape == (6,):
        assert moved > 1e-3, "there is room left, and it is used"
    assert max(unchanged) < 1e-4


def test_layers_that_share_a_weight_are_protected_together():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    net = Tied()
    with pytest.warns(UserWarning, match=r"No projector can protect b\.bias:"):
        projection = Projection(net, (8,))
    old = torch.randn(2, 8)
    flow, before = watched(projection, net, old)
    projection.absorb(flow, EverySample(), ConstantAlpha(1e-8), 0.0, 1)
    projection.freeze_unprotected(net)
    next_flow, output = watched(projection, net, torch.randn(9, 8))
    weight = net.a.weight.detach().clone()
    descend(torch.optim.SGD(net.parameters(), lr=0.1), projection.backward(next_flow, output.square().sum()), 1e9)
    assert (net.a.weight - weight).abs().max() > 1e-3
    torch.testing.assert_close(net(old), before, rtol=0, atol=1e-4)


def test_the_warning_names_what_cannot_be_projected():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 2))
    with pytest.warns(UserWarning, match="No projector") as caught:
        Projection(net, (1, 4, 4))
    (warning,) = caught
    names = "1.bias, 1.running_mean, 1.running_var, 1.weight, 3.bias, 3.weight"
    assert str(warning.message).startswith(f"No projector can protect {names}: they are frozen after the first task.")


def test_a_net_of_plain_layers_gives_no_warning(recwarn):
    Projection(conv_net(), (2, 3, 3))
    assert len(recwarn) == 0


def test_a_step_is_clipped_after_the_projection():
    parameter = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    descend(optimizer, {parameter: torch.full((4,), 50.0)}, clip=10.0)
    assert float(parameter.detach().norm()) == pytest.approx(10.0, rel=1e-4)
    descend(optimizer, {parameter: torch.full((4,), 0.5)}, clip=10.0)
    torch.testing.assert_close(parameter.detach(), torch.full((4,), -5.5), rtol=1e-4, atol=0)


def test_feeding_means_and_feeding_samples_give_the_sums_they_should():
    x = torch.randn(5, 6, generator=generator(0)).double()
    rows = torch.cat([x, torch.ones(5, 1)], dim=1)
    for feed, expected in (
        (EverySample(), sum(torch.outer(r, r) for r in rows)),
        (EveryVector(), sum(torch.outer(r, r) for r in rows)),
        (BatchMean(), torch.outer(rows.mean(0), rows.mean(0))),
    ):
        net = nn.Linear(6, 2).double()
        projection = Projection(net, (6,))
        flow, _ = watched(projection, net, x)
        projection.absorb(flow, feed, ConstantAlpha(0.5), 0.0, 1)
        projection.rebuild()
        torch.testing.assert_close(projection.layers[0].A[0], expected / 0.5, rtol=1e-6, atol=1e-9)


def test_every_vector_feeds_a_convolution_with_the_mean_map_as_if_it_came_in_every_sample():
    net, x = nn.Conv2d(2, 3, 2, bias=False), torch.randn(4, 2, 3, 3)
    sums = []
    for feed, inputs in ((EveryVector(), x), (EverySample(), x.mean(0).expand(4, 2, 3, 3))):
        projection = Projection(net, (2, 3, 3))
        flow, _ = watched(projection, net, inputs)
        projection.absorb(flow, feed, ConstantAlpha(0.5), 0.0, 1)
        projection.rebuild()
        sums.append(projection.layers[0].A)
    torch.testing.assert_close(*sums, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("feed", "stride"), [(BatchMean(), 1), (EverySecondPatch(), 2)])
def test_a_convolution_is_fed_with_patches_of_the_mean_map(feed, stride):
    net = nn.Sequential(nn.Conv2d(2, 3, 2, padding=1, bias=False), nn.Flatten(), nn.Linear(108, 2))
    projection, x = Projection(net, (2, 5, 5)), torch.randn(4, 2, 5, 5)
    flow, _ = watched(projection, net, x)
    projection.absorb(flow, feed, ConstantAlpha(0.5), 0.0, 1)
    projection.rebuild()
    padded = nn.functional.pad(x, (1, 1, 1, 1)).mean(0).double()
    patches = [padded[:, i : i + 2, j : j + 2].flatten() for i in range(0, 6, stride) for j in range(0, 6, stride)]
    expected = sum(torch.outer(r, r) for r in patches) / 0.5
    torch.testing.assert_close(projection.layers[0].A[0], expected, rtol=1e-5, atol=1e-6)
    r = torch.cat([flow.inputs[1].detach().mean(0), torch.ones(1)]).double()
    torch.testing.assert_close(projection.layers[1].A[0], torch.outer(r, r) / 0.5, rtol=1e-5, atol=1e-6)


def test_the_released_feed_has_the_released_number_of_rows():
    net = build_backbone("cnn", (3, 32, 32), seed=0, options={"hidden": (5,)}).eval()
    taps = Taps(net, (3, 32, 32))
    with taps.watch() as flow, torch.no_grad():
        net(torch.randn(2, 3, 32, 32))
    counts = [EverySecondPatch()(layer, x).shape[1] for layer, x in zip(flow.layers, flow.inputs, strict=True)]
    assert counts == [17 * 17, 9 * 9, 5 * 5, 1]
