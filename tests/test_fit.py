"""The one training loop, seen through a learner that only takes notes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.fit import Progress, fit_task, predict_logits
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits


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
