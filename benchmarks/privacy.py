"""Accuracy on MNIST against ε, from sums that are released under differential privacy.

    python -m benchmarks.privacy choose --data DIR   # shares of the budget, floor and norm, on FashionMNIST alone
    python -m benchmarks.privacy measure --data DIR  # MNIST
    python -m benchmarks.privacy table [PATH]

FashionMNIST is the public set here. Feature maps are fitted on its training images; no map sees MNIST. ``choose`` learns
48,000 of its training images with ε = 3 and 1 and asks about the other 12,000: over two maps, with two draws of the noise,
it compares how the budget is divided (`cldnet.estimator.private.SHARES`), the least eigenvalue of the scatter (`FLOOR`),
and the bound of the features' length as a share of their median length on FashionMNIST. What is best on average is used in
``measure``, so that nothing of MNIST is spent on choices: the 60,000 training images are learned once, the sums are
released, and a model of the released sums alone is asked about the 10,000 test images.

Each map is made with three seeds, and noise is drawn three times for each. Noise comes from seeds here, so that the figures
can be repeated; without ``random_state`` it cannot be. The file is written after each map, and what is there is not
measured again.

"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet import CLDNetClassifier, stream_by_name
from cldnet.bench.machine import machine_text, versions
from cldnet.device import generator, threads
from cldnet.estimator import private
from cldnet.nets import Clipped, FeatureMap, RandomReLU, WhitenedPatches
from cldnet.storage import write_atomically

OUT = Path("results/benchmarks/privacy.json")
DELTA = 1e-5
EPSILONS = (8.0, 3.0, 1.0, 0.5)
SEEDS, NOISES = (0, 1, 2), (0, 1, 2)
IMAGE = (28, 28)
#: Images of FashionMNIST that maps are fitted on, and that are kept apart to choose by.
FITTED, KEPT = 10_000, 12_000
MAPS: Mapping[str, Callable[[int], FeatureMap]] = {
    "random ReLU, 1,000 features": lambda seed: RandomReLU(IMAGE, 1000, seed=seed),
    "patches, 504 features": lambda seed: WhitenedPatches(IMAGE, 28, seed=seed, mirror=False),
    "patches, 1,008 features": lambda seed: WhitenedPatches(IMAGE, 56, seed=seed, mirror=False),
    "patches, 2,016 features": lambda seed: WhitenedPatches(IMAGE, 112, seed=seed, mirror=False),
}
CHOSEN_OVER = ("random ReLU, 1,000 features", "patches, 1,008 features")
NORMS = (0.25, 0.35, 0.5, 0.7, 1.0)
SHARES = ((0.30, 0.69, 0.01), (0.45, 0.54, 0.01), (0.60, 0.39, 0.01), (0.75, 0.24, 0.01))
FLOORS = (1 / 64, 1 / 16, 1 / 8, 1 / 4, 1 / 2)

Samples = tuple[Tensor, NDArray[Any]]


def images(name: str, data: Path, half: str) -> Samples:
    """All images of a set and their labels."""
    parts = [getattr(task, half) for task in stream_by_name(name, 0, data=data)]
    return torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]).numpy()


def fitted(name: str, seed: int, public: Tensor) -> FeatureMap:
    """A map that is fitted on public images."""
    made = MAPS[name](seed)
    made.fit(public[torch.randperm(len(public), generator=generator(seed))[:FITTED]])
    return made


def usual_length(features: FeatureMap, public: Tensor) -> float:
    """Median length of feature vectors of public images."""
    lengths = torch.cat([features(block).double().norm(dim=1) for block in public[:FITTED].split(1000)])
    return float(lengths.median())


def accuracy(clf: CLDNetClassifier, test: Samples) -> float:
    return float((clf.predict(test[0]) == test[1]).mean())


def released(clf: CLDNetClassifier, epsilon: float, noise: int) -> CLDNetClassifier:
    """A model of the released sums alone."""
    sums = clf.private_statistics(epsilon, DELTA, random_state=noise)
    return CLDNetClassifier(backbone=clf.backbone, random_state=0).merge([sums])


def choose(data: Path) -> dict[str, Any]:
    """Compare settings on FashionMNIST, by the mean accuracy on images kept apart."""
    x, y = images("split-fmnist", data, "train")
    order = torch.randperm(len(x), generator=generator(7))
    test, train = ((x[part], y[part.numpy()]) for part in (order[:KEPT], order[KEPT:]))
    trials = []
    for name, share in product(CHOSEN_OVER, NORMS):
        features = fitted(name, 10, train[0])
        clipped = Clipped(features, share * usual_length(features, train[0]))
        clf = CLDNetClassifier(backbone=clipped, random_state=0).fit(*train)
        for shares, floor in compared(share):
            private.SHARES, private.FLOOR = shares, floor
            found = [accuracy(released(clf, epsilon, noise), test) for epsilon in (3.0, 1.0) for noise in (100, 101)]
            trials.append({"map": name, "norm": share, "shares": shares, "floor": floor, "accuracy": mean(found)})
            say(json.dumps(trials[-1]))
    return {"set": "FashionMNIST", "means": {name: means(trials, name) for name in MIDDLE}, "trials": trials}


#: Each setting is compared with the others at these.
MIDDLE: Mapping[str, Any] = {"norm": 0.5, "shares": (0.60, 0.39, 0.01), "floor": 1 / 8}


def compared(norm: float) -> Iterator[tuple[tuple[float, float, float], float]]:
    """Shares and floors to try with a norm: only one setting at a time differs from the middle."""
    yield MIDDLE["shares"], MIDDLE["floor"]
    if norm == MIDDLE["norm"]:
        yield from ((shares, MIDDLE["floor"]) for shares in SHARES if shares != MIDDLE["shares"])
        yield from ((MIDDLE["shares"], floor) for floor in FLOORS if floor != MIDDLE["floor"])


def means(trials: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Mean accuracy over the maps for each value of a setting."""
    others = {other: value for other, value in MIDDLE.items() if other != name}
    some = [trial for trial in trials if all(trial[other] == value for other, value in others.items())]
    values = dict.fromkeys(trial[name] for trial in some)
    return {str(value): mean(trial["accuracy"] for trial in some if trial[name] == value) for value in values}


