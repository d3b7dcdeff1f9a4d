"""Tokens of sentences, through the package `tokenizers`, from a vocabulary that may come out of a stranger's file.

A vocabulary is the JSON of a ``tokenizer.json``. It is untrusted: only known components are allowed, none of which takes a
pattern of its author's, and neither padding nor truncation is taken from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

#: Bytes that a vocabulary may take.
MAX_BYTES = 1 << 25
_MAX_DEPTH = 8  # of components within each other
_MAX_WORD = 256  # characters of a word: a WordPiece takes the square of them
_MODELS = {"WordPiece", "WordLevel", "BPE", "Unigram"}
_PARTS: Mapping[str, set[str]] = {
    "normalizer": {
        *("Sequence", "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "Strip", "StripAccents"),
    },
    "pre_tokenizer": {
        *("Sequence", "BertPreTokenizer", "ByteLevel", "Digits", "Metaspace", "Punctuation", "Whitespace"),
        "WhitespaceSplit",
    },
    "post_processor": {"Sequence", "TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel"},
}
_KEPT = ("version", "added_tokens", *_PARTS, "model")


def read_vocabulary(content: bytes) -> Tensor:
    """Read a ``tokenizer.json`` of a published model as a tensor of bytes, without what is not needed to tokenise."""
    return torch.frombuffer(bytearray(_checked(content).encode()), dtype=torch.uint8)


class Tokens:
    """The tokens of a vocabulary: sentences to numbers below ``size``, at most ``length`` of them.

    Parameters
    ----------
    vocabulary : Tensor
        The bytes of a ``tokenizer.json``, as untrusted input.
    size : int
        How many tokens the encoder knows.
    length : int
        Tokens of a sentence at most; what is beyond is cut.
    """

    def __init__(self, vocabulary: Tensor, size: int, length: int) -> None:
        text, library = _checked(vocabulary.cpu().numpy().tobytes()), _library()
        self.size, self.length = size, length
        with _describe_failure("its vocabulary cannot be used"):
            self.tokenizer: Any = library.Tokenizer.from_str(text)
            self.tokenizer.enable_truncation(length)

    def encode(self, sentence: str) -> list[int]:
        """Numbers of a sentence's tokens."""
        with _describe_failure(f"its vocabulary cannot tokenise {sentence!r:.80}"):
            ids: list[int] = self.tokenizer.encode(sentence).ids
        if not 1 <= len(ids) <= self.length or max(ids) >= self.size:
            raise ValueError(
                f"The encoder's vocabulary gives {len(ids)} tokens up to number {max(ids, default=0)} for {sentence!r:.80}; "
                f"expected 1 to {self.length} tokens below {self.size}. Load a good copy of the encoder."
            )
        return ids


def _library() -> Any:
    """Import `tokenizers`, or say how to install it."""
    try:
        import tokenizers  # noqa: PLC0415  (an extra)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f'Models of sentences need the package tokenizers: pip install ".[text]" in a clone of CLDNet ({error}).'
        ) from error
    return tokenizers


@contextmanager
def _describe_failure(what: str) -> Iterator[None]:
    """Turn errors of the library into a ValueError, and its panics too, which are no `Exception`."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"The text encoder is damaged: {what} ({error!s:.200}). Load a good copy of it.") from error


def _checked(content: bytes) -> str:
    """Parse a vocabulary and write it again, so that what was checked is what is used: its known parts, each once.

    Unknown components are refused, and settings that cost much time or give random tokens.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"A vocabulary takes {len(content):,} bytes; expected at most {MAX_BYTES:,}.")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"A vocabulary is not JSON ({error!s:.200}).") from error
    model = found.get("model") if isinstance(found, dict) else None
    if not isinstance(model, dict):
        raise ValueError("A vocabulary should be a JSON object with a model, as in tokenizer.json.")
    for part, known in _PARTS.items():
        _check_part(part, found.get(part), known)
    kind, word = model.get("type"), model.get("max_input_chars_per_word", 1)
    if not isinstance(kind, str) or kind not in _MODELS:
        raise ValueError(
            f"A vocabulary has a model of type {kind!r:.80}; expected one of {', '.join(sorted(_MODELS))}."
        )
    if model.get("dropout") is not None or type(word) is not int or not 1 <= word <= _MAX_WORD:
        raise ValueError(
            f"A vocabulary has dropout={model.get('dropout')!r:.80} and max_input_chars_per_word={word!r:.80}; expected none, "
            f"and at most {_MAX_WORD}."
        )
    kept = {name: found.get(name) for name in _KEPT}
    return json.dumps({**kept, "truncation": None, "padding": None, "decoder": None}, ensure_ascii=False)


def _check_part(part: str, found: Any, known: set[str], depth: int = 0) -> None:
    """Refuse a component that is not known, or one that takes a pattern, within others too."""
    if found is None:
        return
    kind = found.get("type") if isinstance(found, Mapping) else None
    if not isinstance(kind, str) or kind not in known or "pattern" in found or depth > _MAX_DEPTH:
        raise ValueError(f"A vocabulary has a {part} of type {kind!r:.80}; expected one of {', '.join(sorted(known))}.")
    if kind == "Sequence":
        inner = [each for name, each in found.items() if name != "type"]
        for parts in inner:
            if not isinstance(parts, list):
                raise ValueError(f"A vocabulary has a {part} that is not a list of components.")
            for each in parts:
                _check_part(part, each, known, depth + 1)
