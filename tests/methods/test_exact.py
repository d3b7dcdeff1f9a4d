"""The exact solver: whole-number sums, whatever the order, and the ridge solution of all data seen."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from torch import nn

from cldnet.device import generator, threads
from cldnet.estimator.checks import CHECKS
from cldnet.math.symmetric import unpack
from cldnet.methods import build_learner
from cldnet.methods.exact import Exact, ExactConfig
from cldnet.methods.learner import Setting, TaskData, predict_logits
from cldnet.nets import FeatureMap, RandomFourier, RandomReLU, WhitenedPatches

relaxed = settings(deadline=None, max_examples=15)
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


def kept(learner):
    return {
        name: tensor for name, tensor in learner.state_dict().items() if name.startswith(("second", "class_", "rows"))
    }


def gram(learner):
    return unpack(learner.second.packed, learner.second.width)


def state(learner):
    return {name: tensor.clone() for name, tensor in learner.state_dict().items()}


def split(count, taken, seed=0):
    order = torch.randperm(count, generator=generator(seed))
    return order[:taken], order[taken:]


def assert_same(first, second, x):
    for name in kept(first):
        assert torch.equal(kept(first)[name], kept(second)[name]), name
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
    for name in kept(learners[0]):
        assert torch.equal(kept(learners[0])[name], kept(learners[1])[name]), name
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
    assert np.array_equal(gram(learner).numpy(), h.T @ h)
    assert np.array_equal(learner.class_sums.numpy(), one_hot.T @ h)
    assert np.array_equal(learner.class_weights.numpy(), one_hot.sum(0))
    assert float(learner.rows) == 3000


def test_blocks_of_the_largest_features_stay_exact_in_float32():
    learner = solver(features=fitted_map(8))
    learner.features.forward = lambda x: torch.full((len(x), 9), 127.0)
    teach(learner, TaskData(torch.zeros(5000, 6), torch.zeros(5000, dtype=torch.int64)), size=5000)
    assert (gram(learner) == 5000 * 127**2).all()


@pytest.mark.parametrize("alpha", [10.0, 1e4])
def test_predicted_vectors_are_those_of_scikit_learns_ridge(alpha):
    task = data(400)
    learner = teach(solver(alpha), task, size=37)
    h = learner.features(task.x).double().numpy()
    ridge = Ridge(alpha=alpha, fit_intercept=False, solver="cholesky").fit(h, np.eye(5)[task.y.numpy()])
    np.testing.assert_allclose(learner.vectors(task.x).numpy(), ridge.predict(h), rtol=0, atol=1e-6)


def test_scores_are_those_of_linear_discriminant_analysis_where_rows_are_many():
    task = data(20_000)
    learner = teach(solver(1e-3), task)
    h = learner.features(task.x).double().numpy()
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(h, task.y.numpy()).predict_log_proba(h)
    found = learner.logits(task.x).log_softmax(1).numpy()
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.999
    assert np.median(np.abs(np.exp(found) - np.exp(expected)).max(1)) < 0.001


@pytest.mark.parametrize("gram", ["full", "diagonal"])
def test_rare_classes_are_found_that_the_nearest_class_vector_never_finds(gram):
    task, unseen = data(3000), data(2000, seed=10)
    x, unseen_x = task.x / 2 + torch.randn(3000, 6, generator=generator(7)), unseen.x / 2
    rare = (task.y >= 3) & (torch.arange(3000) % 20 > 0)
    learner = teach(solver(gram=gram), TaskData(x[~rare], task.y[~rare]))
    accuracy = {}
    for name, answers in {"nearest": learner.vectors(unseen_x), "scores": learner.logits(unseen_x)}.items():
        right = answers.argmax(1) == unseen.y
        accuracy[name] = min(float(right[unseen.y == c].float().mean()) for c in range(5))
    assert accuracy["scores"] > accuracy["nearest"] + 0.1


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


def test_the_gcv_solution_is_the_solution_for_the_alpha_that_separates_left_out_rows_best():
    task = data(400)
    learner = teach(solver(), task)
    h, y = learner.features(task.x).double().numpy(), task.y.numpy()
    Y = np.eye(5)[y]
    found = {}
    for alpha in np.trace(h.T @ h) / h.shape[1] * 10.0 ** np.arange(-6, 1.01, 0.25):
        hat = h @ np.linalg.solve(h.T @ h + alpha * np.eye(h.shape[1]), h.T)
        left_out = Y - (Y - hat @ Y) / (1 - np.trace(hat) / 400)
        means = np.stack([left_out[y == c].mean(0) for c in range(5)])
        apart = (means - left_out.mean(0))[y]
        within = np.cov(left_out - means[y], rowvar=False, bias=True)
        even = within + 0.1 * np.trace(within) / 5 * np.eye(5)
        found[(apart @ np.linalg.inv(even) * apart).sum()] = hat @ Y
    np.testing.assert_allclose(learner.vectors(task.x).numpy(), found[max(found)], rtol=0, atol=1e-6)


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
    learner = solver(features=RandomReLU((6,), 20, seed=0, net=nn.Identity()))
    with pytest.raises(ValueError, match=r"needs at least 2 samples, .* and got 1 \(n_samples=1\)"):
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
    assert torch.equal(gram(learner), h.double().T @ h.double())


def test_the_map_is_fitted_once():
    learner = solver(features=RandomReLU((6,), 20, seed=0))
    teach(learner, data(100))
    mark = learner.features.map_id
    teach(learner, data(100, seed=3))
    assert learner.features.map_id == mark


@relaxed
@given(st.integers(1, 599), st.integers(0, 1000))
def test_forgetting_rows_equals_never_having_seen_them(count, seed):
    task = data(600)
    gone, left = split(600, count, seed)
    learner = teach(solver(dtype=torch.float64), task)
    learner.forget(part(task, gone))
    never = teach(solver(dtype=torch.float64), part(task, left))
    for name in kept(learner):
        assert torch.equal(kept(learner)[name], kept(never)[name]), name
    seen = never.seen
    torch.testing.assert_close(learner.logits(task.x)[:, :seen], never.logits(task.x), rtol=0, atol=1e-6)
    assert (learner.logits(task.x).argmax(1) < seen).all()
    assert not learner.vectors(task.x)[:, seen:].any()


@pytest.mark.parametrize("weighted", [False, True])
def test_forgetting_everything_leaves_zeros_and_the_model_learns_again(weighted):
    task = data(100)
    task = TaskData(task.x, task.y, torch.linspace(0.1, 0.9, 100) if weighted else None)
    learner = teach(solver(), part(task, torch.arange(100).flip(0)), size=7)
    learner.forget(task)
    assert not any(tensor.any() for tensor in kept(learner).values())
    assert not learner.logits(task.x).any()
    assert_same(teach(learner, task), teach(solver(), task), task.x)


@relaxed
@given(st.integers(0, 1000))
def test_weighted_rows_are_forgotten_to_rounding_and_a_class_that_is_gone_leaves_nothing(seed):
    task = data(200, classes=3)
    task = TaskData(task.x, task.y, 0.1 + torch.rand(200, generator=generator(seed)))
    learner = teach(solver(), task, size=33)
    for index in split(200, 90, seed)[0].split(30):
        mine = index[task.y[index] != 1]
        learner.forget(part(task, mine))
    rest = (task.y == 1).nonzero()[:, 0]
    for index in rest.flip(0).split(9):
        learner.forget(part(task, index))
    assert float(learner.class_weights[1]) == 0
    assert not learner.class_sums[1].any()
    mine = split(200, 90, seed)[1]
    never = teach(solver(), part(task, mine[task.y[mine] != 1]))
    torch.testing.assert_close(gram(learner), gram(never), rtol=1e-9, atol=1e-6)


WRONG = {
    "a class that was never seen": lambda task: TaskData(task.x[:2], torch.tensor([4, 4])),
    "more rows of a class than there were": lambda task: TaskData(
        task.x[task.y == 1].repeat(2, 1), task.y[task.y == 1].repeat(2)
    ),
    "as many other rows as the class had": lambda task: TaskData(task.x[task.y == 1] + 0.5, task.y[task.y == 1]),
    "larger weights": lambda task: TaskData(
        task.x[task.y == 1], task.y[task.y == 1], torch.full((int((task.y == 1).sum()),), 1.01)
    ),
    "rows far from all others": lambda task: TaskData(
        task.x[task.y == 0][:1].repeat(40, 1) * 3, torch.zeros(40, dtype=torch.int64)
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_forgetting_what_was_never_learned_is_refused_and_changes_nothing(wrong):
    task = data(200, classes=4)
    learner = teach(solver(), task)
    before, scores = state(learner), learner.logits(task.x)
    with pytest.raises(ValueError, match="These samples were not learned"):
        learner.forget(WRONG[wrong](task))
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())
    assert torch.equal(learner.logits(task.x), scores)


def test_a_sketch_cannot_forget_and_says_so():
    task = data(100)
    learner = teach(solver(gram=10), task)
    before = state(learner)
    with pytest.raises(ValueError, match=r"A sketch \(gram=10\) cannot forget: .*gram='full'"):
        learner.forget(part(task, [0, 1]))
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())


def test_forgetting_behind_a_module_of_the_users_own_uses_its_scaling():
    task = data(300)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
    learner = teach(Exact(net, Setting((6,), 5, seed=0), ExactConfig()), task)
    learner.forget(part(task, torch.arange(100)))
    h = learner.features(learner.scale(task.x[100:])).double()
    assert torch.equal(gram(learner), h.T @ h)


def test_a_forgotten_class_is_never_the_answer_and_can_be_learned_again():
    task = data(300)
    learner = teach(solver(), task)
    whole = gram(learner)
    learner.forget_class(2)
    assert not learner.vectors(task.x)[:, 2].any()
    assert (learner.logits(task.x).argmin(1) == 2).all()
    assert float(learner.class_weights[2]) == 0
    assert torch.equal(gram(learner), whole)
    teach(learner, part(task, (task.y == 2).nonzero()[:, 0]))
    assert (learner.logits(task.x).argmax(1) == task.y).float().mean() > 0.9
    with pytest.raises(ValueError, match="There is no class 5: 5 classes were seen"):
        learner.forget_class(5)


@relaxed
@given(st.integers(0, 1000))
def test_absorbing_shards_whose_classes_arrived_in_different_orders_equals_one_pass(seed):
    task = data(600)
    order = torch.randperm(600, generator=generator(seed))
    total = solver(dtype=torch.float64)
    for number, index in enumerate(order.tensor_split(10)):
        arrival = torch.randperm(5, generator=generator(seed + number))  # class arrival[j] is row j of the shard
        shard = teach(solver(), TaskData(task.x[index], arrival.argsort()[task.y[index]]))
        total.merge_sums(shard.sums(), arrival[: shard.seen])
    assert_same(total, teach(solver(dtype=torch.float64), task), task.x)


def test_a_model_can_absorb_its_own_sums():
    task = data(100)
    learner = teach(solver(), task)
    learner.merge_sums(learner.sums(), torch.arange(5))
    assert_same(learner, teach(teach(solver(), task), task), task.x)


def test_the_choice_is_made_once_and_anew_when_sums_or_alpha_change():
    task = data(200)
    learner = teach(solver(), task)
    first = learner.ridge
    learner.logits(task.x)
    assert learner.ridge is first
    changes = [
        lambda: learner.observe(next(iter(task.batches(10)))),
        lambda: learner.forget(part(task, [0])),
        lambda: learner.merge_sums(learner.sums(), torch.arange(5)),
        lambda: learner.forget_class(0),
        lambda: learner.configure({"alpha": 2.0}),
        lambda: learner.load_state(state(learner)),
    ]
    for change in changes:
        before = learner.ridge
        change()
        assert learner.ridge is not before
    assert learner.ridge.alpha == 2.0


def test_copies_and_pickles_leave_the_choice_out():
    learner = teach(solver(), data(100))
    unsolved = len(pickle.dumps(learner))
    learner.logits(data(5).x)
    assert len(pickle.dumps(learner)) == unsolved
    assert copy.deepcopy(learner)._solved is None


def test_a_state_from_before_the_gram_was_packed_is_taken_over():
    task = data(300)
    learner = teach(solver(), task)
    old = {name: tensor for name, tensor in state(learner).items() if name not in ("second.packed", "first_classes")}
    loaded = solver()
    loaded.load_state({**old, "gram": gram(learner)})
    assert_same(loaded, learner, task.x)
    assert int(loaded.first_classes) == 5


def test_the_classes_that_the_map_was_fitted_on_are_known():
    learner = solver(features=RandomReLU((6,), 20, seed=0))
    task = data(300)
    for classes in ((0, 1), (2, 3, 4)):
        teach(learner, part(task, torch.isin(task.y, torch.tensor(classes)).nonzero()[:, 0]))
    assert int(learner.first_classes) == 2
    assert int(teach(solver(), task).first_classes) == 0


def test_represented_inputs_are_small_and_score_alike():
    task = data(1500)
    learner = teach(solver(), task)
    h = learner.represent(task.x)
    assert h.dtype == torch.int8
    assert torch.equal(learner.score_represented(h), learner.logits(task.x))


class Fractions(FeatureMap):
    """Inputs as they are: a map of somebody's own, without whole numbers."""

    out_features, fitted = 6, torch.tensor(True)

    def fit(self, x, weight=None):
        raise AssertionError("it is fitted")

    def forward(self, x):
        return 1000 * x.double()


