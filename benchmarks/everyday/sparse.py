"""TF-IDF of the sentences of CLINC150, sparse, in ten lessons of one domain each: accuracy, CPU seconds and memory.

The vectorizer is fitted on all training sentences, without their labels, for all sides alike: what is compared is how
classifiers learn from sparse rows. Penalties were chosen on the validation part (`choose`), figures are of the test part.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.speed.apart import ROOT, apart, resident_bytes
from numpy.typing import NDArray

from cldnet import CLDNetClassifier

#: Orders of the domains: that of the file, and two that are drawn.
_ORDERS = 3
#: The best on the validation part, of `_TRIED`.
PENALTY, SMOOTHING, DECAY = 100.0, 0.03, 1e-5
_TRIED = {
    "logistic": (1.0, 10.0, 100.0, 1000.0),
    "bayes": (1.0, 0.1, 0.05, 0.03, 0.01),
    "sgd": (1e-4, 3e-5, 1e-5, 3e-6),
}
#: The matrix of which a dense copy would have 80 GB in float32.
WIDE = (20_000, 1_000_000)


@cache
def _content(folder: str) -> dict[str, list[tuple[str, str]]]:
    content: dict[str, list[tuple[str, str]]] = json.loads((Path(folder) / "data_full.json").read_text())
    return content


@cache
def _vectorizer(folder: str) -> Any:
    """TF-IDF of words, word pairs and parts of words, fitted on the training sentences."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    given = {"sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    words = TfidfVectorizer(ngram_range=(1, 2), **given)
    parts = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), **given)
    return make_union(words, parts).fit([text for text, _ in _content(folder)["train"]])


def _part(folder: str, name: str) -> tuple[Any, NDArray[np.str_]]:
    """Sparse rows and labels of a part: "train", "val" or "test"."""
    pairs = _content(folder)[name]
    return _vectorizer(folder).transform([text for text, _ in pairs]).tocsr(), np.array([label for _, label in pairs])


def _lessons(folder: str, y: NDArray[np.str_], order: int) -> list[NDArray[np.int64]]:
    """Places of the samples of each domain."""
    domains = list(json.loads((Path(folder) / "domains.json").read_text()).values())
    if order:
        domains = [domains[place] for place in np.random.default_rng(order).permutation(len(domains))]
    return [np.flatnonzero(np.isin(y, labels)) for labels in domains]


def joint(folder: str, test: str = "test", penalty: float = PENALTY) -> dict[str, float]:
    """Logistic regression of all lessons at once."""
    from sklearn.linear_model import LogisticRegression

    (X, y), (T, z) = _part(folder, "train"), _part(folder, test)
    begun = time.process_time()
    clf = LogisticRegression(C=penalty, max_iter=1000).fit(X, y)
    return {"accuracy": float(clf.score(T, z)), "cpu_seconds": time.process_time() - begun}


def peer(folder: str, name: str, order: int, test: str = "test", setting: float | None = None) -> dict[str, float]:
    """A classifier of scikit-learn that learns lesson after lesson: "bayes" or "sgd"."""
    from sklearn.linear_model import SGDClassifier
    from sklearn.naive_bayes import MultinomialNB

    (X, y), (T, z) = _part(folder, "train"), _part(folder, test)
    classes, clf = np.unique(y), MultinomialNB(alpha=setting or SMOOTHING)
    if name == "sgd":
        clf = SGDClassifier(loss="log_loss", alpha=setting or DECAY, random_state=0)
    begun = time.process_time()
    for lesson in _lessons(folder, y, order):
        clf.partial_fit(X[lesson], y[lesson], classes)
    return {"accuracy": float(clf.score(T, z)), "cpu_seconds": time.process_time() - begun}


