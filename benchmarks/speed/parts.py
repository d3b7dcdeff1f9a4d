"""Parts of learning beside the machine's limit: which share of the rate of its matrix products each of them reaches.

Counted are the operations of matrix products and convolutions, as torch counts them, in float32 and float64 alike; factors,
kernels, activations and the optimiser take part in the time and not in the count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from benchmarks.speed.limits import Counted, counted_operations, shares
from benchmarks.speed.record import Finding
from benchmarks.speed.steps import OUTPUTS, PAPER, READINGS, images, learner
from benchmarks.speed.turns import Work
from torch import Tensor

from cldnet.data.arrays import Batch
from cldnet.device import threads
from cldnet.methods.cldnet import CLDNet
from cldnet.methods.learner import TaskData, predict_logits
from cldnet.methods.parts.projection import LayerProjector
from cldnet.methods.parts.variants import EmbeddingAlone, NormalisedHSIC
from cldnet.nets import build_backbone

_SIZE, _WIDTH, _PHOTO = 256, 785, (3, 32, 32)
#: Of the net's layers, the last one's among them.
_HIDDEN = (400, 400, OUTPUTS)
#: How often a small piece is done, so that a turn takes some tenths of a second.
_TIMES = 10


def measure(quick: bool) -> Iterator[Finding]:
    """Steps of an MLP and a CNN, the projector, HSIC and evaluation, on one thread and on two."""
    for count in (1, 2):
        with threads(count):
            yield from shares({**_steps(quick), **_pieces(), **_evaluation(quick)}, count, 3 if quick else 9)


def _steps(quick: bool) -> dict[str, Counted]:
    x, y = images(_SIZE)
    found = {
        f"limit/mlp/{name}": _step(
            f"Step of the MLP, {READINGS[name].title}", learner(READINGS[name].config, x, y), x, y
        )
        for name in ("alone", "together", "in-turn", "default")
    }
    photos, y = images(16 if quick else 64, _PHOTO)
    net = build_backbone("cnn", _PHOTO, 0)
    made = learner(replace(PAPER, steps=EmbeddingAlone()), photos, y, net)
    return {**found, "limit/cnn/alone": _step("Step of the CNN, without HSIC", made, photos, y, times=1)}


def _step(title: str, made: CLDNet, x: Tensor, y: Tensor, times: int = _TIMES) -> Counted:
    batch = Batch(x, y, None, 1, 10**6, 0)
    made.observe(batch)
    return _often(f"{title}, batches of {len(x)}", lambda: made.observe(batch), times)


def _pieces() -> dict[str, Counted]:
    """What CLDNet adds to a step, for the MLP's first layer and all of its representations."""
    projector, alpha = LayerProjector(1, _WIDTH), 1e3
    rows = torch.rand(1, _SIZE, _WIDTH)
    mean = rows.mean(1, keepdim=True)
    projector.absorb(rows, alpha)  # an empty projector computes nothing
    (x, y), dependence = images(_SIZE), NormalisedHSIC()
    hidden = [torch.rand(_SIZE, width) for width in _HIDDEN]

    def derivatives() -> None:
        dependence.derivatives(x, y, hidden, 500.0)

    return {
        "limit/absorb-mean": _often(
            "Update of a projector of 785 inputs, by a mean", lambda: projector.absorb(mean, alpha)
        ),
        "limit/absorb-rows": _often(
            "Update of a projector of 785 inputs, by 256 rows", lambda: projector.absorb(rows, alpha)
        ),
        "limit/project": _often("Projection of 256 rows of 785 inputs", lambda: projector.project(rows)),
        "limit/nhsic": _often("nHSIC of three layers and its derivatives, batches of 256", derivatives),
    }


def _evaluation(quick: bool) -> dict[str, Counted]:
    x, y = images(2_000 if quick else 10_000)
    made = learner(PAPER, x, y)
    made.end_task(TaskData(x, y))
    return {"limit/evaluation": _often("Scores of images by the MLP", lambda: predict_logits(made, x), 1)}


def _often(title: str, work: Work, times: int = _TIMES) -> Counted:
    """A piece that is done several times over, with its operations."""

    def repeated() -> None:
        for _ in range(times):
            work()

    return Counted(title, repeated, times * counted_operations(work))
