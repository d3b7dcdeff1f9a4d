"""How quick the data path is: against a DataLoader that takes image by image with Pillow, and within an epoch of an MLP.

    python benchmarks/loader.py --data DIR [--out results/benchmarks/loader.json] [--repeats 5]

Everything is measured in one run on one thread, in turns, so that a busy moment of the machine hits all alike; medians over
the turns count. ``DIR`` holds CIFAR-100 and MNIST as they are published.

1. Images a second of the data path alone on CIFAR-100's training part in batches of 128: shuffle, take the rows, augment
   (crop and flip), normalise to float32. Ours does it batch by batch; the other is a ``torch.utils.data.DataLoader`` over the
   same arrays, without workers and with two.
2. The share of the loader (shuffle and take the rows; augmentation is off) in ``fit_task`` of fine-tuning the default MLP on
   MNIST for one epoch. Normalisation is done by the learner, so the share is given with it and without it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from PIL import __version__ as pillow_version
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cldnet.data.catalog import load_set
from cldnet.data.transforms import CONSTANTS, Augment
from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets.features import InputScale
from cldnet.storage import write_atomically
from cldnet.version import __version__

BATCH = 128
CROP = 4
#: What has to come out: times as quick as the DataLoader, and the largest share of an epoch.
TIMES, SHARE = 10.0, 0.05


class PillowImages(Dataset[tuple[Tensor, int]]):
    """CIFAR-100 as many training scripts take it: one image at a time through Pillow."""

    def __init__(self, images: np.ndarray[Any, Any], labels: list[int], augment: bool) -> None:
        self.images, self.labels, self.augment = images, labels, augment
        mean, spread = CONSTANTS["cifar-100"]
        self.mean = torch.tensor(mean).reshape(3, 1, 1)
        self.spread = torch.tensor(spread).reshape(3, 1, 1)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.fromarray(self.images[index])
        if self.augment:
            width, height = image.size
            left, top = (random.randrange(2 * CROP + 1) for _ in range(2))  # quicker than torch's for one number
            image = ImageOps.expand(image, CROP).crop((left, top, left + width, top + height))
            if random.random() < 0.5:
                image = ImageOps.mirror(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        return pixels.sub_(self.mean).div_(self.spread), self.labels[index]


@dataclass
class Pass:
    """Something to time: what it is, how many images go through it, and the seconds that it took."""

    name: str
    images: int
    run: Callable[[], object]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self) -> None:
        wall, cpu = time.perf_counter(), cpu_seconds()
        self.run()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(cpu_seconds() - cpu)

    def report(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "images_per_second_wall": self.images / statistics.median(self.wall),
            "images_per_second_cpu": self.images / statistics.median(self.cpu),
            "seconds_wall": self.wall,
            "seconds_cpu": self.cpu,
        }


def cpu_seconds() -> float:
    """Seconds of all cores, in this process and in those that have ended, such as a DataLoader's workers."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def cifar_passes(data: Path) -> tuple[list[Pass], str]:
    """The data path alone, ours and the DataLoader's, with augmentation and without."""
    found = load_set("cifar-100", data)
    labels = np.unique(found.train.y, return_inverse=True)[1]
    task = TaskData(found.train.x, torch.from_numpy(labels))
    upright = np.ascontiguousarray(found.train.x.permute(0, 2, 3, 1).numpy())
    scale, source = InputScale((3, 32, 32)), generator(0)
    scale.set(*CONSTANTS["cifar-100"])

    def ours(augment: Augment | None) -> None:
        order = torch.randperm(len(task), generator=source)
        for plain in task.epoch(order, BATCH, 0, 1):
            batch = plain if augment is None else plain.augmented(augment, source)
            scale(batch.x)

    def theirs(augment: bool, workers: int) -> None:
        images = PillowImages(upright, labels.tolist(), augment)
        for _ in DataLoader(images, BATCH, shuffle=True, num_workers=workers):
            pass

    passes = []
    for name, augment in (("crop+flip", Augment(crop=CROP, flip=True)), ("plain", None)):
        passes.append(Pass(f"cldnet {name}", len(task), partial(ours, augment)))
        for workers in (0, 2):
            run = partial(theirs, augment is not None, workers)
            passes.append(Pass(f"Pillow DataLoader {name}, {workers} workers", len(task), run))
    return passes, found.digest


