"""Scaling of inputs: quick for bytes without a bit of difference, and by constants where they are given."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets.features import InputScale, NoScaling


def images(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(0))


def formula(scale: InputScale, x: Tensor) -> Tensor:
    return ((x.double() - scale.mean) / scale.spread).to(scale.dtype)


# The quick way


@pytest.mark.parametrize("shape", [(20,), (6, 5), (1, 6, 5), (3, 6, 5), (3, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_byte_is_scaled_to_the_bits_of_the_formula(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    scale = InputScale(shape, dtype)
    scale.fit(images(50, *shape))
    x = torch.arange(256, dtype=torch.uint8).reshape(256, *[1] * len(shape)).expand(256, *shape)
    assert torch.equal(scale(x), formula(scale, x))
    assert scale(x).dtype == dtype


def test_a_batch_too_large_for_one_block_has_the_same_bits() -> None:
    scale = InputScale((3, 32, 32))
    x = images(400, 3, 32, 32)  # more than 2¹⁹ numbers
    scale.fit(x)
    assert torch.equal(scale(x), formula(scale, x))
    assert torch.equal(scale(x), torch.cat([scale(part) for part in x.split(7)]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64])
def test_inputs_of_all_types_are_left_as_they_are(dtype: torch.dtype) -> None:
    scale = InputScale((4,), torch.float64)
    x = images(9, 4).to(dtype)
    before = x.clone()
    scale.fit(x)
    assert torch.equal(scale(x), formula(scale, x))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_inputs_that_were_scaled_beforehand_are_copied_as_they_are(dtype: torch.dtype) -> None:
    scale = InputScale((3,))
    scale.set(mean=[0.0, 0.0, 0.0], spread=[1.0, 1.0, 1.0])
    inputs = (10 * torch.rand(4, 3, generator=generator(0), dtype=torch.float64)).to(dtype)
    scaled = scale(inputs)
    assert scaled.dtype == torch.float32
    assert torch.equal(scaled, inputs.double().sub(scale.mean).div(scale.spread).float())
    before = inputs.clone()
    scaled.fill_(9)
    assert torch.equal(inputs, before)


def test_gradients_flow_to_inputs() -> None:
    scale = InputScale((3, 32, 32), torch.float64)
    x = torch.rand(400, 3, 32, 32, generator=generator(0)).requires_grad_()
    scale.fit(x.detach())
    (gradient,) = torch.autograd.grad(scale(x).sum(), x)
    torch.testing.assert_close(gradient, (1 / scale.spread).float().expand_as(x))


def test_large_images_are_fitted_in_blocks_with_the_same_result() -> None:
    x = images(40, 3, 512, 512)  # 21 rows a block
    scale = InputScale((3, 512, 512))
    scale.fit(x, torch.arange(40.0))
    weighted = x.double().mean((2, 3)) * (torch.arange(40.0) / torch.arange(40.0).sum())[:, None]
    torch.testing.assert_close(scale.mean.flatten(), weighted.sum(0), rtol=1e-6, atol=0)


# Constants


def test_constants_are_taken_as_they_are() -> None:
    scale = InputScale((3, 4, 4), torch.float64)
    scale.set((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
    x = images(5, 3, 4, 4)
    for channel, (mean, spread) in enumerate(((125.3, 63.0), (123.0, 62.1), (113.9, 66.7))):
        assert torch.equal(scale(x)[:, channel], (x[:, channel].double() - mean) / spread)
    assert bool(scale.fitted)


@pytest.mark.parametrize(("shape", "count"), [((8, 8), 1), ((1, 8, 8), 1), ((3, 8, 8), 3), ((5,), 5)])
def test_there_is_a_constant_for_each_channel_or_feature(shape: tuple[int, ...], count: int) -> None:
    InputScale(shape).set([1.0] * count, [2.0] * count)
    for mean, spread in ((count + 1, count), (count, count + 1)):
        with pytest.raises(ValueError, match=f"has {count + 1} numbers; expected {count}, one per channel"):
            InputScale(shape).set([1.0] * mean, [2.0] * spread)


BAD: dict[str, tuple[Any, Any, str]] = {
    "mean not a number": ((float("nan"), 1.0), (1.0, 1.0), r"mean=\(nan, 1.0\) should be finite"),
    "spread infinite": ((1.0, 1.0), (1.0, float("inf")), r"spread=\(1.0, inf\) should be finite"),
    "spread zero": ((1.0, 1.0), (1.0, 0.0), r"spread=\(1.0, 0.0\) should be positive"),
    "spread negative": ((1.0, 1.0), (-1.0, 2.0), "should be positive; inputs are divided by it"),
}


@pytest.mark.parametrize("name", BAD)
def test_constants_that_make_no_sense_are_refused_and_nothing_changes(name: str) -> None:
    mean, spread, complaint = BAD[name]
    scale = InputScale((2,))
    with pytest.raises(ValueError, match=complaint):
        scale.set(mean, spread)
    assert not bool(scale.fitted)
    assert scale.mean.tolist() == [0.0, 0.0]
    assert scale.spread.tolist() == [1.0, 1.0]


def task(first: int) -> TaskData:
    return TaskData(images(40, 6, 6), torch.arange(40) % 2 + first)


@pytest.mark.parametrize("method", ["finetune", "er", "cldnet", "pnn"])
def test_a_setting_with_constants_keeps_them_through_tasks_and_files(method: str) -> None:
    setting = Setting((6, 6), 4, seed=0, scaling=((33.3,), (78.6,)))
    learner = build_learner(method, setting)
    for first in (0, 2):
        fit_task(learner, task(first), epochs=1, batch_size=16)
    assert isinstance(learner.scale, InputScale)
    assert (float(learner.scale.mean), float(learner.scale.spread)) == (33.3, 78.6)
    other = build_learner(method, Setting((6, 6), 4, seed=0))
    other.load_state(copy.deepcopy(learner.state_dict()))
    other.eval()
    assert torch.equal(other.logits(task(0).x), learner.logits(task(0).x))


def test_constants_make_a_difference_to_what_is_learned() -> None:
    learners = [build_learner("finetune", Setting((6, 6), 4, 0, scaling=s)) for s in (None, ((0.0,), (255.0,)))]
    for learner in learners:
        fit_task(learner, task(0), epochs=1, batch_size=16)
    assert not torch.equal(*(learner.logits(task(0).x) for learner in learners))


def test_a_setting_with_too_few_constants_is_refused() -> None:
    with pytest.raises(ValueError, match="mean has 1 numbers; expected 3"):
        build_learner("finetune", Setting((3, 6, 6), 4, 0, scaling=((1.0,), (1.0,))))


def test_the_map_of_the_exact_solver_takes_no_notice_of_constants() -> None:
    plain, given = (build_learner("exact", Setting((6, 6), 4, 0, scaling=s)) for s in (None, ((1.0,), (99.0,))))
    for learner in (plain, given):
        fit_task(learner, task(0), epochs=1, batch_size=16)
    assert isinstance(given.scale, NoScaling)
    assert torch.equal(plain.logits(task(0).x), given.logits(task(0).x))


# Extremes


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 1), (1e12, 1), (1.7e9, 60), (1, 1e-9), (0, 1e-100), (0, 1e38), (-1e30, 1e20)]
)
def test_what_varies_is_scaled_to_one_however_far_from_zero(offset: float, size: float) -> None:
    rows = torch.randn(500, 3, generator=generator(0), dtype=torch.float64)
    scale = InputScale((3,), torch.float64)
    scale.fit(offset + size * rows)
    scaled = scale(offset + size * rows)
    assert float(scaled.mean(0).abs().max()) < 0.02
    torch.testing.assert_close(scaled.std(0), torch.ones(3, dtype=torch.float64), rtol=0.01, atol=0)


@pytest.mark.parametrize("constant", [0.1, 7.0, 1e12, -1e30, 3.4e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_never_varies_stays_near_zero(constant: float, dtype: torch.dtype) -> None:
    rows = torch.randn(500, 2, generator=generator(0), dtype=dtype)
    rows[:, 1] = constant
    scale = InputScale((2,), torch.float64)
    scale.fit(rows)
    assert float(scale(rows)[:, 1].abs().max()) < 0.1


def test_digits_are_those_of_float32_where_they_suffice() -> None:
    rows = torch.rand(999, 4, generator=generator(0)) + torch.tensor([0.0, 1.0, 10.0, 100.0])
    scale = InputScale((4,))
    scale.fit(rows)
    assert torch.equal(scale.mean, scale.mean.float().double())
    assert torch.equal(scale.spread, scale.spread.float().double())
    torch.testing.assert_close(scale.mean, rows.double().mean(0), rtol=1e-7, atol=0)


def test_what_varies_by_less_than_numbers_can_square_is_refused() -> None:
    scale = InputScale((2,))
    with pytest.raises(ValueError, match="vary by less than 1e-150"):
        scale.fit(1e-200 * torch.randn(9, 2, generator=generator(0), dtype=torch.float64))
    assert not scale.fitted
    scale.fit(torch.full((9, 2), 1e-200, dtype=torch.float64))  # it does not vary at all


# Values far from zero


def around(offset: float, columns: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    rows = torch.randint(0, 17, (50, columns), generator=generator(0))
    return (rows.double() + offset).to(dtype)


@pytest.mark.parametrize("offset", [1e14, -1e15])
@pytest.mark.parametrize(("shape", "what"), [((4,), "Column 0 of X, and 3 more,"), ((2, 2), "Channel 0 of X")])
def test_inputs_whose_differences_scaling_would_lose_are_refused(
    offset: float, shape: tuple[int, ...], what: str
) -> None:
    scale = InputScale(shape)
    before = copy.deepcopy(scale.state_dict())
    words = rf"{what} varies by 16 around {offset:.3g}, .*\. Subtract an offset first".replace("+", r"\+")
    with pytest.raises(ValueError, match=words):
        scale.fit(around(offset, 4).reshape(50, *shape))
    assert all(torch.equal(before[name], value) for name, value in scale.state_dict().items())


def test_a_column_whose_differences_scaling_loses_is_named_beside_others(caplog: pytest.LogCaptureFixture) -> None:
    InputScale((3,)).fit(torch.cat([around(0, 2), around(1e15, 1)], dim=1))
    assert "Column 2 of X varies by 16 around 1e+15" in caplog.text


@pytest.mark.parametrize(
    ("offset", "dtype"), [(1e20, torch.float64), (-1e16, torch.float64), (1e12, torch.float32), (0, torch.float32)]
)
def test_inputs_that_do_not_vary_are_told(offset: float, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    InputScale((3,)).fit(around(offset, dtype=dtype) if offset else torch.zeros(50, 3))
    assert "X is constant" in caplog.text


@pytest.mark.parametrize(
    "x",
    [
        around(1e11),
        around(1e8, dtype=torch.float32),
        around(0, dtype=torch.float32).to(torch.uint8),
        torch.cat([around(0), torch.full((50, 1), -1e30, dtype=torch.float64)], dim=1),
        torch.cat([around(0), 1e15 + torch.arange(50.0).double()[:, None] % 2 / 8], dim=1),
        torch.zeros(1, 3),
    ],
    ids=["far", "far in float32", "bytes", "constant", "constant but for rounding", "one row"],
)
def test_inputs_that_can_be_told_apart_are_taken_without_a_word(x: Tensor, caplog: pytest.LogCaptureFixture) -> None:
    InputScale(tuple(x.shape[1:])).fit(x)
    assert not caplog.text
