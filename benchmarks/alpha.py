"""The penalty that is chosen from the sums of real streams, the seconds that this takes, and the accuracy that it gives.

    python benchmarks/alpha.py --data DIR --sums FOLDER [--label now] [--out results/benchmarks/alpha.json] [--streams …]

For each stream the map of its preset, with 3,201 or 7,201 features, is fitted on the first task, and features are summed up
(class order of seed 0; of CIFAR-10 and CIFAR-100 two fifths of the training images, so that all of it takes minutes). The sums
and the features of the test images are kept in FOLDER. Another version of the library, on PYTHONPATH and under another label,
reads them from there, so that both answer from the same numbers. A result file that is there is added to.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from cldnet.bench.preset import preset
from cldnet.data.streams import stream_by_name
from cldnet.device import threads
from cldnet.math.discriminant import linear_discriminant
from cldnet.math.leave_one_out import leave_one_out
from cldnet.math.ridge import ridge
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting
from cldnet.storage import write_atomically
from cldnet.version import __version__

#: Filters of each stream's map, with 2 × 2 windows.
FILTERS = {
    "split-mnist": 400,
    "split-fmnist": 400,
    "split-cifar10,train=0.4": 900,
    "split-cifar100,train=0.4": 900,
}
SEED = 0


def gather(text: str, data: Path) -> dict[str, Any]:
    """Sum up the features of a stream's training images, and compute those of its test images."""
    stream = stream_by_name(text, SEED, data=data)
    options = {**preset(text, "exact", SEED).backbone_options, "filters": FILTERS[text], "windows": 2}
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=SEED)
    learner: Any = build_learner("exact", setting, {}, "patches", options)
    for task in stream:
        fit_task(learner, task.train, epochs=1, batch_size=64)
    return {
        "hash": stream.hash,
        "map": learner.features.describe(),
        "gram": learner.second.dense(),
        "moments": learner.class_sums.T.contiguous(),
        "weights": learner.class_weights,
        "rows": float(learner.rows),
        "features": torch.cat([learner.represent(task.test.x) for task in stream]),
        "labels": torch.cat([task.test.y for task in stream]),
    }


def judge(kept: dict[str, Any]) -> dict[str, Any]:
    """Choose α and solve; beside it the seconds of one factorisation in float64, before and after."""
    gram, moments, weights, rows = (kept[name] for name in ("gram", "moments", "weights", "rows"))
    diagonal = float(gram.diagonal().mean())
    positive = gram.clone()
    positive.diagonal().add_(1e-3 * diagonal)
    clock = [time.perf_counter()]
    torch.linalg.cholesky(positive)
    clock.append(time.perf_counter())
    choice = ridge(gram, moments, weights, rows, None)
    clock.append(time.perf_counter())
    torch.linalg.cholesky(positive)
    clock.append(time.perf_counter())
    before, seconds, after = (end - begin for begin, end in pairwise(clock))
    rule = linear_discriminant(leave_one_out(choice, moments, weights, rows))
    blocks = kept["features"].split(1024)
    answers = torch.cat([rule.scores(block.double() @ choice.solution).argmax(1) for block in blocks])
    return {
        "features": len(gram),
        "classes": len(weights),
        "rows": rows,
        "alpha": choice.alpha,
        "alpha_relative": choice.alpha / diagonal,
        "freedom": choice.freedom,
        "seconds": seconds,
        "seconds_cholesky": (before + after) / 2,
        "accuracy": float((answers == kept["labels"]).double().mean()),
    }


def main() -> None:
    """Judge every stream, and write each result as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sums", type=Path, required=True)
    parser.add_argument("--label", default="now")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/alpha.json"))
    parser.add_argument("--streams", nargs="+", default=list(FILTERS), choices=FILTERS)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    arguments.sums.mkdir(parents=True, exist_ok=True)
    cases = json.loads(arguments.out.read_text())["cases"] if arguments.out.exists() else []
    for text in arguments.streams:
        path = arguments.sums / f"{text}.pt"
        with threads(arguments.threads):
            if not path.exists():
                torch.save(gather(text, arguments.data), path)
            kept = torch.load(path, mmap=True)
            judged = judge(kept)
        mark = {"label": arguments.label, "stream": text, "hash": kept["hash"], "map": kept["map"]}
        case = {**mark, "threads": arguments.threads, "cldnet": __version__, **judged}
        cases = [old for old in cases if any(old[name] != value for name, value in mark.items())] + [case]
        write_atomically(
            arguments.out,
            json.dumps({"benchmark": "alpha", "torch": torch.__version__, "cases": cases}, indent=1).encode(),
        )
        print(
            f"{arguments.label}, {text}: alpha {case['alpha_relative']:.2e} of the mean diagonal, {case['seconds']:.1f} s "
            f"({case['seconds'] / case['seconds_cholesky']:.2f} factorisations), accuracy {case['accuracy']:.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