def test_features_that_are_no_whole_numbers_are_summed_in_the_type_that_is_asked_for():
    task = data(3000)
    exact, coarse = (teach(solver(features=Fractions(), products=kind), task) for kind in ("float64", "float32"))
    h = 1000 * task.x.double()
    errors = [float((gram(learner) - h.T @ h).abs().max() / (h.T @ h).abs().max()) for learner in (exact, coarse)]
    assert errors[0] < 1e-14 < 1e-9 < errors[1]
    assert torch.equal(exact.represent(task.x), h)


@pytest.mark.parametrize("bad", ["half", 0, -3, True, 2.0, None])
def test_a_gram_that_does_not_exist_is_refused_with_a_sentence(bad):
    with pytest.raises(ValueError, match="should be 'full', 'diagonal', or the number of rows of a sketch"):
        ExactConfig(gram=bad)


def test_other_wrong_settings_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="products='half' should be 'float32' or 'float64'"):
        ExactConfig(products="half")
    learner = teach(solver(gram=10), data(100))
    with pytest.raises(ValueError, match="gram cannot change from 10 to 'full': make a new model"):
        learner.configure({"alpha": 1.0})
    assert learner.config == ExactConfig(gram=10)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("options", [{"gram": "diagonal"}, {"gram": 12}, {"products": "float64"}], ids=str)
