"""What the discriminant adds to ridge regression, and how the penalty should be chosen: on validation data alone.

    python benchmarks/discriminant.py --data DIR [--out results/benchmarks/discriminant.json] [--filters 200] [--streams …]

For each stream the map of its preset, with so many filters, is fitted on the first task; of every class a fifth of the
training rows is kept for validation (class order of seed 10). For a range of penalties are measured: the accuracy of the
nearest class vector and that of the discriminant, on the validation rows; beside them what the sums alone say: squared error
of generalised cross-validation, the separation of the classes, and the mean score of the own class, which can be compared
with the true one. "rare" learns only a tenth of the rows of every other class. A file that is there is added to.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cldnet.bench.preset import preset
from cldnet.data.streams import stream_by_name
from cldnet.device import threads
from cldnet.math.discriminant import linear_discriminant, separation
from cldnet.math.leave_one_out import leave_one_out_dense
from cldnet.math.ridge import ridge
from cldnet.math.symmetric import add_to_tile_, packed_length, tiles, unpack
from cldnet.nets.patches import WhitenedPatches
from cldnet.storage import write_atomically
from cldnet.version import __version__

STREAMS = ("split-mnist", "split-fmnist", "split-cifar10", "split-cifar100")
RELATIVE = tuple(10 ** (step / 2) for step in range(-9, 0))  # of the mean diagonal
SEED, SHARE = 10, 0.2


def sums_of(h: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor, float]:
    """G, class sums, counts and rows."""
    packed = torch.zeros(packed_length(h.shape[1]), dtype=torch.float64)
    sums = torch.zeros(h.shape[1], classes, dtype=torch.float64)
    for block, labels in zip(h.split(1024), y.split(1024), strict=True):
        rows = block.float()
        for tile in tiles(packed, h.shape[1]):
            add_to_tile_(tile, rows, rows)
        sums += (rows.T @ one_hot(labels, classes).float()).double()
    return unpack(packed, h.shape[1]), sums, torch.bincount(y, minlength=classes).double(), float(len(y))


def judge(sums: tuple[Tensor, Tensor, Tensor, float], h: Tensor, targets: Tensor) -> dict[str, Any]:
    """Accuracy of both answers on validation rows for every penalty, and what the sums say of it."""
    gram, moments, counts, rows = sums
    trials: list[dict[str, Any]] = []
    for relative in RELATIVE:
        choice = ridge(gram, moments, counts, rows, relative * float(gram.diagonal().mean()))
        left_out = leave_one_out_dense(choice, moments, counts, rows)
        weights, offset = linear_discriminant(left_out)
        vectors = torch.cat([block.double() @ choice.solution for block in h.split(1024)])
        own = vectors.gather(1, targets[:, None])[:, 0]
        true_own = torch.stack([own[targets == c].mean() for c in range(len(counts))])
        trials.append(
            {
                "alpha_relative": relative,
                "nearest": float((vectors.argmax(1) == targets).double().mean()),
                "discriminant": float(((vectors @ weights + offset).argmax(1) == targets).double().mean()),
                "squared_error": rows * choice.residual / choice.freedom**2 if choice.freedom > 0 else None,
                "separation": separation(left_out),
                "own_score_by_sums": float(left_out.means.diagonal().mean()),
                "own_score": float(true_own.mean()),
            }
        )
    by_error = min((trial for trial in trials if trial["squared_error"] is not None), key=lambda t: t["squared_error"])
    by_separation = max(trials, key=lambda trial: trial["separation"])
    chosen = {"by_squared_error": by_error, "by_separation": by_separation}
    return {**chosen, "trials": trials}


def measure(name: str, filters: int, data: Path) -> Iterator[dict[str, Any]]:
    """Judge one stream with all rows, and with few of every other class."""
    stream = stream_by_name(name, SEED, data=data).with_validation(SHARE)
    options = {**preset(name, "exact", SEED).backbone_options, "filters": filters}
    features = WhitenedPatches(stream.input_shape, seed=SEED, **options)
    features.fit(stream[0].train.x)
    parts = [task.train for task in stream], [task.test for task in stream]
    h, h_unseen = (torch.cat([features(x).char() for part in side for x in part.x.split(1024)]) for side in parts)
    y, targets = (torch.cat([part.y for part in side]) for side in parts)
    for rare in (False, True):
        chosen = (y % 2 == 0) | (torch.arange(len(y)) % 10 == 0) if rare else slice(None)
        judged = judge(sums_of(h[chosen], y[chosen], len(stream.class_order)), h_unseen, targets)
        yield {"stream": name, "hash": stream.hash, "map": features.describe(), "rare": rare, **judged}


def line(case: dict[str, Any]) -> str:
    figures = "; ".join(
        f"{rule.replace('_', ' ')}: alpha {case[rule]['alpha_relative']:.0e}, nearest {case[rule]['nearest']:.2%}, "
        f"discriminant {case[rule]['discriminant']:.2%}"
        for rule in ("by_squared_error", "by_separation")
    )
    return f"{case['stream']}{', rare classes' if case['rare'] else ''}: {figures}"


def main() -> None:
    """Measure every case, say it, and write it down as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/discriminant.json"))
    parser.add_argument("--filters", type=int, default=200)
    parser.add_argument("--streams", nargs="+", default=STREAMS, choices=STREAMS)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    cases = json.loads(arguments.out.read_text())["cases"] if arguments.out.exists() else []
    for name in arguments.streams:
        with threads(arguments.threads):
            for case in measure(name, arguments.filters, arguments.data):
                mark = case["hash"], case["map"], case["rare"]
                cases = [old for old in cases if (old["hash"], old["map"], old["rare"]) != mark] + [case]
                print(line(case), flush=True)
        versions = {"cldnet": __version__, "torch": torch.__version__}
        result = {"benchmark": "discriminant", "validation": SHARE, "versions": versions, "cases": cases}
        write_atomically(arguments.out, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
