"""ONNX files against the models that they come from, run by onnxruntime."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.export.samples import KINDS, LABELS, pieces, rows, taught
from torch import nn

from cldnet import CLDNetClassifier
from cldnet.export import Agreement, to_onnx
from cldnet.nets import ExpandedNet
from cldnet.version import __version__


def opened(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def told(session: onnxruntime.InferenceSession) -> dict[str, str]:
    about: dict[str, str] = session.get_modelmeta().custom_metadata_map
    return about


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_answers_as_its_model(kind: str, tmp_path: Path) -> None:
    clf, x = taught(kind)
    path = tmp_path / "model.onnx"
    found = to_onnx(clf, path, x)
    assert (found.rows, found.labels) == (len(x), len(x))
    session = opened(path)
    for count in (1, 3):  # as many rows as there are
        inputs = x[:count].astype(np.uint8 if x.dtype == np.uint8 else np.float64)
        label, probabilities, scores = session.run(None, {"input": inputs})
        assert label.tolist() == clf.predict(x[:count]).tolist()
        assert np.abs(probabilities - clf.predict_proba(x[:count])).max() < 1e-4
        assert np.array_equal(scores.argmax(1), probabilities.argmax(1))
    assert [each.name for each in session.get_outputs()] == ["label", "probabilities", "scores"]


def test_a_thousand_images_have_the_same_labels_and_probabilities(tmp_path: Path) -> None:
    x, y = pieces(300, 48)
    backbone = ExpandedNet((3, 48, 48), features=1000, seed=0, size=48)
    clf = CLDNetClassifier(backbone=backbone, capacity=10, random_state=0).fit(x, y)
    new, labels = pieces(1000, 48, seed=1)
    assert 0.6 < clf.score(new, labels) < 1  # some are hard: nothing is easy to agree on
    to_onnx(clf, tmp_path / "photos.onnx")
    session = opened(tmp_path / "photos.onnx")
    runs = [session.run(None, {"input": new[first : first + 100]}) for first in range(0, 1000, 100)]
    said, probabilities, _ = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    assert said.tolist() == clf.predict(new).tolist()
    assert np.abs(probabilities - clf.predict_proba(new)).max() < 1e-4


def test_metadata_say_what_a_user_has_to_know(tmp_path: Path) -> None:
    clf, _ = taught("photos")
    to_onnx(clf, tmp_path / "photos.onnx")
    about = told(opened(tmp_path / "photos.onnx"))
    assert json.loads(about["labels"]) == list(LABELS)
    assert about["label_type"] == "str"
    assert (about["input_type"], about["input_shape"]) == ("uint8", "[3, 32, 32]")
    assert (about["side"], about["resize"]) == ("32", "37")
    assert about["cldnet_version"] == __version__
    assert about["map_id"] == clf._fitted().map_id


@pytest.mark.parametrize("kind", [int, float, bool, str])
def test_labels_keep_their_type(kind: type, tmp_path: Path) -> None:
    x, y = rows()
    labels = np.where(y == 5, "wörld, 5", y.astype(str)) if kind is str else (y > 0 if kind is bool else y.astype(kind))
    clf = CLDNetClassifier(random_state=0).fit(x, labels)
    to_onnx(clf, tmp_path / "rows.onnx")
    session = opened(tmp_path / "rows.onnx")
    (said,) = session.run(["label"], {"input": x})
    assert said.tolist() == clf.predict(x).tolist()
    assert {type(label) for label in said.tolist()} == {kind}
    assert json.loads(told(session)["labels"]) == clf.classes_.tolist()
    assert told(session)["label_type"] == kind.__name__
    assert "side" not in told(session)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    clf, _ = taught("fourier")
    (tmp_path / "model.onnx").write_text("mine")
    with pytest.raises(ValueError, match="already exists"):
        to_onnx(clf, tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_text() == "mine"
    with pytest.raises(ValueError, match="There is no folder"):
        to_onnx(clf, tmp_path / "nowhere" / "model.onnx")


def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clf, x = taught("fourier")
    monkeypatch.setattr("cldnet.export.write.TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="does not agree with its original"):
        to_onnx(clf, tmp_path / "model.onnx", x)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_missing_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clf, _ = taught("fourier")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r'pip install "\.\[onnx\]"'):
        to_onnx(clf, tmp_path / "model.onnx")


def test_inputs_to_compare_on_are_checked(tmp_path: Path) -> None:
    clf, x = taught("relu")
    with pytest.raises(ValueError, match="the exported file takes"):
        to_onnx(clf, tmp_path / "model.onnx", x.astype(np.float32))
    with pytest.raises(ValueError, match="shape"):
        to_onnx(clf, tmp_path / "model.onnx", x[:, :, :9])


def test_what_onnxruntime_cannot_run_is_said(tmp_path: Path) -> None:
    x, y = pieces(16, 8)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten())
    options: dict[str, Any] = {"epochs": 1, "embed_dim": 30, "capacity": 10, "random_state": 0}
    clf = CLDNetClassifier("hbo", net, dtype="float64", **options).fit(x, y)
    with pytest.raises(ValueError, match=r"onnxruntime failed .* in float32 with solver='hbo'"):
        to_onnx(clf, tmp_path / "model.onnx")


def test_a_report_is_small() -> None:
    assert str(Agreement(1000, 1000, 1.2e-5, 3e-6)) == (
        "1,000 of 1,000 labels are the same, probabilities within 1.2e-05, scores within 3.0e-06 of the largest"
    )
