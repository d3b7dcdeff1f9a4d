"""The one training loop, seen through a learner that only takes notes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.methods.fit import Progress, fit_task
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits, predict_logits


class Notes(Learner):
    """Writes down what happens to it."""

    traits = Traits(rehearsal_free=True, constant_size=True)

    def __init__(self) -> None:
        super().__init__(Setting((2,), capacity=4, seed=0))
        self.events: list[str] = []
        self.batches: list[Batch] = []

    def start(self, task: TaskData) -> None:
        assert self.training
        self.events.append("start")

    def finish(self, task: TaskData) -> None:
        assert not self.training
        self.events.append("finish")

    def observe(self, batch: Batch) -> Tensor:
        self.events.append("observe")
        self.batches.append(batch)
        return torch.tensor(float(len(self.batches)))

    def score(self, x: Tensor) -> Tensor:
        self.events.append(f"score {len(x)}")
        return x.repeat(1, 2)


class Once(Notes):
    """Sees every example once."""

    traits = Traits(rehearsal_free=True, constant_size=True, one_pass=True)


def task(count: int, weight: bool = False) -> TaskData:
    x = torch.arange(2.0 * count).reshape(count, 2)
    return TaskData(x, torch.arange(count) % 3, torch.arange(count).double() if weight else None)


@settings(deadline=None)
@given(count=st.integers(1, 12), size=st.integers(1, 14), epochs=st.integers(1, 3), weight=st.booleans())
def test_every_epoch_sees_every_example_once_with_its_label_and_weight(
    count: int, size: int, epochs: int, weight: bool
) -> None:
    learner, data, progress = Notes(), task(count, weight), list[Progress]()
    report = fit_task(learner, data, epochs=epochs, batch_size=size, on_step=progress.append)
    steps = -(-count // size)
    if size > 1 and steps > 1 and count % size == 1:
        steps -= 1  # a row that is left over joins the batch before it
    assert learner.events == ["start", *["observe"] * steps * epochs, "finish"]
    assert progress == [Progress(number + 1, steps * epochs) for number in range(steps * epochs)]
    for epoch in range(epochs):
        batches = learner.batches[epoch * steps : (epoch + 1) * steps]
        assert {batch.epoch for batch in batches} == {epoch}
        index = torch.cat([batch.x[:, 0] for batch in batches]).div(2).long()
        assert sorted(index.tolist()) == list(range(count))
        assert torch.equal(torch.cat([batch.y for batch in batches]), data.y[index])
        if data.weight is not None:
            weights = [batch.weight for batch in batches if batch.weight is not None]
            assert torch.equal(torch.cat(weights), data.weight[index])
    losses = torch.arange(1.0, steps * epochs + 1).reshape(epochs, steps).mean(1)
    assert report.losses == pytest.approx(losses.tolist())
    assert report.seconds > 0
    assert (learner.tasks, learner.seen) == (1, min(count, 3))


def test_a_learner_that_wants_one_pass_gets_one_whatever_is_asked_for() -> None:
    learner = Once()
    report = fit_task(learner, task(5), epochs=7, batch_size=2)
    assert [len(batch.x) for batch in learner.batches] == [2, 3]
    assert len(report.losses) == 1


def test_the_order_is_another_in_every_epoch_and_the_same_for_the_same_seed() -> None:
    first, second = Notes(), Notes()
    for learner in (first, second):
        fit_task(learner, task(20), epochs=2, batch_size=20)
    orders = [batch.x[:, 0].tolist() for batch in first.batches]
    assert orders[0] != orders[1]
    assert orders == [batch.x[:, 0].tolist() for batch in second.batches]


def shifted(x: Tensor, source: torch.Generator) -> Tensor:
    """An augmentation that can be told from the inputs: whole numbers plus a draw of (0, 1)."""
    return x + torch.rand(len(x), 1, generator=source).clamp(0.01, 0.99)


@pytest.mark.parametrize(("kind", "epochs"), [(Notes, 3), (Once, 1)])
def test_every_batch_is_augmented_afresh_by_the_learners_own_generator(kind: type[Notes], epochs: int) -> None:
    learners, data = [kind() for _ in range(2)], task(7)
    for learner in learners:
        before = torch.get_rng_state()
        fit_task(learner, data, epochs=3, batch_size=4, augment=shifted)
        assert torch.equal(torch.get_rng_state(), before)
    first, second = (torch.cat([batch.x for batch in learner.batches]) for learner in learners)
    assert torch.equal(first, second)
    assert len(first) == 7 * epochs
    assert torch.equal(first.floor()[:, 0].sort().values, data.x[:, 0].repeat(epochs).sort().values)
    assert len((first - first.floor())[:, 0].unique()) == len(first), "a draw of its own for every row of every epoch"
    assert torch.equal(data.x, task(7).x)


def test_a_batch_knows_its_inputs_before_they_were_augmented() -> None:
    learner = Notes()
    fit_task(learner, task(9, weight=True), epochs=1, batch_size=4, augment=shifted)
    for batch in learner.batches:
        assert torch.equal(batch.plain, batch.x.floor())
        kept = batch.without_zeros()
        assert torch.equal(kept.plain, kept.x.floor())
    assert sum(len(batch.without_zeros().x) for batch in learner.batches) == 8


def test_without_augmentation_nothing_more_is_drawn_or_kept() -> None:
    learner, other = Notes(), Notes()
    fit_task(learner, task(9), epochs=2, batch_size=4)
    fit_task(other, task(9), epochs=2, batch_size=4, augment=lambda x, source: x)
    assert torch.equal(learner.generator.get_state(), other.generator.get_state())
    assert all(batch.original is None and batch.plain is batch.x for batch in learner.batches)


def test_a_tasks_beginning_and_end_see_the_examples_as_they_are() -> None:
    learner, data = Notes(), task(6)
    fit_task(learner, data, epochs=1, batch_size=3, augment=lambda x, source: 100 * x)
    assert float(learner.scale.mean[0]) == float(data.x[:, 0].mean())


def test_stored_examples_join_a_batch_augmented_as_it_was_with_weight_one() -> None:
    batch = Batch(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([2.0, 0.0]), 0, 1, 0)
    stored = (torch.full((1, 3), 5, dtype=torch.uint8), torch.tensor([4]))
    source = torch.Generator().manual_seed(0)
    joined = batch.joined(*stored, source)
    assert joined.x.tolist() == joined.plain.tolist() == [[0.0] * 3, [0.0] * 3, [5.0] * 3]
    joined = batch.augmented(lambda x, source: x + 1, source).joined(*stored, source).without_zeros()
    assert joined.x.tolist() == [[1.0] * 3, [6.0] * 3]
    assert joined.plain.tolist() == [[0.0] * 3, [5.0] * 3]
    assert joined.y.tolist() == [0, 4]
    assert joined.weight is not None
    assert joined.weight.tolist() == [2.0, 1.0]


def test_learning_draws_from_no_global_generator_and_a_module_that_does_is_isolated() -> None:
    class Dropping(Notes):
        def observe(self, batch: Batch) -> Tensor:
            return torch.rand(())

    before = torch.get_rng_state()
    reports = []
    for _ in range(2):
        torch.rand(3)
        reports.append(fit_task(Dropping(), task(5), epochs=2, batch_size=2).losses)
    assert reports[0] == reports[1]
    torch.set_rng_state(before)
    fit_task(Dropping(), task(5), epochs=2, batch_size=2)
    assert torch.equal(torch.get_rng_state(), before)


def test_scores_come_in_batches_and_in_order() -> None:
    learner = Notes()
    fit_task(learner, task(5), epochs=1, batch_size=5)
    learner.events.clear()
    scores = predict_logits(learner, task(5).x, batch_size=2)
    assert learner.events == ["score 2", "score 2", "score 1"]
    assert scores.shape == (5, 3)
    assert scores[:, 0].tolist() == sorted(scores[:, 0].tolist())
