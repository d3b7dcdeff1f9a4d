"""What to say when a name is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest_names"]


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
