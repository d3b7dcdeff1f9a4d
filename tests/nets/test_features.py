"""Random ReLU features, what random maps share, and descriptions of maps."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cldnet.device import generator, threads
from cldnet.nets import (
    BACKBONES,
    FEATURE_MAPS,
    FeatureMap,
    RandomFourier,
    RandomReLU,
    build_backbone,
    build_described,
    is_described,
)
from cldnet.nets import (
    features as features_room,
)

relaxed = settings(deadline=None, max_examples=25)
MAPS = [RandomReLU, RandomFourier]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


# -- the same bits as ever ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "features", "mark"),
    [((6,), 50, "2cd6d7221bc5cd53"), ((3, 16, 16), 77, "a63488115c11ce73"), ((1,), 1, "4ff3f1134a63d4a1")],
)
def test_the_same_seed_and_data_give_the_same_id_in_every_version(
    shape: tuple[int, ...], features: int, mark: str
) -> None:
    made = RandomReLU(shape, features, seed=3)
    made.fit(normal(300, *shape, seed=9) * 3 + 1)
    assert made.map_id == mark


def test_weights_drawn_in_blocks_are_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian = torch.randn(7, 61, generator=generator(5), dtype=torch.float64)
    whole = (gaussian * (127 / 3)).round().clamp(-127, 127).to(torch.int8)
    monkeypatch.setattr(features_room, "_DRAWN_AT_ONCE", 32)
    assert torch.equal(RandomReLU((60,), 7, seed=5).weight, whole)


# -- products in blocks ------------------------------------------------------------------------------------------------


def slow_products(made: RandomReLU | RandomFourier, x: Tensor) -> list[list[int]]:
    """W x of every row in Python's own whole numbers."""
    scaled = ((x.double() - made.scale.mean) / made.scale.spread).flatten(1).tolist()
    weights = made.weight.tolist()
    rows = []
    for row in scaled:
        squeezed = [s if abs(s) <= 8 else (8 + (abs(s) - 8) / 16) * (1 if s > 0 else -1) for s in row]
        whole = [max(-32767, min(32767, round(s * (32767 / 16)))) for s in squeezed]
        rows.append([sum(w * i for w, i in zip(column, [*whole, 2048], strict=False)) for column in weights])
    return rows


@pytest.mark.parametrize("make", MAPS)
@relaxed
@given(
    rows=st.integers(1, 9),
    inputs=st.integers(1, 9),
    features=st.integers(1, 9),
    far=st.sampled_from([1.0, 30.0]),
    seed=st.integers(0, 999),
)
def test_products_are_exact_whole_numbers(
    make: Any, rows: int, inputs: int, features: int, far: float, seed: int
) -> None:
    made = make((inputs,), features, seed=seed)
    x = normal(rows + 1, inputs, seed=seed)
    made.fit(x)
    assert made._project(far * x).tolist() == slow_products(made, far * x)


@pytest.mark.parametrize("make", MAPS)
@pytest.mark.parametrize("shape", [(1000,), (20, 50), (2, 20, 25)])
def test_how_products_are_cut_changes_no_bit(
    make: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = normal(17, *shape)
    whole, cut = (make(shape, 30, seed=1) for _ in range(2))
    whole.fit(x)
    expected = whole(x)
    monkeypatch.setattr(features_room, "_WIDENED_AT_ONCE", 300 * 30)  # columns: 300, 300, 300, 100
    monkeypatch.setattr(features_room, "_ROUNDED_AT_ONCE", 5000)  # rows: 5, 5, 5, 2
    cut.fit(x)
    assert torch.equal(cut(x), expected)
    assert cut.map_id == whole.map_id


def test_weights_for_photos_are_never_widened_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made = RandomReLU((3, 64, 64), 400, seed=0)
    x = normal(4, 3, 64, 64)
    made.fit(x)
    widened: list[int] = []
    double = Tensor.double

    def watched(tensor: Tensor) -> Tensor:
        widened.append(tensor.numel())
        return double(tensor)

    monkeypatch.setattr(Tensor, "double", watched)
    made(x)
    assert max(widened) <= 1 << 22 < made.weight.numel()


# -- what random maps share --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAPS)
def test_a_row_has_the_same_features_in_any_company_and_with_any_threads(make: Any) -> None:
    made = make((6, 5), 40, seed=0)
    x = normal(33, 6, 5)
    made.fit(x)
    expected = made(x)
    for size in (1, 7, 32):
        assert torch.equal(torch.cat([made(part) for part in x.split(size)]), expected)
    order = torch.randperm(33, generator=generator(1))
    assert torch.equal(made(x[order]), expected[order])
    for count in (1, 3):
        with threads(count):
            assert torch.equal(made(x), expected)


@pytest.mark.parametrize("make", MAPS)
def test_the_order_of_rows_leaves_no_trace_in_a_map(make: Any) -> None:
    x = normal(500, 7) * 3 + 1
    marks = set()
    for seed in range(4):
        made = make((7,), 20, seed=0)
        made.fit(x[torch.randperm(500, generator=generator(seed))])
        marks.add(made.map_id)
    assert len(marks) == 1


@pytest.mark.parametrize("make", MAPS)
def test_features_are_whole_numbers_with_a_constant_at_the_end_and_inputs_stay(make: Any) -> None:
    made = make((4,), np.int64(25), seed=0)
    x = normal(50, 4) * 10
    before = x.clone()
    made.fit(x)
    h = made(x)
    assert h.dtype == torch.float32
    assert h.shape == (50, made.out_features) == (50, 26)
    assert torch.equal(h, h.round())
    assert h.abs().max() == 127
    assert (h[:, -1] == 127).all()
    assert torch.equal(x, before)


@pytest.mark.parametrize("make", MAPS)
def test_a_net_in_front_that_gives_no_numbers_is_refused(make: Any) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0

    with pytest.raises(ValueError, match="returned NaN or infinity"):
        make((4,), 5, seed=0, net=Broken()).fit(normal(5, 4))


@pytest.mark.parametrize("make", MAPS)
@pytest.mark.parametrize("features", [0, -1, 2.5, True, "9", 10**12])
def test_a_number_of_features_that_cannot_be_is_refused(make: Any, features: Any) -> None:
    with pytest.raises(ValueError, match=r"features=.* should be a whole number from 1 to 536,870,912|429,496,729"):
        make((4,), features, seed=0)


# -- descriptions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        RandomReLU((5,), 7, seed=1),
        RandomReLU((2, 3, 4), 3, seed=1),
        RandomFourier((4, 4), 6, seed=1),
        RandomFourier((4,), 6, seed=1, bandwidth=2.5),
    ],
)
def test_a_description_in_json_makes_an_empty_map_that_takes_the_numbers(made: FeatureMap) -> None:
    made.fit(normal(9, *made.input_shape))
    again = build_described(json.loads(json.dumps(made.describe())))
    assert type(again) is type(made)
    assert again.describe() == made.describe()
    assert not again.fitted
    again.load_state_dict(made.state_dict())
    assert again.map_id == made.map_id
    x = normal(6, *made.input_shape, seed=2)
    assert torch.equal(again(x), made(x))


