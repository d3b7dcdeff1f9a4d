"""Learn one row and predict one row: CPU milliseconds beside the code before, river and scikit-learn, and 10,000 such calls."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.everyday.peers import CLASSES, COLUMNS, FIRST, rows, timed, turn_of_river, turn_of_sklearn
from benchmarks.speed.apart import apart, resident_bytes
from benchmarks.speed.before import unpacked
from benchmarks.speed.environments import RIVER, NotInstalledError

from cldnet import CLDNetClassifier
from cldnet.nets import RandomReLU

#: The last commit that solved anew after every call.
BEFORE = "d5ca3b2d27b51022fb5bdb749f9a5418e7824380"
FEATURES = 1000
_SEED = 0


def taught() -> CLDNetClassifier:
    """A model that has learned the first rows, with one thread, and has predicted once."""
    torch.set_num_threads(1)
    x, y = rows(FIRST)
    clf = CLDNetClassifier(backbone=RandomReLU((COLUMNS,), FEATURES, seed=_SEED), random_state=_SEED)
    clf.partial_fit(x, y).predict(x[:1])
    return clf


def turn_of_ours(count: int) -> dict[str, Any]:
    """CPU seconds of each call of ``partial_fit`` with one row and of the ``predict`` of one row after it."""
    clf, (x, y) = taught(), rows(FIRST + count)

    def call(row: slice) -> Iterator[Callable[[], object]]:
        yield lambda: clf.partial_fit(x[row], y[row])
        yield lambda: clf.predict(x[row])

    return timed(call, count)


def many(count: int) -> dict[str, Any]:
    """Learn and predict ``count`` rows one by one: memory, refreshes, and scores beside one ``fit`` over the same map."""
    clf, (x, y) = taught(), rows(FIRST + count)
    test = rows(FIRST + count + 500)[0][-500:]
    held, begun = [resident_bytes()], time.process_time()
    for row in range(FIRST, FIRST + count):
        clf.partial_fit(x[row : row + 1], y[row : row + 1])
        clf.predict(x[row : row + 1])
        if (row - FIRST + 1) % (count // 10) == 0:
            held.append(resident_bytes())
    seconds, drifted = time.process_time() - begun, clf.decision_function(test)
    refreshed = clf.refresh().decision_function(test)
    whole = CLDNetClassifier(backbone=clf.feature_map_, random_state=_SEED).fit(x, y).decision_function(test)
    followed = np.abs(drifted - whole).max() / np.abs(whole).max()
    return {
        "rows": count,
        "cpu_ms_per_row": 1e3 * seconds / count,
        "resident_megabytes": [round(each / 1e6, 1) for each in held],
        "growth_after_the_first_tenth_megabytes": round((held[-1] - held[1]) / 1e6, 1),
        "largest_difference_after_refresh": float(np.abs(refreshed - whole).max()),
        "largest_relative_difference_before_refresh": float(followed),
        "same_labels_before_refresh": float((drifted.argmax(1) == whole.argmax(1)).mean()),
    }


def measure(quick: bool) -> dict[str, Any]:
    """All of it, each side in processes of their own, in turns."""
    count = 50 if quick else 1000
    sides: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Any]]] = {
        "now": (turn_of_ours, {"count": count}),
        "sklearn_sgd": (turn_of_sklearn, {"count": count}),
    }
    found: dict[str, Any] = {"columns": COLUMNS, "classes": CLASSES, "features": FEATURES, "first_rows": FIRST}
    try:
        sides["before"] = turn_of_ours, {"source": unpacked(BEFORE), "count": 3 if quick else 40}
    except (OSError, subprocess.CalledProcessError) as error:
        found["before"] = {"not_run": f"The sources of {BEFORE[:7]} could not be unpacked: {error}"}
    try:
        sides["river"] = turn_of_river, {"python": RIVER.python(), "count": count}
    except NotInstalledError as error:
        found["river"] = {"not_run": str(error)}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(1 if quick else 3):
        for name, (work, given) in sides.items():
            print(f"  rows, turn {turn + 1}: {name}", file=sys.stderr, flush=True)
            turns[name].append(apart(work, **given))
    for name, taken in turns.items():
        found[name] = {key: median(each[key] for each in taken) for key in taken[0]}
    if "before" in sides:
        pairs = zip(turns["before"], turns["now"], strict=True)
        found["times_as_fast_as_before"] = median(a["both_median_ms"] / b["both_mean_ms"] for a, b in pairs)
    print("  rows, one after the other", file=sys.stderr, flush=True)
    return {**found, "one_after_the_other": apart(many, count=200 if quick else 10_000)}
