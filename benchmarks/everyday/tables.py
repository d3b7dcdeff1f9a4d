"""Tables learned class by class against joint scikit-learn: `CLDNetClassifier()` as it comes, and which map it chose.

Our classifier gets one class per call (two for data of more than four classes), in an order drawn by the seed. The others get
all training data at once. Nothing is tuned on test data: the ridge regression over a Gaussian kernel chooses its width by
cross-validation on training data, and the others run with scikit-learn's defaults on scaled columns.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from statistics import mean, pstdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cldnet import CLDNetClassifier

Table = tuple[NDArray[np.float64], NDArray[np.int64]]
#: Rows on which the kernel's width is chosen, and components of the kernel.
_TUNED_ROWS, _COMPONENTS = 3000, 1000


class Data(NamedTuple):
    """How to make a table, and how many classes come per call."""

    make: Callable[[int], Table]
    per_call: int
    small: bool


def _clustered(seed: int, columns: int, *, informative: int, redundant: int, classes: int, parts: int) -> Table:
    """20,000 samples of classes that have several clusters each."""
    counts = {
        "n_informative": informative,
        "n_redundant": redundant,
        "n_classes": classes,
        "n_clusters_per_class": parts,
    }
    X, y = make_classification(20_000, columns, **counts, class_sep=1.5, random_state=seed)
    return X, y


def clusters(seed: int) -> Table:
    """Six classes of six clusters each, in ten of twenty columns."""
    return _clustered(seed, 20, informative=10, redundant=5, classes=6, parts=6)


def rings(seed: int) -> Table:
    """Five nested rings in the plane, and three columns of noise."""
    random, n = np.random.default_rng(seed), 20_000
    y, angle = random.integers(0, 5, n), random.uniform(0, 2 * np.pi, n)
    radius = 1 + y + random.normal(0, 0.2, n)
    return np.c_[radius * np.cos(angle), radius * np.sin(angle), random.normal(size=(n, 3))], y


def rules(seed: int) -> Table:
    """Six classes by rules on whole numbers of different sizes and on indicators, as covertype has; 50,000 rows."""
    random, n = np.random.default_rng(seed), 50_000
    height, aspect = random.normal(2900, 300, n).round(), random.integers(0, 360, n)
    slope, water = random.gamma(3, 5, n).round(), random.exponential(250, n).round()
    road, soil, area = random.exponential(1500, n).round(), random.integers(0, 8, n), random.integers(0, 3, n)
    scores = np.stack(
        [
            -abs(height - 3200) / 150 + (soil == 1) + (road > 1500),
            -abs(height - 2900) / 150 + (area == 1) + (slope > 15),
            -abs(height - 2500) / 150 + (water < 200),
            -abs(height - 2300) / 150 + 1.5 * ((aspect > 180) & (water < 150)),
            -abs(height - 2750) / 100 + 1.5 * (soil >= 5) - 0.5 * (slope < 10),
            -abs(height - 3400) / 120 + (aspect < 120),
        ],
        axis=1,
    )
    y = (scores + random.gumbel(0, 0.25, scores.shape)).argmax(axis=1)
    return np.c_[height, aspect, slope, water, road, np.eye(8)[soil], np.eye(3)[area]], y


def tails(seed: int) -> Table:
    """Four classes; a third of the columns are exponentials, a third have tails like Cauchy's, and all differ in unit."""
    X, y = _clustered(seed, 12, informative=8, redundant=2, classes=4, parts=2)
    X[:, :4] = np.exp(X[:, :4])
    X[:, 4:8] *= np.abs(X[:, 4:8]) ** 2
    return X * 10.0 ** np.arange(-6, 6), y


def _bundled(load: Callable[..., Table]) -> Callable[[int], Table]:
    return lambda seed: load(return_X_y=True)


DATA = {
    "iris": Data(_bundled(load_iris), 1, True),
    "wine": Data(_bundled(load_wine), 1, True),
    "breast cancer": Data(_bundled(load_breast_cancer), 1, True),
    "digits": Data(_bundled(load_digits), 2, True),
    "clusters": Data(clusters, 2, False),
    "rings": Data(rings, 2, False),
    "rules": Data(rules, 2, False),
    "tails": Data(tails, 1, False),
}


