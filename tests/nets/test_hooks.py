"""Gradients rebuilt from what the taps see, against autograd's."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from cldnet.methods.parts.projection import Projection
from cldnet.nets.frozen import FrozenNet
from cldnet.nets.hooks import LayerHooks
from cldnet.nets.pretrained import Adapted, Preprocessing
from cldnet.nets.transformer import TransformerNet


class Residual(nn.Module):
    """Uses one linear layer twice, with a residual connection."""

    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(self.fc(torch.tanh(self.fc(x))) + x)


class Tied(nn.Module):
    """Two modules with one weight; the second has a bias of its own, the same one, or none."""

    def __init__(self, first=True, second="own"):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=first), nn.Linear(4, 4, bias=second != "none")
        self.b.weight = self.a.weight
        if second == "same":
            self.b.bias = self.a.bias

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class TiedConvolutions(nn.Module):
    """One kernel at two strides and paddings."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.b = nn.Conv2d(2, 2, 3, stride=2, padding=0)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class ByName(nn.Module):
    """Calls its layer with a named argument."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x):
        return self.fc(input=x)


def conv(*arguments, **options):
    return nn.Sequential(nn.Conv2d(*arguments, **options), nn.Tanh())


pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")

NETS = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (5,)),
    "linear over tokens": (lambda: nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)), (7, 5)),
    "stack with in-place ReLU": (lambda: nn.Sequential(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 2)), (5,)),
    "used twice": (Residual, (5,)),
    "tied, own biases": (Tied, (4,)),
    "tied, one bias": (lambda: Tied(second="same"), (4,)),
    "tied, first without bias": (lambda: Tied(first=False), (4,)),
    "tied, second without bias": (lambda: Tied(second="none"), (4,)),
    "tied convolutions": (TiedConvolutions, (2, 8, 8)),
    "called by name": (ByName, (5,)),
    "convolution": (lambda: conv(3, 4, 3), (3, 7, 6)),
    "convolution without bias": (lambda: conv(3, 4, (2, 3), bias=False), (3, 7, 6)),
    "grouped": (lambda: conv(4, 6, 3, groups=2, padding=1), (4, 5, 5)),
    "depthwise": (lambda: conv(3, 3, 3, groups=3, bias=False), (3, 6, 6)),
    "dilated": (lambda: conv(2, 3, 3, dilation=(2, 1), padding=2), (2, 8, 8)),
    "strided": (lambda: conv(2, 3, 3, stride=(2, 3), padding=1), (2, 9, 8)),
    "same": (lambda: conv(2, 3, (2, 4), padding="same"), (2, 6, 7)),
    "same, dilated": (lambda: conv(2, 3, 4, padding="same", dilation=2), (2, 9, 9)),
    "valid": (lambda: conv(2, 3, 3, padding="valid"), (2, 6, 7)),
    "replicate": (lambda: conv(2, 3, 3, padding=(1, 2), padding_mode="replicate"), (2, 6, 7)),
    "reflect": (lambda: conv(2, 3, 3, padding=(2, 1), padding_mode="reflect"), (2, 6, 7)),
    "circular": (lambda: conv(2, 3, 3, padding=1, padding_mode="circular", groups=1), (2, 6, 7)),
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(True)), (2, 6, 6)),
}


@pytest.fixture(autouse=True)
def _fixed_weights():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def flow_of(taps, net, shape, rows=4):
    x = torch.randn(rows, *shape)
    with taps.watch() as flow:
        output = net(x)
    return flow, (output * torch.randn(output.shape)).sum()


@pytest.mark.parametrize("name", NETS)
def test_gradients_from_rows_and_deltas_are_those_of_autograd(name):
    make, shape = NETS[name]
    net = make()
    taps = LayerHooks(net, shape)
    flow, loss = flow_of(taps, net, shape)
    deltas = torch.autograd.grad(loss, flow.outputs, retain_graph=True)
    rebuilt = {}
    for layer, x, delta in zip(flow.layers, flow.inputs, deltas, strict=True):
        rows = layer.rows(x)
        assert rows.shape == (layer.groups, rows.shape[1], layer.width)
        product = layer.deltas(delta).mT @ rows
        torch.testing.assert_close(layer.gradient(x, delta), product, rtol=1e-5, atol=1e-5)
        for parameter, gradient in layer.split(product).items():
            rebuilt[parameter] = rebuilt.get(parameter, 0) + gradient
    covered = {id(p) for p in rebuilt} | {id(p) for p in taps.free.values()}
    assert covered == {id(p) for p in net.parameters()}, "every parameter is either tapped or free"
    assert not {id(p) for p in rebuilt} & {id(p) for p in taps.free.values()}
    for parameter, expected in zip(rebuilt, torch.autograd.grad(loss, list(rebuilt)), strict=True):
        torch.testing.assert_close(rebuilt[parameter], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_with_fresh_projectors_the_projected_gradient_is_the_gradient(name):
    make, shape = NETS[name]
    net = make()
    projection = projection_of(net, shape)
    flow, loss = flow_of(projection.hooks, net, shape)
    expected = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    gradients = projection.backward(flow, loss)
    for parameter, gradient in zip(net.parameters(), expected, strict=True):
        torch.testing.assert_close(gradients[parameter], gradient, rtol=1e-5, atol=1e-5)


def projection_of(net, shape):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Projection(net, shape)


def test_the_mean_row_is_the_row_of_the_mean_input():
    taps = LayerHooks(nn.Linear(5, 3), (5,))
    x = torch.randn(6, 5)
    torch.testing.assert_close(
        taps.layers[0].rows(x.mean(0, keepdim=True))[0, 0], torch.cat([x.mean(0), torch.ones(1)])
    )
    taps = LayerHooks(nn.Conv2d(2, 3, 2, bias=False), (2, 3, 3))
    x = torch.randn(6, 2, 3, 3)
    rows = taps.layers[0].rows(x.mean(0, keepdim=True))
    assert rows.shape == (1, 4, 8)
    torch.testing.assert_close(rows[0, 3], x.mean(0)[:, 1:, 1:].flatten())


class OverwritesItsLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(5, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(F.relu_(self.fc(x)))


def test_a_functional_in_place_activation_is_refused_with_a_sentence():
    net = OverwritesItsLayer()
    projection = Projection(net, (5,))
    flow, loss = flow_of(projection.hooks, net, (5,))
    with pytest.raises(ValueError, match=r"The output of layer 'fc' is overwritten in place .*F\.relu_"):
        projection.backward(flow, loss)


class Zoo(nn.Module):
    """One of everything that cannot be projected, and one layer that never runs."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.normed = weight_norm(nn.Linear(4, 4))
        self.spare = nn.Linear(4, 4)
        self.batch_norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        z = self.embedding(x.abs().long() % 3) * self.scale
        z = self.norm(self.attention(z, z, z, need_weights=False)[0]).mean(1)
        z = self.normed(z)
        if self.training:
            z = z + self.spare(z)
        return self.fc(self.batch_norm(z))


