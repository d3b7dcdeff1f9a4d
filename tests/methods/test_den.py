"""DEN: its four phases by hand, and old tasks that stay as they were if every unit that moved is split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.den import DEN, Phase
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.nets import MLP, LeNet

METHOD = "cldnet.methods.den:DEN"


def trained(blobs, small, **options) -> DEN:
    """A learner with hidden layers of 5 and 4 units, after one task."""
    learner = small(METHOD, MLP((6,), (5, 4), generator=generator(0)), **{"lr": 0.01, **options})
    fit_task(learner, blobs([0, 1]), epochs=3, batch_size=16)
    return learner


def begun(learner: DEN, task: TaskData, phase: Phase) -> DEN:
    """The learner in a phase of a task, of which it has seen no sample."""
    learner.begin_task(task)
    learner.loss.fill_(5.0)
    for number in range(1, phase + 1):
        learner._begin_phase(number, 0)
    return learner


def tensors(learner: DEN) -> list[Tensor]:
    """Weight and bias of both hidden layers and of the newest head, with all that a task has room for."""
    layers = [*(stage.layer for stage in learner.net.stages), learner.heads[-1].layer]
    return [each.detach() for layer in layers for each in (layer.weight, layer.bias)]


def copies(values: list[Tensor]) -> list[Tensor]:
    return [value.clone() for value in values]


def randomised(learner: DEN, seed: int = 3) -> None:
    """Move all numbers that the task computes with."""
    source = generator(seed)
    for corner in learner.corners():
        corner.value.add_(torch.randn(corner.value.shape, generator=source))


def test_the_phases_share_a_tasks_steps_and_train_the_head_then_old_weights_then_new_ones_then_both(blobs, small):
    learner = trained(blobs, small, loss_threshold=1e-12)
    phases, rates, widths, seen = [], [], [], []

    def watch(_: object) -> None:
        phases.append(int(learner.phase))
        rates.append(learner.optimizer.param_groups[0]["lr"])
        widths.append(learner.widths.tolist())
        assert (learner.net.stages[0].layer.weight.grad is None) == (learner.phase == Phase.HEAD), "it would take time"
        w1, b1, w2, b2, head, _ = copies(tensors(learner))
        seen.append(
            [torch.cat([w1[:5].flatten(), b1[:5], w2[:4, :5].flatten(), b2[:4]]), head[:, :4], w1[5:8], w2[:4, 5:8]]
        )

    fit_task(learner, blobs([2, 3]), epochs=5, batch_size=15, on_step=watch)
    assert phases == [0] * 2 + [1] * 6 + [2] * 6 + [3] * 6
    epochs = [0] * 4 + [1] * 4 + [0] * 4 + [1] * 2 + [0] * 2 + [1] * 4  # of the phase
    assert rates == pytest.approx([0.01 * 0.95**epoch for epoch in epochs])
    moved = [[not torch.equal(a, b) for a, b in zip(seen[i - 1], seen[i], strict=True)] for i in range(1, 20)]
    assert [each[0] for each in moved] == [False] + [True] * 6 + [False] * 6 + [True] * 6
    assert all(each[1] for each in moved)
    assert all(all(each[2:]) for each in moved[8:12])
    assert widths[:8] == [[5, 4]] * 8
    assert widths[8:14] == [[15, 14]] * 6
    assert learner.net.stamps.tolist() == [[5, 4], widths[-1]]


def test_units_are_selected_that_reach_any_output_of_the_head_along_weights_that_are_not_zero(blobs, small):
    learner = begun(trained(blobs, small), blobs([2, 3]), Phase.HEAD)
    _, _, w2, _, head, _ = tensors(learner)
    head[:, :4] = torch.tensor([[0.0, 0, 0.2, 0], [0.3, 0, 0, 0]])
    w2[:4, :5] = torch.tensor([[0.0, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, -1, 0], [0, 0, 0, 0, 1]])
    learner._begin_phase(Phase.SELECTED, 0)
    assert {name: units.tolist() for name, units in learner.selected.items()} == {
        "0": [0, 1, 0, 1, 0],
        "1": [1, 0, 1, 0],
    }
    before = copies(tensors(learner))
    task = blobs([2, 3])
    learner.observe(Batch(task.x, task.y, None, 5, 20, 1))
    w1, b1, w2, b2, head, bias = (a != b for a, b in zip(tensors(learner), before, strict=True))
    rows, columns = torch.tensor([0, 1, 0, 1, 0]).bool(), torch.tensor([1, 0, 1, 0]).bool()
    assert w1[:5][rows].any(1).all()
    assert b1[:5][rows].any()
    assert w2[0, 1]
    assert w2[2, 3]
    assert not w1[:5][~rows].any()
    assert not b1[:5][~rows].any()
    assert not w2[:4][~columns].any()
    assert not w2[:, [0, 2, 4]].any()
    assert not b2[:4][~columns].any()
    assert head.any()
    assert bias.any()


def test_a_channel_is_selected_if_any_of_its_columns_is_used():
    learner = build_learner(
        METHOD, Setting((3, 8, 8), 4, seed=0), {}, LeNet((3, 8, 8), (4, 3), (6, 5), generator=generator(0))
    )
    x = torch.randn(8, 3, 8, 8, generator=generator(0))
    fit_task(learner, TaskData(x, torch.arange(8) % 2), epochs=1, batch_size=8)
    learner.begin_task(TaskData(x, 2 + torch.arange(8) % 2))
    _, second, third, fourth = (stage.layer.weight.detach() for stage in learner.net.stages)
    for weight in (second, third, fourth):
        weight.zero_()
    fourth[:5, 2] = 1.0
    third[2, 7] = 1.0  # the last place of channel 1
    second[1, 3, 4, 0] = 1.0
    learner._begin_phase(Phase.SELECTED, 0)
    assert [learner.selected[str(number)].tolist() for number in range(4)] == [
        [0, 0, 0, 1], [0, 1, 0], [0, 0, 1, 0, 0, 0], [1, 1, 1, 1, 1],
    ]  # fmt: skip
    masks = learner._masks()
    assert [tuple(mask.shape) for mask in masks[::2]] == [(4, 3, 1, 1), (3, 4, 1, 1), (6, 12), (5, 6)]
    assert masks[2].nonzero().tolist() == [[1, 3, 0, 0]]
    assert masks[4].nonzero().tolist() == [[2, 4], [2, 5], [2, 6], [2, 7]]
    assert masks[0].flatten(1)[3].tolist() == [1, 1, 1]


def test_the_gradients_of_both_l2_terms_by_hand(blobs, small):
    learner = trained(blobs, small, l2=0.3, pull=0.7, units=2)
    before = copies(tensors(learner))[:4]
    begun(learner, blobs([2, 3]), Phase.EXPANDED)
    randomised(learner)
    learner.selected = {"0": torch.tensor([1.0, 0, 1, 1, 0]), "1": torch.tensor([0.0, 1, 1, 0])}
    for phase, free in ((Phase.SPLIT, 1.0), (Phase.EXPANDED, 0.0)):
        learner.phase = phase
        for corner in learner.corners():
            corner.parameter.grad = torch.full_like(corner.parameter, 0.1)
        learner._regularise(learner._masks())
        for number, corner in enumerate(learner.corners()):
            expected = 0.1 + 0.3 * corner.value
            if number < 4:
                old = before[number]
                rows = learner.selected[str(corner.stage)]
                for place in torch.cartesian_prod(*map(torch.arange, old.shape)).reshape(-1, old.ndim).tolist():
                    i, j = (*place, None)[:2]
                    trained_now = rows[i] * (1.0 if j is None or number == 0 else learner.selected["0"][j]) * free
                    where = tuple(place)
                    value = corner.value[where]
                    expected[where] = trained_now * (0.1 + 0.3 * value + 0.7 * (value - old[where]))
            torch.testing.assert_close(corner.gradient, expected)


def test_the_proximal_steps_of_both_lassos_by_hand(blobs, small):
    learner = begun(trained(blobs, small, units=2, l1=0.4, group=0.9), blobs([2, 3]), Phase.EXPANDED)
    randomised(learner)
    for corner in learner.corners():
        corner.parameter.grad = torch.zeros_like(corner.parameter)
    before = copies([corner.value for corner in learner.corners()])
    learner._shrink(learner._masks())

    def soft(w: Tensor) -> Tensor:
        return torch.sign(w) * (w.abs() - 0.4).clamp_min(0)

    def group(w: Tensor) -> Tensor:
        return torch.stack([row * max(0.0, 1 - 0.9 / max(float((row**2).sum() ** 0.5), 1e-9)) for row in w])

    w1, b1, w2, b2, head, bias = before
    expected_w1 = torch.cat([w1[:5], group(soft(w1[5:]))])
    expected_w2 = torch.cat([torch.cat([w2[:4, :5], group(soft(w2[:4, 5:]))], 1), group(soft(w2[4:]))])
    expected = (
        expected_w1, torch.cat([b1[:5], soft(b1[5:])]), expected_w2, torch.cat([b2[:4], soft(b2[4:])]), soft(head), soft(bias),
    )  # fmt: skip
    for corner, value in zip(learner.corners(), expected, strict=True):
        torch.testing.assert_close(corner.value, value)
    learner.phase, learner.selected = Phase.SPLIT, {"0": torch.tensor([1.0, 1, 0, 1, 1]), "1": torch.ones(4)}
    before = copies([corner.value for corner in learner.corners()])
    learner._shrink(learner._masks())
    kept = soft(before[0])
    kept[2] = before[0][2]
    torch.testing.assert_close(learner.corners()[0].value, kept, msg="no groups now, and what is not trained stays")


def test_units_are_added_only_if_the_loss_is_not_below_the_threshold(blobs, small):
    for loss, widths in ((0.0099, [5, 4]), (0.01, [8, 7])):
        learner = begun(trained(blobs, small, units=3), blobs([2, 3]), Phase.SELECTED)
        learner.loss = torch.tensor(loss, dtype=torch.float64)
        learner._begin_phase(Phase.EXPANDED, 0)
        assert learner.widths.tolist() == widths
        assert learner._expanding == (widths == [8, 7])
        assert (learner._masks()[0] == 1).all() == (widths == [5, 4]), "without new units the old ones are trained on"


def test_added_units_without_incoming_weights_are_dropped_and_the_others_move_up(blobs, small):
    learner = begun(trained(blobs, small, units=3, splits=3), blobs([2, 3]), Phase.EXPANDED)
    randomised(learner)
    w1, _, w2, _, _, _ = tensors(learner)
    w1[6] = 0.0
    w1[2] = 0.0  # an old unit stays
    w2[4] = 0.0
    w2[6, :7] = 0.0  # one weight is left
    a1, c1, a2, c2, ahead, abias = copies(tensors(learner))
    learner._drop()
    assert learner.widths.tolist() == [7, 6]
    rows, above = [0, 1, 2, 3, 4, 5, 7], [0, 1, 2, 3, 5, 6]
    expected = [a1[rows], c1[rows], a2[above][:, rows], c2[above], ahead[:, above], abias]
    for corner, value in zip(learner.corners(), expected, strict=True):
        assert torch.equal(corner.value, value)
    assert (tensors(learner)[0][7:] == 0).all(), "room for the units to come"
    w1[6] = 0.0
    learner._begin_phase(Phase.SPLIT, 0)
    assert learner.widths.tolist() == [6 + 3, 6 + 3], "before units are split"


def test_a_task_that_ends_with_the_expansion_drops_units_as_well(blobs, small):
    learner = trained(blobs, small, group=100.0)
    fit_task(learner, blobs([2, 3]), epochs=1, batch_size=20)  # steps 0, 1 and 2 of 3 are in phases 0, 1 and 2
    assert learner.net.stamps.tolist() == [[5, 4], [5, 4]]


def test_a_unit_that_moved_too_far_is_restored_and_its_new_self_takes_over_in_what_is_new(blobs, small):
    learner = trained(blobs, small, units=3)
    old = copies(tensors(learner))[:4]
    begun(learner, blobs([2, 3]), Phase.EXPANDED)
    for corner in learner.corners()[-2:]:
        corner.value.uniform_(-1, 1, generator=generator(5))
    w1, b1, w2, b2, head, _ = tensors(learner)
    w1[0] += 0.1
    w1[2] += 0.02 / 6**0.5
    b1[3] += 0.06
    w2[1, 0] += 0.2
    w2[2, 6] += 0.2  # from a new unit: this is no move
    n1, m1, n2, m2, nhead, _ = copies(tensors(learner))
    learner._split()
    assert learner.widths.tolist() == [5 + 3 + 2, 4 + 3 + 1]
    assert torch.equal(w1[[0, 3]], old[0][[0, 3]])
    assert torch.equal(b1[[0, 3]], old[1][[0, 3]])
    assert torch.equal(w1[[1, 2, 4, 5, 6, 7]], n1[[1, 2, 4, 5, 6, 7]])
    assert torch.equal(w1[8:10], n1[[3, 0]])
    assert torch.equal(b1[8:10], m1[[3, 0]])
    assert torch.equal(w2[:4, :5], old[2].where(torch.arange(4)[:, None] == 1, n2[:4, :5]))
    assert torch.equal(b2[1], old[3][1])
    assert torch.equal(b2[7], m2[1])
    assert torch.equal(w2[:4, 5:8], n2[:4, 5:8]), "old units still hear those that were added"
    assert (w2[:4, 8:10] == 0).all(), "old units do not hear the new selves"
    new = [4, 5, 6, 1]  # what was added, and the new self of unit 1
    assert torch.equal(w2[4:8][:, [1, 2, 4, 5, 6, 7]], n2[new][:, [1, 2, 4, 5, 6, 7]])
    assert torch.equal(w2[4:8][:, 8:10], n2[new][:, [3, 0]])
    assert (w2[4:8][:, [0, 3]] == 0).all()
    assert torch.equal(head[:, [0, 2, 3, 4, 5, 6, 7]], nhead[:, [0, 2, 3, 4, 5, 6, 1]])
    assert (head[:, 1] == 0).all()
    assert learner.selected["0"][[0, 3]].tolist() == [0, 0]
    assert learner.selected["1"].tolist() == [1, 0, 1, 1]


def test_splitting_all_units_leaves_the_new_task_as_it_is_and_takes_the_old_one_back(blobs, small):
    learner, x = trained(blobs, small), blobs([0, 1, 2, 3]).x
    before = learner.logits_in(x, 0)[:, :2]
    begun(learner, blobs([2, 3]), Phase.EXPANDED)
    randomised(learner)
    now = learner.logits_in(x, 1)[:, 2:]
    assert not torch.allclose(learner.logits_in(x, 0)[:, :2], before)
    learner._drop()
    learner._split()
    assert learner.widths.tolist() == [5 + 10 + 5, 4 + 10 + 4]
    torch.testing.assert_close(learner.logits_in(x, 1)[:, 2:], now)
    assert torch.equal(learner.logits_in(x, 0)[:, :2], before)


def test_a_unit_that_did_not_move_is_not_split(blobs, small):
    learner = begun(trained(blobs, small, split_threshold=0.0), blobs([2, 3]), Phase.SELECTED)
    tensors(learner)[0][3, 0] += 1e-3
    learner._split()
    assert learner.widths.tolist() == [6, 4]


def test_of_too_many_units_those_that_moved_least_are_split(blobs, small):
    learner = begun(trained(blobs, small, splits=2), blobs([2, 3]), Phase.SELECTED)
    w1 = tensors(learner)[0]
    for unit, distance in enumerate((0.4, 0.06, 0.01, 0.3, 0.2)):
        w1[unit, 0] += distance
    learner._split()
    assert learner.widths.tolist() == [7, 4]
    assert learner.selected["0"].nonzero()[:, 0].tolist() == [0, 2, 3]
    torch.testing.assert_close(learner._moved()[0], torch.tensor([0.4, 0.0, 0.01, 0.3, 0.0]))


@pytest.mark.parametrize(("added", "tasks"), [(True, 2), (False, 3)])
@pytest.mark.parametrize("backbone", ["mlp", "lenet"])
def test_old_tasks_keep_their_bits_if_every_unit_that_moved_is_split(backbone: str, added: bool, tasks: int) -> None:
    """There is room for all of them: of ``splits``, and none is added in the first place if there are three tasks."""
    net = {"widths": (5, 4)} if backbone == "mlp" else {"channels": (4, 3), "hidden": (6, 5)}
    x = torch.randn(24, 3, 8, 8, generator=generator(0))

    def unchanged(split_threshold: float) -> list[bool]:
        options = {
            "lr": 0.01,
            "splits": 40,
            "split_threshold": split_threshold,
            "loss_threshold": 0.0 if added else torch.inf,
        }
        learner: Any = build_learner(METHOD, Setting((3, 8, 8), 6, seed=0), options, backbone, net)
        equal, before = list[bool](), list[Tensor]()
        for first in range(0, 2 * tasks, 2):
            fit_task(learner, TaskData(x, first + torch.arange(24) % 2), epochs=5, batch_size=12)
            now = [learner.logits_in(x, task)[:, 2 * task : 2 * task + 2] for task in range(learner.tasks)]
            equal += [torch.equal(one, other) for one, other in zip(now, before, strict=False)]
            before = now
        return equal

    assert unchanged(0.0) == [True] * (3 if tasks == 3 else 1)
    assert not any(unchanged(torch.inf))


def test_a_task_computes_with_the_units_that_it_ended_with(blobs, small):
    learner, x = trained(blobs, small), blobs([0, 1, 2, 3]).x
    for classes in ([2, 3], [4, 5]):
        fit_task(learner, blobs(classes), epochs=3, batch_size=16)
    stamps = learner.net.stamps.tolist()
    assert stamps[0] == [5, 4] < stamps[1] < stamps[2] == learner.net.widths
    first, second = (stage.layer for stage in learner.net.stages)
    for task, (width, above) in enumerate(stamps):
        h = (learner.scale(x) @ first.weight[:width].T + first.bias[:width]).relu()
        h = (h @ second.weight[:above, :width].T + second.bias[:above]).relu()
        layer = learner.heads[task].layer
        assert layer.weight.shape == (2, above)
        expected = h @ layer.weight.T + layer.bias
        torch.testing.assert_close(learner.logits_in(x, task)[:, 2 * task : 2 * task + 2], expected)


def test_the_first_task_is_trained_whole_with_l1_and_loses_no_unit(blobs, small):
    learner, dense = trained(blobs, small, l1=0.03), trained(blobs, small, l1=0.0)
    zeros, none = ([int((corner.value == 0).sum()) for corner in each.net.corners([5, 4])] for each in (learner, dense))
    assert zeros[0] > 0 == none[0]
    assert zeros[2] > 0 == none[2]
    assert trained(blobs, small, l1=10.0).net.stamps.tolist() == [[5, 4]]
