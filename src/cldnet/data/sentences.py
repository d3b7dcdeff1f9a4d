"""Sentences as rows of bytes: UTF-8, padded with zeros to one length, so that all that works on tensors works on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

#: Bytes of a sentence. What a longer text has beyond them is not read: encoders read some 250 words at most.
TEXT_BYTES = 2048
_SURROGATES = re.compile("[\ud800-\udfff]")
#: What to do with text where a model expects numbers.
TEXT_ADVICE = "Make the model with backbone='minilm', which turns sentences into vectors, or encode them first."


def is_sentences(X: Any) -> bool:
    """Whether inputs are a sequence of strings: a list, an array or a column of a table.

    Examples
    --------
    >>> is_sentences(["hello there", "good night"]), is_sentences([[0.0, 1.0]]), is_sentences("hello")
    (True, False, False)
    """
    if isinstance(X, np.ndarray) or hasattr(X, "to_numpy"):
        kind = getattr(getattr(X, "dtype", None), "kind", "O")
        if getattr(X, "ndim", 1) != 1 or kind not in "OUT":
            return False
        return any(isinstance(value, str) for value in X)
    return isinstance(X, list | tuple) and any(isinstance(value, str) for value in X)


def no_sentences(X: Any, why: str) -> str:
    """What to say of inputs that are no sentences, where some are expected, and ``why`` that is."""
    try:
        empty = len(X) == 0
    except TypeError:  # of what has no length
        empty = False
    if empty:
        return "X is empty: give at least one sentence."
    return f'X has no sentences, and {why}. Give a list of strings, or one column of a table, as df["text"].'


def encode_sentences(sentences: Sequence[Any]) -> Tensor:
    """Convert sentences to rows of bytes ``(n, TEXT_BYTES)``, or raise for what is not a sentence.

    A longer text is cut at a character's end. NUL characters become spaces, and halves of surrogate pairs U+FFFD.

    Examples
    --------
    >>> rows = encode_sentences(["hello", "grüß Gott"])
    >>> rows.shape, rows.dtype
    (torch.Size([2, 2048]), torch.uint8)
    >>> decode_sentences(rows)
    ['hello', 'grüß Gott']
    """
    rows = np.zeros((len(sentences), TEXT_BYTES), dtype=np.uint8)
    for place, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            missing = sentence is None or (isinstance(sentence, float) and sentence != sentence)
            what = "missing" if missing else f"a {type(sentence).__name__}, not a string"
            raise ValueError(f"X has a sentence that is {what}, in row {place}. Drop that row, or give its text.")
        plain = _SURROGATES.sub("\ufffd", sentence.replace("\0", " "))
        if not plain.strip():
            raise ValueError(f"X has an empty sentence, in row {place}. Drop that row, or give its text.")
        content = plain.encode()[:TEXT_BYTES]
        if len(content) == TEXT_BYTES:
            content = content.decode(errors="ignore").encode()  # no part of a character
        rows[place, : len(content)] = np.frombuffer(content, dtype=np.uint8)
    return torch.from_numpy(rows)


def decode_sentences(rows: Tensor) -> list[str]:
    """Convert rows of bytes back to sentences. What is not UTF-8 becomes U+FFFD: any bytes have a text."""
    content = rows.detach().cpu().clamp(0, 255).to(torch.uint8).numpy()
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in content]
