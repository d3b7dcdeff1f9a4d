"""X-DER-RPC: its head, its losses and its buffer, against worked numbers and slow formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import TaskData
from cldnet.methods.parts.buffer import Exemplars
from cldnet.methods.xder import evenly, ranks, simplex, transplant

METHOD = "cldnet.methods.xder:XDERRPC"


def batch_of(task, count=12):
    return next(task.batches(count))


@pytest.mark.parametrize("count", [2, 3, 10, 100])
def test_columns_of_the_simplex_have_unit_length_zero_mean_and_equal_angles(count):
    columns = simplex(count)
    assert columns.shape == (count - 1, count)
    cosines = torch.full((count, count), -1 / (count - 1), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(columns.T @ columns, cosines, rtol=0, atol=1e-12)
    torch.testing.assert_close(columns.sum(1), torch.zeros(count - 1, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_simplex_of_three_is_the_triangle():
    s = 3**0.5
    worked = torch.tensor([[s + 1, 1 - s, -2.0], [1 - s, s + 1, -2.0]], dtype=torch.float64) / 8**0.5
    torch.testing.assert_close(simplex(3), worked)
    assert simplex(1).shape == (0, 1)


def test_logits_are_all_outputs_but_the_last_times_the_simplex(small, blobs):
    learner, x = small(METHOD), blobs([0]).x
    outputs = learner.head(learner.net(x))
    torch.testing.assert_close(learner.score(x), outputs[:, :7] @ simplex(8).float())
    assert "simplex" not in learner.state_dict()


def test_with_an_identity_head_and_no_future_it_is_der_plus_plus_by_slices(small, blobs):
    learner = small(METHOD, eta=0.0, memory=20, replay=6, distil=0.7, label=0.3)
    learner.simplex = torch.eye(8)[:7]
    fit_task(learner, blobs([0, 1, 2]), epochs=2, batch_size=10)
    task = blobs([3, 4])
    learner.begin_task(task)
    batch, before = batch_of(task), learner.generator.get_state()
    first, second = learner.buffer.sample(6, learner.generator), learner.buffer.sample(6, learner.generator)
    learner.generator.set_state(before)
    loss, logits = learner.replay_loss(batch)

    def scored(x):
        return F.pad(learner.head(learner.net(learner.scale(x)))[:, :7], (0, 1))

    assert torch.equal(logits, scored(batch.x))
    expected = F.cross_entropy(scored(batch.x)[:, 3:5], batch.y - 3)
    expected = expected + 0.7 * F.mse_loss(scored(first.x), first.logits)
    expected = expected + 0.3 * F.cross_entropy(scored(second.x)[:, :3], second.y)
    assert torch.equal(loss, expected)


def test_the_future_constraint_is_a_mean_over_violators(small):
    learner = small(METHOD, margin=0.3)
    learner.counters[0] = 1
    learner.slices = torch.tensor([0, 0, 1, 1, -1, -1, -1, -1])
    logits = torch.tensor(
        [
            [9.0, 0.0, 1.0, 2.0, 0.5, 0.0, 0.0, 1.9],  # of the present task: 1.9 + 0.3 − 2 = 0.2
            [9.0, 0.0, 1.0, 2.0, 0.5, 0.0, 0.0, 1.6],  # far enough: 1.6 + 0.3 < 2
            [1.0, 0.5, 9.0, 9.0, 1.5, 0.0, 0.0, 0.0],  # of the past: 1.5 + 0.3 − 1 = 0.8
        ]
    )
    y = torch.tensor([2, 3, 1])
    assert learner.future_loss(logits, y, None).item() == pytest.approx(0.5)
    weight = torch.tensor([4.0, 1.0, 0.5])
    assert learner.future_loss(logits, y, weight).item() == pytest.approx((4 * 0.2 + 0.5 * 0.8) / 2)
    assert learner.future_loss(logits[1:2], y[1:2], None).item() == 0
    learner.slices = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])
    assert learner.future_loss(logits, y, None).item() == 0, "no class is unseen"


@pytest.mark.parametrize("weight", [None, torch.linspace(0, 2, 12)])
def test_the_future_constraint_sees_the_stream_and_each_replayed_exemplar_once(small, blobs, weight):
    task = blobs([2, 3])
    learner, plain = small(METHOD, eta=2.0, memory=6, replay=5), small(METHOD, eta=0.0, memory=6, replay=5)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=60)
    plain.load_state(learner.state_dict())
    for each in (learner, plain):
        each.begin_task(task)
    batch, before = batch_of(task)._replace(weight=weight), learner.generator.get_state()
    places = [learner.buffer.sample(5, learner.generator).places for _ in range(2)]
    union = torch.tensor(list(dict.fromkeys(torch.cat(places).tolist())))
    assert 5 <= len(union) < 10
    learner.generator.set_state(before)
    x, y = torch.cat([batch.x, learner.buffer.x[union]]), torch.cat([batch.y, learner.buffer.y[union]])
    weights = None if weight is None else torch.cat([weight, torch.ones(len(union))])
    expected = 2.0 * learner.future_loss(learner.score(learner.scale(x)), y, weights)
    assert expected > 0
    torch.testing.assert_close(learner.replay_loss(batch)[0] - plain.replay_loss(batch)[0], expected)


def test_transplanted_logits_stay_below_the_true_class():
    stored = torch.tensor([[4.0, 1.0, 0.0, 0.0], [4.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 7.0, 7.0]])
    now = torch.tensor([[0.0, 0.0, 8.0, -2.0], [0.0, 0.0, 3.0, -2.0], [0.0, 0.0, 2.0, -3.0]])
    rows = torch.tensor([False, False, True, True])
    moved = transplant(stored, now, torch.tensor([0, 0, 0]), rows, 0.85)
    # 8 exceeds 4, so the factor is 0.85 · 4 / 8; 3 does not; and a negative true logit must not turn signs.
    worked = torch.tensor([[4.0, 1.0, 3.4, -0.85], [4.0, 1.0, 3.0, -2.0], [-1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(moved, worked)
    assert stored[0, 2] == 0, "the argument stays as it is"
    assert torch.equal(transplant(stored, now, torch.tensor([0, 0, 0]), rows & False, 0.85), stored)


def test_an_exemplar_is_updated_with_probability_one_over_its_draws(small, blobs):
    learner = small(METHOD, memory=400)
    fit_task(learner, blobs([0, 1], count=200), epochs=1, batch_size=100)
    learner.begin_task(blobs([1, 2]))  # class 1 is back, so only exemplars of class 0 are of the past
    stored = learner.buffer.get_buffer("logits")
    outputs = torch.full((400, 8), -50.0)

    def updated():
        drawn = learner.buffer.take(torch.arange(400))
        learner.update(drawn, outputs)
        return drawn, (stored != drawn.logits).any(1)

    drawn, changed = updated()
    assert torch.equal(changed, drawn.y == 0), "the first time, always"
    assert torch.equal(stored[:, 0], drawn.logits[:, 0]), "the logit of the past class stays"
    assert (stored[changed][:, 1:] == -50).all(), "those of present and unseen classes are new"
    assert torch.equal(learner.draws, (drawn.y == 0).long())
    learner.draws += 3
    outputs.fill_(-60.0)
    _, changed = updated()
    share = changed[drawn.y == 0].float().mean()
    assert abs(share - 1 / 5) < 4 * (0.2 * 0.8 / 200) ** 0.5


def test_a_step_writes_present_logits_into_the_buffer(small, blobs):
    learner = small(METHOD, memory=8, replay=8, gamma=1.0)
    fit_task(learner, blobs([0, 1]), epochs=5, batch_size=10)
    task = blobs([2, 3])
    learner.begin_task(task)
    held = learner.buffer.take(torch.arange(8))
    now = learner.score(learner.scale(held.x)).detach()
    learner.observe(batch_of(task))
    expected = transplant(held.logits, now, held.y, torch.arange(8) >= 2, 1.0)
    torch.testing.assert_close(learner.buffer.get_buffer("logits"), expected)
    assert not torch.equal(expected, held.logits)
    assert torch.equal(learner.buffer.y, held.y), "samples come in at the task's end only"


def test_exemplars_of_a_class_that_is_back_have_no_label_loss(small, blobs):
    learner = small(METHOD, eta=0.0, distil=0.0, label=1.0, memory=12)
    fit_task(learner, blobs([0, 1, 2]), epochs=1, batch_size=10)
    task = blobs([2])
    learner.begin_task(task)
    loss, _ = learner.replay_loss(batch_of(task))
    old = learner.buffer.take(torch.arange(12))
    old = Exemplars(*(part[old.y < 2] for part in old))
    torch.testing.assert_close(loss, F.cross_entropy(learner.score(learner.scale(old.x))[:, :2], old.y))


def test_replay_leaves_running_statistics_to_the_stream(small, blobs):
    task = blobs([2, 3])
    net = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU())
    learner = small(METHOD, net, memory=20)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=10)
    learner.begin_task(task)
    batch, norm = batch_of(task), learner.net[1]
    mean = norm.running_mean.clone()
    learner.replay_loss(batch)
    expected = 0.9 * mean + 0.1 * learner.net[0](learner.scale(batch.x)).mean(0)
    torch.testing.assert_close(norm.running_mean, expected)


def test_the_buffer_keeps_the_first_of_each_class_and_fills_up_evenly(small, blobs):
    learner = small(METHOD, memory=11, lr=0.01)
    counts = []
    for classes in ([0, 1], [2, 3], [4], [1]):
        old = learner.buffer.take(torch.arange(len(learner.buffer)))
        fit_task(learner, blobs(classes), epochs=1, batch_size=10)
        held = learner.buffer
        counts.append(held.y.bincount(minlength=5).tolist())
        for row in old.y.unique():
            kept = min(11 // learner.seen, int((old.y == row).sum()))
            assert torch.equal(held.x[held.y == row][:kept], old.x[old.y == row][:kept])
        assert len(held.x.unique(dim=0)) == 11, "no sample twice"
    assert sorted(counts[0]) == [0, 0, 0, 5, 6]
    assert counts[1][:2] == [2, 2]
    assert sorted(counts[1][2:4]) == [3, 4], "the seven free places, evenly"
    assert counts[2] == [2, 2, 2, 2, 3]
    assert counts[3] == [2, 3, 2, 2, 2], "a class that comes back adds to what is held of it"


def test_stored_logits_at_a_tasks_end_against_a_loop(small, blobs):
    learner = small(METHOD, memory=12)
    fit_task(learner, blobs([0, 1]), epochs=8, batch_size=10)
    task = blobs([2, 3])
    learner.begin_task(task)
    for batch in task.batches(10):
        learner.observe(batch)
    learner.buffer.get_buffer("logits").mul_(0.2)  # present logits then exceed old ones …
    learner.head.bias.data[:7] += 3 * learner.simplex[:, 0]  # … and a past class those of new samples
    old = learner.buffer.take(torch.arange(12))
    learner.end_task(task)
    scaled = []
    for x, y, z in zip(learner.buffer.x, learner.buffer.y, learner.buffer.get_buffer("logits"), strict=True):
        now = learner.score(learner.scale(x[None]))[0].detach()
        before = old.logits[(old.x == x).all(1)][0] if y < 2 else now
        slice_ = range(2, 8) if y < 2 else range(2)  # what is not of the sample's own time
        largest = max(float(now[k]) for k in slice_)
        factor = min(max(0.85 * float(before[y]) / largest, 0), 1) if largest > before[y] else 1.0
        expected = [factor * float(now[k]) if k in slice_ else float(before[k]) for k in range(8)]
        torch.testing.assert_close(z, torch.tensor(expected))
        scaled.append((bool(y < 2), 0 < factor < 1))
    assert len(scaled) == 12
    assert set(scaled) == {(old, by) for old in (True, False) for by in (True, False)}, "old and new, scaled and not"


def test_a_class_that_is_back_keeps_its_first_task_and_its_old_logits(small, blobs):
    learner = small(METHOD, memory=12)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=10)
    old = learner.buffer.take(torch.arange(12))
    fit_task(learner, blobs([1, 2]), epochs=1, batch_size=10)
    assert learner.first.tolist() == [0, 0, 1, -1, -1, -1, -1, -1]
    held = learner.buffer
    assert torch.equal(held.get_buffer("logits")[held.y == 1][:4], old.logits[old.y == 1][:4])


def test_inputs_of_another_type_are_refused_before_the_task(small, blobs):
    learner, task = small(METHOD, memory=12), blobs([0, 1])
    fit_task(learner, task, epochs=1, batch_size=10)
    with pytest.raises(ValueError, match="The memory holds"):
        learner.begin_task(TaskData(task.x.double(), task.y))


def test_a_share_that_a_class_cannot_fill_goes_to_others():
    y = torch.tensor([3, 3, 3, 3, 3, 1, 0, 0, 0])
    assert ranks(y).tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2]
    chosen = evenly(y, held=torch.tensor([0]), free=6, source=generator(0))
    assert sorted(y[chosen].tolist()) == [0, 0, 1, 3, 3, 3], "with the one that is held, class 0 has three, too"
    assert len(chosen.unique()) == 6
    assert sorted(evenly(y, y[:0], 20, generator(0)).tolist()) == list(range(9)), "all there are"


def test_the_remainder_goes_to_random_classes():
    y = torch.arange(3).repeat(5)
    larger = [y[evenly(y, y[:0], 4, generator(seed))].bincount().argmax().item() for seed in range(30)]
    assert set(larger) == {0, 1, 2}
