"""One layer's projector, kept up to date step by step at little cost."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.math import projector

__all__ = ["LayerProjector"]


class LayerProjector(nn.Module):
    """A layer's projector ``P`` with the sum ``A`` that it comes from, both in float64.

    A step does not touch the matrices: what it takes off ``P`` waits as rows ``U``, so that the projector is ``P − UᵀU``, and
    a product with it costs little more than one with ``P``. Some steps together are then `settled <settle>` by one product.
    ``P`` is rebuilt from ``A`` when rounding shows, every 1,000 updates, and on request; nothing waits after that.

    Parameters
    ----------
    groups, width : int
        Number of projectors and length of an input row.

    Attributes
    ----------
    P, A : Tensor, shape (groups, width, width)
        Complete after `settle` and `rebuild`.

    Examples
    --------
    >>> layer = LayerProjector(groups=1, width=2)
    >>> layer.absorb(torch.tensor([[[1.0, 0.0]]]), alpha=torch.tensor(0.25))
    >>> layer.project(torch.tensor([[[1.0, 1.0]]]))
    tensor([[[0.2000, 1.0000]]])
    """

    P: Tensor
    A: Tensor
    running = ("_updates", "_waiting", "_rows")
    rebuild_every = 1000
    #: Rows that may wait. More make products with the projector dearer, fewer settle it more often.
    settle_every = 32
    #: Rounding of a step, as a share of what it takes off, above which the projector is rebuilt instead.
    most_rounding = 1e-6

    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        identity = torch.eye(width, dtype=torch.float64).repeat(groups, 1, 1)
        self.register_buffer("P", identity)
        self.register_buffer("A", torch.zeros_like(identity))
        self._clear()

    def _clear(self) -> None:
        self._updates = 0
        self._waiting = 0
        self._rows: Tensor | None = None  # the rows that wait: U for P, and r/√α for A
        self._rounded: Tensor | None = None  # P in the net's dtype

    def absorb(self, rows: Tensor, alpha: Tensor) -> None:
        """Absorb rows ``(groups, rows, width)`` with one α (Eq. 6)."""
        weighted = rows.double() * alpha.double().rsqrt()
        corrections = self._corrections(weighted)
        if corrections is None:
            self.settle()
            self.A.baddbmm_(weighted.mT, weighted)
            self.rebuild()
            return
        self._wait(corrections, weighted)
        self._updates += 1
        if self._waiting >= self.settle_every:
            self.settle()
            if self._updates >= self.rebuild_every or projector.has_drifted(self.P, weighted[:, -1], 1.0):
                self.rebuild()

    def _corrections(self, weighted: Tensor) -> Tensor | None:
        """What rows take off the projector; nothing where a rebuild costs less, or where rounding leaves no other way."""
        if weighted.shape[1] >= weighted.shape[2]:  # Woodbury's small matrix would be the larger one
            return None
        # P is off by rounding, and so is rᵀPr by as much of ‖r‖², which is to be compared with 1.
        largest = float(torch.linalg.vecdot(weighted, weighted).amax())
        if largest * weighted.shape[2] * torch.finfo(torch.float64).eps > self.most_rounding:
            return None
        try:
            corrections = projector.correction(self._times(weighted, self.P), weighted)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch does not list it
            return None
        return corrections if math.isfinite(float(corrections.sum())) else None  # many times quicker than to ask each

    def remove(self, rows: Tensor, alpha: Tensor) -> None:
        """Take rows out again that were absorbed with the same α."""
        self.settle()
        self.A = projector.accumulate(self.A, rows.double(), alpha.double(), sign=-1)
        self.rebuild()

    def rebuild(self) -> None:
        """Compute ``P`` afresh from ``A``."""
        self.settle()
        self.P = projector.from_sum(self.A)
        self._clear()

    def settle(self) -> None:
        """Give ``P`` and ``A`` what waits for them."""
        if self._rows is None or self._waiting == 0:
            return
        corrections, weighted = self._rows[:, :, : self._waiting]
        self.P.baddbmm_(corrections.mT, corrections, alpha=-1)
        self.A.baddbmm_(weighted.mT, weighted)
        self._waiting = 0
        if self._rounded is not None:
            self._rounded.copy_(self.P)

    def project(self, rows: Tensor) -> Tensor:
        """Multiply rows (inputs or gradients) ``(groups, n, width)`` by the projector from the right."""
        if self._rounded is None or self._rounded.dtype != rows.dtype:
            self._rounded = self.P.to(rows.dtype)
        return self._times(rows, self._rounded)

    def _times(self, rows: Tensor, P: Tensor) -> Tensor:
        """``R P − (R Uᵀ) U``."""
        product = rows @ P
        if self._rows is None or self._waiting == 0:
            return product
        corrections = self._rows[0, :, : self._waiting].to(rows.dtype)
        return product.baddbmm_(rows @ corrections.mT, corrections, alpha=-1)

    def _wait(self, corrections: Tensor, weighted: Tensor) -> None:
        groups, count, width = weighted.shape
        if self._rows is None or self._waiting + count > self._rows.shape[2]:
            self.settle()
            self._rows = weighted.new_empty(2, groups, max(count, self.settle_every), width)
        end = self._waiting + count
        self._rows[0, :, self._waiting : end], self._rows[1, :, self._waiting : end] = corrections, weighted
        self._waiting = end

    def check_running(self) -> None:
        """Refuse rows that wait, read from a file, which cannot be this layer's."""
        rows, (groups, width, _) = self._rows, self.P.shape
        fit = rows is None or (rows.dtype == self.P.dtype and (*rows.shape[:2], *rows.shape[3:]) == (2, groups, width))
        if not fit or self._waiting > (0 if rows is None else rows.shape[2]):
            raise ValueError(f"{self._waiting} rows that wait for a projector of {width} inputs are not there")

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._clear()  # it belonged to the state before
