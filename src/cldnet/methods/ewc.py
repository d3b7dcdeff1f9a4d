"""EWC (Kirkpatrick et al., PNAS 2017): a quadratic penalty on moving weights that earlier tasks needed.

``L + λ/2 Σ_t Σ_i F_t,i (θ_i − θ*_t,i)²`` with one Fisher diagonal ``F_t`` and one anchor ``θ*_t`` a task. The sum over tasks
needs only ``Σ F_t`` and ``Σ F_t θ*_t`` (up to a constant), so the state does not grow with the number of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cldnet.methods.gradient import GradientConfig, GradientLearner
from cldnet.methods.learner import Batch, Setting, TaskData, Traits
from cldnet.methods.parts.fisher import squared_gradients
from cldnet.methods.parts.tensors import NamedTensors
from cldnet.methods.ranges import LEARNING_RATES, LogUniform

__all__ = ["EWC", "EWCConfig"]


@dataclass(frozen=True)
class EWCConfig(GradientConfig):
    """Settings of EWC.

    Attributes
    ----------
    strength : float
        λ, the weight of the penalty, for a Fisher information that is a mean over samples.
    fisher_batch : int
        Samples whose gradients are held at once.
    """

    strength: float = 1000.0
    fisher_batch: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strength >= 0:
            raise ValueError(f"strength={self.strength} should not be negative.")
        if not self.fisher_batch >= 1:
            raise ValueError(f"fisher_batch={self.fisher_batch} should be at least 1.")


class EWC(GradientLearner):
    """Fine-tuning with elastic weight consolidation; the Fisher information is per sample, labels drawn from the model."""

    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {"net": "weights", "head": "weights", "fisher": "fisher", "anchor": "fisher"}
    config_class = EWCConfig
    ranges: ClassVar = {"lr": LEARNING_RATES, "strength": LogUniform(10.0, 1e9)}
    config: EWCConfig

    def __init__(self, net: nn.Module, setting: Setting, config: EWCConfig) -> None:
        super().__init__(net, setting, config)
        zeros = {name: torch.zeros_like(parameter) for name, parameter in self.named_parameters()}
        self.fisher = NamedTensors(zeros)  # Σ F_t
        self.anchor = NamedTensors(zeros)  # Σ F_t θ*_t

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy and the penalty, from the second task on."""
        loss = super().loss(batch)
        return loss if self.tasks == 0 else loss + self.config.strength * self.penalty()

    def penalty(self) -> Tensor:
        """Half the penalty of all tasks, up to a constant: ``Σ_i ½ F_i θ_i² − (Fθ*)_i θ_i``."""
        total = self.counters.new_zeros((), dtype=self.setting.dtype)
        for name, parameter in self.named_parameters():
            total = total + (parameter * (0.5 * self.fisher[name] * parameter - self.anchor[name])).sum()
        return total

    def finish(self, task: TaskData) -> None:
        """Add the task's Fisher information and its anchor to the sums."""
        super().finish(task)
        parameters = {name: parameter.detach() for name, parameter in self.named_parameters()}

        def logits(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            output: Tensor = functional_call(self, (parameters,), (x,))
            return output

        for batch in task.batches(self.config.fisher_batch):
            x = self.scale(batch.x)
            with torch.no_grad():
                probabilities = self(x).softmax(1).cpu()
            drawn = torch.multinomial(probabilities, 1, generator=self.generator)[:, 0].to(x.device)
            for name, squares in squared_gradients(logits, parameters, x, drawn).items():  # type: ignore[arg-type]
                self.fisher[name].add_(squares / len(task))
                self.anchor[name].add_(squares / len(task) * parameters[name])

    def forward(self, x: Tensor) -> Tensor:
        """Logits over the classes seen, for `torch.func`."""
        return self.score(x)[:, : self.seen]
