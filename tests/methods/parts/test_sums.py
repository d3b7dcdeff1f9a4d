"""What is taken out of sums must have been in them; the exact solver's own tests have the rest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.device import generator
from cldnet.math.symmetric import unpack
from cldnet.methods.parts.sums import Summed, check_addable, moments_from, upgraded, without

relaxed = settings(deadline=None, max_examples=40)


def summed(h: Tensor, y: Tensor, weight: Tensor) -> Summed:
    one_hot = torch.nn.functional.one_hot(y, 3).double() * weight[:, None]
    return Summed(weight @ h.square(), one_hot.T @ h, one_hot.sum(0))


@relaxed
@given(st.integers(0, 40), st.booleans(), st.integers(0, 999))
def test_whatever_was_there_can_be_taken_out(count: int, fractions: bool, seed: int) -> None:
    source = generator(seed)
    h = torch.randint(-127, 128, (40, 6), generator=source).double()
    y = torch.randint(0, 3, (40,), generator=source)
    weight = torch.rand(40, generator=source, dtype=torch.float64) if fractions else torch.ones(40, dtype=torch.float64)
    order = torch.randperm(40, generator=source)
    gone, left = order[:count], order[count:]
    found = without(summed(h, y, weight), summed(h[gone], y[gone], weight[gone]))
    for tensor, expected in zip(found, summed(h[left], y[left], weight[left]), strict=True):
        torch.testing.assert_close(tensor, expected, rtol=1e-9, atol=1e-8)
    assert not found.class_sums[found.class_weights == 0].any()
    assert bool((found.class_weights[torch.bincount(y[left], minlength=3) == 0] == 0).all())


@relaxed
@given(st.integers(0, 2), st.integers(0, 999))
def test_a_row_that_sticks_out_was_not_there(c: int, seed: int) -> None:
    h = torch.randint(0, 50, (40, 6), generator=generator(seed)).double()
    y, one = torch.arange(40) % 3, torch.ones(1, dtype=torch.float64)
    outside = torch.full((1, 6), 1000.0, dtype=torch.float64)
    with pytest.raises(ValueError, match="were not among those learned"):
        without(summed(h, y, one.expand(40)), summed(outside, torch.tensor([c]), one))


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
