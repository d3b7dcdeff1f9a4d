"""The eigenvectors of a sum of few products ``hhᵀ``, without those of the whole matrix: there are as many as rows.

A pivoted Cholesky factorisation ends where the rank does. With ``r`` rows and ``m`` features that, and what follows, takes
some ``m r²`` steps, where one factorisation of the whole matrix takes ``m³ / 3``.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["FEW", "few_eigenvectors"]

#: Up to this share of the features, rows are few: beyond it factorisations of the whole matrix take no longer.
FEW = 0.25
_STRAY = 1e-9  # the share that rounding may leave outside of what was found


def few_eigenvectors(gram: Tensor, moments: Tensor) -> tuple[Tensor, Tensor] | None:
    """Eigenvalues that are not 0, shape ``(r,)``, and their vectors ``(m, r)``; nothing if there are many after all.

    Parameters
    ----------
    gram : Tensor, shape (m, m)
        ``G = Σ hhᵀ`` in float64. It is not changed.
    moments : Tensor, shape (m, c)
        Sums of the same rows ``h``. Where they do not lie in the span of ``G``, or ``G`` is no sum of products, somebody
        has changed the one without the other, and nothing is given.

    Examples
    --------
    >>> H = torch.tensor([[3.0, 0, 4, 0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    >>> values, vectors = few_eigenvectors(H.T @ H, H.T)
    >>> values.round().tolist(), vectors.shape
    ([1.0, 25.0], torch.Size([8, 2]))
    >>> few_eigenvectors(torch.eye(8, dtype=torch.float64), H.T) is None
    True
    """
    from scipy.linalg.lapack import dpstrf  # noqa: PLC0415  (heavy)

    # Symmetric, so its transpose is itself in LAPACK's layout.
    factor, order, rank, _ = dpstrf(gram.cpu().numpy().T, lower=1)
    if not 0 < rank <= FEW * len(gram):
        return None
    columns = torch.zeros(len(gram), rank, dtype=torch.float64)
    columns[torch.from_numpy(order - 1).long()] = torch.from_numpy(factor[:, :rank]).tril()
    span, inner = torch.linalg.qr(columns)
    values, turns = torch.linalg.eigh(inner @ inner.mT)
    vectors = (span @ turns).to(gram.device)
    values = values.to(gram.device)
    left, stray = gram.diagonal().sum() - values.sum(), moments - vectors @ (vectors.mT @ moments)
    whole = abs(float(left)) <= _STRAY * float(values.sum()) and float(stray.norm()) <= _STRAY * float(moments.norm())
    return (values, vectors) if whole else None