def ours(folder: str, order: int, test: str = "test") -> dict[str, float]:
    """Ours, lesson by lesson, with the memory that learning and prediction took beyond what was there before."""
    torch.set_num_threads(1)
    (X, y), (T, z) = _part(folder, "train"), _part(folder, test)
    clf, before, begun = CLDNetClassifier(random_state=0), resident_bytes(), time.process_time()
    for lesson in _lessons(folder, y, order):
        clf.partial_fit(X[lesson], y[lesson])
    learned = time.process_time() - begun
    right = float(clf.score(T, z))
    return {
        "accuracy": right,
        "cpu_seconds": time.process_time() - begun,
        "cpu_seconds_to_learn": learned,
        "columns": X.shape[1],
        "classes": len(clf.classes_),
        "nonzero_bytes": X.data.nbytes + X.indices.nbytes + X.indptr.nbytes,
        "dense_copy_bytes": X.shape[0] * X.shape[1] * 4,
        "peak_bytes_above_before": _peak() - before,
    }


def wide(rows: int) -> dict[str, float]:
    """Learn a matrix that would not fit into memory if it were dense."""
    from scipy.sparse import csr_array

    torch.set_num_threads(1)
    random, columns, each = np.random.default_rng(0), WIDE[1], 20
    y = random.integers(0, 10, rows)
    # Half of a sample's columns are among a thousand of its class.
    numbers = np.concatenate(
        [
            1000 * y[:, None] + random.integers(0, 1000, (rows, each // 2)),
            random.integers(0, columns, (rows, each // 2)),
        ],
        1,
    )
    X = csr_array(
        (np.ones(rows * each, np.float32), numbers.ravel(), np.arange(0, rows * each + 1, each)), (rows, columns)
    )
    taught, before, begun = rows * 9 // 10, resident_bytes(), time.process_time()
    clf = CLDNetClassifier(random_state=0)
    for first in range(0, taught, 2000):
        part = slice(first, min(first + 2000, taught))
        clf.partial_fit(X[part], y[part])
    right = float(clf.score(X[taught:], y[taught:]))
    return {
        "rows": rows,
        "columns": columns,
        "accuracy": right,
        "cpu_seconds": time.process_time() - begun,
        "dense_copy_bytes": rows * columns * 4,
        "peak_bytes_above_before": _peak() - before,
    }


def _peak() -> int:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def choose(folder: str) -> dict[str, dict[str, float]]:
    """Accuracy on the validation part for each setting that was tried."""
    found = {"logistic": {str(tried): joint(folder, "val", tried)["accuracy"] for tried in _TRIED["logistic"]}}
    for name in ("bayes", "sgd"):
        found[name] = {str(tried): peer(folder, name, 0, "val", tried)["accuracy"] for tried in _TRIED[name]}
    return {**found, "ours": {"default": ours(folder, 0, "val")["accuracy"]}}


def measure(data: Path | None, quick: bool) -> dict[str, Any]:
    """All of it, each side in a process of its own."""
    folder = None if data is None else data / "clinc150"
    here = partial(apart, source=ROOT / "src")
    memory = here(wide, rows=2000 if quick else WIDE[0])
    if folder is None or not (folder / "data_full.json").is_file():
        return {"wide": memory, "not_run": "CLINC150 is not there: lay it out in DIR/clinc150 and pass --data DIR."}
    orders = range(1 if quick else _ORDERS)
    found: dict[str, Any] = {"wide": memory, "joint_logistic_regression": here(joint, folder=str(folder))}
    for order in orders:
        print(f"  sparse, order {order + 1} of the domains", file=sys.stderr, flush=True)
        found.setdefault("ours", []).append(here(ours, folder=str(folder), order=order))
        for name in ("bayes", "sgd"):
            found.setdefault(name, []).append(here(peer, folder=str(folder), name=name, order=order))
    least = min(each["accuracy"] for each in found["ours"])
    bayes = max(each["accuracy"] for each in found["bayes"])
    found["points_below_joint"] = 100 * (found["joint_logistic_regression"]["accuracy"] - least)
    found["points_above_bayes"] = 100 * (least - bayes)
    return found if quick else {**found, "chosen_on_validation": here(choose, folder=str(folder))}
