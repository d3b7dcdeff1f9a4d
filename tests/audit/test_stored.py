"""All numbers of a state are read as vectors, in every way in which a row could lie in them."""

from __future__ import annotations

import torch

from cldnet.audit.stored import stored_vectors
from cldnet.fit import fit_task
from cldnet.math import symmetric
from cldnet.methods import METHODS, build_learner
from cldnet.methods.learner import Setting, TaskData


def test_no_tensor_with_numbers_is_left_out() -> None:
    for method in METHODS:
        learner = build_learner(method, Setting((3, 16, 16), capacity=4, seed=0))
        read = {stored.tensor for stored in stored_vectors(learner)}
        numbers = {
            name
            for name, tensor in learner.state_dict().items()
            if (tensor.is_floating_point() or tensor.dtype == torch.int8) and tensor.numel() > 1
        }
        assert read == numbers, method


def test_second_moments_are_read_as_the_matrix_that_they_are() -> None:
    learner = build_learner("exact", Setting((5,), capacity=2, seed=0), backbone_options={"features": 9})
    fit_task(learner, TaskData(torch.randn(20, 5), torch.arange(20) % 2), epochs=1, batch_size=20)
    (columns,) = [stored for stored in stored_vectors(learner) if stored.tensor == "second.packed"]
    gram = symmetric.unpack(learner.second.packed, 10)  # type: ignore[union-attr]
    assert torch.allclose(columns.units.double(), gram / gram.norm(dim=1, keepdim=True), atol=1e-6)


def test_enormous_and_tiny_sums_keep_their_direction() -> None:
    learner = build_learner("finetune", Setting((5,), capacity=2, seed=0), backbone_options={"widths": (4,)})
    learner.register_buffer("sums", torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [0.0, 0.0]], dtype=torch.float64))
    (rows,) = [s for s in stored_vectors(learner) if (s.tensor, s.form) == ("sums", "row")]
    assert torch.allclose(rows.units, torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))
