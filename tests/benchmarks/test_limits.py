"""Operations are counted as they would be by hand, and shares are those of the machine's own products."""

from __future__ import annotations

import pytest
import torch
from benchmarks.speed import exact, parts, steps
from benchmarks.speed.limits import Counted, counted_operations, sgemm, shares
from torch import nn

from cldnet.nets.patches import WhitenedPatches


def test_products_are_counted_in_place_and_out_of_place():
    a, b, c = torch.rand(1, 3, 4), torch.rand(1, 4, 5), torch.zeros(1, 3, 5)

    def work():
        c.baddbmm_(a, b)
        c[0].addmm_(a[0], b[0])
        a @ b

    assert counted_operations(work) == 3 * 2 * 3 * 4 * 5


def test_a_step_without_hsic_is_counted_as_by_hand():
    """Forward, back to the layers' outputs, projected inputs and the gradients' products; the projector takes a mean."""
    x, y = steps.images(32)
    learner = steps.learner(steps.READINGS["alone"].config, x, y)
    batch = steps.Batch(x, y, None, 1, 10**6, 0)
    widths, outputs = (785, 401, 401), (400, 400, 1000)
    forward = sum(2 * 32 * (width - 1) * out for width, out in zip(widths, outputs, strict=True))
    back = sum(2 * 32 * (width - 1) * out for width, out in list(zip(widths, outputs, strict=True))[1:])
    classes = 2 * 2 * 32 * 1000 * 10  # logits and their way back
    projected = sum(2 * 32 * width**2 for width in widths)
    gradients = sum(2 * 32 * width * out for width, out in zip(widths, outputs, strict=True))
    learner.observe(batch)  # nothing is projected before the first row is absorbed
    one = sum(2 * 2 * 32 * width for width in widths)  # a row to subtract: the one that waits, and this batch's mean
    by_hand = forward + back + classes + projected + gradients + 2 * one
    assert counted_operations(lambda: learner.observe(batch)) == by_hand


def test_what_does_twice_the_operations_in_the_same_time_reaches_twice_the_share():
    work, done = sgemm(1e9)
    found = list(shares({"a": Counted("once", work, done), "b": Counted("twice", work, 2 * done, target=0.1)}, 1, 3))
    assert [finding.name for finding in found] == ["a/1", "b/1"]
    assert found[1].met
    assert all(f.details["operations"] == n for f, n in zip(found, (done, 2 * done), strict=True))
    assert 0.3 < found[1].ratio.median / found[0].ratio.median / 2 < 3  # a shared machine


def test_operations_that_are_skipped_are_told():
    work, done = sgemm(1e9)
    (found,) = shares({"a": Counted("half", work, 2 * done, skipped=0.5 * done)}, 1, 3)
    assert found.details["skipped"] == 0.5 * done
    assert found.details["ratio_without_skipped"] == pytest.approx(0.75 * found.ratio.median)
    (plain,) = shares({"a": Counted("all", work, done)}, 1, 3)
    assert "skipped" not in plain.details


def test_drawn_digits_have_as_many_flat_patches_as_mnist(tmp_path, monkeypatch):
    monkeypatch.setenv("CLDNET_DATA", str(tmp_path))
    kind, images = exact._digits(tmp_path, 3)
    assert kind == "drawn digits"
    assert exact.flat_share(images[:, None], 6) == pytest.approx(1 - 19**2 / 23**2)
    skipped = exact._features(tmp_path, quick=True)["exact/patches/digits"]
    assert skipped.skipped / skipped.operations == pytest.approx(1 - 19**2 / 23**2)


def test_a_patch_is_flat_if_all_of_its_pixels_in_all_channels_are_equal():
    images = torch.zeros(1, 2, 4, 4)
    images[0, 1] = 1
    assert exact.flat_share(images, 3) == 0
    images[0, 1] = 0
    images[0, 1, 3, 3] = 1
    assert exact.flat_share(images, 3) == 0.75


def test_operations_of_patch_features_are_those_of_their_convolution_and_pooling():
    features = WhitenedPatches((10, 10), 4, seed=0, size=3, windows=2, mirror=False)
    places = 8 * 8
    convolution = counted_operations(lambda: nn.functional.conv2d(torch.rand(2, 1, 10, 10), torch.rand(4, 1, 3, 3)))
    counted = exact.operations(features, 2)
    assert counted["filters"] == convolution
    assert counted["pooling"] == 2 * places * 4 * 2 * (
        2 * 4
    )  # images, places, windows, two operations, two-sided filters


def test_every_reading_takes_a_step_and_both_nets_are_among_the_parts():
    x, y = steps.images(16)
    for reading in steps.READINGS.values():
        steps.projected(reading.config, x, y)(x, y)
    assert {"limit/mlp/alone", "limit/cnn/alone"} <= set(parts._steps(quick=True))
