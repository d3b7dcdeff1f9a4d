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
    for layer, kept in zip(projection.hooks.layers, projection.layers, strict=True):
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
    for r in rows.double().numpy():
        total += np.outer(r, r) / alpha
    return torch.from_numpy(np.linalg.inv(total))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.integers(1, 2),
    st.integers(2, 45),
    st.integers(0, 2**31 - 1),
)
def test_it_projects_by_the_closed_form_after_every_step_whatever_waits(counts, groups, width, seed):
    kept, probe = LayerProjector(groups, width), random_rows(groups, 3, width, seed).double()
    rows = random_rows(groups, sum(counts), width, seed + 1)
    done = 0
    for part in rows.split(counts, dim=1):
        kept.absorb(part, torch.tensor(0.5))
        done += part.shape[1]
        exact = torch.stack([closed_form(rows[g, :done], 0.5) for g in range(groups)])
        torch.testing.assert_close(kept.project(probe), probe @ exact, rtol=0, atol=1e-10)
        torch.testing.assert_close(kept.project(probe.float()).double(), probe @ exact, rtol=0, atol=1e-4)
    kept.settle()
    torch.testing.assert_close(kept.P, exact, rtol=0, atol=1e-11)
    torch.testing.assert_close(kept.A, (rows.double().mT @ rows.double()) / 0.5, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kept.P, kept.P.mT, rtol=0, atol=1e-14)
    kept.rebuild()
    torch.testing.assert_close(kept.P, exact, rtol=0, atol=1e-11)
    assert torch.equal(kept.P, kept.P.mT)
    eigenvalues = torch.linalg.eigvalsh(kept.P)
    assert 0 < eigenvalues.min() <= eigenvalues.max() <= 1 + 1e-12


def test_settling_changes_no_product_and_is_done_by_itself():
    kept, probe = LayerProjector(1, 6), random_rows(1, 5, 6).double()
    for number in range(1, 2 * kept.settle_every + 1):
        kept.absorb(random_rows(1, 1, 6, seed=number), torch.tensor(0.1))
        before = kept.project(probe)
        settled = torch.equal(before, probe @ kept.P)
        assert settled == (number % kept.settle_every == 0)
        other = copy.deepcopy(kept)
        other.settle()
        torch.testing.assert_close(other.project(probe), before, rtol=0, atol=1e-13)


def test_positivity_is_kept_where_float32_loses_it():
    make = generator(0)
    rows, kept = torch.rand(200, generator=make) + 0.1 * torch.rand(1, 200, 200, generator=make), LayerProjector(1, 200)
    for number in range(200):
        kept.absorb(rows[:, number : number + 1], torch.tensor(1e-5))
    kept.settle()
    for P in (kept.P[0].clone(), kept.rebuild() or kept.P[0]):
        assert torch.linalg.eigvalsh(P).min() > 0


@pytest.mark.parametrize("alpha", [1e-5, 1e-2])
def test_it_stays_a_projector_for_30_000_updates(alpha):
    d, strength, make = 6, torch.tensor(alpha), generator(0)
    kept, absorbed = LayerProjector(1, d), 0
    reference = torch.zeros(d, d, dtype=torch.float64)
    while absorbed < 30_000:
        for count in (1,) * 40 + (3, 5, 200):
            rows = torch.rand(1, count, d, generator=make)
            kept.absorb(rows, strength)
            reference += rows[0].double().T @ rows[0].double() / strength.double()
            absorbed += count
        if absorbed % 5 == 0:
            kept.settle()
            eigenvalues = torch.linalg.eigvalsh(kept.P[0])
            assert 0 < eigenvalues.min() <= eigenvalues.max() <= 1
            torch.testing.assert_close(kept.P, kept.P.mT, rtol=0, atol=1e-15)
    exact = torch.linalg.inv(torch.eye(d, dtype=torch.float64) + reference)
    kept.rebuild()
    torch.testing.assert_close(kept.A[0], reference, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        kept.P[0], exact, rtol=1e-4, atol=float(d * torch.finfo(torch.float64).eps * (1 + reference.trace()))
    )


def test_a_projector_that_has_drifted_is_rebuilt_when_it_settles():
    kept, rows = LayerProjector(1, 3), random_rows(1, 64, 3)
    for number in range(40):
        kept.absorb(rows[:, number : number + 1], torch.tensor(0.1))
    kept.P.neg_()  # spoilt
    for number in range(40, 64):
        kept.absorb(rows[:, number : number + 1], torch.tensor(0.1))
    kept.settle()
    torch.testing.assert_close(kept.P[0], closed_form(rows[0], float(torch.tensor(0.1))), rtol=0, atol=1e-10)


