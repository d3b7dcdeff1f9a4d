"""`cldnet lessons`, `undo`, `rename`, `join` and `extend`: what they do to a file, and what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_startup import imported_by
from tests.estimator.test_forget import assert_same_sums, make, rows
from tests.storage.test_lock import held
from typer.testing import CliRunner, Result

import cldnet.storage as store
from cldnet import CLDNetClassifier
from cldnet.cli import app
from cldnet.estimator import history
from cldnet.estimator.teaching import label_of

STORE = Path(__file__).parents[1] / "fixtures" / "store"
NAMES = np.array(["cat", "dog", "emu", "owl"])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def named(*classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = rows(*classes, seed=seed)
    return x, NAMES[y]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(history, "today", lambda: "2026-11-18")
    clf = make(keep_lessons=2).partial_fit(*named(0, 1))
    for name, part in {"more birds": named(1, 2, 3), "7": named(3)}.items():
        with clf.lesson(name):
            clf.partial_fit(*part)
    clf.save(tmp_path / "birds.cldnet")
    return tmp_path / "birds.cldnet"


def test_lessons_are_shown_without_torch(model: Path) -> None:
    shown = run("lessons", model).output
    assert [line.split() for line in shown.splitlines() if line[:7].strip().isdigit()] == [
        ["1", "2026-11-18", "–", "20", "cat,", "dog", "–"],
        ["2", "2026-11-18", "more", "birds", "30", "dog,", "emu,", "owl", "possible"],
        ["3", "2026-11-18", "7", "10", "owl", "possible"],
    ]
    assert imported_by("lessons", model) == set()


def test_lessons_as_json_and_those_of_many_classes(model: Path) -> None:
    clf = CLDNetClassifier.load(model)
    x = np.zeros((200, 4))
    with clf.lesson("[bold]wide\x1b"):
        clf.extend(300).partial_fit(x, [f"class {i}" for i in range(200)]).forget(x[:1], ["class 0"])
    clf.save(model)
    first, *_, wide, forgot = json.loads(run("lessons", model, "--json").output)
    assert first["samples"] == [["cat", 10], ["dog", 10]] or first["samples"] == [["dog", 10], ["cat", 10]]
    assert first.keys() == {"number", "name", "date", "action", "total", "samples", "digest", "repeated", "kept"}
    assert (wide["number"], wide["name"], wide["total"], len(wide["samples"])) == (4, "[bold]wide\x1b", 200, 199)
    assert (forgot["action"], forgot["total"], forgot["samples"], forgot["kept"]) == ("forgot", 1, [], False)
    shown = run("lessons", model).output
    assert "195 more" in " ".join(shown.split())
    assert "forgot 1" in " ".join(shown.split())
    assert "\\x1b" in shown


def test_a_model_without_a_history_says_so_and_other_files_are_refused(model: Path) -> None:
    for solver in ("exact", "hbo"):
        answer = run("lessons", STORE / "5" / f"{solver}.cldnet")
        assert answer.exit_code == 0
        assert "has no lessons: none was recorded, or all were undone." in answer.output
        assert json.loads(run("lessons", STORE / "5" / f"{solver}.cldnet", "--json").output) == []
    assert "the first lesson" in run("lessons", STORE / "6" / "hbo.cldnet").output
    assert "another kind" in str(run("lessons", STORE / "6" / "statistics.cldnet").exception)
    tensors, manifest = store.read(model)
    for spoiled in ({"history": tensors["history"] * 0}, {"history": tensors["history"][:5]}):
        store.write(model, {**tensors, **spoiled}, manifest)
        if len(spoiled["history"]) > 5:
            assert "is not a valid model" in str(run("lessons", model).exception)
    store.write(model, tensors, {**manifest, "kept": [{}]})
    assert "is not a valid model" in str(run("lessons", model).exception)


@pytest.mark.parametrize("lesson", [[], ["7"], ["3"]])
def test_undo_takes_a_lesson_back_by_number_or_name_or_the_last(model: Path, lesson: list[str]) -> None:
    answer = run("undo", model, *lesson)
    assert answer.exit_code == 0, answer.exception
    assert "took back  lesson 3 (7): 10 samples\n" in answer.output
    assert f"model  {model}: 4 classes, room for 4 more" in answer.output.replace("\n", " ")
    assert_same_sums(CLDNetClassifier.load(model), make().fit(*named(0, 1)).partial_fit(*named(1, 2, 3)))


def test_a_model_of_numbered_classes_says_that_it_takes_no_names(tmp_path: Path) -> None:
    make().fit(*rows(0, 1)).save(tmp_path / "model")
    assert "Give such a label, or teach a new model" in str(run("rename", tmp_path / "model", "1", "one").exception)
    assert run("rename", tmp_path / "model", "1", "5").exit_code == 0
    assert CLDNetClassifier.load(tmp_path / "model").classes_.tolist() == [0, 5]


def test_a_model_without_a_limit_is_not_extended(tmp_path: Path) -> None:
    make(capacity="auto").fit(*rows(0, 1)).save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()
    assert "has no limit to its number of classes: there is nothing" in str(
        run("extend", tmp_path / "model", 9).exception
    )
    assert (tmp_path / "model").read_bytes() == before


def test_undo_names_the_classes_that_are_gone_and_says_what_else_can_be_done(model: Path) -> None:
    assert run("undo", model).exit_code == 0
    answer = run("undo", model, "more birds")
    assert "took back  lesson 2 (more birds): 30 samples\n     gone  emu, owl\n" in answer.output
    assert_same_sums(CLDNetClassifier.load(model), make().fit(*named(0, 1)))
    content = model.read_bytes()
    for arguments, sentence in {(): "cldnet forget MODEL DATA", ("9",): "There is no lesson 9"}.items():
        assert sentence in str(run("undo", model, *arguments).exception)
    assert model.read_bytes() == content


def test_undo_tells_of_the_trace_in_the_map(tmp_path: Path) -> None:
    clf = CLDNetClassifier(keep_lessons=1, random_state=0).fit(*named(0, 1))
    clf.save(tmp_path / "model")
    assert "their trace in the map's few statistics stays" in run("undo", tmp_path / "model").stderr
    assert len(CLDNetClassifier.load(tmp_path / "model").classes_) == 0


def test_classes_are_renamed_joined_and_given_room(model: Path) -> None:
    for arguments, said in {
        ("rename", model, "emu", "rhea"): "  renamed  emu to rhea\n",
        ("join", model, "rhea", "owl", "--into", "bird"): "   joined  rhea, owl into bird\n",
        ("extend", model, "9"): " extended  to 9 classes\n",
    }.items():
        answer = run(*arguments)
        assert answer.exit_code == 0, answer.exception
        assert said in answer.output
    assert f"model  {model}: 3 classes, room for 6 more" in answer.output
    clf = CLDNetClassifier.load(model)
    assert clf.classes_.tolist() == ["bird", "cat", "dog"]
    assert clf.model_.exact.is_fresh, "it was saved with its solution"
    assert clf.lessons_[1].samples == {"dog": 10, "bird": 20}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rename", "cat", "dog"], "join_classes"),
        (["rename", "yak", "dog"], "There is no class 'yak'"),
        (["join", "yak", "--into", "dog"], "There is no class 'yak'"),
        (["join", "dog", "--into", "dog"], "There is nothing to join"),
        (["extend", "2"], "a model cannot shrink"),
    ],
)
def test_what_cannot_be_done_leaves_the_file_as_it_was(model: Path, arguments: list[str], sentence: str) -> None:
    content = model.read_bytes()
    answer = run(arguments[0], model, *arguments[1:])
    assert sentence in str(answer.exception)
    assert model.read_bytes() == content


@pytest.mark.parametrize(
    "arguments", [["undo"], ["rename", "cat", "x"], ["join", "cat", "--into", "x"], ["extend", "9"]]
)
def test_a_file_that_another_process_changes_is_not_waited_for_if_asked(model: Path, arguments: list[str]) -> None:
    content = model.read_bytes()
    with held(model):
        answer = run(arguments[0], model, *arguments[1:], "--no-wait")
    assert "The file is locked by process" in str(answer.exception)
    assert model.read_bytes() == content


@pytest.mark.parametrize(
    ("kind", "text", "label"),
    [
        (int, "3", 3),
        (int, "-1", -1),
        (float, "3", 3.0),
        (str, "3", "3"),
        (bool, "True", True),
    ],
)
def test_text_is_taken_for_a_label_of_the_models_type(kind: Callable[[Any], Any], text: str, label: Any) -> None:
    x, y = rows(0, 1)
    found = label_of(make().fit(x, [kind(each) for each in y]), text)
    assert (found, type(found)) == (label, type(label))


@pytest.mark.parametrize(("kind", "text"), [(int, "three"), (int, "01"), (float, "three"), (bool, "yes")])
def test_text_that_is_no_label_of_the_models_type_is_refused(kind: Callable[[Any], Any], text: str) -> None:
    x, y = rows(0, 1)
    with pytest.raises(ValueError, match=f"'{text}' cannot be a label of this model: .* type {kind.__name__}, such as"):
        label_of(make().fit(x, [kind(each) for each in y]), text)
