"""CLDNet's readings, its two objectives against their formulas, and modules that nobody rewrote."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.math import hsic_reference as reference
from torch import nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.math import hsic
from cldnet.math.basis import basis_vectors
from cldnet.methods import build_learner
from cldnet.methods.cldnet import CLDNet, CLDNetPaperConfig, class_scores, vectors_by_class
from cldnet.methods.config import config_from_json, config_to_json
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.owm import OWMConfig
from cldnet.methods.parts.alpha import AdaptiveAlpha, ConstantAlpha, DecayingAlpha, PerTask
from cldnet.methods.parts.projection import BatchMean, EverySample
from cldnet.methods.parts.variants import (
    AllClasses,
    BottleneckFirst,
    Cosine,
    EmbeddingAlone,
    EveryStep,
    FixedLast,
    FreeLast,
    Given,
    InnerProduct,
    InTurn,
    Last,
    NormalisedHSIC,
    PerAlpha,
    Principal,
    SeenClasses,
    TaskClasses,
    TaskEnd,
    Together,
    TraceHSIC,
)
from cldnet.methods.pnn import PNNConfig

CENTRES = 4.0 * torch.randn(8, 12, generator=generator(0))


def blobs(classes, count=40, seed=0):
    y = torch.tensor(classes).repeat(count)
    return TaskData(CENTRES[y] + torch.randn(len(y), 12, generator=generator(seed)), y)


def accuracy(learner, *tasks):
    return [float((learner.logits(task.x).argmax(1) == task.y).float().mean()) for task in tasks]


def make(seed=0, method="cldnet-paper", widths=(24,), dtype=torch.float32, **options):
    defaults = {"embed_dim": 16} if method == "cldnet-paper" else {}
    setting = Setting((12,), 8, seed=seed, dtype=dtype)
    return build_learner(method, setting, defaults | options, "mlp", {"widths": widths})


def state_of(learner):
    return torch.cat([t.flatten().double() for name, t in learner.state_dict().items() if name != "random"])


READINGS = {
    "dependence": [NormalisedHSIC(), NormalisedHSIC(sigma=1.0), NormalisedHSIC(epsilon=1e-3), TraceHSIC()],
    "feed": [BatchMean(), EverySample()],
    "alpha": [
        PerTask(AdaptiveAlpha(10.0)),
        AdaptiveAlpha(3.0),
        ConstantAlpha(3.0),
        DecayingAlpha(9.0),
        PerTask(AdaptiveAlpha(), 7),
    ],
    "when": [EveryStep(), TaskEnd(), TaskEnd(batch_size=7)],
    "steps": [InTurn(), Together(), Together(weight=0.1), BottleneckFirst(), EmbeddingAlone()],
    "last": [Last(), FreeLast(), FixedLast()],
    "first_weights": [Given(), Principal(), Principal(samples=20)],
    "similarity": [Cosine(), InnerProduct()],
    "hidden_share": [1.0, 0.1],
    "lr_end": [1.0, 0.0],
    "embed_init": [1.0, 0.3],
    "softmax": [SeenClasses(), TaskClasses(), AllClasses()],
    "hbo_lr": [0.003, 0.0],
    "beta": [500.0, 1.0],
    "temperature": [0.07, 0.2],
    "bias": [True, False],
    "lr": [0.05, 0.03],
}


COMPANIONS = {
    "dependence": {"beta": 20.0},  # the trace form has gradients of another size
    "feed": {"alpha": ConstantAlpha(1000.0)},  # every sample's input would fill these 12 dimensions at once
}


@pytest.mark.parametrize("field", READINGS)
def test_every_reading_learns_and_every_one_is_another(field):
    states = []
    for value in READINGS[field]:
        learner = make(widths=(100,), **{field: value}, **COMPANIONS.get(field, {}))
        first, second = blobs([0, 1]), blobs([2, 3])
        for task in (first, second):
            fit_task(learner, task, epochs=6, batch_size=16)
            right = task.class_rows[learner.logits(task.x)[:, task.class_rows].argmax(1)] == task.y
            assert right.float().mean() > 0.9, f"{field}={value} does not learn"
        states.append(state_of(learner))
    for i, state in enumerate(states):
        for other in states[:i]:
            assert not torch.equal(state, other), f"two values of {field} do the same"


def test_the_default_configuration_is_the_first_of_each_reading():
    assert CLDNetPaperConfig() == CLDNetPaperConfig(**{field: values[0] for field, values in READINGS.items()})


def test_a_learning_rate_in_units_of_rows_over_alpha_is_that_many_plain_steps():
    task = blobs([0, 1])
    [batch] = task.batches(80)
    common = {"feed": EverySample(), "alpha": ConstantAlpha(16.0), "clip": 1e9, "momentum": 0.0}
    natural, plain = make(rate=PerAlpha(), lr=0.3, hbo_lr=0.001, **common), make(lr=0.3 * 5, hbo_lr=0.005, **common)
    for learner in (natural, plain):
        learner.begin_task(task)
        learner.observe(batch)
    for ours, theirs in zip(natural.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_learning_rates_fall_in_equal_steps_to_their_share_at_the_tasks_end():
    task = blobs([0, 1])
    moved = []
    for end, step in ((1.0, 0), (0.2, 0), (1.0, 3), (0.2, 3)):
        learner = make(lr_end=end, momentum=0.0, hbo_lr=0.0)
        learner.begin_task(task)
        before = learner.embedding.weight.detach().clone()
        learner.observe(Batch(task.x, task.y, None, step=step, steps=4, epoch=0))
        moved.append(learner.embedding.weight.detach() - before)
    torch.testing.assert_close(moved[0], moved[1])
    torch.testing.assert_close(0.2 * moved[2], moved[3], rtol=1e-3, atol=1e-7)


def test_a_rate_that_falls_also_falls_where_the_gradient_is_clipped():
    task = blobs([0, 1])
    moved = []
    for step in (0, 3):
        learner = make(lr_end=0.1, momentum=0.0, hbo_lr=0.0, clip=1e-3)
        learner.begin_task(task)
        before = learner.embedding.weight.detach().clone()
        learner.observe(Batch(task.x, task.y, None, step=step, steps=4, epoch=0))
        moved.append(float((learner.embedding.weight.detach() - before).norm()))
    assert moved[1] == pytest.approx(0.1 * moved[0], rel=0.05)


def test_rows_of_weight_zero_reach_no_projector_that_is_fed_at_the_end_either():
    task, extra = blobs([0, 1]), blobs([0, 1], seed=5)
    weight = torch.cat([torch.ones(len(task)), torch.zeros(len(extra))])
    both = TaskData(torch.cat([task.x, extra.x]), torch.cat([task.y, extra.y]), weight)
    sums = []
    for data in (task, both):
        learner = make(when=TaskEnd(batch_size=len(task)))
        learner.scale.fit(task.x)
        learner.begin_task(data)
        learner.end_task(data)
        sums.append(learner.projector_sums()["embedding"])
    assert bool(sums[0].any())
    torch.testing.assert_close(*sums)


@pytest.mark.parametrize(("method", "options"), [("cldnet", {"embed_dim": 8}), ("crnet", {"hidden": 50})])
def test_what_is_built_in_cannot_change_later(method, options):
    learner = build_learner(method, Setting((12,), 8, seed=0))
    before = learner.config
    with pytest.raises(ValueError, match=r"cannot change from .*: make a new model"):
        learner.configure(options)
    assert learner.config == before


def test_however_inputs_are_scaled_the_best_preset_learns_and_does_not_forget():
    for scale in (1e-3, 1.0, 1e3):
        learner = make(method="cldnet", widths=(100,), embed_dim=16)
        tasks = [TaskData(scale * task.x, task.y) for task in (blobs([0, 1]), blobs([2, 3]), blobs([4, 5]))]
        for task in tasks:
            fit_task(learner, task, epochs=6, batch_size=16)
        assert min(accuracy(learner, *tasks)) > 0.95


def test_a_free_last_layer_is_not_projected_and_a_fixed_one_rests():
    task = blobs([0, 1])
    for last, projected, moved in ((Last(), True, True), (FreeLast(), False, True), (FixedLast(), False, False)):
        learner = make(last=last, hbo_lr=0.0)
        before = learner.embedding.weight.detach().clone()
        fit_task(learner, task, epochs=2, batch_size=16)
        assert bool(learner.projection.layers[-1].A.any()) is projected
        assert (not torch.equal(learner.embedding.weight, before)) is moved
        assert all(bool(layer.A.any()) for layer in list(learner.projection.layers)[:-1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"similarity": Cosine()}, "needs embeddings that are not zero"),
        ({"alpha": DecayingAlpha()}, "use ConstantAlpha"),
        ({"hidden_share": -0.1}, "hidden_share=-0.1 should not be negative"),
    ],
)
def test_readings_that_do_not_go_together_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        make(method="cldnet", **options)


def begun(learner, task):
    learner.begin_task(task)
    x = learner.scale(task.x)
    return x, Batch(task.x, task.y, None, 0, 1, 0)


@pytest.mark.parametrize("dependence", [NormalisedHSIC(), TraceHSIC()])
def test_the_bottleneck_moves_each_layer_by_its_own_objective_only(dependence):
    learner = make(widths=(10, 9), dependence=dependence, beta=3.0).double()
    task = blobs([0, 1, 2], count=6)
    x, batch = begun(learner, task)
    x = x.double()
    flow, _ = learner.forward_pass(x)
    gradients = learner.projection.gradients(flow, learner.bottleneck_deltas(flow, x, batch.y))
    labels = hsic.label_kernel(batch.y, dtype=torch.float64)

    def objective(z):
        if isinstance(dependence, TraceHSIC):
            kernel, inputs = reference.median_kernel(z), reference.median_kernel(x)
            return reference.hsic(kernel, inputs) - 3.0 * reference.hsic(kernel, labels)
        kernel, inputs = reference.gaussian_kernel(z), reference.gaussian_kernel(x)
        return reference.nhsic(kernel, inputs) - 3.0 * reference.nhsic(kernel, labels)

    below = x
    layers = [*(m for m in learner.net.modules() if isinstance(m, nn.Linear)), learner.embedding]
    assert len(gradients) == 2 * len(layers)
    for number, layer in enumerate(layers):
        z = layer(below.detach())
        if number < len(layers) - 1:
            z = z.clamp_min(0)
        expected = torch.autograd.grad(objective(z), [layer.weight, layer.bias])
        torch.testing.assert_close(gradients[layer.weight], expected[0], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(gradients[layer.bias], expected[1], rtol=1e-6, atol=1e-9)
        below = z


@pytest.mark.parametrize(
    ("softmax", "classes"),
    [(SeenClasses(), [0, 1, 2, 3, 4]), (TaskClasses(), [2, 4]), (AllClasses(), list(range(8)))],
)
def test_the_embedding_loss_is_its_formula(softmax, classes):
    learner = make(softmax=softmax, temperature=0.3)
    fit_task(learner, blobs([0, 1, 3]), epochs=1, batch_size=16)
    x, unweighted = begun(learner, blobs([2, 4], count=5))
    weight = torch.linspace(0, 2, 10)
    for batch in (unweighted, unweighted._replace(weight=weight)):
        z = learner.embed(x).detach()
        total = 0.0
        for i, (row, y) in enumerate(zip(z, batch.y.tolist(), strict=True)):
            cosine = [float(row @ learner.basis[c] / (row.norm() * learner.basis[c].norm())) for c in range(8)]
            exponentials = torch.tensor([cosine[c] / 0.3 for c in classes]).exp()
            loss = -(torch.tensor(cosine[y] / 0.3).exp() / exponentials.sum()).log()
            total += float(loss) * (1.0 if batch.weight is None else float(weight[i]))
        assert float(learner.embedding_loss(z, batch.y, batch.weight)) == pytest.approx(total / 10, rel=1e-4)


def test_the_projectors_are_fed_at_the_task_end_with_alpha_of_the_end():
    first = blobs([0, 1], count=16)
    learner = make(when=TaskEnd(batch_size=8), alpha=DecayingAlpha(1.0, 0.01))
    learner.begin_task(first)
    for batch in first.batches(8):
        learner.observe(batch)
        assert all(torch.equal(kept.P[0], torch.eye(kept.P.shape[1])) for kept in learner.projection.layers)
    learner.end_task(first)
    rows = torch.stack([learner.scale(part).mean(0) for part in first.x.split(8)]).double()
    rows = torch.cat([rows, torch.ones(4, 1)], dim=1)
    torch.testing.assert_close(learner.projection.layers[0].A[0], rows.T @ rows / 0.01, rtol=1e-5, atol=1e-3)


def test_the_scores_are_cosines_to_the_class_vectors():
    learner = make(temperature=0.5)
    task = blobs([0, 1, 2])
    fit_task(learner, task, epochs=1, batch_size=16)
    z = learner.embed(learner.scale(task.x))
    expected = torch.stack([F.cosine_similarity(z, w.expand_as(z)) for w in learner.basis[:3]], dim=1) / 0.5
    torch.testing.assert_close(learner.logits(task.x), expected, rtol=1e-4, atol=1e-5)


# Forgetting


def test_projection_forgets_much_less_than_fine_tuning():
    tasks = [blobs([0, 1], seed=1), blobs([2, 3], seed=2), blobs([4, 5], seed=3)]
    first, mean = {}, {}
    for method in ("finetune", "owm", "cldnet-paper"):
        learner = make(method=method, widths=(100,))
        for task in tasks:
            fit_task(learner, task, epochs=10, batch_size=16)
        assert accuracy(learner, tasks[-1])[0] > 0.9, method
        first[method] = accuracy(learner, tasks[0])[0]
        mean[method] = sum(accuracy(learner, *tasks)) / 3
    assert first["finetune"] < 0.2
    assert mean["finetune"] < 0.5
    for method in ("owm", "cldnet-paper"):
        assert first[method] > 0.8, method
        assert mean[method] > 0.7, method


# Modules of a user's own


class Own(nn.Module):
    """Convolutions with batch normalisation, a residual connection and dropout, as anybody might write it."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(6)
        self.block = nn.Conv2d(6, 6, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(6 * 9, 20)

    def forward(self, x):
        z = self.relu(self.norm1(self.stem(x.unsqueeze(1))))
        z = self.relu(z + self.norm2(self.block(z)))
        z = F.max_pool2d(self.dropout(z), 2).flatten(1)
        return torch.relu(self.out(z))


PATTERNS = 2.0 * torch.randn(4, 6, 6, generator=generator(7))


def images(classes, count=30, seed=0):
    y = torch.tensor(classes).repeat(count)
    return TaskData(PATTERNS[y] + 0.5 * torch.randn(len(y), 6, 6, generator=generator(seed)), y)


def own(method, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Own()
    with pytest.warns(UserWarning, match=r"net\.norm1\.running_mean"):
        return build_learner(method, Setting((6, 6), 4, seed=0), options, net)


def test_a_users_own_module_learns_two_tasks_without_being_rewritten():
    learner = own("cldnet", embed_dim=16)
    tasks = [images([0, 1], seed=1), images([2, 3], seed=2)]
    for task in tasks:
        fit_task(learner, task, epochs=5, batch_size=15)
    assert min(accuracy(learner, *tasks)) > 0.8
    assert type(learner.backbone) is Own


@pytest.mark.parametrize(("method", "options"), [("owm", {}), ("cldnet-paper", {"embed_dim": 16})])
def test_what_cannot_be_projected_is_frozen_after_the_first_task(method, options):
    learner = own(method, **options)

    def normalisation():
        return {k: v.clone() for k, v in learner.net.state_dict().items() if "norm" in k}

    fresh = normalisation()
    fit_task(learner, images([0, 1]), epochs=1, batch_size=15)
    first = normalisation()
    assert len(first) == 10
    assert not any(torch.equal(first[name], fresh[name]) for name in first), "they learn in the first task"
    weight = learner.net.stem.weight.detach().clone()
    fit_task(learner, images([2, 3]), epochs=2, batch_size=15)
    assert all(torch.equal(tensor, first[name]) for name, tensor in normalisation().items())
    assert not torch.equal(learner.net.stem.weight, weight), "the rest goes on learning"


@pytest.mark.parametrize("method", ["owm", "cldnet-paper"])
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_copied_or_pickled_learner_goes_on_as_the_original_would(method, copier):
    learner = make(method=method)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    before = state_of(learner)
    other = copier(learner)
    fit_task(other, blobs([2, 3]), epochs=2, batch_size=16)
    assert torch.equal(state_of(learner), before)
    fit_task(learner, blobs([2, 3]), epochs=2, batch_size=16)
    assert torch.equal(state_of(learner), state_of(other))
    assert not torch.equal(state_of(learner), before)


@pytest.mark.parametrize("method", ["owm", "cldnet-paper"])
def test_layers_that_the_user_froze_stay_as_they_were(method):
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
    net[0].requires_grad_(False)
    net[4].weight.requires_grad_(False)
    before = copy.deepcopy(net)
    learner = build_learner(method, Setting((12,), 8, seed=0), {}, net)
    for task in (blobs([0, 1]), blobs([2, 3])):
        fit_task(learner, task, epochs=1, batch_size=16)
    assert torch.equal(net[0].weight, before[0].weight)
    assert torch.equal(net[4].weight, before[4].weight)
    assert not torch.equal(net[2].weight, before[2].weight)


def test_a_layer_over_reshaped_rows_is_no_obstacle_to_the_bottleneck():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.mix, self.out = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(18, 16)

        def forward(self, x):
            z = torch.relu(self.mix(torch.relu(self.patch(x.reshape(-1, 4)))))
            return torch.relu(self.out(z.reshape(len(x), 18)))

    learner = build_learner("cldnet-paper", Setting((12,), 8, seed=0), {"embed_dim": 16}, Patches())
    task = blobs([0, 1])
    x, batch = begun(learner, task)
    flow, _ = learner.forward_pass(x)
    deltas = learner.bottleneck_deltas(flow, x, batch.y)
    assert [delta is None for delta in deltas] == [True, False, False, False], (
        "only patch has no row a sample behind it"
    )
    learner.end_task(task)
    fit_task(learner, task, epochs=3, batch_size=16)
    assert accuracy(learner, task)[0] > 0.9


# Configurations


CONFIGURATIONS = [
    CLDNetPaperConfig(),
    CLDNetPaperConfig(
        lr=0.1,
        embed_dim=7,
        dependence=TraceHSIC(),
        feed=EverySample(),
        alpha=PerTask(DecayingAlpha(0.5, 0.2), 30),
        when=TaskEnd(9),
        steps=Together(0.3),
        softmax=TaskClasses(),
    ),
    CLDNetPaperConfig(dependence=NormalisedHSIC(2.0, 1e-3), alpha=ConstantAlpha(0.2), softmax=AllClasses()),
    OWMConfig(alpha=AdaptiveAlpha(0.7)),
    PNNConfig(widths=(3, 4)),
]


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_a_configuration_goes_through_json_unchanged(config):
    assert type(config)(**config_from_json(json.loads(json.dumps(config_to_json(config))))) == config


@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("finetune", {"lr": 0}, r"lr=0 should be a positive number"),
        ("finetune", {"lr": float("nan")}, r"lr=nan should be"),
        ("finetune", {"lr": "fast"}, r"An option of method 'finetune' has the wrong type"),
        ("finetune", {"momentum": 1.0}, r"momentum=1\.0 should lie in"),
        ("owm", {"clip": -1}, r"clip=-1 should be a positive number"),
        ("owm", {"alpha": 0.1}, r"alpha=0\.1 should be a part such as PerTask"),
        ("cldnet-paper", {"hbo_lr": -1}, r"hbo_lr=-1 should not be negative"),
        ("cldnet-paper", {"temperature": 0}, r"temperature=0 should be a positive number"),
        ("cldnet", {"similarity": EveryStep()}, r"similarity=EveryStep\(\) should be a part such as InnerProduct\(\)"),
        ("cldnet", {"rate": Cosine()}, r"rate=Cosine\(\) should be a part such as PerAlpha\(\)"),
        ("cldnet", {"dependence": Cosine()}, r"dependence=Cosine\(\) should be a part such as NormalisedHSIC"),
        ("cldnet", {"feed": Cosine()}, r"feed=Cosine\(\) should be a part such as EveryVector\(\)"),
        ("cldnet", {"alpha": Cosine()}, r"alpha=Cosine\(\) should be a part such as ConstantAlpha"),
        ("owm", {"alpha": [0.1]}, r"alpha=\[0\.1\] should be a part such as PerTask"),
        ("cldnet-paper", {"steps": "in turn"}, r"steps='in turn' should be a part such as InTurn\(\)"),
        ("cldnet-paper", {"softmax": AllClasses}, r"softmax=<class .*> should be a part such as SeenClasses\(\)"),
        ("exact", {"alpha": 0}, r"alpha=0 should be 'gcv' or a positive number"),
        ("exact", {"alpha": True}, r"alpha=True should be"),
        ("exact", {"alpha": "auto"}, r"alpha='auto' should be"),
        ("er", {"memory": -1}, r"memory=-1 should not be negative"),
        ("ewc", {"strength": -1}, r"strength=-1 should be a finite number, 0 or more"),
        ("ewc-batched", {"fisher_batch": 0}, r"fisher_batch=0 should be at least 1"),
        ("pnn", {"widths": ()}, r"widths=\(\) should be one or more"),
        ("cldnet-paper", {"betta": 1.0, "beta": 2.0}, r"does not take betta; it takes lr, .*beta, embed_dim"),
    ],
)
def test_a_bad_option_is_refused_with_a_sentence(method, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_learner(method, Setting((4,), 4, seed=0), options)


def test_an_unknown_part_or_field_is_refused_with_the_names_there_are():
    with pytest.raises(ValueError, match=r"no part 'ConstAlpha'. Did you mean 'ConstantAlpha'"):
        config_from_json({"alpha": {"kind": "ConstAlpha"}})
    with pytest.raises(ValueError, match=r"DecayingAlpha takes start, decay, not \['rate'\]"):
        config_from_json({"alpha": {"kind": "DecayingAlpha", "rate": 2}})
    with pytest.raises(ValueError, match=r"BatchMean takes nothing, not \['x'\]"):
        config_from_json({"feed": {"kind": "BatchMean", "x": 2}})


def test_settings_can_change_between_tasks_while_the_state_stays():
    learner = make()
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    before = state_of(learner)
    learner.configure({"embed_dim": 16, "lr": 0.5, "softmax": TaskClasses()})
    assert learner.config.lr == 0.5
    assert torch.equal(state_of(learner), before)


def test_making_a_learner_over_plain_layers_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()


def test_taking_both_steps_together_skips_what_the_loss_does_not_use():
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(12, 20), nn.Linear(20, 3)

        def forward(self, x):
            hidden = self.used(x).relu()
            self.unused(hidden)
            return hidden

    learner = build_learner("cldnet-paper", Setting((12,), 8, 0), {"embed_dim": 16, "steps": Together()}, Auxiliary())
    fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    assert torch.isfinite(learner.logits(blobs([0, 1]).x)).all()


# Sub-classes: the vectors that a class is bound to


def two_blobs_per_class(classes, count=60, seed=0):
    """Every class has two blobs, far apart."""
    y = torch.tensor(classes).repeat(count)
    blob = torch.arange(len(y)) // len(classes) % 2
    return TaskData(CENTRES[2 * y + blob] + torch.randn(len(y), 12, generator=generator(seed)), y), blob


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 4))
def test_a_class_scores_the_log_sum_exp_of_its_vectors(bound, rows):
    near = 5 * torch.randn(rows, sum(bound), generator=generator(len(bound)))
    scores = class_scores(near, vectors_by_class(torch.tensor(bound)))
    for c, count in enumerate(bound):
        own = near[:, sum(bound[:c]) : sum(bound[:c]) + count]
        torch.testing.assert_close(scores[:, c], own.exp().sum(1).log())
        if count == 1:
            assert torch.equal(scores[:, c], own[:, 0])  # as of models that had one vector per class


