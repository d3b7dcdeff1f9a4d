"""OWM and AOP: their steps, their α, and what their released code does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.owm import RELEASED_CNN, RELEASED_MLP
from cldnet.methods.parts.alpha import AdaptiveAlpha, ConstantAlpha, DecayingAlpha, KindAlphas, PerTask
from cldnet.methods.parts.projection import EverySecondPatch

WIDTHS = (7, 6)


def released_alphas(progress):
    """α of the three layers in the released code for Disjoint MNIST."""
    return [0.9 * 0.001**progress, 1.0 * 0.1**progress, 0.6]


class Slow:
    """The released algorithm for an MLP, a layer's bias being the weight of an appended one."""

    def __init__(self, weights, lr, clip, recursive):
        self.weights = [w.copy() for w in weights]  # (outputs, inputs + 1)
        self.memory = [np.zeros_like(w) for w in weights]
        self.P = [np.eye(w.shape[1]) for w in weights]
        self.total = [np.eye(w.shape[1]) for w in weights]
        self.lr, self.clip, self.recursive = lr, clip, recursive

    def begin_task(self):
        self.memory = [np.zeros_like(w) for w in self.weights]

    def step(self, x, y, seen, progress):
        inputs = []
        for w in self.weights:
            inputs.append(np.hstack([x, np.ones((len(x), 1))]))
            z = inputs[-1] @ w.T
            x = np.maximum(z, 0)
        scores = np.exp(z[:, :seen] - z[:, :seen].max(1, keepdims=True))
        delta = np.zeros_like(z)
        delta[:, :seen] = (scores / scores.sum(1, keepdims=True) - np.eye(seen)[y]) / len(y)
        gradients = []
        for layer in (2, 1, 0):
            gradients.insert(0, delta.T @ inputs[layer])
            delta = (delta @ self.weights[layer][:, :-1]) * (inputs[layer][:, :-1] > 0)
        for layer, alpha in enumerate(released_alphas(progress)):  # the projector first, then the projection
            r = inputs[layer].mean(0)
            if self.recursive:
                k = self.P[layer] @ r
                self.P[layer] -= np.outer(k, k) / (alpha + r @ k)
            else:
                self.total[layer] += np.outer(r, r) / alpha
                self.P[layer] = np.linalg.inv(self.total[layer])
            gradients[layer] = gradients[layer] @ self.P[layer]
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        for w, m, g in zip(self.weights, self.memory, gradients, strict=True):  # clipped after the projection
            m[:] = 0.9 * m + g * min(1.0, self.clip / (norm + 1e-6))
            w -= self.lr * m
        return norm


def matrices(learner):
    layers = [learner.net.layers[1], learner.net.layers[3], learner.head]
    return [torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach().numpy().copy() for layer in layers]


@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("clip", [10.0, 0.3])
def test_weights_and_projectors_follow_the_released_algorithm_step_by_step(recursive, clip):
    setting = Setting((5,), 4, seed=0, dtype=torch.float64, scaling=((0.0,) * 5, (1.0,) * 5))
    options = {"lr": 0.2, "clip": clip, "alpha": RELEASED_MLP}
    learner = build_learner("owm", setting, options, "mlp", {"widths": WIDTHS})
    slow, norms = Slow(matrices(learner), 0.2, clip, recursive), []
    for number, classes in enumerate(([0, 1], [2, 3])):
        y = torch.tensor(classes).repeat(20)
        x = torch.randn(40, 5, generator=generator(number), dtype=torch.float64) + y[:, None]
        task = TaskData(x, y)
        learner.begin_task(task)
        slow.begin_task()
        for part in range(2):
            for batch in task.epoch(torch.arange(40), 8, part, 2):
                learner.observe(batch)
                norms.append(slow.step(batch.x.numpy(), batch.y.numpy(), learner.seen, batch.step / 9))
                for ours, theirs in zip(matrices(learner), slow.weights, strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)
        learner.end_task(task)
        for ours, theirs in zip(learner.projection.layers, slow.P, strict=True):
            np.testing.assert_allclose(ours.P[0].numpy(), theirs, rtol=1e-8, atol=1e-9)
    assert (max(norms) > clip) == (clip < 1), "the clip is tried where it acts and where it does not"


CENTRES = 4.0 * torch.randn(6, 6, generator=generator(0))


def blobs(classes, count=30):
    y = torch.tensor(classes).repeat(count)
    return TaskData(CENTRES[y] + torch.randn(len(y), 6, generator=generator(classes[0])), y)


def accuracies(alpha):
    learner = build_learner("owm", Setting((6,), 6, 0), {"alpha": alpha, "lr": 0.05}, "mlp", {"widths": (30,)})
    for classes in ([0, 1], [2, 3], [4, 5]):
        fit_task(learner, blobs(classes), epochs=10, batch_size=10)
    answers = [(learner.logits(blobs(c).x).argmax(1) == blobs(c).y).float().mean() for c in ([0, 1], [2, 3], [4, 5])]
    return [float(answer) for answer in answers]


def test_old_tasks_are_kept_and_new_ones_learned():
    assert min(accuracies(DecayingAlpha(1.0, 0.01))) > 0.8
    assert accuracies(ConstantAlpha(1e9))[0] < 0.5, "a projector that protects nothing"


