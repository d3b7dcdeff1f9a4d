"""Nets, input scaling, feature maps and fingerprints."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nets.encoders import PROMPTED, backbone_for
from torch import nn

from cldnet.data.sentences import TEXT_BYTES
from cldnet.device import generator
from cldnet.methods import METHODS, build_learner
from cldnet.methods.learner import Setting
from cldnet.nets import BACKBONES, CNN, MLP, RandomReLU, build_backbone, out_features, takes_text
from cldnet.nets.features import InputScale
from cldnet.nets.fingerprint import Fingerprint

relaxed = settings(deadline=None, max_examples=30)
seeds = st.integers(0, 2**31 - 1)


# MLP and CNN


def test_the_mlp_is_its_formula():
    net = MLP((2, 3), widths=(4, 5), generator=generator(0))
    x = torch.randn(7, 2, 3, generator=generator(1))
    first, second = (layer for layer in net.modules() if isinstance(layer, nn.Linear))
    hidden = (x.reshape(7, 6) @ first.weight.T + first.bias).clamp_min(0)
    torch.testing.assert_close(net(x), (hidden @ second.weight.T + second.bias).clamp_min(0))


def test_the_mlp_has_no_biases_if_asked():
    net = MLP((6,), widths=(4, 5), generator=generator(0), bias=False)
    assert [name.split(".")[-1] for name, _ in net.named_parameters()] == ["weight", "weight"]


@pytest.mark.parametrize("shape", [(28, 28), (1, 28, 28), (3, 32, 32), (4, 9, 17)])
def test_the_cnn_takes_images_with_and_without_channels(shape):
    net = CNN(shape, channels=(4, 5, 6), hidden=(7, 8), generator=generator(0)).eval()
    assert net(torch.zeros(2, *shape)).shape == (2, 8)
    assert not any("bias" in name for name, _ in net.named_parameters())


def test_the_cnn_of_aop_has_its_own_kernels():
    net = CNN((3, 32, 32), kernel_sizes=(4, 3, 2), hidden=(16,), generator=generator(0)).eval()
    kernels = [layer.kernel_size for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert kernels == [(4, 4), (3, 3), (2, 2)]
    assert net(torch.zeros(1, 3, 32, 32)).shape == (1, 16)


def test_the_cnn_pads_by_repeating_the_border():
    net = CNN((8, 8), channels=(2,), kernel_sizes=(3,), hidden=(), generator=generator(0)).eval()
    maps = net.layers[0](torch.ones(1, 1, 8, 8))
    torch.testing.assert_close(maps, maps[..., :1, :1].expand_as(maps))


@pytest.mark.parametrize("shape", [(2, 2), (3, 3, 9)])
def test_too_small_images_are_refused(shape):
    with pytest.raises(ValueError, match=r"too small for 3 convolutions. Use an MLP\."):
        CNN(shape, kernel_sizes=(4, 4, 4), generator=generator(0))


def test_vectors_are_refused_by_the_cnn():
    with pytest.raises(ValueError, match="needs images"):
        CNN((64,), generator=generator(0))


def test_dropout_is_off_in_evaluation():
    net = CNN((8, 8), channels=(4, 4, 4), hidden=(6,), dropout=0.5, generator=generator(0)).eval()
    x = torch.rand(3, 8, 8, generator=generator(1))
    assert torch.equal(net(x), net(x))


def test_an_unknown_backbone_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"Unknown backbone 'mpl'. Use one of \['cnn', 'efficientnet-lite0', "):
        build_backbone("mpl", (4,), seed=0)


@pytest.mark.parametrize("name", sorted({*BACKBONES} - {"patches", "linear", "hashed"}))  # which draw none
def test_weights_come_from_the_seed_alone(name):
    options = {
        "mlp": {"widths": (8,)},
        "cnn": {"channels": (2, 2, 2), "hidden": (8,)},
        "lenet": {"channels": (2, 2), "hidden": (4, 8)},
        "resnet": {"width": 2},
        "frozen": {"widths": (8,)},
    }
    shape = (TEXT_BYTES,) if takes_text(name) else (8, 8)
    nets = [build_backbone(name, shape, seed, options.get(name, {"features": 8})) for seed in (1, 1, 2)]
    first, same, other = (torch.cat([t.flatten().double() for t in net.state_dict().values()]) for net in nets)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("method", METHODS)
def test_building_touches_no_global_randomness(method):
    before = torch.get_rng_state()
    build_learner(method, Setting((8, 8), 4, seed=0), **backbone_for(method, (8, 8)))
    if method not in ("exact", *PROMPTED):
        build_learner(method, Setting((8, 8), 4, seed=0), backbone="cnn")
    assert torch.equal(before, torch.get_rng_state())


def test_out_features_leaves_the_mode_and_takes_any_precision():
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.BatchNorm1d(3)).double()
    assert out_features(net, (4,)) == 3
    assert net.training
    assert int(net[2].num_batches_tracked) == 0


def test_a_backbone_that_gives_maps_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"returns shape \(1, 2, 4, 4\).* nn\.Flatten\(\)"):
        out_features(nn.Conv2d(1, 2, 3, padding=1), (1, 4, 4))


# Input scaling


@relaxed
@given(st.lists(st.integers(0, 4), min_size=2, max_size=12).filter(any), seeds)
def test_weights_of_the_scaling_count_as_repetitions(weights, seed):
    x = 3 + 2 * torch.randn(len(weights), 4, generator=generator(seed))
    weight = torch.tensor(weights)
    weighted, repeated = InputScale((4,)), InputScale((4,))
    weighted.fit(x, weight.float())
    repeated.fit(x.repeat_interleave(weight, 0))
    torch.testing.assert_close(weighted.mean, repeated.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(weighted.spread, repeated.spread, rtol=1e-6, atol=1e-6)


def test_scaled_training_vectors_have_mean_zero_and_spread_one():
    x = 1e6 + torch.randn(50, 3, generator=generator(0), dtype=torch.float64) * torch.tensor([10.0, 100.0, 3.0])
    scale = InputScale((3,), torch.float64)
    scale.fit(x)
    scaled = scale(x)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3, dtype=torch.float64), rtol=1e-6, atol=0)
    # The mean is rounded to float32: of 1e6 that is 1/32 at most, in units of the spread.
    assert (scaled.mean(0) * scale.spread).abs().max() <= 1 / 32


def test_a_feature_that_never_varied_cannot_explode_later():
    x = torch.randn(30, 3, generator=generator(0)) * 5
    x[:, 1] = 7.3
    scale = InputScale((3,))
    scale.fit(x)
    assert torch.allclose(scale(x)[:, 1], torch.zeros(30), atol=1e-6)
    later = scale(torch.tensor([[0.0, 12.3, 0.0]]))
    assert 0.5 < float(later[0, 1]) < 2, "5 off, in units of the other features' spread"


def test_constant_inputs_are_safe():
    scale = InputScale((2,))
    scale.fit(torch.full((5, 2), 3.0))
    assert torch.equal(scale(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.0, 1.0]]))


@pytest.mark.parametrize("shape", [(6, 5), (3, 6, 5), (1, 6, 5), (2, 1, 5), (2, 1, 1)])
def test_images_have_one_scale_a_channel(shape):
    x = torch.randn(20, *shape, generator=generator(0), dtype=torch.float64) * 3 + 2
    scale = InputScale(shape, torch.float64)
    scale.fit(x)
    channels = x.unsqueeze(1) if len(shape) == 2 else x
    for c in range(channels.shape[1]):
        mean, spread = channels[:, c].mean(), channels[:, c].std(correction=0)
        scaled = scale(x) if len(shape) == 2 else scale(x)[:, c]
        raw = x if len(shape) == 2 else x[:, c]
        torch.testing.assert_close(scaled, (raw - mean) / spread, rtol=1e-5, atol=1e-6)
    assert scale.mean.numel() == channels.shape[1]


def test_scaling_takes_bytes():
    x = torch.randint(0, 256, (20, 4), generator=generator(0), dtype=torch.uint8)
    scale = InputScale((4,))
    scale.fit(x)
    torch.testing.assert_close(scale(x), scale(x.float()))
    assert scale(x).dtype == torch.float32


# Random ReLU features


def fitted(shape=(6,), features=50, seed=0, **options):
    features = RandomReLU(shape, features, seed=seed, **options)
    features.fit(torch.randn(200, *shape, generator=generator(9)))
    return features


def test_features_are_whole_numbers_up_to_127_with_a_constant_at_the_end():
    features = fitted()
    h = features(10 * torch.randn(100, 6, generator=generator(1)))
    assert h.shape == (100, 51)
    assert torch.equal(h, h.round())
    assert h.min() == 0
    assert h.max() == 127
    assert (h[:, -1] == 127).all()


def test_features_are_relu_of_a_random_affine_map():
    features = fitted(features=300)
    x = torch.randn(50, 6, generator=generator(2), dtype=torch.float64)
    weight = features.weight.double()
    x[:5] *= 20  # far out
    scaled = (x - features.scale.mean) / features.scale.spread
    scaled = torch.where(scaled.abs() > 8, scaled.sign() * (8 + (scaled.abs() - 8) / 16), scaled)
    expected = (scaled @ weight[:, :-1].T + weight[:, -1]).clamp_min(0) * features.step * (32767 / 16)
    torch.testing.assert_close(features(x)[:, :-1].double(), expected.clamp_max(127), rtol=0, atol=0.6)


@pytest.mark.parametrize("sizes", [(1,) * 40, (7,) * 5 + (5,), (40,)])
@pytest.mark.parametrize("shape", [(6,), (3, 16, 16)])
def test_a_row_has_the_same_features_in_any_company_to_the_last_bit(sizes, shape):
    features = fitted(shape)
    x = torch.randn(40, *shape, generator=generator(3))
    alone = torch.cat([features(part) for part in x.split(sizes)])
    assert torch.equal(alone, features(x))
    order = torch.randperm(40, generator=generator(0))
    assert torch.equal(features(x[order]), features(x)[order])


def test_the_id_of_a_map_is_that_of_its_content():
    mark = fitted().map_id
    assert mark == fitted().map_id
    assert mark != fitted(seed=1).map_id
    assert mark != fitted(features=51).map_id
    refitted = fitted()
    refitted.fit(torch.randn(200, 6, generator=generator(10)))
    assert mark != refitted.map_id


def test_fitting_with_weights_counts_as_repetition():
    x = torch.randn(30, 6, generator=generator(0))
    weight = torch.arange(30) % 4
    weighted, repeated = RandomReLU((6,), 20, seed=0), RandomReLU((6,), 20, seed=0)
    weighted.fit(x, weight.float())
    repeated.fit(x.repeat_interleave(weight, 0))
    assert (weighted(x) - repeated(x)).abs().max() <= 1
    torch.testing.assert_close(weighted.step, repeated.step, rtol=1e-5, atol=0)


def test_a_module_in_front_is_frozen_and_in_evaluation():
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    features = RandomReLU((4,), 20, seed=0, net=net)
    x = torch.randn(30, 6, generator=generator(0))
    features.train()
    features.fit(x)
    assert not any(module.training for module in features.modules())
    assert not any(parameter.requires_grad for parameter in features.parameters())
    plain = RandomReLU((4,), 20, seed=0)
    with torch.no_grad():
        plain.fit(net(x))
        assert torch.equal(features(x), plain(net(x)))


# Fingerprints


def test_a_fingerprint_knows_its_module_and_no_other():
    torch_net = build_backbone("mlp", (4,), seed=0, options={"widths": (5,)})
    mark = Fingerprint.from_json(Fingerprint.of(torch_net, (4,)).to_json())
    mark.check_names(torch_net)
    mark.check_output(torch_net)
    with pytest.raises(ValueError, match="is not the one that the model was trained with"):
        mark.check_names(build_backbone("mlp", (4,), seed=0, options={"widths": (6,)}))
    same_weights = nn.Module()
    same_weights.layers = torch_net.layers
    same_weights.forward = lambda x: torch_net(x) * 2
    mark.check_names(same_weights)
    with pytest.raises(ValueError, match="but another output"):
        mark.check_output(same_weights)


def test_taking_a_fingerprint_changes_nothing():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout()).double()
    before, rng = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fingerprint.of(net, (4,)).check_output(net)
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())