@given(st.data())
def test_a_vector_is_left_for_every_class_to_come_and_no_class_gets_too_many(data):
    capacity, dim = data.draw(st.integers(1, 30)), data.draw(st.integers(3, 60))
    most, each = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    options = {"embed_dim": dim, "gamma": 0.99, "vectors_per_class": most, "samples_per_vector": each}
    learner = build_learner("cldnet", Setting((2,), capacity, seed=0), options, "mlp", {"widths": (2,)})
    learner.bound = torch.zeros(capacity, dtype=torch.int64)  # also where a class gets one vector at most
    learner.basis = torch.empty(learner.table_size, dim)
    for row in range(capacity):
        samples = data.draw(st.integers(1, 100))
        learner.bound[row] = count = learner.vectors_for(samples)
        assert 1 <= count <= max(1, min(most, samples // each))
        assert int(learner.bound.sum()) + capacity - row - 1 <= len(learner.basis)


@pytest.mark.parametrize(
    ("capacity", "embed_dim", "first"),
    [(10, 1000, 40), (25, 1000, 40), (100, 5000, 40), (1000, 1000, 1), (1000, 1250, 26)],
)
def test_the_number_of_vectors_falls_with_the_capacity(capacity, embed_dim, first):
    learner = build_learner(
        "cldnet", Setting((12,), capacity, seed=0), {"embed_dim": embed_dim}, "mlp", {"widths": (2,)}
    )
    learner.basis = torch.empty(learner.table_size, embed_dim)
    assert learner.vectors_for(10_000) == first
    assert len(learner.basis) <= min(40 * capacity, capacity + 1000)
    assert learner.vectors_for(250) == min(first, 2)


def test_samples_are_bound_to_the_vector_of_their_sub_class():
    learner = make(method="cldnet", embed_dim=40, vectors_per_class=2, samples_per_vector=10)
    task, blob = two_blobs_per_class([0, 1])
    learner.begin_task(task)
    assert learner.bound[:2].tolist() == [2, 2]
    flow, z = learner.forward_pass(learner.scale(task.x))
    vector = learner.bind(flow, z, task.y)
    assert torch.equal(learner.owners[vector], task.y)
    for c in (0, 1):
        pairs = {(int(b), int(v)) for b, v in zip(blob[task.y == c], vector[task.y == c], strict=True)}
        assert len(pairs) == 2, "a blob is split, or two share a vector"


def test_a_class_that_comes_back_is_bound_to_the_vectors_that_the_net_is_nearest_to():
    learner = make(method="cldnet", embed_dim=40, vectors_per_class=2, samples_per_vector=10)
    task, _ = two_blobs_per_class([0, 1])
    fit_task(learner, task, epochs=3, batch_size=16)
    again, _ = two_blobs_per_class([1, 2], seed=5)
    near = learner.embed(learner.scale(again.x)) @ learner.basis[2:4].T
    learner.begin_task(again)
    assert learner.bound[:3].tolist() == [2, 2, 2]
    flow, z = learner.forward_pass(learner.scale(again.x))
    vector = learner.bind(flow, z, again.y)
    assert torch.equal(learner.owners[vector], again.y)
    back = again.y == 1
    assert torch.equal(vector[back], 2 + near[back].argmax(1))


def test_sub_classes_are_not_kept_after_the_task():
    learner = make(method="cldnet", embed_dim=40, samples_per_vector=10)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    assert int(learner.bound.sum()) > 2
    assert not any(hasattr(learner, name) for name in ("centers", "owners", "task_vectors"))


def test_a_model_of_one_vector_per_class_loads_and_goes_on_as_before():
    one_each = {"embed_dim": 8, "vectors_per_class": 1, "steps": EmbeddingAlone()}
    old, new = (make(method="cldnet", **one_each) for _ in range(2))
    for learner in (old, new):
        fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    state = {name: tensor for name, tensor in old.state_dict().items() if name != "bound"}
    again = make(method="cldnet", embed_dim=8)
    again.load_state(state)
    assert again.vector_counts.tolist() == [1, 1]
    assert again.bytes_by_kind() == old.bytes_by_kind()
    assert torch.equal(again.logits(blobs([0]).x), new.logits(blobs([0]).x))
    for learner in (again, new):
        fit_task(learner, blobs([2, 3]), epochs=1, batch_size=16)
    assert torch.equal(again.logits(blobs([2]).x), new.logits(blobs([2]).x))


def test_the_bottleneck_comes_first_and_moves_the_hidden_layers_towards_the_bound_vectors():
    def dependence(learner, task):
        x = learner.scale(task.x)
        flow, z = learner.forward_pass(x)
        labels = hsic.label_kernel(learner.bind(flow, z, task.y), dtype=torch.float64)
        kernels = [reference.gaussian_kernel(hidden.detach().double()) for hidden in flow.inputs[1:]]
        return [float(reference.nhsic(kernel, labels)) for kernel in kernels]

    task = blobs([0, 1])
    before, after = (
        make(method="cldnet", embed_dim=40, samples_per_vector=10, widths=(20, 20), steps=steps)
        for steps in (EmbeddingAlone(), BottleneckFirst(epochs=20, batch_size=80))
    )
    for learner in (before, after):
        learner.begin_task(task)
    assert torch.equal(before.embedding.weight, after.embedding.weight)  # it learns by EAE
    assert all(b > a + 0.01 for a, b in zip(dependence(before, task), dependence(after, task), strict=True))
    for batch in task.batches(16):
        after.observe(batch)
    after.end_task(task)
    weights = [p.detach().clone() for p in after.net.parameters()]
    after.begin_task(blobs([2, 3]))  # only the first task, where nothing is protected yet, begins with it
    assert all(torch.equal(a, b) for a, b in zip(weights, after.net.parameters(), strict=True))


def test_samples_of_weight_zero_do_not_switch_the_bottleneck_off():
    task = blobs([0, 1])
    weight = torch.ones(len(task)).index_fill(0, torch.arange(0, len(task), 10), 0.0)
    learner = make(method="cldnet", embed_dim=40, steps=BottleneckFirst(batch_size=40))
    before = [p.detach().clone() for p in learner.net.parameters()]
    learner.begin_task(TaskData(task.x, task.y, weight))
    assert not any(torch.equal(a, b) for a, b in zip(before, learner.net.parameters(), strict=True))


def test_the_first_task_sets_the_first_weights_and_samples_of_weight_zero_have_no_part():
    task = blobs([0, 1])
    with_zeros = TaskData(torch.cat([task.x, 100 + task.x]), task.y.repeat(2), torch.arange(160).lt(80).float())
    found = []
    for first, given_task in ((Given(), task), (Principal(), task), (Principal(), with_zeros)):
        learner = make(method="cldnet", embed_dim=40, first_weights=first, steps=EmbeddingAlone(), hidden_share=0.0)
        for each in (given_task, blobs([2, 3])):  # the second task leaves them as they are
            fit_task(learner, each, epochs=1, batch_size=80)
            found.append(learner.net.state_dict()["layers.1.weight"].clone())
    random, random_after, principal, *others = found
    assert torch.equal(random, random_after)
    assert not torch.allclose(random, principal)
    for other in others:
        torch.testing.assert_close(other, principal)


def test_a_layer_with_a_rate_of_zero_rests_and_may_learn_later():
    learner = make(method="cldnet", embed_dim=40, widths=(24, 16), hidden_share=0.1, layer_decay=0.0)
    first, second = (module for module in learner.net.layers if isinstance(module, nn.Linear))
    before = first.weight.clone(), second.weight.clone()
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    assert torch.equal(first.weight, before[0])
    assert not torch.equal(second.weight, before[1])
    learner.config = replace(learner.config, layer_decay=1.0)
    fit_task(learner, blobs([2, 3]), epochs=1, batch_size=16)
    assert not torch.equal(first.weight, before[0])


def test_layers_further_from_the_embedding_layer_learn_more_slowly():
    class Convolved(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.first, self.second = nn.Conv1d(1, 3, 3, padding=1), nn.Linear(36, 7), nn.Linear(7, 5)

        def forward(self, x):
            return self.second(self.first(self.conv(x.unsqueeze(1)).relu().flatten(1)).relu()).relu()

    net = Convolved()
    options = {"lr": 2.0, "hidden_share": 0.5, "layer_decay": 0.1, "conv_share": 0.25, "embed_dim": 8}
    learner = build_learner("cldnet", Setting((12,), 8, seed=0), options, net)
    rates = {id(parameter): group.get("lr", 2.0) for group in learner.rates() for parameter in group["params"]}
    expected = {net.second: 1.0, net.first: 0.1, net.conv: 0.5, learner.embedding: 2.0}
    for module, rate in expected.items():
        assert [rates[id(parameter)] for parameter in module.parameters()] == [pytest.approx(rate)] * 2


# The embedding layer in the coordinates of the class vectors


def note_turn(learner, turned, _):
    turned.append(learner.across is not None)


MANY = {"embed_dim": 60, "samples_per_vector": 10, "vectors_per_class": 4}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"embed_init": 1.0},  # so that much of it lies across the vectors
        {"embed_init": 1.0, "steps": EmbeddingAlone(), "softmax": SeenClasses()},
        {"embed_init": 1.0, "softmax": TaskClasses(), "when": TaskEnd(batch_size=16), "lr": 1.0},
        {"embed_init": 1.0, "vectors_per_class": 1, "temperature": 0.5, "momentum": 0.5, "lr": 0.2},
        {"embed_init": 1.0, "last": FreeLast(), "bias": False, "lr": 0.1},
        {"embed_init": 1.0, "embed_dim": 32},  # as many vectors as dimensions
        {"clip": 0.05},
    ],
)
def test_learning_along_the_class_vectors_gives_the_weights_and_scores_of_learning_without(options, monkeypatch):
    tasks, courses = (blobs([0, 1]), blobs([2, 3]), blobs([1, 4])), []
    for along in (True, False):
        with monkeypatch.context() as patch:
            if not along:
                patch.setattr(CLDNet, "learns_along_vectors", False)
            # In float32, rounding of some machines adds up to more than the tolerance.
            learner, course = make(method="cldnet", dtype=torch.float64, **{**MANY, **options}), []
            for task in tasks:
                turned = []
                report = fit_task(learner, task, epochs=2, batch_size=16, on_epoch=partial(note_turn, learner, turned))
                assert turned == [along] * 2
                assert learner.across is None
                parameters = {name: tensor.detach().clone() for name, tensor in learner.named_parameters()}
                assert parameters["embedding.weight"].shape == (learner.class_width, 24)
                scores = torch.cat([learner.logits(each.x) for each in tasks])
                course.append((parameters, {"scores": scores, "losses": torch.tensor(report.losses)}))
        courses.append(course)
    for (parameters, found), (without, expected) in zip(*courses, strict=True):
        for name, tensor in {**parameters, **found}.items():
            torch.testing.assert_close(tensor, {**without, **expected}[name], rtol=1e-5, atol=1e-5)
    weights = [parameters["embedding.weight"] for parameters, _ in courses[0]]
    assert float((weights[0] - weights[1]).abs().max()) > 1e-3, "there was something to learn"


