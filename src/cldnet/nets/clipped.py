"""A fitted feature map whose vectors are never longer than a bound, so that one sample can change sums only so much.

Differential privacy needs that bound while samples are summed: afterwards it is too late (`cldnet.estimator.private`).
"""

from __future__ import annotations

from math import isfinite
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cldnet.nets.features import FeatureMap

#: Makes up for the rounding of a square root, a quotient and a product: never longer than the bound, not even by a bit.
_BELOW = 1 - 2.0**-50


class Clipped(FeatureMap):
    """Features of another map, scaled down to a length of ``norm`` where they are longer, as whole numbers.

    Fractions are rounded towards zero, so that no vector is longer than ``norm``. Sums of such features are exact, and
    independent of the order of samples, as those of the other map.

    Parameters
    ----------
    features : FeatureMap
        The map whose vectors are clipped. It has to be fitted before samples are learned; for sums that are to be released as
        `CLDNetClassifier.private_statistics`, on public data. It is not copied.
    norm : float
        The largest Euclidean length of a feature vector, in the map's units: a single feature goes up to 127. Choose it on
        public data, for example the median length there.

    Examples
    --------
    >>> from cldnet.nets import Linear
    >>> public = Linear((2,))
    >>> public.fit(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
    >>> public(torch.tensor([[2.0, 1.0]])), float(public(torch.tensor([[2.0, 1.0]])).norm())
    (tensor([[ 16., -16., 127.]]), 129.0)
    >>> Clipped(public, norm=100)(torch.tensor([[2.0, 1.0]]))
    tensor([[ 12., -12.,  98.]])
    """

    kind: ClassVar[str] = "clipped"
    fits_data: ClassVar[bool] = False
    min_rows = 1

    def __init__(self, features: FeatureMap, norm: float) -> None:
        super().__init__()
        if not isinstance(features, FeatureMap) or isinstance(features, Clipped):
            raise ValueError(
                f"features={type(features).__name__} should be a map of cldnet.nets that is not clipped already, such as "
                "RandomReLU or WhitenedPatches."
            )
        number = isinstance(norm, int | float | np.number) and not isinstance(norm, bool)
        if not number or not isfinite(norm) or norm < 1:
            raise ValueError(f"norm={norm!r:.80} should be a number from 1 on; a single feature goes up to 127.")
        self.features, self.norm = features, float(norm)
        self.input_shape, self.out_features = features.input_shape, features.out_features
        self.seed = features.seed

    @property
    def fitted(self) -> Tensor:  # type: ignore[override]
        """Whether the other map is fitted."""
        return self.features.fitted

    @property
    def takes_text(self) -> bool:  # type: ignore[override]
        """Whether inputs are sentences."""
        return self.features.takes_text

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor, the other map as its description."""
        return {"features": self.features.describe(), "norm": self.norm}

    @property
    def work(self) -> int:
        """Products per input: those of the other map."""
        return self.features.work

    @property
    def own_limits(self) -> tuple[float, float] | None:
        """Those of the other map, which have 0 between them."""
        return self.features.own_limits if type(self) is Clipped else None

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Refuse: the other map is fitted on its own, and never on the samples whose sums are to be private."""
        raise ValueError(
            "The map inside of Clipped is not fitted. Fit it before it is clipped, on public data if the sums are to be "
            "private: features.fit(public), then Clipped(features, norm)."
        )

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map inputs to whole numbers, each vector at most ``norm`` long, as float32."""
        return self._shortened(self.features(x)).trunc_().float()

    @torch.no_grad()
    def predict_features(self, x: Tensor) -> Tensor:
        """Map inputs to the numbers that `forward` would round, in float64."""
        return self._shortened(self.features.predict_features(x))

    def _shortened(self, features: Tensor) -> Tensor:
        """Scale vectors that are too long, in float64."""
        wide = features.to(torch.float64, copy=True)
        length = wide.square().sum(1, keepdim=True).sqrt_()  # a sum of squares of whole numbers is exact
        return torch.where(length > self.norm, wide * (self.norm * _BELOW / length), wide)
