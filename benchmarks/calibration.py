"""Whether what the exact solver says of its own trust, from its sums alone, holds for rows that it has not learned.

    python benchmarks/calibration.py --data DIR [--out results/benchmarks/calibration.json]

Only training data are used: of a stream's training part some classes are drawn, one part of their rows is learned and another
one scored, with rows of the classes left out as the unknown ones. The seeds are others than those with which the constants of
``cldnet.math.calibration`` were chosen; the training parts that they draw from are the same. Measured are

- cross-entropy (nll) and expected calibration error (ece, 15 bins) of softmax(scores / temperature), for the temperature of
  the calibration, for the best one, which is fitted to the very rows that it is measured on, and for a naive one: 1, as if
  scores were normally distributed within classes, all with one covariance;
- the share of rows turned away where 0.01, 0.05, 0.1 or 0.2 was asked for: of known classes (false alarms), of unknown ones
  (noticed);
- how well `known_probability` tells unknown rows from known ones (AUROC), and how well the largest entry of the predicted
  vector does; docs/doubt.md and benchmarks/doubt.py have the same on test parts.

The file begins with median, least and largest over all cases; every case with its seed follows.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from cldnet.data.streams import stream_by_name
from cldnet.device import threads
from cldnet.math.calibration import Calibration, calibrate, known_probability
from cldnet.math.discriminant import linear_discriminant
from cldnet.math.leave_one_out import leave_one_out_dense
from cldnet.math.ridge import ridge
from cldnet.nets.features import FeatureMap, RandomReLU
from cldnet.nets.patches import WhitenedPatches
from cldnet.storage import write_atomically
from cldnet.version import __version__

REJECT = (0.01, 0.05, 0.1, 0.2)
BINS = 15
#: Rows scored of known classes and of unknown ones, at most.
SCORED = 5000


@dataclass(frozen=True)
class Plan:
    """What a case learns: classes, the seed of everything drawn, the map and its size, and rows (half of all at most)."""

    classes: int
    seed: int
    size: int
    map: Literal["relu", "patches"] = "relu"
    rows: int = 5000
    long_tailed: bool = False


_EVEN = (Plan(2, 11, 1000), Plan(5, 12, 1000), Plan(10, 13, 1500), Plan(8, 14, 2000))
_OTHERS = (Plan(8, 15, 1000, long_tailed=True), Plan(8, 16, 1000, rows=500), Plan(8, 17, 50, "patches"))
_SMALL = (Plan(2, 11, 300), Plan(5, 12, 300), Plan(10, 13, 300), Plan(8, 14, 1000))
PLANS = {
    "split-digits": (*_SMALL, Plan(8, 15, 300, long_tailed=True)),
    **dict.fromkeys(("split-mnist", "split-fmnist", "split-cifar10"), (*_EVEN, *_OTHERS)),
    "split-cifar100": (Plan(10, 11, 1000), Plan(50, 12, 1000), Plan(100, 13, 2000), Plan(80, 14, 50, "patches")),
}


def draw(plan: Plan, labels: NDArray[np.int64]) -> tuple[Tensor, ...]:
    """Numbers of the rows to learn, to score, and of unknown classes; before them the targets of all rows, known first."""
    targets = np.argsort(np.random.default_rng(1000 + plan.seed).permutation(labels.max() + 1))[labels]
    random = np.random.default_rng(plan.seed)
    known = random.permutation(np.flatnonzero(targets < plan.classes))
    if plan.long_tailed:  # the second class keeps a half of its rows, the third a third, ...
        known = known[random.random(len(known)) < 1 / (1 + targets[known])]
    rows = min(plan.rows, len(known) // 2)
    unknown = random.permutation(np.flatnonzero(targets >= plan.classes))
    parts = (targets, known[:rows], known[rows : rows + SCORED], unknown[:SCORED])
    return tuple(torch.from_numpy(part) for part in parts)


def fitted_map(plan: Plan, images: Tensor) -> FeatureMap:
    features: FeatureMap
    if plan.map == "relu":
        features = RandomReLU(tuple(images.shape[1:]), plan.size, seed=plan.seed)
    else:
        features = WhitenedPatches(tuple(images.shape[1:]), plan.size, seed=plan.seed, mirror=False)
    features.fit(images)
    return features


def calibration_error(scores: Tensor, targets: Tensor) -> float:
    """Expected calibration error of the predicted class, in bins of equal width."""
    confidence, predicted = torch.softmax(scores, 1).max(1)
    gaps = (predicted == targets).double() - confidence
    bins = (confidence * BINS).long().clamp_max(BINS - 1)
    return float(torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, gaps).abs().sum()) / len(scores)


def best_temperature(scores: Tensor, targets: Tensor) -> float:
    """The one of least cross-entropy on these very rows."""

    def nll(log: float) -> float:
        return float(cross_entropy(scores / math.exp(log), targets))

    return math.exp(minimize_scalar(nll, bounds=(math.log(1e-3), math.log(1e3)), method="bounded").x)


def of_probabilities(scores: Tensor, targets: Tensor, temperature: float, naive: float) -> dict[str, float]:
    """Figures of the temperature of the calibration, of the best one, and of the naive one."""
    figures = {}
    best = best_temperature(scores, targets)  # says little where all predictions are right
    for suffix, value in (("", temperature), ("_best", best), ("_naive", naive)):
        figures[f"temperature{suffix}"] = value
        figures[f"nll{suffix}"] = float(cross_entropy(scores / value, targets))
        figures[f"ece{suffix}"] = calibration_error(scores / value, targets)
    for suffix in ("", "_naive"):
        figures[f"nll{suffix}_above_best"] = figures[f"nll{suffix}"] - figures["nll_best"]
    return figures


def of_rejection(vectors: Tensor, others: Tensor, calibration: Calibration) -> dict[str, float]:
    """Figures of turning rows away: those of known classes and, where there are any, those of unknown ones."""
    known, unknown = known_probability(vectors, calibration), known_probability(others, calibration)
    figures = {f"false_alarms_{reject}": float((known < reject).double().mean()) for reject in REJECT}
    if len(others):
        figures |= {f"noticed_{reject}": float((unknown < reject).double().mean()) for reject in REJECT}
        figures["auroc"] = auroc(known, unknown)
        figures["auroc_largest_entry"] = auroc(vectors.amax(1), others.amax(1))
    return figures


def auroc(of_known: Tensor, of_unknown: Tensor) -> float:
    """How often, of a known row and an unknown one, the known one has the larger value."""
    is_known = torch.cat([torch.ones(len(of_known)), torch.zeros(len(of_unknown))])
    return float(roc_auc_score(is_known.numpy(), torch.cat([of_known, of_unknown]).numpy()))


def measure(plan: Plan, images: Tensor, labels: NDArray[np.int64]) -> dict[str, Any]:
    """Learn some rows, and compare what is said of others with how they are."""
    all_targets, learned, scored, unknown = draw(plan, labels)
    features = fitted_map(plan, images[learned])

    def embed(rows: Tensor) -> Tensor:
        return torch.cat([features(images[block]) for block in rows.split(1024)]).double()

    h, y = embed(learned), one_hot(all_targets[learned], plan.classes).double()
    moments, weights, rows = h.mT @ y, y.sum(0), len(learned)
    choice = ridge(h.mT @ h, moments, weights, rows, None)
    calibration = calibrate(choice, moments, weights, rows)
    vectors, targets = embed(scored) @ choice.solution, all_targets[scored]
    others = embed(unknown) @ choice.solution if len(unknown) else vectors[:0]
    turn, offset = linear_discriminant(leave_one_out_dense(choice, moments, weights, rows))
    scores = vectors @ turn + offset
    figures = {
        "accuracy": float((scores.argmax(1) == targets).double().mean()),
        "accuracy_nearest": float((vectors.argmax(1) == targets).double().mean()),
        **of_probabilities(scores, targets, calibration.temperature, naive=1.0),
        **of_rejection(vectors, others, calibration),
        "squared_error": float((vectors - one_hot(targets, plan.classes)).square().sum(1).mean()),
        "squared_error_by_gcv": rows * choice.residual / choice.freedom**2,
    }
    counts = {"features": h.shape[1], "freedom": choice.freedom, "scored": len(scored), "unknown": len(unknown)}
    return {**asdict(plan), "rows": rows, **counts, "figures": figures}


def summary(cases: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Median, least and largest of every figure over the cases that have it."""
    found = {}
    for name in max((case["figures"] for case in cases), key=len):
        values = [case["figures"][name] for case in cases if name in case["figures"]]
        found[name] = {
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            "cases": len(values),
        }
    return found