def test_every_variant_passes_every_check(options, check):
    CHECKS[check](lambda setting: build_learner("exact", setting, options, backbone_options={"features": 30}))


def test_the_map_says_why_it_needs_so_many_rows():
    learner = Exact(WhitenedPatches((8, 8), filters=400, seed=0), Setting((8, 8), 2, seed=0), ExactConfig())
    with pytest.raises(
        ValueError, match=r"at least 4445 samples, because 400 filters need 40,000 patches .* fewer filters"
    ):
        teach(learner, TaskData(torch.zeros(60, 8, 8), torch.zeros(60, dtype=torch.int64)))


@pytest.mark.parametrize("make", [RandomReLU, RandomFourier])
def test_a_module_in_front_of_random_features_is_the_backbone_that_was_handed_in(make):
    module = nn.Linear(6, 4)
    features = make((4,), 8, seed=0, net=module)
    assert Exact(features, Setting((6,), 2, seed=0), ExactConfig()).backbone is module


@pytest.mark.parametrize("backbone", ["patches", "random-relu"])
@pytest.mark.parametrize("method", ["finetune", "cldnet"])
def test_methods_that_train_their_backbone_refuse_a_fixed_map(method, backbone):
    with pytest.raises(ValueError, match=rf"{method}.* trains its backbone, but a {backbone} map is fixed"):
        build_learner(method, Setting((16, 16), 4, seed=0), backbone=backbone)