def test_scores_in_the_middle_of_a_task_are_those_of_the_weights_that_are_turned_back():
    learner, probe = make(method="cldnet", embed_init=1.0, **MANY), blobs([0, 1, 2, 3], seed=9).x

    def check(_):
        other = copy.deepcopy(learner)
        assert other.embedding.weight.shape == (len(learner.basis), 24)
        other.turn_back()
        assert other.embedding.weight.shape == (60, 24)
        torch.testing.assert_close(learner.logits(probe), other.logits(probe), rtol=1e-5, atol=1e-5)
        near = other.embed(other.scale(probe)) @ other.basis.T
        owners = torch.repeat_interleave(torch.arange(other.seen), other.bound[: other.seen])
        for c in range(other.seen):
            own = near[:, : len(owners)][:, owners == c].exp().sum(1).log()
            torch.testing.assert_close(learner.logits(probe)[:, c], own, rtol=1e-5, atol=1e-5)

    for task in (blobs([0, 1]), blobs([2, 3])):
        fit_task(learner, task, epochs=2, batch_size=16, on_epoch=check)


def test_a_task_that_was_broken_off_can_be_learned_again():
    learner, task = make(method="cldnet", embed_init=1.0, **MANY), blobs([0, 1])

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_task(learner, task, epochs=2, batch_size=16, on_epoch=interrupt)
    fit_task(learner, task, epochs=2, batch_size=16)
    assert learner.embedding.weight.shape == (60, 24)
    assert float((learner.logits(task.x).argmax(1) == task.y).double().mean()) > 0.9


