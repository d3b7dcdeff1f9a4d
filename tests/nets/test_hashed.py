"""The map of projected rows: one scale, whole numbers, whatever the order of samples."""

from __future__ import annotations

import torch

from cldnet.device import generator
from cldnet.nets import Hashed, build_described, is_described
from cldnet.nets.features import FEATURE_LIMIT


def sparse_rows(n: int = 200, width: int = 40) -> torch.Tensor:
    source = generator(0)
    x = torch.rand(n, width, generator=source)
    return x * (torch.rand(n, width, generator=source) < 0.1)


def test_features_are_the_inputs_in_whole_numbers_with_one_scale() -> None:
    x, features = sparse_rows(), Hashed((40,))
    features.fit(x)
    h = features(x)
    assert torch.equal(h, h.round())
    assert float(h.abs().max()) <= FEATURE_LIMIT
    assert torch.equal(h[:, :-1] == 0, x.double() / features.unit <= 0.5)
    assert bool((h[:, -1] == FEATURE_LIMIT).all())
    assert float((h[:, :-1] * features.unit - x).abs().max()) <= 0.5001 * float(features.unit)
    typical = h[:, :-1][x > 0].square().mean().sqrt()
    assert abs(float(typical) / Hashed.count - 1) < 0.05


def test_far_inputs_are_clipped() -> None:
    features = Hashed((40,))
    features.fit(sparse_rows())
    assert features(torch.full((1, 40), -1e6))[0, 0] == -FEATURE_LIMIT


def test_neither_the_order_of_samples_nor_equal_weights_matter_and_weights_count() -> None:
    x, made = sparse_rows(), [Hashed((40,)) for _ in range(4)]
    made[0].fit(x)
    made[1].fit(x.flip(0))
    made[2].fit(x, torch.full((len(x),), 3.0))
    assert made[0].map_id == made[1].map_id == made[2].map_id
    made[3].fit(torch.cat([x, 9 * x]), torch.cat([torch.ones(len(x)), torch.zeros(len(x))]))
    assert made[0].map_id == made[3].map_id


def test_zeros_alone_are_taken() -> None:
    features = Hashed((3,))
    features.fit(torch.zeros(4, 3))
    assert features(torch.ones(1, 3)).tolist() == [[1.0, 1.0, 1.0, FEATURE_LIMIT]]


def test_a_description_and_tensors_are_all_there_is() -> None:
    features = Hashed((40,))
    features.fit(sparse_rows())
    twin = build_described(features.describe())
    twin.load_state_dict(features.state_dict())
    assert is_described(twin)
    assert torch.equal(twin(sparse_rows()), features(sparse_rows()))
