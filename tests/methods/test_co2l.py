"""Co²L: its loss, its buffer, and the linear head that is fitted after a task."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.co2l import balanced
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.contrastive import asymmetric_supcon, relation_loss

CO2L = "cldnet.methods.co2l:Co2L"


def test_the_first_task_is_supcon_alone_with_weights(blobs, small):
    learner, task = small(CO2L), blobs([0, 1], count=3)
    learner.begin_task(task)
    weight = torch.linspace(0, 2, 6)
    loss, logits = learner.replay_loss(Batch(task.x, task.y, weight, 0, 1, 0))
    features = learner.net(learner.scale(task.x))
    z = F.normalize(learner.projection(features)).repeat(2, 1)
    torch.testing.assert_close(loss, asymmetric_supcon(z, task.y.repeat(2), weight.repeat(2), 0.5))
    torch.testing.assert_close(logits, learner.head(features))


def test_later_tasks_add_relations_and_take_no_anchors_from_memory(blobs, small):
    learner = small(CO2L, memory=20, distil=3.0)
    fit_task(learner, blobs([0, 1, 2]), epochs=2, batch_size=16)
    before, task = copy.deepcopy(learner), blobs([2, 3], count=3)  # class 2 comes back: its exemplars are anchors
    learner.begin_task(task)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(1)))
    state = learner.generator.get_state()
    loss, logits = learner.replay_loss(Batch(task.x, task.y, None, 0, 1, 0))
    learner.generator.set_state(state)
    old = learner.buffer.sample(32, learner.generator)
    assert len(old.y) == 20
    y = torch.cat([task.y, old.y]).repeat(2)
    x = torch.cat([task.x, old.x]).repeat(2, 1)
    z, taught = (F.normalize(model.projection(model.net(model.scale(x)))) for model in (learner, before))
    anchors = (y >= 2).float()
    assert 0 < float(anchors.mean()) < 1
    expected = asymmetric_supcon(z, y, anchors, 0.5) + 3.0 * relation_loss(z, taught, 0.2, 0.01)
    torch.testing.assert_close(loss, expected)
    assert len(logits) == len(task)


def test_the_buffer_takes_a_task_at_its_end(blobs, small):
    learner, task = small(CO2L, memory=20), blobs([0, 1])
    learner.begin_task(task)
    learner.observe(next(task.batches(16)))
    assert len(learner.buffer) == 0
    learner.end_task(task)
    assert len(learner.buffer) == 20
    assert int(learner.buffer.met) == len(task)
    with pytest.raises(ValueError, match="memory holds"):
        learner.begin_task(TaskData(task.x.double(), task.y))


def test_steps_leave_the_head_alone_and_the_task_s_end_leaves_the_net_alone(blobs, small):
    learner, task = small(CO2L), blobs([0, 1])
    learner.begin_task(task)
    head, net = learner.head.weight.clone(), learner.net.layers[1].weight.clone()
    for batch in task.batches(16):
        learner.observe(batch)
    assert torch.equal(learner.head.weight, head)
    trained = learner.net.layers[1].weight.clone()
    assert not torch.equal(trained, net)
    learner.end_task(task)
    assert torch.equal(learner.net.layers[1].weight, trained)
    assert torch.equal(learner.teacher["net.layers.1.weight"], trained)
    assert all(parameter.grad is None for parameter in learner.parameters())


def test_the_head_weighs_classes_equally_whatever_the_scale_of_features(small):
    y = torch.tensor([0] * 40 + [1] * 10)  # the classes overlap, so the optimum is finite
    plain, found = torch.randn(50, 10, generator=generator(0)) + 0.3 * y.unsqueeze(1), []
    for features in (plain, 1000 * plain + 5000):
        learner = small(CO2L, probe_epochs=400)
        learner.counters[1] = 2
        for tensor in learner.head.parameters():  # what the head was before does not matter
            tensor.data[0].add_(float(features[0, 0]))
        learner._descend_head(features, y, balanced(y, torch.ones(50, dtype=torch.float64)))
        found.append(learner.head(features)[:, :2].detach())
    torch.testing.assert_close(found[0], found[1], rtol=0.01, atol=0.01)
    wrong = (F.one_hot(y, 2) - found[0].softmax(1))[:, 0]
    # At the optimum the classes' mean errors cancel, up to the noise of draws; unbalanced, 40 of one error to 10 of the other.
    ours, other = float(wrong[y == 0].mean()), float(wrong[y == 1].mean())
    assert ours > 0.1
    assert ours + other == pytest.approx(0, abs=0.1)


def test_the_head_sees_memory_and_task_by_class_and_weight(blobs, small, monkeypatch):
    learner = small(CO2L, memory=6)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    task, met = blobs([2, 3], count=2), []
    monkeypatch.setattr(learner, "_descend_head", lambda *arguments: met.append(arguments))
    kept = learner.buffer.take(torch.arange(6))
    fit_task(learner, TaskData(task.x, task.y, torch.tensor([1.0, 1.0, 3.0, 0.0])), epochs=1, batch_size=4)
    features, y, share = met[0]
    assert torch.equal(y, torch.cat([kept.y, task.y]))
    torch.testing.assert_close(features, learner.vectors(torch.cat([kept.x, task.x])))
    assert share[6:].tolist() == [0.25, 1.0, 0.75, 0.0]
    assert [float(share[y == label].sum()) for label in range(4)] == pytest.approx([1] * 4)


def test_classes_are_drawn_equally_often_and_samples_by_weight():
    share = balanced(torch.tensor([0, 0, 2, 2, 2]), torch.tensor([1.0, 3.0, 1.0, 0.0, 1.0], dtype=torch.float64))
    assert share.tolist() == [0.25, 0.75, 0.5, 0.0, 0.5]
    nothing = balanced(torch.tensor([0, 1]), torch.tensor([0.0, 2.0], dtype=torch.float64))
    assert nothing.tolist() == [0.0, 1.0]


def test_old_classes_are_still_known(blobs, small):
    learner = small(CO2L, memory=40)
    for classes in ([0, 1], [2, 3], [4, 5]):
        fit_task(learner, blobs(classes), epochs=5, batch_size=16)
    test = blobs([0, 1, 2, 3, 4, 5], seed=9)
    assert float((learner.logits(test.x).argmax(1) == test.y).float().mean()) > 0.9


def test_images_and_batch_normalisation_are_learned():
    learner = build_learner(CO2L, Setting((3, 8, 8), 4, seed=0), {"probe_epochs": 2}, "resnet", {"width": 2})
    for first in (0, 2):
        y = torch.tensor([first, first + 1] * 4)
        x = torch.randint(256, (8, 3, 8, 8), dtype=torch.uint8, generator=generator(first))
        fit_task(learner, TaskData(x, y), epochs=1, batch_size=4)
    assert learner.logits(x).isfinite().all()
    assert learner.buffer.x.dtype == torch.uint8


def test_an_image_has_two_different_views():
    learner = build_learner(CO2L, Setting((8, 8), 4, seed=0), {}, "mlp", {"widths": (6,)})
    task = TaskData(torch.randn(4, 8, 8, generator=generator(0)), torch.tensor([0, 1, 0, 1]))
    learner.begin_task(task)
    met = []
    learner.net.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0]))
    learner.replay_loss(next(task.batches(4)))
    first, second = met[0].chunk(2)
    assert not torch.equal(first, second)
    assert len(met) == 1, "all views in one pass"


@pytest.mark.parametrize(
    "options", [{"probe_epochs": 0}, {"probe_lr": 0.0}, {"past_temperature": 0.0}, {"distil": -1.0}]
)
def test_settings_beyond_their_limits_are_refused(small, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        small(CO2L, **options)
