"""A stream that many tests learn."""

from __future__ import annotations

from cldnet.data.stream import Stream
from cldnet.data.streams import stream_by_name

__all__ = ["split_digits"]


def split_digits(seed: int) -> Stream:
    """Scikit-learn's 1,797 digits, five tasks of two classes."""
    return stream_by_name("split-digits", seed)