def rivals(X: NDArray[Any], y: NDArray[Any], seed: int) -> dict[str, Callable[[], ClassifierMixin]]:
    """What learns all training data at once."""

    def kernel_ridge() -> ClassifierMixin:
        drawn = np.random.default_rng(seed).permutation(len(X))[:_TUNED_ROWS]
        components = min(_COMPONENTS, len(drawn) // 2)
        ridge = make_pipeline(
            StandardScaler(),
            Nystroem(n_components=components, random_state=seed),
            RidgeClassifierCV(np.logspace(-4, 2, 7)),
        )
        widths = [factor / X.shape[1] for factor in (0.03, 0.1, 0.3, 1.0, 3.0)]
        search = GridSearchCV(ridge, {"nystroem__gamma": widths}, cv=3).fit(X[drawn], y[drawn])
        return clone(search.best_estimator_).fit(X, y)

    return {
        "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y),
        "RBF ridge": kernel_ridge,
        "random forest": lambda: RandomForestClassifier(random_state=seed, n_jobs=1).fit(X, y),
        "histogram gradient boosting": lambda: HistGradientBoostingClassifier(random_state=seed).fit(X, y),
    }


def ours(X: NDArray[Any], y: NDArray[Any], seed: int, per_call: int) -> CLDNetClassifier:
    """Learn classes in an order drawn by the seed, some at a time."""
    order = np.random.default_rng(seed).permutation(np.unique(y))
    parts = [np.isin(y, order[first : first + per_call]) for first in range(0, len(order), per_call)]
    clf = CLDNetClassifier(random_state=seed)
    for part in parts:
        clf.partial_fit(X[part], y[part])
    return clf


def _described(clf: CLDNetClassifier) -> str:
    """The map in words."""
    made = clf.feature_map_
    options = (f"{name}={value}" for name, value in made.options.items() if value is not None)
    return f"{made.kind}({', '.join(options)})"


def _rows(name: str, seed: int) -> list[dict[str, Any]]:
    """Accuracy of all methods on one split of one table."""
    data = DATA[name]
    X, y = data.make(seed)
    train_x, test_x, train_y, test_y = train_test_split(X, y, test_size=0.3, random_state=seed, stratify=y)
    methods: dict[str, Callable[[], Any]] = {
        "CLDNet, class by class": lambda: ours(train_x, train_y, seed, data.per_call),
        **rivals(train_x, train_y, seed),
    }
    rows = []
    for method, learn in methods.items():
        began = time.process_time()
        clf = learn()
        accuracy = 100 * float(np.mean(clf.predict(test_x) == test_y))
        row: dict[str, Any] = {"method": method, "accuracy": accuracy, "cpu_seconds": time.process_time() - began}
        if isinstance(clf, CLDNetClassifier):
            row |= {"bytes": clf.footprint().total, "map": _described(clf)}
        rows.append(row)
    return rows


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and std of one method over splits."""
    accuracies = [row["accuracy"] for row in rows]
    found: dict[str, Any] = {
        "method": rows[0]["method"],
        "mean": round(mean(accuracies), 2),
        "std": round(pstdev(accuracies), 2),
        "cpu_seconds": round(mean(row["cpu_seconds"] for row in rows), 2),
    }
    if "map" in rows[0]:
        found["bytes"] = max(row["bytes"] for row in rows)
        found["maps"] = {made: sum(row["map"] == made for row in rows) for made in sorted({row["map"] for row in rows})}
    return found


def measure(quick: bool) -> dict[str, Any]:
    """Measure all tables: 20 splits of small ones and 3 of large ones; with ``quick`` one split of the small ones."""
    found: dict[str, Any] = {}
    for name, data in DATA.items():
        if quick and not data.small:
            continue
        splits = 1 if quick else 20 if data.small else 3
        runs = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for seed in range(splits):
                runs.append(_rows(name, seed))
                print(f"{name} {seed + 1}/{splits}", file=sys.stderr, flush=True)
        found[name] = {
            "splits": splits,
            "classes_per_call": data.per_call,
            "methods": [_summary(list(rows)) for rows in zip(*runs, strict=True)],
        }
    return found
