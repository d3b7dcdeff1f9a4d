"""APD against slow formulas: the decomposed weights, the gradient of its loss, sparse storage, k-means and consolidation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.estimator.footprint import footprint, paper_capacity
from cldnet.methods import build_learner
from cldnet.methods.apd import APD, Decomposed, Sparse, _inner_products, k_means
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.nets.chain import stages

SMALL = {"widths": (5, 4)}
SHAPES: dict[str, tuple[int, ...]] = {"mlp": (6,), "cnn": (8, 8), "lenet": (3, 8, 8)}
OPTIONS: dict[str, dict[str, Any]] = {
    "mlp": SMALL,
    "cnn": {"channels": (3, 2, 2), "hidden": (5,), "dropout": 0.0},
    "lenet": {"channels": (3, 2), "hidden": (5, 4)},
}


def made(backbone: str = "mlp", **options: Any) -> APD:
    setting = Setting(SHAPES[backbone], 12, seed=1, dtype=torch.float64)
    learner = build_learner("apd", setting, {"lr": 0.01, **options}, backbone, OPTIONS[backbone])
    assert isinstance(learner, APD)
    return learner


def task(number: int, backbone: str = "mlp") -> TaskData:
    x = torch.randn(20, *SHAPES[backbone], generator=generator(number), dtype=torch.float64)
    return TaskData(x, 2 * number + torch.arange(20) % 2)


def taught(tasks: int, backbone: str = "mlp", **options: Any) -> APD:
    learner = made(backbone, **options)
    for number in range(tasks):
        fit_task(learner, task(number, backbone), epochs=3, batch_size=10)
    return learner


def batch(learner: APD, epoch: int = 0) -> Batch:
    data = task(learner.tasks)
    return Batch(data.x, data.y, None, 0, 1, epoch)


def shared_weights(learner: APD) -> list[Tensor]:
    return [stage.layer.weight for stage in stages(learner.net)]


def full_adaptive(learner: APD, layer: int, number: int) -> Tensor:
    """``A_t`` and what its cluster has in common, entry by entry."""
    parts, shared = learner.layers[layer], shared_weights(learner)[layer]
    pieces: list[Sparse] = [parts.parts[number].own]
    if number < len(parts.cluster):
        pieces.append(parts.common[int(parts.cluster[number])])
    full = torch.zeros(shared.numel(), dtype=shared.dtype)
    for piece in pieces:
        for value, place in zip(piece.values.tolist(), piece.places.tolist(), strict=True):
            full[place] += value
    return full.reshape(shared.shape)


@torch.no_grad()
def net_of(learner: APD, number: int) -> nn.Module:
    """An ordinary net with the weights of one task, composed unit by unit."""
    net = copy.deepcopy(learner.net).requires_grad_(False)
    for layer, stage in enumerate(stages(net)):
        part = learner.layers[layer].parts[number]
        adaptive = full_adaptive(learner, layer, number)
        for unit in range(len(stage.layer.weight)):
            gate = 1 / (1 + torch.exp(-part.mask[unit]))
            stage.layer.weight[unit] = gate * stage.layer.weight[unit] + adaptive[unit]
        if part.bias is not None:
            assert stage.layer.bias is not None
            stage.layer.bias.copy_(part.bias)
    return net.eval()


@pytest.mark.parametrize("backbone", SHAPES)
def test_a_tasks_net_has_the_shared_weights_behind_its_mask_plus_its_own(backbone: str) -> None:
    learner = taught(3, backbone, consolidate=2, clusters=1, spread=0.05)
    assert all(len(common) for parts in learner.layers for common in parts.common)
    for number in range(3):
        x = task(number, backbone).x
        features = net_of(learner, number)(learner.scale(x))
        head = learner.heads[number].layer
        expected = features @ head.weight.T + head.bias
        torch.testing.assert_close(learner.logits_in(x, number)[:, [2 * number, 2 * number + 1]], expected)
    before = [learner.logits_in(task(number, backbone).x, number) for number in range(3)]
    learner.begin_task(task(3, backbone))  # older tasks' nets are the same while their weights are dense
    for number in range(3):
        after = learner.eval().logits_in(task(number, backbone).x, number)[:, :6]
        torch.testing.assert_close(after, before[number])


def test_the_first_task_begins_with_the_nets_own_weights_and_each_task_with_a_copy_of_the_shared_ones() -> None:
    learner = made()
    own, x = [weight.clone() for weight in shared_weights(learner)], task(0).x
    expected = learner.net(x)
    learner.begin_task(task(0))
    torch.testing.assert_close(learner.features(x, 0), expected)
    for weight, shared, parts in zip(own, shared_weights(learner), learner.layers, strict=True):
        torch.testing.assert_close(shared, weight * 2 / 3)
        assert torch.equal(parts.dense[0], shared)
    learner = taught(1)
    own = [weight.clone() for weight in shared_weights(learner)]
    learner.begin_task(task(1))
    for weight, shared, parts in zip(own, shared_weights(learner), learner.layers, strict=True):
        assert torch.equal(shared, weight)
        assert torch.equal(parts.dense[1], weight)
        assert parts.parts[1].mask.count_nonzero() == 0


def whole_loss(learner: APD, before: APD, data: Batch) -> Tensor:
    """The loss of the newest task as it is written, for autograd; ``before`` is the learner before the task."""
    config, newest = learner.config, learner.tasks
    loss = F.cross_entropy(learner.heads[-1](learner.features(learner.scale(data.x), newest)), data.y - 2 * newest)
    for layer, (shared, parts) in enumerate(zip(shared_weights(learner), learner.layers, strict=True)):
        shape = (-1, *[1] * (shared.ndim - 1))
        decayed = [parts.dense[newest], parts.parts[newest].mask, *([shared] if newest == 0 else [])]
        loss = loss + config.weight_decay * sum((0.5 * values.square().sum() for values in decayed), torch.zeros(()))
        loss = loss + config.l1 * sum((own.abs().sum() for own in parts.dense), torch.zeros(()))
        for number in range(newest):
            weight = parts.parts[number].mask.sigmoid().view(shape) * shared + parts.dense[number]
            if number < len(parts.cluster):
                weight = weight + parts.common[int(parts.cluster[number])].dense(shared)
            target = stages(net_of(before, number))[layer].layer.weight
            loss = loss + config.drift * 0.5 * (weight - target).square().sum()
    return loss


@pytest.mark.parametrize("tasks", [0, 1, 3])
@pytest.mark.parametrize("backbone", ["mlp", "cnn"])
def test_a_step_follows_the_gradient_of_the_whole_loss(backbone: str, tasks: int) -> None:
    options = {"weight_decay": 0.3, "l1": 0.02, "drift": 7.0, "consolidate": 2, "clusters": 1, "spread": 0.05}
    before = taught(tasks, backbone, **options)
    learner = copy.deepcopy(before)
    data = task(tasks, backbone)
    learner.begin_task(data)
    step = Batch(data.x, data.y, None, 0, 3, 0)
    for _ in range(2):  # the drift is zero at first
        learner.observe(step)
    at = copy.deepcopy(learner)
    at.zero_grad()
    whole_loss(at, before, step).backward()
    decay = {parameter: group["weight_decay"] for group in at.optimizer.param_groups for parameter in group["params"]}
    plain = dict(at.named_parameters())
    expected = {name: plain[name].grad for name in plain}
    loss = learner.observe(step)
    logits = at.heads[-1](at.features(at.scale(step.x), tasks))
    torch.testing.assert_close(loss, F.cross_entropy(logits, step.y - 2 * tasks).detach())
    moved = 0
    for name, parameter in learner.named_parameters():
        if parameter.grad is None:
            wanted = expected[name]
            assert wanted is None or wanted.count_nonzero() == 0 or not parameter.requires_grad
            assert torch.equal(parameter, plain[name])
        else:
            gradient = parameter.grad + decay[plain[name]] * plain[name]
            torch.testing.assert_close(gradient, expected[name], msg=name)
            assert not torch.equal(parameter, plain[name])
            moved += 1
    layers, bias = len(learner.layers), 1 if backbone == "mlp" else 0
    assert moved == layers * (3 + bias + tasks) + 2  # S, m_t, A_t, the bias, older A_j; and the head


def test_the_rate_of_adam_decays_by_epoch_and_masks_biases_and_heads_of_older_tasks_stay() -> None:
    learner = taught(2, lr_decay=0.5)
    frozen = {name: value.clone() for name, value in learner.named_parameters() if name.startswith(("heads", "layers"))}
    learner.begin_task(task(2))
    for epoch in (0, 3):
        learner.observe(batch(learner, epoch))
        assert [group["lr"] for group in learner.optimizer.param_groups] == [0.01 * 0.5**epoch] * 2
    learner.end_task(task(2))
    now = dict(learner.named_parameters())
    assert len(frozen) == 2 * (2 * 2 + 2)
    assert all(torch.equal(now[name], value) for name, value in frozen.items())


def test_a_strong_penalty_keeps_the_weights_of_older_tasks() -> None:
    moves = {}
    for drift in (0.0, 100.0):
        learner = taught(1, drift=drift, l1=0.0, cut=0.0)
        weights = [stage.layer.weight.clone() for stage in stages(net_of(learner, 0))]
        fit_task(learner, task(1), epochs=10, batch_size=10)
        now = [stage.layer.weight for stage in stages(net_of(learner, 0))]
        moves[drift] = sum(float((a - b).square().sum()) for a, b in zip(weights, now, strict=True))
    assert moves[100.0] < 0.1 * moves[0.0]


def test_a_sparse_tensor_keeps_what_is_beyond_the_cut() -> None:
    dense = torch.tensor([[0.0, -0.5, 0.25], [float("nan"), 0.251, -0.25]])
    sparse = Sparse.of(dense, 0.25)
    assert sparse.places.dtype == torch.int32
    assert sparse.places.tolist() == [1, 3, 4]
    assert len(sparse) == 3
    expected = torch.tensor([[0.0, -0.5, 0.0], [float("nan"), 0.251, 0.0]])
    torch.testing.assert_close(sparse.dense(dense), expected, equal_nan=True)
    random = torch.randn(4, 3, 2, generator=generator(0)) * (torch.rand(4, 3, 2, generator=generator(1)) < 0.3)
    assert torch.equal(Sparse.of(random).dense(random), random)
    assert len(Sparse.of(random)) == int(random.count_nonzero())
    total = torch.ones_like(random)
    assert torch.equal(Sparse.of(random).add_to(total), 1 + random)


def test_small_entries_of_all_tasks_become_zero() -> None:
    learner = taught(2, cut=0.02)
    learner.begin_task(task(2))
    learner.observe(batch(learner))
    dense = [[own.detach().clone() for own in parts.dense] for parts in learner.layers]
    learner.end_task(task(2))
    cut = 0
    for layer, owns in enumerate(dense):
        for number, own in enumerate(owns):
            expected = torch.where(own.abs() > 0.02, own, 0.0)
            assert torch.equal(full_adaptive(learner, layer, number), expected)
            cut += int((expected != own).sum())
    assert cut > 0


def slow_k_means(points: list[list[float]], centres: list[list[float]]) -> list[int]:
    for _ in range(100):
        distances = [[sum((a - b) ** 2 for a, b in zip(p, c, strict=True)) for c in centres] for p in points]
        cluster = [row.index(min(row)) for row in distances]
        for number in range(len(centres)):
            members = [point for point, own in zip(points, cluster, strict=True) if own == number]
            if members:
                centres[number] = [sum(values) / len(members) for values in zip(*members, strict=True)]
    return cluster


@pytest.mark.parametrize("seed", range(5))
def test_k_means_on_inner_products_equals_k_means_on_the_points(seed: int) -> None:
    points = torch.randn(12, 3, generator=generator(seed), dtype=torch.float64) + 5
    weights = torch.eye(12, dtype=torch.float64)[torch.randperm(12, generator=generator(seed))[:4]]
    weights[0] = torch.tensor([0.5, 0.5, *[0.0] * 10])
    expected = slow_k_means(points.tolist(), (weights @ points).tolist())
    assert k_means(points @ points.T, weights).tolist() == expected
    assert len(set(expected)) > 2


def test_a_cluster_without_points_keeps_its_centre() -> None:
    points = torch.tensor([[10.0], [11.0], [13.0], [19.0]], dtype=torch.float64)
    # Both centres are 13: the first gets all points and moves to 13.25, and the second is then nearest to three of them.
    weights = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    expected = slow_k_means(points.tolist(), (weights @ points).tolist())
    assert k_means(points @ points.T, weights).tolist() == expected == [1, 1, 1, 0]


def test_inner_products_are_sums_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.methods.apd._AT_ONCE", 3)
    rows = torch.randn(4, 8, generator=generator(0))
    expected = torch.tensor(
        [[sum(a * b for a, b in zip(p, q, strict=True)) for q in rows.tolist()] for p in rows.tolist()]
    )
    torch.testing.assert_close(_inner_products(rows), expected.double(), atol=1e-6, rtol=1e-6)


def unfolded(rows: list[list[float]]) -> tuple[Decomposed, nn.Linear]:
    """The decomposed weights of a layer with one unit, in the middle of a task."""
    layer, parts = nn.Linear(len(rows[0]), 1), Decomposed()
    for _ in rows[1:]:
        parts.start(layer)
        parts.finish(0.0)
    parts.start(layer)
    for own, row in zip(parts.dense, rows, strict=True):
        own.data[:] = torch.tensor([row])
    return parts, layer


def values(sparse: Sparse, layer: nn.Linear) -> list[float]:
    return [round(value, 5) for value in sparse.dense(layer.weight)[0].tolist()]


def test_entries_that_are_nearly_equal_within_a_cluster_are_shared() -> None:
    rows = [
        [10.0, 1.00, 0.5, 0.0, 0.3],
        [10.0, 1.25, 0.0, 0.0, 0.4],
        [10.25, 1.0, 0.0, 0.0, 0.2],
        [-9.0, 1.0, 0.5, 0.5, 0.0],  # a cluster of its own
    ]
    parts, layer = unfolded(rows)
    parts.consolidate(2, 0.25, 0.0, generator(0))
    parts.finish(0.0)
    first, alone = int(parts.cluster[0]), int(parts.cluster[3])
    assert parts.cluster.tolist() == [first, first, first, alone]
    assert first != alone
    assert values(parts.common[first], layer) == [10.125, 1.125, 0.0, 0.0, 0.3]  # halfway between smallest and largest
    assert len(parts.common[first]) == 3
    assert len(parts.common[alone]) == 0
    own = [values(part.own, layer) for part in parts.parts]
    assert own == [[0.0, 0.0, 0.5, 0.0, 0.0], [0.0] * 5, [0.0] * 5, rows[3]]
    cut, _ = unfolded(rows)
    cut.consolidate(2, 0.25, 0.3001, generator(0))
    assert values(cut.common[int(cut.cluster[0])], layer) == [10.125, 1.125, 0.0, 0.0, 0.0]


def test_what_a_cluster_had_in_common_is_part_of_the_next_consolidation() -> None:
    rows = [[10.0, 1.0], [10.0, 2.0], [-10.0, 3.0]]
    parts, layer = unfolded(rows)
    parts.consolidate(2, 0.0, 0.0, generator(0))
    assert [own.tolist() for own in parts.dense] == [[[0.0, 1.0]], [[0.0, 2.0]], [[-10.0, 3.0]]]
    parts.dense[2].data[:] = torch.tensor([[100.0, 3.0]])
    parts.consolidate(3, 0.0, 0.0, generator(0))  # now each is alone, and gets its numbers back
    assert sorted(parts.cluster.tolist()) == [0, 1, 2]
    assert [own.tolist() for own in parts.dense] == [[[10.0, 1.0]], [[10.0, 2.0]], [[100.0, 3.0]]]
    assert [len(common) for common in parts.common] == [0, 0, 0]
    assert values(parts.common[0], layer) == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_k_means_begins_with_the_clusters_of_the_last_time(seed: int) -> None:
    parts, _ = unfolded([[0.0], [1.0], [8.0], [9.0], [20.0]])
    parts.cluster = torch.tensor([1, 1, 0, 0])
    empty = (Sparse.of(torch.zeros(1, 1)) for _ in range(3))  # the last has no members
    parts.common = nn.ModuleList(empty)  # type: ignore[assignment]
    centres = parts._first_centres(4, generator(seed)).tolist()
    assert centres[:2] == [[0.0, 0.0, 0.5, 0.5, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0]]
    drawn = torch.randperm(5, generator=generator(seed))[2:4].tolist()
    assert centres[2:] == [[float(number == one) for number in range(5)] for one in drawn]
    assert len(parts._first_centres(1, generator(seed))) == 1


@pytest.mark.parametrize(
    ("every", "clusters", "counts"),
    [(0, 2, [0, 0, 0, 0]), (2, 2, [0, 2, 2, 4]), (3, 2, [0, 0, 2, 2]), (1, 2, [1, 2, 3, 4]), (2, 1, [0, 1, 1, 2])],
)
def test_tasks_are_consolidated_every_few_tasks_into_ever_more_clusters(
    every: int, clusters: int, counts: list[int]
) -> None:
    learner = made(consolidate=every, clusters=clusters)
    found = []
    for number in range(4):
        fit_task(learner, task(number), epochs=1, batch_size=20)
        found.append([len(parts.common) for parts in learner.layers])
    assert found == [[count, count] for count in counts]
    consolidated = 0 if every == 0 else 4 - 4 % every
    assert [len(parts.cluster) for parts in learner.layers] == [consolidated] * 2


def test_the_growth_is_what_the_last_task_added_and_may_be_negative() -> None:
    options: dict[str, Any] = {"consolidate": 3, "clusters": 1, "spread": 10.0}  # all is shared after three tasks
    learner = made(**options)
    grown = []
    for number in range(4):
        assert learner.growth(task(number)) is None
        size = footprint(learner).total
        fit_task(learner, task(number), epochs=1, batch_size=20)
        grown.append(footprint(learner).total - size)
        assert learner.grown == grown[-1]
    assert grown[2] < 0 < grown[1]
    loaded = made(**options)
    loaded.load_state(learner.state_dict())
    assert loaded.grown == grown[3]


def test_the_size_of_the_network_counts_numbers_that_are_not_zero() -> None:
    learner = made(consolidate=2, clusters=1, spread=0.05)
    shared = 6 * 5 + 5 * 4
    assert learner.network_size == shared
    for number in range(3):
        fit_task(learner, task(number), epochs=3, batch_size=10)
    per_task = 2 * (5 + 4) + 2 * (4 + 1)  # masks and biases, and the head
    sparse = [
        int(piece.values.count_nonzero())
        for parts in learner.layers
        for piece in [*(part.own for part in parts.parts), *parts.common]
    ]
    assert learner.network_size == shared + 3 * per_task + sum(sparse)
    base = shared + (5 + 4) + 3 * 2 * (4 + 1)  # the plain net with its biases, and all heads, as the authors count
    assert paper_capacity(learner, 1, 1) == learner.network_size / base


def test_another_backbone_than_a_chain_is_refused() -> None:
    with pytest.raises(ValueError, match="'mlp', 'cnn' or 'lenet'"):
        build_learner("apd", Setting((3, 8, 8), 4, seed=0), {}, "resnet", {"width": 2})
