"""OCM: its loss in the first task and later, term by term, its variants and its teacher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.config import config_to_json
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.ocm import Outputs
from cldnet.methods.parts.contrastive import label_loss, mixed_similarities, pair_loss

OCM = "cldnet.methods.ocm:OCM"


def as_batch(task: TaskData, weight: Tensor | None = None) -> Batch:
    return Batch(task.x, task.y, weight, 0, 1, 0)


def embed(learner: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Projections and features of scaled vectors, doubled as a batch with its views is."""
    features = learner.net(x.repeat(2, 1))
    return F.normalize(learner.projection(features)), F.normalize(features)


def test_the_first_task_has_cross_entropy_with_weights_and_the_pair_loss(blobs, small):
    learner, task = small(OCM), blobs([0, 1, 2], count=3)
    learner.begin_task(task)
    weight = torch.linspace(0, 2, 9)
    loss, logits = learner.replay_loss(as_batch(task, weight))
    x = learner.scale(task.x)
    z, f = embed(learner, x)
    assert z.shape[1] == 10, "no wider than the features, so that the window is all of them"
    scores = learner.head(learner.net(x))[:, :3]
    expected = (F.cross_entropy(scores, task.y, reduction="none") * weight).mean()
    expected = expected + pair_loss(mixed_similarities(z, f, 0), task.y.repeat(2), 0.07)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits[:, :3], scores)


def test_later_tasks_have_five_terms_and_no_cross_entropy_on_the_stream(blobs, small):
    learner = small(OCM, memory=20, lr=0.01)
    fit_task(learner, blobs([0, 1]), epochs=2, batch_size=16)
    before = build_learner(OCM, learner.setting, {}, "mlp", {"widths": (10,)})
    before.load_state(learner.state_dict())
    before.eval()
    task = blobs([2, 3], count=3)
    learner.begin_task(task)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(1)))
    state = learner.generator.get_state()
    loss, _ = learner.replay_loss(as_batch(task, torch.zeros(6)))
    learner.generator.set_state(state)
    drawn = learner.buffer.sample(64, learner.generator)
    assert len(drawn.y) == 20
    x, old = learner.scale(task.x), learner.scale(drawn.x)
    logits = learner.head(learner.net(old))
    z, f = embed(learner, x)
    old_z, old_f = embed(learner, old)
    taught_z, _ = embed(before, old)
    both = drawn.y.repeat(2)
    terms = [
        F.cross_entropy(logits[:, :4], drawn.y),
        pair_loss(mixed_similarities(z, f, 0), task.y.repeat(2), 0.07),
        label_loss(mixed_similarities(old_z, old_f, 0), both, both, 0.07),
        label_loss(old_z[:20] @ taught_z[:20].mT, drawn.y, drawn.y, 0.07),
        (logits - before.head(before.net(old)))[:, :2].square().mean(),
    ]
    torch.testing.assert_close(loss, torch.stack(terms).sum())
    assert min(term.item() for term in terms) > 0.01, "every term counts"


def test_pseudo_classes_do_not_overlap_and_all_windows_of_features_are_used():
    learner = build_learner(OCM, Setting((8, 8), 8, seed=0), {}, "mlp", {"widths": (131,)})
    x, y = torch.randn(2, 8, 8, generator=generator(0)), torch.tensor([7, 0])
    varied, labels = learner.varied(x, y)
    assert len(varied) == 32
    assert labels.tolist() == [label + 8 * k for k in range(16) for label in (7, 0)]
    assert learner.projection.out_features == 128
    output = learner(varied)
    windows = [mixed_similarities(output.z, output.f, offset) for offset in range(4)]
    drawn = [learner.similarities(output) for _ in range(40)]
    assert all(any(torch.equal(window, found) for found in drawn) for window in windows)
    assert all(any(torch.equal(window, found) for window in windows) for found in drawn)


