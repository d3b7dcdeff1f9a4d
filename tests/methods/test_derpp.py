"""DER++: its loss against the formula on its own draws, and what its buffer holds."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from cldnet.data.transforms import Augment
from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData


def test_the_loss_is_the_stream_s_plus_two_draws_from_the_buffer(blobs, small) -> None:
    learner = small("derpp", memory=20, replay=6, distil=0.7, label=0.4)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=10)
    task = blobs([2, 3], seed=1)
    learner.begin_task(task)
    batch = next(task.batches(8))
    source = torch.Generator().set_state(learner.generator.get_state())
    loss, logits = learner.replay_loss(batch)
    first, second = learner.buffer.sample(6, source), learner.buffer.sample(6, source)
    assert first.places.tolist() != second.places.tolist()

    def score(x: torch.Tensor) -> torch.Tensor:
        return learner.head(learner.net(learner.scale(x)))

    distance = (score(first.x) - first.logits).square().sum() / first.logits.numel()
    expected = F.cross_entropy(logits, batch.y) + 0.7 * distance
    torch.testing.assert_close(loss, expected + 0.4 * F.cross_entropy(score(second.x), second.y))


def test_the_buffer_holds_the_logits_that_a_sample_had_when_it_came(blobs, small) -> None:
    learner = small("derpp", memory=100, lr=0.1)
    task = blobs([0, 1], count=4)
    learner.begin_task(task)
    batch = next(task.batches(8))
    with torch.no_grad():
        before = learner.score(learner.scale(batch.x))
    learner.observe(batch)
    assert torch.equal(learner.buffer.logits[:8], before)
    assert torch.equal(learner.buffer.x[:8], batch.x)
    assert not torch.equal(learner.score(learner.scale(batch.x)), before)


def test_images_are_stored_as_they_came_and_augmented_again_when_replayed() -> None:
    learner = build_learner("derpp", Setting((8, 8), 2, seed=0), {"memory": 4, "replay": 4}, "mlp", {"widths": (4,)})
    x = torch.randint(1, 256, (4, 8, 8), dtype=torch.uint8, generator=generator(0))
    task = TaskData(x, torch.tensor([0, 1, 0, 1]))
    learner.begin_task(task)
    batch = next(task.batches(4)).augmented(Augment(crop=3), learner.generator)
    learner.observe(batch)
    assert torch.equal(learner.buffer.x, x)
    replayed = learner.replayed(batch)
    assert not torch.equal(replayed.x, x[replayed.places])
    assert learner.buffer.x.element_size() == 1
