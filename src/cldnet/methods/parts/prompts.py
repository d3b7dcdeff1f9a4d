"""What methods share that learn prompts for a frozen transformer: queries select prompts by keys, a head reads the output.

For an input x with the query q(x), the transformer's vector of it without prompts, and the selected keys ``k``, the loss is
``CE + λ Σ_k (1 − cos(q(x), k))``, with the cross-entropy over the classes of the present task only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import FINITE_NOT_NEGATIVE, POSITIVE, Config, LogUniform
from cldnet.methods.gradient import clip_gradients, weighted_mean
from cldnet.methods.learner import Batch, Learner, Setting, TaskData
from cldnet.nets import out_features
from cldnet.nets.frozen import count_weights
from cldnet.nets.layers import linear
from cldnet.nets.prompted import PromptedEncoder, prompted_encoder

#: Inputs that are read at once when they are only scored.
_BLOCK = 64


@dataclass(frozen=True)
class PromptConfig(Config):
    """Settings of Adam, and of the keys."""

    lr: float = 1e-3
    clip: float = 1.0  # largest norm of the whole gradient; infinite for no clipping
    pull: float = 1.0  # λ, how strongly selected keys are pulled towards queries

    limits: ClassVar = {"lr": POSITIVE, "clip": POSITIVE, "pull": FINITE_NOT_NEGATIVE}


class PromptLearner(Learner, ABC):
    """Prompts, their keys and a linear head learn, by Adam; the transformer is frozen."""

    kinds: ClassVar[Mapping[str, str]] = {"net": "weights", "head": "weights"}
    ranges: ClassVar = {"lr": LogUniform(1e-4, 1e-2)}  # of Adam, as wide as that of SGD for other methods
    default_backbone = "frozen-minilm"
    running = ("optimizer",)
    config: PromptConfig
    head: nn.Linear
    optimizer: torch.optim.Optimizer
    #: The classes of the present task.
    rows: Tensor

    def __init__(self, net: nn.Module, setting: Setting, config: PromptConfig) -> None:
        super().__init__(setting)
        prompted_encoder(net)  # refuses backbones that read no prompts
        self.config = config
        self.net = net.to(setting.dtype).requires_grad_(False)
        self.query_width = out_features(net, setting.input_shape)

    @property
    def encoder(self) -> PromptedEncoder:
        """What reads prompts through the backbone."""
        return prompted_encoder(self.net)

    @property
    def backbone(self) -> nn.Module:
        return self.net

    @property
    def class_width(self) -> int:
        return self.head.in_features + 1

    @property
    def network_size(self) -> int:
        return count_weights(self) - count_weights(self.head)

    @abstractmethod
    def all_keys(self) -> Tensor:
        """All keys, one per row."""

    @abstractmethod
    def select(self, query: Tensor) -> Tensor:
        """Numbers of the prompts ``(n, prompts per input)`` for queries of norm 1."""

    @abstractmethod
    def features(self, x: Tensor, selected: Tensor) -> Tensor:
        """What the head reads of scaled inputs with the selected prompts."""

    def select_in_training(self, query: Tensor) -> Tensor:
        """Select prompts for inputs of the present task."""
        return self.select(query)

    def drawn(self, *shape: int, least: float, largest: float, generator: torch.Generator) -> nn.Parameter:
        """Make prompts or keys whose numbers are uniform in a range."""
        return nn.Parameter(torch.empty(shape, dtype=self.setting.dtype).uniform_(least, largest, generator=generator))

    def make_head(self, features: int) -> nn.Linear:
        """Make a head of zeros: a class that is not in a task keeps its scores in it, so random ones would stay."""
        head = linear(features, self.setting.capacity, self.generator).to(self.setting.dtype)
        nn.init.zeros_(head.weight)
        return head

    def start(self, task: TaskData) -> None:
        """Reset Adam's moments."""
        self.rows = task.class_rows
        self.optimizer = torch.optim.Adam((p for p in self.parameters() if p.requires_grad), lr=self.config.lr)

    def finish(self, task: TaskData) -> None:
        del self.optimizer, self.rows
        self.zero_grad(set_to_none=True)

    @torch.no_grad()
    def query(self, x: Tensor) -> Tensor:
        """q(x) of scaled inputs, with norm 1. Each is computed by itself: what is selected does not depend on the batch."""
        return F.normalize(self.net(x), dim=1)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over the task's own classes, and the distance of the selected keys from the queries."""
        x = self.scale(batch.x)
        query = self.query(x)
        selected = self.select_in_training(query)
        logits = self.head(self.features(x, selected)).index_select(1, self.rows)
        losses = F.cross_entropy(logits, torch.searchsorted(self.rows, batch.y), reduction="none")
        keys = F.normalize(self.all_keys(), dim=1)[selected]
        distance = (1 - (keys * query[:, None]).sum(2)).sum(1)
        return weighted_mean(losses + self.config.pull * distance, batch.weight)

    def observe(self, batch: Batch) -> Tensor:
        loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_gradients(self.parameters(), self.config.clip)
        self.optimizer.step()
        return loss.detach()

    def selected_features(self, x: Tensor) -> Tensor:
        """What the head reads of scaled inputs, with prompts selected by their keys alone."""
        blocks = zip(x.split(_BLOCK), self.select(self.query(x)).split(_BLOCK), strict=True)
        return torch.cat([self.features(part, selected) for part, selected in blocks])

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        return self.selected_features(self.scale(x))

    def score(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.selected_features(x))
        return scores
