"""BERT (Devlin et al. 2019), the encoder of tokens, in torch alone: importing `transformers` takes longer than a sentence.

A configuration is untrusted: every field is checked against a schema. The numbers equal those of `transformers`' BertModel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets.transformer import Rule, is_allowed

#: What is taken of the last layer: its first token, or the mean of all.
POOLS = ("cls", "mean")
#: The fields that an encoder is built from.
_FIELDS: Mapping[str, Rule] = {
    "vocab_size": (int, 1, 1 << 20),
    "hidden_size": (int, 1, 1 << 12),
    "num_hidden_layers": (int, 1, 48),
    "num_attention_heads": (int, 1, 256),
    "intermediate_size": (int, 1, 1 << 14),
    "max_position_embeddings": (int, 4, 1 << 13),
    "type_vocab_size": (int, 1, 16),
    "layer_norm_eps": (float, 0, 1),
}
#: Fields that others write too, with the values that mean what is built here.
_FIXED: Mapping[str, list[Any]] = {
    "model_type": ["bert"],
    "hidden_act": ["gelu"],
    "position_embedding_type": ["absolute", None],
    "is_decoder": [False],
    "add_cross_attention": [False],
}


def read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a published configuration that an encoder is built from; one of another architecture is refused."""
    kind = config.get("model_type")
    if kind != "bert":
        raise ValueError(
            f"Text models of type {kind!r:.80} are not supported; expected 'bert'. Choose such an encoder."
        )
    for name, known in _FIXED.items():
        if name in config and not is_allowed(config[name], known):
            raise ValueError(f"A bert model has {name}={config[name]!r:.80}; only {known[0]!r} is supported.")
    return check_config({name: config[name] for name in _FIELDS if name in config})


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse fields that an encoder cannot be built from."""
    if {*config} != {*_FIELDS}:
        wrong = min({*config} ^ {*_FIELDS})
        raise ValueError(f"The configuration of a bert model should have {', '.join(_FIELDS)}: see {wrong!r:.80}.")
    for name, rule in _FIELDS.items():
        if not is_allowed(config[name], rule):
            raise ValueError(
                f"A bert model has {name}={config[name]!r:.80}; expected a number from {rule[1]:g} to {rule[2]:g}."
            )
    if config["hidden_size"] % config["num_attention_heads"]:
        raise ValueError(f"hidden_size={config['hidden_size']} is not a multiple of num_attention_heads.")
    return {**config, "layer_norm_eps": float(config["layer_norm_eps"])}


class Layer(nn.Module):
    """Self-attention and two dense layers, each followed by a sum and layer normalisation."""

    def __init__(self, width: int, inner: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.attend = _Dense(width, 3 * width)  # queries, keys and values
        self.mix = _Dense(width, width)
        self.mixed = nn.LayerNorm(width, epsilon)
        self.widen = _Dense(width, inner)
        self.narrow = _Dense(inner, width)
        self.narrowed = nn.LayerNorm(width, epsilon)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the layer's output ``(n, tokens, width)``."""
        parts = self.attend(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2]).transpose(1, 2).flatten(2)
        return self.combine(x, seen)

    def combine(self, x: Tensor, seen: Tensor) -> Tensor:
        """Compute the layer's output from its input and the values that the attention saw, each ``(…, width)``."""
        x = self.mixed(x + self.mix(seen))
        after: Tensor = self.narrowed(x + self.narrow(F.gelu(self.widen(x))))
        return after


class BertEncoder(nn.Module):
    """BERT up to its last layer, over sentences of one length, and the mean of their tokens or the first one.

    Each vector has the norm √width, so its usual size is known without data; encoders of sentences are trained for cosines.
    """

    def __init__(self, config: Mapping[str, Any], pool: str = "mean") -> None:
        super().__init__()
        self.config, self.pool = check_config(config), pool
        if pool not in POOLS:
            raise ValueError(f"pool={pool!r:.80} should be one of {', '.join(POOLS)}.")
        made = self.config
        self.out_features = width = made["hidden_size"]
        self.words = _Table(made["vocab_size"], width)
        self.places = _Table(made["max_position_embeddings"], width)
        self.segments = _Table(made["type_vocab_size"], width)
        self.embedded = nn.LayerNorm(width, made["layer_norm_eps"])
        sizes = width, made["intermediate_size"], made["num_attention_heads"], made["layer_norm_eps"]
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(made["num_hidden_layers"]))

    def embed(self, ids: Tensor) -> Tensor:
        """What the first layer is given, ``(n, tokens, width)``, for numbers of tokens ``(n, tokens)``."""
        x: Tensor = self.words(ids) + self.segments.weight[0] + self.places.weight[: ids.shape[1]]
        x = self.embedded(x)
        return x

    def tokens(self, ids: Tensor) -> Tensor:
        """The last layer ``(n, tokens, width)`` for numbers of tokens ``(n, tokens)``."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors ``(n, width)`` of sentences as numbers of tokens ``(n, tokens)``."""
        tokens = self.tokens(ids)
        return self.scaled(tokens[:, 0] if self.pool == "cls" else tokens.mean(1))

    def scaled(self, pooled: Tensor) -> Tensor:
        """Vectors of the usual norm from what was pooled, ``(n, width)``."""
        return F.normalize(pooled, dim=1) * sqrt(self.out_features)

    @torch.no_grad()
    def load_published(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Load the weights that `transformers` saved; returns the usual mean and std of the features."""
        weights = {name.removeprefix("bert."): tensor for name, tensor in weights.items()}
        for ours, tensor in self.state_dict().items():
            names = _published(ours)
            due = torch.Size([len(tensor) // len(names), *tensor.shape[1:]])
            wrong = [name for name in names if name not in weights or weights[name].shape != due]
            if wrong:
                raise ValueError(
                    f"The weights {wrong[0]!r} are missing or of another shape: they are for another model."
                )
            tensor.copy_(torch.cat([weights[name] for name in names]))
        return torch.zeros(self.out_features), torch.ones(self.out_features)


class _Dense(nn.Linear):
    """A linear layer of zeros: nothing is drawn, since weights are read afterwards."""

    def reset_parameters(self) -> None:
        """Start with zeros."""
        for parameter in self.parameters(recurse=False):
            nn.init.zeros_(parameter)


class _Table(nn.Embedding):
    """A table of zeros."""

    def reset_parameters(self) -> None:
        """Start with zeros."""
        nn.init.zeros_(self.weight)


_EMBEDDINGS = {
    "words": "word_embeddings",
    "places": "position_embeddings",
    "segments": "token_type_embeddings",
    "embedded": "LayerNorm",
}
_LAYER = {
    "attend": ["attention.self.query", "attention.self.key", "attention.self.value"],
    "mix": ["attention.output.dense"],
    "mixed": ["attention.output.LayerNorm"],
    "widen": ["intermediate.dense"],
    "narrow": ["output.dense"],
    "narrowed": ["output.LayerNorm"],
}


def _published(name: str) -> list[str]:
    """The names in `transformers` of the tensors that one of ours is made of."""
    *place, part, kind = name.split(".")
    if not place:
        return [f"embeddings.{_EMBEDDINGS[part]}.{kind}"]
    return [f"encoder.layer.{place[1]}.{each}.{kind}" for each in _LAYER[part]]
