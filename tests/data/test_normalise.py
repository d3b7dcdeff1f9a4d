"""Constants that images are normalised by."""

from __future__ import annotations

import pytest

from cldnet.data.transforms import CONSTANTS, constants


def test_the_first_tasks_statistics_are_no_constants() -> None:
    assert constants("first-task", (3, 8, 8)) is None
    assert constants("first-task", (8,)) is None


def test_constants_are_given_by_name_or_by_number() -> None:
    assert constants("cifar-10", (3, 32, 32)) == CONSTANTS["cifar-10"]
    assert constants("1+2+3:4+5+6", (3, 8, 8)) == ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))
    assert constants("10:20", (3, 8, 8)) == ((10.0,) * 3, (20.0,) * 3)


@pytest.mark.parametrize(
    ("text", "shape", "complaint"),
    [
        ("imagenett", (3, 8, 8), "should be first-task, one of half, mnist"),
        ("1:2:3", (3, 8, 8), "should be first-task"),
        ("imagenet", (28, 28), "has 3 means and 3 stds; the images have 1 channels"),
        ("half", (64,), "is for images"),
        ("0.1307:0.3081", (28, 28), "is for pixels from 0 to 1, but these are from 0 to 255"),
    ],
)
def test_what_cannot_be_is_refused(text: str, shape: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        constants(text, shape)
