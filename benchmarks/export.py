"""How well exported files agree with their model on 1,000 images, at the net's own size.

    python benchmarks/export.py [--out results/benchmarks/export.json] [--count 1000]

The images are pieces of scikit-learn's two sample photos and of their negatives, four classes, cut, turned and darkened at
random; 160 of them are learned, others are asked about. The features are the 4,000 of ``cldnet learn``. It takes minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

from cldnet import CLDNetClassifier
from cldnet.bench.machine import machine_text, versions
from cldnet.export import to_onnx, to_torch
from cldnet.nets import ExpandedNet
from cldnet.storage import write_atomically

SIDE, LEARNED = 224, 160


def pieces(count: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Pieces of 90 to 300 pixels, brought to the net's size, and which of four pictures each is of."""
    rng, photos = np.random.default_rng(seed), list(load_sample_images().images)
    pictures = [*photos, *(255 - photo for photo in photos)]
    x = np.empty((count, 3, SIDE, SIDE), np.uint8)
    for row in range(count):
        picture, side = pictures[row % 4], int(rng.integers(90, 300))
        top, left = (int(rng.integers(0, length - side)) for length in picture.shape[:2])
        piece = Image.fromarray(picture[top : top + side, left : left + side]).rotate(rng.uniform(-20, 20))
        darker = np.asarray(piece.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) * rng.uniform(0.5, 1.0)
        x[row] = darker.astype(np.uint8).transpose(2, 0, 1)
    return x, np.arange(count) % 4


def main() -> None:
    """Learn, export in both formats, compare, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/export.json"))
    parser.add_argument("--count", type=int, default=1000)
    arguments = parser.parse_args()
    backbone = ExpandedNet((3, SIDE, SIDE), features=4000, seed=0)
    clf = CLDNetClassifier(backbone=backbone, random_state=0).fit(*pieces(LEARNED, seed=0))
    x, y = pieces(arguments.count, seed=1)
    formats: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, export in (("onnx", to_onnx), ("torch", to_torch)):
            begun, path = time.perf_counter(), Path(folder) / name
            agreement = export(clf, path, x)
            print(f"{name}: {agreement}", flush=True)
            seconds = round(time.perf_counter() - begun, 1)
            formats[name] = {**asdict(agreement), "bytes": path.stat().st_size, "seconds": seconds}
    result = {
        "side": SIDE,
        "features": 4000,
        "learned": LEARNED,
        "accuracy": float((clf.predict(x) == y).mean()),
        "formats": formats,
        "versions": {**versions(), "onnxruntime": onnxruntime.__version__},
        "machine": machine_text(),
    }
    write_atomically(arguments.out, json.dumps(result, indent=1).encode())


if __name__ == "__main__":
    main()
