"""JSON that may come from a stranger: read in a time that its length bounds, with nothing in it that would surprise."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any

__all__ = ["plain_json"]

#: Lists and objects that a text may have at any rate, and characters of it for each beyond. One with a name has more than that.
_FEW_LISTS = 10_000
_LEAST_TEXT = 8
_MOST_NESTED = 32
#: What stands in quotes, to the end where they are not closed; possessive, so that no text is looked at twice.
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def plain_json(text: str) -> Any:
    """Read JSON, refusing lists within lists, numbers that are none, and those beyond 64 bits.

    Examples
    --------
    >>> plain_json('{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> plain_json('{"a": NaN}')
    Traceback (most recent call last):
    ...
    ValueError: nan is no number
    """
    _check_lists(text)
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("lists within lists") from error
    _check_values(value)
    return value


def _check_lists(text: str) -> None:
    """Refuse a text of little else than lists: a million of them take seconds, and no manifest is like that."""
    most = _FEW_LISTS + len(text) // _LEAST_TEXT
    if _count_lists(text) > most and _count_lists(_QUOTED.sub("", text)) > most:  # labels may have brackets
        raise ValueError("it is made of lists within lists")


def _count_lists(text: str) -> int:
    return text.count("[") + text.count("{")


def _check_values(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > _MOST_NESTED:
            raise ValueError("lists within lists")
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict | list):
                deeper.extend(each.values() if isinstance(each, dict) else each)
            elif isinstance(each, float) and not isfinite(each):
                raise ValueError(f"{each} is no number")
            elif isinstance(each, int) and not -(2**63) <= each < 2**63:
                raise ValueError("a number is beyond 64 bits")
        level, depth = deeper, depth + 1
