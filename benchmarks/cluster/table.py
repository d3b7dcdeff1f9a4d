"""The tables of docs/distributed.md and docs/scale.md, from a result file of `benchmarks.distributed`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import about, rows_of

#: The projection of docs/scale.md: rows, cores, and bytes a second between two machines (10 Gbit/s).
ROWS, CORES, BETA = 10**9, (64, 1024), 1.25e9


def table(path: Path, part: str = "") -> str:
    """The sections of a file in Markdown; one of them, or those of docs/distributed.md."""
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    names = [part] if part else [name for name in TABLES if name not in ("scale", "projection")]
    sections = {name: "scale" if name == "projection" else name for name in names}
    parts = [TABLES[name](found[key]) if key in found else f"{name}: not run" for name, key in sections.items()]
    return "\n\n".join(["# Beyond one machine", *parts]) + "\n"


def _yes(values: Sequence[bool]) -> str:
    return f"{sum(values)} of {len(values)}"


def _equal(found: Mapping[str, Any]) -> str:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in found["runs"]:
        groups.setdefault((run["engine"], run["source"]), []).append(run)
    rows = [
        (engine, source, *(_yes([run[what] for run in runs]) for what in ("sums", "predictions", "scores")))
        for (engine, source), runs in groups.items()
    ]
    head = ("engine", "source", "sums equal to the bit", "predictions equal", "probabilities equal")
    text = (
        f"{found['samples']:,} digits, {found['features']} features, 1, 2 and 4 shards on two workers, beside one process "
        "that learned them batch by batch. “Any order”: four shards whose sums are added up in random orders. "
        + about(found)
    )
    return f"{rows_of(head, rows)}\n\n{text}"


def _kill(found: Mapping[str, Any]) -> str:
    driver, twice = found["driver"], found["twice"]
    rows = [
        (
            f"a worker of {engine}, in the middle of a shard",
            "yes" if each["killed"] else "no",
            "yes" if each["sums"] else "no",
        )
        for engine, each in found["workers"].items()
    ]
    rows.append(
        (
            f"the driver, after {driver['finished']} of {driver['shards']} shards",
            "yes",
            "yes" if driver["sums"] else "no",
        )
    )
    refused = "refused, and the model is unchanged" if twice["refused"] and twice["unchanged"] else "not refused"
    text = (
        f"{found['rows']:,} rows, {found['features']:,} features, 8 shards. The driver was started again with the same folder "
        f"of sums{' and did not sum the finished shards again' if driver['kept'] else ''}. "
        f"The same shards once more: {refused}. "
    )
    return f"{rows_of(('what was killed', 'killed', 'sums equal to the bit'), rows)}\n\n{text}{about(found)}"


def _speed(found: Mapping[str, Any]) -> str:
    from statistics import median

    rows = []
    for name, runs in found["seconds"].items():
        wall, cpu = (median(each[clock] for each in runs) for clock in ("wall", "cpu"))
        ratio = f"{found['ratios'][name]:.2f}" if name in found["ratios"] else "1"
        rows.append((name if name == "one process" else f"{name}, two workers", f"{wall:.1f}", f"{cpu:.1f}", ratio))
    text = (
        f"{found['rows']:,} rows of {found['columns']} uint8 columns, {found['features']:,} features, "
        f"{found['shards']} shards, one thread each, medians of {len(found['seconds']['one process'])} runs in turn; "
        "starting the engine is left out. "
        f"Target: {found['target']['ratio']} times as fast for Dask and Ray. "
    )
    head = ("", "seconds", "CPU seconds of the tasks", "times as fast")
    return f"{rows_of(head, rows)}\n\n{text}{about(found)}"


def _stream(found: Mapping[str, Any]) -> str:
    shown = [each for each in found["memory"] if each["rows"] % 2_000_000 < found["chunk"] or each["chunks"] == 10]
    rows = [*{f"{each['rows']:,}": f"{each['bytes'] / 1e6:,.0f}" for each in shown}.items()]
    rates = {int(size): sorted(each)[len(each) // 2] for size, each in found["chunks"]["rates"].items()}
    each = "; ".join(f"chunks of {size:,}: {rate:,.0f}" for size, rate in sorted(rates.items()))
    text = (
        f"{found['learned']:,.0f} rows of {found['columns']} columns from Parquet, {found['features']} features, one thread, "
        f"chunks of {found['chunk']:,} rows: {found['rows_per_cpu_second']:,.0f} rows per CPU second, reading included "
        f"(target {found['target']['rows_per_cpu_second']:,}). Memory from the tenth chunk to the end: "
        f"{100 * found['growth']:+.1f} % (target: 10 % at most). Rows per CPU second over {found['chunks']['rows']:,} rows, "
        f"medians: {each}, a ratio of {found['ratio']:.2f} (target {found['target']['ratio']}). "
    )
    return f"{rows_of(('rows', 'memory (MB)'), rows)}\n\n{text}{about(found)}"


def _ranks(found: Mapping[str, Any]) -> str:
    rows = [
        (name, "yes" if each["ranks_bit_equal"] else "no", f"{each['max_difference']:.0e}")
        for name, each in found["weights"].items()
    ]
    killed, resumed = found["killed_rank"], found["resumed_during_a_task"]
    text = (
        f"Digits in float64, one epoch per task, batches of 33, {found['ranks']} ranks on one machine. Resumed from a "
        f"checkpoint in the middle of a task, ranks had the same bits as without a break in {_yes([*resumed.values()])} cases. "
        f"A killed rank ended the run with exit code {killed['exit_code']} and “{' '.join(killed['sentences'])}”; "
        "resumed, the run gave "
        f"{'the same' if killed['resumed_to_the_same_bits'] else 'not the same'} accuracies and losses as one that nobody "
        "interrupted. "
    )
    return f"{rows_of(('case', 'ranks equal to the bit', 'largest difference to one process'), rows)}\n\n{text}{about(found)}"


def _scale(found: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{each['features']:,}",
            f"{each['rows_per_cpu_second']:,.0f}",
            f"{each['bytes'] / 1e6:,.1f}",
            f"{each['seconds']['pickle']:.3f}",
            f"{each['seconds']['add']:.3f}",
            f"{each['seconds']['solve']:.1f}" if "solve" in each["seconds"] else "not run",
        )
        for each in found["measured"]
    ]
    head = ("features", "r: rows per CPU second", "B: sums (MB)", "pickling (s)", "t_add (s)", "T_solve (s)")
    text = f"{found['columns']} columns, {found['classes']} classes; r and t_add on one thread, T_solve on two. "
    return f"{rows_of(head, rows)}\n\n{text}{about(found)}"


def _projection(found: Mapping[str, Any]) -> str:
    rows = []
    for each in (each for each in found["measured"] if "solve" in each["seconds"]):
        for cores in CORES:
            summing, levels = ROWS / (cores * each["rows_per_cpu_second"]), math.ceil(math.log2(cores))
            adding = levels * (each["bytes"] / BETA + each["seconds"]["add"])
            total = summing + adding + each["seconds"]["solve"]
            parts = [_duration(seconds) for seconds in (summing, adding, each["seconds"]["solve"], total)]
            rows.append((f"{each['features']:,}", f"{cores:,}", *parts))
    return rows_of(("features", "cores", "summing", "adding up", "solving", "in all"), rows)


def _duration(seconds: float) -> str:
    """Seconds in words, with two digits."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "equal": _equal,
    "kill": _kill,
    "speed": _speed,
    "stream": _stream,
    "ranks": _ranks,
    "scale": _scale,
    "projection": _projection,
}
