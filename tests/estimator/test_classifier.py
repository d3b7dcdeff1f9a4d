"""What a user of the classifier sees: any labels, any arrays, any order, several threads, nothing touched."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from torch import nn

from cldnet import CLDNetClassifier
from cldnet.estimator.model import Model
from cldnet.nets import RandomReLU
from cldnet.nets.patches import WhitenedPatches

SOLVERS = ("exact", "hbo")
CENTRES = 5 * np.random.default_rng(7).normal(size=(6, 4))


def make(solver: str, **parameters: Any) -> CLDNetClassifier:
    small: dict[str, Any] = {"alpha": 1.0} if solver == "exact" else {"embed_dim": 8, "epochs": 4, "batch_size": 32}
    return CLDNetClassifier(solver, **{"capacity": 8, "random_state": 0, **small, **parameters})


def rows(*classes: int, count: int = 10, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points around the centres of a few classes, shuffled."""
    random = np.random.default_rng([seed, *classes])
    y = random.permutation(np.repeat(classes, count))
    return CENTRES[y] + random.normal(size=(len(y), 4)), y


def state(clf: CLDNetClassifier) -> dict[str, torch.Tensor]:
    assert clf._model is not None
    return {name: tensor.clone() for name, tensor in clf._model.learner.state_dict().items()}


def assert_same(first: CLDNetClassifier, second: CLDNetClassifier) -> None:
    one, other = state(first), state(second)
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    X, _ = rows(0, 1, 2, 3, 4)
    assert np.array_equal(first.decision_function(X), second.decision_function(X))
    assert np.array_equal(first.predict(X), second.predict(X))


# -- labels ------------------------------------------------------------------------------------------------------------


