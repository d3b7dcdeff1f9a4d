"""What has become slower since an earlier run: ratios are compared with ratios, whatever the machine was doing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.speed import say
from benchmarks.speed.record import Curve, Finding, NotRun
from benchmarks.speed.result import Result

#: A ratio may get worse by so much, and an exponent grow by so much, before it is named.
ALLOWED, ALLOWED_EXPONENT = 0.2, 0.2


@dataclass(frozen=True)
class Change:
    """A ratio of two runs."""

    old: Finding
    new: Finding

    @property
    def worse(self) -> float:
        """How many times as bad it is now; below 1, it is better."""
        before, now = self.old.ratio.median, self.new.ratio.median
        if self.new.higher_is_better:
            before, now = now, before
        return now / before if before > 0 else (math.inf if now > 0 else 1.0)

    @property
    def apart(self) -> bool:
        """Whether the quartiles of both runs do not touch, so that it is more than their spread."""
        return self.new.ratio.low > self.old.ratio.high or self.new.ratio.high < self.old.ratio.low


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common, and where they differ by more than is allowed.

    Attributes
    ----------
    compared : int
        How many ratios and curves both have.
    slowed, unsure, faster : list of Change
        Worse beyond the spread; worse, but within it; better beyond the spread.
    grown : list of (Curve, Curve)
        Those whose exponent is higher: then and now.
    vanished : list of (str, str)
        What only the earlier run has, and why, where that is known.
    notes : list of str
        In what else the runs differ.
    """

    compared: int
    slowed: list[Change]
    unsure: list[Change]
    faster: list[Change]
    grown: list[tuple[Curve, Curve]]
    vanished: list[tuple[str, str]]
    notes: list[str]

    @property
    def failed(self) -> bool:
        """Whether anything has become slower."""
        return bool(self.slowed or self.grown)


def compare(old: Result, new: Result) -> Comparison:
    """Compare a later run with an earlier one, in the parts that the later one has run."""
    before, now = {one.name: one for one in old.findings}, {one.name: one for one in new.findings}
    changes = [Change(one, now[name]) for name, one in before.items() if name in now]
    worse = [change for change in changes if change.worse > 1 + ALLOWED]
    curves = {one.name: one for one in new.curves}
    pairs = [(one, curves[one.name]) for one in old.curves if one.name in curves]
    return Comparison(
        compared=len(changes) + len(pairs),
        slowed=sorted((one for one in worse if one.apart), key=lambda change: -change.worse),
        unsure=sorted((one for one in worse if not one.apart), key=lambda change: -change.worse),
        faster=[change for change in changes if change.worse < 1 / (1 + ALLOWED) and change.apart],
        grown=[(then, later) for then, later in pairs if later.exponent > then.exponent + ALLOWED_EXPONENT],
        vanished=list(_vanished(old, new)),
        notes=list(_notes(old, new)),
    )


def _vanished(old: Result, new: Result) -> Iterator[tuple[str, str]]:
    reasons = {one.name: one.reason for one in new.not_run}
    here = {one.name for _, one in new.found} - set(reasons)
    for part, one in old.found:
        if not isinstance(one, NotRun) and one.name not in here and part in new.seconds:
            yield one.name, reasons.get(one.name, "the later run does not measure it")


def _notes(old: Result, new: Result) -> Iterator[str]:
    if old.about["machine"] != new.about["machine"]:
        yield (
            f"Another machine: then {old.about['machine']}, now {new.about['machine']}. Ratios can still be compared, "
            "but processors differ in what they do fast."
        )
    if old.about["versions"] != new.about["versions"]:
        differing = ", ".join(
            f"{name} {old.about['versions'].get(name, '–')} → {version}"
            for name, version in new.about["versions"].items()
            if old.about["versions"].get(name) != version
        )
        yield f"Other versions: {differing}."
    if old.about["settings"]["quick"] != new.about["settings"]["quick"]:
        yield "One of both is a quick run, on less work: only a hint."
    left_out = [part for part in old.seconds if part not in new.seconds]
    if left_out:
        yield f"Not run this time, and not compared: {', '.join(left_out)}."


def report(found: Comparison) -> Iterable[str]:
    """Say it in lines."""
    rows = [("worse", change) for change in found.slowed]
    rows += [("unsure", change) for change in found.unsure]
    rows += [("better", change) for change in found.faster]
    if found.slowed or found.grown:
        yield f"Slower by more than {ALLOWED:.0%}: {len(found.slowed)}; steeper growth: {len(found.grown)}."
    else:
        yield f"Nothing is slower by more than {ALLOWED:.0%}: {found.compared} figures compared."
    if rows:
        yield f"{'':<7}{'':<40} {'then':<26} {'now':<26} {'change':>8}"
    for kind, change in rows:
        then, now = say.spread(change.old.ratio), say.spread(change.new.ratio)
        yield f"{kind:<7}{change.new.name:<40} {then:<26} {now:<26} {_change(change):>8}  {change.new.title}"
    for then_curve, now_curve in found.grown:
        yield (
            f"{'worse':<7}{now_curve.name:<40} grows with exponent {say.exponent(now_curve)}; "
            f"it was {then_curve.exponent:.2f}  {now_curve.title}"
        )
    if found.unsure:
        yield "unsure: worse, but the middle halves of both runs overlap, so it may be noise."
    for name, why in found.vanished:
        yield f"{'gone':<7}{name:<40} {why}"
    yield from found.notes


def _change(change: Change) -> str:
    """By how much the ratio itself has changed, with its sign."""
    before = change.old.ratio.median
    return f"{change.new.ratio.median / before - 1:+.0%}".replace("-", "−") if before else "from 0"
