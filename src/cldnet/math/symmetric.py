"""The upper triangle of a symmetric matrix in blocks: half the memory, and half the work of adding products to it.

A matrix of ``m`` rows is one vector of float64. Block row ``i`` covers rows ``[i·b, min((i + 1)·b, m))`` with ``b = BLOCK_ROWS``,
and the block rows follow each other. Of each come first the columns on the diagonal, ``[i·b, (i + 1)·b)``, in thin block rows of
``THIN_ROWS`` that begin at the diagonal, then the columns to the right of it. Each piece is a plain matrix, row after row, so
everything is done by ordinary matrix products, and only small squares on the diagonal hold a few entries twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

#: Rows of a block row and of a thin one. Part of the file format: saved sums are laid out by them.
BLOCK_ROWS, THIN_ROWS = 512, 64
#: Rows and columns of a tile: small enough for the cache, and few products below the diagonal are wasted.
_TILE_ROWS, _TILE_COLUMNS = 256, 1024


class Piece(NamedTuple):
    """A part of the upper triangle that is stored as a plain matrix: its rows and columns, and a writable view of it."""

    rows: range
    columns: range
    entries: Tensor


def packed_length(m: int) -> int:
    """Number of stored entries of a symmetric matrix of ``m`` rows."""
    return sum(len(rows) * len(columns) for rows, columns in _layout(m, BLOCK_ROWS, THIN_ROWS))


@lru_cache(maxsize=16)
def _layout(m: int, block: int, thin: int) -> list[tuple[range, range]]:
    """Rows and columns of all pieces, in the order in which they are stored."""
    found = []
    for first in range(0, m, block):
        last = min(first + block, m)
        found += [(range(top, min(top + thin, last)), range(top, last)) for top in range(first, last, thin)]
        if last < m:
            found.append((range(first, last), range(last, m)))
    return found


def pieces(packed: Tensor, m: int) -> Iterator[Piece]:
    """Yield all pieces of a packed matrix of ``m`` rows."""
    if packed.shape != (packed_length(m),):
        raise ValueError(
            f"A packed symmetric matrix of {m} rows is a vector of {packed_length(m)} entries, but the shape is "
            f"{tuple(packed.shape)}. Pass what pack() returned, with the number of rows of that matrix."
        )
    sizes = [(len(rows), len(columns)) for rows, columns in _layout(m, BLOCK_ROWS, THIN_ROWS)]
    parts = packed.split([rows * columns for rows, columns in sizes])
    for (rows, columns), size, part in zip(_layout(m, BLOCK_ROWS, THIN_ROWS), sizes, parts, strict=True):
        yield Piece(rows, columns, part.view(size))


class Tile(NamedTuple):
    """Rows and columns whose products fit a core's cache, and the pieces that these are added to."""

    rows: slice
    columns: slice
    parts: list[Piece]


def tiles(packed: Tensor, m: int) -> list[Tile]:
    """All entries in tiles, which can be added to independently: in any order and in parallel."""
    found: list[Tile] = []
    for rows, columns, entries in pieces(packed, m):
        if columns.start == rows.start:  # thin: those of one tile are multiplied together
            if rows.start % BLOCK_ROWS % _TILE_ROWS == 0:
                found.append(Tile(slice(rows.start, rows.stop), slice(columns.start, columns.stop), []))
            found[-1] = found[-1]._replace(rows=slice(found[-1].rows.start, rows.stop))
            found[-1].parts.append(Piece(rows, columns, entries))
            continue
        for top in range(0, len(rows), _TILE_ROWS):
            for left in range(0, len(columns), _TILE_COLUMNS):
                part = rows[top : top + _TILE_ROWS], columns[left : left + _TILE_COLUMNS]
                view = entries[top : top + _TILE_ROWS, left : left + _TILE_COLUMNS]
                found.append(Tile(*(slice(each.start, each.stop) for each in part), [Piece(*part, view)]))
    return found


def add_to_tile_(tile: Tile, left: Tensor, right: Tensor, sign: float = 1.0) -> None:
    """Add a tile's part of ``sign · leftᵀ right``, which must be symmetric, in place.

    The products are made in the dtype of ``left`` and ``right`` ``(n, m)`` and added in that of the packed matrix. Whole
    numbers of at most 127 give exact products in float32 up to 1,024 samples (1,024 · 127² < 2²⁴).
    """
    products = left[:, tile.rows].mT @ right[:, tile.columns]
    top, across = tile.rows.start, tile.columns.start
    for rows, columns, entries in tile.parts:
        entries.add_(products[rows.start - top : rows.stop - top, columns.start - across :], alpha=sign)


def plus_few(packed: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """``leftᵀ right`` of a few samples, which must be symmetric, plus a packed matrix, which stays as it is."""
    total, m = torch.empty_like(packed), right.shape[1]
    for (rows, columns, entries), (*_, sums) in zip(pieces(packed, m), pieces(total, m), strict=True):
        one, other = left[:, rows.start : rows.stop], right[:, columns.start : columns.stop]
        if len(left) == 1:  # reads and writes every number once, which a matrix product does not
            torch.addr(entries, one[0], other[0], out=sums)
        else:
            torch.addmm(entries, one.mT, other, out=sums)
    return total


def pack(dense: Tensor) -> Tensor:
    """The packed form, in float64, of a symmetric matrix; only what is stored of it is read."""
    packed = torch.empty(packed_length(len(dense)), dtype=torch.float64, device=dense.device)
    for rows, columns, entries in pieces(packed, len(dense)):
        entries.copy_(dense[rows.start : rows.stop, columns.start : columns.stop])
    return packed


def unpack(packed: Tensor, m: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The whole matrix, both triangles filled from the upper one, so that it is symmetric to the last bit."""
    dense = torch.empty(m, m, dtype=dtype, device=packed.device)
    for rows, columns, entries in pieces(packed, m):
        # Weighted products of fractions are symmetric but for rounding: the upper triangle decides.
        dense[rows.start : rows.stop, columns.start : columns.stop] = entries
        if columns.start == rows.start:
            square = entries[:, : len(rows)].triu()
            dense[rows.start : rows.stop, rows.start : rows.stop] = square + square.triu(1).mT
        right = max(columns.start, rows.stop)
        dense[right : columns.stop, rows.start : rows.stop] = entries[:, right - columns.start :].mT
    return dense


def diagonal(packed: Tensor, m: int) -> Tensor:
    """The diagonal, as a new tensor."""
    own = (each.entries.diagonal() for each in pieces(packed, m) if each.columns.start == each.rows.start)
    return torch.cat([packed.new_empty(0), *own])


def in_block_rows(packed: Tensor, m: int) -> Tensor:
    """The layout of earlier versions, whose block rows had no thin ones: digests of sessions are made of it."""
    dense = unpack(packed, m, packed.dtype)
    return torch.cat([dense[first : first + BLOCK_ROWS, first:].flatten() for first in range(0, m, BLOCK_ROWS)])


def repacked(packed: Tensor, m: int) -> Tensor:
    """Convert the layout of earlier versions to today's; a packed matrix of today stays as it is."""
    firsts = range(0, m, BLOCK_ROWS)
    sizes = [min(BLOCK_ROWS, m - first) * (m - first) for first in firsts]
    if packed.shape != (sum(sizes),) or sum(sizes) == packed_length(m):
        return packed
    dense = packed.new_zeros(m, m)
    for first, part in zip(firsts, packed.split(sizes), strict=True):
        dense[first : first + BLOCK_ROWS, first:] = part.view(-1, m - first)
    return pack(dense)
