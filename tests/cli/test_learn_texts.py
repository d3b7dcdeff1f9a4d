"""`cldnet learn` and its sisters on sentences, from tables and from folders of text files."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.nets.berts import save_bert
from typer.testing import CliRunner, Result

from cldnet import CLDNetClassifier
from cldnet.cli import app

pytest.importorskip("transformers")
GREET = ["hello there", "good morning", "hello", "good morning there", "hello good morning"]
CARD = ["my card was stolen", "my card was lost", "where is my card", "card stolen", "is my card lost"]
MUSIC = ["play some music", "turn up the song", "play the song", "music up now", "turn the music up"]


def run(*arguments: object, **more: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **more)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("text") / "bert", pool="mean")


@pytest.fixture
def model(tmp_path: Path, bert: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of greetings and cards."""
    monkeypatch.chdir(tmp_path)
    rows = [*(f"{text},greet" for text in GREET), *(f"{text},card" for text in CARD)]
    Path("intents.csv").write_text("\n".join(["text,label", *rows]))
    for number, text in enumerate(MUSIC):
        Path("more/music").mkdir(parents=True, exist_ok=True)
        Path(f"more/music/{number}.txt").write_text(text)
    answer = run("learn", "intents.cldnet", "intents.csv", "--backbone", bert, "--memory", 1, "--keep-lessons", 1)
    assert answer.exit_code == 0, answer.exception
    assert "learned  10 texts of 2 classes" in answer.output
    return "intents.cldnet"


def answers(model: str, *asked: str, **more: Any) -> list[dict[str, Any]]:
    answer = run("predict", model, *asked, "--json", **more)
    assert answer.exit_code == 0, answer.exception
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def test_the_size_that_is_said_counts_kept_lessons(model: str, bert: str) -> None:
    options = ["--backbone", bert, "--memory", 1, "--keep-lessons", 2]
    said = re.search(r"will take up to ([0-9.]+) MB", run("learn", "other", "intents.csv", *options).output)
    assert said is not None
    run("learn", "other", "more")
    assert float(said[1]) == pytest.approx(CLDNetClassifier.load("other").footprint().total / 1e6, rel=0.05)


def test_sentences_are_learned_from_a_table_and_from_text_files(model: str) -> None:
    assert "new  music" in run("learn", model, "more").output
    found = answers(model, "hello there", "card stolen", "turn up the song")
    assert [each["text"] for each in found] == ["hello there", "card stolen", "turn up the song"]
    assert {each["label"] for each in found} <= {"greet", "card", "music"}
    clf = CLDNetClassifier.load(model)
    assert [each["label"] for each in found] == clf.predict([each["text"] for each in found]).tolist()
    lines = run("predict", model, "hello there", "x" * 300).output.splitlines()
    assert lines[0].startswith("hello there: ")
    assert lines[1].startswith(f"{'x' * 79}…: ")


def test_what_is_asked_may_be_in_files_or_come_line_by_line(model: str) -> None:
    Path("asked.tsv").write_text("id\tmessage\n1\thello there\n2\tcard stolen\n")
    Path("one.txt").write_text("where is\nmy card")
    texts = [each["text"] for each in answers(model, "asked.tsv", "one.txt", "hello")]
    assert texts == ["hello there", "card stolen", "where is\nmy card", "hello"]
    assert [each["text"] for each in answers(model, "-", input="hello\n\ngood morning\n")] == ["hello", "good morning"]
    assert isinstance(run("predict", model, "nowhere.txt").exception, FileNotFoundError)
    assert "no file" in str(run("predict", model, "nowhere.csv").exception)
    assert "empty sentence" in str(run("predict", model, " ").exception)


def test_labels_take_the_type_of_the_models(model: str, bert: str) -> None:
    options = ["--backbone", bert, "--memory", 1]
    Path("more/music").rename("more/1")
    Path("numbers.csv").write_text("\n".join(["text,label", *(f"{text},2" for text in CARD * 2)]))
    for first, second, classes in (("more", "numbers.csv", ["1", "2"]), ("numbers.csv", "more", [1, 2])):
        assert run("learn", f"{first}-first", first, *options).exit_code == 0
        answer = run("learn", f"{first}-first", second)
        assert answer.exit_code == 0, answer.exception
        assert f"new  {'2' if first == 'more' else '1'}\n" in answer.output
        assert CLDNetClassifier.load(f"{first}-first").classes_.tolist() == classes
    answer = run("forget", "more-first", "numbers.csv", "--allow-duplicates")
    assert answer.exit_code == 0, answer.exception
    Path("names.csv").write_text("text,label\nhello,a1\n")
    before = Path("numbers.csv-first").read_bytes()
    assert "'a1' cannot be a label of this model" in str(run("learn", "numbers.csv-first", "names.csv").exception)
    assert Path("numbers.csv-first").read_bytes() == before