def test_what_cannot_be_projected_is_listed_as_free():
    net = Zoo()
    taps = LayerHooks(net, (6,))
    assert [layer.name for layer in taps.layers] == ["fc"]
    assert set(taps.free) == {name for name, _ in net.named_parameters()} - {"fc.weight", "fc.bias"}
    assert net.training, "the trial pass leaves the mode as it was"


def test_free_parameters_get_their_plain_gradient():
    net = Zoo().eval()
    projection = projection_of(net, (6,))
    flow, loss = flow_of(projection.hooks, net, (6,))
    names = [name for name, _ in net.named_parameters() if not name.startswith("spare")]
    expected = torch.autograd.grad(loss, [net.get_parameter(n) for n in names], retain_graph=True)
    gradients = projection.backward(flow, loss)
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(gradients[net.get_parameter(name)], gradient, rtol=1e-5, atol=1e-5)


def test_a_layer_that_only_runs_in_training_is_free_and_does_not_disturb():
    net = Zoo().train()
    projection = projection_of(net, (6,))
    flow, loss = flow_of(projection.hooks, net, (6,))
    assert net.spare.weight in projection.backward(flow, loss)


def test_layers_frozen_by_the_user_stay_frozen():
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    net[4].weight.requires_grad_(False)
    projection = Projection(net, (5,))
    flow, loss = flow_of(projection.hooks, net, (5,))
    assert set(projection.backward(flow, loss)) == {net[2].weight, net[2].bias, net[4].bias}


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copy_has_taps_of_its_own(copier):
    pair = nn.ModuleDict({"net": nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))})
    pair["projection"] = Projection(pair["net"], (5,))
    other = copier(pair)
    flow, loss = flow_of(other["projection"].hooks, other["net"], (5,))
    assert len(flow.layers) == 2
    gradients = other["projection"].backward(flow, loss)
    assert {id(p) for p in gradients} == {id(p) for p in other["net"].parameters()}
    flow, _ = flow_of(pair["projection"].hooks, other["net"], (5,))
    assert flow.layers == [], "the original's taps do not see the copy"


