"""Feature maps on disk, shared by models that are to add up."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cldnet import CLDNetClassifier, storage
from cldnet.device import generator
from cldnet.nets import FeatureMap, RandomFourier, RandomReLU, WhitenedPatches
from cldnet.storage.maps import load_map, save_map


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def fitted(made: FeatureMap) -> FeatureMap:
    made.fit(normal(30, *made.input_shape, seed=4) * 2 + 1)
    return made


MAPS: list[Callable[[], FeatureMap]] = [
    lambda: RandomReLU((4,), 20, seed=3),
    lambda: RandomReLU((2, 3, 3), 20, seed=3),
    lambda: RandomFourier((4, 4), 20, seed=3),
    lambda: RandomFourier((4,), 20, seed=3, bandwidth=0.5),
    lambda: WhitenedPatches((12, 12), 4, seed=3, windows=2, mirror=False),
]


@pytest.mark.parametrize("make", MAPS)
def test_a_map_comes_back_with_the_same_id_and_features(make: Callable[[], FeatureMap], tmp_path: Path) -> None:
    made = fitted(make())
    save_map(made, tmp_path / "map")
    loaded = load_map(tmp_path / "map")
    assert type(loaded) is type(made)
    assert loaded.map_id == made.map_id
    assert loaded.fitted
    assert loaded.describe() == made.describe()
    x = normal(9, *made.input_shape)
    assert torch.equal(loaded(x), made(x))
    save_map(loaded, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "map").read_bytes()


def test_users_with_one_map_file_have_models_over_the_same_features(tmp_path: Path) -> None:
    save_map(fitted(RandomReLU((4,), 20, seed=3)), tmp_path / "map")
    X, y = normal(40, 4).numpy(), np.arange(40) % 2
    scores = []
    for _ in range(2):
        user = CLDNetClassifier(backbone=load_map(tmp_path / "map"), capacity=4, alpha=1.0, random_state=None)
        scores.append(user.partial_fit(X, y).decision_function(X))
    assert np.array_equal(*scores)


def test_a_map_that_has_not_been_fitted_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not fitted: call its fit\(X\) first"):
        save_map(RandomReLU((4,), 20, seed=3), tmp_path / "map")
    assert list(tmp_path.iterdir()) == []


def test_a_map_with_code_of_the_user_is_not_written(tmp_path: Path) -> None:
    class Mine(RandomReLU):
        pass

    for made in (RandomReLU((3,), 20, seed=3, net=nn.Linear(4, 3)), Mine((3,), 20, seed=3)):
        made.fit(normal(9, 4 if made.net is not None else 3))
        with pytest.raises(ValueError, match="code cannot be saved"):
            save_map(made, tmp_path / "map")
    with pytest.raises(ValueError, match="Linear is not a feature map"):
        save_map(nn.Linear(4, 3), tmp_path / "map")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_not_taken_for_a_map_nor_a_map_for_a_model(tmp_path: Path) -> None:
    X, y = normal(20, 4).numpy(), np.arange(20) % 2
    CLDNetClassifier(capacity=4, alpha=1.0, random_state=0).fit(X, y).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"contains a model, not a feature map\. Load it with CLDNetClassifier\.load"):
        load_map(tmp_path / "model")
    save_map(fitted(RandomReLU((4,), 20, seed=3)), tmp_path / "map")
    with pytest.raises(ValueError, match="map"):
        CLDNetClassifier.load(tmp_path / "map")
    storage.write(tmp_path / "other", {"a": torch.ones(1)}, {"kind": "statistics"})
    with pytest.raises(ValueError, match=r"contains a statistics, not a feature map\.$"):
        load_map(tmp_path / "other")


# -- files that a stranger made, or that suffered ----------------------------------------------------------------------


def manifest_of(change: dict[str, Any]) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, manifest: manifest.update(change)


def tensor(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def apply(tensors: dict[str, Tensor], manifest: dict[str, Any]) -> None:
        tensors[name] = change(tensors[name])

    return apply


DESCRIPTION = RandomFourier((4,), 20, seed=3).describe()
DAMAGES: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, Any]], Any], str]] = {
    "no description": (manifest_of({"map": None}), "is not a valid feature map"),
    "another kind": (manifest_of({"map": {**DESCRIPTION, "kind": "builtins.eval"}}), "no kind of feature map"),
    "another size": (manifest_of({"map": {**DESCRIPTION, "input_shape": [5]}}), "'scale.mean' is .*, expected"),
    "another make": (manifest_of({"map": {**DESCRIPTION, "kind": "random-relu"}}), "known are features"),
    "enormous": (manifest_of({"map": {**DESCRIPTION, "options": {"features": 10**15}}}), "should be a whole number"),
    "a tensor too few": (lambda tensors, manifest: tensors.pop("phase"), "'phase' is missing"),
    "a tensor too many": (lambda tensors, manifest: tensors.update(a=torch.ones(1)), "'a' is .*, expected none"),
    "another type": (tensor("weight", lambda weight: weight.float()), "'weight' is .*, expected"),
    "other numbers": (tensor("weight", lambda weight: -weight), "not those of the map that it names"),
    "not fitted": (tensor("scale.fitted", torch.logical_not), "not those of the map that it names"),
    "no bandwidth": (tensor("bandwidth", torch.zeros_like), "bandwidth has values of 0 or less"),
    "no numbers": (tensor("scale.spread", lambda spread: spread * torch.nan), "spread has values that are not finite"),
    "no id": (manifest_of({"map_id": None}), "not those of the map that it names"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_file_that_is_not_a_whole_map_is_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    change, complaint = DAMAGES[name]
    path = tmp_path / "map"
    save_map(fitted(RandomFourier((4,), 20, seed=3)), path)
    tensors, manifest = storage.read(path)
    change(tensors, manifest)
    storage.write(path, tensors, manifest)
    with pytest.raises(ValueError, match=complaint) as refused:
        load_map(path)
    assert str(refused.value).startswith(f"{str(path)!r} ")
    assert str(refused.value).endswith("restore a backup.")


def test_a_map_that_could_not_be_loaded_is_not_written(tmp_path: Path) -> None:
    path, made = tmp_path / "map", fitted(RandomFourier((4,), 20, seed=3))
    save_map(made, path)
    before = path.read_bytes()
    made.get_buffer("scale.spread")[1] = torch.inf
    with pytest.raises(ValueError, match=r"was not saved.*\(scale.spread has values that are not finite\)"):
        save_map(made, path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [before]


def test_a_map_stays_as_it_was_loaded_whatever_becomes_of_its_file(tmp_path: Path) -> None:
    path, made = tmp_path / "map", fitted(RandomFourier((4,), 20, seed=3))
    save_map(made, path)
    loaded = load_map(path)
    path.write_bytes(b"")
    assert loaded.map_id == made.map_id


def test_a_lack_of_memory_is_not_called_a_fault_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_map(fitted(RandomFourier((4,), 20, seed=3)), tmp_path / "map")

    def fail(*arguments: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(RandomFourier, "forward", fail)
    with pytest.raises(MemoryError, match=r"not enough memory for the content of .*map'"):
        load_map(tmp_path / "map")


def test_what_is_no_file_of_ours_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="is not a valid safetensors file"):
        load_map(tmp_path / "pickle")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_map(tmp_path / "nowhere")