def test_lessons_have_the_whole_name_of_a_folder_and_a_tables_without_its_ending(model: str) -> None:
    Path("more").rename("music.v2")
    Path("intents.csv").rename("intents.v2.csv")
    long = Path("x" * 220)
    shutil.copytree("music.v2", long)
    Path("cards.csv.gz").write_bytes(gzip.compress("\n".join(["text,label", *(f"{each},a" for each in CARD)]).encode()))
    for source in ("music.v2", "cards.csv.gz", long):
        answer = run("learn", model, source, "--allow-duplicates")
        assert answer.exit_code == 0, answer.exception
    assert run("forget", model, "intents.v2.csv").exit_code == 0
    names = [each.name for each in CLDNetClassifier.load(model).lessons_]
    assert names == ["intents", "music.v2", "cards", "x" * 200, "intents.v2"]


def test_a_folder_means_its_text_files_and_a_sentence_may_end_like_a_file(model: str) -> None:
    texts = [each["text"] for each in answers(model, "more")]
    assert texts == MUSIC
    asked = ["please open report.csv", "look at my notes.txt", "~nobody says hello", "hello" * 1000]
    assert [each["text"] for each in answers(model, *asked)] == asked
    Path("my notes.txt").write_text("card stolen")
    assert [each["text"] for each in answers(model, "my notes.txt")] == ["card stolen"]


def test_text_files_that_cannot_be_read_have_a_line_of_their_own(model: str) -> None:
    Path("more/music/empty.txt").write_text("")
    Path("more/music/latin.txt").write_bytes("grüß Gott".encode("latin-1"))
    answer = run("predict", model, "more", "hello", "--json")
    assert answer.exit_code == 1
    found = json.loads(answer.stdout)
    assert [each.get("error") for each in found] == [None] * 5 + ["empty", "not text in UTF-8", None]
    assert [each["text"] for each in found] == [*MUSIC, "more/music/empty.txt", "more/music/latin.txt", "hello"]
    only = run("predict", model, "more/music/empty.txt")
    assert (only.exit_code, only.output) == (1, "more/music/empty.txt: cannot be read (empty)\n")


def test_sentences_are_evaluated_forgotten_and_a_lesson_is_undone(model: str) -> None:
    found = json.loads(run("eval", model, "intents.csv", "--json").stdout)
    assert found["texts"]["known"] == 10
    assert "hello there" in run("eval", model, "intents.csv").output or Path("intents-eval/index.html").exists()
    before = CLDNetClassifier.load(model).statistics().tensors
    run("learn", model, "more")
    undone = run("undo", model)
    assert undone.exit_code == 0, undone.exception
    after = CLDNetClassifier.load(model).statistics()
    assert after.classes.tolist() == ["card", "greet"]
    assert all(bool((before[name] == tensor).all()) for name, tensor in after.tensors.items())
    assert "forgot  10 texts" in run("forget", model, "intents.csv").output


def test_photos_and_other_encoders_are_refused(model: str, bert: str) -> None:
    assert "--size has no meaning for a model of texts" in str(run("learn", "new", "more", "--size", 64).exception)
    assert "There is no backbone 'resnet' for sentences" in str(
        run("learn", "new", "more", "--backbone", "resnet").exception
    )
    other = save_bert(Path("other"), seed=1, pool="mean")
    refused = run("learn", model, "more", "--backbone", other)
    assert "was made with another --backbone" in str(refused.exception)
    again = run("learn", model, "more", "--backbone", bert)
    assert again.exit_code == 0, again.exception


def test_a_model_is_audited_against_its_sentences(model: str) -> None:
    Path("said.csv").write_text(Path("intents.csv").read_text().replace("text,label", "said,kind"))
    for data, *more in (("intents.csv",), ("said.csv,label=kind", "--text", "said"), ("more",)):
        answer = run("audit", model, "--data", data, *more)
        assert f"{5 if data == 'more' else 10} training samples in" in answer.output, answer.exception
        assert json.loads(Path("intents-audit/audit.json").read_text())["findings"]
    refused = run("audit", model, "--data", "said.csv,label=kind")
    assert "text='said' (on the command line --text)" in str(refused.exception)
    assert "leave it out" in str(run("audit", model, "--data", "split-digits", "--text", "said").exception)


def test_inspect_and_lessons_tell_of_sentences(model: str) -> None:
    assert "bert" in run("inspect", model).output
    assert "taught  1 time (cldnet learn takes 256 texts at a time)" in run("inspect", model).output
    assert "in memory" in run("learn", model, "more").output
    said = run("lessons", model).output
    assert "intents" in said
    assert "10" in said
