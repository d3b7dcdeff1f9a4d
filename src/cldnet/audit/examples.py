"""How many examples a model's classes have, and whose sums were moved by noise."""

from __future__ import annotations

from typing import Any

from cldnet.methods.exact import Exact
from cldnet.model import Model
from cldnet.nets import FEATURE_MAPS
from cldnet.nets.features import FEATURE_LIMIT

__all__ = ["examples_of", "moved_classes"]

_NOISE = 1e-9  # share by which a sum differs from what it should be, beyond the rounding of weights


def _rows_of(model: Model) -> dict[Any, int]:
    return dict(zip(model.labels.classes.tolist(), model.labels.columns.tolist(), strict=True))


def examples_of(model: Model) -> dict[Any, int | None]:
    """Examples of each class. Where older files did not count them, the exact solver's weights tell."""
    counts = model.labels.counts
    if isinstance(model.learner, Exact):
        weights, rows = model.learner.class_weights.tolist(), _rows_of(model)
        return {label: round(weights[rows[label]]) if count is None else count for label, count in counts.items()}
    return counts


def moved_classes(model: Model) -> tuple[Any, ...]:
    """Classes whose sums were moved by noise, as the last feature of our maps tells: it is the same for every example."""
    learner = model.learner
    if not isinstance(learner, Exact) or FEATURE_MAPS.get(learner.features.kind) is not type(learner.features):
        return ()
    constant = (FEATURE_LIMIT * learner.class_weights).tolist()
    sums = learner.class_sums[:, -1].tolist()
    return tuple(
        label for label, row in _rows_of(model).items() if abs(sums[row] - constant[row]) > _NOISE * constant[row]
    )
