"""What a model remembers of its first inputs."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from cldnet.data.rows import Inputs, Rows
from cldnet.labels import LabelTable


def test_what_is_known_of_inputs_goes_through_json() -> None:
    for inputs in (Inputs((3,), ("a", "b", "c"), False, 2.5), Inputs((3, 8, 8), None, True, 255.0)):
        assert Inputs.from_json(json.loads(json.dumps(inputs.to_json()))) == inputs


def test_rows_tell_what_to_remember() -> None:
    frame = pd.DataFrame([[1.0, -7.0], [0.0, 2.0]], columns=["a", "b"])
    rows = Rows.checked(frame, [0, 1], None, None, LabelTable(4))
    assert rows.inputs == Inputs((2,), ("a", "b"), False, 7.0)
    assert rows.inputs.count == 2
    pictures = Rows.checked(np.full((2, 4, 5), 9, np.uint8), [0, 1], None, None, LabelTable(4))
    assert pictures.inputs == Inputs((4, 5), None, True, 9.0)
    assert pictures.inputs.count == 20


def test_names_of_mixed_types_are_refused_before_anything_is_learned() -> None:
    frame = pd.DataFrame([[1.0, 2.0]], columns=["a", 1])
    with pytest.raises(TypeError, match="Feature names are only supported if all input features have string names"):
        Rows.checked(frame, [0], None, None, LabelTable(4))


def test_the_range_of_rows_that_are_no_images_is_free() -> None:
    Inputs((2,), None, False, 1.0).check(torch.full((3, 2), 1e6))
