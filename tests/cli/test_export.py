"""`cldnet export` as a practitioner uses it, and the example that runs its file without PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from typer.testing import CliRunner, Result

from cldnet import CLDNetClassifier
from cldnet.cli import app
from cldnet.nets import ExpandedNet

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_photo.py"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two kinds of photos, others to ask it about, one of rows, and both models' ONNX and torch files."""
    folder = tmp_path_factory.mktemp("export")
    rng, pieces, labels = np.random.default_rng(0), [], []
    (folder / "photos").mkdir()
    for label, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        for number in range(8):
            top, left = rng.integers(0, 200), rng.integers(0, 400)
            pieces.append(photo[top : top + 64, left : left + 64].transpose(2, 0, 1))
            labels.append(label)
            if number < 3:
                Image.fromarray(photo[top : top + 120, left : left + 150]).save(
                    folder / "photos" / f"{label}{number}.png"
                )
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(photo).resize((1280, 854)).save(folder / "photos" / "turned.jpg", exif=turned)
    Image.fromarray(photo).convert("L").save(folder / "photos" / "grey.jpg")
    backbone = ExpandedNet((3, 64, 64), features=100, seed=0, size=64)
    clf = CLDNetClassifier(backbone=backbone, capacity=5, random_state=0).fit(np.stack(pieces), labels)
    clf.save(folder / "birds.cldnet")
    CLDNetClassifier(capacity=2, random_state=0).fit(np.eye(4), [0, 0, 1, 1]).save(folder / "rows")
    answer = run("export", folder / "birds.cldnet", "--to", "onnx", "--check", folder / "photos")
    assert answer.exit_code == 0, answer.output
    (folder / "said.txt").write_text(answer.output)
    return folder


def test_it_says_what_was_exported_and_how_well_it_agrees(place: Path) -> None:
    said = (place / "said.txt").read_text()
    assert f"exported  {place / 'birds.onnx'}: 2 classes, 1" in said
    assert f"checked  on 8 photos of {place / 'photos'}: 8 of 8 labels are the same, probabilities within" in said


def test_the_example_answers_as_predict_does_without_torch(place: Path, tmp_path: Path) -> None:
    for package in ("torch", "cldnet", "sklearn"):
        (tmp_path / f"{package}.py").write_text(f"raise AssertionError('{package} was imported')")
    photos = sorted((place / "photos").iterdir())
    call = [sys.executable, EXAMPLE, place / "birds.onnx", *photos]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    lines = subprocess.run(call, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    expected = json.loads(run("predict", place / "birds.cldnet", *photos, "--json").stdout)
    assert len(lines) == len(expected) == 8
    for line, answer in zip(lines, expected, strict=True):
        photo, _, said = line.rpartition(": ")
        label, _, probability = said.rpartition(" ")
        assert (photo, label) == (answer["photo"], answer["label"])
        assert float(probability.rstrip("%")) / 100 == pytest.approx(answer["top"][0]["probability"], abs=2e-4)


def test_the_example_is_short() -> None:
    code = EXAMPLE.read_text().split('"""')[2].splitlines()
    assert len([line for line in code if line.strip()]) <= 20
    assert {line.split()[1].split(".")[0] for line in code if line.startswith(("import", "from"))} == {
        *("json", "sys", "numpy", "onnxruntime", "PIL")
    }


def test_rows_are_exported_as_well_under_a_name_of_their_own(place: Path, tmp_path: Path) -> None:
    answer = run("export", place / "rows", "--to", "onnx", "-o", tmp_path / "any.onnx")
    assert answer.exit_code == 0, answer.output
    assert "checked  on 256 random inputs: 256 of 256 labels are the same" in answer.output
    (label,) = onnxruntime.InferenceSession(tmp_path / "any.onnx").run(["label"], {"input": np.eye(4)})
    assert label.tolist() == [0, 0, 1, 1]


def test_torch_is_the_other_format(place: Path) -> None:
    answer = run("export", place / "rows", "--to", "torch")
    assert answer.exit_code == 0, answer.output
    assert (place / "rows.pt2").is_file()


def test_a_file_that_disagrees_is_not_left_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.export.write.TOLERANCE", -1.0)
    answer = run("export", place / "rows", "--to", "onnx")
    assert answer.exit_code == 1
    assert "does not agree with its original" in answer.output
    assert not (place / "rows.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("birds.cldnet", "--to", "onnx"), "already exists"),
        (("said.txt", "--to", "onnx"), "said.txt"),
        (("nothing", "--to", "onnx"), "nothing"),
        (("rows", "--to", "onnx", "--check", "photos"), "not photos. Leave --check out"),
        (("birds.cldnet", "--to", "torch", "--check", "nowhere"), "None of the 1 photos under 'nowhere'"),
        (("rows", "--to", "onnx", "-o", "nowhere/rows.onnx"), "There is no folder"),
    ],
)
def test_what_cannot_be_done_is_said(
    place: Path, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = {path: path.stat().st_mtime_ns for path in place.iterdir()}
    answer = run("export", *arguments)
    assert answer.exit_code != 0
    assert words in str(answer.exception)
    assert {path: path.stat().st_mtime_ns for path in place.iterdir()} == before


def test_without_the_packages_it_says_what_to_install(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    answer = run("export", place / "rows", "--to", "onnx")
    assert isinstance(answer.exception, ImportError)
    assert 'pip install ".[onnx]"' in str(answer.exception)
