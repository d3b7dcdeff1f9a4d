"""Projectors of layers and of nets: exact, fast, and resumed."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cldnet.device import generator
from cldnet.math import projector
from cldnet.methods.fit import load_running, running_state
from cldnet.methods.gradient import descend
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.methods.parts.projection import (
    BatchMean,
    EverySample,
    EverySecondPatch,
    EveryVector,
    LayerProjector,
    Projection,
)
from cldnet.nets import build_backbone
from cldnet.nets.hooks import LayerHooks


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
    with projection.hooks.watch() as flow:
        output = net(x)
    return flow, output


def working(layer):
    """The projectors as a net in float32 uses them, in float64."""
    groups, width, _ = layer.P.shape
    return layer.project(torch.eye(width).repeat(groups, 1, 1)).double()


def rebuilt(layer):
    """The projectors as they would be after a rebuild; the layer is not changed."""
    other = copy.deepcopy(layer)
    other.rebuild()
    return other.P


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
    exact = [rebuilt(kept) for kept in projection.layers]
    flow, output = watched(projection, net, torch.randn(rows, *shape))
    loss = (output * torch.randn(output.shape)).sum()
    assert tuple(f.rows(x).shape[1] < f.outputs for f, x in zip(flow.layers, flow.inputs, strict=True)) == fewer
    plain = dict(
        zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters()), retain_graph=True), strict=True)
    )
    projected = projection.backward(flow, loss)
    assert set(projected) == set(plain)
    for layer, P in zip(projection.hooks.layers, exact, strict=True):
        module = layer.module
        g = plain[module.weight].reshape(layer.groups, layer.outputs, -1)
        if module.bias is not None:
            g = torch.cat([g, plain[module.bias].reshape(layer.groups, -1, 1)], dim=2)
        expected = torch.einsum("gow,gwv->gov", g.double(), P).float()
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


# Absorbing and projecting by one product


class Twice(nn.Module):
    """One layer that is called twice, between two others."""

    def __init__(self):
        super().__init__()
        self.first, self.again, self.last = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 12)

    def forward(self, x):
        return self.last(torch.tanh(self.again(torch.tanh(self.again(torch.tanh(self.first(x)))))))


def three_layers():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 10), nn.Tanh(), nn.Linear(10, 12, bias=False))


def freeze_the_first(net):
    net[0].requires_grad_(False)


def freeze_the_second_weight(net):
    net[2].weight.requires_grad_(False)


def freeze_nothing(net):
    pass


@pytest.mark.parametrize("feed", [EverySample(), BatchMean(), EveryVector(), EverySecondPatch()])
@pytest.mark.parametrize(
    ("make", "prepare", "batch", "fast"),
    [
        (three_layers, freeze_nothing, 5, [0, 1, 2]),
        (three_layers, freeze_nothing, 1, [0, 1, 2]),
        (three_layers, freeze_nothing, 9, [1, 2]),  # as many rows as the first layer has outputs
        (three_layers, freeze_nothing, 20, []),
        (three_layers, freeze_the_first, 5, [1, 2]),
        (three_layers, freeze_the_second_weight, 5, [0, 2]),
        (Twice, freeze_nothing, 5, [0, 3]),
    ],
)
def test_a_step_is_the_gradient_times_the_projector_that_has_absorbed_the_same_batch(feed, make, prepare, batch, fast):
    """Against plain gradients and closed forms from inputs that are computed once more, in float64."""
    net, alpha = make(), 0.3
    prepare(net)
    projection = Projection(net, (6,))
    absorbed = {layer.name: [] for layer in projection.hooks.layers}
    for _ in range(3):  # nothing was absorbed, some rows wait, more rows wait
        flow, output = watched(projection, net, torch.randn(batch, 6))
        loss = (output * torch.randn(output.shape)).sum()
        learning = [p for p in net.parameters() if p.requires_grad]
        plain = dict(zip(learning, torch.autograd.grad(loss, learning, retain_graph=True), strict=True))
        projection.absorb(flow, feed, ConstantAlpha(alpha), 0.0, 1)
        few = [call for call in fast if taken_rows(feed, batch) < flow.layers[call].width]
        assert sorted(flow.projected) == few, "one more product than needed, or one that nobody uses"
        gradients = projection.backward(flow, loss)
        assert {id(p) for p in gradients} == {id(p) for p in plain}
        for layer, x in zip(flow.layers, flow.inputs, strict=True):
            rows = x.detach().double()
            if layer.module.bias is not None:
                rows = torch.cat([rows, torch.ones(batch, 1, dtype=torch.float64)], dim=1)
            absorbed[layer.name].append(rows if taken_rows(feed, batch) == batch else rows.mean(0, keepdim=True))
        for layer in projection.hooks.layers:
            exact, weight, bias = closed_form(torch.cat(absorbed[layer.name]), alpha), *parameters_of(layer)
            whole = torch.zeros(len(weight), layer.width, dtype=torch.float64)
            for parameter, own in ((weight, slice(0, weight.shape[1])), (bias, slice(weight.shape[1], None))):
                if parameter in plain:
                    whole[:, own] = plain[parameter].double().reshape(len(weight), -1)
                elif parameter is not None and weight in plain:
                    pytest.fail("no case freezes a bias alone")
            if weight in plain:
                expected = whole @ exact
                torch.testing.assert_close(
                    gradients[weight].double(), expected[:, : weight.shape[1]], rtol=1e-5, atol=1e-5
                )
                if bias is not None:
                    torch.testing.assert_close(gradients[bias].double(), expected[:, -1], rtol=1e-5, atol=1e-5)
                assert float((expected - whole).abs().max()) > 1e-2, "the projector does something"


def taken_rows(feed, batch):
    return 1 if isinstance(feed, BatchMean | EverySecondPatch) else batch


def parameters_of(layer):
    return layer.module.weight, layer.module.bias


@pytest.mark.parametrize("feed", [EverySample(), BatchMean(), EveryVector(), EverySecondPatch()])
def test_what_a_feed_makes_of_rows_is_what_it_makes_of_a_layers_input(feed):
    for bias in (True, False):
        net, x = nn.Linear(6, 9, bias=bias), torch.randn(5, 6)
        (layer,) = LayerHooks(net, (6,)).layers
        torch.testing.assert_close(feed.combine(layer.rows(x)), feed(layer, x), rtol=1e-6, atol=1e-7)


def test_inputs_with_several_rows_a_sample_are_absorbed_and_projected_row_by_row():
    net = nn.Linear(6, 40)
    projection, x = Projection(net, (3, 6)), torch.randn(4, 3, 6)
    flow, output = watched(projection, net, x)
    loss = (output * torch.randn(output.shape)).sum()
    plain = torch.autograd.grad(loss, [net.weight, net.bias], retain_graph=True)
    projection.absorb(flow, EverySample(), ConstantAlpha(0.3), 0.0, 1)
    assert not flow.projected
    gradients = projection.backward(flow, loss)
    exact = closed_form(torch.cat([x.reshape(12, 6), torch.ones(12, 1)], dim=1), 0.3)
    expected = torch.cat([plain[0], plain[1][:, None]], dim=1).double() @ exact
    torch.testing.assert_close(gradients[net.weight].double(), expected[:, :6], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[net.bias].double(), expected[:, 6], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [1, 5, 31, 32, 40])
def test_absorbing_returns_the_rows_behind_the_new_projector(known, count):
    layer, before, rows = LayerProjector(2, 60), random_rows(2, 7, 60), random_rows(2, count, 60, seed=1)
    layer.absorb(before, 0.5)
    after = layer.absorb(rows, 0.25, layer.project(rows) if known else None)
    exact = torch.stack([closed_form(torch.cat([2**-0.5 * b, r]), 0.25) for b, r in zip(before, rows, strict=True)])
    torch.testing.assert_close(after.double(), rows.double() @ exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.project(rows), after, rtol=0, atol=1e-5)
    assert layer.absorb(random_rows(2, 60, 60), 0.5) is None, "as many rows as inputs: it is rebuilt instead"
    assert layer.absorb(torch.full((2, 1, 60), 1e25), 0.5) is None


def test_rows_are_returned_as_they_are_until_something_is_absorbed():
    layer, rows = LayerProjector(1, 4), random_rows(1, 2, 4)
    assert layer.project(rows) is rows
    layer.absorb(torch.zeros(1, 3, 4), 0.5)
    layer.rebuild()
    assert torch.equal(layer.project(rows), rows)
    layer.absorb(torch.eye(4)[None, 3:], 0.5)
    for _ in range(2):
        assert not torch.allclose(layer.project(rows), rows)
        layer.rebuild()  # only the last entry of A's diagonal tells that something was absorbed


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
    taps = LayerHooks(net, (3, 32, 32))
    with taps.watch() as flow, torch.no_grad():
        net(torch.randn(2, 3, 32, 32))
    counts = [EverySecondPatch()(layer, x).shape[1] for layer, x in zip(flow.layers, flow.inputs, strict=True)]
    assert counts == [17 * 17, 9 * 9, 5 * 5, 1]


def random_rows(groups, count, width, seed=0):
    return torch.rand(groups, count, width, generator=generator(seed))


def closed_form(rows, alpha):
    """(I + Σ r rᵀ / α)⁻¹, summed row by row and inverted by numpy."""
    total = np.eye(rows.shape[1])
    for r in rows.detach().double().numpy():
        total += np.outer(r, r) / alpha
    return torch.from_numpy(np.linalg.inv(total))


def distance(found, exact):
    """The largest distance of two projectors of some groups, in the spectral norm."""
    return max(float(np.linalg.norm((a - b).numpy(), 2)) for a, b in zip(found, exact, strict=True))


#: What layers may see.
SEEN = {
    "any": lambda noise: noise,
    "positive": lambda noise: noise.clamp_min(0),
    "of two dimensions": lambda noise: noise[..., :2] @ torch.linspace(-1, 2, 2 * noise.shape[-1]).reshape(2, -1),
    "one row again and again": lambda noise: torch.linspace(-1, 2, noise.shape[-1]).expand(noise.shape),
    "with a common part": lambda noise: 1 + 0.1 * noise,
    "with a large common part": lambda noise: 5 + 0.1 * noise,
}

sequences = st.lists(
    st.tuples(st.integers(1, 50), st.floats(-4, 3).map(lambda e: 10.0**e), st.sampled_from(list(SEEN))),
    min_size=1,
    max_size=12,
)


def follow(sequence, groups, width, seed, dtype):
    """Let a projector absorb such blocks; yield it after each with the sum in float64."""
    layer, total, make = LayerProjector(groups, width), np.zeros((groups, width, width)), generator(seed)
    for count, alpha, kind in sequence:
        rows = SEEN[kind](torch.randn(groups, count, width, generator=make, dtype=dtype).to(torch.float32)).to(dtype)
        layer.absorb(rows, alpha)
        for group, own in enumerate(rows.double().numpy()):
            total[group] += own.T @ own / alpha
        yield layer, total


def inverted(total):
    return torch.from_numpy(np.linalg.inv(np.eye(total.shape[-1]) + total))


def rounding_of(total):
    """What rounding of the sum in float64 may change in its inverse: 4 eps λmax, or a little more."""
    return 4 * np.finfo(np.float64).eps * total.shape[-1] * np.abs(total).max()


def check_rebuilt(layer, total):
    """``P`` and ``A`` are those of the sum, to what its rounding in float64 leaves."""
    layer.rebuild()
    rounding = rounding_of(total)
    np.testing.assert_allclose(layer.A.numpy(), total, rtol=0, atol=1e-12 * np.abs(total).max())
    assert torch.equal(layer.A, layer.A.mT)
    assert distance(layer.P, inverted(total)) <= max(1e-9, rounding)
    assert torch.equal(layer.P, layer.P.mT)
    eigenvalues = torch.linalg.eigvalsh(layer.P)
    assert 0 < eigenvalues.min() <= eigenvalues.max() <= 1 + max(1e-12, rounding)


#: The true distance may be more than the estimate that is compared with `most_drift`: three times as much at worst in 80,000
#: random states, after a few blocks with a large common part and a small α.
FARTHEST = 4 * LayerProjector.most_drift


@settings(deadline=None, max_examples=80)
@given(sequences, st.integers(1, 2), st.integers(2, 45), st.integers(0, 2**31 - 1))
def test_in_float32_it_is_never_far_from_the_closed_form_and_after_a_rebuild_it_is_the_closed_form(
    sequence, groups, width, seed
):
    for layer, total in follow(sequence, groups, width, seed, torch.float32):
        P, exact = working(layer), inverted(total)
        assert distance(P, exact) < FARTHEST
        eigenvalues = torch.linalg.eigvalsh((P + P.mT) / 2)
        assert -FARTHEST < eigenvalues.min() <= eigenvalues.max() < 1 + FARTHEST
    check_rebuilt(layer, total)
    assert distance(working(layer), exact) < 1e-6


@settings(deadline=None, max_examples=60)
@given(sequences, st.integers(1, 2), st.integers(2, 45), st.integers(0, 2**31 - 1))
def test_in_float64_it_projects_by_the_closed_form_after_every_step_whatever_waits(sequence, groups, width, seed):
    probe = torch.eye(width, dtype=torch.float64).repeat(groups, 1, 1)
    for layer, total in follow(sequence, groups, width, seed, torch.float64):
        assert distance(layer.project(probe), inverted(total)) < max(1e-9, 4 * rounding_of(total))
        if layer._working is not None:
            assert layer._working.dtype == torch.float64
    check_rebuilt(layer, total)


def test_rows_wait_until_there_is_no_more_room_and_settling_changes_no_product():
    kept, probe = LayerProjector(1, 60), random_rows(1, 5, 60)
    waiting = []
    for number, count in enumerate((1, 20, 11, 1, 31, 1, 1, 32, 1)):
        kept.absorb(random_rows(1, count, 60, seed=number), 5.0)
        waiting.append(kept._waiting)
        before, other = kept.project(probe), copy.deepcopy(kept)
        other.settle()
        assert other._waiting == 0
        torch.testing.assert_close(other.project(probe), before, rtol=0, atol=1e-5)
        assert torch.equal(other.project(probe), probe @ other._working)
    # A block of 32 rows does not wait, and may overtake what waits.
    assert waiting == [1, 21, 32, 1, 32, 1, 2, 2, 3]


def test_settling_brings_the_sum_up_to_date_above_its_diagonal():
    kept, rows = LayerProjector(2, 6), random_rows(2, 3, 6)
    kept.absorb(rows, 0.5)
    assert not kept.A.any()
    kept.settle()
    torch.testing.assert_close(kept.A.triu(), (rows.double().mT @ rows.double()).triu() / 0.5, rtol=1e-12, atol=0)


def test_positivity_is_kept_where_float32_loses_it():
    """See `tests.math.test_projector`: the same inputs, whose recursion in float32 gets negative eigenvalues."""
    make = generator(0)
    rows, kept = torch.rand(200, generator=make) + 0.1 * torch.rand(1, 200, 200, generator=make), LayerProjector(1, 200)
    rebuilds = 0
    for number in range(200):
        rebuilds += kept.absorb(rows[:, number : number + 1], 1e-5) is None
        if number % 20 == 19:
            assert torch.linalg.eigvalsh(working(kept)).min() > -kept.most_drift
            assert torch.linalg.eigvalsh(rebuilt(kept)).min() > 0
    assert 0 < rebuilds < 200


@pytest.mark.parametrize("alpha", [1e-5, 1e-2])
def test_it_stays_a_projector_for_30_000_updates(alpha):
    d, make = 6, generator(0)
    kept, absorbed = LayerProjector(1, d), 0
    reference = torch.zeros(d, d, dtype=torch.float64)
    while absorbed < 30_000:
        for count in (1,) * 40 + (3, 5, 200) + (2,) * 20:
            rows = torch.rand(1, count, d, generator=make)
            kept.absorb(rows, alpha)
            reference += rows[0].double().T @ rows[0].double() / alpha
            absorbed += count
        P = working(kept)[0]
        eigenvalues = torch.linalg.eigvalsh((P + P.T) / 2)
        assert -kept.most_drift < eigenvalues.min() <= eigenvalues.max() < 1 + kept.most_drift
        assert float((P - P.T).abs().max()) < 1e-6
        exact = torch.linalg.inv(torch.eye(d, dtype=torch.float64) + reference)
        assert distance(P[None], exact[None]) < kept.most_drift
    kept.rebuild()
    torch.testing.assert_close(kept.A[0], reference, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        kept.P[0], exact, rtol=1e-4, atol=float(d * torch.finfo(torch.float64).eps * (1 + reference.trace()))
    )


# The drift of the working copy


def uneven_rows(count, width, seed=0):
    """Rows with a large common part: what is left of them is a small difference of large numbers."""
    return 3 + 0.1 * torch.randn(count, 1, 1, width, generator=generator(seed))


def test_it_is_rebuilt_as_soon_as_the_estimates_of_rounding_exceed_what_is_allowed():
    kept, numbers = LayerProjector(1, 20), []
    kept.most_drift = 1e-4
    for number, rows in enumerate(uneven_rows(300, 20)):
        before = kept._drift
        total = before + projector.update(rows, kept.project(rows), 0.01).rounding
        assert (kept.absorb(rows, 0.01) is None) == (total > kept.most_drift)
        if total > kept.most_drift:
            assert distance(working(kept), [closed_form(uneven_rows(300, 20)[: number + 1, 0, 0], 0.01)]) < 1e-6
            assert kept._drift == 0
            numbers = [*numbers, number]
        else:
            subtracted = kept._waiting == 1 and before > 0  # the rows that waited had to make room
            assert kept._drift == pytest.approx(total + 8 * torch.finfo(torch.float32).eps * subtracted)
    assert 3 < len(numbers) < 150


def test_rounding_of_very_many_weak_updates_is_counted_too():
    kept, row = LayerProjector(1, 4), torch.ones(1, 1, 4)
    for _ in range(20_000):
        kept.absorb(row, 1e7)
    exact = torch.eye(4, dtype=torch.float64) - torch.ones(4, 4, dtype=torch.float64) / (1e7 / 20_000 + 4)
    assert 1e-4 < distance(working(kept), exact[None]) < kept._drift


def test_the_less_drift_is_allowed_the_more_often_it_is_rebuilt():
    found = []
    for most in (1e-2, 1e-3, 1e-4, 1e-5, 0.0):
        kept = LayerProjector(1, 20)
        kept.most_drift = most
        found.append(sum(kept.absorb(rows, 0.01) is None for rows in uneven_rows(200, 20)))
    assert found == sorted(found)
    assert len(set(found)) == 5
    assert found[-1] == 200


def test_a_spoilt_working_copy_is_repaired_when_the_allowed_drift_is_spent_and_by_a_rebuild():
    rows = uneven_rows(3000, 20)
    kept = LayerProjector(1, 20)
    for number, row in enumerate(rows):
        again = kept.absorb(row, 0.02) is None
        if number == 40:
            kept.settle()
            kept._working.mul_(1 + 5e-2)
            spoilt, P = copy.deepcopy(kept), working(kept)
            assert distance(P, [closed_form(rows[:41, 0, 0], 0.02)]) > 1e-3
        if number > 40 and again:
            break
    assert 45 < number < 2999
    exact = [closed_form(rows[: number + 1, 0, 0], 0.02)]
    assert distance(working(kept), exact) < 1e-6
    spoilt.rebuild()  # as at a task's end
    assert distance(spoilt.P, [closed_form(rows[:41, 0, 0], 0.02)]) < 1e-9


def test_a_working_copy_that_is_no_longer_positive_is_rebuilt_at_once():
    for count in (1, 3):
        kept, rows = LayerProjector(1, 6), random_rows(1, 41, 6)
        for number in range(38):
            kept.absorb(rows[:, number : number + 1], 0.1)
        kept.settle()
        kept._working.sub_(torch.eye(6))
        assert kept.absorb(rows[:, 38 : 38 + count], 0.1) is None
        assert distance(kept.P, [closed_form(rows[0, : 38 + count], 0.1)]) < 1e-9
        assert distance(working(kept), kept.P) < 1e-6


# State


def test_a_projector_goes_on_with_the_same_bits_from_a_state_in_the_middle_of_a_task():
    rows, kept, moments, rebuilds = uneven_rows(130, 20), LayerProjector(1, 20), set(), 0
    for number, row in enumerate(rows[:80]):
        again = kept.absorb(row, 0.02) is None
        settled = kept._working is not None and not torch.equal(kept._working, kept.P.float())
        moments.add((kept._working is None, settled, kept._waiting > 0, again))
        if number % 6 and not again:
            continue
        other = LayerProjector(1, 20)
        other.absorb(random_rows(1, 3, 20), 1.0)  # what it held belonged to another task
        other.load_state_dict(copy.deepcopy(kept.state_dict()))
        load_running(other, running_state(kept))
        assert other._drift == kept._drift
        first = copy.deepcopy(kept)
        for following in rows[number + 1 : number + 50]:
            a, b = first.absorb(following, 0.02), other.absorb(following, 0.02)
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)
            assert torch.equal(first.project(row), other.project(row))
            rebuilds += a is None
        for each in (first, other):
            each.rebuild()
        assert torch.equal(first.P, other.P)
        assert torch.equal(first.A, other.A)
    assert rebuilds > 3
    # Rows wait beside P, beside a copy of it, and beside one that was settled; and right after a rebuild.
    assert {True, False} == {settled for _, settled, waits, _ in moments if waits}
    assert (True, False, False, True) in moments


def test_a_projector_of_version_0_1_can_be_unpickled():
    kept, rows = LayerProjector(1, 5), random_rows(1, 3, 5)
    kept.absorb(rows, 0.1)
    kept.rebuild()
    state = {name: value for name, value in kept.__dict__.items() if name not in kept.running}
    old = LayerProjector.__new__(LayerProjector)
    old.__setstate__({**copy.deepcopy(state), "_rows": None, "_rounded": None, "_waiting": 0, "_updates": 3})
    assert torch.equal(old.project(rows), kept.project(rows))
    assert torch.equal(old.absorb(rows, 0.1), kept.absorb(rows, 0.1))


def test_what_waited_does_not_leak_into_a_state_that_is_loaded():
    empty = copy.deepcopy(LayerProjector(1, 5).state_dict())
    kept, probe = LayerProjector(1, 5), random_rows(1, 2, 5)
    for count in (3, 1, 4):
        kept.absorb(random_rows(1, count, 5), 0.1)
    kept.project(probe)
    assert kept._drift > 0
    kept.load_state_dict(empty)
    assert kept._drift == 0
    assert torch.equal(kept.project(probe), probe)
    kept.rebuild()
    assert torch.equal(kept.A, torch.zeros(1, 5, 5, dtype=torch.float64))
    assert torch.equal(kept.P[0], torch.eye(5, dtype=torch.float64))


# Extremes


def check_sound(layer, expected=None, atol=1e-12):
    """Symmetric, with eigenvalues in (0, 1] but for rounding: after a rebuild that of float64, before it `most_drift`."""
    before, most = working(layer)[0], layer.most_drift
    layer.rebuild()
    for P, rounding, beyond in ((before, most, most), (layer.P[0], 1e-12, 1e-6), (working(layer)[0], 1e-6, 1e-6)):
        assert torch.isfinite(P).all()
        assert float((P - P.T).abs().max()) <= rounding
        values = torch.linalg.eigvalsh((P + P.T) / 2)
        assert float(values.min()) > -rounding
        assert float(values.max()) <= 1 + beyond
        assert distance(P[None], layer.P) <= rounding
    if expected is not None:
        torch.testing.assert_close(layer.P[0], expected, rtol=1e-6, atol=atol)


@pytest.mark.parametrize(("block", "count"), [(100, 1_000_000), (15, 150_000), (7, 30_000), (1, 5_000)])
def test_a_projector_is_sound_after_very_many_rows_in_float32(block, count):
    """Blocks of more than 16 rows rebuild it, smaller ones go through the recursion; a million of those take minutes."""
    layer, rows = LayerProjector(1, 16), torch.randn(count, 16, generator=generator(0))
    rows[:, 3] = rows[:, 2]  # a direction that nothing uses
    for part in rows.split(block):
        layer.absorb(part[None], 30.0)
    total = torch.eye(16, dtype=torch.float64) + rows.double().T @ rows.double() / 30
    check_sound(layer, torch.linalg.inv(total), atol=1e-9)
    unused = torch.zeros(16, dtype=torch.float64)
    unused[2], unused[3] = 0.5**0.5, -(0.5**0.5)
    assert float(unused @ layer.P[0] @ unused) == pytest.approx(1, abs=1e-6)


ROWS = {
    "any": torch.randn(400, 16, generator=generator(0)),
    "constant": torch.ones(400, 16),
    "three rows again and again": torch.randn(3, 16, generator=generator(0))[torch.arange(400) % 3],
    "zero": torch.zeros(400, 16),
    "of four dimensions": torch.randn(400, 4, generator=generator(0)) @ torch.randn(4, 16, generator=generator(1)),
    "of mixed scales": torch.randn(400, 16, generator=generator(0)) * torch.logspace(-15, 15, 16),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e22])
@pytest.mark.parametrize("alpha", [1e-12, 30.0, 1e12])
@pytest.mark.parametrize("block", [1, 5, 20])
def test_a_projector_is_sound_whatever_it_absorbs(kind, scale, alpha, block):
    layer, rows = LayerProjector(1, 16), ROWS[kind] * scale
    for part in rows.split(block):
        layer.absorb(part[None], alpha)
    check_sound(layer)
    largest = rows[rows.norm(dim=1).argmax()].double()
    form = largest @ layer.P[0] @ largest  # below α for whatever was absorbed
    assert float(form) <= max(alpha, 1e-12 * float(largest.square().sum())) * (1 + 1e-6)


def test_the_largest_numbers_of_float32_are_absorbed():
    layer = LayerProjector(1, 8)
    for row in torch.eye(8)[:3]:
        layer.absorb(3.4e38 * row[None, None], 1e-12)
    check_sound(layer, torch.diag(torch.tensor([0.0] * 3 + [1.0] * 5)).double())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_waiting", 99),
        ("_waiting", 33),
        ("_working", torch.zeros(1, 6, 5)),
        ("_working", torch.zeros(2, 6, 6)),
        ("_working", torch.zeros(1, 6, 6, dtype=torch.int64)),
        ("_corrections", torch.zeros(1, 4, 6)),
        ("_corrections", torch.zeros(1, 32, 3)),
        ("_corrections", torch.zeros(1, 32, 6, dtype=torch.bool)),
        ("_corrections", None),
        ("_inputs", torch.zeros(2, 32, 6, dtype=torch.float64)),
        ("_inputs", torch.zeros(1, 31, 6, dtype=torch.float64)),
        ("_inputs", None),
    ],
)
def test_what_a_file_has_and_this_layer_cannot_hold_is_refused(name, value):
    layer = LayerProjector(1, 6)
    layer.absorb(torch.rand(1, 2, 6, generator=generator(0)), 1.0)
    layer.project(torch.eye(6)[None])
    layer.check_running()
    state = running_state(layer)
    setattr(layer, name, value)
    with pytest.raises(ValueError, match="waiting rows of a projector with 6 inputs are missing"):
        layer.check_running()
    state.pop(name)
    other = LayerProjector(1, 6)
    with pytest.raises(ValueError, match="waiting rows of a projector with 6 inputs are missing"):
        load_running(other, state if value is None else {**state, name: torch.as_tensor(value)})


def test_a_million_single_updates_were_measured_and_every_projector_was_sound():
    found = json.loads((Path(__file__).parents[3] / "results" / "benchmarks" / "million.json").read_text())
    most = LayerProjector.most_drift
    assert sorted(each["alpha"] for each in found["projectors"]) == [1e-3, 1.0, 30.0]
    for each in found["projectors"]:
        assert each["course"][-1]["updates"] == 1_000_000
        assert each["course"][-1]["rebuilds"] < 100, "the closed form would be held against itself"
        for state in each["course"]:
            assert state["asymmetry"] <= 1e-6
            assert -most < state["least_eigenvalue"] <= state["largest_eigenvalue"] <= 1 + most
            assert state["error"] < most


@pytest.mark.parametrize("drift", [float("nan"), float("inf"), -1.0])
def test_a_drift_of_a_file_that_would_put_off_the_rebuild_for_ever_is_refused(drift):
    layer = LayerProjector(1, 6)
    layer.absorb(torch.rand(1, 2, 6, generator=generator(0)), 1.0)
    state = {**running_state(layer), "_drift": torch.tensor(drift, dtype=torch.float64)}
    with pytest.raises(ValueError, match="finite and not negative"):
        load_running(layer, state)
