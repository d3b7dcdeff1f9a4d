"""A model on disk: the same bits come back, nothing in the file can run, nothing of the training data is in it."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from tests.files import files_in
from torch import nn

import cldnet.storage as store
from cldnet import CLDNetClassifier
from cldnet.estimator.statistics import Statistics
from cldnet.nets import RandomReLU, out_features
from cldnet.nets.fingerprint import Fingerprint
from cldnet.storage.maps import load_map

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
    clf.set_params(device="cuda:99").save(tmp_path / "model")  # another machine may have it
    with pytest.raises(ValueError, match="device='cuda:99' is not a device"):
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
    with pytest.raises(ValueError, match=r"needs the same module"):
        CLDNetClassifier.load(tmp_path / "model")
    for other in (module(width=9), nn.Linear(4, 5), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 5))):
        with pytest.raises(ValueError, match="The module is not the one that the model was trained with"):
            CLDNetClassifier.load(tmp_path / "model", backbone=other)
    with pytest.raises(ValueError, match=r"same weights .* but another output"):
        CLDNetClassifier.load(tmp_path / "model", backbone=module(activation=nn.Tanh))
    loaded = CLDNetClassifier.load(tmp_path / "model", backbone=module(seed=1))  # its code counts, not its weights
    assert_same(loaded, clf)
    assert_same(loaded.partial_fit(X, Y + 3), clf.partial_fit(X, Y + 3))


def test_a_module_for_a_model_that_needs_none_is_refused(tmp_path: Path) -> None:
    make("exact").fit(X, Y).save(tmp_path / "model")
    with pytest.raises(ValueError, match="load it without backbone"):
        CLDNetClassifier.load(tmp_path / "model", backbone=module())


class Tied(nn.Module):
    """One weight with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.relu(self.first(x)))
        return found


@pytest.mark.filterwarnings("ignore:No projector can protect")
@pytest.mark.parametrize("solver", SOLVERS)
def test_weights_that_are_tied_are_tied_again(solver: str, tmp_path: Path) -> None:
    clf = make(solver, backbone=Tied()).fit(X, Y)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model", backbone=Tied())
    assert_same(loaded, clf)
    assert loaded._model is not None
    net = loaded._model.learner.backbone
    assert isinstance(net, Tied)
    assert net.first.weight is net.second.weight
    assert_same(loaded.partial_fit(X, Y + 3), clf.partial_fit(X, Y + 3))
    tensors, manifest = store.read(tmp_path / "model")
    (name,) = (name for name in tensors if name.endswith("first.weight"))
    tensors[name] = tensors[name] + 1
    store.write(tmp_path / "model", tensors, manifest)
    with pytest.raises(
        ValueError, match=r"first.weight' and '.*second.weight' are one tensor in the module, and differ"
    ):
        CLDNetClassifier.load(tmp_path / "model", backbone=Tied())


def test_a_module_of_very_many_tensors_comes_back(tmp_path: Path) -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList(torch.zeros(1) for _ in range(10_002))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    clf = make("exact", backbone=Many()).fit(X, Y)
    clf.save(tmp_path / "model")
    assert_same(CLDNetClassifier.load(tmp_path / "model", backbone=Many()), clf)


@pytest.mark.filterwarnings("ignore:No projector can protect")
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_parts_of_a_module_that_is_handed_over_stay_in_their_modes(solver: str, tmp_path: Path) -> None:
    def half_frozen() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
        net[1].eval()
        return net

    make(solver, backbone=half_frozen()).fit(X, Y).save(tmp_path / "model")
    handed, other = half_frozen(), nn.Sequential(half_frozen(), nn.Softmax(1))[:1]
    CLDNetClassifier.load(tmp_path / "model", backbone=handed)
    with pytest.raises(ValueError, match="is not the one that the model was trained with"):
        CLDNetClassifier.load(tmp_path / "model", backbone=other)
    assert [part.training for part in handed.modules()] == [True, True, False, True, True]
    assert [part.training for part in other.modules()] == [True, True, True, False, True, True]


def test_a_module_that_fails_is_left_in_its_modes() -> None:
    net = nn.Sequential(nn.Linear(9, 4), nn.BatchNorm1d(4).eval())
    for attempt in (lambda: Fingerprint.of(net, (4,)), lambda: out_features(net, (4,))):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            attempt()
        assert [part.training for part in net.modules()] == [True, True, False]


# -- what cannot be loaded is not saved --------------------------------------------------------------------------------

