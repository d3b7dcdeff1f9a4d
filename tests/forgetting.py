"""Call `forget` wrongly, many times, and see that it refuses, or that no harm is done.

    CLDNET_DATA=DIR python tests/forgetting.py --calls 10000 --out results/trust/forget.json

Each call forgets rows that were not learned like this: with other labels, for the second time, with other weights, or inverted
images, noise and changed copies. Where `forget` accepts, ``G`` must stay positive semi-definite, and the accuracy on test rows
must not be more than 2 points below that of models that rightly forgot as many rows (the mean of three). A twin with receipts
must refuse every call. Right calls, mislabelled rows and outliers among them, must never be refused.

All that is required of models with the default of 1,000 features. Models with few features, of which sums tell less, are tried
beside them and only reported. MNIST, FashionMNIST and CIFAR-10 are read from CLDNET_DATA. Exits with 1 if what is required does
not hold.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits

from cldnet import CLDNetClassifier, __version__
from cldnet.nets import RandomReLU

Array = NDArray[Any]
#: Points of accuracy that an accepted call may cost, beyond what rightly forgetting as many rows costs.
MOST_HARM = 2.0
#: Features of a model by default. Of models with other numbers nothing is required.
DEFAULT = 1000
#: Name, training rows, test rows and features of each model.
MODELS = (
    ("digits", 1400, 397, DEFAULT),
    ("breast-cancer", 400, 169, DEFAULT),
    ("mnist", 6000, 2000, DEFAULT),
    ("fashion-mnist", 6000, 2000, DEFAULT),
    ("cifar-10", 6000, 2000, DEFAULT),
    ("digits", 1400, 397, 100),
    ("breast-cancer", 300, 269, 60),
    ("mnist", 6000, 2000, 200),
)
KINDS = ("other labels", "one other label", "twice", "foreign rows", "changed rows", "other weights", "some foreign")


#: Words of each error, and what it is about.
REASONS = {
    "negative number": "weight",
    "feature sum of zero": "leftover sum",
    "features lie": "feature limits",
    "semi-definite": "scatter",
    "predicted worse": "prediction",
    "opposite": "scores",
    "fractions": "fractions",
    "no receipt": "receipt",
    "forgotten before": "forgotten before",
}


@dataclass(frozen=True)
class Data:
    """Rows to learn, of which a few are mislabelled or noise; rows to test; and rows of another kind."""

    x: Array
    y: Array
    odd: Array
    test_x: Array
    test_y: Array
    foreign: Array


def read(name: str, rows: int, tests: int) -> Data:
    """Read one data set, with 1 % of its labels and 0.2 % of its rows made noise."""
    draw = np.random.default_rng(0)
    if name in ("digits", "breast-cancer"):
        x, y = (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
        order = draw.permutation(len(x))[: rows + tests]
        x, y, test_x, test_y = x[order[:rows]], y[order[:rows]], x[order[rows:]], y[order[rows:]]
    else:
        from cldnet.data.catalog import load_set

        found = load_set(name, Path(os.environ["CLDNET_DATA"]))
        thin = 4 if name == "cifar-10" else 1  # every fourth number: as many as the others have, and as quick
        x, test_x = (part.x.flatten(1)[:, ::thin].numpy() / 255.0 for part in (found.train, found.test))
        y, test_y = (np.unique(part.y, return_inverse=True)[1] for part in (found.train, found.test))
        x, y, test_x, test_y = x[:rows], y[:rows], test_x[:tests], test_y[:tests]
    low, high = x.min(0), x.max(0)
    foreign = np.concatenate([(low + high - x)[:200], draw.uniform(low, high, (200, x.shape[1])), x[:200, ::-1]])
    x, y = x.copy(), y.copy()
    wrong = draw.random(rows) < 0.01
    y[wrong] = draw.integers(0, y.max() + 1, wrong.sum())
    noise = draw.random(rows) < 0.002
    x[noise] = draw.uniform(low, high, (noise.sum(), x.shape[1]))
    return Data(x, y, np.flatnonzero(wrong | noise), test_x, test_y, foreign)


def taught(data: Data, features: int, receipts: bool) -> CLDNetClassifier:
    """Make a model of all rows, over a map that was fitted before: nothing of the rows is in it."""
    shared = RandomReLU((data.x.shape[1],), features, seed=0)
    shared.fit(torch.from_numpy(data.x[:500]))
    clf = CLDNetClassifier(backbone=shared, capacity=10, random_state=0, n_threads=1, receipts=receipts)
    return clf.fit(data.x, data.y)


def sizes(rows: int) -> list[int]:
    """Numbers of rows that a wrong call has, from 1 to a quarter of all."""
    return sorted({*np.geomspace(1, rows // 4, 12).astype(int).tolist()})


def wrong_call(kind: str, data: Data, draw: np.random.Generator) -> tuple[Array, Array, Array | None]:
    """Draw a call that is wrong in one way: its rows, labels and weights."""
    count = int(draw.choice(sizes(len(data.x))))
    rows, classes = draw.choice(len(data.x), count, replace=False), int(data.y.max()) + 1
    x, y = data.x[rows], data.y[rows]
    if kind == "other labels":
        return x, (y + draw.integers(1, classes, count)) % classes, None
    if kind == "one other label":
        of_one = draw.permutation(np.flatnonzero(data.y == y[0]))[:count]
        return data.x[of_one], np.full(len(of_one), (y[0] + draw.integers(1, classes)) % classes), None
    if kind == "twice":
        return x, y, None  # of a model that has forgotten them already
    if kind == "foreign rows":
        return data.foreign[draw.choice(len(data.foreign), count)], draw.integers(0, classes, count), None
    if kind == "changed rows":
        return x + draw.normal(size=x.shape) * draw.choice([0.05, 0.3, 1.0]) * x.std(), y, None
    if kind == "other weights":
        return x, y, draw.choice([0.5, 0.9, 2.0, 3.0], count)
    few = draw.choice(len(data.foreign), max(1, count // 10))
    return np.concatenate([x, data.foreign[few]]), np.concatenate([y, draw.integers(0, classes, len(few))]), None


def right_call(data: Data, draw: np.random.Generator) -> tuple[Array, Array]:
    """Draw rows that were learned: at random, of one class, or mislabelled and noise."""
    count = int(np.exp(draw.uniform(0, np.log(0.9 * len(data.x)))))
    of_one = np.flatnonzero(data.y == draw.choice(data.y))
    among = draw.permutation((np.arange(len(data.x)), of_one, data.odd)[int(draw.integers(3))])
    return data.x[among[:count]], data.y[among[:count]]


def forget(clf: CLDNetClassifier, *call: Any) -> tuple[CLDNetClassifier | None, str]:
    """Forget rows, and take it back; a model that has forgotten them, or the reason why that was refused."""
    model = clf._model
    try:
        work = copy.copy(clf.forget(*call))
        clf._model = model
        return work, ""
    except ValueError as error:
        text = str(error)
        return None, next(reason for words, reason in REASONS.items() if words in text)


def definite(clf: CLDNetClassifier) -> bool:
    """Whether ``G`` has no eigenvalue below 0 but for rounding."""
    second = clf._fitted().exact.second
    shifted = second.dense()
    shifted.diagonal().add_(1e-11 * second.energy)
    return not bool(torch.linalg.cholesky_ex(shifted).info)


def score(clf: CLDNetClassifier, h: torch.Tensor, data: Data) -> float:
    """Accuracy on test rows, whose features are computed once."""
    model = clf._fitted()
    columns = torch.from_numpy(model.labels.columns)
    best = model.exact.score_represented(h)[:, columns].argmax(1).numpy()
    return float(np.mean(clf.classes_[best] == data.test_y))


class Right:
    """Mean accuracy of three models that rightly forgot as many rows."""

    def __init__(self, clf: CLDNetClassifier, data: Data, h: torch.Tensor, draw: np.random.Generator) -> None:
        self.clf, self.data, self.h, self.draw = clf, data, h, draw
        self._known: dict[int, float] = {}

    def __call__(self, count: int) -> float:
        if count not in self._known:
            self._known[count] = float(np.mean([self._one(count) for _ in range(3)]))
        return self._known[count]

    def _one(self, count: int) -> float:
        rows = self.draw.choice(len(self.data.x), count, replace=False)
        work, reason = forget(self.clf, self.data.x[rows], self.data.y[rows])
        assert work is not None, f"a right call was refused: {reason}"
        return score(work, self.h, self.data)


def try_model(name: str, rows: int, tests: int, features: int, calls: int, seed: int) -> Iterator[dict[str, Any]]:
    """Make wrong calls to one model and its twin with receipts, and a fifth as many right ones."""
    data, draw = read(name, rows, tests), np.random.default_rng([seed, rows, features])
    clf, twin = taught(data, features, False), taught(data, features, True)
    h = clf._fitted().exact.represent(torch.from_numpy(data.test_x))
    accuracy = Right(clf, data, h, draw)
    for number in range(calls):
        kind = KINDS[number % len(KINDS)]
        x, y, weight = wrong_call(kind, data, draw)
        called, called_twin = (forget(each, x, y)[0] if kind == "twice" else each for each in (clf, twin))
        assert called is not None
        assert called_twin is not None
        work, reason = forget(called, x, y, weight)
        found = {"kind": kind, "count": len(y), "refused": reason, "receipt": forget(called_twin, x, y, weight)[1]}
        if work is not None:
            gone = len(y) * (2 if kind == "twice" else 1)
            found |= {"harm": 100 * (accuracy(gone) - score(work, h, data)), "definite": definite(work)}
        yield found
    for _ in range(calls // 5):
        call = right_call(data, draw)
        yield {"kind": "right", "count": len(call[1]), "refused": forget(clf, *call)[1]}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    models = [one for one in MODELS if one[0] in ("digits", "breast-cancer") or "CLDNET_DATA" in os.environ]
    each, begun = -(-chosen.calls // sum(one[3] == DEFAULT for one in models)), time.monotonic()
    found: dict[str, list[dict[str, Any]]] = {}
    for name, rows, tests, features in models:
        title = f"{name}, {rows:,} rows, {features:,} features"
        # Models of which nothing is required get a fifth of the calls.
        count = each if features == DEFAULT else each // 5
        found[title] = list(try_model(name, rows, tests, features, count, chosen.seed))
        print(f"{title}: {json.dumps(summary(found[title]))}", flush=True)
    default = [one for title, ones in found.items() if title.endswith(f" {DEFAULT:,} features") for one in ones]
    total = {
        "version": __version__,
        "seed": chosen.seed,
        "seconds": round(time.monotonic() - begun),
        "default": summary(default),
        "models": {title: summary(ones) for title, ones in found.items()},
    }
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(total, indent=1) + "\n")
    checked = summary(default)
    print(json.dumps(checked, indent=1))
    sound = checked["worst_harm"] <= MOST_HARM and not checked["indefinite"] and not checked["right_refused"]
    return 0 if sound and checked["refused_with_receipts"] == checked["wrong"] else 1


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Count what became of calls."""
    wrong = [one for one in found if one["kind"] != "right"]
    accepted = [one for one in wrong if not one["refused"]]
    kinds = {}
    for kind in KINDS:
        ones = [one for one in wrong if one["kind"] == kind]
        refused = sum(bool(one["refused"]) for one in ones)
        harm = max((one["harm"] for one in ones if "harm" in one), default=0.0)
        kinds[kind] = {"calls": len(ones), "refused": refused, "worst_harm": round(harm, 2)}
    return {
        "wrong": len(wrong),
        "refused": sum(bool(one["refused"]) for one in wrong),
        "reasons": dict(Counter(one["refused"] for one in wrong if one["refused"])),
        "indefinite": sum(not one["definite"] for one in accepted),
        "worst_harm": round(max((one["harm"] for one in accepted), default=0.0), 2),
        "refused_with_receipts": sum(one["receipt"] == "receipt" for one in wrong),
        "right": len(found) - len(wrong),
        "right_refused": sum(bool(one["refused"]) for one in found if one["kind"] == "right"),
        "kinds": kinds,
    }


if __name__ == "__main__":
    sys.exit(main())
