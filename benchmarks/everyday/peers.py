"""Single rows for river and scikit-learn, and how calls are timed. river's own environment has neither torch nor cldnet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS, CLASSES, FIRST = 50, 10, 2000
_SEED = 0


def rows(count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The first samples of an endless stream of ten classes that overlap."""
    chance = np.random.default_rng(_SEED)
    centres, noise = chance.normal(size=(CLASSES, COLUMNS)), np.random.default_rng(_SEED + 1)
    y = chance.integers(CLASSES, size=count)
    return centres[y] + 1.5 * noise.normal(size=(count, COLUMNS)), y


def turn_of_sklearn(count: int) -> dict[str, Any]:
    """The same for ``SGDClassifier`` with a logistic loss, behind a fixed scale."""
    from sklearn.linear_model import SGDClassifier

    x, y = rows(FIRST + count)
    x = (x - x[:FIRST].mean(0)) / x[:FIRST].std(0)
    clf = SGDClassifier(loss="log_loss", random_state=_SEED)
    clf.partial_fit(x[:FIRST], y[:FIRST], classes=np.arange(CLASSES))

    def call(row: slice) -> Iterator[Callable[[], object]]:
        yield lambda: clf.partial_fit(x[row], y[row])
        yield lambda: clf.predict(x[row])

    return timed(call, count)


def turn_of_river(count: int) -> dict[str, Any]:
    """The same for river's softmax regression behind its scaler."""
    from river.linear_model import SoftmaxRegression  # type: ignore[import-not-found,unused-ignore]
    from river.preprocessing import StandardScaler  # type: ignore[import-not-found,unused-ignore]

    x, y = rows(FIRST + count)
    samples, model = [dict(enumerate(row)) for row in x.tolist()], StandardScaler() | SoftmaxRegression()
    for sample, label in zip(samples[:FIRST], y[:FIRST].tolist(), strict=True):
        model.learn_one(sample, label)

    def call(row: slice) -> Iterator[Callable[[], object]]:
        yield lambda: model.learn_one(samples[row.start], int(y[row.start]))
        yield lambda: model.predict_one(samples[row.start])

    return timed(call, count)


def timed(calls: Callable[[slice], Iterator[Callable[[], object]]], count: int) -> dict[str, Any]:
    """CPU seconds of the two calls per row: their sum's median and mean over ``count`` rows."""
    learn, predict = list[float](), list[float]()
    for row in range(FIRST, FIRST + count):
        for call, seconds in zip(calls(slice(row, row + 1)), (learn, predict), strict=True):
            begun = time.process_time()
            call()
            seconds.append(time.process_time() - begun)
    both = [sum(pair) for pair in zip(learn, predict, strict=True)]
    named = {"learn": learn, "predict": predict, "both": both}
    return {
        **{f"{name}_median_ms": 1e3 * median(seconds) for name, seconds in named.items()},
        "both_mean_ms": 1e3 * sum(both) / count,
        "rows": count,
    }
