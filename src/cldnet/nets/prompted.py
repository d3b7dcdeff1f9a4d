"""Frozen transformers that read prompts beside an input: for methods that learn the prompts and nothing in the transformer.

A prompt has one of two forms. *Tokens* are put in front of an input's own tokens, behind the embedding: they have no position.
*Prefixes* are put in front of the keys and values that a layer has computed, as in prefix tuning (Li, Liang 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from cldnet.nets.bert import Layer
from cldnet.nets.frozen import FrozenNet
from cldnet.nets.pretrained import Concatenated, Pretrained
from cldnet.nets.sentences import PretrainedText
from cldnet.nets.transformer import TransformerNet

#: Prefixes ``(n, 2, length, width)`` by the number of their layer: for each input, those of the keys and those of the values.
Prefixes = Mapping[int, Tensor]
_NONE: Prefixes = MappingProxyType({})


class Reading(NamedTuple):
    """What a transformer makes of inputs and prompts.

    ``vectors`` are those that it makes of the inputs' own tokens ``(n, out_features)``; ``prompts`` is its last layer at the
    prompts' tokens ``(n, length, width)``.
    """

    vectors: Tensor
    prompts: Tensor


@runtime_checkable
class PromptedEncoder(Protocol):
    """A frozen transformer that reads prompts. A module that is one can be the backbone of methods that learn prompts."""

    @property
    def width(self) -> int:
        """Numbers of a token, and of a key or a value, all heads together."""

    @property
    def depth(self) -> int:
        """Number of layers."""

    def read(self, x: Tensor, prompts: Tensor | None = None, prefixes: Prefixes = _NONE) -> Reading:
        """Read inputs with tokens ``(n, length, width)`` in front of their own, and with prefixes."""


def prompted_encoder(net: nn.Module) -> PromptedEncoder:
    """Return what reads prompts through a backbone, or say why the backbone cannot.

    Parameters
    ----------
    net : nn.Module
        A `FrozenNet` of one transformer and no hidden layers, or a module that is a `PromptedEncoder`.
    """
    if isinstance(net, FrozenNet):
        return _encoder_of(net)
    if isinstance(net, PromptedEncoder):
        return net
    raise _refusal(f"{type(net).__name__} is none")


def _encoder_of(net: FrozenNet) -> PromptedEncoder:
    body = net.body
    if isinstance(body, Concatenated):
        raise _refusal(f"this backbone has {len(body.bodies)} nets")
    if net.widths:
        raise _refusal(f"this backbone has hidden layers behind it, widths={list(net.widths)}")
    if isinstance(body, PretrainedText):
        return PromptedBert(body)
    if not isinstance(body, Pretrained) or not isinstance(body.net, TransformerNet):
        raise _refusal(f"{type(body.net).__name__} is none")
    if body.mirror or body.net.adapt or body.net.layer is not None or body.net.pool == "pooled":
        raise _refusal("this backbone has mirror, adapt, layer or pool='pooled', which do not go with prompts")
    return PromptedViT(body)


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"Prompts are for one frozen transformer, and {why}. Use the backbone 'minilm' for sentences, or 'frozen' with "
        "bodies=[…], the folder of one ViT, for images."
    )


@dataclass(frozen=True)
class PromptedBert:
    """A BERT over sentences of any length: rows of tokens are computed without padding, which only the attention sees."""

    body: PretrainedText

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.body.out_features

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.body.net.layers)

    def read(self, x: Tensor, prompts: Tensor | None = None, prefixes: Prefixes = _NONE) -> Reading:
        """Read sentences as rows of bytes."""
        net, where = self.body.net, self.body.like.device
        sentences = [torch.tensor(ids) for ids in self.body.tokenise(x)]
        ids = nn.utils.rnn.pad_sequence(sentences, batch_first=True).to(where)
        lengths = torch.tensor([len(each) for each in sentences], device=where)
        tokens = net.embed(ids)
        count = 0
        if prompts is not None:
            tokens, count = torch.cat([prompts.to(where), tokens], 1), prompts.shape[1]
        batch = _Batch(torch.arange(tokens.shape[1], device=where) < (count + lengths)[:, None])
        rows = batch.pack(tokens)
        for number, layer in enumerate(net.layers):
            rows = _attend(layer, rows, batch, prefixes.get(number))
        tokens = batch.unpack(rows)
        own = tokens[:, count:]
        pooled = own[:, 0] if net.pool == "cls" else own.sum(1)  # the mean, since all vectors get one norm
        return Reading(net.scaled(pooled).to(x.device), tokens[:, :count].to(x.device))


class _Batch:
    """Sentences of several lengths, as rows of all their tokens or, padded with zeros, as ``(n, longest, width)``."""

    def __init__(self, present: Tensor) -> None:
        self.present, self.places = present, present.flatten().nonzero()[:, 0]
        self.padded = len(self.places) < present.numel()

    def pack(self, tokens: Tensor) -> Tensor:
        rows = tokens.flatten(0, 1)
        return rows.index_select(0, self.places) if self.padded else rows

    def unpack(self, rows: Tensor) -> Tensor:
        if self.padded:
            rows = rows.new_zeros(self.present.numel(), rows.shape[1]).index_copy(0, self.places, rows)
        tokens: Tensor = rows.unflatten(0, self.present.shape)
        return tokens

    def mask(self, prefix: int) -> Tensor | None:
        """Which keys may be seen ``(n, 1, 1, prefix + longest)``: all but the padding."""
        return F.pad(self.present, (prefix, 0), value=True)[:, None, None] if self.padded else None


def _attend(layer: Layer, rows: Tensor, batch: _Batch, prefix: Tensor | None) -> Tensor:
    """Compute a layer's output for rows of tokens."""
    query, key, value = batch.unpack(layer.attend(rows)).unflatten(2, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    length = 0
    if prefix is not None:
        key, value, length = *_prefixed(key, value, prefix), prefix.shape[2]
    seen = F.scaled_dot_product_attention(query, key, value, attn_mask=batch.mask(length))
    return layer.combine(rows, batch.pack(seen.transpose(1, 2).flatten(2)))


def _prefixed(key: Tensor, value: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
    """Put a prefix in front of keys and values ``(n, heads, tokens, width / heads)``."""
    before = prefix.to(key.device).unflatten(3, (key.shape[1], -1)).transpose(2, 3)
    return torch.cat([before[:, 0], key], 2), torch.cat([before[:, 1], value], 2)


@dataclass(frozen=True)
class PromptedViT:
    """An image model of `transformers`, through its own modules."""

    body: Pretrained

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.body.out_features

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.body.net.blocks)

    def read(self, x: Tensor, prompts: Tensor | None = None, prefixes: Prefixes = _NONE) -> Reading:
        """Read images ``(n, 3, height, width)`` or ``(n, height, width)``."""
        net, where = self.body.net, self.body.like.device
        tokens: Tensor = net.model.embeddings(self.body.preprocess((x.unsqueeze(1) if x.ndim == 3 else x).to(where)))
        count = 0
        if prompts is not None:
            tokens, count = torch.cat([prompts.to(where), tokens], 1), prompts.shape[1]
        for number, block in enumerate(net.blocks):
            tokens = _through(block, tokens, prefixes.get(number))
        tokens = net.model.layernorm(tokens)
        return Reading(net.pooled(tokens[:, count:]).to(x.device), tokens[:, :count].to(x.device))


def _through(block: nn.Module, tokens: Tensor, prefix: Tensor | None) -> Tensor:
    """Compute the output of an image model's layer."""
    if prefix is None:
        return block(tokens)  # type: ignore[no-any-return]
    attention = _PrefixedAttention(prefix)
    with attention:
        tokens = block(tokens)
    if not attention.used:
        raise RuntimeError("This version of transformers does not use torch's attention: prompts would have no effect.")
    return tokens


class _PrefixedAttention(TorchFunctionMode):
    """Within it, torch's attention sees a prefix, in this thread only.

    How the classes of `transformers` name their projections and hand keys and values on changes from version to version, but
    all of them end in this function.
    """

    def __init__(self, prefix: Tensor) -> None:
        super().__init__()
        self.prefix, self.used = prefix, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            query, key, value, *rest = args
            args, self.used = (query, *_prefixed(key, value, self.prefix), *rest), True
        return func(*args, **(kwargs or {}))
