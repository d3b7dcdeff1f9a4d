"""Presets on disk: tables of methods are put into a TOML file, and all else that it says stays as it is."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

__all__ = ["HEAD", "as_toml", "with_methods"]

#: The comment at the head of a new file.
HEAD = """\
# Chosen by `cldnet tune` on a validation part of the training data; test data were not looked at. "validation" is the mean
# over seeds that the options reached there, and a method's provenance tells how to repeat the search.

"""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def with_methods(text: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Put tables of methods into the text of a preset file, in the place of those that these methods had.

    Comments stay, but for those inside of what is replaced. Where a method's table cannot be told from the lines around it
    (it was written in another of TOML's ways), the file is written anew from what it says, with the comment at its head.

    Parameters
    ----------
    text : str
        What the file holds.
    tables : mapping
        Settings by method, each with its ``provenance``.

    Examples
    --------
    >>> print(with_methods("[methods.ewc]  # as it is", {"owm": {"options": {"lr": 0.1}}}))
    [methods.ewc]  # as it is
    <BLANKLINE>
    [methods.owm]
    options = { lr = 0.1 }
    <BLANKLINE>
    """
    before = tomllib.loads(text)
    meant = {**before, "methods": {**before.get("methods", {}), **tables}}
    spliced = _spliced(text, tables)
    try:
        if tomllib.loads(spliced) == meant:
            return spliced
    except tomllib.TOMLDecodeError:
        pass
    head = re.match(r"(?:\s*#.*\n|[ \t]*\n)*", text)
    return (head[0] if head else "") + _document(meant)


def _spliced(text: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    fresh = {method: _method(method, table) for method, table in tables.items()}
    spliced = ""
    for part in re.split(r"(?m)^(?=[ \t]*\[)", text):
        method = _method_of(part)
        if method not in tables:
            spliced += part
        elif method in fresh:  # its other parts, such as the old provenance, go
            spliced = _apart(spliced) + fresh.pop(method) + "\n"
    for table in fresh.values():
        spliced = _apart(spliced) + table + "\n"
    return spliced.rstrip("\n") + "\n"


def _apart(text: str) -> str:
    """A text with an empty line behind it, unless it is empty itself."""
    return text.rstrip("\n") + "\n\n" if text.strip() else ""


def _method_of(part: str) -> str | None:
    """The method whose table begins with a part's first line, if one does."""
    try:
        header = tomllib.loads(part.partition("\n")[0])
    except tomllib.TOMLDecodeError:
        return None
    methods = header.get("methods")
    return next(iter(methods), None) if isinstance(methods, dict) else None


def _document(document: Mapping[str, Any]) -> str:
    parts = [_table((name,), table) for name, table in document.items() if name != "methods"]
    parts += [_method(method, table) for method, table in document.get("methods", {}).items()]
    return "\n".join(parts)


def _method(method: str, table: Mapping[str, Any]) -> str:
    text = _table(("methods", method), {key: value for key, value in table.items() if key != "provenance"})
    if "provenance" in table:
        text += "\n" + _table(("methods", method, "provenance"), table["provenance"])
    return text


def _table(path: tuple[str, ...], table: Mapping[str, Any]) -> str:
    lines = [f"[{'.'.join(map(_key, path))}]", *(f"{_key(key)} = {as_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def as_toml(value: Any) -> str:
    """Write a value as TOML has it, on one line.

    Examples
    --------
    >>> as_toml({"alpha": {"kind": "ConstantAlpha", "value": 1e-7}, "widths": [100, 100], "bias": True})
    '{ alpha = { kind = "ConstantAlpha", value = 1e-07 }, widths = [100, 100], bias = true }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_key(str(key))} = {as_toml(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise ValueError(f"TOML has no way to write {value!r}.")


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    whole = text.encode("utf-8", "replace").decode()  # a path may hold half of a letter, which no file can
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")
