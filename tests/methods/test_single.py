"""Single-task nets: each has its own task only, begins with the same weights, and never changes afterwards."""

from __future__ import annotations

import torch

from cldnet.methods.fit import fit_task

METHOD = "cldnet.methods.single:SingleTask"


def weights(net: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in net.parameters()]


def test_each_task_is_scored_by_its_own_net_and_head(blobs, small):
    learner = small(METHOD, lr=0.05)
    for classes in ([0, 1], [2, 3]):
        fit_task(learner, blobs(classes), epochs=3, batch_size=16)
    x = blobs([0, 1, 2, 3]).x
    for task, rows in enumerate(([0, 1], [2, 3])):
        expected = learner.heads[task].layer(learner.nets[task](learner.scale(x)))
        found = learner.logits_in(x, task)
        torch.testing.assert_close(found[:, rows], expected)
        assert (found[:, [row for row in range(4) if row not in rows]] == -torch.inf).all()


def test_every_net_begins_with_the_first_weights_and_older_ones_stay(blobs, small):
    learner = small(METHOD, lr=0.05)
    initial = weights(learner.net)
    fit_task(learner, blobs([0, 1]), epochs=3, batch_size=16)
    first = weights(learner.nets[0])
    assert not all(map(torch.equal, first, initial))
    learner.begin_task(blobs([2, 3]))
    assert all(map(torch.equal, weights(learner.nets[1]), initial)), "not with those of the task before"
    assert not any(parameter.requires_grad for parameter in learner.nets[0].parameters())
    learner.end_task(blobs([2, 3]))
    fit_task(learner, blobs([4, 5]), epochs=3, batch_size=16)
    assert all(map(torch.equal, weights(learner.nets[0]), first))
    assert all(map(torch.equal, weights(learner.net), initial))
