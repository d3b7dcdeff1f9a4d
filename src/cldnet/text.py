"""Names in messages: the nearest known ones to one that is not known, and strange ones in plain letters."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest_names", "shown"]


def nearest_names(name: str, known: Iterable[str]) -> str:
    """Say which known names are nearest to one that is not known.

    Examples
    --------
    >>> nearest_names("cldnt", ["cldnet", "ewc"])
    "Did you mean 'cldnet'?"
    >>> nearest_names("xyz", ["cldnet", "ewc"])
    'Known are cldnet, ewc.'
    """
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if nearest:
        return f"Did you mean {' or '.join(map(repr, nearest))}?"
    return f"Known are {', '.join(known)}."


def shown(name: object) -> str:
    r"""Escape a name of a file or a class for one line of a terminal, as Python's ``repr`` does.

    Names are untrusted: they may contain control sequences, line breaks or bytes that are not UTF-8.

    Examples
    --------
    >>> print(shown("two\nlines"))
    two\nlines
    """
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in str(name))


def _escaped(letter: str) -> str:
    byte = ord(letter) - 0xDC00  # a byte that is not UTF-8, as surrogateescape holds it
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else repr(letter)[1:-1]
