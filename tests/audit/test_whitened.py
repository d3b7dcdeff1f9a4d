"""A filter that is made of a single patch is found, though the whitening that is folded into it makes it look like none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import normalize

from cldnet.audit import Finding, compare
from cldnet.audit.whitened import whitenings
from cldnet.device import generator
from cldnet.fit import fit_task
from cldnet.methods import build_learner
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.nets import WhitenedPatches
from cldnet.nets.patch_parts import normalised, unfolded, whitening

DIGITS = load_digits()
IMAGES = torch.from_numpy(DIGITS.images.astype(np.uint8))
LABELS = torch.from_numpy(DIGITS.target)


def taught(first: int) -> tuple[Learner, WhitenedPatches, Tensor]:
    """A learner whose map was fitted on the first digits, and the images of these."""
    features = WhitenedPatches((8, 8), filters=30, size=4, windows=2, seed=0)
    learner = build_learner("exact", Setting((8, 8), capacity=10, seed=0), {}, features)
    early = first > LABELS
    for chosen in (early, ~early):
        if chosen.any():
            fit_task(learner, TaskData(IMAGES[chosen], LABELS[chosen]), epochs=1, batch_size=1024)
    return learner, features, IMAGES[early]


def as_filter(features: WhitenedPatches, images: Tensor, image: int) -> Tensor:
    """What `fit` would store for a cluster of one patch of an image."""
    white, mean = whitening(features._shown(images, generator(features.seed)))
    patch = normalised(unfolded(images[image][None].float(), features.size), features.floor)[12]
    return white @ normalize((patch - mean) @ white, dim=0)


def of_filters(learner: Learner, numbers: Tensor) -> list[Finding]:
    return [finding for finding in compare(learner, IMAGES, drawn=numbers) if finding.tensor == "features.filters"]


@pytest.mark.parametrize("first", [2, 5, 10])
def test_a_filter_of_one_whitened_patch_is_found_and_the_maps_own_are_not(first: int) -> None:
    learner, features, images = taught(first)
    early = (first > LABELS).nonzero()[:60, 0]
    assert "revealing" not in {finding.verdict for finding in of_filters(learner, early)}
    spoiled = as_filter(features, images, 7)
    features.offset[3] += ((features.filters[:, 3] - spoiled) * mean_of(features, images)).sum()
    features.filters[:, 3] = spoiled
    filters = of_filters(learner, early)
    found = max(filters, key=lambda finding: finding.cosine)
    assert (found.at, found.form) == (3, "column")
    # Of other images than those that the map was fitted on, the whitening is told less well.
    assert found.verdict in (("revealing",) if first == 10 else ("near", "revealing"))
    assert "whitened" in found.space
    plain = {finding.verdict for finding in filters if "whitened" not in finding.space}
    assert plain == {"clear"}  # it does not look like one


def mean_of(features: WhitenedPatches, images: Tensor) -> Tensor:
    return whitening(features._shown(images, generator(features.seed)))[1]


def test_the_filters_mend_what_other_images_get_wrong() -> None:
    _, features, images = taught(5)
    patch = unfolded(images[7][None].float(), 4)[12:13]
    stored = as_filter(features, images, 7)[None]
    by_images, by_filters = whitenings(features, IMAGES).values()  # of all digits
    near = [float((normalize(w.unfold(stored)) * normalize(w.whiten(patch))).sum()) for w in (by_images, by_filters)]
    assert near[0] < near[1]
    assert near[1] > 0.99


def test_images_that_show_nothing_tell_of_no_whitening() -> None:
    _, features, _ = taught(10)
    assert whitenings(features, torch.full((5, 8, 8), 9, dtype=torch.uint8)) == {}
