"""PNN on chains of layers, against sums over columns by hand; `test_baselines` has PNN without a backbone."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.estimator.checks import CHECKS
from cldnet.estimator.footprint import footprint
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.pnn import PNN
from cldnet.nets import CNN, MLP, LeNet, ResNet

#: Units of each layer of the small nets, and of half of them.
SIZES = {"mlp": ([7, 5], [4, 2]), "cnn": ([4, 6, 3, 8], [2, 3, 2, 4]), "lenet": ([4, 6, 8, 5], [2, 3, 4, 2])}
SHAPES = {"mlp": (6,), "cnn": (3, 10, 12), "lenet": (3, 16, 16)}
#: Positions of a map when it is flattened.
PLACES = {"cnn": 2 * 2, "lenet": 4 * 4}


def net(kind: str) -> nn.Module:
    draws, shape = generator(7), SHAPES[kind]
    if kind == "mlp":
        return MLP(shape, (7, 5), generator=draws)
    if kind == "cnn":
        return CNN(shape, (4, 6, 3), (3, 2, 2), hidden=(8,), dropout=0.5, generator=draws)
    return LeNet(shape, (4, 6), (8, 5), generator=draws)


def make(kind: str, **options: Any) -> PNN:
    setting = Setting(SHAPES[kind], 8, seed=0, dtype=torch.float64)
    learner = build_learner("pnn", setting, options, net(kind))
    assert isinstance(learner, PNN)
    return learner


def task(kind: str, classes: Sequence[int], seed: int = 0) -> TaskData:
    y = torch.tensor(classes).repeat(6)
    noise = torch.randn(len(y), *SHAPES[kind], generator=generator(seed), dtype=torch.float64)
    return TaskData(noise + y.reshape(-1, *[1] * len(SHAPES[kind])), y)


def taught(kind: str, *tasks: Sequence[int], **options: Any) -> PNN:
    learner = make(kind, **options)
    for classes in tasks:
        fit_task(learner, task(kind, classes), epochs=1, batch_size=5)
    return learner


def follow(kind: str, depth: int, maps: Tensor) -> Tensor:
    """What follows a layer: ReLU, normalisation and pooling of the kind of net."""
    maps = maps.clamp_min(0)
    if maps.ndim == 4 and kind == "lenet":
        maps = F.max_pool2d(F.local_response_norm(maps, 9, alpha=1e-3), 3, 2, ceil_mode=True)
    return F.max_pool2d(maps, 2) if maps.ndim == 4 and kind == "cnn" else maps


def part_of(kind: str, layer: nn.Module, x: Tensor, weight: Tensor) -> Tensor:
    """What inputs of one column add to a layer's outputs."""
    if isinstance(layer, nn.Linear):
        return torch.einsum("ni,oi->no", x.flatten(1), weight)
    pad, mode = ((1, 1, 1, 1), "replicate") if kind == "cnn" else ((2, 2, 2, 2), "constant")
    return F.conv2d(F.pad(x, pad, mode=mode), weight)


def by_hand(learner: PNN, kind: str, x: Tensor) -> list[Tensor]:
    """Each column's scores. Its inputs are never put together: it adds up what each column gives to a layer."""
    outputs: list[list[Tensor]] = []  # by column and layer
    scores = []
    for i, column in enumerate(learner.columns):
        outputs.append([])
        for depth, layer in enumerate(column.hidden):
            assert isinstance(layer, nn.Linear | nn.Conv2d)
            sources = [x] if depth == 0 else [outputs[j][depth - 1] for j in (i, *range(i))]
            total, first = torch.zeros(()), 0
            for source in sources:
                flat = isinstance(layer, nn.Linear) and source.ndim == 4
                size = source.flatten(1).shape[1] if flat else source.shape[1]
                total = total + part_of(kind, layer, source, layer.weight[:, first : first + size])
                first += size
            assert first == layer.weight.shape[1]
            if layer.bias is not None:
                total = total + layer.bias.reshape(-1, *[1] * (total.ndim - 2))
            outputs[-1].append(follow(kind, depth, total))
        total, first = column.head.bias, 0
        for lasts in outputs:
            width = lasts[-1].shape[1]
            total = total + lasts[-1] @ column.head.weight[:, first : first + width].T
            first += width
        scores.append(total)
    return scores


