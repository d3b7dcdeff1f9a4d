"""GDumb: its schedule, CutMix by hand, and a net that depends on the memory alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from cldnet.data.transforms import Augment
from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.gdumb import cutmix, rate
from cldnet.methods.learner import Batch, Setting, TaskData

GDUMB = "cldnet.methods.gdumb:GDumb"


def test_the_rate_warms_up_and_restarts_as_in_the_authors_loop():
    assert rate(0, 0.05, 5e-4) == pytest.approx(0.005)
    assert rate(1, 0.05, 5e-4) == rate(2, 0.05, 5e-4) == rate(128, 0.05, 5e-4) == pytest.approx(0.05)
    assert rate(3, 0.05, 5e-4) == pytest.approx((0.05 + 5e-4) / 2)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=1, T_mult=2, eta_min=5e-4)
    for number in range(2, 256):  # their scheduler's first step is in pass 2
        optimizer.step()
        scheduler.step()
        assert rate(number, 0.05, 5e-4) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)


@pytest.mark.parametrize("shape", [(6, 3, 8, 10), (6, 8, 10)])
def test_cutmix_pastes_one_box_of_a_partner_and_returns_the_share_left(shape):
    images = torch.arange(6).reshape(6, *[1] * (len(shape) - 1)).expand(shape).contiguous()
    shares = []
    for seed in range(200):
        mixed, partners, own = cutmix(images, generator(seed))
        other = mixed != images
        for number, partner in enumerate(partners.tolist()):
            assert set(mixed[number].unique().tolist()) <= {number, partner}
            if partner != number:
                assert other[number].float().mean().item() == pytest.approx(1 - own)
                rows, columns = (other[number].reshape(-1, 8, 10)[0].any(side).nonzero() for side in (1, 0))
                area = len(rows) * len(columns) / 80
                assert area == pytest.approx(1 - own), "the pixels are a box"
        shares.append(1 - own)
    assert images[:, ..., 0, 0].flatten().unique().tolist() == list(range(6)), "the images are left as they are"
    assert min(shares) < 0.05
    assert 0.5 < max(shares) <= 1


def test_the_loss_mixes_the_labels_as_the_images_are(small):
    shape = (1, 6, 6)
    learner = build_learner(GDUMB, Setting(shape, 4, seed=0), {"cutmix": 1.0}, "mlp", {"widths": (10,)})
    x, y = torch.rand(8, *shape, generator=generator(1)), torch.arange(8) % 4
    learner.begin_task(TaskData(x, y))
    state = learner.generator.get_state()
    loss = learner.loss(Batch(x, y, None, 0, 1, 0))
    again = torch.Generator().set_state(state)
    torch.rand((), generator=again)
    mixed, partners, own = cutmix(x, again)
    probabilities = learner.score(learner.scale(mixed)).softmax(1).detach()
    expected = sum(
        own * -float(probabilities[n, y[n]].log()) + (1 - own) * -float(probabilities[n, y[partners[n]]].log())
        for n in range(8)
    )
    assert 0 < own < 1
    assert loss.item() == pytest.approx(expected / 8, rel=1e-5)
    plain = small(GDUMB, cutmix=1.0)
    task = TaskData(torch.randn(5, 6), torch.arange(5))
    plain.begin_task(task)
    expected = F.cross_entropy(plain.logits(task.x), task.y).item()
    assert plain.loss(Batch(task.x, task.y, None, 0, 1, 0)).item() == pytest.approx(expected), "vectors are not mixed"


def test_a_net_is_trained_from_the_initial_weights_by_a_plain_loop(blobs):
    """The same numbers as a loop of a few lines over the memory, BatchNorm's statistics included; also in task 2."""
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
    options = {"passes": 3, "batch_size": 8, "memory": 20, "weight_decay": 0.1, "clip": 0.5}
    learner = build_learner(GDUMB, Setting((6,), 8, seed=0), options, net)
    fresh = {name: tensor.clone() for name, tensor in learner.state_dict().items() if name.startswith(("net", "head"))}
    for classes in ([0, 1], [2, 3]):
        task = blobs(classes)
        learner.begin_task(task)
        for batch in task.batches(10):
            assert float(learner.observe(batch)) == 0
        source = torch.Generator().set_state(learner.generator.get_state())
        learner.end_task(task)
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 8))
    model.load_state_dict({n.replace("net.", "0.", 1).replace("head.", "1."): t for n, t in fresh.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    x, y = learner.scale(learner.buffer.x), learner.buffer.y
    assert y.bincount().tolist() == [5, 5, 5, 5]
    for number in range(3):
        optimizer.param_groups[0]["lr"] = (0.005, 0.05, 0.05)[number]
        for part in torch.randperm(20, generator=source).split(8):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part])[:, :4], y[part]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    model.eval()
    torch.testing.assert_close(learner.logits(task.x), model(learner.scale(task.x))[:, :4].detach())
    assert not learner.training


def test_training_uses_the_streams_augmentation_and_the_memory_does_not():
    seen = []

    class Noted(Augment):
        def __call__(self, x, source):
            seen.append(len(x))
            return super().__call__(x, source)

    x, y = torch.randint(1, 256, (12, 3, 8, 8), dtype=torch.uint8, generator=generator(0)), torch.arange(12) % 2
    options = {"passes": 2, "memory": 12}
    learner = build_learner(GDUMB, Setting((3, 8, 8), 4, seed=0), options, "mlp", {"widths": (4,)})
    fit_task(learner, TaskData(x, y), epochs=5, batch_size=6, augment=Noted(crop=2))
    assert seen == [6, 6, 12, 12]  # one epoch of the stream, two passes over the memory
    assert {tuple(image.flatten().tolist()) for image in learner.buffer.x} == {tuple(i.flatten().tolist()) for i in x}


def test_samples_of_weight_zero_are_not_stored_and_no_memory_is_no_training(blobs, small):
    task = blobs([0, 1], count=5)
    weighted = TaskData(task.x, task.y, (task.y == 0).float())
    learner = small(GDUMB, passes=1)
    fit_task(learner, weighted, epochs=1, batch_size=4)
    assert learner.buffer.y[: len(learner.buffer)].tolist() == [0] * 5
    empty = small(GDUMB, memory=0)
    before = empty.head.weight.clone()
    fit_task(empty, task, epochs=1, batch_size=4)
    assert torch.equal(empty.head.weight, before)
