"""`cldnet eval` on folders of photos: what is counted, what is named, what is written, and what is left alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from typer.testing import CliRunner, Result

from cldnet import CLDNetClassifier
from cldnet.bench.formatting import percent
from cldnet.cli import app

SMALL = ("--size", 32, "--memory", 1, "--capacity", 5)
KEYS = {
    *("schema", "kind", "model", "folder", "day", "versions", "photos", "accuracy", "balanced_accuracy"),
    *("top3_accuracy", "mean_probability", "by_class", "confusion", "confusions", "unknown", "unread", "answers"),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two photos' pieces and of their negatives, and other pieces to evaluate it on."""
    place = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for label, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        for part, count in (("january", 6), ("new", 3)):
            for name in (label, f"negative {label}"):
                folder = place / part / name
                folder.mkdir(parents=True)
                for number in range(count):
                    top, left = rng.integers(0, 200), rng.integers(0, 400)
                    piece = photo[top : top + 120, left : left + 150]
                    Image.fromarray(255 - piece if "negative" in name else piece).save(folder / f"{number}.png")
    answer = run("learn", place / "birds.cldnet", place / "january", *SMALL)
    assert answer.exit_code == 0, answer.output
    return place


@pytest.fixture
def place(taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(taught, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluated(*arguments: object) -> tuple[dict[str, Any], Result]:
    answer = run("eval", "birds.cldnet", *arguments)
    assert answer.exit_code == 0, answer.output
    return json.loads(Path("birds-eval/eval.json").read_text()), answer


def test_the_figures_follow_from_what_predict_says(place: Path) -> None:
    found, answer = evaluated("new")
    asked = json.loads(run("predict", "birds.cldnet", "new", "--json", "--top", 3).stdout)
    assert {f"new/{one['photo']}": (one["answer"], one["probability"]) for one in found["answers"]} == {
        one["photo"]: (one["label"], pytest.approx(one["top"][0]["probability"])) for one in asked
    }
    right = [one["label"] == Path(one["photo"]).parent.name for one in asked]
    among = [Path(one["photo"]).parent.name in [each["label"] for each in one["top"]] for one in asked]
    assert found["accuracy"] == np.mean(right)
    assert found["balanced_accuracy"] == pytest.approx(np.mean(right))  # as many photos of each class
    assert found["top3_accuracy"] == np.mean(among)
    assert found["photos"] == {"known": 12, "unknown": 0, "unread": 0}
    assert "12 of 4 classes that the model knows" in answer.stdout
    assert f"accuracy  {percent(found['accuracy'])} of photos" in answer.stdout
    assert "page  birds-eval/index.html" in answer.stdout
    assert percent(found["accuracy"]) in Path("birds-eval/index.html").read_text()


def test_the_json_has_what_it_takes_to_check_it(place: Path) -> None:
    found, _ = evaluated("new")
    assert set(found) == KEYS
    assert found["model"]["name"] == "birds.cldnet"
    assert re.fullmatch("sha256:[0-9a-f]{64}", found["model"]["digest"])
    assert found["folder"] == "new"
    assert {"cldnet", "torch"} <= set(found["versions"])
    assert len(found["answers"]) == 12
    for one in found["answers"]:
        assert set(one) == {"photo", "label", "answer", "probability", "rank"}
        assert (Path("new") / one["photo"]).is_file()
        assert 0 <= one["probability"] <= 1
    assert run("eval", "birds.cldnet", "new", "--json").stdout == Path("birds-eval/eval.json").read_text()


def test_batches_give_what_all_photos_at_once_give(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("new/china/broken.jpg").write_text("no image")
    whole, _ = evaluated("new")
    monkeypatch.setattr("cldnet.cli.learn.BATCH", 5)
    parts, _ = evaluated("new")
    for one, other in zip(whole.pop("answers"), parts.pop("answers"), strict=True):
        assert one == other | {"probability": pytest.approx(other["probability"], abs=1e-6)}
    assert whole.pop("mean_probability") == pytest.approx(parts.pop("mean_probability"), abs=1e-6)
    assert whole == parts


def test_of_a_tree_with_a_test_part_that_part_is_evaluated(place: Path) -> None:
    Path("both").mkdir()
    Path("january").rename("both/train")
    Path("new").rename("both/test")
    found, answer = evaluated("both")
    assert found["photos"]["known"] == 12
    assert all(one["photo"].startswith("test/") for one in found["answers"])
    assert "The 24 photos of the training part are left out." in answer.stderr


def test_unknown_classes_are_counted_apart(place: Path) -> None:
    alone, _ = evaluated("new")
    shutil.copytree("new/flower", "new/wren")
    found, answer = evaluated("new")
    assert found["photos"] == {"known": 12, "unknown": 3, "unread": 0}
    for figure in ("accuracy", "balanced_accuracy", "top3_accuracy", "confusion", "mean_probability"):
        assert found[figure] == alone[figure]
    assert [(one["label"], one["photos"]) for one in found["unknown"]] == [("wren", 3)]
    taken = {one["photo"]: one["answer"] for one in found["answers"]}
    assert taken["wren/0.png"] == taken["flower/0.png"]
    assert "3 photos of 1 class that the model does not know, not counted above" in answer.stdout


def test_photos_that_cannot_be_read_are_named_and_left_out(place: Path) -> None:
    Path("new/china/broken.jpg").write_text("no image")
    Path("new/flower/cut.png").write_bytes(Path("new/flower/0.png").read_bytes()[:200])
    found, answer = evaluated("new")
    assert found["photos"] == {"known": 12, "unknown": 0, "unread": 2}
    assert [one["photo"] for one in found["unread"]] == ["china/broken.jpg", "flower/cut.png"]
    assert "2 of 14 photos cannot be read and were left out" in answer.stderr
    assert "china/broken.jpg (not an image" in answer.stderr
    assert "2 photos left out" in answer.stdout
    assert "china/broken.jpg" in Path("birds-eval/index.html").read_text()


def test_one_class_is_evaluated_as_many_are(place: Path) -> None:
    Path("alone").mkdir()
    Path("january/china").rename("alone/china")
    assert run("learn", "one.cldnet", "alone", *SMALL).exit_code == 0
    assert run("eval", "one.cldnet", "alone").exit_code == 0
    found = json.loads(Path("one-eval/eval.json").read_text())
    assert found["confusion"] == {"labels": ["china"], "matrix": [[6]]}
    assert (found["accuracy"], found["top3_accuracy"]) == (1, None)


def test_hostile_labels_stay_text(place: Path) -> None:
    nasty = "<script>alert(1)<"
    Path("new/flower").rename(Path("new") / nasty)
    found, _ = evaluated("new")
    assert found["unknown"][0]["label"] == nasty
    page = Path("birds-eval/index.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;" in page


def test_mistakes_are_shown_with_small_copies_unless_told_otherwise(place: Path) -> None:
    Path("new/flower").rename("new/aside")
    Path("new/china").rename("new/flower")  # photos in the wrong folder
    Path("new/aside").rename("new/china")
    found, answer = evaluated("new")
    wrong = sum(one["answer"] != one["label"] for one in found["answers"])
    page = Path("birds-eval/index.html").read_text()
    assert wrong > 0
    assert page.count("<img ") == wrong
    assert f"small copies of {wrong} photos" in page
    assert f"small copies of {wrong} photos; --no-thumbnails leaves them out" in answer.stdout
    _, answer = evaluated("new", "--no-thumbnails")
    page = Path("birds-eval/index.html").read_text()
    assert "<img " not in page
    assert "classified as" in page
    assert "--no-thumbnails" not in answer.stdout


def test_only_the_surest_mistakes_are_shown(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.cli.learn.BATCH", 2)
    monkeypatch.setattr("cldnet.cli.learn._MISTAKES", 2)
    Path("new/flower").rename("new/aside")
    Path("new/china").rename("new/flower")
    Path("new/aside").rename("new/china")
    found, _ = evaluated("new")
    wrong = [one for one in found["answers"] if one["answer"] != one["label"]]
    worst = sorted(wrong, key=lambda one: -one["probability"])[:2]
    assert len(wrong) > 2
    shown = re.findall(r'<span class="note">([^<]*)</span></figcaption>', Path("birds-eval/index.html").read_text())
    assert shown == [one["photo"] for one in worst]


def test_labels_that_are_numbers_are_told_by_their_text(place: Path) -> None:
    clf = CLDNetClassifier.load("birds.cldnet")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
    CLDNetClassifier(backbone=clf.backbone, capacity=5, random_state=0).fit(pixels, [3, 4] * 4).save("numbers")
    Path("digits").mkdir()
    Path("new/china").rename("digits/3")
    Path("new/flower").rename("digits/4")
    answer = run("eval", "numbers", "digits", "--json")
    assert json.loads(answer.stdout)["photos"] == {"known": 6, "unknown": 0, "unread": 0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("birds.cldnet", "nowhere"), "There is no folder 'nowhere'"),
        (
            ("birds.cldnet", "."),
            "The model knows none of the classes under '.': they are 'january', 'new', and it knows",
        ),
        (("nowhere", "new"), "nowhere"),
        (("rows", "new"), "not photos"),
        (("birds.cldnet", "new", "-o", "rows"), "rows is a file, but the page and its figures need a folder"),
        (("birds.cldnet", "new", "-o", "site"), "was not written by an evaluation"),
        (("birds.cldnet", "broken"), "None of the 1 photos under 'broken' can be read"),
        (("birds.cldnet", "strange"), "No readable photo under 'strange' is of a class that the model knows"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(place: Path, arguments: tuple[str, ...], words: str) -> None:
    CLDNetClassifier(capacity=2, random_state=0).fit(np.eye(4), [0, 0, 1, 1]).save("rows")
    for folder in ("site", "broken/china", "strange/china"):
        Path(folder).mkdir(parents=True)
    Path("site/index.html").write_text("mine")
    Path("broken/china/1.jpg").write_text("no image")
    Path("strange/china/1.jpg").write_text("no image")
    shutil.copytree("new/flower", "strange/wren")
    if arguments[1] == ".":
        for folder in ("site", "broken", "strange"):
            shutil.rmtree(folder)
    before = {path: path.read_bytes() if path.is_file() else b"" for path in sorted(Path().rglob("*"))}
    answer = run("eval", *arguments)
    assert answer.exit_code != 0
    assert words in str(answer.exception)
    assert {path: path.read_bytes() if path.is_file() else b"" for path in sorted(Path().rglob("*"))} == before
