"""Choose settings by random search on a validation part of the training data, as many trials for one method as for another.

A method that has fewer settings to try gets all of them.

``python -m cldnet.bench.tune split-digits`` writes every trial to a JSON file under ``results/tune`` as it finishes (a second
call goes on where the first one stopped) and prints the best options of each method, which go into ``presets/*.toml``.
The stream's test part is never looked at.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from cldnet.bench.preset import preset
from cldnet.bench.run import run
from cldnet.data.streams import stream_by_name
from cldnet.store import write_atomically

__all__ = ["RANGES", "trials", "tune"]

_RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
_ALPHAS: Sequence[Mapping[str, Any]] = (
    {"kind": "ConstantAlpha", "value": 1.0},
    {"kind": "DecayingAlpha", "start": 1.0, "decay": 0.01},
    {"kind": "DecayingAlpha", "start": 10.0, "decay": 0.01},
    {"kind": "DecayingAlpha", "start": 10.0, "decay": 0.1},
    {"kind": "AdaptiveAlpha", "scale": 1.0},
    {"kind": "AdaptiveAlpha", "scale": 10.0},
)
#: What is searched, option by option.
RANGES: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "finetune": {"lr": _RATES},
    "joint": {"lr": _RATES},
    "ewc": {"lr": _RATES, "strength": (1e2, 1e3, 1e4, 1e5, 1e6, 1e7)},
    "owm": {"lr": _RATES, "alpha": _ALPHAS},
    "er": {"lr": _RATES, "replay": (16, 32, 64)},
    "pnn": {"lr": _RATES},
    "cldnet": {
        "lr": _RATES,
        "alpha": _ALPHAS,
        "hbo_lr": (0.001, 0.003, 0.01, 0.03),
        "beta": (10.0, 100.0, 500.0),
    },
}
#: What is given and not searched.
FIXED: Mapping[str, Mapping[str, Any]] = {"cldnet": {"embed_dim": 400}}


def trials(method: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Draw different settings from a method's ranges, at most ``count`` of them.

    Examples
    --------
    >>> len(trials("finetune", 24)), len(trials("owm", 24))
    (5, 24)
    """
    source = random.Random(seed)
    drawn: dict[str, dict[str, Any]] = {}
    for _ in range(50 * count):
        options = {name: source.choice(values) for name, values in RANGES[method].items()}
        drawn.setdefault(json.dumps(options, sort_keys=True), options)
        if len(drawn) == count:
            break
    return list(drawn.values())


def tune(stream: str, method: str, count: int, orders: Sequence[int], folder: Path) -> dict[str, Any]:
    """Run the trials that have no file yet and return the best: its options and its mean validation accuracy."""
    folder.mkdir(parents=True, exist_ok=True)
    best: dict[str, Any] = {"accuracy": -1.0}
    for number, options in enumerate(trials(method, count)):
        path = folder / f"{stream}_{method}_{number}.json"
        if not path.exists():
            base = preset(stream, method, seed=0)
            found = []
            for order in orders:
                spec = replace(base, options={**FIXED.get(method, {}), **options}, seed=order, threads=1)
                result = run(spec, stream_by_name(stream, order).with_validation())
                score = result["scores"]["average_accuracy"]
                found.append(result["scores"]["task_il_accuracy"] if score is None else score)
            options = dict(spec.options)
            trial = {"method": method, "stream": stream, "options": options, "orders": list(orders), "found": found}
            write_atomically(path, json.dumps({**trial, "accuracy": fmean(found)}, indent=1).encode())
        trial = json.loads(path.read_text())
        if trial["accuracy"] > best["accuracy"]:
            best = trial
    return best


def main() -> None:
    """Tune methods on a stream from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream")
    parser.add_argument("--methods", nargs="*", default=list(RANGES))
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--orders", type=int, nargs="*", default=[10, 11])
    parser.add_argument("--folder", type=Path, default=Path("results/tune"))
    arguments = parser.parse_args()
    for method in arguments.methods:
        best = tune(arguments.stream, method, arguments.trials, arguments.orders, arguments.folder)
        print(method, json.dumps(best["options"]), f"{best['accuracy']:.4f}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
