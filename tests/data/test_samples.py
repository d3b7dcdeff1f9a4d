"""What a model remembers of its first inputs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cldnet.data.arrays import Samples, as_inputs
from cldnet.data.labels import Inputs, LabelTable


def test_what_is_known_of_inputs_goes_through_json() -> None:
    for inputs in (Inputs((3,), ("a", "b", "c"), False, 2.5), Inputs((3, 8, 8), None, True, 255.0)):
        assert Inputs.from_json(json.loads(json.dumps(inputs.to_json()))) == inputs


def test_rows_tell_what_to_remember() -> None:
    frame = pd.DataFrame([[1.0, -7.0], [0.0, 2.0]], columns=["a", "b"])
    rows = Samples.checked(frame, [0, 1], None, None, LabelTable(4))
    assert rows.inputs == Inputs((2,), ("a", "b"), False, 7.0)
    assert rows.inputs.count == 2
    pictures = Samples.checked(np.full((2, 4, 5), 9, np.uint8), [0, 1], None, None, LabelTable(4))
    assert pictures.inputs == Inputs((4, 5), None, True, 9.0)
    assert pictures.inputs.count == 20


def test_names_of_mixed_types_are_refused_before_anything_is_learned() -> None:
    frame = pd.DataFrame([[1.0, 2.0]], columns=["a", 1])
    with pytest.raises(TypeError, match="Feature names are only supported if all input features have string names"):
        Samples.checked(frame, [0], None, None, LabelTable(4))


def test_the_range_of_rows_that_are_no_images_is_free() -> None:
    Inputs((2,), None, False, 1.0).check(torch.full((3, 2), 1e6))


# -- the range of images -----------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)
PHOTOS = RANDOM.integers(0, 256, (20, 8, 8), dtype=np.uint8)
STROKES = np.where(RANDOM.random((20, 8, 8)) < 0.1, PHOTOS, 0).astype(np.uint8)  # most of it black, as handwriting is
STROKES[0, 0, 0] = 255


def inputs_of(images: Any) -> Inputs:
    return Samples.checked(images, np.zeros(len(images), dtype=int), None, None, LabelTable(4)).inputs


def standardised(images: Any, mean: float, deviation: float) -> Any:
    return (images / 255 - mean) / deviation


@pytest.mark.parametrize("bytes_", [PHOTOS, STROKES], ids=["photos", "strokes"])
@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (lambda x: x / 255, r"X lies between -1 and 1: bring X into the same range, for example X \* 255"),
        (lambda x: x / 127.5 - 1, "X lies between -1 and 1: bring X into the same range"),
        (lambda x: x > 100, "X lies between -1 and 1: bring X into the same range"),
        (lambda x: standardised(x, 0.5, 0.25), "X is centred, from -2 on: bring X into the same range, 0 to 255"),
        (
            lambda x: standardised(x, 0.1307, 0.3081),
            "X (is centred|has fractions).*: bring X into the same range, 0 to 255",
        ),
        (lambda x: standardised(x, 0.1, 0.25)[:1], "X (is centred|has fractions).*: bring X into the same range"),
        (lambda x: x - x.mean(), "X is centred.*with its mean not subtracted"),
        (lambda x: (x.astype(int) - 128).astype(np.int8), "X is centred, from -128 on"),
        (
            lambda x: np.log1p(x.astype(float)),
            r"X has fractions up to 5\.5.*: bring X into the same range, 0 to 255, neither",
        ),
        (
            lambda x: x.astype(np.uint16) * 257,
            "X has values up to 65535: bring X into the same range, 0 to 255, for example X /",
        ),
        (lambda x: x.astype(np.int64) * 16, "X has values up to 4080: bring X into the same range"),
        (lambda x: x * 100.0, "X has values up to 25500: bring X into the same range"),
        (lambda x: x * -100.0, "X has values up to 25500: bring X into the same range"),
    ],
)
def test_images_beside_the_range_of_uint8_are_refused(bytes_: Any, other: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^The model learned uint8 inputs with values up to 255 and {complaint}"):
        inputs_of(bytes_).check(as_inputs(other(bytes_)))


@pytest.mark.parametrize("bytes_", [PHOTOS, STROKES], ids=["photos", "strokes"])
@pytest.mark.parametrize(
    "same",
    [
        lambda x: x.astype(np.float16),
        lambda x: x.astype(np.float64),
        lambda x: x.astype(np.int64),
        lambda x: x * 0.0,
        lambda x: x[:1] * 0,
        lambda x: np.minimum(x, 1),
        lambda x: np.minimum(x, 3).astype(float),
        lambda x: np.minimum(x, 3).astype(int)[:1],
        lambda x: x * 1.5,
        lambda x: np.where(x == 0, -6.5, x + 7.25),  # a resized image swings beyond the edges
        lambda x: x + np.random.default_rng(0).normal(0, 25, x.shape),
        lambda x: (x[1:] / 2 + x[:-1] / 2)[:, :4, :4].repeat(2, 1).repeat(2, 2),
    ],
)
def test_images_in_the_range_of_uint8_are_taken_in_any_type_however_dark(bytes_: Any, same: Any) -> None:
    inputs_of(bytes_).check(as_inputs(same(bytes_)))


@pytest.mark.parametrize(
    ("first", "then", "complaint"),
    [
        (PHOTOS / 255, PHOTOS, r"float inputs with values up to 1 and X is uint8 with values up to 255: .* X / 255"),
        (
            PHOTOS / 255,
            PHOTOS * 1.0,
            r"float inputs with values up to 1 and X is float with values up to 255: .* X / 255",
        ),
        (PHOTOS / 255, np.minimum(PHOTOS, 2), "X is uint8 with values up to 2"),
        (PHOTOS * 1.0, PHOTOS / 255, "float inputs with values up to 255 and X lies between -1 and 1"),
        (PHOTOS * 257.0, PHOTOS, r"values up to 65535 and X is uint8, which ends at 255: .* for example X \* 257"),
    ],
)
def test_images_in_another_range_than_floats_were_are_refused(first: Any, then: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        inputs_of(first).check(as_inputs(then))


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (PHOTOS / 255, PHOTOS * 0),
        (PHOTOS / 255, np.minimum(PHOTOS, 1)),
        (PHOTOS / 255, PHOTOS / 255 + RANDOM.normal(0, 0.2, PHOTOS.shape)),
        (PHOTOS * 1.0, PHOTOS),
        (PHOTOS * 1.0, np.minimum(PHOTOS, 1)),
        (PHOTOS * 257.0, PHOTOS * 1.0),
        (PHOTOS % 17, (PHOTOS % 17) / 2),
        (np.minimum(PHOTOS, 1), PHOTOS / 255),
        (PHOTOS.reshape(20, -1), PHOTOS.reshape(20, -1) * 100.0),
        (PHOTOS.reshape(20, -1) % 2, PHOTOS.reshape(20, -1) - 99.5),
        (PHOTOS.reshape(20, -1) / 255, np.minimum(PHOTOS.reshape(20, -1), 3)),
    ],
)
def test_what_may_be_in_the_same_range_is_taken(first: Any, then: Any) -> None:
    inputs_of(first).check(as_inputs(then))


def test_other_shapes_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"expecting 3 features as input\. Give the columns that the model was trained with"
    ):
        Inputs((3,), None, False, 1.0).check(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"made for \(3, 3\)\. Reshape X, or train another model"):
        Inputs((3, 3), None, False, 1.0).check(torch.zeros(1, 9))


def test_rows_without_labels_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"requires y to be passed, but the target y is None\. Give a list, an array or a column"
    ):
        Samples.checked([[1.0]], None, None, None, LabelTable(4))
