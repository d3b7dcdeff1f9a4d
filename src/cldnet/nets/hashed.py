"""The map of projected sparse rows: whole numbers with one scale for all columns."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from cldnet.nets.features import FEATURE_LIMIT, FeatureMap, _rounded, with_constant

#: Root mean squares of the nonzero inputs that the 8 bits cover: on CLINC150 none is larger, and more would cost digits.
_RANGE = 12.0
_ROWS_AT_ONCE = 1024


class Hashed(FeatureMap):
    """Inputs as whole numbers from −127 to 127 with one common scale, and a constant last column.

    A scale for each column, as other maps have, would make rare columns as large as common ones: on TF-IDF of CLINC150 that
    costs a point. Zeros stay zeros, and inputs that are not negative are counts to `cldnet.methods.exact`, which adds
    the evidence of naive Bayes.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one input; of sparse rows the width that they are projected to (`cldnet.data.sparse`).
    seed : int
        Not used: nothing is random. Every map takes one.

    Examples
    --------
    >>> features = Hashed((3,))
    >>> features.fit(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    >>> features(torch.tensor([[0.0, 2.0, 1.0]]))
    tensor([[  0.,  21.,  11., 127.]])
    """

    kind = "hashed"
    limits = (-FEATURE_LIMIT, FEATURE_LIMIT)
    count = FEATURE_LIMIT / _RANGE

    def __init__(self, input_shape: tuple[int, ...], *, seed: int = 0) -> None:
        super().__init__()
        self.input_shape, self.seed = tuple(input_shape), seed
        self.out_features = prod(self.input_shape) + 1
        #: Size of an input that is a feature of 1.
        self.unit: Tensor = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.fitted: Tensor = nn.Buffer(torch.tensor(False))

    @torch.no_grad()
    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Take the scale from the training inputs that are not zero."""
        weights = x.new_ones(len(x), dtype=torch.float64) if weight is None else weight.double()
        squares, count = self.unit.new_zeros(()), self.unit.new_zeros(())
        for block, part in zip(x.flatten(1).split(_ROWS_AT_ONCE), weights.split(_ROWS_AT_ONCE), strict=True):
            squares += part @ block.double().square_().sum(1)
            count += part @ (block != 0).sum(1).double()
        if bool(squares > 0):
            self.unit.copy_(_rounded((squares / count).sqrt() * (_RANGE / FEATURE_LIMIT)))
        self.fitted.fill_(True)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers from −127 to 127, as float32."""
        return with_constant((x.flatten(1).double() / self.unit).round_().clamp_(-FEATURE_LIMIT, FEATURE_LIMIT).float())