def measure(name: str, seed: int, sets: Mapping[str, Samples], norm_share: float) -> Iterator[dict[str, Any]]:
    """Accuracy on MNIST's test images without clipping, without noise, and for each ε."""
    public, train, test = sets["public"][0], sets["train"], sets["test"]
    features = fitted(name, seed, public)
    clipped = Clipped(features, norm_share * usual_length(features, public))
    about = {"map": name, "seed": seed, "norm": clipped.norm}
    plain = CLDNetClassifier(backbone=features, random_state=0).fit(*train)
    yield {**about, "what": "not clipped", "accuracy": accuracy(plain, test)}
    clf = CLDNetClassifier(backbone=clipped, random_state=0).fit(*train)
    yield {**about, "what": "no noise", "accuracy": accuracy(clf, test)}
    for epsilon, noise in product(EPSILONS, NOISES):
        found = accuracy(released(clf, epsilon, noise), test)
        yield {**about, "what": f"{epsilon:g}", "noise": noise, "accuracy": found}


COLUMNS = ("not clipped", "no noise", *(f"{epsilon:g}" for epsilon in EPSILONS))


def table(path: Path) -> str:
    """Mean and std of the accuracy by map and ε, in Markdown."""
    found = json.loads(path.read_text("utf-8"))
    head = ["map", *(f"ε = {each}" if each[0].isdigit() else each for each in COLUMNS)]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' --: |' * len(COLUMNS)}"]
    for name in MAPS:
        figures = [
            _figure([c["accuracy"] for c in found["cases"] if (c["map"], c["what"]) == (name, each)])
            for each in COLUMNS
        ]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    text = (
        f"Accuracy in percent on MNIST's 10,000 test images, δ = {found['delta']:g}; mean and std over {len(SEEDS)} maps, with "
        f"{len(NOISES)} draws of the noise each. {found['machine']}; "
        f"{', '.join(f'{package} {number}' for package, number in found['versions'].items())}."
    )
    return "\n".join(["# Accuracy against ε", "", *lines, "", text]) + "\n"


def _figure(values: Sequence[float]) -> str:
    if not values:
        return "not run"
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _run(part: str, data: Path, out: Path) -> None:
    content = json.loads(out.read_text("utf-8")) if out.exists() else {"benchmark": "privacy", "cases": []}
    packages = {"dp-accounting": version("dp-accounting")}
    content |= {"delta": DELTA, "machine": machine_text(), "versions": {**versions(), **packages}}
    if part == "choose":
        write(out, content | {"choice": choose(data)})
        return
    norms: Mapping[str, float] = content["choice"]["means"]["norm"]
    share = float(max(norms, key=lambda each: norms[each]))
    sets = {"public": images("split-fmnist", data, "train")}
    sets |= {half: images("split-mnist", data, half) for half in ("train", "test")}
    for name, seed in product(MAPS, SEEDS):
        if not any((case["map"], case["seed"]) == (name, seed) for case in content["cases"]):
            for case in measure(name, seed, sets, share):
                content["cases"].append(case)
                say(json.dumps(case))
            write(out, content)


def main(arguments: Sequence[str]) -> int:
    """Choose, measure, or print the table."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.privacy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    for part in ("choose", "measure"):
        made = parts.add_parser(part)
        made.add_argument("--data", type=Path, required=True)
        made.add_argument("--out", type=Path, default=OUT)
        made.add_argument("--threads", type=int, default=1)
    parts.add_parser("table").add_argument("path", type=Path, nargs="?", default=OUT)
    options = parser.parse_args(arguments)
    if options.part == "table":
        sys.stdout.write(table(options.path))
        return 0
    with threads(options.threads):
        _run(options.part, options.data, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