@pytest.mark.parametrize("kind", SIZES)
def test_columns_of_any_chain_are_the_sums_over_columns(kind: str) -> None:
    learner = taught(kind, [0, 1], [2, 3, 4], [5, 1], later=0.5)
    x = task(kind, [0, 2, 5], seed=3).x
    expected = by_hand(learner, kind, learner.scale(x))
    scores = learner.score(learner.scale(x))
    torch.testing.assert_close(scores[:, [0, 2, 3, 4, 1, 5]], torch.cat([expected[0][:, :1], *expected[1:]], dim=1))
    for number, rows in enumerate(([0, 1], [2, 3, 4], [1, 5])):
        within = learner.logits_in(x, number)
        torch.testing.assert_close(within[:, rows], expected[number].detach())
        assert bool((within[:, [c for c in range(6) if c not in rows]] == -torch.inf).all())


@pytest.mark.parametrize("kind", SIZES)
def test_later_columns_have_a_share_of_the_units_and_growth_follows(kind: str) -> None:
    learner, (full, half) = make(kind, later=0.5), SIZES[kind]
    layers = [module for module in net(kind).modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for number, classes in enumerate(([0, 1], [2, 3, 4], [5])):
        own, bytes_before = (half if number else full), footprint(learner).total
        numbers = len(classes) * (full[-1] + number * half[-1] + 1)
        for depth, layer in enumerate(layers):
            inputs = full[depth - 1] + number * half[depth - 1] if depth else layer.weight.shape[1]
            first_dense = depth and isinstance(layer, nn.Linear) and isinstance(layers[depth - 1], nn.Conv2d)
            inputs *= PLACES[kind] if first_dense else 1
            numbers += own[depth] * (inputs * layer.weight[0, 0].numel() + (layer.bias is not None))
        declared = learner.growth(task(kind, classes))
        fit_task(learner, task(kind, classes), epochs=1, batch_size=5)
        assert [len(layer.weight) for layer in learner.columns[number].hidden] == own
        assert declared == footprint(learner).total - bytes_before == 8 * numbers + 8 * len(classes)


def test_a_column_has_a_unit_at_least() -> None:
    learner = taught("mlp", [0, 1], [2, 3], later=0.01)
    assert [len(layer.weight) for layer in learner.columns[1].hidden] == [1, 1]


@pytest.mark.parametrize("kind", SIZES)
def test_old_columns_and_their_scores_stay_as_they_are_to_the_bit(kind: str) -> None:
    learner, first = taught(kind, [0, 1]), task(kind, [0, 1], seed=5)
    column, within = copy.deepcopy(learner.columns[0].state_dict()), learner.logits_in(first.x, 0)
    for classes in ([2, 3], [4, 0]):
        fit_task(learner, task(kind, classes), epochs=1, batch_size=5)
        assert torch.equal(learner.logits_in(first.x, 0)[:, :2], within)
    assert all(torch.equal(column[name], tensor) for name, tensor in learner.columns[0].state_dict().items())


def test_a_large_gradient_of_the_newest_column_is_clipped() -> None:
    learner = taught("mlp", [0, 1], momentum=0.0, clip=1e-3, lr=1.0)
    more = task("mlp", [2, 3])
    learner.begin_task(more)
    before = copy.deepcopy(learner.columns[1])
    learner.observe(Batch(more.x, more.y, None, 0, 1, 0))
    pairs = zip(learner.columns[1].parameters(), before.parameters(), strict=True)
    assert torch.cat([(p - q).detach().flatten() for p, q in pairs]).norm().item() == pytest.approx(1e-3, rel=1e-2)


def test_columns_begin_with_weights_drawn_from_the_learners_own_seed() -> None:
    first = []
    for seed in (0, 1):
        learner = build_learner("pnn", Setting((6,), 8, seed=seed), {"widths": (4,)})
        for classes in ([0, 1], [2, 3]):
            learner.begin_task(task("mlp", classes))
            learner.end_task(task("mlp", classes))
        first += [column.hidden[0].weight.detach() for column in learner.columns]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(first, 2))


def test_a_step_moves_the_newest_column_along_its_gradient() -> None:
    learner = taught("lenet", [0, 1], momentum=0.0, clip=1e9, lr=0.1)
    more = task("lenet", [2, 3])
    learner.begin_task(more)
    before = copy.deepcopy(learner)
    logits = by_hand(before, "lenet", before.scale(more.x))[1]
    gradients = torch.autograd.grad(F.cross_entropy(logits, more.y - 2), list(before.columns[1].parameters()))
    learner.observe(Batch(more.x, more.y, None, 0, 1, 0))
    for after, p, g in zip(learner.columns[1].parameters(), before.columns[1].parameters(), gradients, strict=True):
        torch.testing.assert_close(after, p - 0.1 * g)
        assert bool(g.any())
    assert not any(p.requires_grad for p in learner.columns[0].parameters())


