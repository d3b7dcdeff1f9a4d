"""The exact solver: whole-number sums, whatever the order, and the ridge solution of all data seen."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import nn

from cldnet.device import generator, threads
from cldnet.fit import predict_logits
from cldnet.methods.exact import Exact, ExactConfig
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import RandomReLU

relaxed = settings(deadline=None, max_examples=15)
SUMS = ("gram", "class_sums", "class_weights", "rows")
CENTRES = 2.0 * torch.randn(5, 6, generator=generator(0))


def data(count=1500, classes=5, seed=0):
    y = torch.randint(0, classes, (count,), generator=generator(seed))
    return TaskData(CENTRES[y] + torch.randn(count, 6, generator=generator(seed + 1)), y)


def fitted_map(features=60):
    features = RandomReLU((6,), features, seed=0)
    features.fit(torch.randn(500, 6, generator=generator(9)) * 2)
    return features


def teach(learner, task, size=1024):
    learner.begin_task(task)
    for batch in task.batches(size):
        learner.observe(batch)
    learner.end_task(task)
    return learner


def solver(alpha="gcv", capacity=5, dtype=torch.float32, features=None, **options):
    setting = Setting((6,), capacity, seed=0, dtype=dtype)
    return Exact(features or fitted_map(), setting, ExactConfig(alpha=alpha, **options))


def part(task, index):
    return TaskData(task.x[index], task.y[index], None if task.weight is None else task.weight[index])


def assert_same(first, second, x):
    for name in SUMS:
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert torch.equal(first.logits(x), second.logits(x))


@pytest.mark.parametrize("size", [1, 7, 1024])
def test_chunks_do_not_matter_to_the_last_bit(size):
    task = data(2500 if size > 1 else 300)
    whole = teach(solver(), task, size=len(task))
    assert_same(teach(solver(), task, size), whole, task.x)


@relaxed
@given(st.permutations(range(6)), st.integers(0, 1000))
def test_order_does_not_matter_to_the_last_bit(order, seed):
    task = data(600)
    shuffled = part(task, torch.randperm(600, generator=generator(seed)))
    pieces = [part(shuffled, index) for index in torch.arange(600).split([5, 95, 200, 1, 199, 100])]
    learner = solver()
    for number in order:
        teach(learner, pieces[number], size=64)
    learner.counters[1] = 5  # the classes are rows 0 to 4 in any order
    assert_same(learner, teach(solver(), task), task.x)


def test_the_number_of_threads_does_not_matter_to_the_last_bit():
    task, learners = data(3000), []
    for count in (1, 2):
        with threads(count):
            learners.append(teach(solver(features=fitted_map(300)), task))
            learners[-1].logits(task.x[:1])  # solved on this many threads
    for name in SUMS:
        assert torch.equal(getattr(learners[0], name), getattr(learners[1], name)), name
    assert torch.equal(learners[0].logits(task.x).argmax(1), learners[1].logits(task.x).argmax(1))
    with threads(1):
        learners[1].load_state(learners[1].state_dict())
        learners[0].load_state(learners[0].state_dict())
        assert_same(*learners, task.x)


def test_the_sums_are_whole_numbers_and_right():
    task = data(3000)
    learner = teach(solver(), task)
    h = learner.features(task.x).numpy().astype(np.int64)
    one_hot = np.eye(5, dtype=np.int64)[task.y.numpy()]
    assert np.array_equal(learner.gram.numpy(), h.T @ h)
    assert np.array_equal(learner.class_sums.numpy(), one_hot.T @ h)
    assert np.array_equal(learner.class_weights.numpy(), one_hot.sum(0))
    assert float(learner.rows) == 3000


def test_blocks_of_the_largest_features_stay_exact_in_float32():
    learner = solver(features=fitted_map(8))
    learner.features.forward = lambda x: torch.full((len(x), 9), 127.0)
    teach(learner, TaskData(torch.zeros(5000, 6), torch.zeros(5000, dtype=torch.int64)), size=5000)
    assert (learner.gram == 5000 * 127**2).all()


@pytest.mark.parametrize("alpha", [10.0, 1e4])
def test_scores_are_those_of_scikit_learns_ridge(alpha):
    task = data(400)
    learner = teach(solver(alpha, dtype=torch.float64), task, size=37)
    h = learner.features(task.x).double().numpy()
    ridge = Ridge(alpha=alpha, fit_intercept=False, solver="cholesky").fit(h, np.eye(5)[task.y.numpy()])
    np.testing.assert_allclose(learner.logits(task.x).numpy(), ridge.predict(h), rtol=0, atol=1e-6)


def test_weights_are_repetitions_to_the_last_bit():
    task = data(300)
    weight = torch.arange(300) % 4
    weighted = teach(solver(), TaskData(task.x, task.y, weight.float()), size=50)
    repeated = teach(solver(), TaskData(task.x.repeat_interleave(weight, 0), task.y.repeat_interleave(weight)), size=50)
    assert_same(weighted, repeated, task.x)
    unweighted = teach(solver(), task)
    assert_same(teach(solver(), TaskData(task.x, task.y, torch.ones(300))), unweighted, task.x)


def test_the_order_in_which_classes_come_does_not_matter_however_many_there_is_room_for():
    task = data(600)
    scores = []
    for order in ([0, 1, 2, 3, 4], [3, 0, 4, 2, 1]):
        row_of = torch.tensor(order).argsort()  # rows go by arrival
        learner = solver(capacity=5000)
        for c in order:
            mine = (task.y == c).nonzero()[:, 0]
            teach(learner, TaskData(task.x[mine], row_of[task.y[mine]]))
        scores.append(learner.logits(task.x)[:, row_of])
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=1e-5)
    assert torch.equal(scores[0].argmax(1), scores[1].argmax(1))


def test_a_class_taught_in_two_halves_is_the_class_taught_once():
    task = data(400, classes=3)
    halves = teach(solver(), part(task, torch.arange(0, 400, 2)))
    teach(halves, part(task, torch.arange(1, 400, 2)))
    assert_same(halves, teach(solver(), task), task.x)


def test_it_forgets_nothing_when_classes_come_one_by_one():
    task = data(1000)
    learner = solver()
    for c in range(5):
        teach(learner, part(task, (task.y == c).nonzero()[:, 0]))
    assert_same(learner, teach(solver(), task), task.x)
    assert (learner.logits(task.x).argmax(1) == task.y).float().mean() > 0.9


def test_the_gcv_solution_is_the_solution_for_the_alpha_it_chose():
    task = data(400)
    learner = teach(solver(dtype=torch.float64), task)
    h = learner.features(task.x).double().numpy()
    Y = np.eye(5)[task.y.numpy()]
    scores = {}
    for alpha in np.trace(h.T @ h) / h.shape[1] * 10.0 ** np.arange(-6, 1.01, 0.25):
        hat = h @ np.linalg.solve(h.T @ h + alpha * np.eye(h.shape[1]), h.T)
        scores[((Y - hat @ Y) ** 2).sum() / (400 - np.trace(hat)) ** 2] = hat @ Y
    np.testing.assert_allclose(learner.logits(task.x).numpy(), scores[min(scores)], rtol=0, atol=1e-6)


def test_another_alpha_gives_another_solution_at_once():
    task = data(200)
    learner = teach(solver(1.0), task)
    before = learner.logits(task.x)
    learner.configure({"alpha": 1e5})
    assert torch.equal(learner.logits(task.x), teach(solver(1e5), task).logits(task.x))
    assert not torch.equal(learner.logits(task.x), before)


def test_a_loaded_state_gives_the_loaded_solution():
    first, second = data(200), data(200, seed=5)
    learner, other = teach(solver(), first), teach(solver(), second)
    learner.logits(first.x)
    learner.load_state(copy.deepcopy(other.state_dict()))
    assert torch.equal(learner.logits(first.x), other.logits(first.x))


def test_predictions_do_not_depend_on_the_batch():
    task = data(300)
    learner = teach(solver(), task)
    whole = learner.logits(task.x)
    for size in (1, 7):
        scores = predict_logits(learner, task.x, size)
        torch.testing.assert_close(scores, whole, rtol=0, atol=1e-5)


def test_too_few_first_rows_are_refused_with_a_sentence():
    learner = solver(features=RandomReLU((6,), 20, seed=0))
    with pytest.raises(ValueError, match=r"needs at least 2 rows, .* and got 1 \(n_samples=1\)"):
        learner.begin_task(data(1))
    assert learner.seen == 0
    assert not learner.features.fitted
    teach(solver(), data(1)).logits(torch.zeros(1, 6))  # a fitted map takes a single row


def test_a_module_in_front_is_frozen_and_the_rest_is_exact():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.5))
    before = copy.deepcopy(net.state_dict())
    task = data(600)
    learner = teach(Exact(net, Setting((6,), 5, seed=0), ExactConfig()), task)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert learner.backbone is net
    assert not any(p.requires_grad for p in net.parameters())
    assert (learner.logits(task.x).argmax(1) == task.y).float().mean() > 0.85
    h = learner.features(learner.scale(task.x))
    assert torch.equal(learner.gram, h.double().T @ h.double())


def test_the_map_is_fitted_once():
    learner = solver(features=RandomReLU((6,), 20, seed=0))
    teach(learner, data(100))
    mark = learner.features.map_id
    teach(learner, data(100, seed=3))
    assert learner.features.map_id == mark
