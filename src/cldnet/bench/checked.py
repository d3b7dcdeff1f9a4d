"""A result file may come from a stranger: what every reader relies on is there, of its type, and within its bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cldnet.bench.wording import clip

__all__ = ["is_number", "score_out_of_bounds", "wrong_parts"]

#: What every reader of a result relies on, and of which type it is.
_PARTS: Mapping[str, type] = {
    "method": str,
    "backbone": str,
    "seed": int,
    "stream": dict,
    "config": dict,
    "scores": dict,
    "bytes": dict,
    "seconds": dict,
    "rehearsal_free": bool,
    "constant_size": bool,
}
_WITHIN: Mapping[str, Mapping[str, type]] = {
    "stream": {"name": str, "hash": str, "class_order": list},
    "seconds": {"total": object},
    "scores": dict.fromkeys(
        ("average_accuracy", "average_incremental_accuracy", "forgetting", "task_il_accuracy"), object
    ),
}
#: What older results lack, and what is a text where it is there.
_TEXTS = (("label",), ("code",), ("stream", "data"), ("cell", "stream"), ("cell", "label"))
_LOWEST = {"forgetting": -1}
#: Larger numbers are nobody's, and sums and squares of them need not be numbers any more.
_LIMIT = 1e100
_DEPTH = 30


def is_number(value: Any) -> bool:
    """Tell whether a value is a number to reckon with: finite, and not beyond all measure.

    Examples
    --------
    >>> is_number(3), is_number(True), is_number("3"), is_number(float("nan")), is_number(10**400)
    (True, False, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LIMIT


def wrong_parts(result: Mapping[str, Any]) -> list[str]:
    """Name the parts of a result that are missing or of the wrong type.

    Examples
    --------
    >>> wrong_parts({"method": "ewc", "stream": {}})[-3:]
    ['stream.name', 'stream.hash', 'stream.class_order']
    """
    return list(_wrong(result))


def _wrong(result: Mapping[str, Any]) -> Iterator[str]:
    yield from (name for name, kind in _PARTS.items() if type(result.get(name)) is not kind)
    if _is_deep(result.get("config")):
        yield "config"
    for name, within in _WITHIN.items():
        table = result.get(name)
        if isinstance(table, dict):
            yield from (
                f"{name}.{key}" for key, kind in within.items() if key not in table or not isinstance(table[key], kind)
            )
    outside = result.get("outside")
    if outside is not None and not (
        isinstance(outside, dict) and all(isinstance(outside.get(key), str) for key in ("name", "hash"))
    ):
        yield "outside"
    if not isinstance(result.get("cell", {}), dict):
        yield "cell"
        return
    for path in _TEXTS:
        value: Any = result
        for key in path:
            value = value.get(key, "" if key == path[-1] else {})
        if not isinstance(value, str):
            yield ".".join(path)


def _is_deep(value: Any) -> bool:
    """Tell whether tables lie within tables more often than a reader that goes through all of them can bear."""
    within = [value]
    for _ in range(_DEPTH):
        tables = [item.values() if isinstance(item, dict) else item for item in within if isinstance(item, dict | list)]
        within = [item for table in tables for item in table]
    return bool(within)


def score_out_of_bounds(scores: Mapping[str, Any]) -> str:
    """Say which score cannot be; nothing if all can. A score is a share, or null where there is none.

    Examples
    --------
    >>> score_out_of_bounds(dict.fromkeys(_WITHIN["scores"], 0.5) | {"forgetting": -2})
    'scores.forgetting = -2; expected a number from -1 to 1, or null'
    """
    for key in _WITHIN["scores"]:
        value, lowest = scores[key], _LOWEST.get(key, 0)
        if value is not None and not (is_number(value) and lowest <= value <= 1):
            return f"scores.{key} = {clip(repr(value))}; expected a number from {lowest} to 1, or null"
    return ""