def test_no_backbone_is_an_mlp_of_the_same_widths_to_the_bit() -> None:
    learners = [
        build_learner("pnn", Setting((2, 3), 8, seed=0), {"widths": (9, 4)}),
        build_learner("pnn", Setting((2, 3), 8, seed=0), {}, "mlp", {"widths": (9, 4)}),
    ]
    for learner in learners:
        for first in (0, 2):
            data = TaskData(torch.randn(12, 2, 3, generator=generator(first)), first + torch.arange(12) % 2)
            fit_task(learner, data, epochs=2, batch_size=4)
    states = [learner.state_dict() for learner in learners]
    assert [*states[0]] == [*states[1]]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_the_state_has_the_columns_and_not_the_net_that_they_are_like() -> None:
    like = net("lenet")
    before = copy.deepcopy(like.state_dict())
    learner = build_learner("pnn", Setting((3, 16, 16), 8, seed=0), backbone=like)
    assert {name.split(".")[0] for name in learner.state_dict()} == {"scale", "counters", "random"}
    fit_task(learner, TaskData(torch.rand(4, 3, 16, 16), torch.arange(4) % 2), epochs=1, batch_size=4)
    assert [name for name in learner.state_dict() if name.startswith("columns")] == [
        "columns.0.rows",
        *(f"columns.0.hidden.{depth}.{part}" for depth in range(4) for part in ("weight", "bias")),
        "columns.0.head.weight",
        "columns.0.head.bias",
    ]
    assert all(torch.equal(before[name], tensor) for name, tensor in like.state_dict().items())
    assert all(stage.layer.weight.is_meta for stage in learner.chain)


def test_images_without_channels_have_one() -> None:
    x, y, scores = torch.rand(10, 16, 16, generator=generator(0)), torch.arange(10) % 2, []
    for shape in ((16, 16), (1, 16, 16)):
        options = {"channels": (4, 6), "hidden": (8, 5)}
        learner = build_learner("pnn", Setting(shape, 4, seed=0), backbone="lenet", backbone_options=options)
        for first in (0, 2):
            fit_task(learner, TaskData(x.reshape(-1, *shape), y + first), epochs=1, batch_size=5)
        scores.append(learner.logits(x.reshape(-1, *shape)))
    assert torch.equal(*scores)


def test_dropout_acts_in_training_alone() -> None:
    learner, x = taught("cnn", [0, 1], [2, 3]), task("cnn", [0, 1]).x
    assert torch.equal(learner.logits_in(x, 1), learner.logits_in(x, 1))
    learner.train()
    with torch.random.fork_rng():
        assert not torch.equal(learner.logits_in(x, 1), learner.logits_in(x, 1))


@pytest.mark.parametrize("check", ["check_state_is_all", "check_resume_within_task", "check_size", "check_odd_tasks"])
def test_columns_of_several_sizes_pass_the_checks_of_every_learner(check: str) -> None:
    CHECKS[check](lambda setting: build_learner("pnn", setting, {"later": 0.4}, "mlp", {"widths": (9, 7)}))


@pytest.mark.parametrize("kind", ["cnn", "lenet"])
def test_training_that_was_interrupted_goes_on_to_the_same_bits_with_maps_too(kind: str) -> None:
    straight, checkpoints = taught(kind, [0, 1], later=0.5), []
    before, more = copy.deepcopy(straight.state_dict()), task(kind, [2, 3])
    fit_task(straight, more, epochs=2, batch_size=5, on_checkpoint=lambda now: checkpoints.append(now()))
    resumed = make(kind, later=0.5)
    resumed.load_state(before)
    fit_task(resumed, more, epochs=2, batch_size=5, resume=checkpoints[3])
    assert all(torch.equal(tensor, straight.state_dict()[name]) for name, tensor in resumed.state_dict().items())


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (ResNet((3, 16, 16), width=4, generator=generator(0)), "chain of layers, which a ResNet is not"),
        (CNN((3, 16, 16), (4, 4, 4), hidden=(), generator=generator(0)), "ends in a hidden layer"),
        (MLP((3, 16, 16), (), generator=generator(0)), "ends in a hidden layer"),
    ],
)
def test_a_net_that_columns_cannot_be_like_is_refused(wrong: nn.Module, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_learner("pnn", Setting((3, 16, 16), 8, seed=0), backbone=wrong)


def test_sizes_cannot_change_between_tasks() -> None:
    learner = taught("mlp", [0, 1])
    learner.configure({"lr": 0.01})
    for change in ({"widths": (3,)}, {"later": 0.5}):
        with pytest.raises(ValueError, match="cannot change"):
            learner.configure(change)
