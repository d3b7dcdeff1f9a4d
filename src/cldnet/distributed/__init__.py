"""Learn beyond one machine: shards on Dask, Ray or processes, and training under torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cldnet.distributed.fit import fit_shards as fit_shards
    from cldnet.distributed.shards import find_shards as find_shards

__all__ = ["find_shards", "fit_shards"]


def __getattr__(name: str) -> Any:
    """Import on first use: a process of torchrun needs no shards."""
    if name == "fit_shards":
        from cldnet.distributed.fit import fit_shards  # noqa: PLC0415

        return fit_shards
    if name == "find_shards":
        from cldnet.distributed.shards import find_shards  # noqa: PLC0415

        return find_shards
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
