"""The exact solver beside the machine's limit, and one pass of it beside ten epochs of joint training.

Counted are two operations for every number of a filter at every place of a patch, two for every number of a pooling window,
and two for every pair of features on or above the diagonal of the sums. Normalising patches, thresholds, rounding and the
sums by class take part in the time and not in the count.

Patches are counted whether they are flat or not. A third of the patches of MNIST's digits are, and our map does not multiply
them, so the share that is reported for digits is an effective one; `ratio_without_skipped` in its details is the share of what
was really multiplied.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.exact import operations
from benchmarks.speed.limits import Counted, shares
from benchmarks.speed.record import Finding, NotRun, ratio
from benchmarks.speed.turns import Work, in_turns
from torch import Tensor

from cldnet.data.stream import Stream
from cldnet.data.streams import stream_by_name
from cldnet.device import generator, threads
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Learner, Setting, TaskData, predict_logits
from cldnet.methods.mapped import BLOCK, FullMoments
from cldnet.nets.patches import WhitenedPatches

#: Shape, filters and side of a patch, with 2 × 2 windows: 3,200 and 12,800 features.
_MAPS = {"digits": ((28, 28), 400, 6), "photos": ((3, 32, 32), 1600, 5)}
#: Share of sgemm's rate that their features have to reach.
_SHARES = {"digits": 0.45, "photos": 0.55}
_WINDOWS, _EPOCHS, _BATCH = 2, 10, 64
_PASS, _JOINT = "one pass of exact over 3,200 patch features", "10 epochs of an MLP 784-400-400-10"


def measure(data: Path | None, quick: bool) -> Iterator[Finding | NotRun]:
    """Sums, features, factors and answers against the limit; then Split MNIST from images to answers."""
    for count in (1, 2):
        with threads(count):
            yield from shares({**_sums(quick), **_features(data, quick), **_solving(quick)}, count, 3 if quick else 7)
    for width in (2201,) if quick else (7201, 14_401):
        yield from _choosing(width, quick)
    yield from _whole(data, quick)


def _sums(quick: bool) -> dict[str, Counted]:
    found = {}
    for width in (301,) if quick else (3201, 12_801):
        h = torch.randint(-127, 128, (BLOCK, width), generator=generator(0)).float()
        second = FullMoments(width)
        title = f"Sums of products of {width:,} features, {BLOCK:,} rows, counted on the half that is needed"
        found[f"exact/sums/{width}"] = Counted(
            title, _adding(second, h), BLOCK * width * (width + 1.0), None if quick else 0.7
        )
    return found


def _adding(second: FullMoments, h: Tensor) -> Any:
    return lambda: second.add(h)


def _features(data: Path | None, quick: bool) -> dict[str, Counted]:
    found = {}
    for name, (shape, filters, size) in _MAPS.items():
        features = WhitenedPatches(shape, filters // 20 if quick else filters, seed=0, size=size, windows=_WINDOWS)
        features.mirror = False
        count, fitting = (16 if quick else 128), 4 * features.min_rows
        kind, images = _digits(data, count + fitting) if name == "digits" else (name, smooth(count + fitting, shape))
        features.fit(images[count:])
        x = images[:count]
        counted = operations(features, len(x))
        total = counted["filters"] + counted["pooling"]
        title = f"Patch features of {kind} of {shape[-1]} × {shape[-1]} pixels, {features.out_features - 1:,} an image"
        found[f"exact/patches/{name}"] = Counted(
            title,
            _mapping(features, x),
            total,
            None if quick else _SHARES[name],
            skipped=total * flat_share(x.reshape(count, features.channels, *shape[-2:]), size),
        )
    return found


def _digits(data: Path | None, count: int) -> tuple[str, Tensor]:
    """MNIST's first images if they are there; else noise with a margin that leaves as many of the patches flat."""
    try:
        return "MNIST's digits", stream_by_name("split-mnist", seed=0, data=data).train_part.x[:count]
    except FileNotFoundError:
        images = torch.zeros(count, 28, 28, dtype=torch.uint8)
        images[:, 7:21, 7:21] = smooth(count, (14, 14))
        return "drawn digits", images


