"""Views of images: worked examples, and the shares in which they are drawn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cldnet.data.views import RandomView, grey_images, half_turned, resized_crop, turned, variants
from cldnet.device import generator

IMAGE = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])


def crop(images: Tensor, *numbers: float) -> Tensor:
    return resized_crop(images, *(torch.full((len(images),), number) for number in numbers))


def test_a_crop_of_everything_is_the_image_and_a_quarter_is_enlarged() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    torch.testing.assert_close(crop(image, 0, 0, 1, 1), image)
    # The upper right quarter has the pixels 2 3 / 6 7. Doubled, its own pixels lie at a quarter and three quarters.
    columns = torch.tensor([1.75, 2.25, 2.75, 3.0])  # the outermost lies beyond the last pixel's centre, at the border
    rows = torch.tensor([0.0, 0.25, 0.75, 1.25])
    torch.testing.assert_close(crop(image, 0.5, 0, 0.5, 0.5)[0, 0], 4 * rows.unsqueeze(1) + columns)


def test_a_crop_may_be_wider_than_high() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    rows = torch.tensor([1.625, 1.875, 2.125, 2.375])  # the third row, four times as fine
    torch.testing.assert_close(crop(image, 0, 0.5, 1, 0.25)[0, 0], 4 * rows.unsqueeze(1) + torch.arange(4.0))


def test_grey_is_luma_in_every_channel() -> None:
    image = torch.tensor([1.0, 10.0, 100.0]).reshape(1, 3, 1, 1)
    torch.testing.assert_close(grey_images(image).flatten(), torch.full((3,), 0.299 + 5.87 + 11.4))


def test_images_turn_left_and_keep_their_shape() -> None:
    assert [view[0].tolist() for view in turned(IMAGE, 4)] == [
        [[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]
    ]  # fmt: skip
    wide = torch.tensor([[[1, 2, 3]]])
    assert [view[0].tolist() for view in turned(wide, 4)] == [[[1, 2, 3]], [[3, 2, 1]]]


def test_halves_turn_on_their_own_and_a_middle_column_stays() -> None:
    image = torch.tensor([[[1, 2, 0, 5, 6], [3, 4, 9, 7, 8]]])
    assert [view[0].tolist() for view in half_turned(image, 4)] == [
        [[1, 2, 0, 5, 6], [3, 4, 9, 7, 8]],
        [[1, 2, 0, 8, 7], [3, 4, 9, 6, 5]],
        [[4, 3, 0, 8, 7], [2, 1, 9, 6, 5]],
        [[4, 3, 0, 5, 6], [2, 1, 9, 7, 8]],
    ]
    assert len(half_turned(image, 2)) == 2


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 3, 4, 4)])
def test_variants_combine_both_turns_and_begin_with_the_batch(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=generator(0))
    every = variants(x, 4, 4)
    assert every.shape == (32, *shape[1:])
    assert torch.equal(every[:2], x)
    assert torch.equal(every[2:4], half_turned(x, 4)[1]), "inner variants come first"
    assert torch.equal(every[8:16], torch.rot90(every[:8], 1, (-2, -1)))
    assert len({tuple(view.flatten().tolist()) for view in every}) == 32, "all variants differ"
    assert torch.equal(variants(x, 1, 1), x)


def test_vectors_have_no_views() -> None:
    x = torch.randn(5, 6, generator=generator(0))
    source = generator(1)
    assert torch.equal(RandomView()(x, source), x)
    assert torch.equal(variants(x, 4, 4), x)


def test_half_of_the_views_are_mirrored_and_a_quarter_grey() -> None:
    images = torch.rand(3, 4, 4, generator=generator(0)).expand(2000, 3, 4, 4).clone()
    views = RandomView(scale=1.0)(images, generator(1))
    grey = (views[:, 0] == views[:, 1]).all((1, 2)) & (views[:, 1] == views[:, 2]).all((1, 2))
    assert float(grey.double().mean()) == pytest.approx(0.25, abs=0.03)
    ramp = torch.arange(4.0).expand(2000, 4, 4).clone()
    rising = RandomView(scale=1.0)(ramp, generator(1))
    assert float((rising[:, 0, 0] > rising[:, 0, 3]).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_crops_have_the_areas_and_shapes_that_they_should() -> None:
    size, x = 64, torch.zeros(400, 2, 64, 64)
    x[:, 0], x[:, 1] = torch.arange(64.0), torch.arange(64.0).unsqueeze(1)  # each pixel knows its place
    views = RandomView(scale=0.3)(x, generator(0))
    middle = size // 2
    width = (views[:, 0, middle, middle + 1] - views[:, 0, middle, middle]).abs()  # the step by which a crop samples
    height = views[:, 1, middle + 1, middle] - views[:, 1, middle, middle]
    area, ratio = width * height, width / height
    assert float(area.min()) > 0.28
    assert float(area.max()) <= 1.001
    assert float(area.mean()) == pytest.approx(0.63, abs=0.05)
    assert 0.74 < float(ratio.min()) < 0.8
    assert 1.25 < float(ratio.max()) < 1.35
    assert float(views.min()) >= 0
    assert float(views.max()) <= size - 1
    for axis in (0, 1):
        places = views[:, axis].flatten(1)
        inside = (places.amin(1) > 1) & (places.amax(1) < size - 2)
        assert float(inside.double().mean()) > 0.3, "most small crops touch no border"


@pytest.mark.parametrize("shape", [(3, 5, 5), (3, 1, 5, 5), (3, 3, 6, 4)])
def test_views_keep_shape_and_type_and_leave_their_input_alone(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=generator(0))
    before = x.clone()
    views = [RandomView()(x, generator(seed)) for seed in (1, 1, 2)]
    assert torch.equal(x, before)
    assert (views[0].shape, views[0].dtype) == (x.shape, x.dtype)
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])
