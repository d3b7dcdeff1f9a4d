"""Numbers stay numbers: extremes are mended, or refused in a sentence with the model as it was, and never pass in silence."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from cldnet import CLDNetClassifier
from cldnet.estimator.footprint import footprint
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.nets import RandomReLU

COUNT, WIDTH, CLASSES = 20, 12, 5
CENTRES = 6 * np.random.default_rng(0).normal(size=(CLASSES, WIDTH))
LABELS = np.repeat(np.arange(CLASSES), COUNT)
ROWS = CENTRES[LABELS] + np.random.default_rng(1).normal(size=(len(LABELS), WIDTH))
AXES = np.linalg.qr(np.random.default_rng(2).normal(size=(WIDTH, WIDTH)))[0]
SOLVERS = ("exact", "hbo")
Array = NDArray[Any]


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def make(solver: str, width: int = WIDTH, **parameters: Any) -> CLDNetClassifier:
    small: dict[str, Any] = {"capacity": 8, "random_state": 0}
    if solver == "exact":
        return CLDNetClassifier(**{**small, "backbone": RandomReLU((width,), features=100, seed=0), **parameters})
    return CLDNetClassifier(**{**small, "solver": "hbo", "embed_dim": 16, "epochs": 4, **parameters})


def taught(clf: CLDNetClassifier, X: Array, y: Array = LABELS) -> CLDNetClassifier:
    """Teach three classes, then the others; a call that is refused leaves all answers as they were."""
    for part in (y < 3, y >= 3):
        if not part.any():
            continue
        before = clf.predict_proba(X) if hasattr(clf, "classes_") else None
        try:
            clf.partial_fit(X[part], y[part])
        except ValueError:
            if before is None:
                assert not hasattr(clf, "classes_")
            else:
                np.testing.assert_array_equal(clf.predict_proba(X), before)
            raise
    return clf


def check_answers(clf: CLDNetClassifier, X: Array, y: Array = LABELS, least: float = 0.9) -> None:
    probabilities = clf.predict_proba(X)
    assert np.isfinite(clf.decision_function(X)).all()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-9)
    if clf.solver == "exact":
        assert np.isfinite(clf.known_probability(X)).all()
    assert (clf.predict(X) == y).mean() >= least


# -- inputs ------------------------------------------------------------------------------------------------------------

SEPARATED: dict[str, Callable[[Array], Array]] = {
    "as they are": lambda X: X,
    "tiny": lambda X: 1e-30 * X,
    "below float32": lambda X: 1e-100 * X,
    "denormal": lambda X: (1e-42 * X).astype(np.float32),
    "huge": lambda X: 1e30 * X,
    "the largest of float32": lambda X: (X / np.abs(X).max() * 3.4e38).astype(np.float32),
    "of mixed scales": lambda X: X * np.logspace(-30, 30, WIDTH),
    "ill-conditioned": lambda X: X @ AXES * np.logspace(0, -14, WIDTH),
    "nearly dependent": lambda X: X @ AXES * np.r_[1, 1, 1, 1, 1, 1, [1e-13] * 6] @ AXES.T,
    "far from 0": lambda X: X + 1e12,
    "times of day, in seconds since 1970": lambda X: 60 * X + 1.7e9,
    "nearly constant": lambda X: 1 + 1e-9 * X,
    "beside constant columns": lambda X: np.hstack([X, np.full((len(X), 3), 7.0)]),
    "beside huge constants": lambda X: np.hstack([X, np.full((len(X), 3), 1e30)]),
    "columns four times": lambda X: np.hstack([X] * 4),
    "each row many times": lambda X: CENTRES[LABELS],
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("inputs", SEPARATED)
def test_classes_that_are_apart_are_told_apart_whatever_their_numbers(solver: str, inputs: str) -> None:
    X = SEPARATED[inputs](ROWS)
    check_answers(taught(make(solver, X.shape[1]), X), X)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("value", [0.0, 1.0, -1e30])
def test_inputs_that_tell_nothing_give_numbers_all_the_same(solver: str, value: float) -> None:
    X = np.full_like(ROWS, value)
    clf = taught(make(solver), X)
    check_answers(clf, X, least=0.0)
    if solver == "exact":  # all classes came equally often
        np.testing.assert_allclose(clf.predict_proba(X), 1 / CLASSES, atol=1e-3)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda X: 1e300 * X, "too large for float32. Rescale X"),
        (lambda X: 1e-300 * X, "vary by less than 1e-150, which is too little for float64. Multiply X"),
        (lambda X: X + 1e15, r"varies by .* around 1e\+15, .*\. Subtract an offset first"),
        (lambda X: np.where(X.max() > X, X, np.inf), "contains infinity"),
        (lambda X: np.where(X.max() > X, X, np.nan), "contains NaN"),
    ],
)
def test_inputs_beyond_all_numbers_are_refused(solver: str, change: Callable[[Array], Array], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        taught(make(solver), change(ROWS))
    clf = make(solver).partial_fit(ROWS, LABELS)
    before = clf.predict_proba(ROWS)
    with contextlib.suppress(ValueError):  # the scale is known, so tiny numbers are only near to each other
        clf.partial_fit(change(ROWS), LABELS)
        check_answers(clf, ROWS, least=0.0)
        return
    np.testing.assert_array_equal(clf.predict_proba(ROWS), before)


@pytest.mark.parametrize("solver", SOLVERS)
def test_few_rows_and_few_classes(solver: str) -> None:
    one = LABELS == 0
    check_answers(taught(make(solver, capacity=1), ROWS[one], LABELS[one]), ROWS[one], LABELS[one], least=1.0)
    check_answers(make(solver).partial_fit(ROWS[:1], LABELS[:1]), ROWS[:1], LABELS[:1], least=1.0)
    clf = make(solver, epochs=40).partial_fit(ROWS[::COUNT], LABELS[::COUNT])
    check_answers(clf, ROWS[::COUNT], LABELS[::COUNT])
    clf.partial_fit(ROWS[:1], LABELS[:1])
    check_answers(clf, ROWS, least=0.0)


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("weights", [1e-300, np.where(LABELS == 0, 1e-300, 1.0)])
def test_weights_too_small_to_count_are_refused(solver: str, weights: Any) -> None:
    clf = make(solver)
    with pytest.raises(ValueError, match=r"sample_weight has the value 1e-300; expected 0, or 1e-12 to 1e\+12"):
        clf.partial_fit(ROWS, LABELS, sample_weight=weights)
    assert not hasattr(clf, "classes_")


@pytest.mark.parametrize("weight", [1 / len(ROWS), 1e-12])
def test_weights_that_add_up_to_hardly_a_row_are_told_by_the_exact_solver(
    weight: float, caplog: pytest.LogCaptureFixture
) -> None:
    clf = taught(make("exact"), ROWS)
    check_answers(clf.partial_fit(ROWS, LABELS, sample_weight=weight), ROWS)  # beside rows that are known already
    assert not caplog.text
    make("exact").partial_fit(ROWS, LABELS, sample_weight=weight)
    assert re.search(
        r"of 100 samples add up to .*than random: use sample_weight / sample_weight\.mean\(\)", caplog.text
    )


def test_weights_that_add_up_to_far_fewer_rows_than_there_are_are_told(caplog: pytest.LogCaptureFixture) -> None:
    make("exact").partial_fit(ROWS, LABELS, sample_weight=0.3)
    assert not caplog.text
    make("exact").partial_fit(ROWS, LABELS, sample_weight=0.2)
    assert "The weights of 100 samples add up to 20" in caplog.text


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gram", ["full", "diagonal", 20])
@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-30, 1e-12, 1.0, 1e6, 1e30, 1e200, 1e300])
def test_any_penalty_gives_numbers_and_one_beyond_reason_is_told(
    gram: str | int, alpha: float, caplog: pytest.LogCaptureFixture
) -> None:
    clf = taught(make("exact", alpha=alpha, gram=gram), ROWS)
    check_answers(clf, ROWS, least=0.9 if alpha <= 1e6 else 0.0)  # a penalty beyond all sums leaves nothing of them
    assert ("hides what was learned" in caplog.text) == (alpha > 1e6)
    assert ("has no effect" in caplog.text) == (alpha <= 1e-12)


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-30, 1e-12, 1e-3, 1e6, 1e30, 1e100, 1e300])
def test_any_alpha_of_the_projectors_gives_answers_or_is_refused_or_told(
    alpha: float, caplog: pytest.LogCaptureFixture
) -> None:
    _learned_or_told(make("hbo", alpha=alpha), "Training diverged: .* raise alpha if it is tiny", caplog)


@pytest.mark.parametrize("lr", [5e-324, 1e-300, 1e-30, 1e3, 1e6, 1e12, 1e30, 1e38, 1e39, 1e300])
def test_any_learning_rate_gives_answers_or_is_refused_or_told(lr: float, caplog: pytest.LogCaptureFixture) -> None:
    words = r"Training diverged: .* Lower lr|lr=.* should be a positive number, 3e\+38 at most"
    _learned_or_told(make("hbo", lr=lr), words, caplog)


def _learned_or_told(clf: CLDNetClassifier, words: str, caplog: pytest.LogCaptureFixture) -> None:
    """A model that knows nothing after it has learned is refused, or somebody is told."""
    try:
        taught(clf, ROWS)
    except ValueError as error:
        with pytest.raises(ValueError, match=words):
            raise error
    else:
        check_answers(clf, ROWS, least=0.0 if "hardly more than by chance" in caplog.text else 0.5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_capacity_beyond_memory_is_refused(solver: str) -> None:
    with pytest.raises(ValueError, match=r"Not enough memory for capacity=10{15}|capacity=10{15} takes .* GB"):
        make(solver, capacity=10**15).partial_fit(ROWS, LABELS)
    with pytest.raises(ValueError, match="100000 vectors of length 16 would take hours to compute"):
        make("hbo", capacity=10**5).partial_fit(ROWS, LABELS)


# -- a thousand tasks --------------------------------------------------------------------------------------------------


class Work(TorchDispatchMode):
    """Counts the operations that torch carries out, by name, and the numbers that come out of them."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = operation(*arguments, **(options or {}))
        self.done[str(operation)] += 1
        self.done[f"{operation}, numbers"] += sum(
            leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)
        )
        return result


