"""A session that was interrupted: it goes on from its file and ends in the bits of one that was not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cldnet.storage as store
import cldnet.storage.checkpoint
from cldnet import CLDNetClassifier
from cldnet.data.transforms import Augment
from cldnet.methods import build_learner
from cldnet.methods.fit import TaskCheckpoint, fit_task
from cldnet.methods.learner import Learner, Setting, TaskData

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


class Power:
    """Cuts the power after some steps, and counts those that were done since then."""

    def __init__(self) -> None:
        self.steps = self.last = 0

    def cut_after(self, steps: int) -> None:
        """Cut it after the n-th step from now on; 0: never again."""
        self.steps, self.last = 0, steps

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.last:
            raise PowerCutError


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> Power:
    """What every step of a session but its last hangs on."""
    write, power = cldnet.storage.checkpoint.SessionCheckpoint.__call__, Power()

    def step(self: cldnet.storage.checkpoint.SessionCheckpoint, midway: Callable[[], TaskCheckpoint]) -> None:
        write(self, midway)
        power.step()

    monkeypatch.setattr(cldnet.storage.checkpoint.SessionCheckpoint, "__call__", step)
    return power


@pytest.mark.parametrize("steps", [1, 7, 8, 20])
def test_an_interrupted_session_ends_in_the_same_bits(steps: int, power: Power, tmp_path: Path) -> None:
    straight = make().partial_fit(X, Y)
    straight.save(tmp_path / "model")
    straight.partial_fit(X[:50], Y[:50] + 3)
    for cut in (steps, 2, 0):  # interrupted twice
        power.cut_after(cut)
        clf = CLDNetClassifier.load(tmp_path / "model", backbone=net())
        with suppress(PowerCutError), clf.session(tmp_path / "work", every=0):
            clf.partial_fit(X[:20], Y[:20] + 3)
            clf.partial_fit(X[20:50], Y[20:50] + 3)
        assert (tmp_path / "work").exists()
    assert power.steps == max(20 - steps - 2, 0), "steps that were done before were done again"
    clf.save(tmp_path / "model")
    assert not (tmp_path / "work").exists()
    assert straight._model is not None
    assert clf._model is not None
    one, other = straight._model.learner.state_dict(), clf._model.learner.state_dict()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    assert np.array_equal(clf.decision_function(X), straight.decision_function(X))


def test_the_first_session_can_be_gone_on_with_too(power: Power, tmp_path: Path) -> None:
    for cut in (5, 0):
        power.cut_after(cut)
        clf = make()
        with suppress(PowerCutError), clf.session(tmp_path / "work", every=0):
            clf.partial_fit(X, Y)
    assert power.steps == 23 - 5, "steps that were done before were done again"
    assert np.array_equal(clf.decision_function(X), make().partial_fit(X, Y).decision_function(X))


CHANGES: dict[str, dict[str, Any]] = {
    "other data": {"x": X + 1e-9},
    "other labels": {"y": np.sort(Y)},
    "other settings": {"lr": 6.5},
    "another budget": {"epochs": 4},
    "another seed": {"random_state": 1},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_of_another_session_is_refused(change: str, power: Power, tmp_path: Path) -> None:
    power.cut_after(3)
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
    task, midways = TaskData(x + torch.linspace(0, 1, len(x))[:, None], y), list[TaskCheckpoint]()
    fit_task(learner, task, epochs=1, batch_size=8, on_checkpoint=lambda midway: midways.append(midway()))
    assert midways
    for midway in midways:
        resumed = build_learner(method, Setting((6,), capacity=3, seed=0))
        fit_task(resumed, task, epochs=1, batch_size=8, resume=midway)
        one, other = learner.state_dict(), resumed.state_dict()
        assert [name for name in one if not torch.equal(one[name], other[name])] == []


AUGMENTED: dict[str, dict[str, Any]] = {
    "cldnet": {"embed_dim": 16, "momentum": 0.9, "lr_end": 0.1},
    "cldnet-paper": {"embed_dim": 16, "momentum": 0.9},
    "er": {},
    "finetune": {"momentum": 0.9},
    "icnet": {},
    "lwf": {},
    "owm": {},
    "si": {},
}


@pytest.mark.parametrize("method", AUGMENTED)
def test_a_task_whose_images_are_varied_goes_on_midway_with_the_same_variations(method: str) -> None:
    images, y = torch.rand(40, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    budget: dict[str, Any] = {"epochs": 2, "batch_size": 8, "augment": Augment(crop=1, flip=True, cutout=2)}
    task, midways = TaskData(images.flip(0), y + 3), list[TaskCheckpoint]()

    def taught_before() -> Learner:
        learner = build_learner(method, Setting((6, 6), capacity=8, seed=0), AUGMENTED[method])
        fit_task(learner, TaskData(images, y), **budget)
        return learner

    learner = taught_before()
    report = fit_task(learner, task, **budget, on_checkpoint=lambda midway: midways.append(midway()))
    plain = taught_before()
    fit_task(plain, task, **{**budget, "augment": None})
    assert not same_state(plain, learner), "chance makes no difference, so that nobody could tell if it went on"
    for midway in midways[::3]:
        resumed = taught_before()
        assert fit_task(resumed, task, **budget, resume=midway).losses == report.losses
        assert same_state(resumed, learner)


def same_state(one: Learner, other: Learner) -> bool:
    own, others = one.state_dict(), other.state_dict()
    return own.keys() == others.keys() and all(torch.equal(own[name], others[name]) for name in own)


#: Sessions of every layout from 3 on, interrupted over the models in ``fixtures/store``.
#: ``python tests/storage/test_checkpoint.py`` writes those of today's layout.
SESSIONS = Path(__file__).parents[1] / "fixtures" / "sessions"
MODELS = SESSIONS.parent / "store"


def begun(name: str, layout: int) -> tuple[CLDNetClassifier, np.ndarray, int]:
    """A model, what it was being taught (the same on every machine, to the last bit), and in how many steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)) if name == "hbo" else None
    rows, steps = (40, 20) if name == "hbo" else (2500, 3)
    clf = CLDNetClassifier.load(MODELS / str(layout) / f"{name}.cldnet", backbone=module)
    return clf, np.arange(4 * rows).reshape(rows, 4) * 7 % 23 / 4.0 - 9.0, steps


