"""How near the exact solver's one pass over images comes to what the machine can do: its own matrix products.

    python benchmarks/exact.py [--out results/benchmarks/exact.json] [--repeats 5] [--filters 1600] [--windows 2]

One block of 1,024 images of CIFAR's size (generated: their content changes nothing) goes through the whitened patches and
into the sums, as ``cldnet run --method exact --backbone patches`` has it. In turns with it, float32 matrix products of 2,048
by 2,048 numbers do the same number of floating-point operations. The ratio of the two times, median over the turns, is
the share of the machine's sgemm rate that is reached; on one thread and on two.

Counted are two operations for every number of a filter at every place of a patch, two for every number of a pooling
window, and two for every pair of features on or above the diagonal of the sums. Normalising patches, thresholds, rounding
and the sums by class are not counted, and take part in the time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cldnet.device import generator, threads
from cldnet.methods.exact import Exact, ExactConfig
from cldnet.methods.learner import Setting, TaskData
from cldnet.methods.mapped import BLOCK
from cldnet.nets.patches import WhitenedPatches
from cldnet.storage import write_atomically
from cldnet.version import __version__

SHAPE = (3, 32, 32)
SIDE = 2048
#: What has to come out: the share of the sgemm rate.
SHARE = 0.5


def generated(count: int) -> Tensor:
    """Smooth colours with noise on top, in bytes."""
    coarse = torch.rand(count, 3, 8, 8, generator=generator(0))
    smooth = torch.nn.functional.interpolate(coarse, SHAPE[1:], mode="bilinear", align_corners=True)
    return (200 * smooth + 55 * torch.rand(count, *SHAPE, generator=generator(1))).to(torch.uint8)


def operations(features: WhitenedPatches, rows: int) -> dict[str, float]:
    """Floating-point operations that a block of images takes, by part."""
    length, filters = features.filters.shape
    places = features.sides[0] * features.sides[1]
    images = rows * (2 if features.mirror else 1)
    width = features.out_features
    return {
        "filters": 2.0 * images * places * length * filters,
        "pooling": 2.0 * images * places * features.windows**2 * 2 * filters,
        "sums": rows * width * (width + 1.0),
    }


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(learner: Exact, task: TaskData, repeats: int) -> dict[str, Any]:
    """Time the pass, its two parts, and the products, in turns."""
    counted = operations(learner.features, len(task))  # type: ignore[arg-type]
    a, b, c = (torch.rand(SIDE, SIDE, generator=generator(seed)) for seed in range(3))
    products = max(1, round(sum(counted.values()) / (2.0 * SIDE**3)))
    h = learner.features(task.x)

    def sgemm() -> None:
        for _ in range(products):
            torch.mm(a, b, out=c)

    works: dict[str, Callable[[], object]] = {
        "pass": lambda: [learner.observe(batch) for batch in task.batches(BLOCK)],
        "features": lambda: learner.features(task.x),
        "sums": lambda: learner.second.add(h),
        "sgemm": sgemm,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(repeats + 1):
        for name, work in works.items():
            taken = seconds(work)
            if turn:  # the first turn warms the caches
                times[name].append(taken)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    sgemm_rate = products * 2.0 * SIDE**3 / medians["sgemm"]
    rates = {
        "pass": sum(counted.values()) / medians["pass"],
        "features": (counted["filters"] + counted["pooling"]) / medians["features"],
        "sums": counted["sums"] / medians["sums"],
    }
    return {
        "operations": counted,
        "sgemm_gflops": sgemm_rate / 1e9,
        "gflops": {name: rate / 1e9 for name, rate in rates.items()},
        "share_of_sgemm": {name: rate / sgemm_rate for name, rate in rates.items()},
        "images_per_second": len(task) / medians["pass"],
        "seconds": times,
    }


def main() -> None:
    """Measure on one thread and on two, say it, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/exact.json"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--filters", type=int, default=1600)
    parser.add_argument("--windows", type=int, default=2)
    arguments = parser.parse_args()
    features = WhitenedPatches(SHAPE, arguments.filters, seed=0, size=5, windows=arguments.windows, mirror=True)
    features.fit(generated(-(-2 * features.min_rows // 100) * 100))
    learner = Exact(features, Setting(SHAPE, capacity=10, seed=0), ExactConfig())
    task = TaskData(generated(BLOCK), torch.arange(BLOCK) % 10)
    result: dict[str, Any] = {
        "benchmark": "exact",
        "rows": BLOCK,
        "map": features.describe(),
        "features": features.out_features,
        "target": SHARE,
        "versions": {"cldnet": __version__, "torch": torch.__version__},
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": {},
    }
    for count in (1, 2):
        with threads(count):
            found = measure(learner, task, arguments.repeats)
        result["threads"][str(count)] = found
        shares = ", ".join(f"{name} {share:.0%}" for name, share in found["share_of_sgemm"].items())
        print(
            f"{count} thread{'s' * (count > 1)}: sgemm {found['sgemm_gflops']:.0f} GFLOPS; of that: {shares}; "
            f"{found['images_per_second']:.0f} images a second"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, json.dumps(result, indent=1).encode())
    print(f"Written to {arguments.out}")


if __name__ == "__main__":
    main()