def test_after_a_task_that_was_broken_off_the_next_one_may_need_the_whole_embedding():
    learner, task = make(method="cldnet", embed_init=1.0, **MANY), blobs([0, 1])
    learner.begin_task(task)
    learner.config = replace(learner.config, steps=Together())
    fit_task(learner, task, epochs=1, batch_size=16)
    assert learner.embedding.weight.shape == (60, 24)


def test_turning_to_the_vectors_and_back_changes_nothing():
    learner = make(method="cldnet", embed_init=1.0, **MANY)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    nn.init.normal_(learner.embedding.weight)  # some of it lies across
    before, (weight, bias) = (
        learner.logits(blobs([0, 1]).x),
        (p.detach().clone() for p in learner.embedding.parameters()),
    )
    learner.turn_to_vectors()
    torch.testing.assert_close(learner.embedding.weight, learner.basis @ weight)
    torch.testing.assert_close(learner.embedding.bias, learner.basis @ bias)
    torch.testing.assert_close(learner.logits(blobs([0, 1]).x), before, rtol=1e-5, atol=1e-5)
    learner.turn_back()
    torch.testing.assert_close(learner.embedding.weight.detach(), weight, rtol=0, atol=1e-6)
    torch.testing.assert_close(learner.embedding.bias.detach(), bias, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "along"),
    [
        ({}, True),
        ({"steps": EmbeddingAlone()}, True),
        ({"steps": InTurn()}, False),  # HSIC acts on Z_L
        ({"steps": Together()}, False),
        ({"similarity": Cosine(), "embed_init": 1.0}, False),  # it needs the length of Z_L
        ({"last": FreeLast()}, True),
        ({"last": FixedLast(), "embed_init": 1.0}, False),
        ({"embed_dim": 5, "gamma": 0.5}, False),  # eight vectors in five dimensions are not orthogonal
    ],
)
def test_it_learns_along_the_vectors_where_nothing_else_of_the_embedding_counts(options, along):
    learner = make(method="cldnet", **{**MANY, **options})
    learner.begin_task(blobs([0, 1]))
    assert learner.learns_along_vectors is along
    assert (learner.across is not None) is along
    assert learner.embedding.weight.shape == (len(learner.basis) if along else learner.class_width, 24)
    if along:
        one = torch.eye(len(learner.basis))
        torch.testing.assert_close(learner.basis @ learner.basis.T, one, rtol=0, atol=1e-6)


