"""What a classifier's model is built from, and how its parameters become those of a method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cldnet.data.rows import Inputs
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.model import Model, Structure, solver_options

VECTORS = Inputs((4,), None, False, 1.0)


def structure(**changed: Any) -> Structure:
    parameters = {"solver": "exact", "backbone": "auto", "capacity": 4, "embed_dim": 4, "input_shape": None}
    return Structure(**{**parameters, "dtype": "float32", **changed})


def test_a_number_for_alpha_is_the_projectors_constant_and_gcv_leaves_it_to_adapt() -> None:
    assert solver_options(structure(solver="hbo"), lr=0.1, alpha=2)["alpha"] == ConstantAlpha(2.0)
    assert "alpha" not in solver_options(structure(solver="hbo"), lr=0.1, alpha="gcv")


def test_a_copy_of_a_model_learns_apart_and_is_built_from_the_same() -> None:
    made_from = structure(backbone=nn.Linear(4, 3))
    model = Model.build(made_from, {}, seed=0, inputs=VECTORS)
    twin = model.copy()
    twin.labels.learn(["a"])
    twin.learner.counters.fill_(7)
    assert len(model.labels) == 0
    assert model.learner.seen == 0
    assert twin.structure is made_from


def test_a_structure_takes_a_list_for_a_shape_and_tells_what_changed() -> None:
    assert structure(input_shape=[2, 2]) == structure(input_shape=(2, 2))
    structure().check_unchanged(structure())
    with pytest.raises(ValueError, match="capacity was 4 when the model was made and is 5 now"):
        structure().check_unchanged(structure(capacity=5))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_exact_solver_scores_in_float64_and_the_net_in_what_was_asked_for(dtype: str) -> None:
    wanted = {"exact": torch.float64, "hbo": getattr(torch, dtype)}
    for solver, expected in wanted.items():
        model = Model.build(structure(solver=solver, dtype=dtype), {}, seed=0, inputs=VECTORS)
        assert model.learner.setting.dtype == expected
