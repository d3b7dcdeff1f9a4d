"""ER-ACE: its asymmetric loss against a slow formula."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from cldnet.data.arrays import Batch
from cldnet.device import generator
from cldnet.methods.er_ace import asymmetric_cross_entropy
from cldnet.methods.fit import fit_task


def test_a_new_sample_competes_with_the_classes_of_its_batch_only() -> None:
    logits = torch.randn(4, 5, generator=generator(0))
    y, weight = torch.tensor([1, 3, 3, 1]), torch.tensor([1.0, 2.0, 0.0, 0.5])
    loss = asymmetric_cross_entropy(logits, Batch(logits, y, weight, 0, 1, 0))
    slow = [-(row[label] - row[[1, 3]].logsumexp(0)) for row, label in zip(logits, y, strict=True)]
    torch.testing.assert_close(loss, (torch.stack(slow) * weight).mean())


def test_a_replayed_sample_competes_with_all_classes_seen(blobs, small) -> None:
    learner = small("er-ace", memory=20, replay=20)
    fit_task(learner, blobs([0, 1]), epochs=1, batch_size=10)
    task = blobs([2, 3], seed=1)
    learner.begin_task(task)
    batch = next(task.batches(8))
    source = torch.Generator().set_state(learner.generator.get_state())
    loss, logits = learner.replay_loss(batch)
    old = learner.buffer.sample(20, source)
    replayed = F.cross_entropy(learner.score(learner.scale(old.x))[:, :4], old.y)
    torch.testing.assert_close(loss, asymmetric_cross_entropy(logits[:, :4], batch) + replayed)