def flat_share(images: Tensor, size: int) -> float:
    """Share of all patches of images ``(n, channels, height, width)`` whose pixels are all equal."""
    patches = images.unfold(2, size, 1).unfold(3, size, 1)
    flat = patches.amax((1, 4, 5)) == patches.amin((1, 4, 5))
    return float(flat.double().mean())


def _mapping(features: WhitenedPatches, x: Tensor) -> Any:
    return lambda: features(x)


def _solving(quick: bool) -> dict[str, Counted]:
    """A factor and the weights for a given α, in float64, and the scores of images whose features are known."""
    width, classes, rows = (301 if quick else 3201), 10, 2 * BLOCK
    h = torch.randint(-127, 128, (rows, width), generator=generator(1)).float()
    weights = torch.full((classes,), rows / classes, dtype=torch.float64)
    second, moments = FullMoments(width), h[: classes * 100].view(classes, 100, -1).sum(1).double().T.contiguous()
    for part in h.split(BLOCK):
        second.add(part)
    alpha = 1e-3 * second.energy / width
    solution = second.solve(moments, weights, float(rows), alpha).solution
    factor, answers = width**3 / 3 + 2.0 * width**2 * classes, 2.0 * rows * width * classes
    return {
        f"exact/factor/{width}": Counted(
            f"Factor and solution of {width:,} features with a given α",
            lambda: second.solve(moments, weights, float(rows), alpha),
            factor,
            dtype=torch.float64,
        ),
        f"exact/scores/{width}": Counted(
            f"Scores of images by {width:,} known features", lambda: h.double() @ solution, answers, dtype=torch.float64
        ),
    }


def _choosing(width: int, quick: bool) -> Iterator[Finding]:
    """α and the weights from sums of 10 and of 100 classes, beside one factorisation in float64: turns take minutes."""
    second, moments, weights = _class_sums(width, 100)
    positive = second.dense()
    positive.diagonal().add_(1e-3 * second.energy / width)
    chosen: dict[int, float] = {}

    def choose(classes: int) -> None:
        fewer = moments.view(width, classes, -1).sum(2), weights.view(classes, -1).sum(1)
        chosen[classes] = second.solve(*fewer, float(weights.sum()), None).alpha

    works: dict[str, Work] = {"10": partial(choose, 10), "100": partial(choose, 100)}
    for count in (1, 2):
        with threads(count):
            taken = in_turns(
                {**works, "factor": lambda: torch.linalg.cholesky(positive)}, 2 if width < 10_000 else 1, warm=0
            )
        for classes in chosen:
            yield ratio(
                f"exact/choosing/{width}/{classes}/{count}",
                f"Choosing α and solving with {width:,} features and {classes} classes, over one float64 Cholesky factor",
                count,
                taken[str(classes)],
                taken["factor"],
                target=None if quick else 2.5,
                alpha_relative=chosen[classes] * width / second.energy,
            )