LABELS: dict[str, tuple[Callable[[np.ndarray[Any, Any]], Any], list[Any]]] = {
    "strings in a list": (lambda y: [f"class {i}" for i in y], ["class 0", "class 1", "class 2", "class 3"]),
    "negative and gapped numbers": (lambda y: np.array([40, -7, 3, -100])[y], [-100, -7, 3, 40]),
    "small integers": (lambda y: y.astype(np.int8), [0, 1, 2, 3]),
    "numpy scalars in a list": (lambda y: [np.int64(i) for i in y], [0, 1, 2, 3]),
    "objects": (lambda y: np.array(["d", "a", "c", "b"], dtype=object)[y], ["a", "b", "c", "d"]),
    "a pandas series": (lambda y: pd.Series([f"c{i}" for i in y], index=y), ["c0", "c1", "c2", "c3"]),
    "a torch tensor": (lambda y: torch.from_numpy(y), [0, 1, 2, 3]),
    "whole floats": (lambda y: y.astype(float), [0.0, 1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", LABELS)
def test_labels_nobody_declared_come_back_in_their_own_type(kind: str, solver: str) -> None:
    write, expected = LABELS[kind]
    clf = make(solver)
    for classes in ((2, 0), (3,), (1, 2)):  # a one-class call, and a class that comes back
        X, y = rows(*classes)
        clf.partial_fit(X, write(y))
        assert clf.classes_.tolist() == sorted(clf.classes_.tolist())
    assert clf.classes_.tolist() == expected
    predicted = clf.predict(X)
    assert predicted.dtype == clf.classes_.dtype
    assert {type(label) for label in predicted.tolist()} == {type(expected[0])}
    assert set(predicted.tolist()) <= set(expected)
    assert clf.score(X, np.asarray(write(y))) > (0.9 if solver == "exact" else 0.5)


def test_booleans_are_labels() -> None:
    X, y = rows(0, 1)
    clf = make("exact").partial_fit(X, y == 1)
    assert clf.classes_.tolist() == [False, True]
    assert clf.predict(X).dtype == np.bool_
    assert clf.predict(X).tolist() == (y == 1).tolist()


@pytest.mark.parametrize("solver", SOLVERS)
def test_columns_of_every_score_follow_classes_whatever_the_order_of_arrival(solver: str) -> None:
    clf = make(solver, epochs=10)
    for classes in ((4, 1), (3, 0)):
        X, y = rows(*classes)
        clf.partial_fit(X, y)
    scores, probabilities = clf.decision_function(X), clf.predict_proba(X)
    assert scores.shape == probabilities.shape == (len(X), 4)
    assert np.array_equal(clf.classes_[scores.argmax(1)], clf.predict(X))
    assert np.array_equal(clf.classes_[probabilities.argmax(1)], clf.predict(X))
    assert np.allclose(probabilities.sum(1), 1)
    assert (clf.predict(X) == y).mean() > 0.9  # so the columns are those of the labels, and not of the rows


def test_two_classes_have_one_score_and_one_class_has_a_column() -> None:
    X, y = rows(0, 1)
    clf = make("exact").partial_fit(X[y == 1], y[y == 1])
    assert clf.decision_function(X).shape == (20, 1)
    assert clf.predict_proba(X).tolist() == [[1.0]] * 20
    clf.partial_fit(X[y == 0], y[y == 0])
    scores = clf.decision_function(X)
    assert scores.shape == (20,)
    assert np.array_equal(clf.predict(X), (scores > 0).astype(int))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_single_row_is_enough_once_the_model_exists(solver: str) -> None:
    X, y = rows(0, 1)
    clf = make(solver).partial_fit(X, y)
    clf.partial_fit(CENTRES[[2]], [2])
    assert clf.classes_.tolist() == [0, 1, 2]
    assert clf.predict(CENTRES[[2]]).shape == (1,)


def test_a_first_call_with_one_row_says_how_many_a_module_needs() -> None:
    with pytest.raises(ValueError, match="at least 2 samples"):
        make("exact", backbone=nn.Identity()).partial_fit(CENTRES[[0]], [0])


def test_fit_forgets_what_was_learned_before() -> None:
    clf = make("exact").fit(*rows(0, 1)).fit(*rows(2, 3))
    assert clf.classes_.tolist() == [2, 3]
    assert_same(clf, make("exact").fit(*rows(2, 3)))


@pytest.mark.parametrize("solver", SOLVERS)
def test_classes_may_be_declared_and_then_bind(solver: str) -> None:
    X, y = rows(0, 1)
    clf = make(solver).partial_fit(X, y, classes=[0, 1, 2])
    assert clf.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"labels \[1\] that are not in classes"):
        clf.partial_fit(X, y, classes=[0])


# -- weights -----------------------------------------------------------------------------------------------------------


def test_a_weight_of_two_is_a_row_twice_for_the_exact_solver() -> None:
    X, y = rows(0, 1)
    first = make("exact").partial_fit(*rows(2, 3))
    weight = np.where(np.arange(20) < 5, 2.0, 1.0)
    weighted = make("exact").partial_fit(*rows(2, 3)).partial_fit(X, y, sample_weight=weight)
    repeated = first.partial_fit(np.concatenate([X, X[:5]]), np.concatenate([y, y[:5]]))
    assert np.array_equal(weighted.decision_function(X), repeated.decision_function(X))


@pytest.mark.parametrize("solver", SOLVERS)
def test_weights_tell_which_rows_count(solver: str) -> None:
    X, y = rows(0, 1)
    wrong = np.concatenate([y, 1 - y])
    weight = np.repeat([1.0, 1e-3], len(y))
    clf = make(solver, epochs=20).fit(np.concatenate([X, X]), wrong, sample_weight=torch.from_numpy(weight))
    assert clf.score(X, y) > 0.9
    clf.fit(np.concatenate([X, X]), wrong, sample_weight=weight[::-1])
    assert clf.score(X, y) < 0.1


# -- arrays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_make_of_array_gives_the_same_model(solver: str) -> None:
    X, y = rows(0, 1, 2)
    X = X.astype(np.float32)
    scores = make(solver).fit(X, y).decision_function(X)
    frame = pd.DataFrame(X, columns=list("abcd"))
    for other in (X.tolist(), np.asfortranarray(X), torch.from_numpy(X), torch.from_numpy(X).requires_grad_(), frame):
        clf = make(solver).fit(other, y.tolist())
        assert np.array_equal(clf.decision_function(other), scores)


def test_names_of_columns_are_remembered_and_other_names_refused() -> None:
    X, y = rows(0, 1)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    clf = make("exact").partial_fit(frame, pd.Series(y))
    assert clf.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert clf.n_features_in_ == 4
    before = state(clf)
    swapped = frame[["b", "a", "c", "d"]]
    for call in (lambda: clf.partial_fit(swapped, y), lambda: clf.predict(frame.rename(columns={"a": "z"}))):
        with pytest.raises(ValueError, match="feature names should match"):
            call()
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        clf.predict(X)
    assert all(torch.equal(before[name], tensor) for name, tensor in state(clf).items())
    assert not hasattr(clf.fit(X, y), "feature_names_in_")


@pytest.mark.parametrize("solver", SOLVERS)
def test_read_only_arrays_are_taken_and_nothing_is_written_into_them(solver: str) -> None:
    X, y = rows(0, 1)
    weight = np.ones(len(y))
    originals = X.copy(), y.copy(), weight.copy()
    for array in (X, y, weight):
        array.flags.writeable = False
    make(solver).partial_fit(X, y, sample_weight=weight).predict(X)
    tensor = torch.from_numpy(originals[0].copy())
    make(solver).partial_fit(tensor, torch.from_numpy(y.copy())).predict(tensor)
    assert np.array_equal(tensor.numpy(), originals[0])
    for array, original in zip((X, y, weight), originals, strict=True):
        assert np.array_equal(array, original)


# -- images ------------------------------------------------------------------------------------------------------------


def images(*shape: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    y = np.arange(12) % 3
    return (random.integers(0, 90, (12, *shape)) + 80 * y.reshape(-1, *[1] * len(shape))).astype(np.uint8), y


@pytest.mark.parametrize("solver", SOLVERS)
def test_images_with_channels_first_or_last_are_the_same_images(solver: str) -> None:
    X, y = images(6, 7, 3)
    last, first = make(solver).fit(X, y), make(solver).fit(X.transpose(0, 3, 1, 2), y)
    scores = last.decision_function(X)
    assert np.array_equal(scores, first.decision_function(X))
    assert np.array_equal(scores, last.decision_function(X.transpose(0, 3, 1, 2)))
    assert last.n_features_in_ == 126
    assert last.score(X, y) > 0.9


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", [(6, 7), (3, 6, 7), (6, 7, 3), (1, 6, 7)])
def test_flat_rows_are_folded_into_input_shape(shape: tuple[int, ...], solver: str) -> None:
    X, y = images(*shape)
    folded = make(solver, input_shape=shape).fit(X.reshape(12, -1), y)
    plain = make(solver).fit(X, y)
    assert np.array_equal(folded.decision_function(X.reshape(12, -1)), plain.decision_function(X))
    assert np.array_equal(folded.decision_function(X), plain.decision_function(X))
    folded.partial_fit(X.reshape(12, -1), y)


def test_images_with_channels_last_are_not_scrambled_by_an_input_shape_with_channels_first() -> None:
    X, y = images(6, 7, 3)
    told, plain = make("exact", input_shape=(3, 6, 7)).fit(X, y), make("exact").fit(X, y)
    assert np.array_equal(told.decision_function(X), plain.decision_function(X))


def test_images_in_another_range_are_refused_with_a_sentence() -> None:
    X, y = images(6, 7)
    pixels, floats = make("exact").fit(X, y), make("exact").fit(X / 255, y)
    with pytest.raises(
        ValueError, match=r"learned uint8 inputs with values up to \d+ and X lies between -1 and 1: bring"
    ):
        pixels.predict(X / 255)
    for other in (X, X.astype(float)):
        with pytest.raises(ValueError, match=r"values up to 0\.\d+ and X is (uint8|float) with values up to"):
            floats.partial_fit(other, y)
    assert np.array_equal(pixels.predict(X.astype(float)), pixels.predict(X))
    flat = make("exact").fit(X.reshape(len(X), -1) / 255, y)
    with pytest.raises(ValueError, match="for example X / 255"):
        flat.predict(X.reshape(len(X), -1))
    with pytest.raises(ValueError, match=r"for example X \* 255"):
        make("exact").fit(X.astype(float), y).predict(X / 255)
    assert pixels.predict(np.zeros((1, 6, 7))).shape == (1,)  # a black image is in every range
    assert floats.predict(np.zeros((1, 6, 7), np.uint8)).shape == (1,)


def test_large_images_get_a_convolutional_net_by_default() -> None:
    random = np.random.default_rng(0)
    clf = make("hbo", epochs=1).fit(random.normal(size=(4, 16, 16, 3)), [0, 1, 0, 1])
    assert any(tensor.ndim == 4 for name, tensor in state(clf).items() if name.startswith("net."))


# -- exactness ---------------------------------------------------------------------------------------------------------


FIRST = rows(0, 1, 2, count=20)
REST = tuple(np.concatenate(parts) for parts in zip(rows(3, 4, seed=1), rows(0, 5, seed=2), strict=True))
WHOLE = make("exact", alpha="gcv").partial_fit(*FIRST).partial_fit(*REST)


@settings(deadline=None, max_examples=8)
@given(st.permutations(range(len(REST[1]))), st.lists(st.integers(1, len(REST[1]) - 1), max_size=5, unique=True))
def test_order_and_chunks_of_the_data_leave_no_trace_in_the_exact_solver(order: list[int], cuts: list[int]) -> None:
    clf = make("exact", alpha="gcv").partial_fit(*FIRST)
    for part in np.split(np.array(order), sorted(cuts)):
        clf.partial_fit(REST[0][part], REST[1][part])
    X = np.concatenate([FIRST[0], REST[0]])
    # Rows go by arrival, so the columns of the state may be swapped; what the user sees may differ by rounding alone.
    np.testing.assert_allclose(clf.decision_function(X), WHOLE.decision_function(X), rtol=0, atol=1e-9)
    assert np.array_equal(clf.predict(X), WHOLE.predict(X))
    assert torch.equal(state(clf)["second.packed"], state(WHOLE)["second.packed"])
    assert clf._model is not None
    assert WHOLE._model is not None
    ours, theirs = clf._model.labels.columns, WHOLE._model.labels.columns
    assert torch.equal(state(clf)["class_sums"][ours], state(WHOLE)["class_sums"][theirs])


def test_classes_of_the_exact_solver_are_not_forgotten() -> None:
    clf = make("exact")
    for classes in ((0, 1), (2, 3), (4, 5)):
        clf.partial_fit(*rows(*classes, count=30))
    X, y = rows(0, 1, 2, 3, 4, 5, seed=9)
    assert clf.score(X, y) > 0.9


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(solver: str) -> None:
    X, y = rows(0, 1, 2)
    first = make(solver).fit(X, y)
    assert_same(first, make(solver, random_state=np.int64(0)).fit(X, y))
    assert not np.array_equal(first.decision_function(X), make(solver, random_state=1).fit(X, y).decision_function(X))
    twins = [make(solver, random_state=np.random.RandomState(3)).fit(X, y) for _ in range(2)]
    assert_same(*twins)


# -- the surroundings --------------------------------------------------------------------------------------------------


def surroundings() -> tuple[Any, ...]:
    random = np.random.get_state()[1].tolist()  # noqa: NPY002  (the global generator is what must not be touched)
    torch_state = torch.get_rng_state().tolist()
    return random, torch_state, torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("solver", SOLVERS)
def test_learning_and_predicting_touch_nothing_global(solver: str, grad: bool) -> None:
    X, y = rows(0, 1)
    with torch.set_grad_enabled(grad):
        before = surroundings()
        make(solver).partial_fit(X, y).predict_proba(X)
        assert surroundings() == before


@pytest.mark.parametrize("solver", SOLVERS)
def test_learning_works_where_gradients_are_switched_off(solver: str) -> None:
    X, y = rows(0, 1)
    expected = make(solver).partial_fit(X, y)
    with torch.no_grad():
        assert_same(make(solver).partial_fit(X, y), expected)
    with torch.inference_mode():
        clf = make(solver).partial_fit(X, y)
        assert_same(clf, expected)
    assert_same(clf.partial_fit(X, y), expected.partial_fit(X, y))


def test_the_number_of_threads_is_set_for_the_time_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows(0, 1)
    seen: list[int] = []
    before = torch.get_num_threads()
    clf = make("exact", n_threads=before + 1)
    clf.partial_fit(X, y)
    learner = type(clf._model.learner)  # type: ignore[union-attr]
    original = learner.score
    monkeypatch.setattr(learner, "score", lambda self, x: seen.append(torch.get_num_threads()) or original(self, x))
    clf.predict(X)
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("n_threads", [None, 1])
@pytest.mark.parametrize("solver", SOLVERS)
def test_predicting_is_safe_from_four_threads(solver: str, n_threads: int | None) -> None:
    clf = make(solver, n_threads=n_threads).partial_fit(*rows(0, 1, 2))
    X, _ = rows(0, 1, 2, seed=1)
    fresh = make(solver, n_threads=n_threads).partial_fit(*rows(0, 1, 2))  # its solution is not computed yet
    expected, threads = clf.decision_function(X), torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        for scores in pool.map(lambda _: fresh.decision_function(X), range(16)):
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert torch.get_num_threads() == threads


def test_whoever_predicts_while_another_thread_learns_has_one_whole_model() -> None:
    clf = make("exact").partial_fit(*rows(0, 1))
    X, _ = rows(0, 1, 2, 3, 4, 5)
    done, problems = threading.Event(), []

    def ask() -> None:
        while not done.is_set():
            try:
                assert clf.predict_proba(X).shape[1] >= 2
                clf.predict(X)
            except Exception as problem:
                problems.append(problem)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    for label in (5, 4, 3, 2) * 2:
        clf.partial_fit(*rows(label))
    done.set()
    asking.join()
    assert problems == []


def test_sessions_are_logged_if_asked_for(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with caplog.at_level(logging.INFO, logger="cldnet"):
        make("hbo").fit(*rows(0, 1))
        assert caplog.messages == []
        make("hbo", verbose=1).fit(*rows(0, 1))
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("learned 20 samples in")
        make("hbo", verbose=2, epochs=30).fit(*rows(0, 1))
        assert "step 30 of 30" in caplog.messages
        assert len(caplog.messages) == 12
    assert capsys.readouterr().out == ""


# -- a module of one's own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_users_module_is_copied_and_the_model_learns_on_and_on(solver: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    clf = make(solver, backbone=module)
    for classes in ((0, 1), (2,), (3,)):
        clf.partial_fit(*rows(*classes))
    assert clf.classes_.tolist() == [0, 1, 2, 3]
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    assert module.training
    assert clf.get_params()["backbone"] is module


def test_nothing_can_be_asked_of_a_model_that_has_learned_nothing(tmp_path: Any) -> None:
    clf, X = CLDNetClassifier(), CENTRES
    asks: list[Callable[[], Any]] = [
        lambda: clf.predict(X),
        lambda: clf.predict_proba(X),
        lambda: clf.decision_function(X),
        lambda: clf.footprint(),
        lambda: clf.save(tmp_path / "model"),
    ]
    for ask in asks:
        with pytest.raises(NotFittedError, match="call fit or partial_fit first"):
            ask()
    assert not hasattr(clf, "classes_")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("solver", SOLVERS)
def test_there_may_be_more_room_for_classes_than_dimensions(solver: str) -> None:
    X, y = rows(0, 1, 2)
    clf = make(solver, capacity=40, embed_dim=10, epochs=20).fit(X, y)
    assert clf.score(X, y) > 0.9


def test_a_first_session_of_one_narrow_class_does_not_blind_the_model_for_the_next() -> None:
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 100)
    X = 0.1 * random.normal(size=(300, 4)) + np.array([0.0, 2.0, 3.0])[y, None]
    clf = make("exact")
    for label in range(3):
        clf.partial_fit(X[y == label], y[y == label])
    assert clf.score(X, y) > 0.99


def test_the_same_module_gets_the_same_inputs_from_both_solvers() -> None:
    X, y = images(6, 7)
    met: dict[str, float] = {}

    class Spy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            met["largest"] = max(met.get("largest", 0.0), float(x.abs().max()))
            return x.flatten(1)

    largest = []
    for solver in SOLVERS:
        met.clear()
        make(solver, backbone=Spy()).fit(X, y)
        largest.append(met["largest"])
    assert largest[0] == pytest.approx(largest[1], rel=1e-6)
    assert largest[0] < 3  # standardised, not 0 to 255


class _Overwriting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).flatten(1)


class _OverwritingMap(RandomReLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("solver", "backbone"),
    [("exact", _Overwriting()), ("hbo", _Overwriting()), ("exact", _OverwritingMap((4,), features=8, seed=0))],
)
def test_a_net_that_writes_over_its_inputs_leaves_the_callers_data_alone(
    solver: str, backbone: nn.Module, dtype: Any
) -> None:
    X, y = rows(0, 1)
    X = X.astype(dtype)
    before = X.copy()
    clf = make(solver, backbone=backbone, dtype=np.dtype(dtype).name).fit(X, y)
    clf.partial_fit(X, y)
    clf.predict(X)
    assert np.array_equal(X, before)


def test_calls_from_two_threads_at_once_do_not_lose_a_class_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = make("exact").fit(*rows(0, 1))
    learn = Model.learn

    def interrupted(self: Model, *arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(Model, "learn", learn)
        clf.partial_fit(*rows(2))  # what another thread would do meanwhile
        return learn(self, *arguments, **named)

    monkeypatch.setattr(Model, "learn", interrupted)
    with pytest.raises(RuntimeError, match="Another thread changed this model during the call"):
        clf.partial_fit(*rows(3))
    assert clf.classes_.tolist() == [0, 1, 2]


def test_rows_of_weight_zero_leave_no_trace_in_the_net() -> None:
    X, y = rows(0, 1)
    weight = np.where(np.arange(len(y)) % 4, 1.0, 0.0)
    other = np.where(weight[:, None] > 0, X, -X)
    assert np.array_equal(
        *(make("hbo").fit(these, y, sample_weight=weight).decision_function(X) for these in (X, other))
    )


def test_whole_numbers_of_pandas_that_may_be_missing_stay_whole_numbers() -> None:
    X, y = rows(0, 1)
    clf = make("exact").partial_fit(X, pd.Series(y, dtype="Int64"))
    assert clf.partial_fit(X, y).classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="None or NaN"):
        clf.partial_fit(X[:2], pd.Series([1, None], dtype="Int64"))


def test_without_a_seed_numpys_global_generator_is_left_alone() -> None:
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    CLDNetClassifier(capacity=4, alpha=1.0).fit(*rows(0, 1))
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


# -- feature maps by name, or given ------------------------------------------------------------------------------------


def test_images_are_learned_over_whitened_patches_which_are_fitted_once_and_saved(tmp_path: Any) -> None:
    digits = load_digits()
    first, X = digits.target < 5, digits.images.astype(np.uint8)
    given = WhitenedPatches((8, 8), filters=8, seed=0, size=4, windows=2, mirror=False)
    clf = make("exact", backbone=given, capacity=10, alpha="gcv").partial_fit(X[first], digits.target[first])
    assert not given.fitted  # the model has a copy of its own
    fitted = clf.feature_map_.map_id
    clf.partial_fit(X[~first], digits.target[~first])
    assert clf.feature_map_.map_id == fitted
    assert clf.score(X, digits.target) > 0.9
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert_same_answers(loaded, clf, X)
    assert loaded.feature_map_.map_id == fitted


def assert_same_answers(first: CLDNetClassifier, second: CLDNetClassifier, X: Any) -> None:
    assert np.array_equal(first.decision_function(X), second.decision_function(X))
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))


