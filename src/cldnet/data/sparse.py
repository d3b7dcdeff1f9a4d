"""Sparse inputs of many columns, such as TF-IDF: projected to fewer columns, without a dense copy.

The projection is *feature hashing*: each column is added to one of ``width`` columns, which is a hash of its number. So nothing
is drawn, fitted or stored, and all models with the same columns have the same projection. Columns are added without random
signs: counts stay counts, which `cldnet.methods.exact` makes use of, and signs gained nothing on CLINC150.

References
----------
K. Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009. https://arxiv.org/abs/0902.2206
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

#: Sparse inputs with more columns than this are projected to so many. Fewer lose accuracy; with some more, calls of single rows
#: would solve anew (`cldnet.methods.exact.MOST_FOLLOWED`).
WIDTH = 4000
#: Numbers of the projected rows that are added up at once, in float64.
_AT_ONCE = 1 << 22
#: Largest number of columns, in an untrusted file.
_MOST_COLUMNS = 1 << 53
#: Steps and multipliers of SplitMix64 (Steele, Lea & Flood 2014).
_GOLDEN, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def is_sparse(X: Any) -> bool:
    """Whether inputs are a scipy matrix or array, or a pandas frame of which all columns are sparse."""
    from scipy.sparse import issparse  # noqa: PLC0415  (heavy)

    return bool(issparse(X)) or (getattr(X, "ndim", 0) == 2 and hasattr(X, "iloc") and hasattr(X, "sparse"))


@dataclass(frozen=True)
class Projection:
    """The projection of rows with ``columns`` columns to ``width`` columns.

    Examples
    --------
    >>> from scipy.sparse import csr_array
    >>> X = csr_array(([1.0, 2.0], ([0, 1], [7, 999_999])), shape=(2, 1_000_000))
    >>> x = Projection(columns=1_000_000, width=8).project(X)
    >>> x.shape, x.abs().sum(1).tolist()
    (torch.Size([2, 8]), [1.0, 2.0])
    """

    columns: int
    width: int = WIDTH

    def __post_init__(self) -> None:
        for name, value, most in (("columns", self.columns, _MOST_COLUMNS), ("width", self.width, self.columns)):
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(
                    f"{name}={value!r:.80} of a projection should be a whole number from 1 to {most!r:.80}."
                )

    @classmethod
    def of(cls, X: Any, width: int = WIDTH) -> Projection | None:
        """The projection for a model that starts with some inputs: None unless they are sparse and have more columns."""
        if not is_sparse(X) or X.ndim != 2 or X.shape[1] <= width:
            return None
        return cls(int(X.shape[1]), width)

    def project(self, X: csr_array | NDArray[Any]) -> Tensor:
        """Project rows, in blocks; the result is float32 and depends neither on blocks nor on how the rows are stored."""
        projected = torch.empty(X.shape[0], self.width, dtype=torch.float32)
        size = max(1, _AT_ONCE // max(self.width, 1 if hasattr(X, "indptr") else self.columns))
        for first in range(0, len(projected), size):
            block = self._added(X[first : first + size])
            if np.abs(block).max(initial=0.0) > np.finfo(np.float32).max:
                raise ValueError("Input X contains infinity or a value too large for float32. Rescale X.")
            projected[first : first + size] = torch.from_numpy(block)
        return projected

    def _added(self, rows: csr_array | NDArray[Any]) -> NDArray[np.float64]:
        """Add up the columns of a few rows."""
        from scipy.sparse import csr_array  # noqa: PLC0415

        block = csr_array(rows, copy=True)
        block.sum_duplicates()  # this sorts, too: rounding depends on the order
        targets = (_hashes(block.indices) % np.uint64(self.width)).astype(block.indices.dtype)
        rehashed = csr_array((block.data.astype(np.float64), targets, block.indptr), shape=(block.shape[0], self.width))
        added: NDArray[np.float64] = rehashed.toarray()
        return added

    def to_json(self) -> dict[str, int]:
        """Describe the projection in types that JSON has."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Any) -> Projection:
        """Rebuild from `to_json`, validating it as untrusted input."""
        if not isinstance(state, Mapping) or {*state} != {"columns", "width"}:
            raise ValueError("a projection should have columns and width, and nothing else")
        return cls(state["columns"], state["width"])


def _hashes(numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Mix the bits of whole numbers: one step of SplitMix64 each, the same on every machine."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
