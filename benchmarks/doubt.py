"""How well `known_probability` tells samples of unknown classes from those of known ones, on test parts.

    python benchmarks/doubt.py --data DIR [--out results/benchmarks/doubt.json] [--threads 1]
    python benchmarks/doubt.py --data DIR --validation --out results/benchmarks/doubt-validation.json

A model learns the training samples of some classes, and is asked about the test samples of all of them:

- ``cifar-100``: 50 classes, three splits, through EfficientNet-lite0 at 128 pixels and 4,000 random features;
- ``clinc150, out of scope``: all 150 intents, three maps, and the 1,000 official sentences that have none of them;
- ``clinc150``: 7 of its 10 domains, three splits, both through MiniLM and 4,000 random features;
- ``clinc150, 5 × 25`` and so on: small models of that many random intents and training sentences of each, three draws, with
  1,000, 2,500 and 4,000 random features; 1,000 sentences of other intents are unknown;
- ``digits`` and ``fashion-mnist``: 7 and 8 of 10 classes, three splits, with the map that `CLDNetClassifier` chooses.

Of every case the file has the accuracy on known samples, the share of known samples (false alarms) and of unknown ones
(noticed) that ``predict(reject=...)`` masks, and how often an unknown sample has a larger score than a known one (AUROC), for
`known_probability` and for other scores of the same model: the largest probability, the energy, the distance to the nearest
class vector, and the Mahalanobis distance to the nearest class, as it is and relative to that of all samples.

Nothing is chosen on test parts. Score and constants of ``cldnet.math.novelty`` and ``cldnet.math.calibration`` come from parts
of the training samples and CLINC150's official validation sentences: ``--validation`` asks about those, with other seeds.
The file begins with medians and ranges; each case is written when it is done, and not computed again. Vectors of the nets are
kept in the cache of ``cldnet run``; with them there, it takes some twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from cldnet import CLDNetClassifier, stream_by_name
from cldnet.bench.feature_cache import remembering
from cldnet.bench.machine import machine_text, versions
from cldnet.data.catalog import find_set
from cldnet.data.published import read_clinc150_part
from cldnet.data.sentences import TEXT_BYTES, encode_sentences
from cldnet.device import threads
from cldnet.math.leave_one_out import leave_one_out_dense
from cldnet.nets import Expanded
from cldnet.storage import write_atomically

REJECT = (0.01, 0.05, 0.1)
SEEDS, VALIDATION_SEEDS = (0, 1, 2), (100, 101, 102)
FEATURES = 4000
#: Intents and sentences of each that small models learn, and features of each draw.
SMALL, SMALL_FEATURES = ((2, 50), (5, 25), (5, 75), (10, 25), (10, 75), (20, 25), (40, 25)), (1000, 2500, 4000)
SMALL_TEST = ((2, 50), (5, 25), (10, 75), (40, 25))
FIGURES = ("accuracy", "false_alarms", "noticed", "auroc")


class Samples(NamedTuple):
    """Inputs to learn with their labels, inputs of known classes with theirs, and inputs of unknown ones."""

    learned: tuple[Any, NDArray[Any]]
    known: tuple[Any, NDArray[Any]]
    unknown: Any


def split_by_class(name: str, groups: int, seed: int, data: Path) -> Samples:
    """The first ``groups`` tasks of a stream are known; a seed orders the classes."""
    tasks = list(stream_by_name(name, seed, data=data))
    parts = [
        [torch.cat([getattr(task, half).x for task in some]) for half in ("train", "test")]
        + [torch.cat([getattr(task, half).y for task in some]).numpy() for half in ("train", "test")]
        for some in (tasks[:groups], tasks[groups:])
    ]
    (x, x_test, y, y_test), (_, others, _, _) = parts
    return Samples((x, y), (x_test, y_test), others)


def flat(samples: Samples) -> Samples:
    """Images as vectors."""
    (x, y), (x_test, y_test), others = samples
    return Samples((x.flatten(1).float(), y), (x_test.flatten(1).float(), y_test), others.flatten(1).float())


def intents(data: Path, half: str, seed: int | None = None) -> Samples:
    """CLINC150: all intents, and sentences that have none; or with a seed, the intents of 7 domains and of the others."""
    folder = find_set("clinc150", data)
    assert folder is not None, "clinc150 is not there: cldnet data get clinc150"
    train, test, others = (read_clinc150_part(folder, part) for part in ("train", half, f"oos_{half}"))
    domains = stream_by_name("split-clinc150", seed or 0, data=data).tasks
    known = {intent for domain in domains[: 10 if seed is None else 7] for intent in domain}
    parts = ([(text, intent) for text, intent in zip(*part, strict=True) if intent in known] for part in (train, test))
    (x, y), (x_test, y_test) = (
        ([text for text, _ in part], np.array([intent for _, intent in part])) for part in parts
    )
    if seed is not None:
        others = [text for text, intent in zip(*test, strict=True) if intent not in known], []
    return Samples((x, y), (x_test, y_test), others[0])


def few_intents(data: Path, half: str, count: int, sentences_each: int, seed: int) -> Samples:
    """CLINC150: some random intents with few sentences of each, and sentences of other intents."""
    (x, y), (x_test, y_test), _ = intents(data, half)
    draw = np.random.default_rng([seed, count, sentences_each])
    order = draw.permutation(len(y))
    known = draw.choice(np.unique(y), count, replace=False)
    rows = np.concatenate([order[y[order] == intent][:sentences_each] for intent in known])
    is_known = np.isin(y_test, known)
    tested, others = np.flatnonzero(is_known), draw.permutation(np.flatnonzero(~is_known))[:1000]
    return Samples(
        ([x[row] for row in rows], y[rows]),
        ([x_test[row] for row in tested], y_test[tested]),
        [x_test[row] for row in others],
    )


def photos(seed: int) -> Expanded:
    bodies = [{"net": "efficientnet-lite0", "size": 128}]
    return Expanded((3, 32, 32), FEATURES, seed=seed, bodies=bodies).load_published()


def sentences(seed: int, features: int = FEATURES) -> Expanded:
    return Expanded((TEXT_BYTES,), features, seed=seed, bodies=["minilm"]).load_published()


def cases(data: Path, validation: bool) -> Iterator[tuple[str, int, Callable[[], tuple[Samples, Expanded | None]]]]:
    """Name and seed of each case, and how its samples and its map are made; a map of None is for the classifier to choose."""
    seeds, end, half = (VALIDATION_SEEDS, ",validation=0.2", "val") if validation else (SEEDS, "", "test")
    for seed in seeds:
        yield "digits", seed, lambda s=seed: (flat(split_by_class(f"split-digits,tasks=10{end}", 7, s, data)), None)
    for seed in seeds:
        yield "clinc150, out of scope", seed, lambda s=seed: (intents(data, half), sentences(s))
    for seed in seeds:
        yield "clinc150", seed, lambda s=seed: (intents(data, half, s), sentences(s))
    for count, each in SMALL if validation else SMALL_TEST:
        for seed, width in zip(seeds, SMALL_FEATURES, strict=True):
            yield (
                f"clinc150, {count} × {each}",
                seed,
                lambda c=count, n=each, s=seed, w=width: (few_intents(data, half, c, n, s), sentences(s, w)),
            )
    for seed in seeds:
        yield "fashion-mnist", seed, lambda s=seed: (flat(split_by_class(f"split-fmnist{end}", 4, s, data)), None)
    for seed in seeds:
        yield "cifar-100", seed, lambda s=seed: (split_by_class(f"split-cifar100{end}", 5, s, data), photos(s))


def scores(clf: CLDNetClassifier, x: Any) -> dict[str, NDArray[np.float64]]:
    """What may tell unknown samples, larger for those."""
    model = clf._usable_model()
    rows = encode_sentences(x) if isinstance(x, list) else x
    columns = torch.from_numpy(model.labels.columns)
    vectors = torch.cat([model.exact.vectors(part) for part in rows.split(1024)])[:, columns]
    logits = torch.from_numpy(clf._scores(x, model)) / model.temperature
    best = vectors.max(1)
    sums = model.exact
    ridge = sums.ridge._replace(solution=sums.ridge.solution[:, columns])
    estimate = leave_one_out_dense(ridge, sums.class_sums[columns].T, sums.class_weights[columns], float(sums.rows))
    within, shares = estimate.covariance, estimate.weights / estimate.weights.sum()
    center = shares @ estimate.means
    centered = estimate.means - center
    total = within + (centered.T * shares) @ centered
    nearest = torch.stack([_squares(vectors - mean, within) for mean in estimate.means]).amin(0)
    found = {
        "largest probability": -logits.softmax(1).amax(1),
        "energy": -logits.logsumexp(1),
        "distance to the class vector": vectors.square().sum(1) - 2 * best.values + 1,
        "Mahalanobis distance": nearest,
        "relative Mahalanobis distance": nearest - _squares(vectors - center, total),
    }
    return {"known_probability": -clf.known_probability(x)} | {name: each.numpy() for name, each in found.items()}


def _squares(vectors: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    return (vectors * torch.linalg.solve(covariance, vectors.T).T).sum(1)


def measure(samples: Samples, features: Expanded | None, seed: int, workers: int) -> dict[str, Any]:
    """Learn the known classes, and ask about test samples."""
    begun = time.perf_counter()
    clf = CLDNetClassifier(backbone="auto" if features is None else features, random_state=seed, n_threads=workers)
    clf.partial_fit(*samples.learned)
    learned = time.perf_counter() - begun
    (x, y), others = samples.known, samples.unknown
    known, unknown = scores(clf, x), scores(clf, others)
    of_known, of_unknown = (-each["known_probability"] for each in (known, unknown))
    is_unknown = np.repeat([0, 1], [len(y), len(others)])
    return {
        "classes": len(clf.classes_),
        "samples": {"learned": len(samples.learned[1]), "known": len(y), "unknown": len(others)},
        "seconds": learned,
        "accuracy": float((clf.predict(x) == y).mean()),
        "false_alarms": {str(reject): float((of_known < reject).mean()) for reject in REJECT},
        "noticed": {str(reject): float((of_unknown < reject).mean()) for reject in REJECT},
        "auroc": {name: float(roc_auc_score(is_unknown, np.r_[known[name], unknown[name]])) for name in known},
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, least and largest of each figure over the cases of a name."""
    result: dict[str, Any] = {}
    for name in dict.fromkeys(case["name"] for case in found):
        some = [case for case in found if case["name"] == name]
        figures = result[name] = {"cases": len(some)}
        for figure in FIGURES:
            if isinstance(some[0][figure], dict):
                figures[figure] = {key: _middle([case[figure][key] for case in some]) for key in some[0][figure]}
            else:
                figures[figure] = _middle([case[figure] for case in some])
    return result


def _middle(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    """Take the cases that are not there yet, and write each at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/doubt.json"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--validation", action="store_true")
    arguments = parser.parse_args()
    found = json.loads(arguments.out.read_text())["cases"] if arguments.out.exists() else []
    about = {"benchmark": "doubt", "parts": "validation" if arguments.validation else "test"}
    about |= {"versions": {**versions(), "scikit-learn": sklearn.__version__}, "machine": machine_text()}
    for name, seed, make in cases(arguments.data, arguments.validation):
        if not any((case["name"], case["seed"]) == (name, seed) for case in found):
            with threads(arguments.threads):
                samples, features = make()
                with remembering(features or torch.nn.Identity()):
                    figures = measure(samples, features, seed, arguments.threads)
            found.append({"name": name, "seed": seed, **figures})
            print(name, seed, {figure: figures[figure] for figure in FIGURES}, flush=True)
        content = {**about, "summary": summary(found), "cases": found}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(arguments.out, json.dumps(content, indent=1).encode())


if __name__ == "__main__":
    main()
