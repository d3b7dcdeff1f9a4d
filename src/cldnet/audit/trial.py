"""Rows to try on learners whether they keep one."""

from __future__ import annotations

import torch
from torch import Tensor

from cldnet.device import generator

__all__ = ["unlike_rows"]


def unlike_rows() -> dict[str, Tensor]:
    """Rows that are unlike each other: even on both sides of 0; on one side, a few numbers large; most numbers 0.

    No sparser than this: where one row alone has an input, or nearly so, that input's row of a projector's sum is that row.
    It is so in the methods that have projectors (docs/trust.md), and no fault of whoever wrote them down.

    Examples
    --------
    >>> {kind: tuple(rows.shape) for kind, rows in unlike_rows().items()}
    {'even': (160, 64), 'skewed': (160, 64), 'sparse': (160, 64)}
    """
    one_sided = torch.empty(160, 64).exponential_(generator=generator(0))
    return {
        "even": torch.randn(160, 64, generator=generator(0)),
        "skewed": one_sided,
        "sparse": one_sided * (torch.rand(160, 64, generator=generator(1)) < 0.2),
    }
