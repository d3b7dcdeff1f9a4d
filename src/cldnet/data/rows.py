"""A call's rows: inputs, labels and weights, checked; and what a model remembers of the inputs it was begun with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import _get_feature_names
from torch import Tensor

from cldnet.data.arrays import as_targets, as_weights, layout, seen_as_inputs
from cldnet.labels import LabelTable, as_labels

__all__ = ["Inputs", "Rows", "Session"]

#: Images with values this many times as large as the first ones are in another range; sooner if the type is another, too.
_RANGE = 16
_SWITCHED_RANGE = 4
#: The range of uint8.
_WHITE = 255
#: Images whose mean is less than this share of their deviation, and that have negative values, were centred.
_CENTRED = 0.1
#: Numbers that one input may hold, in a file that somebody else may have written.
_MOST_NUMBERS = 1 << 26


@dataclass(frozen=True)
class Inputs:
    """What is known of the inputs that a model was begun with.

    Attributes
    ----------
    shape : tuple of int
        Shape of one input.
    names : tuple of str or None
        Names of the columns, if they had any.
    pixels : bool
        Whether they were uint8.
    largest : float
        Largest absolute value among them.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...] | None
    pixels: bool
    largest: float

    @property
    def count(self) -> int:
        """Numbers in one input."""
        return prod(self.shape)

    def check(self, x: Tensor) -> None:
        """Refuse inputs of another shape, and images in another range, such as 0 to 1 where the first had 0 to 255."""
        shape = tuple(x.shape[1:])
        if len(shape) == len(self.shape) == 1 and shape != self.shape:  # in scikit-learn's words
            raise ValueError(
                f"X has {shape[0]} features, but CLDNetClassifier is expecting {self.count} features as input. Give "
                "the columns that the model was begun with, or make another model."
            )
        if shape != self.shape:
            raise ValueError(
                f"X has rows of shape {shape}; the model was made for {self.shape}. "
                "Bring X into that shape, or make another model."
            )
        fault = self._other_range(x)
        if fault is not None:
            seen = f"The model learned {'uint8' if self.pixels else 'float'} inputs with values up to {self.largest:g}"
            raise ValueError(f"{seen} and X {fault}.")

    def _other_range(self, x: Tensor) -> str | None:
        """Say what tells that pixels are in another range than the first ones; columns of a table may take any value.

        A black image is in every range, and a dark one of uint8 in that of uint8.
        """
        pixels, images = x.dtype == torch.uint8, len(self.shape) > 1
        least, most = (float(end) for end in x.aminmax())
        largest = max(most, -least)
        if min(largest, self.largest) == 0 or (pixels == self.pixels and (pixels or not images)):
            return None
        if not pixels and largest <= 1 and self.largest > (1 if self.pixels else _RANGE):
            return "lies within 1: bring X into the same range, for example X * 255"
        if self.pixels:
            return self._beside_pixels(x, least, largest) if images else None
        if pixels and images and self.largest > _SWITCHED_RANGE * _WHITE:
            return f"is uint8, which ends at 255: bring X into that range, for example X * {self.largest / _WHITE:g}"
        reach = (_SWITCHED_RANGE if pixels else _RANGE) * self.largest
        if pixels and images and self.largest <= 1:
            reach = min(1.0, reach)  # 2 is beyond a range that ends at 1, however dark the image
        if largest > reach:
            kind = "uint8" if pixels else "float"
            return f"is {kind} with values up to {largest:g}: bring X into the same range, for example X / 255"
        return None

    def _beside_pixels(self, x: Tensor, least: float, largest: float) -> str | None:
        """Say what tells that images of another type are not in uint8's range; small whole numbers do not, in a dark image."""
        if largest > _SWITCHED_RANGE * _WHITE:
            return f"has values up to {largest:g}: bring X into the same range, 0 to 255, for example X / 257 if it was uint16"
        if least < 0:
            deviation, mean = torch.std_mean(x, correction=0)
            if float(mean) < _CENTRED * float(deviation):
                return f"is centred, from {least:g} on: bring X into the same range, 0 to 255, with its mean not subtracted"
        if largest <= _RANGE < self.largest and bool((x != x.round()).any()):
            return f"has fractions up to {largest:g}: bring X into the same range, 0 to 255, neither divided nor standardised"
        return None

    def to_json(self) -> dict[str, Any]:
        """Describe the inputs in types that JSON has."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Inputs:
        """Rebuild from `to_json`, checking it as input from a stranger."""
        shape, names, pixels, largest = (state[name] for name in ("shape", "names", "pixels", "largest"))
        sides = shape if isinstance(shape, list) and 1 <= len(shape) <= 3 else [0]
        if not all(type(side) is int and 1 <= side <= _MOST_NUMBERS for side in sides) or prod(sides) > _MOST_NUMBERS:
            raise ValueError(f"inputs of shape {shape!r:.80} cannot be")
        if names is not None and not (
            isinstance(names, list) and len(names) == prod(sides) and all(isinstance(name, str) for name in names)
        ):
            raise ValueError(f"the names of its columns should be {prod(sides)} texts, or null")
        if not isinstance(pixels, bool) or type(largest) not in (int, float) or not 0 <= largest < float("inf"):
            raise ValueError(f"inputs with values up to {largest!r:.80} cannot be, or are no pixels ({pixels!r:.80})")
        return cls(tuple(sides), None if names is None else tuple(names), pixels, float(largest))


@dataclass(frozen=True)
class Rows:
    """Checked rows: inputs in the layout that nets take, labels, weights or none, and the columns' names or none.

    They may lie in the caller's memory: whoever keeps them beyond the call copies them.

    Examples
    --------
    >>> rows = Rows.checked([[1.0, 2.0], [3.0, 4.0]], ["a", "b"], None, None, LabelTable(capacity=2))
    >>> rows.x.shape, rows.y, rows.weight
    (torch.Size([2, 2]), array(['a', 'b'], dtype='<U1'), None)
    """

    x: Tensor
    y: NDArray[Any]
    weight: NDArray[np.float64] | None
    names: tuple[str, ...] | None

    @classmethod
    def checked(
        cls,
        X: Any,
        y: Any,
        sample_weight: Any,
        input_shape: tuple[int, ...] | None,
        table: LabelTable,
        classes: Any = None,
    ) -> Rows:
        """Check a call's arguments, labels against those of a table, or say in a sentence what is wrong."""
        if y is None:
            raise ValueError(
                "This classifier requires y to be passed, but the target y is None. Give a list, an array or a column of "
                "labels, one a row of X."
            )
        x = layout(seen_as_inputs(X), input_shape)
        labels = as_targets(y, len(x))
        table.check(labels)
        if classes is not None:
            unexpected = sorted(set(labels.tolist()) - set(as_labels(classes).tolist()))
            if unexpected:
                raise ValueError(f"y has labels {unexpected} that are not in classes. Add them, or leave classes out.")
        weight = None if sample_weight is None else as_weights(sample_weight, len(x))
        names = _get_feature_names(X)
        return cls(x, labels, weight, None if names is None else tuple(names.tolist()))

    @property
    def inputs(self) -> Inputs:
        """What a model that begins with these rows remembers of their inputs."""
        least, most = (float(end) for end in self.x.aminmax())
        return Inputs(tuple(self.x.shape[1:]), self.names, self.x.dtype == torch.uint8, max(most, -least))


