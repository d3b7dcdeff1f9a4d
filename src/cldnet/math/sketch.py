"""What can stand for ``G = HᵀH`` where there is no room for it, and the ridge solution that follows from it.

*Frequent Directions* (Liberty 2013; Ghashami, Liberty, Phillips & Woodruff 2016) keeps a few rows ``B`` that lie along
the directions in which ``H`` is largest. Whatever does not fit is shrunk away, and the total ``Δ`` of what was shrunk
bounds the loss in every direction: ``0 ⪯ G − BᵀB ⪯ ΔI``. It is at most ``‖H − H_k‖² / (rank + 1 − k)`` for every
``k ≤ rank``, where ``H_k`` is the best approximation of rank ``k``, and it stays so when sketches are merged.

The *diagonal* alone goes further: with the class sums it gives ``G`` as it would be if features varied independently
within each class, as in naive Bayes. What differs between classes stays exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cldnet.math.left_out import Choice
from cldnet.math.penalty import START, candidates, least_alpha, search

__all__ = ["diagonal_ridge", "shrink", "sketched_ridge"]

#: Eigenvalues below this share of the largest are rounding.
_ROUNDING = 1e-14


def shrink(rows: Tensor, rank: int) -> tuple[Tensor, float]:
    """Replace rows by at most ``rank`` orthogonal ones, and tell the most that any direction lost.

    All squared singular values lose the first one that does not fit. Since the new rows are mixed from all of the old
    ones, no example can be read off them, unless there was no other.

    Parameters
    ----------
    rows : Tensor, shape (n, m)
        A sketch and new rows below it, or two sketches.
    rank : int
        Rows to be kept.

    Returns
    -------
    sketch : Tensor, shape (rank, m)
        Filled up with zeros if there are fewer directions.
    shrinkage : float
        ``δ``: ``0 ⪯ rowsᵀrows − sketchᵀsketch ⪯ δI``.

    Examples
    --------
    >>> sketch, shrinkage = shrink(torch.diag(torch.tensor([3.0, 2.0, 1.0])), rank=2)
    >>> [round(float(size), 3) for size in sketch.square().sum(1)], round(shrinkage, 3)
    ([8.0, 3.0], 1.0)
    """
    count, width = rows.shape
    # The smaller of the two matrices of products has all the singular values.
    values, vectors = torch.linalg.eigh(rows.mT @ rows if width < count else rows @ rows.mT)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    shrinkage = float(values[rank]) if len(values) > rank else 0.0
    values, vectors = values[:rank], vectors[:, :rank]
    kept = (values - shrinkage).clamp_min(0)
    if width < count:
        directions = vectors.mT * kept.sqrt()[:, None]
    else:
        present = values > _ROUNDING * values[:1]
        scale = torch.where(present, kept / values, 0.0).sqrt()
        directions = (vectors * scale).mT @ rows
    sketch = rows.new_zeros(rank, width)
    sketch[: len(directions)] = directions
    return sketch, shrinkage


def sketched_ridge(
    sketch: Tensor,
    shrinkage: float,
    moments: Tensor,
    class_weights: Tensor,
    rows: float,
    alpha: float | None,
    energy: float,
) -> Choice:
    """Solve ``(BᵀB + (α + Δ/2)I) W = S``, in the middle of what ``G`` can be, for a given α or by cross-validation.

    One eigendecomposition of ``BBᵀ`` serves all α. The residual is that of ``BᵀB + Δ/2 I``, an estimate. Degrees of
    freedom are linear in ``G``, so they come from its trace, which is known: with ``Δ/2`` in all directions there would
    be several times too many in use, and α would come out far too large.

    Parameters
    ----------
    sketch : Tensor, shape (rank, m)
        ``B``.
    shrinkage : float
        ``Δ``, the sum of what `shrink` gave.
    moments, class_weights, rows, alpha
        As for `cldnet.math.ridge.ridge`.
    energy : float
        Trace of ``G``.

    Examples
    --------
    >>> sketch, shrinkage = shrink(torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)), rank=2)
    >>> S = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64)
    >>> choice = sketched_ridge(sketch, shrinkage, S, torch.ones(1), rows=3, alpha=1.5, energy=14.0)
    >>> round(float(choice.solution[0, 0]), 3)  # 1 / (8 + 1.5 + 0.5)
    0.1
    """
    width = sketch.shape[1]
    values, vectors = torch.linalg.eigh(sketch @ sketch.mT)
    values = values.clamp_min(0)
    inside = vectors.mT @ (sketch @ moments)
    coordinates = torch.where(values > _ROUNDING * values[-1:], inside.square().sum(1) / values, 0.0)
    outside = (moments.square().sum() - coordinates.sum()).clamp_min(0)
    lost = max(energy - float(values.sum()), 0.0) / width  # what a direction has lost on average

    def solved(penalty: float) -> Choice:
        shift = penalty + shrinkage / 2
        shifted = values + shift
        agreement = (coordinates / shifted).sum() + outside / shift  # tr WᵀS
        size = (coordinates / shifted.square()).sum() + outside / (shift * shift)  # ‖W‖²
        residual = float(class_weights.sum() - agreement - penalty * size)
        freedom = rows - float(((values + lost) / shifted).sum()) - (width - len(values)) * lost / shift
        solution = (moments - sketch.mT @ (vectors @ (inside / shifted[:, None]))) / shift
        return Choice(penalty, solution, max(residual, 0.0), freedom, known=shrinkage == 0)

    if alpha is not None:
        return solved(max(alpha, least_alpha(moments.new_tensor(energy), width)))
    return search(_candidates(moments.new_tensor(energy / width), rows <= width), solved, moments, class_weights, rows)


def diagonal_ridge(
    diagonal: Tensor, moments: Tensor, class_weights: Tensor, rows: float, alpha: float | None
) -> Choice:
    """Solve as if features varied independently within each class: ``G ≈ D + Σ_c s_c s_cᵀ / n_c``, ``D`` diagonal.

    ``D`` is what the class sums leave of the diagonal of ``G``, so that the diagonal is exact, and so is all that the
    class means span. Matrices are only as large as there are classes.

    Parameters
    ----------
    diagonal : Tensor, shape (m,)
        Diagonal of ``G``.
    moments, class_weights, rows, alpha
        As for `cldnet.math.ridge.ridge`. Residual and degrees of freedom are those of the ``G`` that is assumed.

    Examples
    --------
    >>> S, n = torch.tensor([[2.0], [1.0]], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    >>> choice = diagonal_ridge(torch.tensor([4.0, 1.0], dtype=torch.float64), S, n, rows=2, alpha=1.0)
    >>> assumed = torch.tensor([[4.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    >>> bool(torch.allclose((assumed + torch.eye(2)) @ choice.solution, S))
    True
    """
    width = len(diagonal)
    weighted = class_weights > 0  # a class that was forgotten has no sum either
    sums, counts = moments[:, weighted], class_weights[weighted]
    within = (diagonal - (sums.square() / counts).sum(1)).clamp_min(0)

    def solved(penalty: float) -> Choice:
        # (D + αI + S N⁻¹ Sᵀ)⁻¹ S = (D + αI)⁻¹ S (N + Sᵀ(D + αI)⁻¹S)⁻¹ N
        scaled = sums / (within + penalty)[:, None]
        small = torch.linalg.inv(sums.mT @ scaled + torch.diag(counts))
        solution = torch.zeros_like(moments)
        solution[:, weighted] = scaled @ (small * counts)
        residual = float(counts.sum() - (solution * moments).sum() - penalty * solution.square().sum())
        trace = (1 / (within + penalty)).sum() - (small * (scaled.mT @ scaled)).sum()
        return Choice(penalty, solution, max(residual, 0.0), float(rows - width + penalty * trace), known=False)

    if alpha is not None:
        return solved(max(alpha, least_alpha(diagonal.sum(), width)))
    return search(_candidates(diagonal.mean(), rows <= width), solved, moments, class_weights, rows)


def _candidates(mean_diagonal: Tensor, few_rows: bool) -> Tensor:
    """Return those of `ridge`, of which the smallest are left out while rows do not outnumber features."""
    return candidates(mean_diagonal, least=START if few_rows else 0.0)
