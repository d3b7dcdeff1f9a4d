"""`cldnet audit`: what is said on the screen, written to files, and told to the shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from torch import nn
from typer.testing import CliRunner, Result

from cldnet import CLDNetClassifier
from cldnet.cli import app

X = np.random.default_rng(0).normal(size=(60, 20))
Y = np.repeat([0, 1, 2], 20)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "birds.cldnet"
    CLDNetClassifier(capacity=4, random_state=0).partial_fit(X[:40], Y[:40]).partial_fit(X[40:], Y[40:]).save(path)
    return path


def test_a_model_is_audited_against_arrays_in_a_file(model: Path) -> None:
    np.savez(model.with_name("rows.npz"), X=X, y=Y)
    answer = run("audit", model, "--data", model.with_name("rows.npz"))
    assert answer.exit_code == 0, answer.output
    assert answer.output.count("  holds  ") == 2
    assert "data  60 training samples in arrays:rows.npz\n" in answer.output
    assert counted(model.parent / "birds-audit") == (60, 60)
    page = (model.parent / "birds-audit" / "audit.html").read_text()
    assert "<h1>Audit of birds.cldnet</h1>" in page


def counted(folder: Path) -> tuple[int, int]:
    figures = json.loads((folder / "audit.json").read_text())
    return figures["compared"], figures["given"]


@pytest.mark.parametrize("name", ["digits.npz", "arrays:digits.npz"])
def test_all_rows_of_a_file_are_compared_and_the_verdict_is_that_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    digits = load_digits()
    np.savez("digits.npz", X=digits.data, y=digits.target)
    clf = CLDNetClassifier(capacity=10, random_state=0).fit(digits.data, digits.target)
    clf.save("model")
    answer = run("audit", "model", "--data", name, "--rows", 0)
    assert counted(tmp_path / "model-audit") == (1797, 1797)
    said = json.loads((tmp_path / "model-audit" / "audit.json").read_text())
    assert said == json.loads(json.dumps(clf.audit(digits.data, rows=None).to_json()))
    assert answer.exit_code == (0 if said["holds"] else 1)


def test_a_file_of_one_row_is_enough(model: Path) -> None:
    np.savez(model.with_name("row.npz"), X=X[:1], y=Y[:1])
    assert run("audit", model, "--data", model.with_name("row.npz")).exit_code == 0
    assert counted(model.parent / "birds-audit") == (1, 1)


def test_a_test_part_is_left_out_and_that_is_said(model: Path) -> None:
    file = model.with_name("rows.npz")
    np.savez(file, X=X[:50], y=Y[:50], X_test=X[50:], y_test=Y[50:])
    answer = run("audit", model, "--data", file)
    assert "data  50 training samples in arrays:rows.npz; the 10 samples of its test part are left out" in answer.output
    assert counted(model.parent / "birds-audit") == (50, 50)
    np.savez(file, X=X, y=Y)
    answer = run("audit", model, "--data", f"{file},test_size=0.25")  # a stream, as a run would be taught it
    assert "data  45 training samples in arrays:rows.npz,test_size=0.25; the 15 samples" in answer.output


def test_a_table_needs_no_more_than_its_path(model: Path) -> None:
    pytest.importorskip("pyarrow")
    table = model.with_name("birds.csv")
    names = ",".join(["kind", *(f"x{i}" for i in range(20))])
    lines = [",".join(map(str, (y, *x))) for x, y in zip(X, Y, strict=True)]
    table.write_text("\n".join([names, *lines]))
    assert run("audit", model, "--data", f"{table},label=kind").exit_code == 0
    assert counted(model.parent / "birds-audit") == (60, 60)
    assert "name the label column" in str(run("audit", model, "--data", table).exception)


def test_a_folder_of_photos_of_one_kind_is_enough(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    photos = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3)).astype(np.uint8)
    CLDNetClassifier("exact", "random-relu", capacity=2, random_state=0).fit(photos, [0] * 30).save(tmp_path / "model")
    (tmp_path / "photos" / "owl").mkdir(parents=True)
    for number, photo in enumerate(photos):
        image.fromarray(photo).save(tmp_path / "photos" / "owl" / f"{number}.png")
    answer = run("audit", tmp_path / "model", "--data", f"{tmp_path / 'photos'},size=8,resize=8")
    assert answer.exit_code in (0, 1), answer.exception
    assert counted(tmp_path / "model-audit") == (30, 30)


def test_a_file_in_the_folders_place_is_said_before_anything_is_compared(model: Path) -> None:
    for out in (model, model / "below"):
        error = run("audit", model, "--out", out).exception
        assert isinstance(error, OSError)
        assert str(error) == f"{model} is a file, but the page and its figures need a folder: name another one."


def test_a_model_over_a_users_module_is_for_python(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(20, 10), nn.Tanh())
    CLDNetClassifier(backbone=net, capacity=4, random_state=0).fit(X, Y).save(tmp_path / "model")
    error = str(run("audit", tmp_path / "model").exception)
    assert "load(path, backbone=module), and call its methods: clf.audit(X)" in error


def test_without_data_the_rest_is_audited(model: Path, tmp_path: Path) -> None:
    answer = run("audit", model, "--out", tmp_path / "elsewhere")
    assert answer.exit_code == 0
    assert "unknown  Nothing stored has a |cosine| beyond 0.99" in answer.output
    assert json.loads((tmp_path / "elsewhere" / "audit.json").read_text())["findings"] is None


def test_a_broken_promise_is_told_to_the_shell(tmp_path: Path) -> None:
    clf = CLDNetClassifier(capacity=4, random_state=0).partial_fit(X, Y).partial_fit(X[:1] + 1, [3])
    clf.save(tmp_path / "model")
    np.savez(tmp_path / "rows.npz", X=np.repeat(X[:1] + 1, 8, 0), y=[3, 4] * 4)
    answer = run("audit", tmp_path / "model", "--data", f"arrays:{tmp_path / 'rows.npz'}")
    assert answer.exit_code == 1
    assert " BROKEN  Nothing stored" in answer.output
    assert "reveals  Classes with fewer than 10 samples may reveal one: 3 (1)." in answer.output


def test_what_is_not_there_is_said(model: Path, tmp_path: Path) -> None:
    assert "There is no model file" in str(run("audit", tmp_path / "nothing").exception)
    assert "There is no folder or file 'nowhere'" in str(run("audit", model, "--data", "nowhere").exception)
    assert "made for (20,)" in str(run("audit", model, "--data", "split-digits").exception)
    np.savez(tmp_path / "rows.npz", X=X, y=Y)
    error = str(run("audit", model, "--data", f"{tmp_path / 'rows.npz'},size=3").exception)
    assert error == "arrays does not take the option 'size': leave it out."