GOOD = {"kind": "random-relu", "input_shape": [4], "options": {"features": 3}}
STRANGE: list[tuple[Any, str]] = [
    (None, "should have kind, input_shape and options"),
    ({"kind": "random-relu"}, "should have kind, input_shape and options"),
    ({**GOOD, "kind": "os.system"}, "There is no kind of feature map 'os.system'"),
    ({**GOOD, "kind": ["random-relu"]}, "There is no kind of feature map"),
    ({**GOOD, "kind": "own"}, "There is no kind of feature map 'own'"),
    *(
        ({**GOOD, "input_shape": shape}, "one to three positive whole numbers")
        for shape in ([], [0], [2.0], [True], "4", 4, [1] * 4)
    ),
    ({**GOOD, "options": None}, "known are features"),
    ({**GOOD, "options": {"seed": 3}}, "known are features"),
    ({**GOOD, "options": {"net": "x"}}, "known are features"),
    ({**GOOD, "options": {3: 4}}, "known are features"),
    ({**GOOD, "options": {"features": "many"}}, "features='many' should be a whole number"),
    ({**GOOD, "input_shape": [2**40, 2**40], "options": {"features": 3}}, "should be a whole number from 1 to 0"),
    ({**GOOD, "kind": "random-fourier", "options": {"bandwidth": float("nan")}}, "bandwidth=nan should be"),
]


@pytest.mark.parametrize(("description", "complaint"), STRANGE)
def test_a_strangers_description_is_refused_with_a_sentence(description: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_described(description)


def test_a_strangers_description_takes_no_memory_before_it_is_refused() -> None:
    tracemalloc.start()
    with pytest.raises(ValueError, match="should be a whole number from 1 to"):
        build_described({**GOOD, "options": {"features": 2**40}})
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_map_is_described_if_its_code_is_all_ours() -> None:
    class Mine(RandomReLU):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert is_described(RandomFourier((2,), 3, seed=0))
    assert not is_described(Mine((2,), 3, seed=0))
    assert not is_described(RandomFourier((2,), 3, seed=0, net=nn.Identity()))
    assert not is_described(nn.Identity())


def test_every_kind_of_map_is_a_backbone_of_that_name() -> None:
    assert {*FEATURE_MAPS} - {"efficientnet-lite"} <= {*BACKBONES}  # which has a version in its name
    for kind in ("random-relu", "random-fourier"):
        made = build_backbone(kind, (4,), seed=0, options={"features": 5})
        assert type(made) is FEATURE_MAPS[kind]
        assert made.describe()["kind"] == kind


def test_no_unit_is_lit_by_a_handful_of_rows_of_the_first_task() -> None:
    # Its column of the sums would be those rows: of one row alone, that row itself.
    rows = normal(200, 3, seed=1).exp()  # lopsided: a few rows lie far out on one side
    made = RandomReLU((3,), 400, seed=0)
    drawn = made.weight.clone()
    made.fit(rows)
    lit = made(rows)[:, :-1]
    shared = lit.sum(0).square() / lit.square().sum(0)
    assert float(shared.min()) >= 30
    turned = (made.weight != drawn).any(1)
    assert 0 < int(turned.sum()) < 200, "only units that hardly any row lit look the other way"
    assert torch.equal(made.weight[turned], -drawn[turned])


def test_rows_of_weight_zero_light_no_unit() -> None:
    rows, weight = normal(200, 3, seed=1).exp(), torch.ones(200)
    weight[50:] = 0
    made, kept = RandomReLU((3,), 100, seed=0), RandomReLU((3,), 100, seed=0)
    made.fit(rows, weight)
    kept.fit(rows[:50], weight[:50])
    assert made.map_id == kept.map_id
