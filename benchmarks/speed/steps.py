"""A training step of CLDNet (hbo) beside a plain step of gradient descent on the same net, batch and momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from benchmarks.speed.record import Finding, ratio
from benchmarks.speed.turns import Work, in_turns
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.data.arrays import Batch
from cldnet.device import generator, threads
from cldnet.methods.cldnet import CLDNet, CLDNetConfig, CLDNetPaperConfig
from cldnet.methods.learner import Setting, TaskData
from cldnet.methods.parts.projection import BatchMean
from cldnet.methods.parts.variants import BottleneckFirst, EmbeddingAlone, InnerProduct, InTurn, Together
from cldnet.nets import build_backbone

SHAPE, WIDTHS, OUTPUTS, CLASSES = (784,), (400, 400), 1000, 10
#: Images of one piece of work: as many for both batch sizes, so that they take about as long.
_IMAGES = 2560
SIZES = (64, 256)
Step = Callable[[Tensor, Tensor], object]
Batches = list[tuple[Tensor, Tensor]]

#: Rates that let a learner go on at a steady pace for ever; they change no operation.
PAPER = CLDNetPaperConfig(embed_dim=OUTPUTS, lr=0.001, hbo_lr=0.0001)
OWN = CLDNetConfig(embed_dim=OUTPUTS, lr=0.1)


@dataclass(frozen=True)
class Reading:
    """A way to take the step, and what it may cost at both batch sizes, if that was said."""

    title: str
    config: CLDNetConfig
    targets: tuple[float, float] | tuple[None, None] = (None, None)


READINGS = {
    "alone": Reading("without HSIC", replace(PAPER, steps=EmbeddingAlone()), (1.7, 1.6)),
    "together": Reading("with nHSIC, one forward pass", replace(PAPER, steps=Together()), (2.3, 2.5)),
    "in-turn": Reading("with nHSIC, in turn", replace(PAPER, steps=InTurn())),
    "default": Reading("as `cldnet` has it by default (no HSIC, every row into the projectors)", OWN, (3.0, 3.0)),
    "default-mean": Reading(
        "as by default, but with batch means into the projectors", replace(OWN, feed=BatchMean()), (1.7, 1.6)
    ),
}


def measure(quick: bool) -> Iterator[Finding]:
    """All readings at both batch sizes, on one thread and on two."""
    x, y = images(_IMAGES)
    for count in (1, 2):
        with threads(count):
            for number, size in enumerate(SIZES):
                batches = list(zip(x.split(size), y.split(size), strict=True))
                steps = {f"plain {momentum}": plain(momentum) for momentum in (PAPER.momentum, OWN.momentum)}
                steps |= {name: projected(reading.config, x, y) for name, reading in READINGS.items()}
                works = {name: over(step, batches) for name, step in steps.items()}
                taken = in_turns(works, 3 if quick else 11, warm=2)
                for name, reading in READINGS.items():
                    yield ratio(
                        f"step/{name}/{size}/{count}",
                        f"CLDNet (hbo) step {reading.title}, batches of {size}, over plain SGD",
                        count,
                        taken[name],
                        taken[f"plain {reading.config.momentum}"],
                        target=reading.targets[number],
                        limit=operations(reading.config, size) / plain_operations(),
                    )


def plain_operations(outputs: int = OUTPUTS) -> float:
    """Operations of the products of a plain step, for each sample: forward, and twice back but for the first layer."""
    sizes = (*SHAPE, *WIDTHS, outputs)
    return float(sum(6 * a * b for a, b in pairwise(sizes)) - 2 * sizes[0] * sizes[1])


def operations(config: CLDNetConfig, size: int) -> float:
    """Operations that a projected step needs for each sample; those in float64 count twice, symmetric products half.

    Counted are matrix products and factors. What is not: activations, optimiser, single rows.
    """
    inputs = [width + 1 for width in (*SHAPE, *WIDTHS)]  # of the layers' projectors
    squares, lengths = sum(width**2 for width in inputs), sum(inputs)
    # The embedding layer learns as many outputs as there are class vectors if HSIC does not act on it: see `CLDNet`.
    turned = isinstance(config.similarity, InnerProduct) and isinstance(config.steps, BottleneckFirst)
    outputs = min(OUTPUTS, config.vectors_per_class * CLASSES) if turned else OUTPUTS
    counted = plain_operations(outputs) + 2.0 * squares
    if not isinstance(config.feed, BatchMean):
        # P − UᵀU by half, A in float64 by half, and R P Rᵀ, L⁻¹ R P and L⁻ᵀ U with triangles of the batch's size.
        counted += squares + 2 * squares + 3 * size * lengths
    if isinstance(config.steps, InTurn | Together):
        layers = [*WIDTHS, OUTPUTS]
        kernels = size * (SHAPE[0] + sum(layers)) + size**2 * (1 + len(layers))  # by half; factor and inverse
        counted += kernels + 2 * size * sum(layers) + 4 * size**2 * len(layers)
    if isinstance(config.steps, InTurn):  # a second pass
        again = sum(4 * a * b for a, b in pairwise((*SHAPE, *WIDTHS, OUTPUTS)))
        counted += again + 2 * sum(width**2 for width in inputs[1:])  # the first layer's rows are projected once
    return counted


def images(count: int, shape: tuple[int, ...] = SHAPE) -> tuple[Tensor, Tensor]:
    """Rows as full of zeros as MNIST's, of two classes."""
    source = generator(0)
    shown = torch.rand(count, *shape, generator=source) < 0.19
    x = (255 * torch.rand(count, *shape, generator=source) * shown).to(torch.uint8)
    return x.float() / 255, torch.randint(0, 2, (count,), generator=source)


def plain(momentum: float) -> Step:
    """Gradient descent as a user of PyTorch would write it."""
    sizes = (*SHAPE, *WIDTHS)
    hidden = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*hidden, nn.Linear(WIDTHS[-1], OUTPUTS))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=momentum)

    def step(x: Tensor, y: Tensor) -> None:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def learner(config: CLDNetConfig, x: Tensor, y: Tensor, net: nn.Module | None = None) -> CLDNet:
    """A learner in its first task."""
    net = build_backbone("mlp", SHAPE, 0, {"widths": WIDTHS}) if net is None else net
    made = CLDNet(net, Setting(tuple(x.shape[1:]), capacity=CLASSES, seed=0), config)
    made.begin_task(TaskData(x, y))
    return made


def projected(config: CLDNetConfig, x: Tensor, y: Tensor) -> Step:
    """Steps of a learner in its first task."""
    made, steps = learner(config, x, y), 0

    def step(x: Tensor, y: Tensor) -> None:
        nonlocal steps
        steps += 1
        made.observe(Batch(x, y, None, steps, 10**6, 0))

    return step


def over(step: Step, batches: Batches) -> Work:
    """One step a batch."""

    def work() -> None:
        for x, y in batches:
            step(x, y)

    return work
