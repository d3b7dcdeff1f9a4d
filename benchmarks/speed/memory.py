"""The most memory that learning and answering take, beside the data and the model: at most data + 3 models + 0.5 GiB.

Every case runs in a process of its own. Counted is what the process holds at most (VmHWM) from just before it makes its data
until it has learned two tasks and answered for some rows, less what it held right after importing torch, scikit-learn and
CLDNet and after a first small model, which brings in what they load on first use. The data are the arrays handed in; the model
is all that is kept (`clf.footprint().total`), not what is solved from it or needed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from benchmarks.speed.apart import apart, resident_bytes
from benchmarks.speed.record import Curve, Finding, Spread
from numpy.typing import NDArray

from cldnet import CLDNetClassifier
from cldnet.bench.machine import peak_rss, reset_peak_rss
from cldnet.nets import RandomReLU, WhitenedPatches

THREADS = 1
#: What may be needed beside the data and three models, whatever their size.
SPARE = 1 << 29
_CLASSES, _ASKED = 10, 1000
#: At once while data are made, so that making them does not count.
_MADE = 4096


def images(rows: int) -> NDArray[np.uint8]:
    """Smooth blots in bytes, as many and as large as MNIST's: what they show changes nothing."""
    rng, made = np.random.default_rng(0), np.empty((rows, 28, 28), np.uint8)
    for first in range(0, rows, _MADE):
        part = made[first : first + _MADE]
        coarse = rng.integers(0, 256, (len(part), 7, 7), dtype=np.uint8).repeat(4, 1).repeat(4, 2)
        part[:] = coarse // 2 + rng.integers(0, 128, part.shape, dtype=np.uint8)
    return made


def table(rows: int, columns: int) -> NDArray[np.float32]:
    """Rows of numbers, in float32."""
    rng, made = np.random.default_rng(0), np.empty((rows, columns), np.float32)
    for first in range(0, rows, _MADE):
        part = made[first : first + _MADE]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    return made


def _classifier(case: str, features: int) -> CLDNetClassifier:
    given: dict[str, Any] = {"n_threads": THREADS, "random_state": 0}
    if case == "hbo":
        return CLDNetClassifier("hbo", "mlp", epochs=1, batch_size=64, **given)
    if case == "patches":
        patches = WhitenedPatches((28, 28), filters=features // 8, windows=2, mirror=False, seed=0)
        return CLDNetClassifier(backbone=patches, **given)
    shape = (28, 28) if case == "random" else (100,)
    return CLDNetClassifier(backbone=RandomReLU(shape, features=features, seed=0), **given)


def learn(case: str, rows: int, features: int) -> dict[str, Any]:
    """Learn two tasks and answer; tell the bytes of data and model, and the most that was held beyond the imports."""
    _learned(_classifier("random", 16), images(64))
    before = resident_bytes()
    reset_peak_rss()
    x = table(rows, 100) if case == "table" else images(rows)
    clf = _learned(_classifier(case, features), x)
    peak = peak_rss()
    assert peak is not None  # there is a /proc, or `resident_bytes` had failed
    kept = clf.footprint()
    return {
        "data": x.nbytes,
        "model": kept.total,
        "by_kind": kept.bytes,
        "peak": peak - before,
        "imports": before,
        "rows": rows,
        "features": features,
    }


def _learned(clf: CLDNetClassifier, x: NDArray[Any]) -> CLDNetClassifier:
    half = len(x) // 2
    labels = np.arange(len(x)) % (_CLASSES // 2)
    for first in (0, half):
        part = slice(first, first + half)
        clf.partial_fit(x[part], labels[part] + (_CLASSES // 2 if first else 0))
    clf.predict(x[:_ASKED])
    return clf


#: Name: what it is, the kind of data and map, rows and features; in a quick run as many as the last two.
CASES: dict[str, tuple[str, str, tuple[int, int], tuple[int, int]]] = {
    "exact/patches": ("exact, whitened patches of images like MNIST's", "patches", (20_000, 3_200), (2_000, 160)),
    "exact/large": ("exact, random features of images like MNIST's", "random", (12_000, 10_000), (1_000, 500)),
    "exact/table": ("exact, random features of a large table", "table", (2_400_000, 100), (20_000, 50)),
    "hbo/mlp": ("hbo, an MLP on images like MNIST's", "hbo", (20_000, 0), (500, 0)),
}


def limit(data: int, model: int) -> int:
    """Bytes that may be held at most."""
    return data + 3 * model + SPARE


def finding(name: str, title: str, found: dict[str, Any]) -> Finding:
    """Hold the peak against the limit."""
    allowed = limit(found["data"], found["model"])
    share = Spread.of([found["peak"] / allowed])
    counted = "VmHWM of the process less what it held after its imports and a first small model"
    details = {**found, "limit": allowed, "unit": "of the limit", "counted": counted}
    return Finding(
        f"memory/{name}",
        f"Peak memory of {title}, over data + 3 × model + 0.5 GiB",
        THREADS,
        share,
        share,  # memory has no time of cores
        higher_is_better=False,
        target=1.0,
        details=details,
    )


def measure(quick: bool) -> Iterator[Finding | Curve]:
    """Every case, once: memory hardly varies from run to run."""
    child: Callable[..., dict[str, Any]] = learn
    for name, (title, case, full, small) in CASES.items():
        rows, features = small if quick else full
        yield finding(name, title, apart(child, case=case, rows=rows, features=features))