def mnist_passes(data: Path) -> tuple[list[Pass], str]:
    """One epoch of fine-tuning the default MLP, and the loader alone for the same batches."""
    found = load_set("mnist", data)
    task = TaskData(found.train.x, torch.from_numpy(np.unique(found.train.y, return_inverse=True)[1]))
    # By constants, so that no time for fitting the scale makes the loader's share look smaller.
    learner = build_learner("finetune", Setting((28, 28), capacity=10, seed=0, scaling=CONSTANTS["mnist"]))

    def loader(size: int, use: Callable[[Tensor], object]) -> None:
        for batch in task.epoch(torch.randperm(len(task), generator=learner.generator), size, 0, 1):
            use(batch.x)

    passes = []
    for size in (BATCH, 16):
        runs: dict[str, Callable[[], object]] = {
            "epoch": partial(fit_task, learner, task, epochs=1, batch_size=size),
            "loader": partial(loader, size, len),
            "loader and normalisation": partial(loader, size, learner.scale),
        }
        passes += [Pass(f"MNIST MLP, batches of {size}: {what}", len(task), run) for what, run in runs.items()]
    return passes, found.digest


def in_turns(passes: list[Pass], repeats: int) -> None:
    for turn in range(repeats):
        for step in passes:
            step.measure()
            say(f"turn {turn + 1} of {repeats}: {step.name}: {step.wall[-1]:.2f} s")


def ratios(passes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What has to be shown, with whether it is; by wall-clock time and by processor time."""
    found = []
    for kind in ("wall", "cpu"):
        speed = {name: report[f"images_per_second_{kind}"] for name, report in passes.items()}
        for workers in (0, 2):
            value = speed["cldnet crop+flip"] / speed[f"Pillow DataLoader crop+flip, {workers} workers"]
            what = f"times the images a second of the Pillow DataLoader with {workers} workers"
            found.append({"what": what, "clock": kind, "value": value, "target": TIMES, "met": value >= TIMES})
        for size in (BATCH, 16):
            whole = speed[f"MNIST MLP, batches of {size}: epoch"]
            for part in ("loader", "loader and normalisation"):
                value = whole / speed[f"MNIST MLP, batches of {size}: {part}"]
                what = f"share of {part} in an MLP epoch on MNIST, batches of {size}"
                found.append({"what": what, "clock": kind, "value": value, "target": SHARE, "met": value < SHARE})
    return found


def machine() -> dict[str, Any]:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"system": f"{platform.system()} {platform.machine()}", "processor": model, "cores": os.cpu_count()}


def show(result: dict[str, Any]) -> None:
    print(f"{'pass':56} {'images/s (wall)':>16} {'images/s (cpu)':>16}")
    for name, report in result["passes"].items():
        print(f"{name:56} {report['images_per_second_wall']:16,.0f} {report['images_per_second_cpu']:16,.0f}")
    print()
    for ratio in result["ratios"]:
        share = ratio["target"] < 1
        value = f"{100 * ratio['value']:.2f} %" if share else f"{ratio['value']:.1f}"
        target = f"under {100 * ratio['target']:.0f} %" if share else f"at least {ratio['target']:.0f}"
        print(f"{value:>8}  {ratio['what']} ({ratio['clock']}; {target}: {'met' if ratio['met'] else 'NOT met'})")


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CIFAR-100 and MNIST")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/loader.json"))
    parser.add_argument("--repeats", type=int, default=5, help="turns, of which the median counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cifar, cifar_digest = cifar_passes(arguments.data)
    mnist, mnist_digest = mnist_passes(arguments.data)
    in_turns([*cifar, *mnist], arguments.repeats)
    passes = {step.name: step.report() for step in (*cifar, *mnist)}
    result = {
        "benchmark": "loader",
        "ratios": ratios(passes),
        "passes": passes,
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
        "data": {"cifar-100": cifar_digest, "mnist": mnist_digest},
        "versions": {
            "cldnet": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "Pillow": pillow_version,
            "python": platform.python_version(),
        },
        "machine": machine(),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, json.dumps(result, indent=1).encode())
    show(result)
    say(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
