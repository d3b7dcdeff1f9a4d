"""How figures are written, on the terminal, on the page and in the docs alike."""

from __future__ import annotations

import math

from benchmarks.speed.record import Curve, Finding, Spread

NO_TARGET = "no target"
MARKS = {True: "✓", False: "✗", None: NO_TARGET}
VERDICTS = {True: "✓ met", False: "✗ not met", None: NO_TARGET}


def figure(value: float) -> str:
    """Write a number with three digits that count."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-4:
        return f"{value:.2e}"
    places = 2 - math.floor(math.log10(abs(float(f"{value:.3g}"))))
    return f"{value:,.{max(places, 0)}f}"


def quantity(value: float) -> str:
    """Write a number that may be very large, as operations and bytes are: 25.0 G, 1,234, 0.500."""
    for power, unit in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power and (power > 3 or abs(value) >= 1e5):
            return f"{figure(value / 10**power)} {unit}"
    return f"{value:,.0f}" if float(value).is_integer() else figure(value)


def short(value: float) -> str:
    """Write a round number, as at an axis: 0.001, 500, 10k, 2M."""
    for power, unit in ((9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power and (power > 3 or value >= 1e4):
            return f"{value / 10**power:g}{unit}"
    return f"{value:g}"


def spread(found: Spread) -> str:
    """Write a median with its quartiles, if there is a spread at all: what is done once has none."""
    if found.low == found.high:
        return figure(found.median)
    return f"{figure(found.median)} ({figure(found.low)}–{figure(found.high)})"


def cpu(finding: Finding) -> str:
    """Write the ratio by CPU time; nothing where it is the same as the other one, as of memory, which has no time."""
    return "–" if finding.cpu == finding.ratio else spread(finding.cpu)


def target(finding: Finding) -> str:
    """Write what has to come out, and the limit by arithmetic where there is one."""
    if finding.target is None:
        return NO_TARGET
    limit = finding.details.get("limit") if "seconds" in finding.details else None  # that of memory is in bytes
    known = "" if limit is None else f" (limit {figure(limit)})"
    return f"{'≥' if finding.higher_is_better else '≤'} {finding.target:g}{known}"


def exponent(curve: Curve) -> str:
    """Write how a curve grows, and how it should."""
    # Adding zero turns a rounded "-0.00" into "0.00".
    found = f"{round(curve.exponent, 2) + 0.0:.2f}"
    return found if curve.expected is None else f"{found} (expected {curve.expected:g})"


def thread_count(count: int) -> str:
    """Write so many threads."""
    return f"{count} thread{'' if count == 1 else 's'}"


def rate(name: str, median: float) -> str:
    """Write one of the machine's limits."""
    return f"{median / 1e9:,.1f} {'GB/s' if name == 'memory' else 'GFLOP/s'}"
