"""Frozen transformers that read prompts, against `transformers`' own models and attention computed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.nets.berts import save_bert
from tests.nets.encoders import TinyEncoder
from tests.nets.vits import save_vit
from torch import Tensor, nn

from cldnet.data.sentences import TEXT_BYTES, encode_sentences
from cldnet.device import generator
from cldnet.nets import MLP, FrozenNet
from cldnet.nets.prompted import PromptedEncoder, _through, prompted_encoder
from cldnet.nets.transformer import TransformerNet

#: Three lengths, in tokens.
SENTENCES = encode_sentences(["hello", "where is it", "my card was stolen or lost", "hello there"])
SHAPE = (3, 32, 32)
WIDTH = 32


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


IMAGES = (60 * drawn(4, *SHAPE, seed=9) + 128).clamp(0, 255)


def text_net(folder: Path, pool: str = "mean") -> FrozenNet:
    return FrozenNet((TEXT_BYTES,), seed=0, bodies=[save_bert(folder, pool=pool, length=16)]).load_published()


def image_net(folder: Path, **options: Any) -> FrozenNet:
    return FrozenNet(SHAPE, seed=0, bodies=[{"net": save_vit(folder), **options}]).load_published()


def save_other(folder: Path, kind: str) -> str:
    """Save a tiny DeiT or DINOv2 with random weights."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    made = getattr(transformers, f"{kind}Config")(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}Model")(made)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(params=["bert", "bert, first token", "vit", "vit, mean", "deit", "dinov2"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FrozenNet, Tensor]:
    """A net of each kind, and inputs."""
    made: dict[str, Any] = {
        "bert": lambda: text_net(tmp_path),
        "bert, first token": lambda: text_net(tmp_path, "cls"),
        "vit": lambda: image_net(tmp_path),
        "vit, mean": lambda: image_net(tmp_path, pool="mean"),
        "deit": lambda: FrozenNet(SHAPE, seed=0, bodies=[save_other(tmp_path, "DeiT")]).load_published(),
        "dinov2": lambda: FrozenNet(SHAPE, seed=0, bodies=[save_other(tmp_path, "Dinov2")]).load_published(),
    }
    return made[request.param](), SENTENCES if "bert" in request.param else IMAGES


def test_without_prompts_the_vectors_are_those_of_the_frozen_net(case: tuple[FrozenNet, Tensor]) -> None:
    net, x = case
    reading = prompted_encoder(net).read(x)
    torch.testing.assert_close(reading.vectors, net(x), rtol=1e-4, atol=1e-4)
    assert reading.prompts.shape == (4, 0, WIDTH)


def test_an_input_is_read_by_itself(case: tuple[FrozenNet, Tensor]) -> None:
    """Shorter sentences are padded in a batch, and that changes neither results nor gradients."""
    net, x = case
    encoder = prompted_encoder(net)
    prompts, prefix = drawn(4, 3, WIDTH), drawn(4, 2, 5, WIDTH, seed=1)
    results: list[list[Tensor]] = []
    for parts in ([slice(0, 4)], [slice(i, i + 1) for i in range(4)]):
        given = [prompts.clone().requires_grad_(), prefix.clone().requires_grad_()]
        read = [encoder.read(x[part], given[0][part], {1: given[1][part]}) for part in parts]
        vectors, tokens = (torch.cat(pieces) for pieces in zip(*read, strict=True))
        ((vectors * drawn(*vectors.shape, seed=2)).sum() + (tokens * drawn(*tokens.shape, seed=3)).sum()).backward()
        results.append([vectors, tokens, *(tensor.grad for tensor in given if tensor.grad is not None)])
    assert len(results[0]) == 4
    for together, alone in zip(*results, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_the_prompts_of_an_input_reach_its_vector_and_nobody_elses(case: tuple[FrozenNet, Tensor]) -> None:
    net, x = case
    encoder = prompted_encoder(net)
    prompts, prefix = drawn(4, 3, WIDTH), drawn(4, 2, 5, WIDTH, seed=1)
    before = encoder.read(x, prompts, {2 % encoder.depth: prefix}).vectors
    for changed in (prompts, prefix):
        changed[1] += drawn(*changed[1].shape, seed=4)
        after = encoder.read(x, prompts, {2 % encoder.depth: prefix}).vectors
        assert [float((now - old).abs().max()) > 1e-3 for now, old in zip(after, before, strict=True)] == [
            *(False, True, False, False)
        ]
        before = after


# Against other code


def attention_by_hand(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


def test_prompts_are_tokens_in_front_of_a_sentences_own_as_transformers_computes_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    net = text_net(tmp_path)
    model = transformers.BertModel.from_pretrained(
        tmp_path, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    prompts: Tensor = drawn(4, 3, WIDTH)
    read = prompted_encoder(net).read(SENTENCES, prompts)
    body: Any = net.body
    for row, ids in enumerate(body.tokenise(SENTENCES)):
        tokens = torch.cat([prompts[row : row + 1], model.embeddings(torch.tensor([ids]))], 1)
        with torch.no_grad():
            last = model.encoder(tokens).last_hidden_state[0]
        torch.testing.assert_close(read.prompts[row], last[:3], rtol=1e-4, atol=1e-4)
        mean = last[3:].mean(0)
        torch.testing.assert_close(read.vectors[row], mean / mean.norm() * WIDTH**0.5, rtol=1e-4, atol=1e-4)


def test_prefixes_are_keys_and_values_that_a_sentences_tokens_also_see(tmp_path: Path) -> None:
    net = text_net(tmp_path)
    prefixes = {layer: drawn(4, 2, 5, WIDTH, seed=layer) for layer in (0, 1)}
    read = prompted_encoder(net).read(SENTENCES, drawn(4, 3, WIDTH), prefixes)
    body: Any = net.body
    bert = body.net
    for row, ids in enumerate(body.tokenise(SENTENCES)):
        tokens = torch.cat([drawn(4, 3, WIDTH)[row], bert.embed(torch.tensor([ids]))[0]])
        for number, layer in enumerate(bert.layers):
            query, key, value = layer.attend(tokens).chunk(3, dim=1)
            key, value = (torch.cat([prefixes[number][row, i], part]) for i, part in enumerate((key, value)))
            heads = [slice(first, first + 8) for first in range(0, WIDTH, 8)]
            seen = torch.cat([attention_by_hand(query[:, h], key[:, h], value[:, h]) for h in heads], 1)
            tokens = layer.mixed(tokens + layer.mix(seen))
            tokens = layer.narrowed(tokens + layer.narrow(nn.functional.gelu(layer.widen(tokens))))
        torch.testing.assert_close(read.prompts[row], tokens[:3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "Dinov2"])
def test_image_models_read_prompts_and_prefixes_as_their_own_forward_does_with_another_attention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = save_vit(tmp_path) if kind == "ViT" else save_other(tmp_path, kind)
    net = FrozenNet(SHAPE, seed=0, bodies=[folder]).load_published()
    prompts, prefixes = drawn(4, 3, WIDTH), {layer: drawn(4, 2, 5, WIDTH, seed=layer) for layer in (0, 2)}
    read = prompted_encoder(net).read(IMAGES, prompts, prefixes)
    layers: Iterator[int] = iter(range(3))

    def slow(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        assert options.get("attn_mask") is None
        layer = next(layers)
        for_heads = (
            prefixes[layer].unflatten(3, (2, 16)).transpose(2, 3) if layer in prefixes else drawn(4, 2, 2, 0, 16)
        )
        keys, values = torch.cat([for_heads[:, 0], key], 2), torch.cat([for_heads[:, 1], value], 2)
        return attention_by_hand(query, keys, values)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", slow)
    body: Any = net.body
    model = body.net.model
    model.embeddings.register_forward_hook(lambda module, inputs, tokens: torch.cat([prompts, tokens], 1))
    last = model(pixel_values=body.preprocess(IMAGES)).last_hidden_state
    assert next(layers, None) is None
    torch.testing.assert_close(read.prompts, last[:, :3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(read.vectors, body.net.pooled(last[:, 3:]), rtol=1e-4, atol=1e-4)


def test_threads_read_with_prefixes_of_their_own(tmp_path: Path) -> None:
    encoder = prompted_encoder(image_net(tmp_path))
    prefixes = [{layer: drawn(4, 2, 5, WIDTH, seed=seed) for layer in (0, 1)} for seed in range(16)]
    alone = [encoder.read(IMAGES, prefixes=each).vectors for each in prefixes]
    with ThreadPoolExecutor(4) as pool:
        together = [*pool.map(lambda each: encoder.read(IMAGES, prefixes=each).vectors, prefixes)]
    for first, second in zip(alone, together, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)


def test_an_attention_that_is_not_torchs_is_not_ignored() -> None:
    layer, tokens = nn.Linear(WIDTH, WIDTH), drawn(1, 4, WIDTH)
    with pytest.raises(RuntimeError, match="prompts would have no effect"):
        _through(layer, tokens, drawn(1, 2, 5, WIDTH))
    assert torch.equal(_through(layer, tokens, None), layer(tokens))


def test_grey_images_and_other_precisions_are_read(tmp_path: Path) -> None:
    net = FrozenNet((32, 32), seed=0, bodies=[save_vit(tmp_path)]).load_published().double()
    read = prompted_encoder(net).read(IMAGES[:, 0], drawn(4, 3, WIDTH).double())
    assert read.vectors.dtype == torch.float64
    vectors = prompted_encoder(net).read(IMAGES[:, 0]).vectors
    torch.testing.assert_close(vectors, net(IMAGES[:, 0]), rtol=1e-9, atol=1e-9)


# What can be read through


def test_a_module_that_reads_prompts_is_its_own_encoder() -> None:
    tiny = TinyEncoder((6,))
    assert isinstance(tiny, PromptedEncoder)
    assert prompted_encoder(tiny) is tiny


def test_a_frozen_transformer_tells_its_sizes(tmp_path: Path) -> None:
    for net, depth in ((text_net(tmp_path / "text"), 2), (image_net(tmp_path / "image"), 3)):
        encoder = prompted_encoder(net)
        assert isinstance(encoder, PromptedEncoder)
        assert (encoder.width, encoder.depth) == (WIDTH, depth)


def test_backbones_that_read_no_prompts_are_refused(tmp_path: Path) -> None:
    vit = save_vit(tmp_path)
    lite = {"net": "efficientnet-lite0", "size": 32}
    refused: list[tuple[nn.Module, str]] = [
        (MLP((6,), (4,), generator=generator(0)), "MLP is none"),
        (FrozenNet(SHAPE, seed=0, bodies=[lite]), "EfficientNetLite is none"),
        (FrozenNet(SHAPE, seed=0, bodies=[vit, vit]), "has 2 nets"),
        (FrozenNet(SHAPE, (8,), seed=0, bodies=[vit]), r"hidden layers behind it, widths=\[8\]"),
        (FrozenNet(SHAPE, seed=0, bodies=[vit], mirror=True), "mirror, adapt, layer or pool='pooled'"),
        *(
            (FrozenNet(SHAPE, seed=0, bodies=[{"net": vit, **option}]), "mirror, adapt, layer or pool='pooled'")
            for option in ({"adapt": 1}, {"layer": 1}, {"pool": "pooled"})
        ),
    ]
    for net, why in refused:
        with pytest.raises(ValueError, match=f"{why}.*. Use the backbone 'minilm' for sentences"):
            prompted_encoder(net)


def test_the_blocks_of_an_image_model_are_its_layers(tmp_path: Path) -> None:
    body: Any = image_net(tmp_path).body
    net: TransformerNet = body.net
    assert [type(block).__name__ for block in net.blocks] == ["ViTLayer"] * 3