def _class_sums(width: int, classes: int) -> tuple[FullMoments, Tensor, Tensor]:
    """Sums of twice as many rows as features, whose eigenvalues fall with the square of their number as of patch features."""
    source = generator(2)
    order = torch.arange(1, width + 1)
    spread, centres = 1 / order, 0.3 * torch.randn(classes, width, generator=source) * order**-1.25
    mirror = torch.nn.functional.normalize(
        torch.randn(width, generator=source), dim=0
    )  # so that eigenvectors are not axes
    second, moments = FullMoments(width), torch.zeros(width, classes, dtype=torch.float64)
    weights = torch.zeros(classes, dtype=torch.float64)
    for _ in range(2 * width // BLOCK + 1):
        y = torch.randint(0, classes, (BLOCK,), generator=source)
        h = centres[y] + spread * torch.randn(BLOCK, width, generator=source)
        h -= torch.outer(h @ mirror, 2 * mirror)
        second.add(h)
        moments.index_add_(1, y, h.double().T)
        weights += torch.bincount(y, minlength=classes)
    return second, moments, weights


def smooth(count: int, shape: tuple[int, ...]) -> Tensor:
    """Smooth colours with noise on top, in bytes."""
    channels = 1 if len(shape) == 2 else shape[0]
    coarse = torch.rand(count, channels, 8, 8, generator=generator(0))
    drawn = torch.nn.functional.interpolate(coarse, shape[-2:], mode="bilinear", align_corners=True)
    noise = torch.rand(count, channels, *shape[-2:], generator=generator(1))
    return (200 * drawn + 55 * noise).to(torch.uint8).reshape(count, *shape)


def _whole(data: Path | None, quick: bool) -> Iterator[Finding | NotRun]:
    """From images in memory to a model that answers: a stream of five tasks once, and all data at once ten times."""
    title = f"Split MNIST from images to answers: {_PASS}, over {_JOINT}"
    text = "split-mnist,train=0.2" if quick else "split-mnist"
    try:
        stream = stream_by_name(text, seed=0, data=data)
    except FileNotFoundError as error:
        yield NotRun("exact/whole", title, f"MNIST was not found: {error}")
        return
    for count in (1, 2):
        made: dict[str, list[Learner]] = {"exact": [], "joint": []}
        works = {
            "exact": partial(_keep, made["exact"], _one_pass, stream),
            "joint": partial(_keep, made["joint"], _joint, stream),
        }
        with threads(count):
            taken = in_turns(works, 1 if quick else 2, warm=0)
        accuracy = {name: [_accuracy(learner, stream) for learner in learners] for name, learners in made.items()}
        yield ratio(
            f"exact/whole/{count}",
            title,
            count,
            taken["exact"],
            taken["joint"],
            target=None if quick else 1.0,
            accuracy={name: statistics.mean(values) for name, values in accuracy.items()},
            accuracies=accuracy,
            operations={"exact": _pass_operations(made["exact"][0], stream), "joint": _joint_operations(stream)},
        )


def _keep(made: list[Learner], make: Callable[[Stream, int], Learner], stream: Stream) -> None:
    """Make one more, with the next seed: accuracies are looked at when nothing is timed."""
    made.append(make(stream, len(made)))


def _one_pass(stream: Stream, seed: int) -> Learner:
    options = {"filters": _MAPS["digits"][1], "windows": _WINDOWS, "mirror": False}
    learner = build_learner("exact", _setting(stream, seed), {}, "patches", options)
    for task in stream:
        fit_task(learner, task.train, epochs=1, batch_size=_BATCH)
    _ = learner.ridge  # it is solved when it is asked for the first time
    return learner


def _joint(stream: Stream, seed: int) -> Learner:
    learner = build_learner("finetune", _setting(stream, seed), {}, "mlp", {"widths": (400, 400)})
    fit_task(learner, _everything(stream), epochs=_EPOCHS, batch_size=_BATCH)
    return learner


def _setting(stream: Stream, seed: int) -> Setting:
    return Setting(stream.input_shape, capacity=len(stream.class_order), seed=seed)


def _everything(stream: Stream) -> TaskData:
    tasks = [task.train for task in stream]
    return TaskData(torch.cat([task.x for task in tasks]), torch.cat([task.y for task in tasks]))


def _accuracy(learner: Learner, stream: Stream) -> float:
    """Mean over tasks of the accuracy with all classes as candidates."""
    tests = [task.test for task in stream]
    return statistics.mean(
        float((predict_logits(learner, test.x).argmax(1) == test.y).double().mean()) for test in tests
    )


def _pass_operations(learner: Any, stream: Stream) -> float:
    images, width = len(stream.train_part.x), learner.features.out_features
    counted = operations(learner.features, images)
    return float(sum(counted.values()) + width**3 / 3)


def _joint_operations(stream: Stream) -> float:
    """Three products of an image with every weight, as it is usually counted: forward, and two back."""
    return float(_EPOCHS * len(stream.train_part.x) * 3 * 2 * (784 * 400 + 400 * 400 + 400 * 10))
