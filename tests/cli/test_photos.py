"""`cldnet learn`, `predict`, `inspect`, `forget` and `merge` on folders of photos, as a practitioner uses them."""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from tests.nets.vits import save_vit
from tests.storage.test_lock import held
from typer.testing import CliRunner, Result

from cldnet import CLDNetClassifier, locked
from cldnet.cli import app, main
from cldnet.nets import ExpandedNet, RandomReLU

ROWS = RandomReLU((4,), features=8, seed=0)
ROWS.fit(torch.eye(4))
SMALL = ("--size", 32, "--memory", 1, "--capacity", 5)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pieces of two photos in january, negatives in february, and others to ask about."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for label, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        for month, name, count in (("january", label, 6), ("new", label, 2), ("february", f"negative {label}", 3)):
            folder = tmp_path / month / name
            folder.mkdir(parents=True)
            for number in range(count):
                top, left = rng.integers(0, 200), rng.integers(0, 400)
                piece = photo[top : top + 120, left : left + 150]
                Image.fromarray(255 - piece if month == "february" else piece).save(folder / f"{number}.png")
    return tmp_path


def answers(model: str, *asked: str) -> list[dict[str, Any]]:
    answer = run("predict", model, *asked, "--json", "--top", 4)
    assert answer.exit_code == 0, answer.output
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    return found


def same_answers(model: str, other: str, *asked: str) -> list[dict[str, Any]]:
    """Photo for photo the same labels, with the same probabilities but for the rounding of a solution."""
    ones, others = answers(model, *asked), answers(other, *asked)
    assert [one["label"] for one in ones] == [one["label"] for one in others]
    for here, there in zip(ones, others, strict=True):
        expected = {each["label"]: each["probability"] for each in there["top"]}
        assert {each["label"]: each["probability"] for each in here["top"]} == pytest.approx(expected, abs=1e-6)
    return ones


def test_two_months_taught_in_turn_answer_as_both_taught_at_once(place: Path) -> None:
    first = run("learn", "in-turn", "january", *SMALL)
    assert first.exit_code == 0, first.output
    assert "learned  12 photos of 2 classes" in first.output
    assert "new  china, flower" in first.output
    size = Path("in-turn").stat().st_size
    second = run("learn", "in-turn", "february")
    assert "new  negative china, negative flower" in second.output
    assert "4 classes, room for 1 more" in second.output
    for month in ("january", "february"):
        for folder in Path(month).iterdir():
            (place / "both").mkdir(exist_ok=True)
            folder.rename(place / "both" / folder.name)
    assert run("learn", "at-once", "both", *SMALL).exit_code == 0
    in_turn, at_once = answers("in-turn", "new", "both"), answers("at-once", "new", "both")
    assert [a["label"] for a in in_turn] == [a["label"] for a in at_once]
    for one, other in zip(in_turn, at_once, strict=True):
        assert [t["probability"] for t in one["top"]] == pytest.approx(
            [t["probability"] for t in other["top"]], abs=1e-6
        )
    assert [a["label"] for a in in_turn[:4]] == ["china", "china", "flower", "flower"]
    tensors = CLDNetClassifier.load("in-turn").footprint().total
    assert tensors == CLDNetClassifier.load("at-once").footprint().total
    solutions = 8 * (2 * 353 + 4**2 - 2**2 + 4)  # of four classes, less those of two
    assert abs(Path("in-turn").stat().st_size - size - solutions) < 1000  # two labels and their days


def test_the_size_is_said_before_anything_is_learned(place: Path) -> None:
    answer = run("learn", "model", "january", *SMALL)
    said, learned = (
        answer.output.index(words) for words in ("   size  the model of 2 classes will take up to ", "learned ")
    )
    assert said < learned
    expected = re.search(r"will take up to ([0-9.]+) MB", answer.output)
    assert expected is not None
    least = CLDNetClassifier.load("model").footprint().bytes["sums"] / 2e6  # whole sums take half their bytes in a file
    assert float(expected[1]) - least == pytest.approx(Path("model").stat().st_size / 1e6, rel=0.01)
    assert "will take" not in run("learn", "model", "february").output


def test_one_photo_of_one_class_is_enough_to_begin_with(place: Path) -> None:
    Path("one/wren").mkdir(parents=True)
    Path("new/china/0.png").rename("one/wren/0.png")
    answer = run("learn", "model", "one", *SMALL)
    assert "learned  1 photo of 1 class in" in answer.output
    assert "model: 1 class, room for 4 more" in answer.output
    assert run("predict", "model", "new").output.count(": wren 100.0%") == 3


