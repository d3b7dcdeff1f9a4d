"""The choice of a map: robust unless another is clearly better, the same in any order, and cheap."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from cldnet.device import generator
from cldnet.nets import Linear, RandomFourier
from cldnet.nets.choice import Choice, choose_map, drawn_rows, standard_errors


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def is_robust(choice: Choice) -> bool:
    made = choice.map
    return type(made) is RandomFourier and made.out_features == 1001 and made.given_bandwidth is None


def test_a_single_class_gets_the_robust_map_without_any_trial() -> None:
    choice = choose_map(normal(60, 4), torch.zeros(60, dtype=torch.int64), seed=0)
    assert is_robust(choice)
    assert choice.candidates == ()
    assert "single class" in str(choice)


def test_a_large_single_class_gets_twice_the_features() -> None:
    widths = [choose_map(normal(n, 4), torch.zeros(n).long(), seed=0).map.out_features for n in (1999, 2000)]
    assert widths == [1001, 2001]


@pytest.mark.parametrize(("rows", "second"), [(49, 20), (80, 9)])
def test_too_few_samples_get_the_robust_map(rows: int, second: int) -> None:
    y = (torch.arange(rows) < second).long()
    choice = choose_map(normal(rows, 3), y, seed=0)
    assert is_robust(choice)
    assert "too few" in choice.reason


def test_two_easy_classes_do_not_move_the_choice() -> None:
    y = torch.arange(200) % 2
    choice = choose_map(normal(200, 5) + 4 * y[:, None], y, seed=0)
    assert is_robust(choice)
    assert len(choice.candidates) == 5
    assert "no other map is clearly better" in choice.reason


def test_many_columns_that_add_up_get_a_linear_map() -> None:
    x = normal(800, 300)
    choice = choose_map(x, (x[:, :200].sum(1) > 0).long(), seed=0)
    assert type(choice.map) is Linear
    assert "linear, 300 features" in str(choice)
    assert not choice.map.fitted


def test_classes_of_many_parts_get_more_features_if_there_are_rows_for_them() -> None:
    centers = 2 * normal(60, 12, seed=1)
    part = torch.arange(4200) % 60
    x, y = centers[part] + normal(4200, 12, seed=2), part % 2
    assert choose_map(x, y, seed=0).map.out_features == 2001
    assert choose_map(x[:3900], y[:3900], seed=0).map.out_features == 1001


def test_the_order_of_samples_does_not_matter() -> None:
    x = normal(1500, 4)
    y = (x[:, 0] * x[:, 1] > 0).long()
    order = torch.randperm(1500, generator=generator(3))
    first, second = choose_map(x, y, seed=0), choose_map(x[order], y[order], seed=0)
    assert first.candidates == second.candidates
    assert first.map.describe() == second.map.describe()


def test_a_draw_takes_of_each_class_its_share_and_depends_on_the_seed() -> None:
    x, y = normal(3000, 3), (torch.arange(3000) % 10 == 0).long()
    kept = drawn_rows(x, y, 300, seed=0)
    assert len(kept.unique()) == len(kept) == 300
    assert int(y[kept].sum()) == 30
    assert not torch.equal(kept, drawn_rows(x, y, 300, seed=1))


def test_samples_of_weight_zero_do_not_count() -> None:
    x = normal(300, 4)
    y, weight = (x[:, 0] > 0).long(), (torch.arange(300) < 200).double()
    assert choose_map(x, y, seed=0, weight=weight).candidates == choose_map(x[:200], y[:200], seed=0).candidates


def test_columns_with_heavy_tails_are_seen() -> None:
    x = normal(400, 3)
    y = (x[:, 0] > 0).long()
    assert not choose_map(x, y, seed=0).map.tails
    x[:, 1] = (3 * x[:, 1]).exp()
    choice = choose_map(x, y, seed=0)
    assert choice.map.tails
    assert "heavy tails" in choice.name


def test_standard_errors_compare_only_samples_on_which_two_maps_differ() -> None:
    base, other = torch.tensor([1, 1, 1, 1, 0, 1]).bool(), torch.tensor([1, 0, 0, 0, 1, 0]).bool()
    assert standard_errors(base, other) == pytest.approx(3 / 5**0.5)
    assert standard_errors(base, base) == 0


def test_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"chosen for vectors \(n, d\)"):
        choose_map(normal(9, 4, 4), torch.zeros(9, dtype=torch.int64), seed=0)


def test_the_time_does_not_grow_with_the_samples() -> None:
    x = normal(100_000, 10)
    y = (x[:, 0] > 0).long()
    began = time.process_time()
    choose_map(x, y, seed=0)
    assert time.process_time() - began < 15