@pytest.mark.parametrize("layout", range(3, store.SCHEMA + 1))
def test_sessions_of_every_layout_are_resumed(layout: int, power: Power, tmp_path: Path) -> None:
    shutil.copyfile(SESSIONS / str(layout) / "exact.cldnet", tmp_path / "session")
    (clf, x, steps), (straight, _, _) = begun("exact", layout), begun("exact", layout)
    with clf.session(tmp_path / "session", every=0):
        clf.partial_fit(x, ["emu"] * len(x))
    assert power.steps == steps - 1 - 2, "two steps were done when the file was written"
    straight.partial_fit(x, ["emu"] * len(x))
    np.testing.assert_allclose(clf.decision_function(x[:9]), straight.decision_function(x[:9]), atol=1e-4)
    assert clf.classes_.tolist() == ["cat", "dog", "emu", "owl"]


@pytest.mark.parametrize("layout", [3, 4])
def test_a_session_of_hbo_before_it_had_sub_classes_is_refused_and_can_begin_again(layout: int, tmp_path: Path) -> None:
    shutil.copyfile(SESSIONS / str(layout) / "hbo.cldnet", tmp_path / "session")
    clf, x, _ = begun("hbo", layout)
    with pytest.raises(ValueError, match="belongs to another session"), clf.session(tmp_path / "session"):
        clf.partial_fit(x, ["emu"] * len(x))
    with clf.session(tmp_path / "new"):
        clf.partial_fit(x, ["emu"] * len(x))
    assert clf.classes_.tolist() == ["cat", "dog", "emu", "owl"]


def test_a_session_without_all_of_its_parts_is_refused(power: Power, tmp_path: Path) -> None:
    power.cut_after(3)
    clf = make()
    with pytest.raises(PowerCutError), clf.session(tmp_path / "work", every=0):
        clf.partial_fit(X, Y)
    tensors, manifest = store.read(tmp_path / "work")
    store.write(tmp_path / "work", {name: tensor for name, tensor in tensors.items() if name != "order"}, manifest)
    with pytest.raises(ValueError, match="is not a valid checkpoint"), clf.session(tmp_path / "work"):
        clf.partial_fit(X, Y)


def test_a_model_that_is_saved_where_its_checkpoint_was_stays_there(tmp_path: Path) -> None:
    clf = make()
    with clf.session(tmp_path / "work", every=0):
        clf.partial_fit(X, Y)
    clf.save(tmp_path / "work")
    assert CLDNetClassifier.load(tmp_path / "work", backbone=net()).classes_.tolist() == [0, 1, 2]


def test_what_cannot_be_a_checkpoint_is_refused_before_anything_is_learned(tmp_path: Path) -> None:
    clf = make()
    for arguments, complaint in (
        ((tmp_path / "missing" / "work",), "There is no folder .*missing.*: create it first"),
        ((tmp_path / "work", -1), "every=-1 should be a number of seconds"),
        ((tmp_path / "work", "often"), "every='often' should be a number of seconds"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=complaint), clf.session(*arguments):
            pytest.fail("the session began")
    clf.partial_fit(X, Y).save(tmp_path / "model")
    with pytest.raises(ValueError, match="is not a checkpoint"), clf.session(tmp_path / "model"):
        clf.partial_fit(X, Y)
    assert CLDNetClassifier.load(tmp_path / "model", backbone=net()).classes_.tolist() == [0, 1, 2]


def write_sessions() -> None:
    """Write sessions of the layout of today, for `test_sessions_of_every_layout_are_gone_on_with`."""
    (SESSIONS / str(store.SCHEMA)).mkdir(parents=True, exist_ok=True)
    for name in ("exact", "hbo"):
        clf, x, _ = begun(name, store.SCHEMA)
        write, power = cldnet.storage.checkpoint.SessionCheckpoint.__call__, Power()
        power.cut_after(2)
        with pytest.MonkeyPatch.context() as patch, suppress(PowerCutError):
            patch.setattr(
                cldnet.storage.checkpoint.SessionCheckpoint, "__call__", lambda *a, w=write, p=power: (w(*a), p.step())
            )
            with clf.session(SESSIONS / str(store.SCHEMA) / f"{name}.cldnet", every=0):
                clf.partial_fit(x, ["emu"] * len(x))


if __name__ == "__main__":
    write_sessions()
