"""What methods with a reservoir share."""

from __future__ import annotations

import pytest

from cldnet.methods.fit import fit_task


@pytest.mark.parametrize("method", ["er", "er-ace", "derpp"])
def test_later_epochs_do_not_offer_the_same_samples_to_the_buffer_again(method, blobs, small) -> None:
    learner, task = small(method, memory=5, replay=2), blobs([0, 1])
    fit_task(learner, task, epochs=3, batch_size=10)
    assert int(learner.buffer.met) == len(task)