def test_a_task_along_the_vectors_can_be_resumed_with_the_same_bits():
    checkpoints = []
    whole, resumed = (make(method="cldnet", embed_init=1.0, momentum=0.5, **MANY) for _ in range(2))
    for learner in (whole, resumed):
        fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    fit_task(whole, blobs([2, 3]), epochs=2, batch_size=16, on_checkpoint=lambda make: checkpoints.append(make()))
    fit_task(resumed, blobs([2, 3]), epochs=2, batch_size=16, resume=checkpoints[4])
    assert torch.equal(state_of(whole), state_of(resumed))


# The table of class vectors


def test_the_table_is_made_when_the_first_task_begins_and_never_by_loading(monkeypatch):
    learner, other = (make(method="cldnet", widths=(8,), embed_dim=5, gamma=0.5) for _ in range(2))
    assert learner.basis.shape == (0, 5)
    assert learner.logits(blobs([0]).x).shape == (40, 0)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    assert torch.equal(learner.basis, basis_vectors(8, 5, gamma=learner.config.gamma, seed=0))

    def forbidden(*_, **__):
        raise AssertionError("a table was made")

    monkeypatch.setattr("cldnet.methods.cldnet.basis_vectors", forbidden)
    other.load_state(learner.state_dict())
    assert torch.equal(state_of(other), state_of(learner))
    fit_task(other, blobs([2]), epochs=1, batch_size=16)
    fresh = make(method="cldnet", widths=(8,), embed_dim=5, gamma=0.5)
    other.load_state(fresh.state_dict())  # one that has learned nothing has no table either
    assert other.basis.shape == (0, 5)


