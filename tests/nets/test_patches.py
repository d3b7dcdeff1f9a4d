"""Whitened patches: each image by itself, against a slow formula; flat patches; filters that are nobody's patch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from cldnet.device import generator, threads
from cldnet.nets import patches
from cldnet.nets.patches import LEAST_PATCHES, WhitenedPatches, unfolded


def pictures(count=60, shape=(3, 12, 12), seed=0):
    """Smooth random images in bytes: coarse noise with fine noise on top."""
    coarse = torch.rand(count, shape[0], 4, 4, generator=generator(seed))
    smooth = torch.nn.functional.interpolate(coarse, shape[1:], mode="bilinear", align_corners=True)
    fine = 0.2 * torch.rand(count, *shape, generator=generator(seed + 1))
    return (255 * (smooth + fine) / 1.2).to(torch.uint8)


def fitted(shape=(3, 12, 12), images=None, **options):
    options = {"filters": 10, "size": 5, **options}
    features = WhitenedPatches(shape, seed=0, **options)
    features.fit(pictures(shape=shape) if images is None else images)
    return features


def slow_features(features, image):
    """The definition, one patch and one window at a time, in float64."""
    image = np.asarray(image, dtype=np.float64)
    size, threshold, windows = features.size, features.threshold, features.windows
    rows, columns = image.shape[1] - size + 1, image.shape[2] - size + 1
    filters, offset = features.filters.double().numpy(), features.offset.double().numpy()
    total = np.zeros((2, windows, windows, filters.shape[1]))
    for view in (image, image[:, :, ::-1]) if features.mirror else (image,):
        for vertical in range(windows):
            for horizontal in range(windows):
                weight_sum, pooled = 0.0, np.zeros((2, filters.shape[1]))
                for r in range(rows):
                    for c in range(columns):
                        weight = max(0, 1 - abs(r - ((vertical + 0.5) * rows / windows - 0.5)) * windows / rows)
                        weight *= max(
                            0, 1 - abs(c - ((horizontal + 0.5) * columns / windows - 0.5)) * windows / columns
                        )
                        patch = view[:, r : r + size, c : c + size].ravel()
                        patch = patch - patch.mean()
                        patch = patch / np.sqrt((patch**2).mean() + float(features.floor))
                        response = patch @ filters + offset
                        pooled[0] += weight * np.maximum(response, threshold)
                        pooled[1] += weight * np.minimum(response, -threshold)
                        weight_sum += weight
                total[:, vertical, horizontal] += pooled / weight_sum
    return (total.reshape(-1) - features.mean.double().numpy()) / features.spread.double().numpy() * 127 / 5


@pytest.mark.parametrize("mirror", [True, False])
def test_features_are_those_of_the_slow_formula(mirror):
    features = fitted(mirror=mirror)
    for image in pictures(3, seed=7):
        found = features(image[None])[0]
        assert found[-1] == 127
        wanted = np.clip(slow_features(features, image), -127, 127)
        assert np.abs(found[:-1].numpy() - wanted).max() < 0.51


#: Places at once: a few small images together, then an image of 8 × 8 places in one piece, and in bands.
PLACES = (1024, 64, 10)


@pytest.fixture(scope="module")
def maps():
    """Two maps of the same filters: with and without the mirror image."""
    return {mirror: fitted(mirror=mirror) for mirror in (True, False)}


def drawn(kind, flat, brightness, seed):
    """Images that are flat outside, or inside, of a rectangle; all over; or all over but for one pixel."""
    image, (top, bottom), (left, right) = pictures(1, seed=seed)[0], *flat
    if kind == "inside":
        image[:, top:bottom, left:right] = brightness
        return image
    canvas = torch.full_like(image, brightness)
    if kind == "outside":
        canvas[:, top:bottom, left:right] = image[:, top:bottom, left:right]
    if kind == "pixel":
        canvas[seed % 3, top, left] = 255 - brightness
    return canvas


_side = st.tuples(st.integers(0, 11), st.integers(1, 12))


@pytest.mark.parametrize("places", PLACES)
@given(
    st.lists(
        st.builds(
            drawn,
            st.sampled_from(["inside", "outside", "pixel", "flat"]),
            st.tuples(_side, _side),
            st.integers(0, 127),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_flat_patches_count_as_the_slow_formula_counts_them(maps, places, images, mirror):
    features = maps[mirror]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches, "PLACES_AT_ONCE", places)
        found = features.predict_features(torch.stack(images))
    wanted = np.stack([np.clip(slow_features(features, image), -127, 127) for image in images])
    assert np.abs(found[:, :-1].numpy() - wanted).max() < 0.01


@pytest.mark.parametrize("places", PLACES)
def test_flat_patches_do_not_change_the_images_beside_them(monkeypatch, places, maps):
    monkeypatch.setattr(patches, "PLACES_AT_ONCE", places)
    images = pictures(40, seed=5)
    images[::3, :, :, 4:] = 9
    images[6] = 0
    together = maps[True](images)
    assert torch.equal(torch.cat([maps[True](image[None]) for image in images]), together)
    assert torch.equal(maps[True](images.flip(0)).flip(0), together)
    with threads(2):
        assert torch.equal(maps[True](images), together)


def test_flat_patches_of_large_images_cost_no_products():
    features = fitted((28, 28), pictures(60, (1, 28, 28))[:, 0], mirror=False)
    image = pictures(1, (1, 28, 28))[0]
    half = image.clone()
    half[:, :, 14:] = 0
    done = []
    for x in (image, half, torch.zeros_like(image)):
        with FlopCounterMode(display=False) as counter:
            features(x)
        done.append(counter.get_total_flops())
    places, length, count = 24 * 24, 25, 10
    assert done[0] == 2 * places * length * count
    # A patch is not flat as long as one of its columns is left of column 14; then there are the shares of the flat ones.
    assert done[1] == 2 * 24 * 14 * length * count + 2 * 9 * places
    assert done[2] == 2 * 9 * places


@pytest.mark.parametrize("places", PLACES)
def test_a_patch_with_nan_is_not_taken_for_a_flat_one(monkeypatch, places, maps):
    monkeypatch.setattr(patches, "PLACES_AT_ONCE", places)
    images = torch.zeros(2, 3, 12, 12)
    images[1, 0, 3, 3] = float("nan")
    found = maps[False].predict_features(images)[:, :-1]
    assert found[0].isfinite().all()
    assert found[1].isnan().any()


@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (1, 8, 5), (3, 5, 5)])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_patches_are_cut_out_row_by_row(shape, size):
    images = torch.rand(shape, generator=generator(0))
    rows, columns = shape[-2] - size + 1, shape[-1] - size + 1
    for number, (r, c) in enumerate(np.ndindex(rows, columns)):
        wanted = images[..., r : r + size, c : c + size].flatten(-3)
        assert torch.equal(unfolded(images, size)[..., number, :], wanted)


def test_features_are_whole_numbers_that_fit_eight_bits():
    h = fitted()(pictures(40, seed=3))
    assert torch.equal(h, h.round())
    assert float(h.abs().max()) <= 127
    assert float(h[:, :-1].std()) > 15  # about a fifth of the range: neither cut off nor lost in rounding


def test_what_is_learned_is_what_is_asked_about_rounded():
    features, images = fitted(), pictures(40, seed=3)
    assert torch.equal(features.predict_features(images).round(), features(images))
    assert not torch.equal(features.predict_features(images), features(images))


def test_an_images_features_do_not_depend_on_the_images_beside_it_nor_on_threads():
    features, images = fitted(), pictures(50, seed=5)
    together = features(images)
    assert torch.equal(torch.cat([features(image[None]) for image in images]), together)
    assert torch.equal(features(images.flip(0)).flip(0), together)
    for count in (1, 2, 3):
        with threads(count):
            assert torch.equal(features(images), together)
            assert torch.get_num_threads() == count


def test_mirror_images_look_the_same_if_asked_for():
    images = pictures(20, seed=5)
    for mirror in (True, False):
        features = fitted(mirror=mirror)
        difference = (features(images) - features(images.flip(3))).abs().max()
        assert difference <= 1 if mirror else difference > 20


def test_brightness_and_contrast_of_all_images_do_not_matter():
    images = pictures(80).double()
    bytes_, fractions = fitted(images=images), fitted(images=images / 255)
    torch.testing.assert_close(bytes_(images[:9]), fractions(images[:9] / 255), rtol=0, atol=2)


def test_fitting_on_any_number_of_threads_gives_the_same_map():
    images = pictures(300, (1, 28, 28))[:, 0]
    ids = []
    for count in (1, 2, 3):
        with threads(count):
            ids.append(fitted((28, 28), images, filters=50).map_id)
    assert len({*ids}) == 1


def test_inference_mode_does_not_matter_to_threads():
    features, images = fitted(), pictures(40, seed=5)
    with threads(2), torch.inference_mode():
        inside = features(images.clone())
    assert torch.equal(inside, features(images))


def test_large_images_are_worked_on_in_bands(monkeypatch):
    features, images = fitted(), pictures(5, seed=5)
    whole = features(images)
    monkeypatch.setattr(patches, "PLACES_AT_ONCE", 10)
    assert float((features(images) - whole).abs().max()) <= 1


@pytest.mark.parametrize("options", [{"threshold": 0.5}, {"mirror": False}])
def test_settings_are_part_of_the_id(options):
    features = fitted()
    other = WhitenedPatches((3, 12, 12), **{**features.options, **options}, seed=0)
    other.load_state_dict(features.state_dict())
    assert other.map_id != features.map_id


def test_a_map_without_filters_says_so():
    with pytest.raises(ValueError, match="no filters yet"):
        WhitenedPatches((3, 12, 12), seed=0)(pictures(2))


@pytest.mark.parametrize("options", [{"filters": 0}, {"filters": 10**9}, {"size": 2.5}, {"threshold": -1.0}])
def test_sizes_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match=r"should be|too much memory"):
        WhitenedPatches((3, 12, 12), seed=0, **options)


def test_units_do_not_matter_however_small():
    images = pictures(80).double()
    tiny = fitted(images=images * 1e-9)
    torch.testing.assert_close(tiny(images[:9] * 1e-9), fitted(images=images)(images[:9]), rtol=0, atol=2)


def test_no_filter_is_a_training_patch():
    images = pictures(200)
    features = fitted(images=images, filters=40)
    patches = images.double().unfold(2, 5, 1).unfold(3, 5, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 75)
    patches -= patches.mean(1, keepdim=True)
    cosine = torch.nn.functional.normalize(patches) @ torch.nn.functional.normalize(features.filters.double().T).T
    assert float(cosine.abs().max()) < 0.99


def test_the_same_seed_gives_the_same_map_and_another_one_another():
    images = pictures()
    ids = []
    for seed in (0, 0, 1):
        features = WhitenedPatches((3, 12, 12), filters=5, seed=seed)
        features.fit(images)
        ids.append(features.map_id)
    assert ids[0] == ids[1] != ids[2]


def test_weights_of_zero_leave_an_image_out():
    images = pictures(90)
    left_out = fitted(images=images[:60])
    features = WhitenedPatches((3, 12, 12), filters=10, size=5, seed=0)
    features.fit(images, (torch.arange(90) < 60).float())
    assert features.map_id == left_out.map_id


def test_grey_images_come_with_or_without_a_channel():
    grey = pictures(80, (1, 14, 10))
    with_channel, without = fitted((1, 14, 10), grey), fitted((14, 10), grey[:, 0])
    assert torch.equal(with_channel(grey[:4]), without(grey[:4, 0]))


def test_filters_need_patches_enough():
    features = WhitenedPatches((3, 12, 12), filters=100, seed=0)
    assert features.min_rows == -(-LEAST_PATCHES * 100 // 49)
    with pytest.raises(ValueError, match=r"10,000 patches that are not flat.*fewer filters"):
        features.fit(torch.full((300, 3, 12, 12), 7, dtype=torch.uint8))


@pytest.mark.parametrize(("shape", "match"), [((64,), "for images"), ((8, 5), "too small")])
def test_what_is_no_image_is_refused(shape, match):
    with pytest.raises(ValueError, match=match):
        WhitenedPatches(shape, seed=0)


def test_flat_images_and_images_beyond_the_fitted_range_give_finite_features():
    features = fitted()
    odd = torch.stack([torch.zeros(3, 12, 12), torch.full((3, 12, 12), 255.0), 1e6 * torch.eye(12).repeat(3, 1, 1)])
    assert torch.isfinite(features(odd)).all()