def test_the_teacher_is_compared_with_variants_and_not_with_their_views(small):
    learner = small(OCM)
    z, f, taught = (F.normalize(torch.randn(n, 10, generator=generator(n))) for n in (8, 9, 4))
    y = torch.tensor([0, 1, 8, 9])
    both = y.repeat(2)
    expected = label_loss(mixed_similarities(z, f[:8], 0), both, both, 0.07) + label_loss(z[:4] @ taught.mT, y, y, 0.07)
    torch.testing.assert_close(learner.memory_loss(Outputs(z, z, f[:8]), taught, y), expected)


def test_one_pass_has_all_variants_and_a_view_of_each():
    learner = build_learner(OCM, Setting((8, 8), 4, seed=0), {"inner": 1, "rotations": 2}, "mlp", {"widths": (6,)})
    tasks = [TaskData(torch.randn(4, 8, 8, generator=generator(n)), torch.tensor([n, n + 1] * 2)) for n in (0, 2)]
    fit_task(learner, tasks[0], epochs=1, batch_size=4)
    learner.begin_task(tasks[1])
    met = []
    learner.net.register_forward_pre_hook(lambda _, inputs: met.append(inputs[0]))
    learner.replay_loss(as_batch(tasks[1]))
    assert [len(x) for x in met] == [32, 4, 8, 4], "stream and memory, their cross-entropy, and the teacher twice"
    stream, stream_views, memory, memory_views = met[0].chunk(4)
    torch.testing.assert_close(stream, learner.varied(learner.scale(tasks[1].x), tasks[1].y)[0])
    torch.testing.assert_close(memory, met[2])
    assert not torch.equal(stream, stream_views)
    assert not torch.equal(memory, memory_views)
    assert not torch.equal(met[1], met[3]), "two views"


def test_a_step_replays_at_most_seven_exemplars_per_class(blobs, small):
    learner = small(OCM, memory=60)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    assert len(learner.buffer) == 60
    assert len(learner.replayed(as_batch(blobs([0, 1]))).y) == 14
    learner.counters[1] = 8
    assert len(learner.replayed(as_batch(blobs([0, 1]))).y) == 56


def test_adam_has_the_authors_settings_and_the_teacher_is_the_last_model(blobs, small):
    learner = small(OCM)
    learner.begin_task(blobs([0, 1]))
    group = learner.optimizer.param_groups[0]
    assert isinstance(learner.optimizer, torch.optim.Adam)
    assert (group["lr"], group["betas"], group["weight_decay"]) == (1e-3, (0.9, 0.99), 1e-4)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=16)
    own = learner.state_dict()
    parts = ("net.", "head.", "projection.")
    assert {name for name, _ in learner.teacher.items()} == {name for name in own if name.startswith(parts)}
    assert all(torch.equal(own[name], tensor) for name, tensor in learner.teacher.items())
    assert int(learner.taught) == 2


def test_without_memory_every_task_is_like_the_first(blobs, small):
    learner = small(OCM, memory=0)
    for classes in ([0, 1], [2, 3]):
        fit_task(learner, blobs(classes), epochs=1, batch_size=16)
    assert learner.logits(blobs([0]).x).isfinite().all()


@pytest.mark.parametrize(("shape", "net"), [((3, 8, 8), "resnet"), ((6, 4), "mlp")])
def test_images_of_any_shape_are_learned(shape, net):
    options = {"width": 2} if net == "resnet" else {"widths": (12,)}
    learner = build_learner(OCM, Setting(shape, 4, seed=0), {"replay": 4, "inner": 2}, net, options)
    for first in (0, 2):
        y = torch.tensor([first, first + 1] * 4)
        x = torch.randint(256, (8, *shape), dtype=torch.uint8, generator=generator(first))
        fit_task(learner, TaskData(x, y), epochs=1, batch_size=4)
    assert learner.logits(x).isfinite().all()
    assert learner.buffer.x.dtype == torch.uint8


@pytest.mark.parametrize("options", [{"rotations": 0}, {"inner": 5}, {"temperature": 0.0}, {"weight_decay": -1.0}])
def test_settings_beyond_their_limits_are_refused(small, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        small(OCM, **options)


def test_the_settings_are_the_authors(small):
    config = config_to_json(small(OCM).config)
    assert (config["replay"], config["temperature"], config["rotations"], config["inner"]) == (64, 0.07, 4, 4)
