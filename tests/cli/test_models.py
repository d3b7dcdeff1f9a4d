"""`cldnet audit`: what is said on the screen, written to files, and told to the shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
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
    # A part of the rows is the test part of the stream that the file makes.
    figures = json.loads((model.parent / "birds-audit" / "audit.json").read_text())
    assert 0 < figures["compared"] == figures["given"] <= 60
    page = (model.parent / "birds-audit" / "audit.html").read_text()
    assert "<h1>Audit of birds.cldnet</h1>" in page


def test_without_data_the_rest_is_audited(model: Path, tmp_path: Path) -> None:
    answer = run("audit", model, "--out", tmp_path / "elsewhere")
    assert answer.exit_code == 0
    assert "untold  Nothing stored has a |cosine| beyond 0.99" in answer.output
    assert json.loads((tmp_path / "elsewhere" / "audit.json").read_text())["findings"] is None


def test_a_broken_promise_is_told_to_the_shell(tmp_path: Path) -> None:
    clf = CLDNetClassifier(capacity=4, random_state=0).partial_fit(X, Y).partial_fit(X[:1] + 1, [3])
    clf.save(tmp_path / "model")
    np.savez(tmp_path / "rows.npz", X=np.repeat(X[:1] + 1, 8, 0), y=[3, 4] * 4)
    answer = run("audit", tmp_path / "model", "--data", f"arrays:{tmp_path / 'rows.npz'}")
    assert answer.exit_code == 1
    assert " BROKEN  Nothing stored" in answer.output
    assert "reveals  Classes with fewer than 10 examples are revealing: 3 (1)." in answer.output


def test_what_is_not_there_is_said(model: Path, tmp_path: Path) -> None:
    assert "There is no model file" in str(run("audit", tmp_path / "nothing").exception)
    assert "There is no folder or file 'nowhere'" in str(run("audit", model, "--data", "nowhere").exception)
    assert "made for (20,)" in str(run("audit", model, "--data", "split-digits").exception)
