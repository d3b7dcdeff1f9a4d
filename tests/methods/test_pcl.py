"""PCL against its formulas: slow loops over samples, automatic second derivatives, and steps by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.estimator.footprint import footprint
from cldnet.methods import backbone_name, build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.pcl import PCL, by_class
from cldnet.nets import CNN, FrozenNet, ResNet

CENTRES = 4.0 * torch.randn(8, 6, generator=generator(0), dtype=torch.float64)


def blobs(classes: list[int], count: int = 20, seed: int = 0) -> TaskData:
    y = torch.tensor(classes).repeat(count)
    return TaskData(CENTRES[y] + torch.randn(len(y), 6, generator=generator(seed), dtype=torch.float64), y)


def make(net: nn.Module | None = None, shape: tuple[int, ...] = (6,), **options: Any) -> PCL:
    options = {"hidden": 7, "dropout": 0.0, **options}
    setting = Setting(shape, 8, seed=0, dtype=torch.float64)
    learner = build_learner("pcl", setting, options, "auto" if net is None else net)
    assert isinstance(learner, PCL)
    return learner


def taught(*tasks: list[int], **options: Any) -> PCL:
    learner = make(**options)
    for classes in tasks:
        fit_task(learner, blobs(classes), epochs=3, batch_size=16)
    return learner


def some_heads() -> tuple[Tensor, Tensor, Tensor]:
    """``W₁`` and ``w₃`` of three heads, and five unit vectors for each."""
    draws = generator(3)
    shapes = ((3, 7, 6), (3, 7), (3, 5, 6))
    inner, outer, x = (torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes)
    return 0.5 * inner, outer, x / x.norm(dim=2, keepdim=True)


def score(inner: Tensor, outer: Tensor, x: Tensor) -> Tensor:
    """A head's score of one vector."""
    return outer @ (inner @ x).clamp_min(0)


