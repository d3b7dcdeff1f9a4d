"""L2P, learning to prompt: a pool of prompts for a frozen transformer, of which every input selects a few.

With the query q(x), the transformer's vector of x, keys ``k_i`` and prompts ``P_i`` of the pool:

- select the N prompts with the largest ``cos(q(x), k_i)`` (Eq. 3; Eq. 4, a penalty on prompts that are used often, is left out)
- put them in front of the embedded tokens, ``[P_s1; …; P_sN; x_e]`` (Eq. 2); the head reads the mean of the last layer's
  outputs at their places
- the loss is ``CE + λ Σ_s (1 − cos(q(x), k_s))`` (Eq. 5); see `cldnet.methods.parts.prompts`
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.methods.config import AT_LEAST_ONE
from cldnet.methods.learner import Setting, Traits
from cldnet.methods.parts.prompts import PromptConfig, PromptLearner


@dataclass(frozen=True)
class L2PConfig(PromptConfig):
    """Settings of L2P, by default those for ImageNet-R."""

    lr: float = 0.001875
    pull: float = 0.1
    pool: int = 10  # M, prompts in the pool
    length: int = 5  # tokens of a prompt
    top: int = 5  # N, prompts that an input selects

    limits: ClassVar = {"length": AT_LEAST_ONE, "top": AT_LEAST_ONE}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top > self.pool:
            raise ValueError(f"pool={self.pool} has fewer prompts than an input selects, top={self.top}.")


class L2P(PromptLearner):
    """A pool of prompts whose keys select them by an input's query.

    Each input selects its own prompts, as in the paper; the authors' code takes one selection for a whole batch, by a vote.
    Prompts begin uniform in [−1, 1], as in the PyTorch code that the settings come from. The authors begin within [0, 0.01]. A
    ViT normalises its tokens in front of every layer, but to a BERT such prompts would all be the same.

    References
    ----------
    Z. Wang, Z. Zhang, C.-Y. Lee, H. Zhang, R. Sun, X. Ren, G. Su, V. Perot, J. Dy, T. Pfister, "Learning to Prompt for
    Continual Learning", CVPR 2022. https://arxiv.org/abs/2112.08654
    """

    title = "L2P"
    summary = "a pool of prompts for a frozen transformer, selected by keys (CVPR 2022)"
    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {**PromptLearner.kinds, "prompts": "prompts", "keys": "prompts"}
    config_class = L2PConfig
    fixed = ("pool", "length")
    config: L2PConfig

    def __init__(self, net: nn.Module, setting: Setting, config: L2PConfig) -> None:
        super().__init__(net, setting, config)
        width, drawn = self.encoder.width, partial(self.drawn, least=-1, largest=1, generator=self.generator)
        self.prompts = drawn(config.pool, config.length, width)  # P
        self.keys = drawn(config.pool, self.query_width)  # k
        self.head = self.make_head(width)

    def all_keys(self) -> Tensor:
        return self.keys

    def select(self, query: Tensor) -> Tensor:
        """The N prompts whose keys are nearest to each query."""
        return (query @ F.normalize(self.keys, dim=1).T).topk(self.config.top, dim=1).indices

    def features(self, x: Tensor, selected: Tensor) -> Tensor:
        """Mean of the last layer's outputs at the places of the selected prompts."""
        prompts = self.prompts.index_select(0, selected.flatten()).unflatten(0, selected.shape).flatten(1, 2)
        return self.encoder.read(x, prompts).prompts.mean(1)
