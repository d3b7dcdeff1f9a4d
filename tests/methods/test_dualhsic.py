"""DualHSIC: its terms against nHSIC written out, and DER++ without them."""

from __future__ import annotations

import pytest
import torch
from tests.math.hsic_reference import gaussian_kernel, nhsic
from torch import nn

from cldnet.device import generator
from cldnet.math.hsic import label_kernel
from cldnet.methods.derpp import DERpp, DERppConfig
from cldnet.methods.fit import fit_task
from cldnet.methods.gradient import weighted_cross_entropy
from cldnet.methods.learner import Setting
from cldnet.nets import MLP

METHOD = "cldnet.methods.dualhsic:DualHSIC"


class Masked(DERpp):
    """DER++ that replays from the second task on, with a stream loss among the current task's classes."""

    __module__ = DERpp.__module__  # code of unknown modules might draw random numbers, so `fit_task` would seed torch's

    def start(self, task):
        super().start(task)
        self.rows = task.class_rows

    def stream_loss(self, batch, logits):
        others = torch.full_like(logits[:, : self.seen], -torch.inf)
        others[:, self.rows] = logits[:, self.rows]
        return weighted_cross_entropy(others, batch.y, batch.weight)

    def replay_loss(self, batch):
        if self.tasks == 0:
            logits = self.score(self.scale(batch.x))
            return self.stream_loss(batch, logits), logits
        return super().replay_loss(batch)


def in_task(small, blobs, **options):
    """A learner in the middle of its second task, and a batch of it."""
    learner = small(METHOD, memory=20, replay=9, **options)
    fit_task(learner, blobs([0, 1, 2]), epochs=1, batch_size=10)
    learner.begin_task(blobs([3, 4]))
    return learner, next(blobs([3, 4]).batches(12))


def test_without_hsic_it_is_der_with_a_masked_stream_and_replay_from_the_second_task(small, blobs):
    learner = small(METHOD, memory=20, lambda_x=0.0, lambda_y=0.0)
    other = small(METHOD, memory=20)
    masked = Masked(
        MLP((6,), (10,), generator=generator(0)),
        Setting((6,), 8, seed=0),
        DERppConfig(memory=20, distil=0.1, label=0.5),
    )
    predictor = {name: tensor.clone() for name, tensor in learner.predictor.state_dict().items()}
    for number, classes in enumerate(([0, 1, 2], [3, 4], [5, 1])):
        for each in (learner, masked, other):
            fit_task(each, blobs(classes, seed=number), epochs=2, batch_size=16)
        state, trained = learner.state_dict(), other.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in masked.state_dict().items())
        changed = [name for name in masked.state_dict() if not torch.equal(state[name], trained[name])]
        assert bool(changed) == (number > 0), "the first task has no HSIC either"
    assert all(torch.equal(predictor[name], tensor) for name, tensor in learner.predictor.state_dict().items())


def test_the_bottleneck_is_that_of_every_stage(small, blobs):
    learner, _ = in_task(small, blobs, lambda_x=0.3, lambda_y=0.8)
    x, y = torch.randn(12, 6, generator=generator(0)), torch.arange(12) % 3
    stages = [torch.randn(12, *shape, generator=generator(1)).requires_grad_() for shape in ((10,), (4, 3, 3))]
    fast = learner.bottleneck(x, y, stages)
    slow = sum(
        0.3 * nhsic(gaussian_kernel(z.double()), gaussian_kernel(x.double()))
        - 0.8 * nhsic(gaussian_kernel(z.double()), label_kernel(y, torch.float64))
        for z in stages
    )
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(*(torch.autograd.grad(each, stages) for each in (fast, slow)), strict=True):
        torch.testing.assert_close(mine, theirs.to(mine), rtol=1e-3, atol=1e-5 * float(theirs.abs().max()))


def test_the_alignment_pairs_predictions_with_the_other_batchs_features(small, blobs):
    learner, _ = in_task(small, blobs)
    learner.predictor.double()
    new, old = (torch.randn(n, 10, generator=generator(n), dtype=torch.float64).requires_grad_() for n in (12, 9))
    trained = [new, old, *learner.predictor.parameters()]
    fast, (a, b) = learner.alignment(new, old), (new[:9], old)
    mine = torch.autograd.grad(fast, trained)
    slow = nhsic(gaussian_kernel(learner.predictor(b)), gaussian_kernel(a))
    slow = slow + nhsic(gaussian_kernel(learner.predictor(a)), gaussian_kernel(b))
    torch.testing.assert_close(fast, slow)
    theirs = torch.autograd.grad(slow, trained)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert mine[0][9:].abs().max() == 0, "the longer batch's last samples have no partner"


def test_the_loss_adds_all_terms_on_the_draw_with_labels(small, blobs, monkeypatch):
    learner, batch = in_task(small, blobs, lambda_x=0.2, lambda_y=0.6, align=0.5)
    draws = []
    drawn = learner.replayed
    monkeypatch.setattr(learner, "replayed", lambda batch: draws.append(drawn(batch)) or draws[-1])
    loss, logits = learner.replay_loss(batch)
    first, second = draws
    assert not torch.equal(first.places, second.places)
    x = learner.scale(second.x)
    new, old = learner.net(learner.scale(batch.x)), learner.net(x)
    expected = nn.functional.cross_entropy(logits[:, 3:5], batch.y - 3)
    expected = expected + 0.1 * (learner.score(learner.scale(first.x)) - first.logits).square().mean()
    expected = expected + 0.5 * nn.functional.cross_entropy(learner.head(old), second.y)
    expected = expected + learner.bottleneck(x, second.y, [learner.net.layers[1](x)])  # before the ReLU
    expected = expected - 0.5 * 0.2 * learner.alignment(new, old)
    torch.testing.assert_close(loss, expected.float())
    loss.backward()
    assert all(parameter.grad is not None for parameter in learner.predictor.parameters())


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("kind", ["one class", "identical rows", "large"])
def test_degenerate_batches_give_finite_terms_and_gradients(small, blobs, count, kind):
    learner, _ = in_task(small, blobs)
    z = torch.randn(count, 10, generator=generator(0)) * (1e3 if kind == "large" else 1.0)
    z = (z[:1].expand(count, -1) if kind == "identical rows" else z).clone().requires_grad_()
    y = torch.zeros(count, dtype=torch.int64) if kind == "one class" else torch.arange(count)
    loss = learner.bottleneck(z.detach(), y, [z, z[:0]]) + learner.alignment(z, z.detach()[: count + 1])
    assert loss.isfinite()
    if count == 1:
        assert loss.item() == pytest.approx(0, abs=1e-6)
    assert torch.autograd.grad(loss, z)[0].isfinite().all()
