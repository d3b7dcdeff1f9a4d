"""What is written down beside accuracies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from cldnet.bench.preset import preset
from cldnet.bench.recording import RANK_THRESHOLD, Record, projector_ranks, tsne
from cldnet.bench.run import run
from cldnet.data.streams import split_digits
from cldnet.fit import fit_task
from cldnet.methods import build_learner
from cldnet.methods.learner import Setting

STREAM = split_digits(0)[:3]


def test_ranks_are_those_of_the_projectors_themselves() -> None:
    learner = build_learner("owm", Setting((8, 8), 10, 0), backbone_options={"widths": (12,)})
    fit_task(learner, STREAM[0].train, epochs=1, batch_size=32)
    ranks = projector_ranks(learner)
    for name, layer in zip(ranks, learner.projection.layers, strict=True):  # type: ignore[union-attr, arg-type]
        eigenvalues = torch.linalg.eigvalsh(layer.P)
        assert ranks[name]["rank"] == int((eigenvalues > RANK_THRESHOLD).sum())
        assert ranks[name]["trace"] == pytest.approx(float(eigenvalues.mean()))
        assert ranks[name]["width"] == eigenvalues.numel()


def test_room_shrinks_from_task_to_task_and_only_projecting_methods_tell() -> None:
    result = run(replace(preset("split-digits", "owm", 0), epochs=1), STREAM)
    traces = [[layer["trace"] for layer in task.values()] for task in result["ranks"]["tasks"]]
    assert len(traces) == 3
    assert all(now < before for earlier, later in pairwise(traces) for before, now in zip(earlier, later, strict=True))
    assert run(replace(preset("split-digits", "finetune", 0), epochs=1), STREAM)["ranks"] is None


def test_pictures_have_the_chosen_number_of_test_images_of_every_class_so_far() -> None:
    result = run(replace(preset("split-digits", "cldnet", 0), epochs=1), STREAM, record=Record(features=5))
    features = result["features"]
    assert features["classes"] == list(STREAM.class_order)
    for number, task in enumerate(features["tasks"], start=1):
        assert len(task["points"]) == len(task["rows"]) == 5 * 2 * number
        assert sorted(set(task["rows"])) == list(range(2 * number))


def test_tsne_keeps_apart_what_is_apart() -> None:
    blobs = (
        torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
        + 40 * torch.arange(60).div(30, rounding_mode="floor")[:, None]
    )
    points = torch.tensor(tsne(blobs, seed=0)[0])
    own = torch.cdist(points, points)
    nearest = own.fill_diagonal_(torch.inf).argmin(1)
    assert ((nearest < 30) == (torch.arange(60) < 30)).all()


def test_two_images_are_drawn_without_a_neighbourhood() -> None:
    assert tsne(torch.eye(2), seed=0) == ([[0.0, 0.0], [1.0, 0.0]], 0.0)


@pytest.mark.parametrize("method", ["joint", "pnn", "er", "finetune"])
def test_growth_that_was_declared_is_growth_that_was_measured(method: str) -> None:
    growth = run(replace(preset("split-digits", method, 0), epochs=1), STREAM)["growth"]
    assert growth["measured"][1:] == growth["declared"][1:]  # a replay buffer gets its room with the first task


@pytest.mark.parametrize("bad", [{"features": -1}, {"features": 1.5}, {"leaky": 1}])
def test_nonsense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="should be"):
        Record(**bad)  # type: ignore[arg-type]


def test_what_cannot_be_laid_out_is_not_drawn() -> None:
    assert tsne(torch.zeros(40, 5), seed=0) == ([], 0.0)  # scikit-learn would crash
    assert tsne(torch.full((40, 5), torch.nan), seed=0) == ([], 0.0)
    assert len(tsne(torch.arange(40.0)[:, None], seed=2**40)[0]) == 40  # vectors of one number
