"""The upper triangle of a symmetric matrix in block rows: half the memory, and half the work of adding products to it.

A matrix of ``m`` rows is one vector of float64. Block row ``i`` holds rows ``[i·b, min((i + 1)·b, m))`` and columns
``[i·b, m)``, row after row, with ``b = BLOCK_ROWS``; the block rows follow each other. Each is thus a plain matrix, so
everything is done by ordinary matrix products, and only the blocks on the diagonal hold a few entries twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "BLOCK_ROWS",
    "Tile",
    "add_products_",
    "add_to_tile_",
    "block_rows",
    "diagonal",
    "pack",
    "packed_length",
    "tiles",
    "unpack",
]

BLOCK_ROWS = 512
"""Rows of a block row. Saved sums are laid out by it: to change it is to change the format of a saved model."""
#: Rows and columns of a tile: its products are added before they leave the cache, and few lie below the diagonal for nothing.
_TILE_ROWS, _TILE_COLUMNS = 256, 1024


def packed_length(m: int) -> int:
    """Number of entries that are kept of a symmetric matrix of ``m`` rows.

    Examples
    --------
    >>> packed_length(3), packed_length(512), packed_length(513)
    (9, 262144, 262657)
    """
    return sum(min(BLOCK_ROWS, m - first) * (m - first) for first in range(0, m, BLOCK_ROWS))


def block_rows(packed: Tensor, m: int) -> Iterator[tuple[int, Tensor]]:
    """Every block row: its first row, and a view of it that can be written.

    Parameters
    ----------
    packed : Tensor, shape (packed_length(m),)
        The packed matrix.
    m : int
        Rows of the whole matrix.

    Yields
    ------
    first : int
        The first row, and also the first column, of the block row.
    block : Tensor, shape (rows, m - first)
        The entries ``[first : first + rows, first:]`` of the matrix.

    Examples
    --------
    >>> [(first, block.tolist()) for first, block in block_rows(torch.arange(4.0), 2)]
    [(0, [[0.0, 1.0], [2.0, 3.0]])]
    """
    if packed.shape != (packed_length(m),):
        raise ValueError(
            f"A packed symmetric matrix of {m} rows is a vector of {packed_length(m)} entries, but the shape is "
            f"{tuple(packed.shape)}. Pass what pack() returned, with the number of rows of that matrix."
        )
    start = 0
    for first in range(0, m, BLOCK_ROWS):
        rows, columns = min(BLOCK_ROWS, m - first), m - first
        yield first, packed[start : start + rows * columns].view(rows, columns)
        start += rows * columns


class Tile(NamedTuple):
    """A part of the upper triangle that is small enough for a core's cache.

    Attributes
    ----------
    rows, columns : slice
        Which rows and columns of the matrix it has.
    entries : Tensor
        A view of its entries that can be written.
    mirrored : Tensor or None
        A view of the same entries below the diagonal, if they are held there too.
    """

    rows: slice
    columns: slice
    entries: Tensor
    mirrored: Tensor | None


def tiles(packed: Tensor, m: int) -> list[Tile]:
    """All entries in tiles; each can be added to by itself, in any order and at the same time as others.

    Examples
    --------
    >>> [(tile.rows, tile.columns) for tile in tiles(torch.zeros(packed_length(300)), 300)]
    [(slice(0, 256, None), slice(0, 300, None)), (slice(256, 300, None), slice(256, 300, None))]
    """
    found = []
    for first, block in block_rows(packed, m):
        for top in range(0, len(block), _TILE_ROWS):
            rows = slice(top, min(top + _TILE_ROWS, len(block)))
            for left in range(top, m - first, _TILE_COLUMNS):
                columns = slice(left, min(left + _TILE_COLUMNS, m - first))
                # What lies right of the tile's own square, within the block on the diagonal, is held twice.
                twice = slice(max(rows.stop, left), min(columns.stop, len(block)))
                mirrored = block[twice, rows] if twice.start < twice.stop else None
                found.append(Tile(_moved(rows, first), _moved(columns, first), block[rows, columns], mirrored))
    return found


def _moved(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def add_products_(packed: Tensor, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """Add ``sign · leftᵀ right``, which must be symmetric, in place.

    The products are made in the dtype of ``left`` and ``right`` and added in that of ``packed``. Whole numbers of at
    most 127 give exact products in float32 while there are no more than 1,024 rows (1,024 · 127² < 2²⁴).

    Parameters
    ----------
    packed : Tensor, shape (packed_length(m),)
        The packed matrix that is added to.
    left, right : Tensor, shape (n, m)
        Rows whose products are added: the same rows twice, or one of the two with a weight for each row.
    sign : float
        Factor of the products; -1 takes back what was added.

    Examples
    --------
    >>> packed = torch.zeros(packed_length(2), dtype=torch.float64)
    >>> h = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    >>> add_products_(packed, h, h)
    >>> unpack(packed, 2).tolist()
    [[10.0, 2.0], [2.0, 4.0]]
    """
    for tile in tiles(packed, right.shape[1]):
        add_to_tile_(tile, left, right, sign)


def add_to_tile_(tile: Tile, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """Do `add_products_`'s work for one tile.

    Examples
    --------
    >>> packed = torch.zeros(packed_length(2), dtype=torch.float64)
    >>> (tile,) = tiles(packed, 2)
    >>> add_to_tile_(tile, torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]]))
    >>> packed.tolist()
    [1.0, 2.0, 2.0, 4.0]
    """
    products = left[:, tile.rows].mT @ right[:, tile.columns]
    tile.entries.add_(products, alpha=sign)
    if tile.mirrored is not None:
        beside = max(tile.rows.stop - tile.columns.start, 0)
        tile.mirrored.add_(products[:, beside : beside + len(tile.mirrored)].mT, alpha=sign)


def pack(dense: Tensor) -> Tensor:
    """The packed form, in float64, of a symmetric matrix; only its block rows from the diagonal on are read.

    Examples
    --------
    >>> unpack(pack(torch.eye(2)), 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    m = len(dense)
    packed = torch.empty(packed_length(m), dtype=torch.float64, device=dense.device)
    for first, block in block_rows(packed, m):
        block.copy_(dense[first : first + len(block), first:])
    return packed


def unpack(packed: Tensor, m: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The whole matrix, both triangles filled from the upper one, so that it is symmetric to the last bit.

    Examples
    --------
    >>> unpack(torch.tensor([1.0, 2.0, 0.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    dense = torch.empty(m, m, dtype=dtype, device=packed.device)
    for first, block in block_rows(packed, m):
        last = first + len(block)
        dense[first:last, first:] = block
        dense[last:, first:last] = block[:, len(block) :].mT
        # Weighted products of fractions are symmetric but for rounding: the upper triangle decides.
        corner = block[:, : len(block)]
        dense[first:last, first:last] = corner.triu() + corner.triu(1).mT
    return dense


def diagonal(packed: Tensor, m: int) -> Tensor:
    """The diagonal, as a new tensor.

    Examples
    --------
    >>> diagonal(pack(torch.diag(torch.tensor([4.0, 5.0]))), 2).tolist()
    [4.0, 5.0]
    """
    return torch.cat([packed.new_empty(0), *(block.diagonal() for _, block in block_rows(packed, m))])
