"""A tiny frozen transformer that reads prompts, over inputs of any shape: what minilm is for sentences, in a test."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.nets.prompted import Reading

#: Methods that need such a backbone.
PROMPTED = ("l2p", "dualprompt")


class TinyEncoder(nn.Module):
    """Three tokens of an input, by fixed random weights, and layers of attention and one dense layer."""

    def __init__(self, input_shape: tuple[int, ...], width: int = 12, depth: int = 5, heads: int = 2) -> None:
        super().__init__()
        self.width, self.depth, self.heads, draw = width, depth, heads, generator(0)
        for name, shape in {
            "table": (prod(input_shape), 3 * width),
            "attend": (depth, width, 3 * width),
            "dense": (depth, width, width),
        }.items():
            self.register_buffer(name, torch.randn(shape, generator=draw) / shape[-2] ** 0.5)

    def read(self, x: Tensor, prompts: Tensor | None = None, prefixes: Mapping[int, Tensor] | None = None) -> Reading:
        tokens = (x.flatten(1) @ self.get_buffer("table")).unflatten(1, (3, self.width)).tanh()
        count = 0 if prompts is None else prompts.shape[1]
        tokens = tokens if prompts is None else torch.cat([prompts, tokens], 1)
        for layer in range(self.depth):
            query, key, value = (tokens @ self.get_buffer("attend")[layer]).chunk(3, dim=2)
            if prefixes is not None and layer in prefixes:
                key, value = (torch.cat([prefixes[layer][:, i], part], 1) for i, part in enumerate((key, value)))
            heads = [part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (query, key, value)]
            seen = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
            tokens = F.layer_norm(tokens + seen @ self.get_buffer("dense")[layer], (self.width,))
        return Reading(tokens[:, count:].mean(1), tokens[:, :count])

    def forward(self, x: Tensor) -> Tensor:
        return self.read(x).vectors


def backbone_for(method: str, input_shape: tuple[int, ...]) -> dict[str, Any]:
    """The backbone to build a method with over vectors or small images, if its default does not take them."""
    return {"backbone": TinyEncoder(input_shape)} if method in PROMPTED else {}
