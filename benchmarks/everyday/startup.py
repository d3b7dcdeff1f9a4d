"""CPU seconds of `cldnet inspect` and of `cldnet predict` of one photo: today's sources beside those before."""

from __future__ import annotations

import hashlib
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from benchmarks.speed.apart import ROOT, apart, environment
from benchmarks.speed.before import unpacked
from PIL import Image
from sklearn.datasets import load_digits

#: The last commit whose commands import torch and scikit-learn whatever they do.
BEFORE = "d5ca3b2d27b51022fb5bdb749f9a5418e7824380"
_CLASSES, _MEMORY, _TURNS = 30, 128, 5
_CALL = "import sys; from cldnet.cli import main; sys.argv[0] = 'cldnet'; main()"


def measure(quick: bool) -> dict[str, Any]:
    """Make a model of 30 classes of photos by both sources, and run the commands on it in turns."""
    try:
        sources = {"before": unpacked(BEFORE), "now": ROOT / "src"}
    except (OSError, subprocess.CalledProcessError) as error:
        return {"not_run": f"The sources of {BEFORE[:7]} could not be unpacked: {error}"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = _photos(folder / "photos", 2 if quick else 4)
        models = {side: folder / f"{side}.cldnet" for side in sources}
        small = ("--size", "64", "--memory", "8") if quick else ("--memory", str(_MEMORY))
        learned = {side: _run(sources[side], "learn", models[side], folder / "photos", *small)[0] for side in sources}
        seconds: dict[str, dict[str, list[float]]] = {"inspect": {}, "predict": {}}
        for _ in range(1 if quick else _TURNS):
            for side, source in sources.items():
                for command, more in (("inspect", ()), ("predict", (photos[0],))):
                    seconds[command].setdefault(side, []).append(_run(source, command, models[side], *more)[0])
        answers = {side: _answers(sources[side], models[side], photos) for side in sources}
        return {
            "commit_before": BEFORE,
            "cpu_seconds": {
                name: {side: _summary(each) for side, each in sides.items()} for name, sides in seconds.items()
            },
            "cpu_seconds_of_learn": learned,
            "bytes": {side: model.stat().st_size for side, model in models.items()},
            "classes": _CLASSES,
            "photos": len(photos),
            **_compared(answers["before"], answers["now"]),
            "readme_model": {side: apart(readme_model, source) for side, source in sources.items()},
        }


def readme_model() -> dict[str, Any]:
    """Bytes and answers of the README's model of digits, over the map that both versions have."""
    from cldnet import CLDNetClassifier

    digits = load_digits()
    clf = CLDNetClassifier(backbone="random-relu", random_state=0)
    for month in ([0, 1], [2, 3, 4], [5, 6], [7, 8, 9]):
        new = np.isin(digits.target[:1400], month)
        clf.partial_fit(digits.data[:1400][new], digits.target[:1400][new])
    with tempfile.TemporaryDirectory() as folder:
        clf.save(Path(folder) / "digits")
        size = (Path(folder) / "digits").stat().st_size
    answers = hashlib.sha256(clf.predict(digits.data[1400:]).tobytes()).hexdigest()[:16]
    accuracy = float(clf.score(digits.data[1400:], digits.target[1400:]))
    return {"footprint": clf.footprint().total, "file": size, "accuracy": accuracy, "digest_of_answers": answers}


def _summary(seconds: list[float]) -> dict[str, Any]:
    return {"median": median(seconds), "all": seconds}


def _photos(folder: Path, count: int) -> list[Path]:
    """Photos of a coloured pattern for each class, with noise."""
    rng, paths = np.random.default_rng(0), list[Path]()
    for label in range(_CLASSES):
        pattern = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(
            (400, 300), Image.Resampling.BICUBIC
        )
        (folder / f"class{label:02d}").mkdir(parents=True)
        for number in range(count):
            pixels = np.asarray(pattern) + rng.normal(0, 25, (300, 400, 3))
            paths.append(folder / f"class{label:02d}" / f"{number}.jpg")
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def _run(source: Path, *arguments: object) -> tuple[float, str]:
    """CPU seconds of a command by one of the sources, on one thread of torch, and what it printed."""
    around = environment() | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _CALL, *map(str, arguments)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"cldnet {arguments[0]} failed with the sources in {source}:\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def _answers(source: Path, model: Path, photos: list[Path]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = json.loads(_run(source, "predict", model, *photos, "--json", "--top", _CLASSES)[1])
    return answers


def _compared(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether all labels are the same, and how far probabilities are apart at most."""
    shares = [
        [{each["label"]: each["probability"] for each in answer["top"]} for answer in answers]
        for answers in (before, now)
    ]
    apart = [abs(one[label] - other[label]) for one, other in zip(*shares, strict=True) for label in one]
    same = [answer["label"] for answer in before] == [answer["label"] for answer in now]
    return {"labels_equal": same, "largest_difference_of_probability": max(apart)}