WRONG: dict[str, dict[str, Any]] = {
    "a rate that is none": {"lr": float("nan")},
    "a rate of words": {"lr": "high"},
    "no epochs": {"epochs": 0},
    "empty batches": {"batch_size": 0},
    "no threads": {"n_threads": 0},
    "too many threads": {"n_threads": 5000},
    "half silent": {"verbose": None},
    "a negative penalty": {"alpha": -1.0},
    "no such device": {"device": "abacus"},
    "a device that cannot compute": {"device": "meta"},
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", WRONG)
def test_parameters_that_could_not_be_loaded_leave_the_file_as_it_was(name: str, solver: str, tmp_path: Path) -> None:
    path, clf = tmp_path / "model", make(solver).fit(X, Y)
    clf.save(path)
    before = path.read_bytes()
    clf.set_params(**WRONG[name])
    with pytest.raises(ValueError, match=f"{next(iter(WRONG[name]))}="):
        clf.save(path)
    assert [file.read_bytes() for file in files_in(tmp_path)] == [before]
    assert_same(CLDNetClassifier.load(path), make(solver).fit(X, Y))


def infinite(clf: CLDNetClassifier) -> str:
    assert clf._model is not None
    name, tensor = next((name, t) for name, t in clf._model.learner.state_dict().items() if t.is_floating_point())
    tensor.flatten()[0] = torch.inf
    return f"{name} has values that are not finite"


def miscounted(clf: CLDNetClassifier) -> str:
    assert clf._model is not None
    clf._model.learner.counters[1] = 5
    return "have 5 classes and room for 8, its labels 3 and room for 8"


def of_other_inputs(clf: CLDNetClassifier) -> str:
    assert clf._model is not None
    clf._model = replace(clf._model, inputs=replace(clf._model.inputs, largest=float("inf")))
    return "inf is not a finite number"


def with_odd_labels(clf: CLDNetClassifier) -> str:
    assert clf._model is not None
    clf._model = replace(clf._model, merged_map_labels=frozenset({"owl"}))
    return "'owl' is not of the type of its other labels"


def with_no_json(clf: CLDNetClassifier) -> str:
    assert clf._model is not None
    clf._model = replace(clf._model, seed=object())  # type: ignore[arg-type]
    return "Object of type object is not JSON serializable"


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("spoil", [infinite, miscounted, of_other_inputs, with_odd_labels, with_no_json])
def test_a_model_that_could_not_be_loaded_leaves_the_file_as_it_was(
    spoil: Callable[[CLDNetClassifier], str], solver: str, tmp_path: Path
) -> None:
    path, clf = tmp_path / "model", make(solver).fit(X, Y)
    clf.save(path)
    before, why = path.read_bytes(), spoil(clf)
    with pytest.raises(ValueError, match=r"could not be loaded again \(.*\).*unchanged: correct that") as caught:
        clf.save(path)
    assert why in str(caught.value)
    assert [file.read_bytes() for file in files_in(tmp_path)] == [before]


def test_a_module_that_answers_at_random_is_not_saved(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(x.shape)

    clf = make("exact", backbone=Noisy()).fit(X, Y)
    with pytest.raises(ValueError, match=r"was not saved.*another output"):
        clf.save(tmp_path / "model")
    assert files_in(tmp_path) == []


def test_a_model_that_was_extended_between_very_many_tasks_comes_back(tmp_path: Path) -> None:
    clf = make("exact").fit(X, Y)
    assert clf._model is not None
    sizes = clf._model.sizes
    for tasks in range(1, 6001):
        sizes = sizes.record(tasks, {"sums": tasks}, asked=True)
    clf._model = replace(clf._model, sizes=sizes)
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded._model is not None
    assert loaded._model.sizes == sizes
    assert len(sizes.changes) == 6001


# -- memory ------------------------------------------------------------------------------------------------------------

SHORT_OF_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np, torch
from cldnet import CLDNetClassifier, Statistics
from cldnet.nets import RandomReLU

path, hard = Path(sys.argv[1]), resource.getrlimit(resource.RLIMIT_AS)[1]
X = np.random.default_rng(0).normal(size=(60, 6))
clf = CLDNetClassifier(backbone=RandomReLU((6,), features=3000, seed=0), capacity=100, random_state=0, n_threads=1)
clf.fit(X, np.arange(60) % 3)
clf.save(path / "model")
clf.statistics().save(path / "sums")
calls = {
    "load": lambda: CLDNetClassifier.load(path / "model"),
    "load sums": lambda: Statistics.load(path / "sums"),
    "save": lambda: clf.save(path / "model"),
}
before = (path / "model").read_bytes()
for name, call in calls.items():
    call()
    for megabytes in (0, 3, 20, 50, 75, 500):
        room = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (megabytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (room, hard))
        try:
            call()
            said = "done"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        print(f"{name}|{said}")
    assert sorted(file.name for file in path.iterdir()) == [".model.lock", "model", "sums"], "litter"
assert (path / "model").read_bytes() == before
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory cannot be made short here")
def test_a_lack_of_memory_is_called_by_its_name_and_harms_neither_the_file_nor_the_process(tmp_path: Path) -> None:
    code = [sys.executable, "-c", SHORT_OF_MEMORY, str(tmp_path)]
    ended = subprocess.run(code, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    outcomes: dict[str, set[str]] = {}
    for line in ended.stdout.splitlines():
        name, _, said = line.partition("|")
        outcomes.setdefault(name, set()).add(said)
    sentence = re.compile(
        r"MemoryError: There is not enough memory (to|for) .*: close other programs, or use a larger .*"
    )
    for name, found in outcomes.items():
        assert "done" in found, name
        assert all(said == "done" or sentence.fullmatch(said) for said in found), (name, found)
    assert all(len(outcomes[name]) > 1 for name in ("load", "load sums")), "memory was never short"


@pytest.mark.parametrize("number", [1, 3, 9])
def test_an_interrupt_while_a_file_is_read_is_an_interrupt(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("exact").fit(X, Y).save(tmp_path / "model")
    empty, calls = torch.empty, itertools.count(1)

    def interrupted(*arguments: Any, **named: Any) -> torch.Tensor:
        if next(calls) == number:
            raise KeyboardInterrupt
        return empty(*arguments, **named)

    monkeypatch.setattr(torch, "empty", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CLDNetClassifier.load(tmp_path / "model")


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
    assert len({path.read_bytes() for path in files_in(tmp_path)}) == 1


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
    "text": (lambda path: path.write_text("Dear diary, this is not a model."), "is not a valid safetensors file"),
    "empty": (lambda path: path.write_bytes(b""), "is not a valid safetensors file"),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "is not a valid safetensors file"),
    "cut in the middle": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "is not a valid safetensors file"),
    "cut in the header": (lambda path: path.write_bytes(path.read_bytes()[:50]), "is not a valid safetensors file"),
    "safetensors of another program": (
        lambda path: save_file({"a": torch.zeros(1)}, path),
        "is a safetensors file, but not one that cldnet wrote",
    ),
    "newer": (damage(lambda manifest: {**manifest, "schema": 99}), "has schema 99, and this version of cldnet reads 1 to 6"),
    "no schema": (damage(lambda manifest: {}), "damaged manifest"),
    "a list for a manifest": (damage(lambda manifest: [1, 2]), "damaged manifest"),
    "no JSON": (damage(lambda manifest: "{nonsense"), "damaged manifest"),
    "no parameters": (damage(lambda m: {**m, "parameters": None}), "is not a valid model"),
    "no labels": (damage(lambda m: {k: v for k, v in m.items() if k != "labels"}), "is not a valid model"),
    "unknown parameter": (
        damage(lambda m: {**m, "parameters": {**m["parameters"], "magic": 1}}),
        "is not a valid model",
    ),
    "a schema of words": (damage(lambda m: {**m, "schema": "two"}), "has schema 'two', and this version"),
    "a million lists": (damage(lambda m: '{"schema": 3, "a": [' + "[]," * 999_999 + "[]]}"), "damaged manifest"),
    "a million lists, one in another": (damage(lambda m: "[" * 1_000_000 + "]" * 1_000_000), "damaged manifest"),
    "lists behind quotes without end": (damage(lambda m: '"' + '\\"' * 1_000_000 + "[" * 999_999), "damaged manifest"),
    "too many nested lists": (damage(lambda m: {**m, "a": json.loads("[" * 99 + "]" * 99)}), "damaged manifest"),
    "a manifest as nobody writes it": (damage(lambda m: json.dumps(m, indent=1)), "changed since it was written"),
    "a bottomless manifest": (damage(lambda m: '{"schema": ' + 99_999 * "["), "damaged manifest"),
    "a tensor too few": (without_a_tensor, "is not a valid model"),
    "tensors of other shapes": (of_other_shapes, "is not a valid model"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_not_a_whole_model_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    change, complaint = DAMAGES[name]
    path = tmp_path / "model"
    make("exact", alpha=1.0).fit(X, Y).save(path)
    change(path)
    began = time.monotonic()
    with pytest.raises(ValueError, match=complaint):
        CLDNetClassifier.load(path)
    assert time.monotonic() - began < 5


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
        with pytest.raises(ValueError, match=r"restore a backup|not one that cldnet wrote|upgrade"):
            CLDNetClassifier.load(path, backbone=module())


OLD = Path(__file__).parents[1] / "fixtures" / "store"


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
        (lambda folder: folder / "missing" / "model", "No such file.*unchanged: create the folder first"),
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
    assert [file.name for file in files_in(tmp_path)] == ["model"]
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
