"""DualPrompt: one prompt for what all tasks share and one expert prompt per task, in different layers of a frozen transformer.

Both are prefixes (prefix tuning): a prompt is split into ``[P_K; P_V]``, which are put in front of the keys and values of a
layer. The G-prompt is in the first layers and learns in all tasks. Task t has an E-prompt in the layers behind, and a key
``k_t``. With the query q(x), the transformer's vector of x without prompts:

- in training, the E-prompt is that of the task; the loss is ``CE + λ (1 − cos(q(x), k_t))``, with the
  cross-entropy over the classes of the task only; see `cldnet.methods.parts.prompts`
- at test, it is that with the largest ``cos(q(x), k_t)``
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import tensor_bytes
from cldnet.methods.config import AT_LEAST_ONE
from cldnet.methods.learner import Setting, TaskData, Traits
from cldnet.methods.parts.prompts import PromptConfig, PromptLearner

#: Prompts and keys begin with numbers from 0 to this, as in the authors' code.
_LARGEST = 0.01


@dataclass(frozen=True)
class DualPromptConfig(PromptConfig):
    """Settings of DualPrompt, by default those for ImageNet-R. Layers are counted from 0."""

    lr: float = 0.005
    general_length: int = 5  # of the G-prompt, in keys and in values
    general_layers: Sequence[int] = (0, 1)
    expert_length: int = 20  # of each E-prompt
    expert_layers: Sequence[int] = (2, 3, 4)

    limits: ClassVar = {"general_length": AT_LEAST_ONE, "expert_length": AT_LEAST_ONE}

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("general_layers", "expert_layers"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists only
        layers = (*self.general_layers, *self.expert_layers)
        if len({*layers}) < len(layers) or not all(type(layer) is int and layer >= 0 for layer in layers):
            raise ValueError(
                f"general_layers={self.general_layers} and expert_layers={self.expert_layers} should be different whole "
                "numbers from 0 on."
            )
        if not self.expert_layers:
            raise ValueError("expert_layers=() should name one layer or more.")


class Expert(nn.Module):
    """The E-prompt of one task ``(layers, 2, length, width)``, and its key ``k_t``."""

    def __init__(self, prompt: nn.Parameter, key: nn.Parameter) -> None:
        super().__init__()
        self.prompt, self.key = prompt, key


class DualPrompt(PromptLearner):
    """A general prompt and one expert prompt per task, selected by its key.

    It grows by an E-prompt and a key with every task. A new E-prompt begins as a copy of the last one, as in the authors' code.

    References
    ----------
    Z. Wang, Z. Zhang, S. Ebrahimi, R. Sun, H. Zhang, C.-Y. Lee, X. Ren, G. Su, V. Perot, J. Dy, T. Pfister, "DualPrompt:
    Complementary Prompting for Rehearsal-free Continual Learning", ECCV 2022. https://arxiv.org/abs/2204.04799
    """

    title = "DualPrompt"
    summary = "a general prompt and one expert prompt per task for a frozen transformer (ECCV 2022)"
    traits = Traits(rehearsal_free=True, constant_size=False)
    kinds: ClassVar = {**PromptLearner.kinds, "general": "prompts", "experts": "prompts"}
    config_class = DualPromptConfig
    fixed = ("general_length", "general_layers", "expert_length", "expert_layers")
    config: DualPromptConfig

    def __init__(self, net: nn.Module, setting: Setting, config: DualPromptConfig) -> None:
        super().__init__(net, setting, config)
        depth, deepest = self.encoder.depth, max((*config.general_layers, *config.expert_layers))
        if deepest >= depth:
            raise ValueError(
                f"There is no layer {deepest} in a transformer of {depth} layers, counted from 0: set general_layers and "
                "expert_layers."
            )
        self.general = self._prompt(config.general_layers, config.general_length, self.generator)
        self.experts: Sequence[Expert] = nn.ModuleList()  # type: ignore[assignment]
        self.head = self.make_head(self.query_width)

    def _prompt(self, layers: Sequence[int], length: int, generator: torch.Generator) -> nn.Parameter:
        shape = len(layers), 2, length, self.encoder.width
        return self.drawn(*shape, least=0, largest=_LARGEST, generator=generator)

    def _expert(self, generator: torch.Generator) -> Expert:
        prompt = self._prompt(self.config.expert_layers, self.config.expert_length, generator)
        return Expert(prompt, self.drawn(self.query_width, least=0, largest=_LARGEST, generator=generator))

    def growth(self, task: TaskData) -> int:
        return sum(map(tensor_bytes, self._expert(torch.Generator()).parameters()))

    def start(self, task: TaskData) -> None:
        """Freeze the older E-prompts and keys, and add those of the task."""
        expert = self._expert(self.generator).to(task.x.device)
        for old in self.experts:
            old.requires_grad_(False)
        if self.experts:
            expert.prompt.data.copy_(self.experts[-1].prompt)
        self.experts.append(expert)  # type: ignore[attr-defined]
        super().start(task)

    def all_keys(self) -> Tensor:
        return torch.stack([expert.key for expert in self.experts])

    def select(self, query: Tensor) -> Tensor:
        """The task whose key is nearest to each query."""
        return (query @ F.normalize(self.all_keys(), dim=1).T).argmax(1, keepdim=True)

    def select_in_training(self, query: Tensor) -> Tensor:
        """The task itself."""
        return torch.full((len(query), 1), len(self.experts) - 1, device=query.device)

    def features(self, x: Tensor, selected: Tensor) -> Tensor:
        """The transformer's vectors, with the G-prompt and the selected E-prompts in their layers."""
        general = self.general.unsqueeze(1).expand(-1, len(x), -1, -1, -1)
        experts = torch.stack([expert.prompt for expert in self.experts], 1).index_select(1, selected[:, 0])
        layers = (*self.config.general_layers, *self.config.expert_layers)
        return self.encoder.read(x, prefixes=dict(zip(layers, (*general, *experts), strict=True))).vectors

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        count = sum(name.startswith("experts.") and name.endswith(".key") for name in state)
        self.experts = nn.ModuleList(self._expert(torch.Generator()) for _ in range(count))  # type: ignore[assignment]
