"""Which files of ``src/cldnet`` a call passes through, in the order of their first entry: how far a reader has to walk.

    python -m benchmarks.walk

Each call is made once before it is traced, so imports and what is made only once do not count. ``predict`` is that of a model
in use; the files that the first prediction after learning passes, to solve from the sums, are listed apart. The exit status is
1 if a call passes more files than its target.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import cldnet
from cldnet import CLDNetClassifier

__all__ = ["TARGETS", "main", "trace", "walks"]

#: Files that each call may pass at most.
TARGETS = {"partial_fit": 12, "predict": 10, "load": 14}
_ROOT = str(Path(cldnet.__file__).parent) + "/"


def trace(call: Callable[[], Any]) -> dict[str, int]:
    """Make a call; return the files of ``src/cldnet`` that it enters, with the depth of the first entry.

    Examples
    --------
    >>> from cldnet.text import nearest_names
    >>> trace(lambda: nearest_names("exat", ["exact", "ewc"]))
    {'text.py': 1}
    """
    found: dict[str, int] = {}

    def enter(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_ROOT) or code.co_name == "<module>":
            return
        name = code.co_filename.removeprefix(_ROOT)
        if name not in found:
            found[name] = _depth(frame)

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth += frame.f_code.co_filename.startswith(_ROOT)
        frame = frame.f_back
    return depth


def walks(folder: Path) -> dict[str, dict[str, int]]:
    """Trace the calls of an exact classifier, and `cldnet learn` over 12 photos if Pillow is installed."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 16)), np.arange(90) % 3
    clf = CLDNetClassifier(backbone="random-relu", random_state=0, n_threads=1)
    clf.partial_fit(X[:30], y[:30]).predict(X[:2])
    found = {"partial_fit": trace(lambda: clf.partial_fit(X[30:60], y[30:60]))}
    first = trace(lambda: clf.predict(X[60:]))
    found["predict"] = trace(lambda: clf.predict(X[60:]))
    found["predict, when it solves"] = {name: depth for name, depth in first.items() if name not in found["predict"]}
    clf.save(folder / "model")
    CLDNetClassifier.load(folder / "model")
    found["load"] = trace(lambda: CLDNetClassifier.load(folder / "model"))
    try:
        found["learn"] = _learn(folder, rng)
    except ImportError:
        print("learn is not traced: Pillow is not installed.", file=sys.stderr)
    return found


def _learn(folder: Path, rng: np.random.Generator) -> dict[str, int]:
    from PIL import Image
    from typer.testing import CliRunner

    from cldnet.cli import app

    images = rng.integers(256, size=(12, 40, 40, 3), dtype=np.uint8)
    for number, image in enumerate(images):
        path = folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    small = CLDNetClassifier(backbone="random-relu", input_shape=(3, 32, 32), random_state=0)
    small.fit(images[:, :32, :32].transpose(0, 3, 1, 2).copy(), ["emu", "fox"] * 6).save(folder / "photos.cldnet")

    def learn() -> None:
        result = CliRunner().invoke(app, ["learn", str(folder / "photos.cldnet"), str(folder / "photos")])
        assert result.exit_code == 0, f"{result.output} {result.exception}"

    learn()
    return trace(learn)


def main() -> int:
    """Print the walks, and tell whether all targets hold."""
    with tempfile.TemporaryDirectory() as folder:
        found = walks(Path(folder))
    missed = 0
    for call, files in found.items():
        target = TARGETS.get(call)
        verdict = "" if target is None else f" (target {target}: {'met' if len(files) <= target else 'MISSED'})"
        missed += target is not None and len(files) > target
        print(f"\n{call}: {len(files)} files{verdict}")
        for name, depth in files.items():
            print(f"  {'  ' * min(depth - 1, 12)}{name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
