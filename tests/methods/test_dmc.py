"""DMC: two teachers, one student, and inputs that nobody has labelled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.methods import METHODS, build_learner, read_method
from cldnet.methods.dmc import DMC, DMCConfig, double_targets
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Learner, Setting, TakesOutsideData, TaskData

CENTRES = 5.0 * torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
OUTSIDE = 5.0 * torch.randn(300, 5, generator=torch.Generator().manual_seed(2))


def task(*classes: int, count: int = 20, seed: int = 0) -> TaskData:
    y = torch.tensor(classes).repeat(count)
    return TaskData(CENTRES[y] + torch.randn(len(y), 5, generator=torch.Generator().manual_seed(seed)), y)


def make(method: str = "dmc", **options: Any) -> Learner:
    learner = build_learner(method, Setting((5,), capacity=6, seed=0), options, backbone_options={"widths": (32,)})
    if method == "dmc":
        learner.take_outside(OUTSIDE)
    return learner


def teach(learner: Learner, *tasks: TaskData, epochs: int = 5) -> Learner:
    for one in tasks:
        fit_task(learner, one, epochs=epochs, batch_size=8)
    return learner


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 63), st.integers(1, 63))
def test_targets_are_what_the_papers_formula_says_sample_by_sample(seed: int, old_set: int, new_set: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    old, new = torch.randn(3, 6, generator=draw, dtype=torch.float64), torch.randn(3, 6, generator=draw).double()
    classes = [[c for c in range(6) if bits >> c & 1] for bits in (old_set, new_set)]
    known = torch.tensor([c in classes[0] for c in range(6)])
    target, taught = double_targets(old, new, known, torch.tensor(classes[1]))
    assert taught.nonzero()[:, 0].tolist() == sorted({*classes[0], *classes[1]})
    for sample in range(3):
        told: dict[int, list[float]] = {}
        for scores, own in ((old[sample].tolist(), classes[0]), (new[sample].tolist(), classes[1])):
            mean = sum(scores[c] for c in own) / len(own)
            for c in own:
                told.setdefault(c, []).append(scores[c] - mean)
        for c, values in told.items():
            assert float(target[sample, c]) == pytest.approx(sum(values) / len(values))


def test_the_first_task_is_learned_as_fine_tuning_learns_it() -> None:
    one, other = teach(make(lr=0.02), task(0, 1)), teach(make("finetune", lr=0.02), task(0, 1))
    torch.testing.assert_close(one.logits(OUTSIDE), other.logits(OUTSIDE))


def test_the_student_says_of_outside_inputs_what_both_teachers_say() -> None:
    old = teach(make(lr=0.02), task(0, 1))
    fresh = make(lr=0.02)  # what the new model alone would be: fresh weights, and the scaling of the first task
    fresh.scale.load_state_dict(old.scale.state_dict())
    fresh.generator.set_state(old.generator.get_state())
    teach(fresh, task(2, 3))
    wanted = torch.cat([_centred(old.logits(OUTSIDE)), _centred(fresh.logits(OUTSIDE)[:, 2:])], dim=1)
    students = [copy.deepcopy(old), copy.deepcopy(old)]
    students[1].configure({"lr": 0.02, "distil": 20.0})
    taught = [teach(student, task(2, 3)).logits(OUTSIDE) for student in students]
    errors = [float((scores - wanted).square().mean() / wanted.square().mean()) for scores in taught]
    assert errors[1] < errors[0] < 1  # more steps, nearer
    assert errors[1] < 0.05


def test_old_classes_are_remembered_though_none_of_their_examples_comes_again() -> None:
    tasks = [task(0, 1), task(2, 3), task(4, 5)]
    learner, forgetful = (teach(make(method, lr=0.02), *tasks, epochs=20) for method in ("dmc", "finetune"))
    test = [task(0, 1, seed=9), task(2, 3, seed=9)]
    right, wrong = (
        torch.cat([one.logits(part.x).argmax(1) == part.y for part in test]).float().mean()
        for one in (learner, forgetful)
    )
    assert right > wrong + 0.2


def test_a_class_that_comes_back_is_learned_by_both_and_a_single_class_changes_nothing_else() -> None:
    learner = teach(make(lr=0.02), task(0, 1), task(1, 2), task(3), epochs=20)
    scores = learner.logits(task(0, 1, 2, seed=5).x)
    assert scores.shape[1] == 4
    assert scores[:, 3].abs().max() < scores[:, :3].abs().max()  # a model of one class has nothing to tell: zero


def test_only_the_student_and_the_initial_weights_stay() -> None:
    learner = make()
    names = set(learner.state_dict())
    attributes = set(vars(learner))
    teach(learner, task(0, 1), task(2, 3))
    assert set(learner.state_dict()) == names
    assert set(vars(learner)) == attributes
    assert not any(parameter.grad is not None for parameter in learner.parameters())


def test_outside_inputs_are_varied_as_the_tasks_are() -> None:
    seen: list[Tensor] = []

    def augment(x: Tensor, source: torch.Generator) -> Tensor:
        seen.append(x)
        return x

    learner = teach(make(distil=1.0, distil_batch=7), task(0, 1))
    fit_task(learner, task(2, 3), epochs=1, batch_size=8, augment=augment)
    distilled = [x for x in seen if len(x) == 7]
    assert len(distilled) == 5  # as many steps as the task had
    assert all(bool((x[:, None] == OUTSIDE).all(-1).any(1).all()) for x in distilled)


def test_a_weight_of_two_counts_as_two_rows_and_zero_as_none() -> None:
    learner = teach(make(), task(0, 1))
    assert isinstance(learner, DMC)
    plain = task(2, 3, count=4)
    learner.begin_task(plain)
    (batch,) = plain.batches(100)
    x, y = torch.cat([batch.x, batch.x + 100]), torch.cat([batch.y, batch.y])
    weighted = batch._replace(x=x, y=y, weight=torch.tensor([2.0, 0.0]).repeat_interleave(len(batch.y)))
    torch.testing.assert_close(learner.loss(weighted), learner.loss(batch))


@pytest.mark.parametrize("wrong", [{"distil_lr": 0.0}, {"distil": -1.0}, {"distil_batch": 0}, {"lr": -0.1}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=.* should be"):
        DMCConfig(**wrong)


def test_without_outside_data_it_says_what_to_do_and_nothing_changes() -> None:
    learner = teach(make(), task(0, 1))
    loaded = build_learner("dmc", learner.setting, backbone_options={"widths": (32,)})
    loaded.load_state(learner.state_dict())
    assert torch.equal(loaded.logits(OUTSIDE), learner.logits(OUTSIDE))  # it can answer, and not learn
    before = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"DMC also learns .* take_outside\(x\) before the first task, and again after loading"
    ):
        teach(loaded, task(2, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in loaded.state_dict().items())
    with pytest.raises(ValueError, match=r"have the shape \(300, 4\); expected one or more inputs .* \(n, 5\)"):
        loaded.take_outside(OUTSIDE[:, 1:])
    loaded.take_outside(OUTSIDE)
    teach(loaded, task(2, 3))
    assert torch.equal(loaded.logits(OUTSIDE), teach(learner, task(2, 3)).logits(OUTSIDE))
    assert isinstance(loaded, DMC)


def test_only_a_method_with_the_trait_takes_outside_data() -> None:
    takes = {method for method in METHODS if issubclass(read_method(method), TakesOutsideData)}
    assert takes == {method for method in METHODS if read_method(method).traits.outside_data} == {"dmc"}


def _centred(scores: Tensor) -> Tensor:
    return scores - scores.mean(1, keepdim=True)


def test_consolidation_is_plain_descent_from_the_initial_weights_with_a_rate_that_falls_to_zero() -> None:
    """Against the loop written out: a fresh student, both teachers' scores, and ``distil_lr · (1 − step / steps)``."""
    learner = teach(make(lr=0.02, distil_lr=0.01, distil_batch=16, distil=0.5), task(0, 1))
    assert isinstance(learner, DMC)
    second = task(2, 3, count=8)
    old = copy.deepcopy(learner)
    learner.begin_task(second)
    for batch in second.batches(4):
        learner.observe(batch)
    new, student = copy.deepcopy(learner), make()
    assert isinstance(student, DMC)
    draws = torch.Generator()
    draws.set_state(learner.generator.get_state())
    learner.end_task(second)

    optimizer = torch.optim.SGD([*student.net.parameters(), *student.head.parameters()], lr=0.01, momentum=0.9)
    for step in range(2):  # half as many as the task's four
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / 2)
        x = learner.scale(OUTSIDE[torch.randint(300, (16,), generator=draws)])
        with torch.no_grad():
            scores = [teacher.head(teacher.net(x)) for teacher in (old, new)]
            wanted = torch.cat([_centred(scores[0][:, :2]), _centred(scores[1][:, 2:4])], 1)
        loss = (student.head(student.net(x))[:, :4] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], learner.config.clip)
        optimizer.step()
    for found, expected in zip(
        learner.parameters(), [*student.net.parameters(), *student.head.parameters()], strict=True
    ):
        torch.testing.assert_close(found, expected)
