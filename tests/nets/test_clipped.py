"""Clipped maps: no feature vector is longer than the bound, and all are whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet import CLDNetClassifier, storage
from cldnet.device import generator
from cldnet.nets import Clipped, FeatureMap, Linear, RandomFourier, RandomReLU, WhitenedPatches, build_described
from cldnet.nets import is_described as described
from cldnet.storage.maps import load_map, save_map


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def fitted(made: FeatureMap) -> FeatureMap:
    made.fit(normal(30, *made.input_shape, seed=4) * 2 + 1)
    return made


class Given(FeatureMap):
    """The inputs themselves as features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_shape, self.out_features, self.fitted = (width,), width, torch.tensor(True)

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        raise AssertionError

    def forward(self, x: Tensor) -> Tensor:
        return x


rows = st.lists(st.integers(-127, 127), min_size=1, max_size=40)
norms = st.one_of(
    st.integers(1, 900), st.floats(1, 900, allow_nan=False), st.integers(1, 800_000).map(lambda n: n**0.5)
)


@given(row=rows, norm=norms)
@settings(max_examples=400, deadline=None)
def test_no_vector_is_longer_than_the_norm_and_all_are_whole_numbers(row: list[int], norm: float) -> None:
    norm = max(1.0, float(norm))
    clipped = Clipped(Given(len(row)), norm)
    found = clipped(torch.tensor([row], dtype=torch.float32))[0].tolist()
    assert all(number == int(number) for number in found)
    length = sum(int(number) ** 2 for number in row)
    bound = Fraction(norm) ** 2  # of floats exactly
    if Fraction(length) <= bound * (1 - Fraction(1, 10**12)):
        assert found == row
    # A vector as long as the norm, to the last bit, may stay as it is: the noise has a larger margin.
    assert sum(Fraction(int(number)) ** 2 for number in found) <= bound * (1 + Fraction(1, 10**15))
    assert all(abs(small) <= abs(large) and small * large >= 0 for small, large in zip(found, row, strict=True))


def test_a_vector_that_is_too_long_keeps_its_direction_and_loses_its_fractions() -> None:
    clipped = Clipped(Given(2), 50)
    assert clipped(torch.tensor([[60.0, -80.0], [30.0, 40.0], [0.0, 0.0]])).tolist() == [[29, -39], [30, 40], [0, 0]]
    unrounded = clipped.predict_features(torch.tensor([[60.0, -80.0]]))
    assert unrounded.flatten().tolist() == pytest.approx([30, -40])


MAPS: list[Callable[[], FeatureMap]] = [
    lambda: RandomReLU((4,), 20, seed=3),
    lambda: RandomFourier((4, 4), 20, seed=3),
    lambda: Linear((4,)),
    lambda: WhitenedPatches((12, 12), 4, seed=3, windows=2, mirror=False),
]


@pytest.mark.parametrize("make", MAPS)
def test_a_clipped_map_comes_back_from_its_file(make: Callable[[], FeatureMap], tmp_path: Path) -> None:
    made = Clipped(fitted(make()), 120)
    save_map(made, tmp_path / "map")
    loaded = load_map(tmp_path / "map")
    assert isinstance(loaded, Clipped)
    assert (loaded.map_id, loaded.norm, bool(loaded.fitted)) == (made.map_id, 120, True)
    assert described(loaded)
    x = normal(9, *made.input_shape)
    assert torch.equal(loaded(x), made(x))
    assert float(made(x).norm(dim=1).max()) <= 120 < float(made.features(x).norm(dim=1).max())


def test_the_id_depends_on_the_norm_and_on_the_map() -> None:
    one, other = fitted(RandomReLU((4,), 20, seed=3)), fitted(RandomReLU((4,), 20, seed=4))
    ids = [Clipped(one, 150).map_id, Clipped(one, 151).map_id, Clipped(other, 150).map_id, one.map_id]
    assert len({*ids}) == 4
    assert Clipped(one, 150.0).map_id == Clipped(one, np.int64(150)).map_id == ids[0]  # type: ignore[arg-type]


