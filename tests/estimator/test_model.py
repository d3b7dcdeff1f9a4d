"""A learner with its labels: built, copied, and what a file says of its backbone."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cldnet import CLDNetClassifier
from cldnet.data.labels import Inputs
from cldnet.estimator.model import Model, ModelParameters
from cldnet.nets import RandomReLU
from cldnet.storage.validation import empty_backbone

VECTORS = Inputs((4,), None, False, 1.0)


def structure(**changed: Any) -> ModelParameters:
    parameters = {"solver": "exact", "backbone": "auto", "capacity": 4, "embed_dim": 4, "input_shape": None}
    return ModelParameters(**{**parameters, "dtype": "float32", **changed})


def test_a_copy_of_a_model_learns_apart_and_is_built_from_the_same() -> None:
    made_from = structure(backbone=nn.Linear(4, 3))
    model = Model.build(made_from, {}, seed=0, inputs=VECTORS)
    twin = model.copy({"alpha": 2.0})
    twin.labels.learn(["a"])
    twin.learner.counters.fill_(7)
    assert len(model.labels) == 0
    assert model.learner.seen == 0
    assert model.learner.config.alpha == "gcv"
    assert twin.learner.config.alpha == 2.0
    assert twin.parameters is made_from


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_exact_solver_scores_in_float64_and_the_net_in_what_was_asked_for(dtype: str) -> None:
    wanted = {"exact": torch.float64, "hbo": getattr(torch, dtype)}
    for solver, expected in wanted.items():
        model = Model.build(structure(solver=solver, dtype=dtype), {}, seed=0, inputs=VECTORS)
        assert model.learner.setting.dtype == expected


def test_a_file_describes_a_map_by_its_kind_and_size() -> None:
    tensors = {f"features.{name}": each for name, each in RandomReLU((2, 3), 7, seed=0).state_dict().items()}
    described = {"kind": "random-relu", "input_shape": [2, 3], "options": {"features": 7}}
    backbone = empty_backbone(described, tensors)
    assert isinstance(backbone, RandomReLU)
    assert (backbone.input_shape, backbone.out_features, backbone.weight.is_meta) == ((2, 3), 8, True)
    with pytest.raises(ValueError, match=r"'features.weight' is .*, expected .*\(100000000, 7\)"):
        empty_backbone({**described, "options": {"features": 10**8}}, tensors)


def test_a_map_for_other_inputs_is_refused() -> None:
    made_from = structure(backbone=RandomReLU((5,), features=3, seed=0))
    with pytest.raises(ValueError, match=r"takes inputs of shape \(5,\), and X has \(4,\)"):
        Model.build(made_from, {}, seed=0, inputs=VECTORS)


def test_models_over_a_module_have_different_ids_if_their_inputs_are_scaled_differently() -> None:
    module = nn.Linear(4, 3)
    models = [Model.build(structure(backbone=module), {}, seed=0, inputs=VECTORS) for _ in range(3)]
    for model, factor in zip(models, (1.0, 1.0, 2.0), strict=True):
        model.learner.scale.set([0.0] * 4, [factor] * 4)  # type: ignore[union-attr]
    assert models[0].map_id == models[1].map_id != models[2].map_id
    assert models[0].exact.features.map_id == models[2].exact.features.map_id


def test_room_that_is_asked_for_again_and_again_is_noted_once_a_task() -> None:
    model = Model.build(structure(), {}, seed=0, inputs=VECTORS).with_size()
    for capacity in range(5, 20):
        model = model.extend(capacity)
    assert [(size.tasks, size.asked) for size in model.sizes.changes] == [(0, False), (0, True)]
    model.learner.counters[0] = 1
    model = model.extend(20).extend(21)
    assert [(size.tasks, size.asked) for size in model.sizes.changes] == [(0, False), (0, True), (1, True)]
    assert model.sizes.changes[-1].bytes == model.with_size().sizes.changes[-1].bytes
    assert model.sizes.constant


def test_only_the_exact_solver_keeps_sums() -> None:
    model = Model.build(structure(solver="hbo"), {}, seed=0, inputs=VECTORS)
    with pytest.raises(ValueError, match="solver='hbo' learns by gradient steps and keeps no sums"):
        _ = model.statistics


def test_the_id_of_a_users_own_module_is_a_digest_of_its_map_and_its_scaling() -> None:
    """Models in files are compared by it: it must never change."""
    net = torch.nn.Linear(4, 3)
    clf = CLDNetClassifier(backbone=net, capacity=3).fit(np.random.default_rng(0).normal(size=(30, 4)), [0, 1, 2] * 10)
    model = clf._fitted()
    digest = hashlib.sha256(model.exact.features.map_id.encode())
    for _, tensor in sorted(model.exact.scale.state_dict().items()):
        digest.update(tensor.numpy().tobytes())
    assert model.map_id == digest.hexdigest()[:16] != model.exact.features.map_id
    assert len(model.map_id) == 16
