"""Sentences as rows of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cldnet.data.labels import Inputs
from cldnet.data.sentences import TEXT_BYTES, decode_sentences, encode_sentences, is_sentences

SAMPLES = ["hello there", "grüß Gott", "日本語の文", "🙂 emoji"]


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60), max_size=5))
def test_sentences_come_back_as_they_were(sentences: list[str]) -> None:
    sentences = [each for each in sentences if each.strip()]
    assert decode_sentences(encode_sentences(sentences)) == sentences


@pytest.mark.parametrize("character", ["a", "é", "語", "🙂"])
@pytest.mark.parametrize("before", range(4))
def test_a_long_text_is_cut_at_the_end_of_a_character(character: str, before: int) -> None:
    text = "x" * before + character * TEXT_BYTES
    (found,) = decode_sentences(encode_sentences([text]))
    assert text.startswith(found)
    assert TEXT_BYTES - len(character.encode()) < len(found.encode()) <= TEXT_BYTES


def test_a_text_of_just_that_length_is_whole() -> None:
    text = "é" * (TEXT_BYTES // 2)
    assert decode_sentences(encode_sentences([text])) == [text]


def test_nul_becomes_a_space_and_half_a_pair_the_replacement() -> None:
    assert decode_sentences(encode_sentences(["a\0b", "a\ud800b"])) == ["a b", "a\ufffdb"]


def test_any_bytes_have_a_text() -> None:
    rows = torch.randint(0, 256, (20, TEXT_BYTES), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert all(isinstance(text, str) for text in decode_sentences(rows))
    assert decode_sentences(rows.double()) == decode_sentences(rows)


@pytest.mark.parametrize("wrong", [None, float("nan"), 3, b"bytes", ["nested"], pd.NA, "", " \t\n", "\0"])
def test_what_is_no_sentence_is_refused_with_its_row(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"in row 1\. Drop that row"):
        encode_sentences(["fine", wrong])


@pytest.mark.parametrize(
    "X",
    [
        SAMPLES,
        tuple(SAMPLES),
        np.array(SAMPLES),
        np.array(SAMPLES, dtype=object),
        pd.Series(SAMPLES),
        pd.Series(SAMPLES, dtype="category"),
    ],
)
def test_sequences_of_strings_are_sentences(X: Any) -> None:
    assert is_sentences(X)
    assert decode_sentences(encode_sentences(X)) == SAMPLES


@pytest.mark.parametrize(
    "X", [[], "text", None, [[1.0]], np.zeros((2, 2)), np.array(["a"])[:, None], pd.DataFrame({"a": ["b"]}), [1, 2], 3]
)
def test_other_things_are_not(X: Any) -> None:
    assert not is_sentences(X)


@pytest.mark.parametrize(
    "change",
    [{"text": 1.5}, {"text": "yes"}, {"text": True, "shape": [3]}, {"text": True, "pixels": False}],
)
def test_a_file_cannot_say_that_other_inputs_are_sentences(change: dict[str, Any]) -> None:
    told = Inputs((TEXT_BYTES,), None, True, 255.0, text=True).to_json()
    assert Inputs.from_json({**told, "shape": [TEXT_BYTES]}).text
    with pytest.raises(ValueError, match="text="):
        Inputs.from_json({**told, "shape": [TEXT_BYTES], **change})


def test_inputs_that_are_no_sentences_are_described_as_before() -> None:
    assert "text" not in Inputs((3,), None, False, 1.0).to_json()
