"""What the machine can do at most: matrix products of its own library, and bytes to and from memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from benchmarks.speed.record import Finding, Spread, ratio
from benchmarks.speed.turns import Taken, Work, in_turns
from torch.utils.flop_counter import FlopCounterMode

_SIDE = 1536
#: Far more than fits into any cache.
_BYTES = 1 << 28
#: Operations of the products that other work is measured beside.
_BESIDE = 1e10


def _product(_: Any, left: torch.Size, right: torch.Size, **__: Any) -> int:
    return 2 * left.numel() * right[-1]


#: Products that torch's counter leaves out because they are made in place.
_IN_PLACE = {torch.ops.aten.baddbmm_: _product, torch.ops.aten.addmm_: _product}


def sgemm(operations: float, dtype: torch.dtype = torch.float32) -> tuple[Work, float]:
    """Matrix products that do about so many operations, and how many they do."""
    a, b, c = (torch.rand(_SIDE, _SIDE).to(dtype) for _ in range(3))
    products = max(1, round(operations / (2.0 * _SIDE**3)))

    def work() -> None:
        for _ in range(products):
            torch.mm(a, b, out=c)

    return work, products * 2.0 * _SIDE**3


def machine_rates(repeats: int) -> dict[str, Any]:
    """Operations a second of float32 and float64 products, and bytes a second of a copy (read and written)."""
    single, counted = sgemm(2e10)
    double, _ = sgemm(2e10, torch.float64)
    source, target = (torch.zeros(_BYTES // 4) for _ in range(2))
    taken = in_turns({"sgemm": single, "dgemm": double, "memory": lambda: target.copy_(source)}, repeats)
    done = {"sgemm": counted, "dgemm": counted, "memory": 2.0 * _BYTES}
    return {name: _rate(done[name], taken[name]) for name in taken}


def _rate(done: float, taken: Taken) -> dict[str, float]:
    spread = Spread.of([done / seconds for seconds in taken.wall])
    return {"median": spread.median, "low": spread.low, "high": spread.high}


class Counted(NamedTuple):
    """A piece of work whose floating-point operations are known.

    Attributes
    ----------
    title : str
    work : callable
    operations : float
    target : float or None
        The share of the machine's rate that has to come out.
    dtype : torch.dtype
        Of the products beside it: float64 where the work is in float64.
    skipped : float
        Operations that are counted, because the definition has them, although the result is known without.
    """

    title: str
    work: Work
    operations: float
    target: float | None = None
    dtype: torch.dtype = torch.float32
    skipped: float = 0.0


def shares(works: Mapping[str, Counted], threads: int, repeats: int) -> Iterator[Finding]:
    """Share of the rate of the machine's own matrix products that each piece of work reaches, all of them in turns."""
    products = {dtype: sgemm(_BESIDE, dtype) for dtype in {counted.dtype for counted in works.values()}}
    pieces = {name: counted.work for name, counted in works.items()}
    taken = in_turns({**pieces, **{str(dtype): work for dtype, (work, _) in products.items()}}, repeats)
    for name, counted in works.items():
        done = products[counted.dtype][1]
        finding = ratio(
            f"{name}/{threads}",
            counted.title,
            threads,
            taken[str(counted.dtype)],
            taken[name],
            factor=counted.operations / done,
            higher_is_better=True,
            target=counted.target,
            operations=counted.operations,
            beside="dgemm" if counted.dtype == torch.float64 else "sgemm",
        )
        if counted.skipped:
            done_share = finding.ratio.median * (1 - counted.skipped / counted.operations)
            more = {"skipped": counted.skipped, "ratio_without_skipped": done_share}
            finding = replace(finding, details={**finding.details, **more})
        yield finding


def counted_operations(work: Work) -> float:
    """Floating-point operations of the matrix products and convolutions that a piece of work does."""
    with FlopCounterMode(display=False, custom_mapping=_IN_PLACE) as counter:
        work()
    return float(counter.get_total_flops())
