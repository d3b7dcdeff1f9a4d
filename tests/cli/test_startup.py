"""What `cldnet inspect` and `predict` import, and what they find and refuse without it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import cldnet.storage as store
from cldnet import CLDNetClassifier
from cldnet.bench.formatting import human_bytes
from cldnet.cli import app
from cldnet.estimator.predictor import Predictor
from cldnet.nets import Expanded, RandomReLU, build_described
from cldnet.storage.header import read_header

HEAVY = ("torch", "numpy", "sklearn", "scipy", "pandas", "filelock")
PHOTOS = np.random.default_rng(0).integers(0, 256, (12, 3, 16, 16), dtype=np.uint8)
LARGE = PHOTOS.repeat(2, 2).repeat(2, 3)
LABELS = ["owl", "wren"] * 6
STORE = Path(__file__).parents[1] / "fixtures" / "store"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def imported_by(*arguments: object) -> set[str]:
    """Heavy packages that a command imports, in a process of its own."""
    code = (
        "import sys; from typer.testing import CliRunner; from cldnet.cli import app; "
        f"answer = CliRunner().invoke(app, {[*map(str, arguments)]}); assert not answer.exit_code, answer.exception; "
        f"print(*(name for name in {HEAVY} if name in sys.modules))"
    )
    return {*subprocess.check_output([sys.executable, "-c", code], text=True).split()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "birds.cldnet"
    CLDNetClassifier(capacity=4, random_state=0).fit(PHOTOS, LABELS).refresh().save(path)
    return path


def photo(model: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    path = model.with_name("photo.png")
    image.fromarray(PHOTOS[0].transpose(1, 2, 0)).save(path)
    return path


def test_inspect_imports_neither_torch_nor_numpy(model: Path) -> None:
    assert imported_by("inspect", model) == set()


def test_predict_does_not_import_scikit_learn(model: Path) -> None:
    assert imported_by("predict", model, photo(model)) <= {"torch", "numpy", "filelock"}


def test_predict_does_not_search_the_objects_of_torch_for_garbage(model: Path) -> None:
    code = (
        "import gc; from typer.testing import CliRunner; from cldnet.cli import app; found = []\n"
        "gc.callbacks.append(lambda phase, _: phase == 'start' and found.append(len(gc.get_objects())))\n"
        f"CliRunner().invoke(app, ['predict', {str(model)!r}, {str(photo(model))!r}]); import torch; print(max(found))"
    )
    assert int(subprocess.check_output([sys.executable, "-c", code], text=True)) < 100_000


@pytest.mark.parametrize("command", ["inspect", "predict"])
def test_a_changed_byte_is_found_by_both(model: Path, command: str) -> None:
    more = [photo(model)] if command == "predict" else []
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    assert "has changed since it was written (wrong checksum)" in str(run(command, model, *more).exception)


@pytest.mark.parametrize("layout", [1, 2, 3, 4])
@pytest.mark.parametrize("solver", ["exact", "hbo"])
def test_files_of_every_layout_are_inspected(layout: int, solver: str) -> None:
    answer = run("inspect", STORE / str(layout) / f"{solver}.cldnet")
    if (solver, layout < 3) == ("hbo", True):  # the first two layouts have no sizes, and its module is its user's
        assert "module of your own" in str(answer.exception)
        return
    assert "3 classes, room for 5 more" in answer.output, answer.exception
    samples = {line.split()[0]: line.split()[1] for line in answer.output.splitlines() if line.startswith(" owl")}
    assert samples == {"owl": "unknown" if layout < 3 else "6"}


def test_the_solution_is_a_kind_of_its_own_and_everything_adds_up(model: Path) -> None:
    shown = run("inspect", model).output
    clf = CLDNetClassifier.load(model)
    solution = sum(each.nbytes for each in clf.model_.exact.solution_state().values())
    assert solution > 0
    assert f"solution {human_bytes(solution)}" in shown
    assert f"2 classes, room for 2 more, {human_bytes(clf.footprint().total + solution)}" in shown


def test_a_model_without_a_limit_and_one_over_a_users_module_are_inspected(tmp_path: Path) -> None:
    CLDNetClassifier(random_state=0).fit(PHOTOS, LABELS).save(tmp_path / "open")
    assert re.search(r"open: 2 classes, [0-9.]+ MB in memory\n", run("inspect", tmp_path / "open").output)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 10))
    CLDNetClassifier(backbone=net, capacity=4, random_state=0).fit(PHOTOS, LABELS).save(tmp_path / "own")
    assert "backbone  a module of your own\n" in run("inspect", tmp_path / "own").output


@pytest.mark.parametrize(
    ("place", "forged"),
    [
        (("labels", "labels"), [["owl"], "wren"]),
        (("labels", "counts"), [-1, 6]),
        (("labels", "counts"), [6]),
        (("labels", "days"), [["2026-01-01"], None]),
        (("labels", "retired"), [{}]),
        (("labels", "capacity"), "4"),
        (("stream", "tasks"), 1.5),
        (("stream", "sizes"), [[1, {"sums": -8}, False]]),
        (("stream", "sizes"), [[]]),
        (("inputs", "shape"), "3"),
        (("inputs",), None),
        (("parameters", "solver"), ["exact"]),
        (("parameters", "backbone"), {"kind": "expanded", "options": {"bodies": [{}]}}),
        (("parameters", "backbone"), {"kind": "expanded", "options": 3}),
        (("kind",), "statistics"),
    ],
)
def test_a_forged_manifest_is_refused_in_a_sentence(model: Path, place: tuple[str, ...], forged: Any) -> None:
    tensors, manifest = store.read(model)
    table = manifest
    for name in place[:-1]:
        table = table[name]
    table[place[-1]] = forged
    store.write(model, tensors, manifest)
    error = run("inspect", model).exception
    assert type(error) is ValueError
    assert re.fullmatch(r"'.*birds\.cldnet' is not a valid model \(.*\): restore a backup\.", str(error))


def test_predictions_are_those_of_the_classifier_and_nothing_is_solved(model: Path) -> None:
    clf, predictor = CLDNetClassifier.load(model), Predictor.load(model)
    assert predictor.model.exact.is_fresh
    assert (predictor.predict_proba(PHOTOS) == clf.predict_proba(PHOTOS)).all()
    shares, known = predictor.predict_known(PHOTOS)
    assert (shares == clf.predict_proba(PHOTOS)).all()
    assert (known == clf.known_probability(PHOTOS)).all()
    with pytest.raises(ValueError, match="made for"):
        predictor.predict_proba(PHOTOS[:, :, :8])


def test_a_file_with_a_parameter_that_no_classifier_has_is_refused(model: Path) -> None:
    tensors, manifest = store.read(model)
    manifest["parameters"]["wings"] = 2
    store.write(model, tensors, manifest)
    for load in (CLDNetClassifier.load, Predictor.load):
        with pytest.raises(ValueError, match="no classifier has a parameter 'wings'"):
            load(model)


def test_a_model_without_classes_predicts_nothing(model: Path) -> None:
    CLDNetClassifier.load(model).forget_class("owl").forget_class("wren").save(model)
    with pytest.raises(ValueError, match="has forgotten all its classes"):
        Predictor.load(model).predict_proba(PHOTOS)


@pytest.fixture
def expanded(tmp_path: Path) -> Path:
    """A model over a small pretrained net, which needs no published weights here."""
    made = Expanded((3, 32, 32), features=50, seed=0, bodies=[{"net": "efficientnet-lite0", "size": 32}])
    source = torch.Generator().manual_seed(0)
    for name, tensor in made.body.state_dict().items():
        if name.endswith("weight"):
            tensor.copy_(torch.randn(tensor.shape, generator=source) / tensor[0].numel() ** 0.5)
    made.expansion.fit(made.body(torch.zeros(2, 3, 32, 32)) + torch.rand(2, 1280, generator=source))
    path = tmp_path / "expanded.cldnet"
    CLDNetClassifier(backbone=made, capacity=4, random_state=0).fit(LARGE, LABELS).refresh().save(path)
    return path


def test_a_pretrained_net_is_loaded_bit_for_bit_in_the_same_memory_layout(expanded: Path) -> None:
    clf, predictor = CLDNetClassifier.load(expanded), Predictor.load(expanded)
    assert (predictor.predict_proba(LARGE) == clf.predict_proba(LARGE)).all()
    again = build_described(clf.backbone.describe()).state_dict()
    for model in (clf.model_, predictor.model):
        loaded = model.exact.features.state_dict()
        assert {name: tensor.stride() for name, tensor in loaded.items()} == {
            name: tensor.stride() for name, tensor in again.items()
        }


def test_a_loaded_classifier_begins_again_with_the_map_that_it_was_given(model: Path) -> None:
    given = RandomReLU((3, 16, 16), 20, seed=3)
    first = CLDNetClassifier(backbone=given, random_state=0).fit(PHOTOS, LABELS)
    first.save(model)
    clf = CLDNetClassifier.load(model)
    assert torch.equal(clf.backbone.weight, given.weight)
    assert not clf.backbone.fitted
    assert (clf.fit(PHOTOS, LABELS).predict_proba(PHOTOS) == first.predict_proba(PHOTOS)).all()


def test_no_weights_are_drawn_to_predict(expanded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn", None)
    assert Predictor.load(expanded).model.exact.is_fresh


def test_sums_that_were_solved_are_compared_with_the_checksum_and_not_kept(model: Path) -> None:
    assert Predictor.load(model).model.exact.second.packed.is_meta
    begin, content = read_header(model)[0]["second.packed"].begin, bytearray(model.read_bytes())
    content[8 + int.from_bytes(content[:8], "little") + begin] ^= 1
    model.write_bytes(content)
    with pytest.raises(ValueError, match="has changed since it was written"):
        Predictor.load(model)


def test_without_a_solution_the_sums_are_read_and_solved(model: Path) -> None:
    clf = CLDNetClassifier.load(model)
    clf.partial_fit(PHOTOS[:1], LABELS[:1]).save(model)
    predictor = Predictor.load(model)
    assert not any(tensor.is_meta for tensor in predictor.model.learner.buffers())
    assert (predictor.predict_proba(PHOTOS) == CLDNetClassifier.load(model).predict_proba(PHOTOS)).all()


def test_a_map_with_tensors_outside_its_state_is_built_in_full(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Predictor.load(model).predict_proba(PHOTOS)
    monkeypatch.setattr("cldnet.estimator.model.is_all_state", lambda learner: False)
    assert (Predictor.load(model).predict_proba(PHOTOS) == expected).all()
    assert (CLDNetClassifier.load(model).predict_proba(PHOTOS) == expected).all()
