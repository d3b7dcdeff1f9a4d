"""What the page's script needs: keys to sort and filter by, and of each run what it takes to repeat and to check it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cldnet.bench.report.reading import LARGEST, legible, number
from cldnet.bench.report.svg import clean
from cldnet.bench.report.tables import Column, Row, T, sort_keys
from cldnet.bench.summary import Result, Summary
from cldnet.bench.wording import human_bytes

__all__ = ["page_data"]

NOT_RUN, KEEPS_DATA, GROWS = 4, 2, 1


def page_data(
    summaries: Sequence[Summary],
    rows: Sequence[Row],
    columns: Sequence[Column[Summary]],
    run_columns: Sequence[Column[Row]],
) -> str:
    """Return the script's data as JSON that may stand inside of a ``<script>`` element."""
    texts: dict[str, int] = {}  # most runs have most of their texts in common
    details = [_detail(row, texts) for row in rows]
    numbers: dict[int, list[int]] = {id(summary): [] for summary in summaries}
    for number_, row in enumerate(rows):
        numbers[id(row.summary)].append(number_)
    data = {
        "results": _table(columns, summaries, summaries) | {"runs": list(numbers.values())},
        "runs": _table(run_columns, rows, [row.summary for row in rows])
        | {"details": details, "seeds": [row.seed for row in rows]},
        "texts": list(texts),
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _table(columns: Sequence[Column[T]], rows: Sequence[T], summaries: Sequence[Summary]) -> dict[str, Any]:
    return {
        "streams": [clean(s.stream) for s in summaries],
        "methods": [clean(s.name) for s in summaries],
        "flags": [KEEPS_DATA * s.rests_on_data + GROWS * s.grows + NOT_RUN * (not s.runs) for s in summaries],
        "keys": sort_keys(columns, rows),
    }


def _detail(row: Row, texts: dict[str, int]) -> dict[str, Any]:
    if row.result is None:
        unrun = "The plan asks for this run; it has no result yet."
        facts = {"Failed": row.failure} if row.failure else {"Not run": unrun}
    else:
        with legible(row.result, "details"):
            facts = _facts(row.result)
    pairs = [texts.setdefault(clean(word), len(texts)) for fact in facts.items() for word in fact]
    return {"facts": pairs, "losses": [] if row.result is None else _losses(row.result)}


def _facts(result: Result) -> dict[str, str]:
    stream = result["stream"]
    growth = result.get("growth") or {}
    facts: dict[str, Any] = {
        "Result file": result["file"],
        "Run it again": f"cldnet run --again {shlex.quote(str(result['file']))}" if "cell" in result else None,
        "Stream": f"{stream['name']}, hash {stream['hash']}",
        "Class order": stream["class_order"],
        "Tasks": stream["tasks"],
        "Images of each task (training, test)": stream.get("rows"),
        "Data from outside": _outside(result),
        "Backbone": result["backbone"],
        "Configuration": result["config"],
        "Bytes by kind": _listed(result["bytes"], human_bytes),
        "Bytes after each task": result.get("bytes_after_task"),
        "Growth in bytes, as declared": growth.get("declared"),
        "Growth in bytes, as measured": growth.get("measured"),
        "Epochs with a loss that is no number": _lost(result) or None,
        "Parameters": f"{number(result['parameters'], 0, LARGEST):,.0f}"
        if result.get("parameters") is not None
        else None,
        "Capacity (as the paper counts it)": result.get("capacity_paper"),
        "Threads": result.get("threads"),
        "Versions": _listed(result["versions"], str),
        "Machine": result.get("machine"),
        "Code of the method": result.get("code"),
    }
    return {
        name: value if isinstance(value, str) else _json(value) for name, value in facts.items() if value is not None
    }


def _outside(result: Result) -> str | None:
    outside = result.get("outside")
    return None if outside is None else f"{outside['name']}, hash {outside['hash']}, {outside.get('rows')} inputs"


def _lost(result: Result) -> int:
    """Count epochs whose loss was not finite, which JSON cannot say."""
    return sum(loss is None for task in result.get("losses") or () for loss in task)


def _listed(items: Mapping[str, Any], say: Any) -> str:
    return ", ".join(f"{name} {say(value)}" for name, value in items.items())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _losses(result: Result) -> list[list[float]]:
    with legible(result, "losses"):
        told = [[loss for loss in task if loss is not None] for task in result.get("losses") or ()]
        return [[float(f"{number(loss):.3g}") for loss in task] for task in told]