def test_patches_by_name_want_images_and_enough_of_them() -> None:
    digits = load_digits()
    with pytest.raises(ValueError, match=r"at least [\d,]+ samples"):
        make("exact", backbone="patches", capacity=10).fit(digits.images[:50], digits.target[:50])
    with pytest.raises(ValueError, match="image"):
        make("exact", backbone="patches", capacity=10).fit(digits.data, digits.target)


@pytest.mark.parametrize("gram", ["diagonal", 6, np.int64(6)])
def test_a_small_device_may_keep_less_than_all_moments(gram: Any, tmp_path: Any) -> None:
    X, y = rows(0, 1, 2, count=30)
    features = RandomReLU((4,), features=40, seed=0)
    clf, whole = (make("exact", backbone=features, gram=kept).fit(X, y) for kept in (gram, "full"))
    assert clf.score(X, y) > 0.8
    assert clf.footprint().bytes["sums"] < whole.footprint().bytes["sums"]
    clf.save(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model")
    assert loaded.gram == gram
    assert_same_answers(loaded, clf, X)
    assert_same_answers(loaded.partial_fit(X, y), clf.partial_fit(X, y), X)


def test_a_module_of_ones_own_that_is_a_feature_map_is_told_by_its_fingerprint(tmp_path: Any) -> None:
    class Mine(RandomReLU):
        """Inherits the name of its parent's make, and computes something else."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).square() / 127

    X, y = rows(0, 1)
    clf = make("exact", backbone=Mine((4,), features=8, seed=0), dtype="float64").fit(X, y)
    clf.save(tmp_path / "model")
    with pytest.raises(ValueError, match="over a module of your own"):
        CLDNetClassifier.load(tmp_path / "model")
    loaded = CLDNetClassifier.load(tmp_path / "model", backbone=Mine((4,), features=8, seed=1))
    assert_same_answers(loaded, clf, X)


@pytest.mark.parametrize("layout", ["nhw", "nhwc", "nchw"])
def test_whitened_patches_by_name_learn_images_in_any_layout(layout: str, tmp_path: Any) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(["bars", "spots"], 180)
    stripes = 90 * np.sin(np.arange(16) + rng.uniform(0, 6, (360, 1, 1))) * np.ones((360, 16, 1))
    noise = rng.normal(0, 30, (360, 16, 16))
    X = np.clip(128 + noise + np.where(y == "bars", 1, 0)[:, None, None] * stripes, 0, 255).astype(np.uint8)
    X = {"nhw": X, "nhwc": np.repeat(X[..., None], 3, 3), "nchw": np.repeat(X[:, None], 3, 1)}[layout]
    clf = CLDNetClassifier(solver="exact", backbone="patches", alpha=1e4, capacity=3, random_state=0)
    clf.partial_fit(X[::2], y[::2])
    assert clf.score(X[1::2], y[1::2]) > 0.95
    clf.save(tmp_path / "images.cldnet")
    again = CLDNetClassifier.load(tmp_path / "images.cldnet")
    assert np.array_equal(again.decision_function(X[:9]), clf.decision_function(X[:9]))
    size = clf.footprint().total
    clf.partial_fit(255 - X[:5], ["negative"] * 5)
    assert (list(clf.classes_), clf.footprint().total) == (["bars", "negative", "spots"], size)
