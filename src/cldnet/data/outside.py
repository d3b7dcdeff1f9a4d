"""Unlabelled inputs from outside a stream, for methods that learn from such: a named data set's training inputs, or noise."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cldnet.data.dataset import Dataset, Part
from cldnet.data.spec import StreamSpec
from cldnet.data.stream import Stream
from cldnet.data.streams import SOURCES, STREAMS, stream_by_name
from cldnet.device import generator
from cldnet.names import nearest_names

__all__ = ["NOISE", "Outside", "check_outside", "hash_outside", "read_outside", "shown_outside"]

#: The name of inputs that are made up instead of read: nothing has to be downloaded for them.
NOISE = "noise"
_NOISE_ROWS = 2000

#: Streams by the names of their data: ``fashion-mnist`` and ``fmnist`` as ``split-fmnist``.
_BY_DATA = {
    name: stream
    for stream, named in STREAMS.items()
    if stream.startswith("split-")
    for name in (named.data, stream.removeprefix("split-"))
}


@dataclass(frozen=True, eq=False)
class Outside:
    """Inputs without labels, and what to write down of them.

    Attributes
    ----------
    name : str
        As the user gave it, without the path to the data.
    hash : str
        Of the stream that the inputs were read as; of noise, which follows from the stream that it is for, its name.
    data : str
        Digest of the inputs' data set; of noise, of the inputs themselves.
    x : Tensor
    """

    name: str
    hash: str
    data: str
    x: Tensor

    def to_json(self) -> dict[str, str | int]:
        """Say which inputs these are."""
        return {"name": self.name, "hash": self.hash, "data": self.data, "rows": len(self.x)}


def check_outside(text: str) -> None:
    """Refuse a name that neither a data set nor a stream has.

    Examples
    --------
    >>> check_outside("fmnist")
    >>> check_outside("fminst")
    Traceback (most recent call last):
    ...
    ValueError: There are no outside data 'fminst'. Did you mean 'fmnist'...
    """
    _stream_text(text)


def shown_outside(text: str) -> str:
    """Give the text without the path to the data, which is nobody else's business.

    Examples
    --------
    >>> shown_outside("folder:/home/me/photos,size=32"), shown_outside("fmnist")
    ('folder:photos,size=32', 'fmnist')
    """
    return StreamSpec.parse(text, SOURCES).shown if text else ""


def read_outside(text: str, stream: Stream, data: Path | None = None) -> Outside:
    """Read inputs from outside a stream: the training inputs of a data set, never its test inputs nor its labels.

    Parameters
    ----------
    text : str
        A data set's name, as ``"fmnist"``, a stream's text, as ``"split-fmnist,train=0.5"`` or ``"folder:PATH"``, or
        ``"noise"``: 2,000 inputs, every number of them drawn uniformly between the least and the largest one of the first
        task's training inputs. Noise is far from any image, and says so by what can be learned from it.
    stream : Stream
        The stream that they are for; its shape and kind of numbers are theirs.
    data : Path, optional
        Folder in which data sets are looked for first.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> found = read_outside("noise", split_digits(0))
    >>> found.x.shape, int(found.x.min()), int(found.x.max())
    (torch.Size([2000, 8, 8]), 0, 16)
    """
    if text == NOISE:
        return _noise(stream)
    found = stream_by_name(_stream_text(text), None, data=data)
    if found.train_part.digest == stream.train_part.digest:
        raise ValueError(f"outside={text!r} is {stream.name}'s own data: name data from elsewhere.")
    if found.input_shape != stream.input_shape:
        raise ValueError(
            f"outside={text!r} has inputs of shape {found.input_shape}, and {stream.name} of {stream.input_shape}: name data "
            f"of the same shape, or {NOISE!r}."
        )
    kinds = [part.x.dtype == torch.uint8 for part in (found.train_part, stream.train_part)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"outside={text!r} has {_kind(kinds[0])} and {stream.name} has {_kind(kinds[1])}: their units differ, name others."
        )
    return Outside(shown_outside(text), found.hash, found.data_digest, found.train.x)


def hash_outside(text: str, data: Path | None = None) -> str:
    """Hash of the inputs that a text names, as `Outside.hash` has it; nothing where no text names any.

    Examples
    --------
    >>> hash_outside(""), hash_outside("noise"), len(hash_outside("digits"))
    ('', 'noise', 16)
    """
    return text if text in ("", NOISE) else stream_by_name(_stream_text(text), None, data=data).hash


def _stream_text(text: str) -> str:
    """The stream that a text names, where it may name a stream's data instead."""
    spec = StreamSpec.parse(text, SOURCES)
    if spec.name == NOISE and spec.options:
        raise ValueError(f"outside={text!r} has options, and noise takes none: write {NOISE!r}.")
    if spec.path is not None or spec.name in STREAMS or spec.name == NOISE:
        return text
    if spec.name not in _BY_DATA:
        known = [NOISE, *_BY_DATA, *STREAMS, *SOURCES]
        raise ValueError(f"There are no outside data {spec.name!r}. {nearest_names(spec.name, known)}")
    return _BY_DATA[spec.name] + text.removeprefix(spec.name)


def _noise(stream: Stream) -> Outside:
    first = stream[0].train.x
    low, high = first.amin(), first.amax()
    drawn = torch.rand((_NOISE_ROWS, *stream.input_shape), generator=generator(0))
    if first.is_floating_point():
        x = (low + drawn * (high - low)).to(first.dtype)
    else:  # whole numbers, both ends included
        x = (low + (drawn * (high.double() - low.double() + 1)).floor()).to(first.dtype)
    return Outside(NOISE, NOISE, Dataset(NOISE, Part(x, np.zeros(len(x), np.int64))).digest, x)


def _kind(pixels: bool) -> str:
    return "pixels from 0 to 255" if pixels else "numbers of another range"
