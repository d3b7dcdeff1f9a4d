"""A session that was interrupted: it goes on from its file and ends in the bits of one that was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cldnet.midway
import cldnet.store as store
from cldnet import CLDNetClassifier
from cldnet.fit import Midway, fit_task
from cldnet.methods import build_learner
from cldnet.methods.learner import Setting, TaskData

Y = np.arange(60) % 3
X = np.random.default_rng(0).normal(size=(60, 6)) + 3 * Y[:, None]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 5))


def make(**parameters: Any) -> CLDNetClassifier:
    small = {"capacity": 8, "embed_dim": 8, "epochs": 3, "batch_size": 8, "random_state": 0, "n_threads": 1}
    return CLDNetClassifier("hbo", net(), **{**small, **parameters})


class PowerCutError(BaseException):
    """The process is gone."""


@pytest.fixture
def power_cut_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Cut the power after the n-th step from now on; 0: never again."""
    write = cldnet.midway.MidwayFile.__call__
    left = [0]

    def step(self: cldnet.midway.MidwayFile, midway: Callable[[], Midway]) -> None:
        write(self, midway)
        left[0] -= 1
        if left[0] == 0:
            raise PowerCutError

    monkeypatch.setattr(cldnet.midway.MidwayFile, "__call__", step)

    def cut(steps: int) -> None:
        left[0] = steps

    return cut


@pytest.mark.parametrize("steps", [1, 7, 8, 20])
def test_an_interrupted_session_ends_in_the_same_bits(
    steps: int, power_cut_after: Callable[[int], None], tmp_path: Path
) -> None:
    straight = make().partial_fit(X, Y)
    straight.save(tmp_path / "model")
    straight.partial_fit(X[:50], Y[:50] + 3)
    for cut in (steps, 2, 0):  # interrupted twice
        power_cut_after(cut)
        clf = CLDNetClassifier.load(tmp_path / "model", backbone=net())
        try:
            with clf.session(tmp_path / "work", every=0):
                clf.partial_fit(X[:20], Y[:20] + 3)
                clf.partial_fit(X[20:50], Y[20:50] + 3)
        except PowerCutError:
            assert (tmp_path / "work").exists()
    assert not (tmp_path / "work").exists()
    assert straight._model is not None
    assert clf._model is not None
    one, other = straight._model.learner.state_dict(), clf._model.learner.state_dict()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert np.array_equal(clf.decision_function(X), straight.decision_function(X))


def test_the_first_session_can_be_gone_on_with_too(power_cut_after: Callable[[int], None], tmp_path: Path) -> None:
    for cut in (5, 0):
        power_cut_after(cut)
        clf = make()
        try:
            with clf.session(tmp_path / "work", every=0):
                clf.partial_fit(X, Y)
        except PowerCutError:
            continue
    assert np.array_equal(clf.decision_function(X), make().partial_fit(X, Y).decision_function(X))


CHANGES: dict[str, dict[str, Any]] = {
    "other data": {"x": X + 1e-9},
    "other labels": {"y": np.sort(Y)},
    "other settings": {"lr": 6.5},
    "another budget": {"epochs": 4},
    "another seed": {"random_state": 1},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_another_session_is_refused(
    change: str, power_cut_after: Callable[[int], None], tmp_path: Path
) -> None:
    power_cut_after(3)
    clf = make()
    with pytest.raises(PowerCutError), clf.session(tmp_path / "work", every=0):
        clf.partial_fit(X, Y)
    changed = dict(CHANGES[change])
    x, y = changed.pop("x", X), changed.pop("y", Y)
    other = make(**changed)
    with pytest.raises(ValueError, match="belongs to another session"), other.session(tmp_path / "work"):
        other.partial_fit(x, y)
    assert not hasattr(other, "classes_")


@pytest.mark.parametrize("method", ["exact", "slda", "crnet"])
def test_methods_of_one_pass_go_on_midway_too(method: str) -> None:
    # Their steps are large, so the tasks of check_learner have only one, and nothing to go on from.
    learner = build_learner(method, Setting((6,), capacity=3, seed=0))
    x, y = torch.from_numpy(np.tile(X, (60, 1))), torch.from_numpy(np.tile(Y, 60))
    task, midways = TaskData(x + torch.linspace(0, 1, len(x))[:, None], y), list[Midway]()
    fit_task(learner, task, epochs=1, batch_size=8, on_midway=lambda midway: midways.append(midway()))
    assert midways
    for midway in midways:
        resumed = build_learner(method, Setting((6,), capacity=3, seed=0))
        fit_task(resumed, task, epochs=1, batch_size=8, midway=midway)
        one, other = learner.state_dict(), resumed.state_dict()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_session_without_all_of_its_parts_is_refused(power_cut_after: Callable[[int], None], tmp_path: Path) -> None:
    power_cut_after(3)
    clf = make()
    with pytest.raises(PowerCutError), clf.session(tmp_path / "work", every=0):
        clf.partial_fit(X, Y)
    tensors, manifest = store.read(tmp_path / "work")
    store.write(tmp_path / "work", {name: tensor for name, tensor in tensors.items() if name != "order"}, manifest)
    with pytest.raises(ValueError, match="does not hold a whole session"), clf.session(tmp_path / "work"):
        clf.partial_fit(X, Y)


def test_what_cannot_be_a_checkpoint_is_refused_before_anything_is_learned(tmp_path: Path) -> None:
    clf = make()
    for arguments, complaint in (
        ((tmp_path / "missing" / "work",), "There is no folder .*missing.*: make it first"),
        ((tmp_path / "work", -1), "every=-1 should be a number of seconds"),
        ((tmp_path / "work", "often"), "every='often' should be a number of seconds"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=complaint), clf.session(*arguments):
            pytest.fail("the session began")
    clf.partial_fit(X, Y).save(tmp_path / "model")
    with pytest.raises(ValueError, match="holds no session that was interrupted"), clf.session(tmp_path / "model"):
        clf.partial_fit(X, Y)
    assert CLDNetClassifier.load(tmp_path / "model", backbone=net()).classes_.tolist() == [0, 1, 2]
