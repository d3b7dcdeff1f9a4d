"""From the answers of two workers to a finding: a ratio of images a second, with the accuracies of both beside it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.speed.peers.contests import Match
from benchmarks.speed.peers.protocol import Answer
from benchmarks.speed.record import Finding, Spread
from scipy.stats import t


def finding(
    match: Match, threads: int, ours: Sequence[Answer], theirs: Sequence[Answer], known: Mapping[str, Any]
) -> Finding:
    """Images a second that went through our net while it was trained, over theirs, turn by turn."""
    pairs = list(zip(ours, theirs, strict=True))
    wall = [(a.images / a.wall) / (b.images / b.wall) for a, b in pairs]
    cpu = [(a.images / a.cpu) / (b.images / b.cpu) for a, b in pairs]
    details = {
        **known,
        "accuracy": compared([a.accuracy for a in ours], [b.accuracy for b in theirs]),
        # Replay passes stored images through the net too, and not everybody as many: the whole stream's time beside it.
        "stream_ratio": statistics.median(b.wall / a.wall for a, b in pairs),
        "ours": _side(ours),
        "theirs": _side(theirs),
    }
    name = f"peer/{match.name}/{threads}"
    return Finding(name, match.title, threads, Spread.of(wall), Spread.of(cpu), True, match.target, details)


def compared(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Accuracies of both sides, and whether ours is the same within noise or better.

    Both sides had the same order of classes in a turn, so the noise is that of the turns' differences: half of the interval
    that holds their mean in 95 of 100 cases.
    """
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    count = len(apart)
    noise = float(t.ppf(0.975, count - 1)) * statistics.stdev(apart) / math.sqrt(count) if count > 1 else math.inf
    return {
        "ours": _mean(ours),
        "theirs": _mean(theirs),
        "difference": statistics.fmean(apart),
        "noise": noise,
        "same_or_better": statistics.fmean(apart) >= -noise,
    }


def _mean(values: Sequence[float]) -> dict[str, Any]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "std": deviation, "values": list(values)}


def _side(answers: Sequence[Answer]) -> dict[str, Any]:
    """What one side took: lists by turn, and single figures where turns are alike."""
    median = statistics.median
    return {
        "wall": [each.wall for each in answers],
        "cpu": [each.cpu for each in answers],
        "images": [each.images for each in answers],
        "stream": answers[0].stream,
        "images_per_second": median(each.images / each.wall for each in answers),
        "images_per_cpu_second": median(each.images / each.cpu for each in answers),
        "prepare": median(each.prepare for each in answers),
        "evaluate": median(each.evaluate for each in answers),
        "state_bytes": answers[0].state_bytes,
        # The least of the turns: what a process has kept from its turns before is not this piece's.
        "peak_rss": min(each.peak_rss for each in answers),
    }
