"""Streams by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cldnet.data.stream import Stream
from cldnet.names import nearest_names

__all__ = ["STREAMS", "NamedStream", "split_digits", "stream_by_name"]


def split_digits(seed: int | None = 0) -> Stream:
    """Split Digits: scikit-learn's 1,797 real 8×8 images of digits, five tasks of two classes.

    A quarter of every class is the test part, the same for every class order.

    Examples
    --------
    >>> stream = split_digits(seed=0)
    >>> len(stream), len(stream.train), len(stream.test), stream.input_shape
    (5, 1347, 450, (8, 8))
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415  (heavy, and only this stream needs it)

    digits = load_digits()
    images = digits.images.astype(np.uint8)  # grey values from 0 to 16
    return Stream.from_arrays(images, digits.target, classes_per_task=2, seed=seed, name="split-digits")


@dataclass(frozen=True)
class NamedStream:
    """How a stream is made, and what it is in one line."""

    make: Callable[[int | None], Stream]
    summary: str


#: The streams of this library.
STREAMS: Mapping[str, NamedStream] = {
    "split-digits": NamedStream(split_digits, "1,797 real 8×8 digits, bundled with scikit-learn, 5 tasks of 2 classes"),
}


def stream_by_name(name: str, seed: int | None = 0) -> Stream:
    """Make a stream by its name, with the class order of a seed.

    Examples
    --------
    >>> stream_by_name("split-digit")
    Traceback (most recent call last):
    ...
    ValueError: There is no stream 'split-digit'. Did you mean 'split-digits'?
    """
    if name not in STREAMS:
        raise ValueError(f"There is no stream {name!r}. {nearest_names(name, STREAMS)}")
    return STREAMS[name].make(seed)
