"""Crop, flip and cutout of whole batches, against a slow reference that takes one image at a time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.data.transforms import Augment
from cldnet.device import generator

augments = st.builds(Augment, crop=st.integers(0, 3), flip=st.booleans(), cutout=st.integers(0, 3))


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator(seed))


class Draws(NamedTuple):
    crop: tuple[Tensor, Tensor] | None
    flip: Tensor | None
    cutout: tuple[Tensor, Tensor] | None


def drawn(x: Tensor, augment: Augment, source: torch.Generator) -> Draws:
    """The same random numbers that the class draws: those of the crop, then of the flip, then of the cutout."""

    def below(limit: int) -> Tensor:
        return torch.randint(limit, (len(x),), generator=source)

    height, width = x.shape[-2:]
    shifts = 2 * augment.crop + 1
    return Draws(
        crop=(below(shifts), below(shifts)) if augment.crop else None,
        flip=below(2) if augment.flip else None,
        cutout=(below(height), below(width)) if augment.cutout else None,
    )


def one_by_one(x: Tensor, draws: Draws, augment: Augment) -> Tensor:
    """What the class should do, pixel by pixel, with the same draws."""
    height, width = x.shape[-2:]
    result = torch.zeros_like(x)
    for number in range(len(x)):
        for row in range(height):
            for column in range(width):
                from_column = column
                if draws.cutout is not None:
                    inside = [
                        0 <= place - int(centre[number]) + augment.cutout // 2 < augment.cutout
                        for place, centre in zip((row, column), draws.cutout, strict=True)
                    ]
                    if all(inside):
                        continue
                if draws.flip is not None and draws.flip[number]:
                    from_column = width - 1 - column
                from_row = row
                if draws.crop is not None:
                    from_row += int(draws.crop[0][number]) - augment.crop
                    from_column += int(draws.crop[1][number]) - augment.crop
                if 0 <= from_row < height and 0 <= from_column < width:
                    result[number, ..., row, column] = x[number, ..., from_row, from_column]
    return result


@settings(deadline=None, max_examples=60)
@given(
    augment=augments,
    count=st.integers(1, 5),
    channels=st.sampled_from([None, 1, 3]),
    height=st.integers(4, 7),
    width=st.integers(4, 7),
    seed=st.integers(0, 2**31),
)
def test_a_batch_comes_out_as_image_by_image(
    augment: Augment, count: int, channels: int | None, height: int, width: int, seed: int
) -> None:
    x = images(count, *([] if channels is None else [channels]), height, width, seed=seed)
    before = x.clone()
    varied = augment(x, generator(seed))
    assert torch.equal(varied, one_by_one(x, drawn(x, augment, generator(seed)), augment))
    assert varied.dtype == torch.uint8
    assert varied.shape == x.shape
    assert torch.equal(x, before)
    assert varied.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("augment", [Augment(crop=2), Augment(flip=True), Augment(cutout=3), Augment(2, True, 3)])
def test_it_does_not_matter_how_the_images_lie_in_memory(augment: Augment) -> None:
    x = images(6, 3, 8, 7)
    expected = augment(x, generator(1))
    wide = images(12, 3, 8, 20)
    wide[::2, :, :, 5:12] = x
    for same in (x.to(memory_format=torch.channels_last), wide[::2, :, :, 5:12], x.transpose(2, 3).contiguous().mT):
        assert torch.equal(augment(same, generator(1)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_images_keep_their_number_type(dtype: torch.dtype) -> None:
    x, augment = images(5, 3, 6, 6), Augment(2, True, 3)
    varied = augment(x.to(dtype), generator(2))
    assert varied.dtype == dtype
    assert torch.equal(varied, augment(x, generator(2)).to(dtype))


def outcomes(augment: Augment, x: Tensor, count: int) -> Counter[bytes]:
    varied = augment(x.expand(count, *x.shape), generator(0))
    return Counter(image.numpy().tobytes() for image in varied)


def assert_even(found: Counter[bytes], kinds: int) -> None:
    """All outcomes came, none much more often than another: a chi-squared within five of its standard deviations."""
    mean = found.total() / kinds
    surplus = sum((count - mean) ** 2 / mean for count in found.values()) - (kinds - 1)
    assert len(found) == kinds
    assert abs(surplus) < 5 * (2 * (kinds - 1)) ** 0.5


def test_all_crops_and_flips_are_equally_likely_and_independent() -> None:
    assert_even(outcomes(Augment(crop=1, flip=True), images(5, 5), 9000), kinds=9 * 2)


def test_an_image_is_mirrored_in_half_of_the_cases() -> None:
    x = images(2, 4, 4)[0]
    found = outcomes(Augment(flip=True), x, 4000)
    assert set(found) == {x.numpy().tobytes(), x.flip(-1).numpy().tobytes()}
    assert_even(found, kinds=2)


def test_the_square_is_centred_on_every_pixel_as_often_and_clipped_at_the_border() -> None:
    found = outcomes(Augment(cutout=2), torch.ones(4, 5, dtype=torch.uint8), 8000)
    assert_even(found, kinds=20)
    holes = Counter(content.count(0) for content in found)
    assert holes == {4: 12, 2: 7, 1: 1}  # whole, cut by one border, cut by two


def test_all_chance_comes_from_the_source_and_nothing_from_elsewhere() -> None:
    x, augment = images(9, 3, 8, 8), Augment(3, True, 4)
    around, source = torch.get_rng_state(), generator(3)
    first, second = augment(x, source), augment(x, source)
    torch.rand(7)
    assert not torch.equal(first, second)
    assert torch.equal(augment(x, generator(3)), first)
    torch.set_rng_state(around)
    augment(x, source)
    assert torch.equal(torch.get_rng_state(), around)


def test_no_augmentation_draws_nothing_and_returns_a_copy() -> None:
    x, source = images(3, 4, 4), generator(0)
    before = source.get_state()
    copied = Augment()(x, source)
    assert torch.equal(copied, x)
    assert copied.data_ptr() != x.data_ptr()
    assert torch.equal(source.get_state(), before)


@given(augment=augments)
def test_text_and_json_give_the_same_augmentation_back(augment: Augment) -> None:
    assert Augment.from_text(str(augment)) == augment
    assert Augment(**json.loads(json.dumps(asdict(augment)))) == augment


def test_the_text_may_have_blanks_and_any_order() -> None:
    assert Augment.from_text(" cutout = 8,flip , crop=4") == Augment(4, True, 8)
    assert str(Augment(4, True, 8)) == "crop=4,flip,cutout=8"
    assert Augment.from_text("none") == Augment()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("flop", "There is no augmentation 'flop'. Did you mean 'flip'"),
        ("", "There is no augmentation ''. Known are crop, flip, cutout"),
        ("crop=4,none", "There is no augmentation 'none'"),
        ("crop", "'crop' is not an augmentation; write it as in 'crop=4,flip,cutout=8'"),
        ("crop=-1", "'crop=-1' is not an augmentation"),
        ("cutout=2.5", "'cutout=2.5' is not an augmentation"),
        ("cutout=²", "'cutout=²' is not an augmentation"),
        ("flip=1", "'flip=1' is not an augmentation"),
        ("flip,crop=2,flip", "'flip' appears twice in"),
    ],
)
def test_text_that_means_nothing_is_refused_with_a_sentence(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace(".", r"\.")):
        Augment.from_text(text)


@pytest.mark.parametrize("shape", [(4,), (5, 20), (2, 3, 3, 8, 8), (0, 8, 8)])
def test_only_images_are_augmented(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be augmented: only images can"):
        Augment(flip=True)(torch.zeros(shape), generator(0))


@pytest.mark.parametrize(("options", "name"), [({"crop": 5}, "crop=5"), ({"cutout": 6}, "cutout=6")])
def test_an_augmentation_that_could_leave_nothing_of_an_image_is_refused(options: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} could leave nothing of images of 5×9 pixels: use at most 4"):
        Augment(**options)(images(2, 5, 9), generator(0))
