"""The sums of CLDNet's exact solver as words, and the model of a total of such words.

With a map of the library's own, features are integers up to 127. The sums are integers then, exact in float64 below 2⁵³,
and their total does not depend on who summed what: it has the bits of one model of all samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cldnet import CLDNetClassifier, Statistics
from cldnet.data.labels import Inputs, LabelTable
from cldnet.math.symmetric import packed_length
from cldnet.nets import FeatureMap
from secure_sums.masks import Words

#: Beyond this, float64 does not hold every integer.
LIMIT = 1 << 53


@dataclass(frozen=True)
class Agreement:
    """What all clients and the server agree on beforehand, and everybody may know.

    Attributes
    ----------
    features : FeatureMap
        The shared map, fitted on public data (`cldnet.load_map`).
    classes : tuple
        All labels that any client may have, in the order that everybody uses.
    """

    features: FeatureMap
    classes: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.features.fitted:
            raise ValueError(
                "The shared map is not fitted: fit it on public data, save it, and give everybody the file."
            )
        if not self.classes or len({*self.classes}) < len(self.classes):
            raise ValueError("The agreed classes should be a list of different labels, with one or more in it.")

    @property
    def digest(self) -> bytes:
        """A digest of what is summed, for the roster of a round."""
        described = json.dumps([self.features.map_id, [*self.classes]])
        return hashlib.sha256(described.encode()).digest()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sums in the order of their words."""
        count, width = len(self.classes), self.features.out_features
        sums = {"rows": (), "class_weights": (count,), "class_sums": (count, width)}
        return {**sums, "second.packed": (packed_length(width),)}


def words_of(X: ArrayLike, y: ArrayLike, agreement: Agreement) -> Words:
    """Sum up a client's own samples, as one row of words: as many, and in the same places, for every client."""
    foreign = {*np.unique(np.asarray(y)).tolist()} - {*agreement.classes}
    if foreign:
        raise ValueError(f"{len(foreign)} labels are not among the agreed classes: agree on a longer list first.")
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in agreement.shapes.items()}
    if len(np.asarray(y)):
        learned = CLDNetClassifier(backbone=agreement.features).fit(X, y).statistics()
        rows = learned.labels.rows([*agreement.classes])
        known, places = torch.from_numpy(rows[rows >= 0]), torch.from_numpy((rows >= 0).nonzero()[0])
        for name, table in sums.items():
            if name.startswith("class_"):
                table[places] = learned.tensors[name][known]
            else:
                table.copy_(learned.tensors[name])
    return np.concatenate([_to_words(sums[name], name) for name in agreement.shapes])


def model_of(words: Words, agreement: Agreement, largest: float) -> CLDNetClassifier:
    """Make the model of a total: the one that has learned all samples of all clients.

    Parameters
    ----------
    words : array of uint64
    agreement : Agreement
    largest : float
        The largest |value| of an input, as everybody knows it: 255 for pixels. Images beyond that range are refused.
    """
    sums = _from_words(words, agreement)
    weights = sums["class_weights"]
    if bool((weights < 0).any()) or float(weights.sum()) != float(sums["rows"]):
        raise ValueError(
            "The total is not that of any samples: its classes do not add up to its rows. Nothing was made."
        )
    learned = weights > 0
    if not bool(learned.any()):
        raise ValueError("No client had a sample.")
    classes = [label for label, there in zip(agreement.classes, learned.tolist(), strict=True) if there]
    labels = LabelTable()
    labels.learn(classes)
    labels.add_counts({label: int(n) for label, n in zip(classes, weights[learned].tolist(), strict=True)})
    sums |= {name: sums[name][learned] for name in ("class_weights", "class_sums")}
    inputs = Inputs(tuple(agreement.features.input_shape), None, False, float(largest))
    total = Statistics(agreement.features.map_id, "full", inputs, labels, sums)
    return CLDNetClassifier(backbone=agreement.features).merge([total])


def read_classes(text: str) -> tuple[Any, ...]:
    """Read the agreed classes from a run's configuration: a JSON list, such as ``["cat", "dog"]``."""
    classes: Sequence[Any] = json.loads(text)
    if not isinstance(classes, list):
        raise ValueError(f"classes={text!r:.80} should be a JSON list of labels.")
    return tuple(classes)


def _to_words(sums: Tensor, name: str) -> Words:
    """Convert sums to words; negative ones are counted from 2⁶⁴ down."""
    values = sums.numpy().ravel()
    if (values != np.rint(values)).any() or (np.abs(values) >= LIMIT).any():
        raise ValueError(
            f"{name} has sums that are not whole numbers below 2^53, so they cannot be added up exactly. Use a map of the "
            "library's own, and no sample weights."
        )
    return values.astype(np.int64).view(np.uint64)


def _from_words(words: Words, agreement: Agreement) -> dict[str, Tensor]:
    sizes = {name: int(np.prod(shape)) for name, shape in agreement.shapes.items()}
    if words.shape != (sum(sizes.values()),):
        raise ValueError(f"The total has {words.shape} words, and {sum(sizes.values())} were agreed on.")
    values = words.view(np.int64)
    if ((values <= -LIMIT) | (values >= LIMIT)).any():
        raise ValueError("The total has numbers of 2^53 or more: it is wrong, or there are too many samples.")
    parts = np.split(values.astype(np.float64), np.cumsum([*sizes.values()])[:-1])
    return {
        name: torch.from_numpy(part.copy()).reshape(shape)
        for (name, shape), part in zip(agreement.shapes.items(), parts, strict=True)
    }