def test_broken_photos_are_named_and_left_out(place: Path) -> None:
    Path("january/china/broken.jpg").write_text("no image")
    Path("january/flower/cut.png").write_bytes(Path("january/flower/0.png").read_bytes()[:200])
    answer = run("learn", "model", "january", *SMALL)
    assert answer.exit_code == 0
    assert "2 of 14 photos cannot be read and were left out" in answer.output
    assert "china/broken.jpg (not an image" in answer.output
    asked = run("predict", "model", "new/china/0.png", "january/china/broken.jpg", "no-such.jpg")
    assert asked.exit_code == 1
    said = asked.stdout.splitlines()
    assert said[0].startswith("new/china/0.png: china ")
    assert said[1].startswith("january/china/broken.jpg: cannot be read (not an image")
    assert said[2] == "no-such.jpg: cannot be read (No such file or directory)"


def test_a_folder_without_one_readable_photo_changes_nothing(place: Path) -> None:
    run("learn", "model", "january", *SMALL)
    before = Path("model").read_bytes()
    for photo in Path("february").rglob("*.png"):
        photo.write_text("no image")
    answer = run("learn", "model", "february")
    assert answer.exit_code == 1
    assert isinstance(answer.exception, ValueError)
    assert "None of the 6 photos" in str(answer.exception)
    assert Path("model").read_bytes() == before


def test_what_is_forgotten_was_never_there(place: Path) -> None:
    run("learn", "never", "january", *SMALL)
    run("learn", "model", "january", *SMALL)
    run("learn", "model", "february")
    answer = run("forget", "model", "february")
    assert answer.exit_code == 0, answer.output
    assert "forgot  6 photos" in answer.output
    assert "2 classes, room for 3 more" in answer.output
    same_answers("model", "never", "new")


def test_models_made_apart_are_merged_into_the_model_of_both(place: Path) -> None:
    run("learn", "here", "january", *SMALL)
    run("learn", "there", "february", *SMALL)
    answer = run("merge", "here", "there", "-o", "both")
    assert answer.exit_code == 0, answer.output
    assert "4 classes" in answer.output
    run("learn", "here", "february")
    same_answers("both", "here", "new")
    again = run("merge", "here", "there", "-o", "both")
    assert "already exists" in str(again.exception)
    assert "two models or more" in str(run("merge", "here", "-o", "alone").exception)


def test_inspect_tells_classes_counts_days_and_room(place: Path) -> None:
    run("learn", "model", "january", *SMALL)
    shown = run("inspect", "model").output
    assert "2 classes, room for 3 more" in shown
    assert "backbone  efficientnet-lite (features=352, version=0, size=32" in shown
    assert "taught  1 time (" in shown
    row = next(line.split() for line in shown.splitlines() if line.strip().startswith("china"))
    assert row[1] == "6"
    assert row[2] == row[3] == CLDNetClassifier.load("model")._fitted().labels.dates["china"][0]
    assert "feature map" in shown


def test_a_vit_out_of_a_folder_learns_photos_too(place: Path) -> None:
    vit = save_vit(place / "vit")
    assert run("learn", "in-turn", "january", "--backbone", vit, "--memory", 1, "--capacity", 5).exit_code == 0
    again = run("learn", "in-turn", "january", "--backbone", vit)
    assert again.exit_code == 0, again.exception
    (place / "vit").rename(place / "gone")
    assert run("learn", "in-turn", "february").exit_code == 0
    assert len(answers("in-turn", "new")) == 4
    told = run("inspect", "in-turn").output
    assert "expanded (features=352, bodies=vit at 32 px, mirror=False)" in told
    assert "3 × 32 × 32" in told
    again = run("learn", "other", "january", "--backbone", str(place / "gone"), "--size", 64)
    assert "has a size of its own" in str(again.exception)
    assert not Path("other").exists()


def test_photos_that_look_like_nothing_known_are_unknown_if_asked_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("learn", "model", "january", *SMALL)
    plain = run("predict", "model", "new").stdout.splitlines()

    def strange(vectors: torch.Tensor, calibration: Any) -> torch.Tensor:
        return torch.tensor([0.5, 0.009, 0.011, 0.0], dtype=torch.float64)

    monkeypatch.setattr("cldnet.estimator.model.known_probability", strange)
    said = run("predict", "model", "new", "--reject").stdout.splitlines()
    assert [line.partition(": ")[2].startswith("unknown (nearest: ") for line in said] == [False, True, False, True]
    assert said[0] == plain[0]
    entries = json.loads(run("predict", "model", "new", "--reject", "--json").stdout)
    assert [(entry["label"], entry["known"]) for entry in entries][1:3] == [(None, 0.009), ("flower", 0.011)]


