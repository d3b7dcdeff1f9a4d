"""Constants that images are normalised by."""

from __future__ import annotations

import pytest
import torch

from cldnet.data.transforms import CONSTANTS, constants, standardised


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
        ("imagenett", (3, 8, 8), "should be first-task, image, one of half, mnist"),
        ("1:2:3", (3, 8, 8), "should be first-task"),
        ("imagenet", (28, 28), "has 3 means and 3 stds; the images have 1 channels"),
        ("half", (64,), "is for images"),
        ("image", (64,), "is for images"),
        ("0.1307:0.3081", (28, 28), "is for pixels from 0 to 1, but these are from 0 to 255"),
    ],
)
def test_what_cannot_be_is_refused(text: str, shape: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        constants(text, shape)


def test_each_image_gets_its_own_mean_and_std() -> None:
    images = torch.randint(0, 256, (5000, 3, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    images[7] = 9  # one that is constant
    found = standardised(images)
    flat = images.double().flatten(1)
    expected = (flat - flat.mean(1, keepdim=True)) / flat.std(1, correction=0, keepdim=True)
    expected[7] = 0
    torch.testing.assert_close(found, expected.float().reshape(found.shape), rtol=1e-5, atol=1e-5)
    assert torch.equal(found[:9], standardised(images[:9]))  # nothing is learned from other images
    torch.testing.assert_close(standardised(2.0 * images[:9] + 5), found[:9], rtol=1e-5, atol=1e-5)
