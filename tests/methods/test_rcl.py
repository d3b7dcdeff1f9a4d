"""RCL: its policy by hand, trials and their reward, and old tasks that never change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.methods.rcl import RCL, Controller
from cldnet.nets import MLP

METHOD = "cldnet.methods.rcl:RCL"


def trained(blobs, small, **options) -> RCL:
    """A learner after one task."""
    learner = small(METHOD, lr=0.01, **options)
    fit_task(learner, blobs([0, 1]), epochs=5, batch_size=16)
    return learner


def test_the_policy_is_an_lstm_of_two_layers_that_reads_its_own_decisions():
    controller, lstm = Controller(4, generator(0)), nn.LSTM(4, 100, num_layers=2)
    for depth, cell in enumerate(controller.cells):
        for name, parameter in cell.named_parameters():
            getattr(lstm, f"{name}_l{depth}").data.copy_(parameter.data)
    told, memory, expected = controller.state, None, []
    for _ in range(3):
        hidden, memory = lstm(told[None, None], memory)
        logits = controller.output.weight @ hidden[0, 0] + controller.output.bias
        told = logits.exp() / logits.exp().sum()
        expected.append(told)
    torch.testing.assert_close(controller(3), torch.stack(expected))
    drawn = torch.cat([parameter.flatten() for parameter in controller.cells.parameters()])
    assert 0.0799 < drawn.abs().max() <= 0.08


def test_a_reward_above_the_baseline_makes_its_decisions_likelier():
    """The policy's gradient is −(R − V) ∇ log π, and the baseline's is that of (V − R)²."""
    controller, units = Controller(4, generator(0)), torch.tensor([3, 1])
    value = controller.value.weight[0] @ controller.state + controller.value.bias[0]
    reward = value.detach() + 0.7
    chance = controller(2)
    log_chance = chance[0, 3].log() + chance[1, 1].log()
    policy = [*controller.cells.parameters(), *controller.output.parameters()]
    expected = torch.autograd.grad(-0.7 * log_chance, policy)
    found = torch.autograd.grad(controller.loss(units, reward), [*policy, controller.value.bias])
    for one, other in zip(found, expected, strict=False):
        torch.testing.assert_close(one, other)
    assert found[-1].item() == pytest.approx(-1.4)


def test_old_tasks_keep_their_bits_whatever_is_learned_later():
    net = {"channels": (4, 3), "hidden": (30, 20)}
    learner = build_learner(METHOD, Setting((3, 8, 8), 6, seed=0), {"lr": 0.01}, "lenet", net)
    x = torch.randn(24, 3, 8, 8, generator=generator(0))
    old: list[torch.Tensor] = []
    for first in (0, 2, 4):
        fit_task(learner, TaskData(x, first + torch.arange(24) % 2), epochs=3, batch_size=12)
        for task, scores in enumerate(old):
            assert torch.equal(learner.logits_in(x, task)[:, : 2 * len(old)], scores[:, : 2 * len(old)])
        old = [learner.logits_in(x, task) for task in range(learner.tasks)]
        old = [torch.nn.functional.pad(scores, (0, 6 - scores.shape[1]), value=-torch.inf) for scores in old]
    assert learner.net.stamps.tolist()[0] == [4, 3, 30, 20]
    assert learner.net.widths == learner.net.stamps.tolist()[-1] > learner.net.stamps.tolist()[1]


def test_trials_share_the_steps_of_a_task_and_train_what_is_new(blobs, small, monkeypatch):
    net = MLP((6,), (10, 8), generator=generator(0))
    learner = small(METHOD, net, trials=3, validation=0.2)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    old, begun, trials, steps, begin = [10, 8], list[list[torch.Tensor]](), [], [], RCL._begin_trial
    before, policies, values = [corner.value.clone() for corner in learner.net.corners(old)], list[float](), [0.0]

    def begin_trial(self: RCL) -> None:
        begin(self)
        begun.append([corner.value.clone() for corner in self.corners()])

    def on_step(_: object) -> None:
        trials.append(learner.trial)
        steps.append(int(learner.optimizer.state[learner.heads[1].layer.bias]["step"]))
        policies.append(float(learner.controller.output.bias.detach()[0]))
        values.append(float(learner.controller.value.bias.detach()))
        for corner, value in zip(learner.net.corners(old), before, strict=True):
            assert torch.equal(corner.value, value), "an old weight moved"
        w1, b1, w2, b2, head, bias = (
            corner.value != value for corner, value in zip(learner.corners(), begun[learner.trial], strict=True)
        )
        parts = w1[10:], b1[10:], w2[8:, :10], w2[8:, 10:], w2[:8, 10:], b2[8:], head[:, :8], head[:, 8:], bias
        assert all(part.any() for part in parts), "something new did not move"

    monkeypatch.setattr(RCL, "_begin_trial", begin_trial)
    fit_task(learner, blobs([2, 3]), epochs=1, batch_size=7, on_step=on_step)  # 48 of 60 samples are trained on
    assert trials == [0, 0, 0, 1, 1, 2, 2]
    assert steps == [1, 2, 3, 1, 2, 1, 2], "each trial has an optimiser of its own"
    assert all((each[-1] == 0).all() for each in begun)
    assert [abs(round(policies[step] - policies[0], 4)) for step in (2, 3)] == [0, 0.001]
    assert len({policies[step] for step in (2, 3, 5)}) == 3, "it learns after each trial"
    assert [abs(round(values[step] - values[1], 4)) for step in (3, 4)] == [0, 0.005], (
        "Adam's first steps are the rates"
    )
    assert not torch.equal(begun[0][-2][:, :8], begun[1][-2][:, :8]), "each trial has a head of its own"
    assert len({tuple(len(part) for part in each) for each in begun}) == 3, "each trial has widths of its own"


def test_the_trial_with_the_largest_reward_is_kept(blobs, small, monkeypatch):
    learner, rewards, kept = small(METHOD, MLP((6,), (10, 10), generator=generator(0)), trials=4, penalty=0.001), [], []
    fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    accuracies = iter([0.5, 0.93, 0.6, 0.94])
    monkeypatch.setattr(RCL, "_accuracy", lambda self: torch.tensor(next(accuracies)))

    def decided(self: Controller, stages: int) -> torch.Tensor:
        return torch.eye(30)[[(4, 3, 2, 29)[learner.trial]]].expand(stages, 30)

    def taught(self: Controller, units: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
        rewards.append((units.tolist(), round(float(reward), 6)))
        kept.append([corner.value.clone() for corner in learner.corners()])
        return torch.zeros((), requires_grad=True)

    monkeypatch.setattr(Controller, "forward", decided)
    monkeypatch.setattr(Controller, "loss", taught)
    fit_task(learner, blobs([2, 3]), epochs=2, batch_size=16)
    assert rewards == [([4, 4], 0.492), ([3, 3], 0.924), ([2, 2], 0.596), ([29, 29], 0.882)]
    assert learner.net.stamps.tolist() == [[10, 10], [13, 13]]
    layers = [stage.layer for stage in learner.net.stages]
    end = [*(part for layer in layers for part in layer.parameters()), *learner.heads[1].layer.parameters()]
    for one, other in zip(end, kept[1], strict=True):
        assert torch.equal(one, other)


def test_the_reward_is_measured_on_samples_that_are_not_trained_on(blobs, small):
    learner, task = trained(blobs, small, validation=0.25), blobs([2, 3], count=8)
    rest = learner.rehearse(task)
    assert (len(rest), len(learner._held)) == (12, 4)
    assert learner._held.y.bincount().tolist() == [0, 0, 2, 2]
    assert {tuple(row) for row in rest.x.tolist()} | {tuple(row) for row in learner._held.x.tolist()} == {
        tuple(row) for row in task.x.tolist()
    }
    learner.begin_task(task)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    held = learner._held = TaskData(learner._held.x, learner._held.y, weight)
    right = torch.stack([learner.logits_in(x[None], 1)[0].argmax() for x in held.x]) == held.y
    learner.heads[1].layer.bias.data[0] = 100.0  # every sample is taken for class 2
    assert float(learner._accuracy()) == pytest.approx(float(weight[held.y == 2].sum()) / 10)
    learner.heads[1].layer.bias.data[0] = 0.0
    assert float(learner._accuracy()) == pytest.approx(float(weight[right].sum()) / 10)
    modes, features = [], learner.features
    learner.features = lambda *arguments: modes.append(learner.training) or features(*arguments)
    learner._accuracy()
    assert (modes, learner.training) == ([False], True)
    single = trained(blobs, small)
    assert single.rehearse(TaskData(task.x[:2], task.y[:2])).x is single._held.x, "one sample of each class"


def test_the_first_task_trains_the_net_on_all_samples_and_adds_no_unit(blobs, small):
    learner, task = small(METHOD, lr=0.01), blobs([0, 1])
    assert learner.rehearse(task) is task
    fit_task(learner, task, epochs=5, batch_size=16)
    assert learner.net.stamps.tolist() == [[10]]
    assert (learner.logits(task.x).argmax(1) == task.y).float().mean() > 0.9


def test_a_task_with_fewer_steps_than_trials_tries_once_per_step(blobs, small):
    learner, trials = trained(blobs, small, trials=9), []
    fit_task(learner, blobs([2, 3]), epochs=1, batch_size=16, on_step=lambda _: trials.append(learner.trial))
    assert trials == [0, 1, 2, 3]


def test_samples_without_weight_are_no_reward(blobs, small):
    learner, task = trained(blobs, small), blobs([2, 3], count=1)
    fit_task(learner, TaskData(task.x, task.y, torch.zeros(2)), epochs=1, batch_size=16)
    assert learner.tasks == 2


def test_trained_weights_decay_and_no_units_are_a_choice(blobs, small):
    learner = small(METHOD, units=0, weight_decay=0.5)
    task = blobs([0, 1])
    fit_task(learner, task, epochs=1, batch_size=16)
    fit_task(learner, blobs([2, 3]), epochs=1, batch_size=16)
    assert learner.net.stamps.tolist() == [[10], [10]]
    without = small(METHOD, units=0, weight_decay=0.0)
    fit_task(without, task, epochs=1, batch_size=16)
    assert learner.net.stages[0].layer.weight.norm() < without.net.stages[0].layer.weight.norm()
    learner.rehearse(task)
    learner.begin_task(task)
    for corner in learner.corners():
        corner.parameter.grad = torch.ones_like(corner.parameter)
    learner.decay(0.5)
    for corner in learner.corners():
        torch.testing.assert_close(corner.parameter.grad, 1 + 0.5 * corner.parameter.detach())
