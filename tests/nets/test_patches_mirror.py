"""Whitened patches choose whether to add mirror images: for what looks the same in a mirror, and not for characters."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from cldnet import CLDNetClassifier
from cldnet.device import generator, threads
from cldnet.math.ridge import leave_one_out_scores
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import WhitenedPatches, build_described
from cldnet.nets.patches import _draw_from_classes, chirality
from cldnet.storage.maps import load_map, save_map

SMALL = {"filters": 12, "size": 4, "windows": 2}


def digits(classes: int = 10, count: int = 400) -> tuple[Tensor, Tensor]:
    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    chosen = (y < classes).nonzero()[:count, 0]
    return x[chosen].reshape(-1, 8, 8), y[chosen]


def textures(classes: int = 3, count: int = 400, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Waves of a class's length, leaning to either side as often, at random places."""
    random, grid = generator(seed), torch.arange(12.0)
    y = torch.arange(count) % classes
    lean = torch.where(torch.rand(count, generator=random) < 0.5, -1.0, 1.0)
    phase, length = 6.28 * torch.rand(count, generator=random), 2.0 + 1.5 * y
    wave = (grid[:, None] + lean[:, None, None] * grid) * 6.28 / length[:, None, None] + phase[:, None, None]
    noise = torch.rand(count, 12, 12, generator=random)
    return (100 + 60 * wave.sin() + 60 * noise).to(torch.uint8), y


def fitted(data: tuple[Tensor, Tensor], weight: Tensor | None = None, **options: object) -> WhitenedPatches:
    x, y = data
    features = WhitenedPatches(tuple(x.shape[1:]), seed=0, **{**SMALL, **options})  # type: ignore[arg-type]
    features.fit(x, weight, y)
    return features


@pytest.mark.parametrize("classes", [1, 2, 10])
def test_characters_are_not_mirrored(classes: int) -> None:
    assert fitted(digits(classes)).options["mirror"] is False


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_what_looks_the_same_in_a_mirror_is_mirrored(classes: int) -> None:
    assert fitted(textures(classes)).options["mirror"] is True


def test_classes_that_are_mirror_images_of_each_other_are_not_mirrored() -> None:
    x, _ = digits()
    flipped = (
        torch.arange(len(x)) % 2 == 1
    )  # half of the images and half of their mirror images: together they are symmetric
    x[flipped] = x[flipped].flip(-1)
    assert fitted((x, flipped.long())).options["mirror"] is False
    assert fitted((x, torch.zeros(len(x), dtype=torch.int64))).options["mirror"] is True


def test_where_few_images_can_be_told_the_classes_decide() -> None:
    """Two classes of four have a bar on one side, and only the side tells which of them it is."""
    images, y = textures(4, 400)
    same = textures(1, 400, seed=5)[0]
    for number, columns in enumerate((slice(1, 4), slice(8, 11))):
        images[y == number] = same[y == number]
        images[y == number, :, columns] = 255
    plain = fitted((images, y), mirror=False)
    assert 0.5 < chirality(plain(images) - plain(images.flip(-1)), y) < 0.9
    assert fitted((images, y)).options["mirror"] is False


def test_each_image_is_left_out_together_with_its_mirror_image() -> None:
    random = generator(1)
    differences, y = torch.randn(12, 5, generator=random, dtype=torch.float64), torch.arange(12) % 2
    differences[:, 0] += 1.0
    told = 0
    scaled = differences / differences.square().mean(0).sqrt()
    alpha = leave_one_out_scores(scaled, torch.nn.functional.one_hot(y)).alpha
    for i in range(12):
        others = torch.arange(12) != i
        h = torch.cat([scaled[others], -scaled[others]])  # the images and their mirror images
        targets = torch.nn.functional.one_hot(y[others]).double()
        gram = h.T @ h + 2 * alpha * torch.eye(5, dtype=torch.float64)
        told += bool(scaled[i] @ torch.linalg.solve(gram, h.T @ torch.cat([targets, -targets]))[:, y[i]] > 0)
    assert chirality(differences, y) == told / 12


@pytest.mark.parametrize("data", [digits(), textures()], ids=["digits", "textures"])
def test_the_map_is_the_one_that_the_choice_would_have_given(data: tuple[Tensor, Tensor]) -> None:
    chosen = fitted(data)
    given = fitted(data, mirror=chosen.options["mirror"])
    assert chosen.map_id == given.map_id
    assert chosen.describe() == given.describe()
    assert torch.equal(chosen(data[0]), given(data[0]))
    with threads(2):
        assert fitted(data).map_id == chosen.map_id


def test_images_of_weight_zero_have_no_say() -> None:
    x, y = digits(2, 200)
    others = (x + 1).flip(-1)
    weight = (torch.arange(400) < 200).double()
    left_out = fitted((torch.cat([x, others]), torch.cat([y, y])), weight)
    assert left_out.map_id == fitted((x, y)).map_id
    assert left_out.options["mirror"] is False
    assert fitted((torch.cat([x, x.flip(-1)]), torch.cat([y, y]))).options["mirror"] is True


