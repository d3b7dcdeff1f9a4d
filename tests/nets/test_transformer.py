"""Image models through transformers, on tiny ones with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.nets.vits import PROCESSOR, TINY, save_vit
from torch import Tensor
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.nets import transformer
from cldnet.nets.frozen import Description, build_bodies, build_body
from cldnet.nets.pretrained import Adapted, Concatenated
from cldnet.nets.transformer import TransformerNet, read_source

transformers = pytest.importorskip("transformers")


def images(count: int = 3, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (count, 3, side, side), generator=generator(0), dtype=torch.uint8)


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("layer", [None, -2])
def test_vectors_are_those_of_the_library(tmp_path: Path, pool: str, layer: int | None) -> None:
    body = build_body({"net": save_vit(tmp_path / "vit"), "pool": pool, "layer": layer})
    body.load_published()
    model = transformers.ViTModel.from_pretrained(tmp_path / "vit", add_pooling_layer=False).eval()
    pixels = (images().float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        answer = model(pixel_values=pixels, output_hidden_states=True)
    tokens = answer.last_hidden_state if layer is None else answer.hidden_states[layer]
    expected = F.layer_norm(tokens[:, 0] if pool == "cls" else tokens.mean(1), (32,))
    assert torch.allclose(body(images()), expected, atol=1e-5)


def test_the_same_image_has_the_same_bits_whatever_is_beside_it(tmp_path: Path) -> None:
    body = build_body(save_vit(tmp_path / "vit"))
    body.load_published()
    x = images(11)
    assert torch.equal(body(x)[3:5], body(x[3:5]))


def test_a_description_makes_the_same_net_without_the_folder_and_does_not_tell_its_path(tmp_path: Path) -> None:
    body = build_bodies([save_vit(tmp_path / "one"), {"net": save_vit(tmp_path / "two", 1), "pool": "mean"}])
    assert isinstance(body, Concatenated)
    body.load_published()
    told = json.loads(json.dumps(body.described()))
    assert str(tmp_path) not in json.dumps(told)
    again = build_bodies([Description(each) for each in told])
    again.load_state_dict(body.state_dict())
    assert torch.equal(again(images()), body(images()))
    with pytest.raises(ValueError, match="came from a file, with its weights"):
        again.load_published()


def test_preprocessing_is_that_of_the_models_file(tmp_path: Path) -> None:
    told = {
        "size": {"shortest_edge": 36},
        "crop_size": {"height": 32, "width": 32},
        "do_center_crop": True,
        "resample": 3,
    }
    told |= {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "do_normalize": True}
    _, pixels = read_source(save_vit(tmp_path / "vit", processor=told))
    assert (pixels.size, pixels.shorter, pixels.interpolation) == (32, 36, "bicubic")
    assert pixels.mean == pytest.approx([25.5, 51.0, 76.5])
    assert pixels.spread == pytest.approx([102.0, 127.5, 153.0])
    cut = pixels.resize(images(1, 72).float())
    whole = F.interpolate(images(1, 72).float(), [36, 36], mode="bicubic", antialias=True).clamp(0, 255)
    assert torch.equal(cut, whole[:, :, 2:34, 2:34])


def test_without_such_a_file_images_are_squeezed_to_the_models_size(tmp_path: Path) -> None:
    _, pixels = read_source(save_vit(tmp_path / "vit", processor=None))
    assert (pixels.size, pixels.shorter, pixels.mean) == (32, None, [127.5] * 3)
    assert pixels.resize(torch.zeros(1, 3, 20, 50)).shape == (1, 3, 32, 32)


def test_loading_draws_nothing_and_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name = save_vit(tmp_path / "vit")
    capfd.readouterr()
    before = torch.get_rng_state()
    build_body(name).load_published()
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    folder = Path(save_vit(tmp_path / "vit"))
    state = build_body(str(folder)).net.model.state_dict()
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be read"):
        build_body(str(folder)).load_published()


def test_code_in_the_folder_is_not_run(tmp_path: Path) -> None:
    folder = Path(save_vit(tmp_path / "vit"))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.Evil", "AutoConfig": "evil.EvilConfig"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    build_body(str(folder)).load_published()
    assert not (tmp_path / "ran").exists()


def test_a_folder_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    folder = Path(save_vit(tmp_path / "vit"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(ValueError, match="has no weights for"):
        build_body(str(folder)).load_published()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "max"}, "should be one of cls, mean, pooled"),
        ({"pool": "pooled", "layer": 1}, "Leave layer out"),
        ({"adapt": 4}, "this model has 3"),
        ({"size": 64}, "has no option 'size'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_body({"net": save_vit(tmp_path / "vit"), **options})


def test_a_name_that_is_nowhere_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=OSError))  # as without a network
    with pytest.raises(ValueError, match="There is no image model 'no/such'"):
        build_body("no/such")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="There is no image model"):
        build_body(str(tmp_path / "empty"))
    (tmp_path / "empty" / "config.json").write_text("[1, 2")
    with pytest.raises(ValueError, match="is not JSON"):
        build_body(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    "told",
    [
        {"net": "transformers", "config": {"model_type": "vit", **TINY}, "preprocessing": {"size": 10**6}},
        {
            "net": "transformers",
            "config": {"model_type": "no-such-model"},
            "preprocessing": vars(transformer._preprocessing({}, TINY)),
        },
        {
            "net": "transformers",
            "config": {"model_type": "vit", "hidden_size": "x"},
            "preprocessing": vars(transformer._preprocessing({}, TINY)),
        },
        {"net": 7},
        {},
    ],
)
def test_what_a_stranger_describes_is_refused_in_a_sentence(told: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"invalid preprocessing|'no-such-model' are not supported|hidden_size='x'|No net is named"
    ):
        build_body(Description(told))


@pytest.mark.parametrize("kind", ["deit", "dinov2"])
@pytest.mark.parametrize("pool", ["cls", "pooled"])
def test_vits_of_other_makes_give_the_vectors_of_the_library(tmp_path: Path, kind: str, pool: str) -> None:
    made: Any = {"deit": transformers.DeiTConfig, "dinov2": transformers.Dinov2Config}[kind](**TINY)
    made.num_attention_heads, made.hidden_act = 4, "relu"
    with torch.random.fork_rng(devices=[]):
        model = transformers.AutoModel.from_config(made).eval()
    model.save_pretrained(tmp_path / "model")
    body = build_body({"net": str(tmp_path / "model"), "pool": pool})
    body.load_published()
    pixels = (images().float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        answer = model(pixel_values=pixels)
    expected = answer.last_hidden_state[:, 0] if pool == "cls" else answer.pooler_output
    assert torch.allclose(body(images()), F.layer_norm(expected, (32,)), atol=1e-5)


def test_a_model_of_another_type_is_refused_and_told_what_is_supported(tmp_path: Path) -> None:
    folder = Path(save_vit(tmp_path / "vit"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "convnext"}))
    with pytest.raises(ValueError, match="'convnext' are not supported; supported are deit, dinov2, vit"):
        build_body(str(folder))


def test_what_a_folder_says_beyond_the_net_is_left_out_or_has_no_effect(tmp_path: Path) -> None:
    folder = Path(save_vit(tmp_path / "vit"))
    config = json.loads((folder / "config.json").read_text())
    more = {"id2label": {"0": "cat"}, "hidden_dropout_prob": 0.5}
    odd = {"attn_implementation": "owner/kernel", "dtype": "float16", "head_dim": 3, "note": {"a": 1}}
    (folder / "config.json").write_text(json.dumps({**config, **more, **odd}))
    told = build_body(str(folder)).made["config"]
    assert told == {**{k: v for k, v in config.items() if k not in ("transformers_version", "dtype")}, **more}
    assert build_body(str(folder)).net.model.config._attn_implementation == "sdpa"


def test_an_empty_model_is_zero(tmp_path: Path) -> None:
    assert not any(tensor.any() for tensor in build_body(save_vit(tmp_path / "vit")).net.model.state_dict().values())


def test_only_linear_layers_of_the_last_blocks_learn(tmp_path: Path) -> None:
    body = build_body({"net": save_vit(tmp_path / "vit"), "adapt": 1})
    assert isinstance(body, Adapted)
    names = [name for name, _ in body.named_parameters()]
    assert len(names) == 12  # four of the attention and two of the MLP, with their biases
    assert all("layers.2." in name or "layer.2." in name for name in names)
    body(images()).sum().backward()
    assert all(parameter.grad is not None for parameter in body.parameters())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r'"\.\[pretrained\]"'):
        TransformerNet({"model_type": "vit", **TINY})


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert TransformerNet({"model_type": "vit", **TINY, "layer_norm_eps": 1}).model.layernorm.eps == 1.0


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [({"num_attention_heads": 3}, "not a multiple"), ({"image_size": 1024}, "should give 1 to 64 patches per side")],
)
def test_numbers_that_do_not_go_together_are_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        TransformerNet({"model_type": "vit", **TINY, **fields})


def test_images_of_another_size_than_the_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gives images of side 64, and this vit model takes side 32"):
        build_body(save_vit(tmp_path / "vit", processor={**PROCESSOR, "size": {"height": 64, "width": 64}}))