def test_reject_runs_the_net_once_and_gives_the_same_probabilities(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("learn", "model", "january", *SMALL)
    plain, passes = answers("model", "new"), []
    forward = ExpandedNet.predict_features
    monkeypatch.setattr(ExpandedNet, "predict_features", lambda self, x: passes.append(len(x)) or forward(self, x))
    entries = json.loads(run("predict", "model", "new", "--reject", "--json", "--top", 4).stdout)
    assert passes == [4]
    assert [entry["top"] for entry in entries] == [entry["top"] for entry in plain]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("backbone", ("efficientnet-lite1",)),
        ("memory", (2,)),
        ("size", (64,)),
        ("capacity", (6,)),
        ("receipts", ()),
    ],
)
def test_an_existing_model_is_not_given_other_settings(place: Path, option: str, values: tuple[Any, ...]) -> None:
    run("learn", "model", "january", *SMALL)
    before = Path("model").read_bytes()
    refused = run("learn", "model", "february", f"--{option}", *values)
    assert f"was made with another --{option}" in str(refused.exception)
    assert Path("model").read_bytes() == before


def test_settings_that_a_model_has_may_be_repeated(place: Path) -> None:
    run("learn", "model", "january", *SMALL)
    again = run("learn", "model", "february", *SMALL, "--backbone", "efficientnet-lite0")
    assert again.exit_code == 0, again.output


def test_classes_without_test_photos_matter_to_eval_alone(place: Path) -> None:
    run("learn", "model", "january", *SMALL)
    (place / "parts" / "test").mkdir(parents=True)
    (place / "january").rename(place / "parts" / "train")
    (place / "new" / "china").rename(place / "parts" / "test" / "china")
    words = "class 'flower' has no image in the test part"
    assert [words in run(name, "model", "parts").output for name in ("learn", "forget", "eval")] == [False, False, True]


def save_rows(path: str, *labels: int) -> None:
    shared = CLDNetClassifier(backbone=ROWS, capacity=4, random_state=0)
    shared.fit(np.eye(4)[list(labels)], list(labels)).save(path)


@pytest.mark.parametrize(
    "arguments", [("learn", "model", "january"), ("forget", "model", "january"), ("merge", "one", "two", "-o", "new")]
)
def test_a_file_that_another_process_changes_is_left_alone_with_no_wait(
    place: Path, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new").rename("others")
    save_rows("model", 0, 1)
    before, changed = Path("model").read_bytes(), Path(arguments[1] if arguments[0] != "merge" else "new")
    monkeypatch.setattr(sys, "argv", ["cldnet", *arguments, "--no-wait"])
    with held(changed.absolute()), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "The file is locked by process" in capsys.readouterr().err
    assert Path("model").read_bytes() == before
    assert not Path("new").exists()


def test_a_command_waits_for_another_process_and_says_for_which(place: Path) -> None:
    save_rows("one", 0, 1)
    save_rows("two", 2, 3)
    with held(place / "both") as done:
        threading.Timer(0.2, done.set).start()
        answer = run("merge", "one", "two", "-o", "both")
        assert done.is_set()
    assert answer.exit_code == 0, answer.output
    assert "Waiting for process" in answer.stderr
    assert "to finish with both …" in answer.stderr
    assert CLDNetClassifier.load("both").classes_.tolist() == [0, 1, 2, 3]


def test_what_another_process_wrote_while_a_merge_waited_is_not_replaced(place: Path) -> None:
    save_rows("one", 0, 1)
    save_rows("two", 2, 3)
    with held(place / "both") as done:

        def finish() -> None:
            save_rows("three", 0, 2)
            Path("three").rename("both")
            done.set()

        threading.Timer(0.2, finish).start()
        answer = run("merge", "one", "two", "-o", "both")
    assert "already exists" in str(answer.exception)
    assert CLDNetClassifier.load("both").classes_.tolist() == [0, 2]


def test_a_model_is_locked_from_loading_to_saving(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("learn", "model", "january", *SMALL)
    at: list[str] = []

    def watched(name: str, method: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            def look() -> None:
                try:
                    with locked(place / "model", wait=False):
                        at.append(f"{name} without the lock")
                except BlockingIOError:
                    at.append(name)

            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            return method(*arguments, **named)

        return call

    for name in ("load", "partial_fit", "forget", "save"):
        method = getattr(CLDNetClassifier, name)
        monkeypatch.setattr(CLDNetClassifier, name, watched(name, method))
    assert run("learn", "model", "february").exit_code == 0
    assert run("forget", "model", "february").exit_code == 0
    assert at == ["load", "partial_fit", "save", "load", "forget", "save"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("learn", "model", "nowhere"), "There is no folder 'nowhere'"),
        (("learn", "model", "january", "--backbone", "resnet"), "There is no backbone 'resnet' for photos"),
        (("learn", "model", "january", "--size", "3"), "size=3 should be a whole number from 32"),
        (("predict", "model", "january"), "model"),
        (("predict", "rows", "january"), "not photos"),
        (("learn", "rows", "january"), "not photos"),
    ],
)
def test_what_cannot_be_done_is_said(place: Path, arguments: tuple[str, ...], words: str) -> None:
    CLDNetClassifier(capacity=2, random_state=0).fit(np.eye(4), [0, 0, 1, 1]).save("rows")
    answer = run(*arguments)
    assert answer.exit_code != 0
    assert words in str(answer.exception)
    assert not Path("model").exists()