def test_a_bound_that_cannot_be_kept_is_refused_before_any_table_is_made():
    with pytest.raises(ValueError, match=r"cannot have gamma=0\.1"):
        make(method="cldnet", embed_dim=4, gamma=0.1)


@pytest.mark.parametrize("shape", [(8, 4), (7, 5), (0, 4), (40,)])
def test_a_table_of_another_shape_is_refused(shape):
    learner = make(method="cldnet", embed_dim=5, gamma=0.5)
    with pytest.raises(ValueError, match=r"class vectors of shape .* need at least \(8, 5\)"):
        learner.load_state({**learner.state_dict(), "basis": torch.zeros(shape)})


@pytest.mark.parametrize("method", ["cldnet", "cldnet-paper", "exact", "slda"])
def test_room_for_more_classes_leaves_all_scores_as_they_are(method):
    options = {"embed_dim": 16} if method.startswith("cldnet") else {}
    learner = build_learner(method, Setting((12,), 3, seed=0), options)
    learner.extend(4)  # before there is anything
    fit_task(learner, blobs([0, 1, 2, 3], count=10), epochs=1, batch_size=16)
    before = learner.logits(blobs([0, 1]).x)
    learner.extend(8)
    assert torch.equal(learner.logits(blobs([0, 1]).x), before)
    fit_task(learner, blobs([7]), epochs=1, batch_size=16)
    assert learner.logits(blobs([7]).x).shape == (40, 8)
    with pytest.raises(ValueError, match="capacity=7 is below the present capacity of 8"):
        learner.extend(7)
    again = build_learner(method, learner.setting, {**options, **({"gamma": learner.config.gamma} if options else {})})
    again.load_state(learner.state_dict())
    assert torch.equal(again.logits(blobs([7]).x), learner.logits(blobs([7]).x))


def test_a_method_that_cannot_make_room_says_so():
    with pytest.raises(ValueError, match=r"Finetune.* cannot raise its capacity of 8 classes: make a new model"):
        make(method="finetune").extend(9)
