"""What a classifier's model is built from, and how its parameters become those of a method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.structure import Structure, solver_options


def structure(**changed: Any) -> Structure:
    parameters = {"solver": "exact", "backbone": "auto", "capacity": 4, "embed_dim": 4, "input_shape": None}
    return Structure(**{**parameters, "dtype": "float32", **changed})


def test_a_number_for_alpha_is_the_projectors_constant_and_gcv_leaves_it_to_adapt() -> None:
    assert solver_options(structure(solver="hbo"), lr=0.1, alpha=2)["alpha"] == ConstantAlpha(2.0)
    assert "alpha" not in solver_options(structure(solver="hbo"), lr=0.1, alpha="gcv")


def test_a_structure_takes_a_list_for_a_shape_and_tells_what_changed() -> None:
    assert structure(input_shape=[2, 2]) == structure(input_shape=(2, 2))
    structure().check_unchanged(structure())
    for name, then, now in (("capacity", "4", 5), ("gram", "'full'", "diagonal")):
        with pytest.raises(ValueError, match=f"{name} was {then} when the model was made and is {now!r} now"):
            structure().check_unchanged(structure(**{name: now}))


@pytest.mark.parametrize("gram", ["full", "diagonal", 5, np.int64(5)])
def test_the_exact_solver_is_told_what_to_keep_and_in_what_to_multiply(gram: Any) -> None:
    options = solver_options(structure(gram=gram, dtype="float64"), lr=0.1, alpha=3)
    assert options == {"alpha": 3.0, "gram": gram, "products": "float64"}
    assert type(options["gram"]) in (str, int)