def test_it_is_rebuilt_every_1000_updates_even_if_nothing_shows():
    kept, rows = LayerProjector(1, 3), random_rows(1, 1024, 3)
    exact = closed_form(rows[0], 0.5)
    for number in range(1024):
        if number == 896:  # nothing waits
            kept.P.mul_(1 + 1e-4)  # too little to be seen by what it does to one row
        kept.absorb(rows[:, number : number + 1], torch.tensor(0.5))
        if number == 991:  # settled, and not yet rebuilt
            assert float((kept.P[0] / closed_form(rows[0, :992], 0.5) - 1).abs().max()) > 1e-5
    torch.testing.assert_close(kept.P[0], exact, rtol=1e-9, atol=0)


def test_it_is_rebuilt_when_it_settles_with_as_many_updates_as_are_allowed():
    kept, rows = LayerProjector(1, 3), random_rows(1, 64, 3)
    kept.rebuild_every = 64
    for number in range(64):
        if number == 32:  # nothing waits
            kept.P.mul_(1 + 1e-4)
        kept.absorb(rows[:, number : number + 1], torch.tensor(0.5))
    torch.testing.assert_close(kept.P[0], closed_form(rows[0], 0.5), rtol=1e-9, atol=0)


def test_what_waited_does_not_leak_into_a_state_that_is_loaded():
    empty = copy.deepcopy(LayerProjector(1, 5).state_dict())
    kept, probe = LayerProjector(1, 5), random_rows(1, 2, 5)
    kept.absorb(random_rows(1, 3, 5), torch.tensor(0.1))
    kept.project(probe)
    kept.load_state_dict(empty)
    assert torch.equal(kept.project(probe), probe)
    kept.rebuild()
    assert torch.equal(kept.A, torch.zeros(1, 5, 5, dtype=torch.float64))


# Extremes


def check_sound(layer, expected=None, atol=1e-12):
    """Symmetric, with eigenvalues in (0, 1] but for rounding, before and after a rebuild."""
    for _ in range(2):
        P = layer.project(torch.eye(layer.P.shape[-1], dtype=torch.float64)[None])[0]
        assert torch.isfinite(P).all()
        assert float((P - P.T).abs().max()) <= 1e-12
        values = torch.linalg.eigvalsh(P)
        assert float(values.min()) > -1e-12
        assert float(values.max()) <= 1 + 1e-6
        if expected is not None:
            torch.testing.assert_close(P, expected, rtol=1e-6, atol=atol)
        layer.rebuild()


@pytest.mark.parametrize(("block", "count"), [(100, 1_000_000), (15, 150_000), (7, 30_000), (1, 5_000)])
def test_a_projector_is_sound_after_very_many_rows_in_float32(block, count):
    """Blocks of more than 16 rows rebuild it, smaller ones go through the recursion; a million of those take minutes."""
    layer, rows = LayerProjector(1, 16), torch.randn(count, 16, generator=generator(0))
    rows[:, 3] = rows[:, 2]  # a direction that nothing uses
    for part in rows.split(block):
        layer.absorb(part[None], torch.tensor(30.0))
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
        layer.absorb(part[None], torch.tensor(alpha, dtype=torch.float64))
    check_sound(layer)
    largest = rows[rows.norm(dim=1).argmax()].double()
    form = largest @ layer.P[0] @ largest  # below α for whatever was absorbed
    assert float(form) <= max(alpha, 1e-12 * float(largest.square().sum())) * (1 + 1e-6)


def test_the_largest_numbers_of_float32_are_absorbed():
    layer = LayerProjector(1, 8)
    for row in torch.eye(8)[:3]:
        layer.absorb(3.4e38 * row[None, None], torch.tensor(1e-12, dtype=torch.float64))
    check_sound(layer, torch.diag(torch.tensor([0.0] * 3 + [1.0] * 5)).double())


@pytest.mark.parametrize(("name", "value"), [("_waiting", 99), ("_rows", torch.zeros(2, 1, 4, 3)), ("_rows", None)])
def test_rows_of_a_file_that_cannot_wait_for_this_layer_are_refused(name, value):
    layer = LayerProjector(1, 6)
    layer.absorb(torch.rand(1, 2, 6, generator=generator(0)), torch.tensor(1.0))
    layer.check_running()
    setattr(layer, name, value)
    with pytest.raises(ValueError, match="waiting rows of a projector with 6 inputs are missing"):
        layer.check_running()


def test_a_million_single_updates_were_measured_and_every_projector_was_sound():
    found = json.loads((Path(__file__).parents[3] / "results" / "benchmarks" / "million.json").read_text())
    assert sorted(each["alpha"] for each in found["projectors"]) == [1e-3, 1.0, 30.0]
    for each in found["projectors"]:
        assert each["course"][-1]["updates"] == 1_000_000
        for state in each["course"]:
            assert state["asymmetry"] <= 1e-15
            assert 0 < state["least_eigenvalue"] <= state["largest_eigenvalue"] <= 1 + 1e-12
            assert state["error"] <= 1e-9