def line(name: str, figures: dict[str, float]) -> str:
    alarms = " ".join(f"{figures[f'false_alarms_{reject}']:.3f}" for reject in REJECT)
    return (
        f"{name}: accuracy {figures['accuracy']:.3f}, of the nearest {figures['accuracy_nearest']:.3f}; "
        f"nll {figures['nll']:.3f}, best {figures['nll_best']:.3f}, naive "
        f"{figures['nll_naive']:.3f}; ece {figures['ece']:.3f}, best {figures['ece_best']:.3f}, naive "
        f"{figures['ece_naive']:.3f}; false alarms {alarms}; AUROC {figures.get('auroc', math.nan):.2f}"
    )


def main() -> None:
    """Measure every case, say it, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/calibration.json"))
    arguments = parser.parse_args()
    cases, streams = [], {}
    with threads(1):
        for name, plans in PLANS.items():
            stream = stream_by_name(name, 0, data=arguments.data)
            streams[name] = stream.hash
            images = torch.cat([task.train.x for task in stream])
            labels = torch.cat([task.train.y for task in stream]).numpy()
            for plan in plans:
                cases.append({"stream": name, **measure(plan, images, labels)})
                tail = ", long-tailed" if plan.long_tailed else ""
                title = f"{name}, {plan.classes} classes{tail}, {cases[-1]['rows']} rows, {plan.map}, seed {plan.seed}"
                print(line(title, cases[-1]["figures"]), flush=True)
    result = {
        "benchmark": "calibration",
        "summary": summary(cases),
        "seeds": sorted({case["seed"] for case in cases}),
        "streams": streams,
        "versions": {"cldnet": __version__, "torch": torch.__version__, "numpy": np.__version__},
        "machine": f"{platform.system()} {platform.machine()}",
        "cases": cases,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, json.dumps(result, indent=1).encode())
    print(f"Written to {arguments.out}")


if __name__ == "__main__":
    main()
