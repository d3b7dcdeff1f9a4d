"""Small text encoders in a folder, as `transformers` and `sentence_transformers` save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

_PHRASES = "hello there good morning my card was stolen lost where is it play some music turn up the song bye now"
WORDS = _PHRASES.split()
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TINY |= {"max_position_embeddings": 24}


def vocabulary() -> dict[str, Any]:
    """A ``tokenizer.json`` with a few words and all letters."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *"abcdefghijklmnopqrstuvwxyz"]
    tokens += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    special = {name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]")]
    return {
        "version": "1.0",
        "truncation": {"max_length": 5, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": [],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], {"Sequence": {"id": "A", "type_id": 0}}, ends[1]],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": special,
        },
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: number for number, token in enumerate(tokens)},
        },
    }


def save_bert(folder: Path, seed: int = 0, *, pool: str | None = None, length: int | None = None) -> str:
    """Save a tiny BERT with random weights and a vocabulary; returns its path."""
    transformers = pytest.importorskip("transformers")
    told = vocabulary()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = transformers.BertConfig(**TINY, vocab_size=len(told["model"]["vocab"]))
        model = transformers.BertModel(config, add_pooling_layer=False)
        for parameter in model.parameters():  # random weights of the usual size see next to nothing of a sentence
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(told))
    if pool is not None:
        modes = {"pooling_mode_cls_token": pool == "cls", "pooling_mode_mean_tokens": pool == "mean"}
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(
            json.dumps({**modes, "pooling_mode_max_tokens": pool == "max"})
        )
    if length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    return str(folder)