def test_the_same_rule_leaves_as_much_room_however_many_updates_a_task_has():
    def room(epochs, alpha):
        learner = build_learner("owm", Setting((6,), 6, 0), {"alpha": alpha}, "mlp", {"widths": (30,)})
        fit_task(learner, blobs([0, 1]), epochs=epochs, batch_size=10)
        return float(learner.projection.layers[0].P[0].trace())

    alpha = DecayingAlpha(10.0, 0.01)
    assert room(20, PerTask(alpha, 30)) == pytest.approx(room(5, PerTask(alpha, 30)), rel=0.15)
    assert room(20, alpha) < 0.7 * room(5, alpha)


def test_the_released_schedule_of_the_cnn_trains_the_cnn():
    setting = Setting((3, 8, 8), 4, 0)
    options = {"alpha": RELEASED_CNN, "feed": EverySecondPatch()}
    learner = build_learner("owm", setting, options, "cnn", {"channels": (4, 5, 6), "hidden": (7, 8)})
    y = torch.tensor([0, 1]).repeat(20)
    x = torch.randn(40, 3, 8, 8, generator=generator(0)) + 2.0 * y[:, None, None, None]
    fit_task(learner, TaskData(x, y), epochs=10, batch_size=10)
    assert float((learner.logits(x).argmax(1) == y).float().mean()) > 0.9
    room = [float(layer.P[0].diagonal().mean()) for layer in learner.projection.layers]
    assert all(0 < share < 1 for share in room)
    assert room[0] == min(room), "a convolution absorbs a row for every patch"


def test_a_batch_of_weight_zero_changes_nothing():
    learner = build_learner("owm", Setting((6,), 4, 0), {}, "mlp", {"widths": (5,)})
    task = blobs([0, 1], count=4)
    learner.begin_task(task)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    assert float(learner.observe(Batch(task.x, task.y, torch.zeros(len(task)), 0, 1, 0))) == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())


def test_the_released_rules_are_those_of_the_authors_code():
    """Start and end of every layer's α."""

    def course(rules):
        return [[float(rule(torch.ones(1, 1, 1), progress, 1)) for progress in (0.0, 1.0)] for rule in rules.alphas]

    assert course(RELEASED_MLP) == [pytest.approx(ends) for ends in ([0.9, 0.0009], [1.0, 0.1], [0.6, 0.6])]
    ends = [[1.0, 1e-5]] * 3 + [[1.0, 1e-4], [1.0, 0.01], [1.0, 0.1]]
    assert course(RELEASED_CNN) == [pytest.approx(each) for each in ends]


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(27, 6), nn.ReLU())


def task(classes, seed=0):
    y = torch.tensor(classes).repeat(10)
    return TaskData(torch.randn(len(y), 1, 4, 4, generator=generator(seed)) + y[:, None, None, None], y)


def learner_of(method="aop", **options):
    setting = Setting((1, 4, 4), 6, 0, dtype=torch.float64, scaling=((0.0,), (1.0,)))
    return build_learner(method, setting, options, net())


@pytest.mark.parametrize("step", [0, 3, 9])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_alpha_is_the_papers_for_linear_layers_and_owms_for_convolutions(step, scale):
    learner, data = learner_of(scale=scale), task([0, 1])
    learner.begin_task(data)
    x = data.x.double()
    with torch.no_grad():
        hidden = learner.net[2](learner.net[1](learner.net[0](x))).numpy()
        features = learner.net(x).numpy()
    learner.observe(Batch(data.x.double(), data.y, None, step, 10, 0))
    learner.projection.rebuild()
    progress, sums = step / 9, learner.projector_sums()
    for name, inputs in (("net.3", hidden), ("head", features)):
        r = np.append(inputs.mean(0), 1.0)
        alpha = scale * (r.mean() ** 2 + r.var(ddof=1)) ** progress
        np.testing.assert_allclose(sums[name][0].numpy(), np.outer(r, r) / alpha, rtol=1e-9, atol=1e-12)
    mean_map = x.mean(0)[0].numpy()
    patches = [mean_map[i : i + 2, j : j + 2].ravel() for i in range(3) for j in range(3)]
    expected = sum(np.outer(r, r) for r in patches) / (scale * 1e-5**progress)
    np.testing.assert_allclose(sums["net.0"][0].numpy(), expected, rtol=1e-9, atol=1e-12)


def test_it_is_owm_but_for_alpha():
    alpha = PerTask(KindAlphas(AdaptiveAlpha(0.7), convolution=DecayingAlpha(0.7, 1e-5)), 5)
    learners = [
        learner_of(scale=0.7, updates=5),
        learner_of("owm", alpha=alpha),
        learner_of("owm", alpha=ConstantAlpha()),
    ]
    for learner in learners:
        for seed, classes in enumerate(([0, 1], [2, 3])):
            fit_task(learner, task(classes, seed), epochs=3, batch_size=5)
    same, other = (
        [torch.equal(p, q) for p, q in zip(learners[0].parameters(), learner.parameters(), strict=True)]
        for learner in learners[1:]
    )
    assert all(same)
    assert not any(other)


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": float("nan")}, {"updates": 0}, {"lr": 0.0}])
def test_settings_that_cannot_be_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}="):
        learner_of(**options)
