"""Whatever goes wrong, the user gets a sentence and the model is bit for bit what it was."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.exceptions import DataConversionWarning, NotFittedError
from torch import nn

import cldnet
from cldnet import CLDNetClassifier
from cldnet.methods.fit import fit_task

SOLVERS = ("exact", "hbo")
RANDOM = np.random.default_rng(0)
Y = np.arange(12) % 3
X = RANDOM.normal(size=(12, 4)) + 3 * Y[:, None]


def make(solver: str, **parameters: Any) -> CLDNetClassifier:
    small: dict[str, Any] = {"alpha": 1.0} if solver == "exact" else {"embed_dim": 6, "epochs": 2}
    return CLDNetClassifier(solver, **{"capacity": 6, "batch_size": 4, "random_state": 0, **small, **parameters})


@pytest.fixture(params=SOLVERS, scope="module")
def taught(request: pytest.FixtureRequest) -> CLDNetClassifier:
    return make(request.param).partial_fit(X, Y)


class Unchanged:
    """Everything that a user could see of a model, now and later."""

    def __init__(self, clf: CLDNetClassifier) -> None:
        self.clf, self.model = clf, clf._model
        self.before = self.look()

    def look(self) -> tuple[Any, ...]:
        model = self.clf._model
        assert model is not None
        tensors = {name: tensor.clone() for name, tensor in model.learner.state_dict().items()}
        answers = self.clf.predict(X).tolist(), self.clf.predict_proba(X).tolist(), self.clf.classes_.tolist()
        return tensors, (*answers, model.labels.to_json(), self.clf.n_features_in_, sorted(vars(self.clf)))

    def check(self) -> None:
        tensors, rest = self.look()
        assert [name for name, tensor in self.before[0].items() if not torch.equal(tensor, tensors[name])] == []
        assert tensors.keys() == self.before[0].keys()
        assert rest == self.before[1]


def is_sentence(text: str) -> bool:
    return len(text.split()) > 3 and bool(re.search(r"[A-Za-z]", text))


def replaced(value: float) -> np.ndarray[Any, Any]:
    bad = X.copy()
    bad[3, 1] = value
    return bad


BAD_INPUTS: dict[str, tuple[Any, str]] = {
    "NaN": (replaced(np.nan), "contains NaN. Drop those samples, or fill in the values"),
    "infinity": (replaced(np.inf), "contains infinity.* rescale X"),
    "gaps in a table": (
        pd.DataFrame(X).astype("Float64").mask(X > 4),
        r"contains NaN \(columns 0, 1, 2, 3\). Drop those samples, or fill in the values",
    ),
    "words in a table": (
        pd.DataFrame(X).assign(name="x"),
        "X should hold numbers, and column 'name' holds text: encode",
    ),
    "masked": (np.ma.masked_array(X, mask=X > 4), "X is a masked array in which .* of 48 values are missing"),
    "a sparse tensor": (torch.from_numpy(X).to_sparse(), r"X is a tensor that is sparse.*X.to_dense\(\)"),
    "a tensor without data": (torch.empty(12, 4, device="meta"), "without data; expected plain numbers"),
    "beyond float32": (replaced(1e300), "too large"),
    "one dimension": (X[0], "Expected 2D array, got 1D.*Reshape your data"),
    "five dimensions": (np.zeros((12, 2, 2, 2, 2)), "X has shape"),
    "a scalar": (
        3.0,
        "Expected 2D array, got a float instead: X should have one row per sample. Give an array",
    ),
    "nothing": (None, "Expected 2D array, got None instead: X should have one row per sample. Give an array"),
    "a dict": ({"a": X[:, 0]}, "got a dict instead: X should have one row per sample. Give an array"),
    "an iterator": (
        iter(()),
        r"got a tuple_iterator instead: X should have one row per sample. Give list\(X\)",
    ),
    "masked rows": (
        list(np.ma.masked_array(X, mask=X > 4)),
        "X has masked arrays in which .* of 48 values are missing: drop",
    ),
    "no rows": (X[:0], r"0 sample\(s\).* X should have at least one sample: skip the call"),
    "no columns": (X[:, :0], r"0 feature\(s\).* X should have at least one column: check how"),
    "more features": (
        np.hstack([X, X]),
        "X has 8 features, but CLDNetClassifier is expecting 4 features .* Give the columns",
    ),
    "fewer features": (
        X[:, :3],
        "X has 3 features, but CLDNetClassifier is expecting 4 features as input. Give the columns",
    ),
    "images": (X.reshape(12, 2, 2), r"samples of shape \(2, 2\); the model was made for \(4,\)"),
    "strings": ([["a", "b", "c", "d"]] * 12, "X should hold numbers: convert it to numeric values"),
    "objects": (np.full((12, 4), object()), "X should hold numbers: drop that column, or encode it"),
    "ragged": ([[1.0, 2.0]] * 11 + [[1.0]], "inhomogeneous[\\s\\S]*should have the same length"),
    "complex": (X + 1j, "Complex data not supported[\\s\\S]*Give real numbers"),
    "sparse with more features": (
        scipy.sparse.csr_matrix(np.hstack([X, X])),
        "X has 8 features, but .* Give the columns",
    ),
    "sparse with NaN": (scipy.sparse.csr_array(replaced(np.nan)), "contains NaN. Drop those samples"),
    "dates": (np.full((12, 4), np.datetime64("2020-01-01")), "number|float|dtype"),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
@pytest.mark.parametrize("method", ["partial_fit", "predict", "predict_proba", "decision_function", "score"])
def test_bad_inputs_are_refused_by_every_method(taught: CLDNetClassifier, method: str, name: str) -> None:
    bad, complaint = BAD_INPUTS[name]
    before = Unchanged(taught)
    arguments = (bad, Y) if method in ("partial_fit", "score") else (bad,)
    with pytest.raises((ValueError, TypeError), match=complaint) as caught:
        getattr(taught, method)(*arguments)
    assert is_sentence(str(caught.value))
    before.check()


BAD_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"y": None}, "requires y to be passed, but the target y is None. Give a list, an array or a column"),
    "labels that numpy cuts": ({"y": ["a\0"] * 12}, "ends in a NUL character, .*: name the class without it"),
    "complex labels": ({"y": Y * 1j}, "y has dtype complex128; labels are integers"),
    "too few labels": ({"y": Y[:5]}, "X has 12 samples and y has 5 labels"),
    "a missing label": ({"y": [None, *Y[1:].tolist()]}, "None or NaN"),
    "a masked label": ({"y": np.ma.masked_array(Y, mask=Y == 1)}, "y is a masked array in which 4 of 12 values"),
    "a masked weight": (
        {"sample_weight": np.ma.masked_array(np.ones(12), mask=Y == 1)},
        "sample_weight is a masked array in which 4 of 12 values",
    ),
    "a label that is no number": ({"y": np.where(Y == 0, np.nan, Y)}, "NaN"),
    "mixed labels": ({"y": ["a", *Y[1:].tolist()]}, "mixes labels"),
    "labels of another type": ({"y": [f"c{i}" for i in Y]}, "Labels of type str cannot follow labels of type int"),
    "two columns of labels": ({"y": np.stack([Y, Y], 1)}, "y should be a 1d array"),
    "a continuous target": ({"y": X[:, 0]}, "Unknown label type: continuous"),
    "more classes than room": (
        {"y": np.arange(12)},
        "The model has room for 6 classes, 3 are taken and y has 9 new ones",
    ),
    "labels outside of classes": ({"classes": [0, 1]}, "not in classes"),
    "classes of another type": ({"classes": ["a"]}, "not in classes"),
    "a negative weight": (
        {"sample_weight": [-1.0] * 12},
        "sample_weight has negative values .*; expected weights of at least 0",
    ),
    "a weight that is no number": (
        {"sample_weight": [np.nan] * 12},
        "sample_weight contains NaN.*; expected finite .*Drop",
    ),
    "an endless weight": (
        {"sample_weight": [np.inf] * 12},
        "sample_weight contains NaN, infinity.*; expected finite .*Drop",
    ),
    "too few weights": (
        {"sample_weight": [1.0] * 3},
        r"sample_weight has shape \(3,\); expected \(12,\).* Reshape it",
    ),
    "weights in words": (
        {"sample_weight": ["a"] * 12},
        "sample_weight is not an array of numbers; expected one weight.*convert",
    ),
    "weights that are objects": (
        {"sample_weight": [object()] * 12},
        "sample_weight is not an array of numbers; expected one",
    ),
    "no weight at all": ({"sample_weight": np.zeros(12)}, "All sample weights are zero: .* Skip the call"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_labels_and_weights_are_refused(taught: CLDNetClassifier, name: str) -> None:
    arguments, complaint = BAD_CALLS[name]
    before = Unchanged(taught)
    for method in ("partial_fit", "fit"):
        if method == "fit" and (name in ("labels of another type", "more classes than room") or "classes" in arguments):
            continue
        with pytest.raises((ValueError, TypeError), match=complaint) as caught:
            getattr(taught, method)(X, **{"y": Y, **arguments})
        assert is_sentence(str(caught.value))
        before.check()


BAD_PARAMETERS: list[tuple[dict[str, Any], str]] = [
    ({"solver": "exakt"}, "solver='exakt' is not known; use one of"),
    ({"backbone": "resnet9000"}, "Unknown backbone 'resnet9000'"),
    ({"backbone": 5}, "backbone=5 should be a name or a torch.nn.Module"),
    ({"backbone": nn.Conv2d(1, 1, 1)}, "The backbone"),
    ({"backbone": nn.Linear(5, 2)}, r"The backbone does not take inputs of shape \(4,\)"),
    ({"capacity": 0}, "capacity=0 should be a whole number"),
    ({"capacity": 2.5}, "capacity=2.5 should be a whole number"),
    ({"embed_dim": -1}, "embed_dim=-1 should be a whole number"),
    ({"epochs": -1}, "epochs=-1 should be a whole number"),
    ({"epochs": True}, "epochs=True should be a whole number"),
    ({"batch_size": 0}, "batch_size=0 should be a whole number"),
    ({"lr": 0}, "lr=0 should be a positive number"),
    ({"lr": float("nan")}, "lr=nan should be a positive number"),
    ({"lr": "fast"}, "lr='fast' should be a positive number"),
    ({"alpha": "loo"}, "alpha='loo' should be 'gcv' or a positive number"),
    ({"alpha": -1.0}, "alpha=-1.0 should be 'gcv' or a positive number"),
    ({"alpha": None}, "alpha=None should be 'gcv' or a positive number"),
    ({"gram": "half"}, "gram='half' should be 'full', 'diagonal'"),
    ({"gram": 0}, "gram=0 should be"),
    ({"gram": True}, "gram=True should be"),
    ({"dtype": "float8"}, "dtype='float8' is not known"),
    ({"device": "abacus"}, "device='abacus' is not a device"),
    ({"device": "meta"}, "device='meta' cannot compute"),
    ({"device": None}, "device=None is not a device"),
    ({"input_shape": (3, 3)}, r"input_shape=\(3, 3\)"),
    ({"input_shape": 4}, "input_shape=4 should be None or a tuple"),
    ({"input_shape": (2, -2)}, "input_shape=-2 should be a whole number"),
    ({"n_threads": 0}, "n_threads=0 should be None or a whole number"),
    ({"n_threads": "all"}, "n_threads='all' should be None or a whole number"),
    ({"n_threads": 10**6}, "n_threads=1000000 should be None or a whole number from 1 to"),
    ({"n_threads": 20_000}, "n_threads=20000 should be None or a whole number from 1 to"),
    ({"random_state": -1}, "random_state=-1 should be None, a whole number from 0 to"),
    ({"random_state": "dice"}, "random_state='dice' should be None, a whole number from 0 to"),
    ({"verbose": "x"}, "verbose='x' should be 0 .silent."),
    ({"lr": True}, "lr=True should be a positive number"),
    ({"alpha": True}, "alpha=True should be 'gcv' or a positive number"),
    ({"batch_size": 10**30}, "batch_size=10{30} should be a whole number of at most"),
    ({"epochs": 10**30}, "epochs=10{30} should be a whole number of at most"),
    ({"capacity": 10**30}, "capacity=10{30} should be a whole number of at most"),
    ({"embed_dim": 10**30}, "embed_dim=10{30} should be a whole number of at most"),
    ({"input_shape": (10**30, 2)}, "input_shape=10{30} should be a whole number of at most"),
]


@pytest.mark.parametrize(("parameters", "complaint"), BAD_PARAMETERS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_bad_parameters_are_refused_and_a_first_call_leaves_nothing_behind(
    solver: str, parameters: dict[str, Any], complaint: str
) -> None:
    clf = make(**{"solver": solver, **parameters})
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match=complaint) as caught:
            getattr(clf, method)(X, Y)
        assert is_sentence(str(caught.value))
        assert_unfitted(clf)


@pytest.mark.parametrize(
    "changed",
    [
        {"solver": "other"},
        {"backbone": "mlp"},
        {"capacity": 7},
        {"embed_dim": 9},
        {"input_shape": (2, 2)},
        {"dtype": "float64"},
        {"gram": "diagonal"},
        {"epochs": 0},
        {"lr": -1.0},
        {"device": "abacus"},
        {"n_threads": -3},
        {"n_threads": 10**6},
        {"verbose": "x"},
    ],
    ids=str,
)
def test_parameters_that_do_not_go_with_the_model_are_refused_and_can_be_set_back(
    taught: CLDNetClassifier, changed: dict[str, Any]
) -> None:
    clf = copy.deepcopy(taught)
    if "solver" in changed:
        changed = {"solver": "hbo" if clf.solver == "exact" else "exact"}
    before, good = Unchanged(clf), clf.get_params()
    clf.set_params(**changed)
    (name,) = changed
    with pytest.raises(ValueError, match=f"{name}(=| was .* when the model was made)"):
        clf.partial_fit(X, Y)
    clf.set_params(**{name: good[name]})
    before.check()
    clf.partial_fit(X, Y)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function", "audit"])
def test_more_threads_than_a_machine_bears_are_not_started_for_an_answer(taught: CLDNetClassifier, method: str) -> None:
    clf = copy.deepcopy(taught).set_params(n_threads=10**6)
    with pytest.raises(ValueError, match="n_threads=1000000 should be None or a whole number from 1 to"):
        getattr(clf, method)(X)
    assert torch.get_num_threads() < 10**6


def test_columns_in_another_order_are_refused_with_what_to_do() -> None:
    table = pd.DataFrame(X, columns=list("abcd"))
    clf = make("exact").fit(table, Y)
    before = copy.deepcopy(clf)
    for other in (table[list("dcba")], table.rename(columns={"a": "z"}), table[list("abc")]):
        for call in (lambda other=other: clf.predict(other), lambda other=other: clf.partial_fit(other, Y)):
            with pytest.raises(
                ValueError, match=r"feature names should match[\s\S]*\nGive the model's columns, in their order: X\["
            ):
                call()
    assert np.array_equal(clf.decision_function(table[clf.feature_names_in_]), before.decision_function(table))


def test_what_is_no_structure_can_change_from_call_to_call(taught: CLDNetClassifier) -> None:
    clf = copy.deepcopy(taught)
    clf.set_params(epochs=1, batch_size=3, lr=0.01, n_threads=1, verbose=0, alpha=2.0).partial_fit(X, Y)
    assert clf.predict(X).shape == (12,)


def assert_unfitted(clf: CLDNetClassifier) -> None:
    with pytest.raises(NotFittedError):
        clf.predict(X)
    assert [name for name in ("classes_", "n_features_in_", "feature_names_in_") if hasattr(clf, name)] == []


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_failed_first_call_leaves_an_unfitted_classifier_that_can_still_learn(solver: str) -> None:
    clf = make(solver)
    for bad_x, bad_y in ((replaced(np.nan), Y), (X, [None] * 12), (X, Y[:3]), (X[:0], Y[:0])):
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            clf.partial_fit(bad_x, bad_y)
        assert_unfitted(clf)
    clf.partial_fit(X[:, :3], [f"c{i}" for i in Y])  # neither the columns nor the labels of the failed calls bind
    assert np.array_equal(clf.decision_function(X[:, :3]), make(solver).fit(X[:, :3], Y).decision_function(X[:, :3]))


def fail_at(number: int, error: type[BaseException], original: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(1, 100))

    def observe(self: Any, batch: Any) -> Any:
        if next(calls) == number:
            raise error("in the middle of learning")
        return original(self, batch)

    return observe


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("method", ["fit", "partial_fit", "session"])
def test_a_failure_in_the_middle_of_learning_leaves_the_model_as_it_was(
    taught: CLDNetClassifier, method: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    clf = copy.deepcopy(taught)
    before, random, threads = Unchanged(clf), torch.get_rng_state(), torch.get_num_threads()
    learner = type(clf._model.learner)  # type: ignore[union-attr]

    def learn() -> None:
        if method == "session":
            with clf.session():
                clf.partial_fit(X, Y + 3)
        else:
            getattr(clf, method)(X, Y + 3)

    with monkeypatch.context() as patch:
        patch.setattr(learner, "min_batch", 1)
        patch.setattr(learner, "observe", fail_at(3, error, learner.observe))
        with pytest.raises(error, match="in the middle of learning"):
            learn()
    before.check()
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == threads
    clf.partial_fit(X, Y + 3)
    expected = copy.deepcopy(taught).partial_fit(X, Y + 3)
    assert np.array_equal(clf.decision_function(X), expected.decision_function(X))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_failure_in_the_middle_of_the_first_call_leaves_an_unfitted_classifier(
    solver: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = type(make(solver).fit(X, Y)._model.learner)  # type: ignore[union-attr]
    clf = make(solver)
    with monkeypatch.context() as patch:
        patch.setattr(learner, "min_batch", 1)
        patch.setattr(learner, "observe", fail_at(3, error, learner.observe))
        with pytest.raises(error):
            clf.partial_fit(X, Y)
    assert_unfitted(clf)


def test_learning_that_diverges_is_refused_with_advice() -> None:
    clf = make("hbo").partial_fit(X, Y)
    before = Unchanged(clf)
    clf.set_params(lr=1e30)
    with pytest.raises(ValueError, match=r"Training diverged.*Lower lr"):
        clf.partial_fit(X, Y)
    clf.set_params(lr=0.05)
    before.check()


def test_a_column_of_labels_is_taken_with_scikit_learns_warning(taught: CLDNetClassifier) -> None:
    clf = copy.deepcopy(taught)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        clf.partial_fit(X, Y[:, None])
    expected = copy.deepcopy(taught).partial_fit(X, Y)
    assert np.array_equal(clf.decision_function(X), expected.decision_function(X))


def test_a_module_that_gives_nan_later_on_does_not_spoil_the_model() -> None:
    class Logarithm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 5, torch.nan, x)

    clf = CLDNetClassifier(backbone=Logarithm(), capacity=8, random_state=0).fit(X, Y)
    before = Unchanged(clf)
    with pytest.raises(ValueError, match="returned NaN or infinity"):
        clf.partial_fit(np.concatenate([X, [[1e9] * X.shape[1]]]), [*Y, 0])
    before.check()


def test_weights_that_run_away_in_the_last_step_are_not_swapped_in() -> None:
    clf = CLDNetClassifier("hbo", capacity=8, embed_dim=8, epochs=1, batch_size=64, random_state=0).fit(X, Y)
    before = Unchanged(clf)
    clf.set_params(lr=1e38)
    with pytest.raises(ValueError, match="Training diverged"):
        clf.partial_fit(X, Y)
    before.check()


@pytest.mark.parametrize(
    "parameters", [{"n_threads": 10**6}, {"alpha": None}, {"verbose": "x"}, {"batch_size": 10**30}]
)
def test_a_file_that_could_not_be_read_again_is_not_written(
    taught: CLDNetClassifier, parameters: dict[str, Any], tmp_path: Path
) -> None:
    clf = copy.deepcopy(taught)
    clf.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()
    (name,) = parameters
    with pytest.raises(ValueError, match=f"{name}=.* should be"):
        clf.set_params(**parameters).save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == before


@pytest.mark.parametrize("solver", SOLVERS)
def test_whole_numbers_beyond_64_bits_are_saved_as_floats(solver: str, tmp_path: Path) -> None:
    clf = make(solver, alpha=10**30, lr=10**20 if solver == "exact" else 1, verbose=False).fit(X, Y)
    assert clf.get_params()["alpha"] == 10**30
    clf.save(tmp_path / "model")
    again = CLDNetClassifier.load(tmp_path / "model")
    assert again.get_params()["alpha"] == 1e30
    assert np.array_equal(again.decision_function(X), clf.decision_function(X))


@pytest.mark.parametrize("models", [None, 3, "model", "statistics"])
def test_what_is_no_list_of_models_cannot_be_merged(models: Any) -> None:
    clf = make("exact").fit(X, Y)
    given = {"model": clf, "statistics": clf.statistics()}.get(models, models)
    with pytest.raises(
        ValueError, match=r"A \w+ cannot be merged: pass a list of models \(CLDNetClassifier\) or of their sums"
    ):
        cldnet.merge(given)


@pytest.mark.parametrize("sort", [True, False])
def test_a_net_that_learned_nothing_is_told_whatever_the_order_of_samples(
    sort: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 20))[rng.integers(0, 3, size=400)], rng.integers(0, 4, size=400)
    order = np.argsort(y, kind="stable") if sort else np.arange(400)
    CLDNetClassifier("hbo", capacity=4, embed_dim=8, epochs=1, random_state=0).fit(X[order], y[order])
    assert "hardly more than by chance" in caplog.text


def test_sums_that_overflow_are_refused_without_advice_for_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    def overflow(learner: Any, *arguments: Any, **options: Any) -> Any:
        report = fit_task(learner, *arguments, **options)
        learner.class_sums[0, 0] = torch.inf
        return report

    clf = make("exact").fit(X, Y)
    before = Unchanged(clf)
    monkeypatch.setattr("cldnet.estimator.model.fit_task", overflow)
    with pytest.raises(ValueError, match="The sums would overflow"):
        clf.partial_fit(X, Y)
    before.check()