def test_sums_that_were_added_are_taken_back_and_classes_that_are_dropped_make_room():
    first, second = data(seed=0), data(seed=2)
    learner = teach(solver(capacity=6), first)
    before = state(learner)
    teach(learner, second)
    features = learner.represent(second.x).double()
    sums = {
        "second.packed": teach(solver(capacity=6), second).second.packed,
        "class_sums": torch.stack([features[second.y == c].sum(0) for c in (4, 2, 0, 1, 3)]),
        "class_weights": torch.stack([(second.y == c).sum() for c in (4, 2, 0, 1, 3)]).double(),
        "rows": torch.tensor(float(len(second.y)), dtype=torch.float64),
    }
    learner.subtract_sums(sums, torch.tensor([4, 2, 0, 1, 3]))
    assert all(torch.equal(before[name], tensor) for name, tensor in kept(learner).items())
    learner.forget_class(1)
    scores = learner.logits(first.x[:9])
    learner.drop(torch.tensor([1]), capacity=5)
    assert (learner.seen, learner.setting.capacity, int(learner.first_classes)) == (4, 5, int(before["first_classes"]))
    assert torch.equal(learner.class_sums[:4], before["class_sums"][[0, 2, 3, 4]])
    assert not learner.class_sums[4].any()
    torch.testing.assert_close(learner.logits(first.x[:9]), scores[:, [0, 2, 3, 4]])


def test_dropped_classes_that_the_map_was_fitted_on_are_not_counted_any_more():
    learner = teach(solver(capacity=6, features=RandomReLU((6,), 60, seed=0)), part(data(), data().y < 3))
    assert int(learner.first_classes) == 3
    teach(learner, data(seed=3))
    for row in (0, 2, 4):
        learner.forget_class(row)
    learner.drop(torch.tensor([0, 2, 4]), capacity=6)
    assert (learner.seen, int(learner.first_classes)) == (2, 1)


def test_nothing_is_left_when_all_fractions_are_taken_back():
    task = data(count=50)
    weight = torch.rand(50, generator=generator(3), dtype=torch.float64)
    learner = teach(solver(), TaskData(task.x, task.y, weight))
    sums = {name: tensor.clone() * (1 - 1e-15) for name, tensor in learner.sums().items()}
    learner.subtract_sums(sums, torch.arange(learner.seen))
    assert not any(tensor.any() for name, tensor in kept(learner).items())
