"""ICNet: interval arithmetic, and boxes that later tasks stay in."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.icnet import ICNet, ICNetConfig, Interval, bounds, known_layers, worst_case
from cldnet.methods.learner import Batch, Setting, TaskData, predict_logits
from cldnet.nets import CNN, MLP

CENTRES = 4.0 * torch.randn(8, 6, generator=generator(0))
TASKS = ([0, 1], [2, 3], [4, 5])


def blobs(classes: list[int], count: int = 40, seed: int = 0) -> TaskData:
    y = torch.tensor(classes).repeat(count)
    return TaskData(CENTRES[y] + torch.randn(len(y), 6, generator=generator(seed)), y)


def make(**options: Any) -> ICNet:
    learner = build_learner("icnet", Setting((6,), 8, seed=0), options, "mlp", {"widths": (16,)})
    assert isinstance(learner, ICNet)
    return learner


def box(learner: ICNet) -> dict[str, tuple[Tensor, Tensor]]:
    return {
        name: (p.detach() - learner.radius[name], p.detach() + learner.radius[name])
        for name, p in learner.named_parameters()
    }


def accuracy(logits: Tensor, y: Tensor) -> float:
    return float((logits.argmax(1) == y).float().mean())


def taught(learner: ICNet, tasks: int = 1) -> ICNet:
    for classes in TASKS[:tasks]:
        fit_task(learner, blobs(classes), epochs=6, batch_size=16)
    return learner


def test_the_box_of_a_task_lies_in_the_one_before() -> None:
    learner, boxes = make(), []
    for classes in TASKS:
        fit_task(learner, blobs(classes), epochs=6, batch_size=16)
        boxes.append(box(learner))
        assert all((learner.radius[name] >= 0).all() for name in boxes[-1])
    for older, newer in itertools.pairwise(boxes):
        moved = False
        for name, (lower, upper) in newer.items():
            slack = 1e-6 * (1 + upper.abs())
            assert (lower >= older[name][0] - slack).all()
            assert (upper <= older[name][1] + slack).all()
            moved = moved or not torch.equal(lower, older[name][0])
        assert moved


@pytest.mark.parametrize("epochs", [1, 6])
@pytest.mark.parametrize("threshold", [0.5, 0.95])
def test_the_worst_net_in_the_box_knows_as_much_as_it_has_to(threshold: float, epochs: int) -> None:
    learner = make(threshold=threshold)
    for classes in TASKS:
        task = blobs(classes)
        fit_task(learner, task, epochs=epochs, batch_size=16)
        (batch,) = task.batches(len(task))
        worst = learner.worst_case(batch, dict(learner.radius.items()))
        right = learner.logits(task.x).argmax(1) == task.y
        assert float((worst.argmax(1) == task.y)[right].sum()) >= threshold * float(right.sum())


def test_every_net_drawn_from_the_box_knows_the_task() -> None:
    learner, task, source = taught(make(threshold=0.95)), blobs([0, 1]), generator(1)
    scaled = learner.scale(task.x)
    whole = nn.Sequential()
    whole.add_module("net", learner.net)
    whole.add_module("head", learner.head)
    for _ in range(20):
        weights = {
            name: p.detach() + learner.radius[name] * (2 * torch.rand(p.shape, generator=source) - 1).sign()
            for name, p in learner.named_parameters()
        }
        assert accuracy(functional_call(whole, weights, (scaled,))[:, :2], task.y) >= 0.9


def test_a_stricter_threshold_makes_a_smaller_box_that_is_not_a_point() -> None:
    sizes = []
    for threshold in (0.5, 1.0):
        learner = taught(make(threshold=threshold))
        sizes.append(float(torch.stack([r[: learner.seen].log().mean() for _, r in learner.radius.items()]).mean()))
    assert sizes[0] > sizes[1] > -12


def test_old_classes_are_kept_apart_after_new_ones_were_learned() -> None:
    learner = taught(make(radius=1.0), tasks=3)
    for classes in TASKS:
        task = blobs(classes, seed=9)
        assert accuracy(predict_logits(learner, task.x)[:, classes], task.y - classes[0]) > 0.9


def test_what_stands_for_classes_still_to_come_keeps_all_its_room() -> None:
    learner = taught(make(radius=0.3))
    torch.testing.assert_close(learner.radius["head.weight"][2:], torch.full((6, 16), 0.3))
    assert (learner.radius["head.weight"][:2] < 0.3).any()


def test_a_box_that_is_too_large_shrinks_but_for_what_stands_for_classes_still_to_come() -> None:
    learner, task = make(radius=3.0), blobs([0, 1])
    learner.begin_task(task)
    for batch in task.batches(16):
        learner.observe(batch._replace(step=0))
    learner.observe_for_radii(next(iter(task.batches(16)))._replace(step=5, steps=6))  # the first box starts small
    for _, radius in learner.radius.items():
        radius.fill_(3.0)
    learner.end_task(task)
    shrunk = float(learner.radius["net.layers.1.weight"][0, 0])
    assert shrunk < 3.0
    for name, radius in learner.radius.items():
        free = radius[2:] if name.startswith("head.") else radius[:0]
        assert torch.equal(free, torch.full_like(free, 3.0)), name
        bound = radius[:2] if name.startswith("head.") else radius
        torch.testing.assert_close(bound, torch.full_like(bound, shrunk))


@pytest.mark.parametrize("step", [4, 5])
def test_radii_move_by_the_formula_and_shrink_four_times_faster_than_they_grow_at_most(step: int) -> None:
    """``log r += rate · (1 − 2 r ∂L/∂r / mean)`` where the worst net is not good enough, written out weight by weight."""
    learner, task = make(radius_share=0.5, threshold=1.0, radius=3.0), blobs([0, 1])
    learner.begin_task(task)
    (batch,) = task.batches(80)
    batch = batch._replace(step=step, steps=6)
    learner.observe_for_radii(batch)
    for number, (_, radius) in enumerate(learner.radius.items()):
        radius.copy_(0.02 + 0.3 * torch.rand(radius.shape, generator=generator(number)))
    before = {name: radius.clone().requires_grad_() for name, radius in learner.radius.items()}
    loss = torch.nn.functional.cross_entropy(learner.worst_case(batch, before), task.y)
    felt = [r * g for r, g in zip(before.values(), torch.autograd.grad(loss, list(before.values())), strict=True)]
    mean = torch.cat([each.flatten() for each in felt]).mean()
    rate = 2 * 10 / 3 * min((1 - step / 5) / 0.5 + 1 / 3, 1)  # three steps of six, falling to nothing
    learner.observe_for_radii(batch)
    fastest = 0
    for (name, radius), each in zip(learner.radius.items(), felt, strict=True):
        exponent = (rate * (1 - 2 * each / mean)).clamp(min=-4 * rate)
        fastest += int((exponent == -4 * rate).sum())
        torch.testing.assert_close(radius, (before[name] * exponent.exp()).clamp(max=3.0).detach(), msg=name)
    assert fastest > 0


def test_centres_rest_while_radii_are_found_and_the_other_way_round() -> None:
    learner, task = make(radius_share=0.5), blobs([0, 1])
    learner.begin_task(task)
    part = task.x[:16], task.y[:16], None
    before = {name: p.detach().clone() for name, p in learner.named_parameters()}
    learner.observe(Batch(*part, step=4, steps=10, epoch=0))
    centres = {name: p.detach().clone() for name, p in learner.named_parameters()}
    assert not torch.equal(before["head.weight"], centres["head.weight"])
    assert not any(r.any() for _, r in learner.radius.items())
    learner.observe(Batch(*part, step=5, steps=10, epoch=0))
    assert all(torch.equal(p, centres[name]) for name, p in learner.named_parameters())
    assert all((r > 0).all() for _, r in learner.radius.items())


def test_a_task_of_a_single_step_has_a_box_too() -> None:
    learner, task = make(radius=0.1), blobs([0, 1])
    learner.begin_task(task)
    (batch,) = task.batches(80)
    learner.observe(batch)  # the first step of any: it moves the centres
    learner.end_task(task)
    assert all((r > 0).all() for _, r in learner.radius.items())


def test_rows_of_weight_zero_change_neither_centres_nor_radii() -> None:
    task = blobs([0, 1])
    wrong = TaskData(torch.cat([task.x, task.x]), torch.cat([task.y, 1 - task.y]), torch.ones(160))
    wrong.weight[80:] = 0.0  # type: ignore[index]
    learners = []
    for x, y, weight in ((task.x, task.y, torch.ones(80)), (wrong.x, wrong.y, wrong.weight)):
        learner = make(momentum=0.0)
        learner.begin_task(task)
        for step in range(9):
            learner.observe(Batch(x, y, weight, step, 9, 0) if step > 5 else Batch(task.x, task.y, None, step, 9, 0))
        learners.append(learner)
    for (name, one), (_, other) in zip(*(learner.radius.items() for learner in learners), strict=True):
        torch.testing.assert_close(one, other, msg=name)


def test_a_cnn_has_a_box_too() -> None:
    small = {"channels": (3, 3, 3), "hidden": (8,)}
    learner = build_learner("icnet", Setting((8, 8), 4, seed=0), backbone="cnn", backbone_options=small)
    x = torch.randn(40, 8, 8, generator=generator(0)) + 2.0 * (torch.arange(40) % 2)[:, None, None]
    fit_task(learner, TaskData(x, torch.arange(40) % 2), epochs=5, batch_size=8)
    assert isinstance(learner, ICNet)
    assert all((r > 0).any() for _, r in learner.radius.items())


def test_a_net_whose_intervals_are_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="The intervals of BatchNorm1d are not known"):
        build_learner("icnet", Setting((6,), 4, seed=0), backbone=nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"threshold": 1.5}, r"threshold=1\.5 should lie in \[0, 1\]"),
        ({"radius": 0.0}, r"radius=0\.0 should be a positive, finite number"),
        ({"radius_share": 1.0}, r"radius_share=1\.0 should lie between 0 and 1"),
        ({"lr": 0.0}, "lr=0"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ICNetConfig(**options)


relaxed = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 1)

SHAPES = {"mlp": (6,), "cnn": (8, 8), "colour": (3, 8, 8), "bare": (5,), "biased": (2, 6, 6)}


def build(kind: str, seed: int) -> nn.Module:
    source = generator(seed)
    if kind == "mlp":
        return MLP((6,), widths=(7, 5), generator=source).double()
    if kind in ("cnn", "colour"):
        return CNN(SHAPES[kind], channels=(3, 4), kernel_sizes=(2, 3), hidden=(6, 4), generator=source).double().eval()
    if kind == "bare":  # no ReLU between: inputs of the second layer are intervals of any sign
        return nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 4), nn.Sequential(nn.ReLU(), nn.Identity())).double()
    convolution = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
    return nn.Sequential(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 3)).double()


def drawn(shape: torch.Size, source: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=source, dtype=torch.float64)


@relaxed
@given(st.sampled_from(sorted(SHAPES)), seeds, st.sampled_from((0.0, 1e-3, 0.1, 1.0)))
def test_every_net_in_the_box_answers_within_the_bounds(kind: str, seed: int, size: float) -> None:
    torch.manual_seed(seed)
    net, source = build(kind, seed), generator(seed)
    x = torch.randn(4, *SHAPES[kind], generator=source, dtype=torch.float64)
    radii = {p: size * drawn(p.shape, source) for p in net.parameters()}
    found = bounds(known_layers(net), x, radii)
    for number in range(20):
        weights = {}
        for name, p in net.named_parameters():
            place = 2 * drawn(p.shape, source) - 1
            # Half of the nets are corners of the box, where outputs are extreme.
            weights[name] = p.detach() + radii[p] * (place.sign() if number % 2 else place)
        output = functional_call(net, weights, (x,))
        slack = 1e-9 * (1 + output.abs())
        assert (found.lower - slack <= output).all()
        assert (output <= found.upper + slack).all()


@pytest.mark.parametrize("kind", SHAPES)
def test_without_radii_the_bounds_are_what_the_net_gives(kind: str) -> None:
    net, x = build(kind, 0), torch.randn(3, *SHAPES[kind], generator=generator(1), dtype=torch.float64)
    found = bounds(known_layers(net), x, {p: torch.zeros_like(p) for p in net.parameters()})
    torch.testing.assert_close(found.lower, net(x))
    torch.testing.assert_close(found.upper, net(x))


def test_bounds_of_one_layer_are_reached_by_hand() -> None:
    layer = nn.Linear(2, 1).double().requires_grad_(False)
    layer.weight.copy_(torch.tensor([[1.0, -2.0]]))
    layer.bias.copy_(torch.tensor([0.5]))
    radii = {layer.weight: torch.tensor([[0.5, 1.0]]).double(), layer.bias: torch.tensor([0.25]).double()}
    found = bounds([layer], torch.tensor([[2.0, -3.0]]).double(), radii)
    # Weights from 0.5 to 1.5 times 2, from −3 to −1 times −3, and a bias from 0.25 to 0.75.
    assert (found.lower.item(), found.upper.item()) == (1.0 + 3.0 + 0.25, 3.0 + 9.0 + 0.75)


def test_two_layers_with_a_relu_are_bounded_by_hand() -> None:
    first, second = (nn.Linear(1, 1, bias=False).double().requires_grad_(False) for _ in range(2))
    first.weight.fill_(1.0)
    second.weight.fill_(-1.0)
    radii = {first.weight: torch.tensor([[3.0]]).double(), second.weight: torch.tensor([[2.0]]).double()}
    found = bounds([first, nn.ReLU(), second], torch.ones(1, 1).double(), radii)
    # The hidden unit is relu of −2 to 4, so 0 to 4; the weight behind it goes from −3 to 1.
    assert (found.lower.item(), found.upper.item()) == (-12.0, 4.0)


@relaxed
@given(seeds)
def test_bounds_of_one_hidden_layer_are_reached_at_corners_of_the_box(seed: int) -> None:
    source = generator(seed)
    net = MLP((2,), widths=(1,), generator=source).double()
    radii = {p: drawn(p.shape, source) for p in net.parameters()}
    x = torch.randn(3, 2, generator=source, dtype=torch.float64)
    found = bounds(known_layers(net), x, radii)
    corners = []
    for signs in itertools.product((-1.0, 1.0), repeat=3):
        place = torch.tensor(signs, dtype=torch.float64)
        moved = {"layers.1.weight": place[None, :2], "layers.1.bias": place[2:]}
        weights = {name: p + radii[p] * moved[name] for name, p in net.named_parameters()}
        corners.append(functional_call(net, weights, (x,)))
    torch.testing.assert_close(found.lower, torch.stack(corners).amin(0))
    torch.testing.assert_close(found.upper, torch.stack(corners).amax(0))


def test_the_worst_case_is_the_lower_bound_of_the_right_class_and_the_upper_one_of_others() -> None:
    lower, upper = torch.tensor([[0.0, 1.0, 2.0]] * 2), torch.tensor([[5.0, 6.0, 7.0]] * 2)
    worst = worst_case(Interval(lower, upper), torch.tensor([2, 0]))
    assert worst.tolist() == [[5.0, 6.0, 2.0], [0.0, 6.0, 7.0]]


class Own(nn.Sequential):
    """A user's own order of layers."""

    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


@pytest.mark.parametrize(
    ("net", "named"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "BatchNorm1d"),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU())), "GELU"),
        (Own(nn.Linear(4, 4)), "Own"),
    ],
)
def test_layers_without_known_intervals_are_refused_with_what_to_use(net: nn.Module, named: str) -> None:
    with pytest.raises(ValueError, match=rf"The intervals of {named} are not known: use an nn\.Sequential of Linear, "):
        known_layers(net)
