"""Choose the learning rate of the contests on training rows that are held out, for both sides by the same rule.

    python -m benchmarks.speed.peers.choose --data DIR

Replay is what a rate matters for: fine-tuning and EWC forget with any. A rate counts by the mean accuracy of our replay and of
Avalanche's over the same orders of the classes, which are not those of the contests. The answer goes to a JSON file, and by
hand to `protocol.LR`; a test holds the two against each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from benchmarks.speed.apart import ROOT
from benchmarks.speed.peers.calls import Request, Worker
from benchmarks.speed.peers.compare import WHOLE, Workers
from benchmarks.speed.peers.protocol import CLASSES, Rows
from benchmarks.speed.peers.rows import Sample, sample, write

RATES = (0.01, 0.03, 0.1, 0.3)
#: Beyond those of the contests.
SEEDS = (100, 101, 102)
OUT = ROOT / "results" / "benchmarks" / "peers-rate.json"
_SIDES = {"ours": "replay of tensors", "avalanche": "tensors/replay"}


def held_out(rows: Sample) -> Sample:
    """A sixth of the training rows in the place of the test rows, which are not looked at."""
    cut = len(rows.train.y) * 5 // 6
    return Sample(rows.name, rows.train.first(cut), Rows(rows.train.x[cut:], rows.train.y[cut:]))


def accuracies(worker: Worker, piece: str, rate: float) -> list[float]:
    """Accuracy on the rows held out, for every seed."""
    found = []
    for seed in SEEDS:
        order = tuple(int(label) for label in np.random.default_rng(seed).permutation(CLASSES))
        found.append(worker.ask(Request(piece, 2, order, seed, lr=rate)).accuracy)
    return found


def best(found: dict[str, dict[str, list[float]]]) -> float:
    """The rate with the best mean over both sides."""
    return float(max(found, key=lambda rate: statistics.mean(map(statistics.mean, found[rate].values()))))


def choose(data: Path | None) -> dict[str, Any]:
    """Try all rates with both sides, and tell what was found."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="cldnet-rate-")))
        rows = held_out(sample(data, WHOLE.train, WHOLE.test))
        write(rows, folder)
        workers, found = Workers(stack, folder), {}
        theirs = workers.of("avalanche")
        if isinstance(theirs, str):
            raise SystemExit(f"Avalanche cannot be had: {theirs}")
        for rate in RATES:
            sides = {"ours": workers.ours(), "avalanche": theirs}
            found[str(rate)] = {name: accuracies(worker, _SIDES[name], rate) for name, worker in sides.items()}
            print(f"  {rate}: {found[str(rate)]}", file=sys.stderr, flush=True)
    held = {"data": rows.name, "train": len(rows.train.y), "held out": len(rows.test.y), "seeds": SEEDS}
    return {**held, "accuracy": found, "chosen": best(found)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="where MNIST lies")
    OUT.write_text(json.dumps(choose(parser.parse_args().data), indent=1) + "\n")
