"""A model on disk: the same bits come back, nothing in the file can run, nothing of the training data is in it."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import cldnet.store as store
from cldnet import CLDNetClassifier
from cldnet.mapfile import load_map
from cldnet.nets import RandomReLU
from cldnet.statistics import Statistics

SOLVERS = ("exact", "hbo")
Y = np.arange(18) % 3
X = np.random.default_rng(0).normal(size=(18, 4)) + 3 * Y[:, None]


def make(solver: str, **parameters: Any) -> CLDNetClassifier:
    small: dict[str, Any] = {} if solver == "exact" else {"embed_dim": 8, "epochs": 2}
    return CLDNetClassifier(solver, **{"capacity": 8, "batch_size": 4, "random_state": 0, **small, **parameters})


def assert_same(first: CLDNetClassifier, second: CLDNetClassifier, x: Any = X) -> None:
    assert first._model is not None
    assert second._model is not None
    one, other = first._model.learner.state_dict(), second._model.learner.state_dict()
    assert one.keys() == other.keys()
    assert [n for n in one if one[n].dtype != other[n].dtype or not torch.equal(one[n], other[n])] == []
    assert first._model.labels.to_json() == second._model.labels.to_json()
    assert np.array_equal(first.decision_function(x), second.decision_function(x))
    assert np.array_equal(first.predict(x), second.predict(x))


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_model_comes_back_bit_for_bit_and_learns_on_as_if_it_had_never_been_away(
    solver: str, dtype: str, tmp_path: Path
) -> None:
    straight = make(solver, dtype=dtype).partial_fit(X, Y)
    straight.save(tmp_path / "model.cldnet")
    resumed = CLDNetClassifier.load(tmp_path / "model.cldnet")
    assert_same(resumed, straight)
    for shift in (3, 1):
        straight.partial_fit(X, Y + shift, sample_weight=1 + Y)
        resumed.partial_fit(X, Y + shift, sample_weight=1 + Y)
        assert_same(resumed, straight)
        resumed.save(os.fspath(tmp_path / "model.cldnet"))
        resumed = CLDNetClassifier.load(os.fspath(tmp_path / "model.cldnet"))
    assert_same(resumed, straight)


@pytest.mark.parametrize("labels", [["zebra", "ähre", "猫"], [-5, 0, 2**62], [1.0, 2.0, -3.0]])
def test_labels_and_names_of_columns_survive(labels: list[Any], tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=["height", "width", "µ", "mass"])
    clf = make("exact", alpha=1.0).partial_fit(frame, np.array(labels)[Y])
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded.classes_.tolist() == sorted(labels)
    assert loaded.classes_.dtype == clf.classes_.dtype
    assert loaded.feature_names_in_.tolist() == ["height", "width", "µ", "mass"]
    assert_same(loaded, clf, frame)
    with pytest.raises(ValueError, match="feature names should match"):
        loaded.predict(frame[frame.columns[::-1]])


def test_parameters_survive_and_numpy_numbers_among_them(tmp_path: Path) -> None:
    parameters = {"capacity": np.int64(5), "lr": np.float64(0.1), "epochs": 3, "input_shape": (2, 2), "n_threads": 1}
    clf = make("exact", alpha=np.float32(2.0), **parameters).fit(X, Y)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded.get_params() == clf.get_params()
    assert_same(loaded.partial_fit(X, Y), clf.partial_fit(X, Y))


def test_a_random_state_is_saved_as_the_seed_that_it_gave(tmp_path: Path) -> None:
    clf = make("exact", random_state=np.random.RandomState(3)).fit(X, Y)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert_same(loaded, clf)
    assert np.array_equal(loaded.fit(X, Y).decision_function(X), clf.decision_function(X))


def test_parameters_set_after_learning_do_not_spoil_the_file(tmp_path: Path) -> None:
    clf = make("exact").fit(X, Y)
    clf.set_params(solver="hbo", capacity=3, dtype="float64", input_shape=(2, 2))
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded.solver == "exact"
    assert_same(loaded, clf)


def test_a_model_can_be_loaded_onto_another_device(tmp_path: Path) -> None:
    clf = make("exact").fit(X, Y)
    clf.set_params(device="abacus").save(tmp_path / "model")
    with pytest.raises(ValueError, match="device='abacus' is not a device"):
        CLDNetClassifier.load(tmp_path / "model")
    assert_same(CLDNetClassifier.load(tmp_path / "model", device="cpu"), clf)


# -- a module of one's own ---------------------------------------------------------------------------------------------


def module(width: int = 8, activation: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Linear(width, 5))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_model_over_a_users_module_needs_that_module_again(solver: str, tmp_path: Path) -> None:
    clf = make(solver, backbone=module()).partial_fit(X, Y)
    clf.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"needs one of the same make"):
        CLDNetClassifier.load(tmp_path / "model")
    for other in (module(width=9), nn.Linear(4, 5), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5))):
        with pytest.raises(ValueError, match="The module is not the one that the model was made over"):
            CLDNetClassifier.load(tmp_path / "model", backbone=other)
    with pytest.raises(ValueError, match="same weights but computes something else"):
        CLDNetClassifier.load(tmp_path / "model", backbone=module(activation=nn.Tanh))
    loaded = CLDNetClassifier.load(tmp_path / "model", backbone=module(seed=1))  # its code counts, not its weights
    assert_same(loaded, clf)
    assert_same(loaded.partial_fit(X, Y + 3), clf.partial_fit(X, Y + 3))


def test_a_module_for_a_model_that_needs_none_is_refused(tmp_path: Path) -> None:
    make("exact").fit(X, Y).save(tmp_path / "model")
    with pytest.raises(ValueError, match="load it without backbone"):
        CLDNetClassifier.load(tmp_path / "model", backbone=module())


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_file_is_plain_safetensors_without_a_training_row(solver: str, tmp_path: Path) -> None:
    clf = make(solver).partial_fit(X, Y).partial_fit(X[3:], Y[3:])
    path = tmp_path / "model"
    clf.save(path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert json.loads(header["__metadata__"]["cldnet"])["schema"] == store.SCHEMA
    tensors = [entry for name, entry in header.items() if name != "__metadata__"]
    assert 8 + length + max(entry["data_offsets"][1] for entry in tensors) == len(content)  # tensors and nothing else
    with pytest.raises((pickle.UnpicklingError, EOFError, ValueError, KeyError, AttributeError, IndexError)):
        pickle.loads(content)
    for row in X:
        for dtype in (np.float32, np.float64):
            assert row.astype(dtype).tobytes() not in content


def test_the_same_model_is_the_same_file(tmp_path: Path) -> None:
    clf = make("exact").fit(X, Y)
    for name in ("one", "other"):
        clf.save(tmp_path / name)
    CLDNetClassifier.load(tmp_path / "other").save(tmp_path / "again")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def damage(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Write the model again with a changed manifest."""

    def write(path: Path) -> None:
        tensors, manifest = store.read(path)
        changed = change(manifest)
        if isinstance(changed, dict):
            changed = json.dumps({**changed, "digest": store.digest(changed, tensors)})
        save_file(tensors, path, metadata={"cldnet": changed if isinstance(changed, str) else json.dumps(changed)})

    return write


