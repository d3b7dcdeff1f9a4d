"""Files that say of themselves what cannot be: refused before room is made for them, in a sentence, whatever was forged."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cldnet.storage as store
from cldnet import CLDNetClassifier
from cldnet.methods.learner import Setting
from cldnet.nets import RandomReLU
from cldnet.storage.checkpoint import SessionCheckpoint
from cldnet.storage.validation import describe_error, empty_learner, is_all_state

Y = np.arange(18) % 3
X = np.random.default_rng(0).normal(size=(18, 4)) + 3 * Y[:, None]
Forgery = Callable[[dict[str, Tensor], dict[str, Any]], Any]


class Pooled(nn.Module):
    """A module that takes images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x[:, None])
        return found


def exact() -> CLDNetClassifier:
    return CLDNetClassifier(backbone=RandomReLU((4,), 20, seed=0), capacity=6, random_state=0).fit(X, Y)


def hbo() -> CLDNetClassifier:
    small: dict[str, Any] = {"capacity": 6, "embed_dim": 8, "epochs": 1, "random_state": 0}
    return CLDNetClassifier("hbo", Pooled(), input_shape=(2, 2), **small).fit(X, Y)


def said(*path: str, value: Any) -> Forgery:
    def forge(tensors: dict[str, Tensor], manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return forge


def held(name: str, change: Callable[[Tensor], Tensor]) -> Forgery:
    return lambda tensors, manifest: tensors.update({name: change(tensors[name])})


def put(place: int, value: float) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.flatten().index_fill(0, torch.tensor([place]), value).reshape(tensor.shape)


FOUR = {"capacity": 6, "kind": "int", "labels": [0, 1, 2, 3], "retired": [], "counts": [1, 1, 1, 1]}
SEVEN = torch.tensor([7], dtype=torch.uint8).view(torch.bool)[0]
FORGERIES: dict[str, tuple[Forgery, str]] = {
    "room for 10⁹ classes": (said("parameters", "capacity", value=10**9), "'class_sums' is .* of shape|overflow"),
    "room beyond any number": (said("parameters", "capacity", value=2**63 - 1), "'class_sums' is .* of shape|overflow"),
    "10⁸ features": (said("parameters", "backbone", "options", "features", value=10**8), "'features.weight' is .* of shape"),
    "features of words": (said("parameters", "backbone", "options", "features", value="many"), "features='many'"),
    "inputs without end": (said("inputs", "shape", value=[2**40]), "inputs of shape .* are not possible"),
    "a million threads": (said("parameters", "n_threads", value=10**6), "n_threads=1000000 is not valid"),
    "a seed of words": (said("parameters", "random_state", value="dice"), "random_state='dice' is not valid"),
    "epochs of words": (said("parameters", "epochs", value="ten"), "epochs='ten' should be a whole number"),
    "another kind": (said("kind", value="recipe"), "a file of another kind, 'recipe'"),
    "mixed labels": (said("labels", "labels", value=[0, "1", 2]), "not of the type 'int'"),
    "a label more": (said("labels", value=FOUR), "have 3 classes .* its labels 4"),
    "another room for labels": (said("labels", "capacity", value=99), "its labels 3 and room for 99"),
    "borrowed labels of another kind": (said("borrowed", value=["owl"]), "not of the type of its other labels"),
    "numbers of another type": (held("class_sums", Tensor.float), "'class_sums' is float32"),
    "a tensor more": (lambda tensors, _: tensors.update(more=torch.ones(1)), "'more' is float32 of shape .1,., expected none"),
    "more classes than labels": (held("counters", put(1, 5)), "have 5 classes"),
    "fewer than no tasks": (held("counters", put(0, -1)), "counters has negative values"),
    "a negative weight": (held("class_weights", put(0, -1.0)), "class_weights has negative values"),
    "weight of a class that is not there": (held("class_weights", put(5, 1.0)), "never learned"),
    "more samples than the model": (held("class_weights", put(0, 1e6)), "more samples than the model"),
    "a sum that is no number": (held("class_sums", put(0, float("nan"))), "class_sums has values that are not finite"),
    "a spread of nothing": (held("features.scale.spread", put(1, 0.0)), "spread has values of 0 or less"),
    "a session of numbers": (said("stream", "session", value=7), "7 is not a session's digest"),
    "half a generator": (held("random", lambda state: state[:-9]), "'random' is uint8"),
    "a generator of nothing": (held("random", torch.zeros_like), "mt19937"),
    "a truth that is neither": (held("features.scale.fitted", lambda _: SEVEN), "neither true nor false"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_model_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    forge, complaint = FORGERIES[name]
    exact().save(tmp_path / "model")
    tensors, manifest = store.read(tmp_path / "model")
    forge(tensors, manifest)
    store.write(tmp_path / "model", tensors, manifest)
    with pytest.raises(ValueError, match=rf"is not a valid model \(.*({complaint}).*\): restore a backup\."):
        CLDNetClassifier.load(tmp_path / "model")


def test_directions_whose_squares_are_no_numbers_are_refused(tmp_path: Path) -> None:
    clf = CLDNetClassifier(backbone=RandomReLU((4,), 20, seed=0), capacity=6, gram=5, random_state=0).fit(X, Y)
    clf.save(tmp_path / "model")
    tensors, manifest = store.read(tmp_path / "model")
    store.write(tmp_path / "model", {**tensors, "second.directions": tensors["second.directions"] - 1e300}, manifest)
    with pytest.raises(ValueError, match=r"second.directions has values beyond 1e\+150"):
        CLDNetClassifier.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["rows", "class_weights"])
def test_more_rows_than_can_have_been_are_refused(tmp_path: Path, name: str) -> None:
    CLDNetClassifier(capacity=3, random_state=0).fit(np.eye(4), [0, 0, 1, 1]).save(tmp_path / "model")
    tensors, manifest = store.read(tmp_path / "model")
    store.write(tmp_path / "model", {**tensors, name: torch.full_like(tensors[name], 1e300)}, manifest)
    with pytest.raises(ValueError, match=rf"{name} has values beyond 1e\+150"):
        CLDNetClassifier.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        ([1, 1, 0, 0, 0, 0], "classes without a vector"),
        ([1, 1, 1, 1, 0, 0], "vectors without a class"),
        ([1, 1, -1, 0, 0, 0], "classes without a vector"),
        ([1, 1, 7, 0, 0, 0], "more vectors than the 8 of the table"),
        ([2**62, 2**62, 2**62, 0, 0, 0], "more vectors than the 8 of the table"),  # their sum would overflow
        ([1, 1, 1], r"'bound' is int64 of shape \(3,\)"),
    ],
)
def test_bindings_to_vectors_that_cannot_be_are_refused(bound: list[int], why: str, tmp_path: Path) -> None:
    hbo().save(tmp_path / "model")
    tensors, manifest = store.read(tmp_path / "model")
    assert tensors["bound"].tolist() == [1, 1, 1, 0, 0, 0]
    store.write(tmp_path / "model", {**tensors, "bound": torch.tensor(bound)}, manifest)
    with pytest.raises(ValueError, match=why):
        CLDNetClassifier.load(tmp_path / "model", backbone=Pooled())


