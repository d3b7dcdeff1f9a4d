"""`save` does not replace a file that has changed since the model was loaded from it or saved to it."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.base import clone

import cldnet.storage as store
from cldnet import CLDNetClassifier, FileChangedError, locked, merge
from cldnet.nets import RandomReLU

FEATURES = RandomReLU((2,), features=8, seed=0)
FEATURES.fit(torch.eye(2))


def taught(*labels: str) -> CLDNetClassifier:
    return teach(CLDNetClassifier(backbone=FEATURES, capacity=9, random_state=0, n_threads=1), *labels)


def teach(clf: CLDNetClassifier, *labels: str) -> CLDNetClassifier:
    return clf.partial_fit([[float(len(label)), 1.0] for label in labels], list(labels))


def classes(path: Path) -> set[str]:
    return set(CLDNetClassifier.load(path).classes_)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model that knows cats and dogs."""
    path = tmp_path / "model"
    taught("cat", "dog").save(path)
    return path


def change(path: Path) -> None:
    """Teach the model in the file owls, as another process would."""
    teach(CLDNetClassifier.load(path), "owl").save(path)


def refuses(clf: CLDNetClassifier, path: Path | str) -> bool:
    before = Path(path).read_bytes()
    try:
        clf.save(path)
    except FileChangedError:
        assert Path(path).read_bytes() == before
        return True
    return False


def test_a_file_that_has_changed_is_replaced_only_if_asked_for(path: Path) -> None:
    clf = teach(CLDNetClassifier.load(path), "emu")
    change(path)
    with pytest.raises(FileChangedError, match=r"'.*model' has changed since .*Load the file again .*overwrite=True"):
        clf.save(path)
    assert classes(path) == {"cat", "dog", "owl"}
    clf.save(path, overwrite=True)
    assert classes(path) == {"cat", "dog", "emu"}
    teach(clf, "fox").save(path)
    assert classes(path) == {"cat", "dog", "emu", "fox"}
    assert isinstance(FileChangedError(), OSError)


def test_what_was_saved_last_counts_as_loaded(path: Path) -> None:
    for clf in (CLDNetClassifier.load(path), taught("cat")):
        teach(clf, "emu").save(path)
        teach(clf, "fox").save(path)
        change(path)
        assert refuses(clf, path)


def test_a_file_that_was_never_loaded_is_replaced_and_one_that_is_gone_is_written(path: Path) -> None:
    clf = taught("emu")
    clf.save(path)
    assert classes(path) == {"emu"}
    path.unlink()
    clf.save(path)
    assert classes(path) == {"emu"}


def test_no_name_of_a_file_hides_a_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    monkeypatch.chdir(path.parent)
    names = (path, link, Path("model"), Path("link"), Path(".") / ".." / path.parent.name / "model")
    loaded = [CLDNetClassifier.load(name) for name in names]
    change(path)
    assert [refuses(clf, name) for clf in loaded for name in names] == [True] * 25


def test_a_link_that_leads_elsewhere_is_a_change(path: Path) -> None:
    link, other = path.with_name("link"), path.with_name("other")
    link.symlink_to(path)
    clf = CLDNetClassifier.load(link)
    taught("owl").save(other)
    link.unlink()
    link.symlink_to(other)
    assert refuses(clf, link)
    assert not refuses(clf, path)


def test_a_second_file_does_not_make_the_first_one_forgotten(path: Path) -> None:
    clf = CLDNetClassifier.load(path)
    clf.save(path.with_name("backup"))
    change(path)
    assert refuses(clf, path)
    assert not refuses(clf, path.with_name("backup"))


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda clf: pickle.loads(pickle.dumps(clf))])
def test_a_copy_of_a_model_goes_on_from_the_same_file(twin: Callable[[Any], Any], path: Path) -> None:
    clf = CLDNetClassifier.load(path)
    other = twin(clf)
    assert os.fsencode(path.parent) not in pickle.dumps(clf)
    change(path)
    assert refuses(other, path)
    teach(clf, "emu").save(path, overwrite=True)
    assert refuses(other, path)


def test_a_new_estimator_has_seen_no_file(path: Path) -> None:
    clf = CLDNetClassifier.load(path)
    fresh, merged = teach(clone(clf), "emu"), merge([clf, taught("emu")])
    change(path)
    assert not refuses(fresh, path)
    assert not refuses(merged, path)
    assert refuses(clf.merge([taught("fox")]), path)


def test_another_time_or_inode_is_no_change_and_other_content_of_the_same_size_is(path: Path) -> None:
    clf = CLDNetClassifier.load(path)
    found = path.stat()
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)
    os.utime(path, (0, 0))
    assert not refuses(clf, path)
    assert path.stat().st_size == found.st_size
    other = CLDNetClassifier.load(path)
    other.merge([taught("cat")]).save(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert path.stat().st_size == found.st_size
    assert refuses(clf, path)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100])
def test_something_else_in_its_place_is_a_change(content: bytes, path: Path) -> None:
    clf = CLDNetClassifier.load(path)
    path.write_bytes(content)
    assert refuses(clf, path)


def test_a_refused_save_keeps_the_checkpoint(path: Path) -> None:
    clf, checkpoint = CLDNetClassifier.load(path), path.with_name("work")
    with clf.session(checkpoint, every=0):
        teach(clf, *["emu"] * 3000)
    assert checkpoint.exists()
    change(path)
    assert refuses(clf, path)
    assert checkpoint.exists()
    clf.save(path, overwrite=True)
    assert not checkpoint.exists()


def test_a_change_while_the_file_is_loaded_is_not_missed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = store.read

    def read_before_it_changes(name: Path) -> Any:
        found = read(name)
        monkeypatch.setattr(store, "read", read)
        change(path)
        return found

    monkeypatch.setattr(store, "read", read_before_it_changes)
    clf = CLDNetClassifier.load(path)
    assert set(clf.classes_) == {"cat", "dog"}
    assert refuses(clf, path)


def test_a_file_that_appears_while_it_is_loaded_may_have_changed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, read = tmp_path / "late", store.read

    def read_what_appears(name: Path) -> Any:
        path.rename(late)
        return read(name)

    monkeypatch.setattr(store, "read", read_what_appears)
    clf = CLDNetClassifier.load(late)
    monkeypatch.undo()
    change(late)
    assert refuses(clf, late)


@pytest.mark.parametrize("step", ["SeenFiles.check_unchanged", "write"])
def test_a_file_is_compared_and_replaced_under_its_lock(step: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clf, kept_out = CLDNetClassifier.load(path), list[bool]()

    def try_to_change() -> None:
        try:
            with locked(path, wait=False):
                kept_out.append(False)
        except BlockingIOError:
            kept_out.append(True)

    def watched(*arguments: Any) -> None:
        thread = threading.Thread(target=try_to_change)
        thread.start()
        thread.join()

    monkeypatch.setattr(f"cldnet.storage.{step}", watched)
    clf.save(path)
    assert kept_out == [True]


def test_a_model_remembers_so_many_files_and_no_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.storage.format._MAX_FILES", 3)
    clf = CLDNetClassifier.load(path)
    for name in "abcd":
        clf.save(path.with_name(name))
    assert len(clf._seen.versions) == 3
    change(path.with_name("d"))
    assert refuses(clf, path.with_name("d"))
