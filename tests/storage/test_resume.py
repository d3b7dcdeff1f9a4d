"""A session's checkpoint in use: who was interrupted, anywhere, loads the last saved model and goes on to the same bits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cldnet.storage as store
import cldnet.storage.checkpoint
from cldnet import CLDNetClassifier

Y = np.arange(60) % 3
X = np.random.default_rng(0).normal(size=(60, 4)) + 3 * Y[:, None]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))


def make(**parameters: Any) -> CLDNetClassifier:
    small: dict[str, Any] = {"embed_dim": 6, "epochs": 2, "batch_size": 12, "capacity": 9}
    return CLDNetClassifier("hbo", **{**small, **parameters})


def teach_in_part(clf: CLDNetClassifier, path: Path, writings: int) -> None:
    """Teach, and interrupt it when the session was written down so many times."""
    write, done = cldnet.storage.checkpoint.SessionCheckpoint.__call__, 0

    def writing(self: Any, midway: Any) -> None:
        nonlocal done
        write(self, midway)
        done += 1
        if done == writings:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cldnet.storage.checkpoint.SessionCheckpoint, "__call__", writing)
        with pytest.raises(KeyboardInterrupt):
            teach(clf, path)


def teach(clf: CLDNetClassifier, path: Path, shift: int = 0) -> CLDNetClassifier:
    with clf.session(path, every=0.0):
        clf.partial_fit(X, Y + shift)
    return clf


def writings_of(clf: CLDNetClassifier, path: Path) -> int:
    """Teach, and count how often the session was written: what a resumed one had behind it is not written again."""
    written, write = 0, cldnet.storage.checkpoint.SessionCheckpoint.__call__

    def writing(self: Any, midway: Any) -> None:
        nonlocal written
        written += 1
        write(self, midway)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cldnet.storage.checkpoint.SessionCheckpoint, "__call__", writing)
        teach(clf, path)
    return written


@pytest.mark.parametrize("state", [None, 7, np.random.RandomState(3)])
def test_a_first_session_goes_on_whatever_its_seed_was(tmp_path: Path, state: Any) -> None:
    path = tmp_path / "session"
    teach_in_part(make(random_state=state), path, writings=4)
    shutil.copy(path, tmp_path / "copy")
    again, other = make(random_state=state), make(random_state=state)
    assert writings_of(again, path) == 9 - 4, "the steps before were not done again"
    teach(other, tmp_path / "copy")
    assert np.array_equal(again.decision_function(X), other.decision_function(X))


def test_a_first_session_goes_on_over_a_net_that_was_made_afresh(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = net()
    expected = teach(make(backbone=first, random_state=0), tmp_path / "whole")
    teach_in_part(make(backbone=first, random_state=0), tmp_path / "session", writings=5)
    torch.manual_seed(1)
    clf = teach(make(backbone=net(), random_state=0), tmp_path / "session")
    assert np.array_equal(clf.decision_function(X), expected.decision_function(X))


def test_another_seed_data_or_budget_is_another_session(tmp_path: Path) -> None:
    path = tmp_path / "session"
    teach_in_part(make(random_state=0), path, writings=5)
    for clf, rows in ((make(random_state=1), X), (make(random_state=0), X + 1), (make(random_state=0, epochs=3), X)):
        with pytest.raises(ValueError, match="belongs to another session"), clf.session(path):
            clf.partial_fit(rows, Y)
    assert path.exists()


def test_who_dies_between_learning_and_saving_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    path, saved = tmp_path / "session", tmp_path / "model"
    clf = teach(make(random_state=0), path)
    assert path.exists(), "nothing else on disk knows of the session yet"
    assert writings_of(make(random_state=0), path) == 0
    clf.save(saved)
    assert not path.exists()
    teach(clf, path, shift=3)
    again = CLDNetClassifier.load(saved)  # and here the process has died: the model before has to learn it once more
    teach(again, path, shift=3)
    assert np.array_equal(again.decision_function(X), clf.decision_function(X))
    again.save(saved)
    assert not path.exists()


@pytest.mark.parametrize("solver", ["exact", "hbo"])
def test_who_dies_between_saving_and_removing_the_checkpoint_is_not_in_its_way(tmp_path: Path, solver: str) -> None:
    path, saved = tmp_path / "session", tmp_path / "model"
    clf = make(random_state=0).set_params(solver=solver)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cldnet.storage.checkpoint.SessionCheckpoint, "remove", lambda self, saved: None)
        teach(clf, path).save(saved)
    assert path.exists() == (solver == "hbo")  # a session of one step has nothing to write down
    again = CLDNetClassifier.load(saved)
    teach(again, path, shift=3)
    teach(clf, tmp_path / "other", shift=3)
    assert np.array_equal(again.decision_function(X), clf.decision_function(X))
    again.save(saved)
    assert not path.exists()


def test_numbers_that_are_none_do_not_replace_a_sound_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "session"
    teach_in_part(make(random_state=0), path, writings=5)
    sound, written = path.read_bytes(), []

    def diverged(self: Any, midway: Any) -> None:
        now = midway()
        written.append(replace(now, state={name: tensor * torch.nan for name, tensor in now.state.items()}))
        write(self, written.pop)

    write = cldnet.storage.checkpoint.SessionCheckpoint.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cldnet.storage.checkpoint.SessionCheckpoint, "__call__", diverged)
        teach(make(random_state=0), path)
    assert path.read_bytes() == sound


def test_a_file_that_does_not_say_whose_session_it_is_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "session"
    teach_in_part(make(random_state=0), path, writings=5)
    tensors, manifest = store.read(path)
    store.write(path, tensors, {name: value for name, value in manifest.items() if name != "call"})
    before = path.read_bytes()
    with pytest.raises(ValueError, match="belongs to another session"):
        teach(make(random_state=0), path)
    assert path.read_bytes() == before
