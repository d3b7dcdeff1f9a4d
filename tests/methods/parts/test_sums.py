"""Sums that are added, and sums of older files; the exact solver's own tests have the rest."""

from __future__ import annotations

import pytest
import torch

from cldnet.math.symmetric import unpack
from cldnet.methods.parts.sums import check_addable, moments_from, upgraded


def test_missing_and_additional_tensors_are_named() -> None:
    own = {"class_sums": torch.zeros(2, 5), "class_weights": torch.zeros(2), "rows": torch.tensor(0.0)}
    check_addable(own, own, torch.tensor([0, 1]), capacity=2)
    with pytest.raises(ValueError, match=r"\(extra, rows\)"):
        check_addable(own, {**{k: own[k] for k in own if k != "rows"}, "extra": own["rows"]}, torch.tensor([0, 1]), 2)


def test_second_moments_are_put_back_without_a_copy() -> None:
    packed = torch.arange(9.0, dtype=torch.float64)
    second = moments_from("full", 3, {"second.packed": packed, "rows": torch.tensor(1.0)}, prefix="second.")
    assert second.get_buffer("packed").data_ptr() == packed.data_ptr()


def test_an_older_state_is_packed_and_a_newer_one_left_alone() -> None:
    dense = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    old = {"gram": dense, "counters": torch.tensor([4, 2]), "rows": torch.tensor(9.0)}
    new = upgraded(old)
    assert torch.equal(unpack(new["second.packed"], 2), dense)
    assert int(new["first_classes"]) == 2
    assert "gram" in old
    assert upgraded(new) == new