def test_the_taps_are_off_outside_the_block():
    net = nn.Linear(5, 3)
    taps = LayerHooks(net, (5,))
    flow, _ = flow_of(taps, net, (5,))
    net(torch.zeros(1, 5))
    assert len(flow.inputs) == 1
    assert not net._forward_hooks


class Tripled(nn.Linear):
    def forward(self, x):
        return F.linear(x, 3 * self.weight, self.bias)


def test_a_subclass_that_computes_something_else_is_not_taken_for_a_linear_layer():
    taps = LayerHooks(nn.Sequential(Tripled(3, 4), nn.Linear(4, 2)), (3,))
    assert [layer.name for layer in taps.layers] == ["1"]
    assert list(taps.free) == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(4, 6, 3),
        nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2),
        nn.Conv1d(4, 6, 3, padding="same", padding_mode="reflect", bias=False),
    ],
)
def test_one_dimensional_convolutions_have_gradients_of_rows_and_deltas(layer):
    taps = LayerHooks(layer, (4, 11))
    x = torch.randn(5, 4, 11, generator=torch.Generator().manual_seed(0))
    with taps.watch() as flow:
        loss = layer(x).square().sum()
    (delta,) = torch.autograd.grad(loss, flow.outputs, retain_graph=True)
    product = flow.layers[0].deltas(delta).mT @ flow.layers[0].rows(x)
    torch.testing.assert_close(flow.layers[0].gradient(x, delta), product, rtol=1e-5, atol=1e-4)
    rebuilt = flow.layers[0].split(product)
    for parameter, expected in zip(rebuilt, torch.autograd.grad(loss, list(rebuilt)), strict=True):
        torch.testing.assert_close(rebuilt[parameter], expected, rtol=1e-5, atol=1e-4)


def test_a_second_pass_takes_over_projected_inputs_of_the_same_numbers_only():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    taps, x = LayerHooks(net, (2, 2)), torch.randn(5, 2, 2)
    flows = []
    for given in (x, x, x.clone()):
        with taps.watch() as flow:
            net(given)
        flows.append(flow)
    flows[0].projected.update({0: torch.ones(1), 1: torch.ones(1)})
    for flow in flows[1:]:
        flow.reuse(flows[0])
    assert [set(flow.projected) for flow in flows[1:]] == [{0}, set()]


def test_a_net_that_takes_another_way_at_the_next_pass_takes_over_nothing():
    first, second, last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    class Ways(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.last, self.way = first, second, last, "whole"

        def forward(self, x):
            if self.way == "whole":
                return self.last(self.second(x).relu() + self.first(x).relu())
            return self.last(x) if self.way == "short" else self.last(self.first(x).relu())

    net, x, flows = Ways(), torch.randn(4, 3), {}
    taps = LayerHooks(net, (3,))
    for net.way in ("whole", "other", "short"):
        with taps.watch() as flows[net.way]:
            net(x)
    flows["whole"].projected.update({call: torch.ones(1) for call in range(3)})
    for way in ("other", "short"):
        flows[way].reuse(flows["whole"])
        assert flows[way].projected == {}


@pytest.mark.parametrize("kind", ["vit", "deit", "dinov2"])
def test_layers_of_a_pretrained_net_are_found_in_the_order_in_which_they_run(kind: str) -> None:
    pytest.importorskip("transformers")
    fields = {"model_type": kind, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 16}
    fields |= {"image_size": 32} | ({"use_swiglu_ffn": True} if kind == "dinov2" else {"intermediate_size": 4})
    net = TransformerNet(fields, adapt=2)
    body = Adapted(net, 8, Preprocessing(32, [0.0] * 3, [1.0] * 3))
    ran: list[str] = []
    for name, part in body.named_modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(lambda *_, name=name: ran.append(name))
    body(torch.zeros(1, 3, 32, 32))
    assert [layer.name for layer in LayerHooks(body, (3, 32, 32)).layers] == ran[: len(ran) // 2]
    assert not body.outputs_zeros


def test_images_of_any_size_take_no_memory_while_layers_of_a_pretrained_net_are_looked_for() -> None:
    net = FrozenNet((3, 10**6, 10**6), (4,), seed=0, bodies=[{"net": "efficientnet-lite0", "size": 32}])
    assert [layer.name for layer in LayerHooks(net, net.input_shape).layers] == ["hidden.layers.1"]
