"""All numbers of a state are read as vectors, in every way in which a row could lie in them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cldnet.audit.stored import Stored, folded_vectors, stored_vectors
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
            if name not in ("counters", "random") and tensor.numel() > 1
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


def read(secret: Tensor, length: int | None = None) -> list[Stored]:
    learner = build_learner("finetune", Setting((5,), capacity=2, seed=0), backbone_options={"widths": (4,)})
    learner.register_buffer("secret", secret)
    found = stored_vectors(learner) if length is None else folded_vectors(learner, length)
    return [stored for stored in found if stored.tensor == "secret"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bfloat16])
def test_numbers_of_every_type_are_read(dtype: torch.dtype) -> None:
    (vector,) = read(torch.tensor([3, 4], dtype=dtype))
    assert torch.allclose(vector.units, torch.tensor([[0.6, 0.8]]))


def test_truth_and_complex_numbers_are_read_as_numbers() -> None:
    (truth,) = read(torch.tensor([True, False, True, True]))
    assert torch.allclose(truth.units, torch.tensor([[1.0, 0.0, 1.0, 1.0]]) / 3**0.5)
    (rows, _) = read(torch.tensor([3 + 4j, 5 + 12j]))
    assert torch.allclose(rows.units, torch.tensor([[0.6, 0.8], [5 / 13, 12 / 13]]))


def test_a_number_that_is_none_does_not_hide_the_others() -> None:
    (vector,) = read(torch.tensor([3.0, float("nan"), 4.0, float("inf")]))
    assert torch.allclose(vector.units, torch.tensor([[0.6, 0.0, 0.8, 0.0]]))


def test_several_rows_in_one_tensor_are_read_row_by_row() -> None:
    rows = torch.randn(6, 5)
    for secret, form in (
        (rows.flatten(), "folded row"),
        (rows.T.flatten(), "folded column"),
        (rows.reshape(3, 10), "folded row"),
        (rows.T.reshape(3, 10), "folded column"),
    ):
        (folded,) = [stored for stored in read(secret, 5) if stored.form == form]
        assert torch.allclose(folded.units, rows / rows.norm(dim=1, keepdim=True), atol=1e-6)
    assert not read(rows, 5)  # read by its side already
    assert not read(rows.flatten(), 7)
    assert not read(rows[0], 5)


def test_trained_matrices_and_packed_sums_are_not_folded() -> None:
    learner = build_learner("exact", Setting((5,), capacity=2, seed=0), backbone_options={"features": 9})
    assert "second.packed" not in {stored.tensor for stored in folded_vectors(learner, 5)}  # 55 numbers
    net = build_learner("finetune", Setting((5,), capacity=2, seed=0), backbone_options={"widths": (4,)})
    assert {stored.tensor for stored in folded_vectors(net, 2)} == {"net.layers.1.bias"}
