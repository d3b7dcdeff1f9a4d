"""Whether an exported file answers as its original does, row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods.exact import Exact
from cldnet.model import Model
from cldnet.nets.features import RandomProjection
from cldnet.nets.scale import InputScale

__all__ = ["TOLERANCE", "Agreement", "Ask", "Disagreement", "compare", "drawn_rows"]

#: By how much a probability may differ, and a score, as a share of the largest.
TOLERANCE = 1e-4
#: Rows that are compared at a time: what is in memory does not grow with their number.
_PORTION = 64
#: Numbers of the rows that are drawn where nobody gives any: 64 photos of 224 pixels, or some hundred small rows.
_DRAWN_NUMBERS, _MOST_DRAWN = 10_000_000, 256

#: What asks an exported file: inputs to probabilities, scores and labels.
Ask = Callable[[NDArray[Any]], tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]]


@dataclass(frozen=True)
class Agreement:
    """How well an exported file agrees with its original.

    Attributes
    ----------
    rows : int
        Inputs that both were asked about.
    labels : int
        Those of which both say the same label.
    probability, score : float
        Largest difference of a probability, and of a score as a share of the largest score.
    ties : int
        Inputs with different labels that the original itself finds equally likely.
    """

    rows: int
    labels: int
    probability: float
    score: float
    ties: int = 0

    @property
    def holds(self) -> bool:
        """Whether nobody could tell the file from its original."""
        near = self.probability <= TOLERANCE and self.score <= TOLERANCE  # NaN is not
        return near and self.labels + self.ties == self.rows

    def __str__(self) -> str:
        return (
            f"{self.labels:,} of {self.rows:,} labels are the same, probabilities within {self.probability:.1e}, "
            f"scores within {self.score:.1e} of the largest"
        )


class Disagreement(ValueError):
    """The exported file would have answered otherwise than its original, and was not written."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(
            f"The exported model does not agree with its original: {agreement}, where {TOLERANCE:.0e} is allowed. Nothing was "
            "written."
        )
        self.agreement = agreement


def compare(model: Model, ask: Ask, x: Tensor, on_progress: Callable[[int, int], None] | None = None) -> Agreement:
    """Ask a model and its exported twin about the same rows; raises `Disagreement` where they differ."""
    largest = score = size = 0.0
    labels = ties = done = 0
    for part in x.split(_PORTION):
        probabilities, scores, said = ask(part.numpy())
        ours = model.scores(part)
        expected = model.probabilities(ours)
        best = ours.argmax(1)
        same = np.asarray(said == model.labels.classes[best], dtype=bool)  # strings come as objects
        labels += int(same.sum())
        ties += int((~same & (expected.max(1) - _of(said, model, expected) <= TOLERANCE)).sum())
        # np.max passes NaN on, which max would lose
        largest = float(np.max([largest, np.abs(probabilities - expected).max()]))
        score, size = float(np.max([score, np.abs(scores - ours).max()])), max(size, float(np.abs(ours).max()))
        done += len(part)
        if on_progress is not None:
            on_progress(done, len(x))
    agreement = Agreement(len(x), labels, largest, score / max(size, 1.0), ties)
    if not agreement.holds:
        raise Disagreement(agreement)
    return agreement


def _of(labels: NDArray[Any], model: Model, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability of each row's label; 0 of one that the model does not know."""
    column = {label: place for place, label in enumerate(model.labels.classes.tolist())}
    return np.array(
        [
            row[column[label]] if label in column else 0.0
            for label, row in zip(labels.tolist(), probabilities, strict=True)
        ]
    )


def drawn_rows(model: Model, seed: int = 0) -> Tensor:
    """Inputs for a comparison where nobody gives real ones: images of blots, or rows of the usual size and spread.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 10.0], [5.0, 12.0]], ["cat", "dog"])
    >>> drawn_rows(clf._fitted()).shape
    torch.Size([256, 2])
    """
    inputs, random = model.inputs, generator(seed)
    count = max(8, min(_MOST_DRAWN, _DRAWN_NUMBERS // inputs.count))
    if len(inputs.shape) > 1:
        shares = _blots(count, inputs.shape, random)
        return (shares * 255).round().to(torch.uint8) if inputs.pixels else shares.double() * inputs.largest
    mean, spread = _usual(model)
    rows = mean + 2 * spread * torch.randn(count, *inputs.shape, generator=random, dtype=torch.float64)
    return rows.clamp(0, 255).round().to(torch.uint8) if inputs.pixels else rows


def _blots(count: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Images with something large and something small to be seen, from 0 to 1."""
    channels, sides = (1 if len(shape) == 2 else shape[0]), shape[-2:]
    images = torch.zeros(count, channels, *sides)
    for places in (2, 5, 17):
        coarse = torch.rand(count, channels, places, places, generator=random)
        images += F.interpolate(coarse, sides, mode="bilinear", align_corners=False) / 3
    return ((images - 0.5) * 2.5 + 0.5).clamp(0, 1).reshape(count, *shape)


def _usual(model: Model) -> tuple[Tensor, Tensor]:
    """Mean and spread of the rows that a model was begun with, as far as it knows them."""
    learner = model.learner
    features = learner.features if isinstance(learner, Exact) else None
    own = features.scale if isinstance(features, RandomProjection) and features.net is None else learner.scale
    if isinstance(own, InputScale):
        return own.mean.cpu(), own.spread.cpu()
    size = torch.full(model.inputs.shape, model.inputs.largest, dtype=torch.float64)
    return torch.zeros_like(size), size / 2