def two_classes(number: int) -> TaskData:
    random = torch.Generator().manual_seed(number)
    y = torch.arange(2 * number, 2 * number + 2).repeat(10)
    return TaskData(3 * torch.randn(2, 8, generator=random)[y - 2 * number] + torch.randn(20, 8, generator=random), y)


@pytest.mark.parametrize(
    ("method", "tasks", "capacity", "options", "backbone"),
    [
        ("exact", 1000, 2048, {}, {"features": 60}),
        ("cldnet", 100, 256, {"embed_dim": 256}, {"widths": (32,)}),
    ],
)
def test_no_task_takes_more_bytes_or_operations_than_the_second(
    method: str, tasks: int, capacity: int, options: dict[str, Any], backbone: dict[str, Any]
) -> None:
    learner: Learner = build_learner(method, Setting((8,), capacity, seed=0), options, backbone_options=backbone)
    fit_task(learner, two_classes(0), epochs=1, batch_size=20)
    size, second, flops = footprint(learner).bytes, Counter[str](), set()
    for number in range(1, tasks):
        counted = FlopCounterMode(display=False)  # it is slow
        with Work() as work, counted if number % 90 == 1 else contextlib.nullcontext():
            fit_task(learner, two_classes(number), epochs=1, batch_size=20)
        second = second or work.done
        assert work.done == second, f"task {number} took other operations than the second"
        assert footprint(learner).bytes == size, f"the state has another size after task {number}"
        if number % 90 == 1:
            flops.add(counted.get_total_flops())
    assert len(flops) == 1
    assert min(flops) > 0
    assert learner.seen == 2 * tasks
    last = two_classes(tasks - 1)
    scores = learner.logits(last.x)
    assert torch.isfinite(scores).all()
    assert scores.shape == (20, 2 * tasks)
    assert float((scores[:, last.class_rows].argmax(1) + last.class_rows[0] == last.y).float().mean()) > 0.8


def test_ten_thousand_classes_are_told_apart() -> None:
    random = np.random.default_rng(0)
    centres = 10 * random.normal(size=(10_000, 32)).astype(np.float32)
    clf = CLDNetClassifier(backbone=RandomReLU((32,), features=100, seed=0), capacity=10_000, random_state=0)
    clf.partial_fit(np.concatenate([centres, centres + 0.1]), np.tile(np.arange(10_000), 2))
    assert (clf.predict(centres[:300] + 0.05) == np.arange(300)).mean() > 0.9