@pytest.mark.parametrize("shape", [[1 << 13, 1 << 13], [1, 1 << 26], [4, 3]])
def test_a_users_module_is_not_tried_on_images_of_a_size_that_a_stranger_chose(
    shape: list[int], tmp_path: Path
) -> None:
    hbo().save(tmp_path / "model")
    tensors, manifest = store.read(tmp_path / "model")
    manifest["inputs"]["shape"] = manifest["fingerprint"]["input_shape"] = shape
    store.write(tmp_path / "model", tensors, manifest)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"too large for the module|but another output"):
        CLDNetClassifier.load(tmp_path / "model", backbone=Pooled())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # kilobytes


def test_a_file_says_that_it_is_older_in_vain(tmp_path: Path) -> None:
    exact().save(tmp_path / "model")
    content = (tmp_path / "model").read_bytes()
    schema = rb"\"schema\": " + str(store.SCHEMA).encode()
    assert content.count(schema) == 1
    (tmp_path / "model").write_bytes(content.replace(schema, rb"\"schema\": 1"))
    with pytest.raises(ValueError, match="has changed since it was written"):
        CLDNetClassifier.load(tmp_path / "model")


def test_loading_brings_no_modules_that_take_a_second(tmp_path: Path) -> None:
    exact().save(tmp_path / "model")
    code = (
        f"import sys, cldnet; cldnet.CLDNetClassifier.load({str(tmp_path / 'model')!r}); print('sympy' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("order", lambda order: order[:-1], "its order of samples is invalid"),
        ("order", lambda order: order * 0, "its order of samples is invalid"),
        ("losses", lambda losses: torch.cat([losses, losses, torch.ones(9)]), "not have one loss for each"),
        ("chance", lambda chance: chance[:9], "RNG"),
        ("state/embedding.weight", lambda weight: weight * torch.nan, "not finite"),
        ("state/embedding.weight", lambda weight: weight[:1], "does not belong to this session"),
        ("state/counters", torch.ones_like, "it has another number of tasks or classes"),
    ],
)
def test_a_session_that_was_forged_is_refused_in_a_sentence(
    name: str, change: Callable[[Tensor], Tensor], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(nn.Linear(4, 5))
    clf = CLDNetClassifier("hbo", net, capacity=4, embed_dim=8, epochs=2, batch_size=6, random_state=0)
    monkeypatch.setattr(
        SessionCheckpoint, "remove", lambda self: None
    )  # as if it had been killed after the last writing
    with clf.session(tmp_path / "work", every=0):
        clf.partial_fit(X, Y)
    tensors, manifest = store.read(tmp_path / "work")
    store.write(tmp_path / "work", {**tensors, name: change(tensors[name])}, manifest)
    again = CLDNetClassifier("hbo", net, capacity=4, embed_dim=8, epochs=2, batch_size=6, random_state=0)
    with pytest.raises(ValueError, match=f"{complaint}.*delete it, and begin again"), again.session(tmp_path / "work"):
        again.partial_fit(X, Y)


@pytest.mark.parametrize("wrapped", [ValueError, TypeError])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_not_called_a_fault_of_the_file(error: Exception, wrapped: type[Exception]) -> None:
    def fail() -> None:
        with describe_error("model", "model"):
            try:
                raise error
            except (MemoryError, RuntimeError) as first:
                raise wrapped(str(first)) from first

    with pytest.raises(
        MemoryError, match="not enough memory for the content of 'model': close other programs"
    ) as caught:
        fail()
    assert caught.value.__cause__ is error


def test_whether_all_tensors_of_a_learner_are_in_its_state() -> None:
    learner = empty_learner("exact", "random-relu", Setting((4,), 2, 0), {})
    assert is_all_state(learner)
    learner.features.aside = torch.zeros(1)
    assert not is_all_state(learner)
    del learner.features.aside
    learner.features.register_buffer("aside", torch.zeros(1), persistent=False)
    assert not is_all_state(learner)