def slow_loss(inner: Tensor, outer: Tensor, x: Tensor, weight: Tensor, holistic: float) -> Tensor:
    """Loss of one head without transfer; its H-reg is differentiated twice by autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for one, w in zip(x, weight, strict=True):
        one = one.detach().requires_grad_()
        s = score(inner, outer, one)
        (slope,) = torch.autograd.grad(s, one, create_graph=True)
        total = total + w * (-torch.log(torch.sigmoid(s) + 0.01) + holistic * slope.norm() ** 8)
    return total / len(x)


def test_the_slope_of_a_head_is_its_derivative_by_finite_differences_and_by_autograd() -> None:
    inner, outer, x = some_heads()
    slopes, step = make()._slopes(inner, outer, x), 1e-6 * torch.eye(6, dtype=torch.float64)
    for c in range(3):
        for one, slope in zip(x[c], slopes[c], strict=True):
            differences = torch.stack(
                [score(inner[c], outer[c], one + d) - score(inner[c], outer[c], one - d) for d in step]
            )
            torch.testing.assert_close(slope, differences / 2e-6, rtol=1e-7, atol=1e-7)
            one = one.clone().requires_grad_()
            (exact,) = torch.autograd.grad(score(inner[c], outer[c], one), one)
            torch.testing.assert_close(slope, exact)


def test_the_loss_and_its_gradient_are_those_of_the_formula_with_second_derivatives() -> None:
    learner = make(holistic=0.3)
    learner.mean = None
    inner, outer, x = some_heads()
    weight = torch.rand(3, 5, generator=generator(4), dtype=torch.float64)
    inner.requires_grad_()
    outer.requires_grad_()
    losses = learner.losses(inner, outer, x, weight / 5)
    slow = torch.stack([slow_loss(inner[c], outer[c], x[c], weight[c], 0.3) for c in range(3)])
    torch.testing.assert_close(losses, slow)
    gradients, expected = (torch.autograd.grad(each.sum(), (inner, outer)) for each in (losses, slow))
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other)


def test_hidden_units_are_dropped_by_the_learners_own_generator_and_the_rest_is_enlarged() -> None:
    learner = make(dropout=0.4)
    learner.mean = None
    inner, outer, x = some_heads()
    draws = torch.Generator()
    draws.set_state(learner.generator.get_state())
    kept = torch.rand(3, 5, 7, generator=draws) >= 0.4
    losses = learner.losses(inner, outer, x, torch.full((3, 5), 0.2, dtype=torch.float64))
    for c in range(3):
        pairs = zip(x[c], kept[c], strict=True)
        expected = [slow_loss(inner[c], outer[c] * k / 0.6, one[None], torch.ones(1), 0.5) for one, k in pairs]
        torch.testing.assert_close(losses[c], torch.stack(expected).mean())
    assert 0.4 < float(kept.double().mean()) < 0.8


def test_samples_are_sorted_by_class_with_their_shares_of_the_mean() -> None:
    x = torch.arange(1.0, 6.0)[:, None].expand(5, 2)
    rows, share = by_class(x, torch.tensor([1, 0, 1, 1, 0]), torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0]))
    assert rows[..., 0].tolist() == [[2, 5, 0], [1, 3, 4]]
    torch.testing.assert_close(share, torch.tensor([[2 / 2, 1 / 2, 0], [1 / 3, 0, 3 / 3]]))
    assert by_class(x, torch.zeros(5, dtype=torch.long), None)[1].tolist() == [[pytest.approx(0.2)] * 5]


def test_a_step_moves_each_head_of_the_batch_along_its_own_clipped_gradient() -> None:
    learner, task = make(lr=0.3, momentum=0.5, clip=0.03), blobs([0, 1, 2], count=4)
    learner.begin_task(task)
    x = learner.scale(task.x)
    x = x / x.norm(dim=1, keepdim=True)
    weight = torch.linspace(0.1, 2, 12, dtype=torch.float64)
    weights = {c: [p.detach().clone() for p in learner.heads[c].parameters()] for c in range(3)}
    momenta = {c: [torch.zeros_like(p) for p in weights[c]] for c in range(3)}
    clipped = 0
    for step, batch in enumerate((slice(0, 12), slice(3, 5), slice(1, 12))):  # the second one has classes 0 and 1 only
        y, losses = task.y[batch], []
        for c in sorted({*y.tolist()}):
            leaves = [p.clone().requires_grad_() for p in weights[c]]
            loss = slow_loss(*leaves, x[batch][y == c], weight[batch][y == c], 0.5)
            gradients = torch.autograd.grad(loss, leaves)
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            clipped += int(norm > 0.03)
            for place, gradient in enumerate(gradients):
                momenta[c][place] = 0.5 * momenta[c][place] + gradient * min(1.0, 0.03 / (float(norm) + 1e-6))
                weights[c][place] = weights[c][place] - 0.3 * momenta[c][place]
            losses.append(loss.item())
        shown = learner.observe(Batch(task.x[batch], y, weight[batch], step, 3, 0))
        assert float(shown) == pytest.approx(sum(losses) / len(losses))
        for c in range(3):
            for p, q in zip(learner.heads[c].parameters(), weights[c], strict=True):
                torch.testing.assert_close(p.detach(), q, rtol=1e-5, atol=1e-8)
    assert 0 < clipped < 8


def test_first_heads_are_random_within_the_authors_bounds() -> None:
    learner = make(hidden=400)
    learner.begin_task(blobs([0, 1]))
    for head in learner.heads:
        assert float(head.inner.detach().abs().max()) == pytest.approx(1000**-0.5, rel=0.01)
        assert float(head.outer.detach().abs().max()) == pytest.approx(500**-0.5, rel=0.01)
        assert abs(float(head.inner.detach().mean())) < 0.001
    assert not torch.equal(learner.heads[0].inner, learner.heads[1].inner)
    assert learner.mean is None


def test_new_heads_begin_as_the_mean_of_older_ones_and_are_drawn_to_it() -> None:
    learner = taught([0, 1, 2])
    mean = [torch.stack(parts).mean(0) for parts in zip(*(h.parameters() for h in learner.heads), strict=True)]
    mean = [part.detach() for part in mean]
    task = blobs([3, 1])
    learner.begin_task(task)
    for p, q in zip(learner.heads[3].parameters(), mean, strict=True):
        torch.testing.assert_close(p.detach(), q)
    for _ in range(3):
        learner.observe(Batch(task.x, task.y, None, 0, 1, 0))  # heads move, the mean stays
    heads = [learner.heads[row] for row in (1, 3)]
    inner, outer = torch.stack([h.inner for h in heads]).detach(), torch.stack([h.outer for h in heads]).detach()
    x, share = by_class(learner.represent(task.x), torch.tensor([1, 0]).repeat(20), None)
    found = learner.losses(inner, outer, x, share)
    learner.config = copy.copy(learner.config)
    object.__setattr__(learner.config, "transfer", 0.0)
    without = learner.losses(inner, outer, x, share)
    away = [sum(float((p.detach() - q).norm()) for p, q in zip(h.parameters(), mean, strict=True)) for h in heads]
    torch.testing.assert_close(found - without, 0.005 * torch.tensor(away, dtype=torch.float64))
    assert min(away) > 0.01


def test_only_the_heads_of_the_tasks_classes_learn() -> None:
    learner = taught([0, 1], [2, 3])
    before = copy.deepcopy(learner)
    fit_task(learner, blobs([4, 1]), epochs=2, batch_size=16)
    for c in range(4):
        same = [
            torch.equal(p, q) for p, q in zip(learner.heads[c].parameters(), before.heads[c].parameters(), strict=True)
        ]
        assert same == [c != 1] * 2


def test_heads_learn_the_same_side_by_side_and_each_in_a_task_of_its_own() -> None:
    together, apart = make(transfer=0.0), make(transfer=0.0)
    task = blobs([0, 1])
    together.begin_task(task)
    apart.load_state(together.state_dict())
    for step in range(6):
        together.observe(Batch(task.x, task.y, None, step, 6, 0))
    together.end_task(task)
    for c in (0, 1):
        part = TaskData(task.x[task.y == c], task.y[task.y == c])
        apart.begin_task(part)
        for step in range(6):
            apart.observe(Batch(part.x, part.y, None, step, 6, 0))
        apart.end_task(part)
    for p, q in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


def test_a_score_lacks_a_share_of_what_the_mean_head_computes() -> None:
    learner = taught([0, 1], [2], shared=0.3)
    x = blobs([0, 1, 2], seed=5).x
    unit = learner.scale(x)
    unit = unit / unit.norm(dim=1, keepdim=True)
    mean = sum(head.inner for head in learner.heads) / 3
    expected = torch.empty(len(x), 3, dtype=torch.float64)
    for i, one in enumerate(unit):
        for c, head in enumerate(learner.heads):
            expected[i, c] = score(head.inner, head.outer, one) - 0.3 * score(mean, head.outer, one)
    torch.testing.assert_close(learner.logits(x), expected.detach())
    torch.testing.assert_close(learner.score_represented(learner.represent(x)), expected.detach())


def test_classes_of_all_tasks_are_told_apart_because_of_the_holistic_regularisation() -> None:
    x, y = blobs([0, 1, 2, 3, 4, 5], seed=9).x, torch.arange(6).repeat(20)
    accuracy = {}
    for holistic in (0.0, 0.5):
        learner = make(holistic=holistic)
        for classes in ([0, 1], [2, 3], [4, 5]):
            fit_task(learner, blobs(classes), epochs=30, batch_size=16)
        accuracy[holistic] = float((learner.logits(x).argmax(1) == y).double().mean())
    assert accuracy[0.5] > 0.85 > 0.75 > accuracy[0.0]


def test_new_classes_add_their_heads_and_nothing_else() -> None:
    learner = make()
    for classes, new in (([0, 1], 2), ([2, 1], 1), ([0, 2], 0)):
        task, before = blobs(classes), footprint(learner).total
        assert learner.growth(task) == 8 * new * (7 * 6 + 7)
        fit_task(learner, task, epochs=1, batch_size=16)
        assert footprint(learner).total - before == 8 * new * (7 * 6 + 7)
    assert learner.class_width == 49
    assert learner.network_size == 0


@pytest.mark.parametrize("kind", [CNN, ResNet])
def test_a_net_is_never_trained_and_stays_in_evaluation_mode(kind: type[nn.Module]) -> None:
    options: dict[str, Any] = {"channels": (3, 4, 5), "hidden": (6,), "dropout": 0.5} if kind is CNN else {"width": 4}
    net = kind((3, 16, 16), **options, generator=generator(0))
    learner, x = make(net, (3, 16, 16)), torch.rand(30, 3, 16, 16, generator=generator(1))
    before = copy.deepcopy(net.state_dict())
    for first in (0, 2):
        task = TaskData(x, first + torch.arange(30) % 2)
        learner.begin_task(task)
        assert learner.training
        assert torch.equal(learner.represent(x[:3]), learner.represent(x[:3]))
        for step in range(3):
            learner.observe(Batch(task.x, task.y, None, step, 3, 0))
        learner.end_task(task)
    assert learner.backbone is net
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    features = net(learner.scale(x))
    torch.testing.assert_close(learner.represent(x), features / features.norm(dim=1, keepdim=True).clamp_min(1e-9))
    assert torch.equal(learner.vectors(x), learner.represent(x))
    assert learner.network_size == sum(p.numel() for p in net.parameters())


def test_vectors_are_the_inputs_or_those_of_a_pretrained_net() -> None:
    assert backbone_name("pcl", "auto", (3, 32, 32)) == "none"
    assert backbone_name("pcl", "efficientnet-lite0", (3, 32, 32)) == "frozen-efficientnet-lite0"
    flat = make(shape=(2, 3))
    assert flat.width == 6
    assert flat.represent(torch.ones(2, 2, 3)).shape == (2, 6)


def test_heads_learn_behind_a_pretrained_net_that_stays_as_it_is() -> None:
    body = {"net": "efficientnet-lite0", "size": 32}
    net = FrozenNet((3, 8, 8), seed=0, bodies=[body])
    learner = build_learner("pcl", Setting((3, 8, 8), 4, seed=0), backbone=net)
    x = torch.randint(0, 256, (8, 3, 8, 8), generator=generator(0), dtype=torch.uint8)
    x[::2] //= 4
    fit_task(learner, TaskData(x, torch.arange(8) % 2), epochs=15, batch_size=8)
    assert torch.equal(learner.logits(x).argmax(1), torch.arange(8) % 2)
    published = FrozenNet((3, 8, 8), seed=0, bodies=[body]).load_published()
    assert all(torch.equal(tensor, published.state_dict()[name]) for name, tensor in net.state_dict().items())
    torch.testing.assert_close(learner.vectors(x), nn.functional.normalize(published(x)))
