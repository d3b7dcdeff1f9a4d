"""CLINC150 by its ten domains with MiniLM: the exact solver beside logistic regression on all data at once.

    python benchmarks/text.py --data DIR [--out results/benchmarks/text.json] [--threads 1]

The exact solver learns the 15,000 training sentences domain by domain, in three orders, with four numbers of random features;
everything is tested on the official 4,500 sentences. The joint logistic regression has the same vectors of MiniLM, and the
penalty that is best on the official validation part of 3,000 sentences. Each result is written as soon as it is there, and
not computed again. Vectors come from the cache of ``cldnet run``, so the seconds of learning are without those of encoding,
which are measured once on the training part; they end with the solution for all domains. What `Expanded` does with
sentences was chosen by the results named *choice*, on the validation part. It takes some twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from cldnet.bench.feature_cache import remembering
from cldnet.bench.machine import machine_text, versions
from cldnet.bench.run import Evaluation
from cldnet.data.catalog import find_set
from cldnet.data.published import read_clinc150_part
from cldnet.data.sentences import TEXT_BYTES, encode_sentences
from cldnet.data.streams import stream_by_name
from cldnet.device import generator, threads
from cldnet.estimator.footprint import footprint
from cldnet.math.calibration import joint_decision
from cldnet.math.discriminant import linear_discriminant
from cldnet.math.leave_one_out import leave_one_out
from cldnet.math.ridge import ridge
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting
from cldnet.nets import Expanded, RandomFourier, RandomReLU
from cldnet.storage import write_atomically

STREAM = "split-clinc150"
SEEDS = (0, 1, 2)
FEATURES = (1000, 4000, 5000, 8000)
PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0)  # C of vectors whose norm is √384


def encoding(folder: Path) -> dict[str, Any]:
    """Seconds for turning the training sentences into vectors."""
    rows = encode_sentences(read_clinc150_part(folder, "train")[0])
    body: Any = Expanded((TEXT_BYTES,), 1, seed=0, bodies=["minilm"]).load_published().body
    wall, cpu = time.perf_counter(), time.process_time()
    body.compute(rows)
    return {"sentences": len(rows), "cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def vectors(folder: Path) -> dict[str, tuple[NDArray[np.float32], list[str]]]:
    """Vectors and intents of each part, from the cache as far as they are there."""
    encoder, found = Expanded((TEXT_BYTES,), 1, seed=0, bodies=["minilm"]).load_published(), {}
    with remembering(encoder):
        for part in ("train", "val", "test"):
            sentences, intents = read_clinc150_part(folder, part)
            found[part] = encoder.body(encode_sentences(sentences)).numpy(), intents
    return found


def logistic(folder: Path) -> dict[str, Any]:
    """Joint logistic regression, its penalty chosen on the validation part."""
    parts, tried = vectors(folder), dict[float, dict[str, Any]]()
    for penalty in PENALTIES:
        begun = time.perf_counter()
        model = LogisticRegression(C=penalty, max_iter=1000).fit(*parts["train"])
        seconds = time.perf_counter() - begun
        tried[penalty] = {"C": penalty, "validation": model.score(*parts["val"]), "seconds": seconds, "model": model}
    best = max(tried.values(), key=lambda each: each["validation"])
    plain = [{name: value for name, value in each.items() if name != "model"} for each in tried.values()]
    return {"accuracy": best["model"].score(*parts["test"]), "C": best["C"], "tried": plain}


def exact(seed: int, features: int, data: Path) -> dict[str, Any]:
    """The exact solver over one order of the domains, asked once all are learned."""
    stream = stream_by_name(STREAM, seed, data=data)
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=seed)
    learner: Any = build_learner("exact", setting, {}, "minilm", {"features": features})
    with remembering(learner):
        learner.features.load_published()
        learner.represent(stream.train.x)  # so that the vectors are there
        cpu, wall = time.process_time(), time.perf_counter()
        for task in stream:
            fit_task(learner, task.train, epochs=1, batch_size=64)
        learner.refresh()
        seconds = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        right, _ = Evaluation(learner, stream).accuracies(len(stream))
    return {
        "seed": seed,
        "features": features,
        "order": [intents[0] for intents in stream.tasks],
        "hash": stream.hash,
        "accuracy": float(np.mean(right)),  # of domains with equally many sentences
        "seconds": seconds,
        "bytes": footprint(learner).bytes,
    }


def choice(folder: Path, seed: int) -> dict[str, Any]:
    """Accuracy on the validation part of each kind of random features with each rule: why `Expanded` has those it has.

    Once with all training sentences, and once with 5 instead of 100 of every second intent.
    """
    parts, found = vectors(folder), dict[str, Any]()
    (train, intents), (held_out, expected) = (parts[part] for part in ("train", "val"))
    names, targets = np.unique(intents, return_inverse=True)
    ranks = np.zeros(len(targets), dtype=int)
    for row in range(len(names)):
        ranks[targets == row] = np.arange((targets == row).sum())
    few = (targets % 2 == 0) | (ranks < 5)
    usual = torch.randn(1024, train.shape[1], generator=generator(seed))
    kinds = {
        "relu": RandomReLU((train.shape[1],), 4000, seed=seed),
        "fourier": RandomFourier((train.shape[1],), 4000, seed=seed, bandwidth=(2 * train.shape[1]) ** 0.5),
    }
    for kind, features in kinds.items():
        features.fit(usual)
        h, asked = features(torch.from_numpy(train)).double(), features.unrounded(torch.from_numpy(held_out))
        for case, kept in {"all": np.full(len(targets), True), "few of every second": few}.items():
            one_hot = torch.eye(len(names), dtype=torch.float64)[targets[kept]]
            sums = h[kept].T @ one_hot, one_hot.sum(0), float(kept.sum())
            solved = ridge(h[kept].T @ h[kept], *sums, None)
            raw, estimate = asked @ solved.solution, leave_one_out(solved, *sums)
            rules = {"discriminant": linear_discriminant(estimate).scores(raw), "nearest class vector": raw}
            rules["both"] = joint_decision(estimate).scores(raw)
            right = {rule: float((names[scores.argmax(1)] == expected).mean()) for rule, scores in rules.items()}
            found[f"{kind}, {case}"] = right
    return {"seed": seed, "validation": found}


def main() -> None:
    """Take what is not there yet, and write each result at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/text.json"))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    folder = find_set("clinc150", arguments.data)
    assert folder is not None, "clinc150 is not there: cldnet data get clinc150"
    about = {
        "benchmark": "text",
        "stream": STREAM,
        "versions": {**versions(), "scikit-learn": sklearn.__version__},
        "machine": machine_text(),
        "threads": arguments.threads,
    }
    found = json.loads(arguments.out.read_text())["results"] if arguments.out.exists() else {}
    cells: dict[str, Callable[[], dict[str, Any]]] = {
        "encoding": lambda: encoding(folder),
        "logistic": lambda: logistic(folder),
    }
    for seed in SEEDS:
        for features in FEATURES:
            cells[f"exact, {features} features, seed {seed}"] = lambda s=seed, f=features: exact(s, f, arguments.data)
    cells |= {f"choice, seed {seed}": lambda s=seed: choice(folder, s) for seed in SEEDS}
    for name, take in cells.items():
        if name not in found:
            with threads(arguments.threads):
                found[name] = take()
            write_atomically(arguments.out, json.dumps({**about, "results": found}, indent=1).encode())
        print(f"{name}: {found[name].get('accuracy', found[name])}", flush=True)


if __name__ == "__main__":
    main()
