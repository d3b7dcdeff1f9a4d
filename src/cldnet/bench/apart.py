"""What tells runs apart that are of one method and bear one name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Result", "identity", "variants"]

Result = Mapping[str, Any]


def identity(result: Result) -> str:
    """Give all that a run is but its seed, as a text; the class order follows from that."""
    stream = result["stream"]
    parts = [stream["name"], stream.get("data"), result["method"], result.get("label", ""), _version(result)]
    outside = result.get("outside") or {}
    parts += [outside.get("name"), outside.get("hash")]
    return json.dumps([*parts, result["backbone"], result["config"]], sort_keys=True, default=str)


def variants(results: Sequence[Result]) -> list[str]:
    """Say of configurations, a result of each, what sets them apart from others of the same name.

    What differs within one stream is told on all streams, so that a configuration has one name wherever it was run. What
    differs from stream to stream only, such as the budget, is not told.

    Examples
    --------
    >>> runs = [("a", 0.1, 5), ("a", 0.2, 5), ("b", 0.1, 9)]
    >>> variants([
    ...     {"stream": {"name": s}, "method": "ewc", "backbone": "mlp", "config": {"method": {"lr": lr}, "epochs": e}}
    ...     for s, lr, e in runs
    ... ])
    ['lr=0.1', 'lr=0.2', 'lr=0.1']
    """
    flat = [_told(result) for result in results]
    alike: dict[str, dict[str, list[int]]] = {}
    for number, result in enumerate(results):
        streams = alike.setdefault(str(result.get("label") or result["method"]), {})
        streams.setdefault(str(result["stream"]["name"]), []).append(number)
    texts = [""] * len(results)
    for streams in alike.values():
        told = dict.fromkeys(
            key for numbers in streams.values() for key in _differing([flat[number] for number in numbers])
        )
        for numbers in streams.values():
            plain = [", ".join(f"{key}={flat[n][key]}" for key in told if key in flat[n]) for n in numbers]
            for number, text in zip(numbers, _numbered(plain), strict=True):
                texts[number] = text
    return texts


def _told(result: Result) -> dict[str, Any]:
    """All that `identity` tells runs apart by, but for stream and label, under short names."""
    told = {"backbone": result["backbone"], **result["config"], "of": result["method"], "version": _version(result)}
    if result.get("outside"):
        told["outside"] = result["outside"]["name"]
    flat = _flat({**told, "data": result["stream"].get("data")})
    return {key.removeprefix("method."): value for key, value in flat.items()}


def _version(result: Result) -> Any:
    return result.get("cell", {}).get("method_version", 1)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {key: v for k, item in value.items() for key, v in _flat(item, f"{name}.{k}" if name else str(k)).items()}


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({repr(table.get(key)) for table in tables}) > 1]


def _numbered(texts: Sequence[str]) -> list[str]:
    """Tell those apart by a number that differ in a way which does not show, such as 1 and "1"."""
    seen: Counter[str] = Counter()
    numbered = []
    for text in texts:
        seen[text] += 1
        numbered.append(text if seen[text] == 1 else f"{text}, no. {seen[text]}".removeprefix(", "))
    return numbered
