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

#: Rows of a block row. Part of the file format: saved sums are laid out by it.
BLOCK_ROWS = 512
#: Rows and columns of a tile: small enough for the cache, and few products below the diagonal are wasted.
_TILE_ROWS, _TILE_COLUMNS = 256, 1024


def packed_length(m: int) -> int:
    """Number of stored entries of a symmetric matrix of ``m`` rows."""
    return sum(min(BLOCK_ROWS, m - first) * (m - first) for first in range(0, m, BLOCK_ROWS))


def block_rows(packed: Tensor, m: int) -> Iterator[tuple[int, Tensor]]:
    """Yield each block row: its first row (and column), and a writable view of ``[first : first + rows, first:]``."""
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
    """A part of the upper triangle that fits a core's cache: its rows and columns, and a writable view of its entries.

    ``mirrored`` is a view of the same entries below the diagonal, if they are stored there too.
    """

    rows: slice
    columns: slice
    entries: Tensor
    mirrored: Tensor | None


def tiles(packed: Tensor, m: int) -> list[Tile]:
    """All entries in tiles, which can be added to independently: in any order and in parallel."""
    found = []
    for first, block in block_rows(packed, m):
        for top in range(0, len(block), _TILE_ROWS):
            rows = slice(top, min(top + _TILE_ROWS, len(block)))
            for left in range(top, m - first, _TILE_COLUMNS):
                columns = slice(left, min(left + _TILE_COLUMNS, m - first))
                # Entries right of the tile's own square, within the block on the diagonal, are stored twice.
                twice = slice(max(rows.stop, left), min(columns.stop, len(block)))
                mirrored = block[twice, rows] if twice.start < twice.stop else None
                in_rows, in_columns = (slice(part.start + first, part.stop + first) for part in (rows, columns))
                found.append(Tile(in_rows, in_columns, block[rows, columns], mirrored))
    return found


def add_to_tile_(tile: Tile, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """Add a tile's part of ``sign · leftᵀ right``, which must be symmetric, in place.

    The products are made in the dtype of ``left`` and ``right`` ``(n, m)`` and added in that of the packed matrix. Whole
    numbers of at most 127 give exact products in float32 up to 1,024 samples (1,024 · 127² < 2²⁴).
    """
    products = left[:, tile.rows].mT @ right[:, tile.columns]
    tile.entries.add_(products, alpha=sign)
    if tile.mirrored is not None:
        skipped = max(tile.rows.stop - tile.columns.start, 0)
        tile.mirrored.add_(products[:, skipped : skipped + len(tile.mirrored)].mT, alpha=sign)


def pack(dense: Tensor) -> Tensor:
    """The packed form, in float64, of a symmetric matrix; only its block rows from the diagonal on are read."""
    m = len(dense)
    packed = torch.empty(packed_length(m), dtype=torch.float64, device=dense.device)
    for first, block in block_rows(packed, m):
        block.copy_(dense[first : first + len(block), first:])
    return packed


def unpack(packed: Tensor, m: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The whole matrix, both triangles filled from the upper one, so that it is symmetric to the last bit."""
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
    """The diagonal, as a new tensor."""
    return torch.cat([packed.new_empty(0), *(block.diagonal() for _, block in block_rows(packed, m))])
