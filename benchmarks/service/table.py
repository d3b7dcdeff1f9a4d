"""The tables of the docs, from a result file of `benchmarks.serve`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.markdown import about, rows_of


def table(path: Path) -> str:
    """The sections of a file in Markdown, those that are there."""
    found = json.loads(path.read_text("utf-8")) if path.exists() else {}
    tables = {"load": _load_table, "kill": _kill_table, "hostile": _hostile_table, "memory": _memory_table}
    parts = [draw(found[name]) if name in found else f"{name}: not run" for name, draw in tables.items()]
    return "\n\n".join(["# The service under load", *parts]) + "\n"


def _load_table(found: Mapping[str, Any]) -> str:
    model, bare, lessons = found["model"], found["bare"], found["lessons"]
    quicker = max((each for one in (bare["before"], bare["after"]) for each in one["threads"].values()), key=_rate)
    first = ("the bare model, one photo at a time", f"{bare['per_second']:.1f}", "100 %", f"{quicker['cpu_ms']:.0f}")
    rows: list[Sequence[Any]] = [(*first, *"––––")]
    titles = {"one client": "one client", "without lessons": f"{found['clients']} clients"}
    for name, title in {**titles, "with lessons": f"{found['clients']} clients, and one that teaches"}.items():
        each, share = found[name], found[name]["per_second"] / bare["per_second"]
        times = [f"{number:,.0f}" for number in (each["cpu_ms"], *each["ms"].values())]
        rows.append((title, f"{each['per_second']:.1f}", f"{100 * share:.0f} %", *times, len(each["failed"])))
    taught = found["with lessons"]
    text = (
        f"Photos of {found['photo']['pixels'][0]} × {found['photo']['pixels'][1]} pixels "
        f"({found['photo']['bytes'] / 1000:.0f} kB), {model['features']:,} features, {taught['seconds']:.0f} s. "
        "A lesson of one photo was begun every second, or when the one before was acknowledged, after "
        f"{taught['lesson_ms']['p50']:,.0f} ms in the median: {lessons['acknowledged']} "
        f"lessons, of which {lessons['lost']} were lost. The bare model had all threads or one, whichever was quicker. Other "
        f"programs took {_others(bare['before'])} and {_others(bare['after'])} cores beside it, before and after, and "
        f"{taught['others_cores']:.2f} beside the service. {about(found)}"
    )
    columns = ("photos per second", "of the bare model", "processor time (ms)", "p50 (ms)", "p95 (ms)", "p99 (ms)")
    head = ("who predicts", *columns, "failed")
    return f"{rows_of(head, rows)}\n\n{text}"


def _rate(each: Mapping[str, float]) -> float:
    return each["per_second"]


def _others(bare: Mapping[str, Any]) -> str:
    return f"{max(each['others_cores'] for each in bare['threads'].values()):.2f}"


def _kill_table(found: Mapping[str, Any]) -> str:
    lessons, said = found["lessons"], {True: "yes", False: "NO"}
    rows = [
        ("`kill -9` under load", found["kills"]),
        ("lessons acknowledged", f"{lessons['acknowledged']:,}"),
        ("sent again after a kill", lessons["sent_again"]),
        ("of these on disk already", lessons["known_when_sent_again"]),
        ("lost", lessons["lost"]),
        ("learned twice", lessons["twice"]),
        ("classes' counts as acknowledged", said[lessons["counts_equal"]]),
        ("sums equal those of one process, bit for bit", said[lessons["sums_equal"]]),
    ]
    model = f"A model of rows with {found['model']['features']:,} features"
    text = f"{model}, {found['clients']} clients that predict and one that teaches. {about(found)}"
    return f"{rows_of(('killed at random moments', ''), rows)}\n\n{text}"


def _hostile_table(found: Mapping[str, Any]) -> str:
    rows = [
        (name, each["requests"], ", ".join(each["statuses"]), f"{each['slowest_seconds']:.2f}", each["wrong"])
        for name, each in found["kinds"].items()
    ]
    held = {what: f"{size / 1e6:,.0f} MB" for what, size in found["memory"]["photo"].items()}
    files = "unchanged" if found["files_unchanged"] else "CHANGED"
    text = (
        f"{found['requests']:,} requests, {found['together']} at a time: {found['refused']:,} were refused with a 4xx and a "
        f"sentence in under {found['target']['seconds']:g} s. The models' files are {files}. Memory of the server of photos: "
        f"{held['before']} before, {held['peak']} at its peak, {held['after']} after. {about(found)}"
    )
    return f"{rows_of(('kind of request', 'requests', 'status', 'slowest (s)', 'not refused so'), rows)}\n\n{text}"


def _memory_table(found: Mapping[str, Any]) -> str:
    rows = [(f"{e['predictions']:,}", e["lessons"], f"{e['bytes'] / 1e6:,.1f}") for e in found["samples"]]
    warm = found["warm_up"]
    text = (
        f"Resident memory after a warm-up of {warm['predictions']:,} predictions and {warm['lessons']} lessons, "
        f"{found['model']['samples']}s, {found['model']['features']:,} features: "
        f"{100 * found['growth']:+.1f} % from the first to the last, for a target of {100 * found['target']['growth']:.0f} % "
        f"at most. {about(found)}"
    )
    return f"{rows_of(('predictions', 'lessons', 'memory (MB)'), rows)}\n\n{text}"
