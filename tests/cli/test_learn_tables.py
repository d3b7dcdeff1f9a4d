"""`cldnet learn` and its sisters on tables of numbers: lessons, gates, thresholds, duplicates, classes by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from cldnet import CLDNetClassifier
from cldnet.cli import app

pytest.importorskip("pyarrow")
CENTERS = {"cat": (0.0, 0.0), "dog": (6.0, 0.0), "owl": (0.0, 6.0)}


def run(*arguments: object, **more: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **more)


def write(
    name: str, *labels: str, count: int = 60, at: str | None = None, seed: int = 0, columns: str = "long,wide"
) -> str:
    rng = np.random.default_rng(seed)
    lines = [f"{columns},label"]
    for label in labels:
        lines += [f"{x},{y},{label}" for x, y in CENTERS[at or label] + rng.normal(size=(count, 2))]
    Path(name).write_text("\n".join(lines))
    return name


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    answer = run("learn", "pets.cldnet", write("january.csv", "cat", "dog"))
    assert answer.exit_code == 0, answer.exception
    assert "learned  120 rows of 2 classes" in answer.output
    assert answer.output.endswith(" MB in memory\n")
    return "pets.cldnet"


def test_tables_are_learned_asked_about_evaluated_and_forgotten(model: str) -> None:
    assert "new  owl" in run("learn", model, write("february.csv", "owl")).output
    asked = run("predict", model, write("new.csv", "owl", "cat", count=3, seed=1), "--json")
    assert [each["label"] for each in json.loads(asked.stdout)] == ["owl"] * 3 + ["cat"] * 3
    assert json.loads(asked.stdout)[3]["row"] == "row 4"
    found = json.loads(run("eval", model, "new.csv", "--json").stdout)
    assert found["rows"] == {"known": 6, "unknown": 0, "unread": 0}
    assert "forgot  60 rows" in run("forget", model, "february.csv").output
    assert CLDNetClassifier.load(model).classes_.tolist() == ["cat", "dog"]


def test_columns_go_by_their_names(model: str) -> None:
    table = Path(write("new.csv", "dog", count=4, seed=1)).read_text().splitlines()
    swapped = [",".join(line.split(",")[1::-1]) for line in table]  # without labels
    Path("swapped.csv").write_text("\n".join(swapped))
    assert run("predict", model, "swapped.csv").output == run("predict", model, "new.csv").output
    Path("other.csv").write_text("long,z\n1,2\n")
    assert "lacks the columns 'wide'" in str(run("predict", model, "other.csv").exception)
    assert "were learned" not in str(run("learn", model, write("odd.csv", "dog", columns="wide,long")).exception)


def test_a_harmful_lesson_is_refused_and_the_file_stays_as_it_was(model: str) -> None:
    before = Path(model).read_bytes()
    held = write("held.csv", "cat", "dog", count=50, seed=2)
    refused = run("learn", model, write("wrong.csv", "dog", at="cat", count=2000, seed=3), "--check", held)
    assert refused.exit_code == 1
    assert "Refused: accuracy fell by " in refused.stderr
    assert "more than 1:" in refused.stderr
    assert "Classes that lost: cat 5" in refused.stderr
    assert Path(model).read_bytes() == before
    assert run("learn", model, "wrong.csv", "--check", held, "--max-drop", 100).exit_code == 0
    assert Path(model).read_bytes() != before


def test_a_good_lesson_passes_the_gate(model: str) -> None:
    held = write("held.csv", "cat", "dog", "owl", count=50, seed=2)
    answer = run("learn", model, write("february.csv", "owl"), "--check", held)
    assert answer.exit_code == 0, answer.output
    assert "before the lesson" in answer.output
    assert "on 100 rows of 2 classes" in answer.output  # the new class was not known before


def test_a_lesson_that_passes_names_the_classes_that_lost(model: str) -> None:
    held = [write("held.csv", "cat", count=1000, seed=2), write("few.csv", "dog", count=3, seed=3, at="cat")]
    Path("held.csv").write_text("\n".join([Path(held[0]).read_text(), *Path(held[1]).read_text().splitlines()[1:]]))
    assert run("learn", model, write("wrong.csv", "dog", at="cat", count=500, seed=3)).exit_code == 0
    answer = run("learn", model, write("right.csv", "cat", count=2000, seed=4), "--check", "held.csv")
    assert answer.exit_code == 0, answer.output
    assert "   lost  dog 3 of 3 right before, 0 after\n" in answer.output


def test_a_gate_needs_a_model_and_held_out_data_of_its_classes(model: str) -> None:
    held = write("held.csv", "owl")
    assert "leave --check out" in str(run("learn", "new", "january.csv", "--check", held).exception)
    assert "None of the held-out samples" in str(run("learn", model, "january.csv", "--check", held).exception)
    assert "--max-drop belongs to --check" in str(run("learn", model, "january.csv", "--max-drop", 2).exception)
    assert not Path("new").exists()


def test_the_same_table_twice_is_noticed_and_asked_about(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Path(model).read_bytes()
    again = run("learn", model, "january.csv")
    assert again.exit_code == 1
    assert "learned the rows of january.csv before, in lesson 1 (january," in str(again.exception)
    assert Path(model).read_bytes() == before
    monkeypatch.setattr("cldnet.cli.learn._asks", lambda: True)
    refused = run("learn", model, "january.csv", input="n\n")
    assert refused.exit_code == 1
    assert isinstance(refused.exception, SystemExit), "it is no error"
    assert refused.stderr.endswith("Nothing was learned.\n")
    assert Path(model).read_bytes() == before
    assert run("learn", model, "january.csv", input="y\n").exit_code == 0
    assert CLDNetClassifier.load(model).statistics().rows == 240
    assert run("learn", model, "january.csv", "--allow-duplicates").exit_code == 0
    assert CLDNetClassifier.load(model).statistics().rows == 360


def test_lessons_have_the_name_of_their_table_or_one_of_their_own(model: str) -> None:
    run("learn", model, write("february.csv", "owl"), "--name", "owls of the wood")
    assert [each.name for each in CLDNetClassifier.load(model).lessons_] == ["january", "owls of the wood"]


def test_sums_of_lessons_are_kept_if_asked_for(model: str) -> None:
    assert run("learn", "kept", "january.csv", "--keep-lessons", 1).exit_code == 0
    assert CLDNetClassifier.load("kept").lessons_[0].kept
    assert "another --keep-lessons" in str(run("learn", model, "january.csv", "--keep-lessons", 1).exception)


def test_a_class_is_forgotten_by_its_name(model: str) -> None:
    answer = run("forget", model, "--class", "cat")
    assert answer.exit_code == 0, answer.exception
    assert "forgot  1 class: cat" in answer.output
    assert CLDNetClassifier.load(model).classes_.tolist() == ["dog"]
    for arguments in ((), ("january.csv", "--class", "dog")):
        assert "Give the samples to forget" in str(run("forget", model, *arguments).exception)


def test_reject_has_a_threshold(model: str) -> None:
    Path("far.csv").write_text("long,wide\n0,0\n3,0.5\n80,-90\n")

    def known(*options: object) -> list[bool]:
        answer = run("predict", model, "far.csv", "--json", *options)
        return [each["label"] is not None for each in json.loads(answer.stdout)]

    assert known() == [True, True, True]
    assert known("--reject")[2] is False
    shares = [each["known"] for each in json.loads(run("predict", model, "far.csv", "--reject", "--json").stdout)]
    for threshold in (0.001, 0.05, 0.5, 0.999):
        assert known("--threshold", threshold) == [share >= threshold for share in shares]
    assert known("--reject") == known("--threshold", 0.05)
    assert "between 0 and 1" in str(run("predict", model, "far.csv", "--threshold", 5).exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("learn", "new", "january.csv", "--size", 64), "--size has no meaning for a model of rows"),
        (("learn", "new", "january.csv", "--backbone", "minilm"), "--backbone has no meaning"),
        (("learn", "pets.cldnet", "texts.csv"), "the model has learned rows, not texts"),
        (("predict", "pets.cldnet", "hello"), "give tables, and not 'hello'"),
        (("eval", "pets.cldnet", "owls.csv"), "The model knows none of the classes"),
        (("learn", "new", "texts.csv", "--text", "words"), "no column 'words'"),
    ],
)
def test_what_does_not_fit_is_said_and_changes_nothing(model: str, arguments: tuple[object, ...], words: str) -> None:
    Path("texts.csv").write_text("text,label\nhello,greet\n")
    write("owls.csv", "owl")
    before = Path(model).read_bytes()
    assert words in str(run(*arguments).exception)
    assert Path(model).read_bytes() == before
    assert not Path("new").exists()
