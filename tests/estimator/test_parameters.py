"""What a classifier's model is built from, and how its parameters become those of a method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cldnet import CLDNetClassifier
from cldnet.device import bearable_threads
from cldnet.estimator.model import ModelParameters, TrainingParameters, check_integer
from cldnet.methods.parts.alpha import ConstantAlpha


def structure(**changed: Any) -> ModelParameters:
    parameters = {"solver": "exact", "backbone": "auto", "capacity": 4, "embed_dim": 4, "input_shape": None}
    return ModelParameters(**{**parameters, "dtype": "float32", **changed})


def settings(**changed: Any) -> TrainingParameters:
    usual = {"epochs": 1, "batch_size": 16, "lr": 0.1, "alpha": "gcv", "n_threads": None, "verbose": 0}
    return TrainingParameters(**{**usual, **changed})


def test_a_number_for_alpha_is_the_projectors_constant_and_gcv_leaves_it_to_adapt() -> None:
    assert structure(solver="hbo").options(settings(alpha=2))["alpha"] == ConstantAlpha(2.0)
    assert "alpha" not in structure(solver="hbo").options(settings())


def test_a_structure_takes_a_list_for_a_shape_and_tells_what_changed() -> None:
    assert structure(input_shape=[2, 2]) == structure(input_shape=(2, 2))
    structure().check_unchanged(structure())
    for name, then, now in (("capacity", "4", 5), ("gram", "'full'", "diagonal")):
        with pytest.raises(ValueError, match=f"{name} was {then} when the model was made and is {now!r} now"):
            structure().check_unchanged(structure(**{name: now}))


@pytest.mark.parametrize("gram", ["full", "diagonal", 5, np.int64(5)])
def test_the_exact_solver_is_told_what_to_keep_and_in_what_to_multiply(gram: Any) -> None:
    options = structure(gram=gram, dtype="float64").options(settings(alpha=3))
    assert options == {"alpha": 3.0, "gram": gram, "products": "float64"}
    assert type(options["gram"]) in (str, int)


def test_settings_come_out_in_the_types_that_a_file_takes() -> None:
    given = {
        "epochs": np.int32(3),
        "batch_size": np.uint8(4),
        "lr": 10**30,
        "alpha": np.float32(2),
        "n_threads": np.int64(2),
    }
    plain = settings(**given, verbose=np.bool_(True))
    assert plain == settings(epochs=3, batch_size=4, lr=1e30, alpha=2.0, n_threads=2, verbose=1)
    assert [type(value) for value in vars(plain).values()] == [int, int, float, float, int, int]
    assert settings(alpha=10**30).alpha == 1e30
    assert type(settings(alpha=10**30).alpha) is float


MOST = bearable_threads(2**40)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"epochs": 10**30}, r"epochs=10{30} should be a whole number of at most 9223372036854775807"),
        ({"batch_size": 10**30}, r"batch_size=10{30} should be a whole number of at most"),
        ({"batch_size": 10**5000}, "batch_size=a number of thousands of digits should be a whole number of at most"),
        (
            {"n_threads": 10**6},
            f"n_threads=1000000 should be None or a whole number from 1 to {MOST}: more threads than",
        ),
        ({"n_threads": 20000}, "n_threads=20000 should be None or a whole number from 1 to"),
        ({"n_threads": 0}, "n_threads=0 should be None or a whole number from 1 to"),
        ({"n_threads": 2.0}, "n_threads=2.0 should be None or a whole number from 1 to"),
        ({"n_threads": True}, "n_threads=True should be None or a whole number from 1 to"),
        ({"lr": True}, "lr=True should be a positive number, 3e\\+38 at most"),
        ({"lr": 10**39}, r"lr=10{39} should be a positive number"),
        ({"lr": 1j}, "lr=1j should be a positive number"),
        ({"alpha": True}, "alpha=True should be 'gcv' or a positive number"),
        ({"alpha": 10**400}, "alpha=10*… should be 'gcv' or a positive number that a float can hold"),
        ({"alpha": math.inf}, "alpha=inf should be 'gcv' or a positive number"),
        ({"alpha": np.complex128(1)}, "alpha=.* should be 'gcv' or a positive number"),
        ({"alpha": np.ones(2)}, "alpha=array.* should be 'gcv' or a positive number"),
        ({"verbose": "x"}, "verbose='x' should be 0 .silent., 1 .one line per session"),
        ({"verbose": None}, "verbose=None should be 0 .silent."),
        ({"verbose": 1.0}, "verbose=1.0 should be 0 .silent."),
        ({"verbose": 10**30}, r"verbose=10{30} should be 0 .silent."),
    ],
)
def test_settings_that_cannot_be_are_refused_with_what_can(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        settings(**changed)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"capacity": 10**30}, r"capacity=10{30} should be a whole number of at most 9223372036854775807"),
        ({"embed_dim": 10**30}, r"embed_dim=10{30} should be a whole number of at most"),
        ({"gram": 10**30}, r"gram=10{30} should be a whole number of at most"),
        ({"input_shape": (10**30,)}, r"A side of input_shape=10{30} should be a whole number of at most"),
        (
            {"input_shape": (2**40, 2**40)},
            r"The product of the sides of input_shape=\d+ should be a whole number of at most",
        ),
    ],
)
def test_sizes_beyond_64_bits_are_refused(changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        structure(**changed)


def test_whole_numbers_have_a_first_and_a_last() -> None:
    check_integer("seed", 0, least=0)
    check_integer("seed", np.uint64(2**63 - 1))
    with pytest.raises(ValueError, match="seed=-1 should be a whole number of at least 0"):
        check_integer("seed", -1, least=0)
    with pytest.raises(
        ValueError, match="seed=9223372036854775808 should be a whole number of at most 9223372036854775807"
    ):
        check_integer("seed", 2**63)


def test_a_random_state_is_scikit_learns_or_refused_by_its_name() -> None:
    for bad in (-1, 2**32, 1.5, "abc", np.random.default_rng(0)):
        with pytest.raises(
            ValueError, match=r"^random_state=.* should be None, a whole number from 0 to 4294967295, or a"
        ):
            CLDNetClassifier(random_state=bad).fit([[0.0], [1.0]], [0, 1])