def without_a_tensor(path: Path) -> None:
    tensors, manifest = store.read(path)
    store.write(path, dict(list(tensors.items())[1:]), manifest)


def of_other_shapes(path: Path) -> None:
    tensors, manifest = store.read(path)
    store.write(path, {name: torch.zeros(3) for name in tensors}, manifest)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda path: path.write_text("Dear diary, this is not a model."), "is not a whole safetensors file"),
    "empty": (lambda path: path.write_bytes(b""), "is not a whole safetensors file"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "is not a whole safetensors file"),
    "cut in the middle": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is not a whole safetensors file"),
    "cut in the header": (lambda path: path.write_bytes(path.read_bytes()[:50]), "is not a whole safetensors file"),
    "safetensors of another program": (
        lambda path: save_file({"a": torch.zeros(1)}, path),
        "is a safetensors file, but not a model that cldnet wrote",
    ),
    "newer": (damage(lambda manifest: {**manifest, "schema": 99}), "has layout 99, and this version reads 1 to 3"),
    "no schema": (damage(lambda manifest: {}), "damaged manifest"),
    "a list for a manifest": (damage(lambda manifest: [1, 2]), "damaged manifest"),
    "no JSON": (damage(lambda manifest: "{nonsense"), "damaged manifest"),
    "no parameters": (damage(lambda m: {**m, "parameters": None}), "does not hold a whole model"),
    "no labels": (damage(lambda m: {k: v for k, v in m.items() if k != "labels"}), "does not hold a whole model"),
    "unknown parameter": (
        damage(lambda m: {**m, "parameters": {**m["parameters"], "magic": 1}}),
        "does not hold a whole model",
    ),
    "a schema of words": (damage(lambda m: {**m, "schema": "two"}), "has layout 'two', and this version reads 1 to 3"),
    "a million lists": (damage(lambda m: '{"schema": 3, "a": [' + "[]," * 999_999 + "[]]}"), "damaged manifest"),
    "a bottomless manifest": (damage(lambda m: '{"schema": ' + 99_999 * "["), "damaged manifest"),
    "a tensor too few": (without_a_tensor, "does not hold a whole model"),
    "tensors of other shapes": (of_other_shapes, "does not hold a whole model"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_not_a_whole_model_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    change, complaint = DAMAGES[name]
    path = tmp_path / "model"
    make("exact", alpha=1.0).fit(X, Y).save(path)
    change(path)
    with pytest.raises(ValueError, match=complaint):
        CLDNetClassifier.load(path)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_bit_that_flipped_anywhere_is_found(solver: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    clf = make(solver, backbone=module()).fit(X, Y)
    clf.save(path)
    whole = path.read_bytes()
    for place in np.random.default_rng(0).integers(0, 8 * len(whole), 200).tolist():
        spoiled = bytearray(whole)
        spoiled[place // 8] ^= 1 << place % 8
        path.write_bytes(spoiled)
        with pytest.raises(ValueError, match=r"use the last good copy|not a model that cldnet wrote|install a newer"):
            CLDNetClassifier.load(path, backbone=module())


OLD = Path(__file__).parent / "fixtures" / "store"


@pytest.mark.parametrize("version", range(1, store.SCHEMA + 1))
def test_files_of_every_version_are_read_and_go_on_learning(version: int, tmp_path: Path) -> None:
    names = np.array(["cat", "dog", "owl"])[Y]
    exact = CLDNetClassifier.load(OLD / str(version) / "exact.cldnet")
    assert exact.decision_function(X[:1]) == pytest.approx(np.array([[5.797599, -9.232310, -19.865973]]), abs=1e-4)
    assert exact.forget(X[:6], names[:6]).statistics().rows == 12
    hbo = CLDNetClassifier.load(OLD / str(version) / "hbo.cldnet", backbone=module())
    assert hbo.decision_function(X[:1]) == pytest.approx(np.array([[1.537197, 0.899202, 0.506106]]), abs=1e-4)
    for clf in (exact, hbo):
        clf.partial_fit(X - 9, np.full(18, "emu")).save(tmp_path / "now")
        again = CLDNetClassifier.load(tmp_path / "now", backbone=None if clf is exact else module())
        assert again.classes_.tolist() == ["cat", "dog", "emu", "owl"]
    features = load_map(OLD / str(version) / "map.cldnet")
    sums = Statistics.load(OLD / str(version) / "statistics.cldnet")
    assert CLDNetClassifier(backbone=features).merge([sums]).statistics().rows == sums.rows == 18


def test_labels_may_have_as_many_brackets_as_they_like(tmp_path: Path) -> None:
    names = np.array(["[" * 6000 + name for name in ("cat", "dog", "owl")])[Y]
    make("exact").fit(X, names).save(tmp_path / "model")
    assert CLDNetClassifier.load(tmp_path / "model").classes_[0].endswith("cat")


def test_there_is_a_file_of_every_version() -> None:
    files = ["exact.cldnet", "hbo.cldnet", "map.cldnet", "statistics.cldnet"]
    found = {folder.name: sorted(file.name for file in folder.iterdir()) for folder in OLD.iterdir()}
    assert found == {str(version): files for version in range(1, store.SCHEMA + 1)}


def test_a_model_of_the_first_days_is_read(tmp_path: Path) -> None:
    tensors, manifest = store.read(OLD / "1" / "exact.cldnet")
    backbone = manifest["parameters"]["backbone"]
    old = {"features": backbone["options"]["features"], "input_shape": backbone["input_shape"]}
    first = {key: manifest[key] for key in ("version", "labels", "inputs", "fingerprint")}
    first |= {"schema": 1, "parameters": {**manifest["parameters"], "backbone": old}}
    save_file(tensors, tmp_path / "first", metadata={"cldnet": json.dumps(first)})
    loaded = CLDNetClassifier.load(tmp_path / "first")
    assert_same(loaded, CLDNetClassifier.load(OLD / "1" / "exact.cldnet"))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda folder: folder / "missing" / "model", "No such file.*as it was: make the folder first"),
        (lambda folder: folder, "this is a folder: name a file in it|Is a directory"),
        (lambda folder: folder / ("long" * 200), "File name too long.*choose a shorter name"),
    ],
)
def test_what_a_disk_cannot_do_is_said(spoil: Callable[[Path], Path], complaint: str, tmp_path: Path) -> None:
    clf = make("exact", alpha=1.0).fit(X, Y)
    with pytest.raises(OSError, match=complaint):
        clf.save(spoil(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no model file .*nowhere"):
        CLDNetClassifier.load(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="There is no model file"):
        CLDNetClassifier.load(tmp_path)


@pytest.mark.parametrize("where", ["os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_litter(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    clf = make("exact", alpha=1.0).fit(X, Y)
    clf.save(path)
    before = path.read_bytes()
    clf.partial_fit(X, Y + 3)

    def fail(*arguments: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(where, fail)
        with pytest.raises(OSError, match="No space left"):
            clf.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
    assert path.read_bytes() == before
    clf.save(path)
    assert_same(CLDNetClassifier.load(path), clf)


def test_a_new_file_has_the_rights_of_any_new_file_and_an_interrupt_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").write_bytes(b"")
    store.write_atomically(tmp_path / "ours", b"content")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write_atomically(tmp_path / "half", b"content")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ours", "plain"]


def test_a_larger_map_of_our_own_is_loaded_without_being_handed_in_again(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 5))
    y = np.arange(40) % 2
    clf = CLDNetClassifier(backbone=RandomReLU((5,), features=77, seed=9), capacity=4, random_state=0).fit(X, y)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert np.array_equal(loaded.decision_function(X), clf.decision_function(X))
    loaded.partial_fit(X, y + 2).save(tmp_path / "model")
    again = CLDNetClassifier.load(tmp_path / "model").decision_function(X)
    assert np.array_equal(again, clf.partial_fit(X, y + 2).decision_function(X))