class Session:
    """Pieces of rows that are going to be learned as one task.

    Parameters
    ----------
    table : LabelTable
        The labels known before; the session adds to a copy.
    """

    def __init__(self, table: LabelTable) -> None:
        self.table = copy.deepcopy(table)
        self.pieces: list[Rows] = []
        self._inputs: Inputs | None = None

    def add(self, rows: Rows) -> None:
        """Add a copy of a piece, or refuse it if its inputs do not go with those of the first one."""
        if self._inputs is None:
            self._inputs = rows.inputs
        self._inputs.check(rows.x)
        if rows.names != self._inputs.names:
            raise ValueError("The columns have other names than in the session's first piece: name them alike.")
        self.table.learn(rows.y)
        self.pieces.append(replace(rows, x=rows.x.clone(), y=rows.y.copy()))

    @property
    def rows(self) -> Rows:
        """The pieces behind each other; those without weights weigh 1 a row."""
        pieces, weight = self.pieces, None
        if len(pieces) == 1:
            return pieces[0]
        if any(piece.weight is not None for piece in pieces):
            weight = np.concatenate([np.ones(len(p.y)) if p.weight is None else p.weight for p in pieces])
        y = np.concatenate([piece.y for piece in pieces])
        return Rows(torch.cat([piece.x for piece in pieces]), y, weight, pieces[0].names)