def test_a_model_over_a_clipped_map_learns_in_any_order_forgets_and_comes_back(tmp_path: Path) -> None:
    shared, X, y = Clipped(fitted(RandomReLU((4,), 20, seed=3)), 200), normal(60, 4).numpy(), np.arange(60) % 3
    clf = CLDNetClassifier(backbone=shared, random_state=0).partial_fit(X[:30], y[:30]).partial_fit(X[30:], y[30:])
    other = CLDNetClassifier(backbone=shared, random_state=0).fit(X[::-1], y[::-1])
    for name, tensor in clf.statistics().tensors.items():
        again = other.statistics().tensors[name]
        order = other.statistics().labels.rows(clf.statistics().labels.by_row)
        assert torch.equal(tensor, again[order] if name.startswith("class") else again)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert np.array_equal(loaded.decision_function(X), clf.decision_function(X))
    assert isinstance(loaded.feature_map_, Clipped)
    assert loaded.partial_fit(X, y).statistics().rows == 120
    assert clf.forget(X[:10], y[:10]).statistics().rows == 50
    assert not clf.model_.map_labels  # the map was fitted on other samples


def test_an_audit_does_not_take_clipping_for_noise() -> None:
    shared, X, y = Clipped(fitted(RandomReLU((4,), 20, seed=3)), 200), normal(60, 4).numpy(), np.arange(60) % 3
    assert CLDNetClassifier(backbone=shared, random_state=0).fit(X, y).audit().moved == ()


def test_a_map_that_is_not_fitted_says_what_to_do() -> None:
    clipped = Clipped(RandomReLU((4,), 20, seed=3), 150)
    with pytest.raises(ValueError, match=r"Fit it before it is clipped, on public data.*features\.fit\(public\)"):
        CLDNetClassifier(backbone=clipped).fit(normal(30, 4).numpy(), np.arange(30) % 2)
    with pytest.raises(ValueError, match="is not fitted"):
        save_map(clipped, "never")


@pytest.mark.parametrize("norm", [0, 0.5, -1, float("nan"), float("inf"), True, "100", None])
def test_a_norm_that_is_none_is_refused(norm: Any) -> None:
    with pytest.raises(ValueError, match=r"^norm=.* should be a number from 1 on"):
        Clipped(Linear((2,)), norm)


@pytest.mark.parametrize("features", [torch.nn.Linear(2, 2), None, Clipped(Linear((2,)), 9)])
def test_what_is_no_map_or_clipped_already_is_refused(features: Any) -> None:
    with pytest.raises(ValueError, match=r"^features=\w+ should be a map of cldnet\.nets that is not clipped already"):
        Clipped(features, 100)


def test_a_map_with_code_of_the_user_is_clipped_but_not_described() -> None:
    assert not described(Clipped(Given(3), 100))
    assert not described(Clipped(RandomReLU((3,), 20, seed=3, net=torch.nn.Linear(4, 3)), 100))

    class Mine(Clipped):
        pass

    assert not described(Mine(Linear((2,)), 100))
    assert Mine(Linear((2,)), 100).own_limits is None
    assert Clipped(Linear((2,)), 100).own_limits == (-127, 127)


DESCRIPTION = Clipped(Linear((2,)), 100).describe()
INNER = DESCRIPTION["options"]["features"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"options": {}}, "expected the map that it clips, and a norm"),
        ({"options": {"features": INNER}}, "expected the map that it clips, and a norm"),
        ({"options": {"features": INNER, "norm": "9"}}, "expected the map that it clips, and a norm"),
        ({"options": {"features": INNER, "norm": True}}, "norm=True should be a number"),
        ({"options": {"features": INNER, "norm": -1.0}}, "norm=-1.0 should be a number"),
        ({"options": {"features": INNER, "norm": float("nan")}}, "norm=nan should be a number"),
        ({"options": {"features": INNER, "norm": 9.0, "seed": 1}}, "known are features, norm"),
        ({"options": {"features": DESCRIPTION, "norm": 9.0}}, "expected the map that it clips, and a norm"),
        ({"options": {"features": {**INNER, "kind": "os.system"}, "norm": 9.0}}, "no kind of feature map"),
        ({"options": {"features": {**INNER, "input_shape": [3]}, "norm": 9.0}}, "cannot clip a map like"),
        ({"options": {"features": {**INNER, "kind": "frozen", "options": {"bodies": []}}, "norm": 9.0}}, "bodies"),
    ],
)
def test_a_description_from_a_stranger_is_refused_with_a_sentence(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_described({**DESCRIPTION, **change})


def test_a_file_with_another_norm_than_its_id_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map"
    save_map(Clipped(fitted(Linear((2,))), 100), path)
    tensors, manifest = storage.read(path)
    manifest["map"]["options"]["norm"] = 1e9
    storage.write(path, tensors, manifest)
    with pytest.raises(ValueError, match="not those of the map that it names"):
        load_map(path)
