"""RCL, reinforced continual learning: a recurrent policy that learns by reward how many units a task adds to each layer.

Task 1 trains the net. A later task is tried several times. In each trial the policy draws a number of new units for every
layer; the old weights stay as they are, and the new ones and a new head are trained from scratch. Its reward is
``R = accuracy on samples held out − penalty · new units``. After it the policy takes a step along ``(R − V) ∇ log π(units)``
(REINFORCE), where the baseline ``V`` learns to predict the reward. The trial with the largest reward is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from cldnet.methods.config import AT_LEAST_ONE, FINITE_NOT_NEGATIVE, NOT_NEGATIVE, POSITIVE, SHARE, Config, LogUniform
from cldnet.methods.learner import Batch, Setting, TaskData, portions
from cldnet.methods.parts.validation import chosen, hold_out
from cldnet.methods.parts.widening import WideningLearner
from cldnet.nets.fingerprint import evaluating
from cldnet.nets.layers import linear

#: Units of both recurrent layers of the policy, and the bound of its initial weights.
_HIDDEN, _BOUND = 100, 0.08


@dataclass(frozen=True)
class RCLConfig(Config):
    """Settings of the trials and of the policy; the optimisers are Adam."""

    lr: float = 1e-3
    trials: int = 5  # of a task; they share its epochs. The authors have 50 of 15 epochs each
    units: int = 29  # that a trial adds to a layer at most
    penalty: float = 1e-4  # of a new unit
    weight_decay: float = 1e-4  # of weights that are trained
    validation: float = 0.1  # share of a class's samples that are held out, at least one of two
    policy_lr: float = 1e-3
    value_lr: float = 5e-3

    limits: ClassVar = {
        **dict.fromkeys(("lr", "policy_lr", "value_lr"), POSITIVE),
        "trials": AT_LEAST_ONE,
        "units": NOT_NEGATIVE,
        **dict.fromkeys(("penalty", "weight_decay"), FINITE_NOT_NEGATIVE),
        "validation": SHARE,
    }


class Controller(nn.Module):
    """The policy, two layers of an LSTM that decide on one layer of the net after the other, and the linear baseline."""

    def __init__(self, choices: int, generator: torch.Generator) -> None:
        super().__init__()
        self.state: Tensor = nn.Buffer(torch.randn(choices, generator=generator))
        self.cells = nn.ModuleList(skip_init(nn.LSTMCell, size, _HIDDEN, device="cpu") for size in (choices, _HIDDEN))
        self.output = skip_init(nn.Linear, _HIDDEN, choices, device="cpu")
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -_BOUND, _BOUND, generator=generator)
        self.value = linear(choices, 1, generator)

    def forward(self, stages: int) -> Tensor:
        """Probabilities ``(stages, choices)`` of adding 0, 1, 2, … units. Each decision is told the one before it."""
        memory: list[tuple[Tensor, Tensor] | None] = [None for _ in self.cells]
        decisions = [self.state]
        for _ in range(stages):
            hidden = decisions[-1]
            for depth, cell in enumerate(self.cells):
                hidden, inner = cell(hidden, memory[depth])
                memory[depth] = hidden, inner
            decisions.append(self.output(hidden).softmax(0))
        return torch.stack(decisions[1:])

    def loss(self, units: Tensor, reward: Tensor) -> Tensor:
        """``(V − R)² − (R − V) log π(units)``, whose second term is for the policy alone."""
        value = self.value(self.state)[0]
        chance = self(len(units)).gather(1, units[:, None]).log().sum()
        loss: Tensor = (value - reward).square() - (reward - value.detach()) * chance
        return loss


class RCL(WideningLearner):
    """New units by trial and reward; old weights are never changed.

    The epochs of the run are shared among the trials, so that RCL has as many steps as other methods. Every task has a new
    policy, as in the authors' code. There the weights into new units of all layers but the first are not trained; in the paper
    and here they are. New weights are He's, also those into old units; the authors draw them from N(0, 0.01²), begin biases at
    0.1, and train a scale for each unit. The reward's accuracy is measured on a part of the training samples, or on all of them
    if every class has one only.

    References
    ----------
    J. Xu, Z. Zhu, "Reinforced Continual Learning", NeurIPS 2018. https://arxiv.org/abs/1805.12369
    """

    title = "RCL"
    summary = "adds units to a frozen net; how many, a policy learns by trials; needs the task at test (NeurIPS 2018)"
    config_class = RCLConfig
    ranges: ClassVar = {"lr": LogUniform(1e-4, 1e-2)}  # of Adam, as wide as that of SGD for other methods
    running = (*WideningLearner.running, "decider", "trial", "reward", "best")
    config: RCLConfig

    controller: Controller
    decider: torch.optim.Optimizer
    trial: int
    reward: Tensor  # the largest one so far
    best: dict[str, Tensor]  # widths and weights of that trial
    _held: TaskData  # samples to measure the reward on

    def __init__(self, net: nn.Module, setting: Setting, config: RCLConfig) -> None:
        super().__init__(net, setting)
        self.config = config

    def rehearse(self, task: TaskData) -> TaskData:
        """Hold out samples of each class, if there are trials to compare."""
        out = hold_out(task, self.config.validation if self.tasks > 0 else 0, self.generator)
        self._held, rest = (chosen(task, out), chosen(task, ~out)) if bool(out.any()) else (task, task)
        return rest

    def start(self, task: TaskData) -> None:
        """Make room for the new units, and begin the first trial; task 1 trains the net as it is."""
        self.trial, self.reward, self.best = 0, torch.tensor(-torch.inf), {}
        self.make_room(task, self.config.units if self.tasks > 0 else 0)
        self.controller = Controller(self.config.units + 1, self.generator)
        value = [*self.controller.value.parameters()]
        policy = [*self.controller.cells.parameters(), *self.controller.output.parameters()]
        rates = [{"params": policy, "lr": self.config.policy_lr}, {"params": value, "lr": self.config.value_lr}]
        self.decider = torch.optim.Adam(rates)
        self._begin_trial()

    @torch.no_grad()
    def _begin_trial(self) -> None:
        """Draw how many units each layer gets, and their weights; begin with a new head and a new optimiser."""
        old, layer = self.net.old, self.heads[-1].layer
        if self.tasks > 0:
            decisions = self.controller(len(old))
            self.widths = torch.tensor(old) + decisions.multinomial(1, generator=self.generator)[:, 0]
            self.net.draw(old, self.widths.tolist(), self.generator)
        width = int(self.widths[-1])
        layer.weight[:, :width] = linear(width, len(layer.bias), self.generator).weight.to(layer.weight)
        layer.bias.zero_()
        self.optimizer = self.new_optimizer()

    def observe(self, batch: Batch) -> Tensor:
        """Train the trial's new weights and its head; every trial has the same share of the task's steps."""
        trials = self.config.trials if self.tasks > 0 else 1
        if batch.step * trials // batch.steps > self.trial:  # one per step, if there are fewer steps than trials
            self._end_trial()
            self.trial += 1
            self._begin_trial()
        loss = self.task_loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.decay(self.config.weight_decay)
        for old in self.net.corners(self.net.old):
            if old.gradient is not None:
                old.gradient.zero_()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def _accuracy(self) -> Tensor:
        """Weighted accuracy on the samples held out."""
        head = self.heads[-1]
        with evaluating(self):
            scores = [head(self.features(self.scale(x), len(self.heads) - 1)) for x in portions(self._held.x)]
        right = (head.rows[torch.cat(scores).argmax(1)] == self._held.y).float()
        weight = torch.ones_like(right) if self._held.weight is None else self._held.weight.to(right)
        return ((right * weight).sum() / weight.sum()).nan_to_num().cpu()

    def _end_trial(self) -> None:
        """Measure the reward, keep the weights if it is the largest, and teach the policy."""
        units = self.widths - torch.tensor(self.net.old)
        reward = self._accuracy() - self.config.penalty * units.sum()
        if reward > self.reward:
            weights = {str(number): corner.value.clone() for number, corner in enumerate(self.corners())}
            self.reward, self.best = reward, {**weights, "widths": self.widths.clone()}
        self.decider.zero_grad(set_to_none=True)
        self.controller.loss(units, reward).backward()
        self.decider.step()

    def finish(self, task: TaskData) -> None:
        """Keep the best trial."""
        if self.tasks > 0:
            self._end_trial()
            self.widths = self.best["widths"]
            for number, corner in enumerate(self.corners()):
                corner.value.copy_(self.best[str(number)])
        self.cut()
        del self.controller, self.decider, self.trial, self.reward, self.best, self._held