def test_without_classes_mirror_images_are_added() -> None:
    x, _ = digits()
    features = WhitenedPatches((8, 8), seed=0, **SMALL)  # type: ignore[arg-type]
    assert features.options["mirror"] == "auto"
    features.fit(x)
    assert features.options["mirror"] is True


def test_the_choice_is_logged_with_its_figures(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cldnet"):
        fitted(digits())
        fitted(textures())
    first, second = (record.message for record in caplog.records)
    assert first.startswith("Patches: mirror=False. 9")
    assert "of 400 images can be told from their mirror images." in first
    assert second.startswith("Patches: mirror=True.")
    assert "the squared error of their classes, left out, is" in second


def test_enough_images_of_each_class_are_drawn() -> None:
    y = torch.arange(3000) % 100
    drawn = _draw_from_classes(y, generator(0))
    assert len(drawn) == len(drawn.unique()) == 500
    assert y[drawn].bincount().unique().tolist() == [0, 20]
    few = torch.arange(3000) % 3 * 7
    assert few[_draw_from_classes(few, generator(0))].bincount()[::7].tolist() == [166, 166, 166]
    rare = torch.zeros(900, dtype=torch.int64)
    rare[:3] = 1
    assert rare[_draw_from_classes(rare, generator(0))].bincount().tolist() == [250, 3]
    assert len(_draw_from_classes(torch.zeros(30, dtype=torch.int64), generator(0))) == 30


@pytest.mark.parametrize("mirror", ["yes", None, 2])
def test_other_answers_are_refused(mirror: object) -> None:
    with pytest.raises(ValueError, match=r"mirror=.* should be True, False or 'auto'"):
        WhitenedPatches((8, 8), seed=0, mirror=mirror)  # type: ignore[arg-type]


def test_a_map_that_is_not_fitted_is_described_as_open() -> None:
    made = WhitenedPatches((12, 12), seed=0)
    again = build_described(made.describe())
    assert again.describe() == made.describe()
    assert again.options["mirror"] == "auto"


def test_tensors_alone_do_not_say_what_was_chosen() -> None:
    features = fitted(digits())
    other = WhitenedPatches((8, 8), seed=0, **SMALL)  # type: ignore[arg-type]
    other.load_state_dict(features.state_dict())
    with pytest.raises(ValueError, match=r"do not say whether it adds mirror images.*\*\*fitted.options"):
        other(digits()[0])


def test_the_choice_is_kept_in_files(tmp_path: Path) -> None:
    features = fitted(digits())
    save_map(features, tmp_path / "map")
    loaded = load_map(tmp_path / "map")
    assert loaded.map_id == features.map_id
    assert loaded.options["mirror"] is False


@pytest.mark.parametrize("named", [True, False])
def test_a_classifier_chooses_by_its_first_call_and_keeps_it_in_files(named: bool, tmp_path: Path) -> None:
    x, y = (part.numpy() for part in digits(count=1400))
    if named:  # 200 filters of 6×6 are too large for digits of 8×8
        x = np.kron(x, np.ones((2, 2)))
    backbone = "patches" if named else WhitenedPatches((8, 8), seed=0, **SMALL)  # type: ignore[arg-type]
    clf = CLDNetClassifier(backbone=backbone, alpha=1e4, random_state=0)
    clf.partial_fit(x[y < 2], y[y < 2]).partial_fit(x[y == 2], y[y == 2])
    assert clf.feature_map_.options["mirror"] is False
    if isinstance(backbone, WhitenedPatches):
        assert backbone.options["mirror"] == "auto"  # the user's own is left as it is
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded.feature_map_.map_id == clf.feature_map_.map_id
    assert np.array_equal(loaded.decision_function(x[:50]), clf.decision_function(x[:50]))


class Taught(WhitenedPatches):
    """A user's map that takes labels."""

    uses_labels = True

    def fit(self, x: Tensor, weight: Tensor | None = None, y: Tensor | None = None) -> None:
        super().fit(x, weight, y)
        self.seen = y


class Old(WhitenedPatches):
    """A user's map of before there were labels."""

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        super().fit(x, weight)


@pytest.mark.parametrize("method", ["exact", "slda"])
def test_maps_get_the_classes_of_the_first_task_if_they_use_them(method: str) -> None:
    x, y = digits(3, 200)
    for kind in (Taught, Old):
        features = kind((8, 8), seed=0, **SMALL)  # type: ignore[arg-type]
        learner = build_learner(method, Setting((8, 8), 4, seed=0), {}, features)
        fit_task(learner, TaskData(x, y), epochs=1, batch_size=64)
        assert features.options["mirror"] is isinstance(features, Old)
        if isinstance(features, Taught):
            assert features.seen is not None
            assert torch.equal(features.seen, y)
