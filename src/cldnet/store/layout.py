"""Tensors in one file, laid out as safetensors are (https://github.com/huggingface/safetensors#format), in plain Python.

Not by the library of that name: where memory is short it ends the whole process, and what it reads stays mapped from the file
and changes with it. Here nothing takes more room than the tensors do, and every size is compared before room is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from cldnet.device import tensor_bytes
from cldnet.store.plain import plain_json

__all__ = ["check_kinds", "laid_out", "read_tensors", "tensor_content"]

_METADATA = "__metadata__"
#: Bytes of a header that readers of the format take.
_MOST_HEADER = 100_000_000
_MOST_SIDES = 64
_MOST_EMPTY = 1 << 22
#: Bytes that are read at a time.
_PART = 1 << 20
_LENGTH = 8
#: The format's names of types; torch does not have all of them in every version.
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, known)
    for name, known in {
        **{
            "F64": "float64",
            "F32": "float32",
            "F16": "float16",
            "BF16": "bfloat16",
            "BOOL": "bool",
            "C64": "complex64",
        },
        **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
        **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
        **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    }.items()
    if hasattr(torch, known)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def tensor_content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor of the CPU, in order; shared with it if they lie in order.

    Examples
    --------
    >>> list(tensor_content(torch.tensor([[1, 2], [3, 4]], dtype=torch.int8).T))
    [1, 3, 2, 4]
    """
    content: memoryview = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
    return content


def check_kinds(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors for which the format has no name.

    Examples
    --------
    >>> check_kinds({"a": torch.ones(2, dtype=torch.complex128)})
    Traceback (most recent call last):
    ...
    ValueError: a file cannot hold 'a', which is of torch.complex128 and torch.strided
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES or tensor.layout != torch.strided or name == _METADATA:
            raise ValueError(f"a file cannot hold {name!r}, which is of {tensor.dtype} and {tensor.layout}")
        if not _is_bearable(tensor.shape):
            raise ValueError(f"a file cannot hold {name!r}, which is of shape {tuple(tensor.shape)}")


def _is_bearable(shape: Sequence[int]) -> bool:
    """Tell whether a shape is one that somebody has a use for: a billion rows of nothing take no room until they are listed."""
    return len(shape) <= _MOST_SIDES and (0 not in shape or prod(filter(None, shape)) <= _MOST_EMPTY)


def laid_out(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[memoryview]:
    """Lay out tensors of the CPU, and some texts, as the parts of a file, which share the tensors' memory.

    Examples
    --------
    >>> [len(part) % 8 for part in laid_out({"a": torch.ones(2), "b": torch.ones(3, dtype=torch.int8)}, {"note": "!"})]
    [0, 0, 3]
    """
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    contents, place = list[memoryview](), 0
    # The largest numbers first, so that each begins where numbers of its size may begin.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        end = place + tensor_bytes(tensor)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        contents.append(tensor_content(tensor))
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    if len(text) > _MOST_HEADER:
        raise ValueError(
            f"its labels and names take {len(text) / 1e6:.0f} MB, and a file has room for {_MOST_HEADER / 1e6:.0f} MB of them"
        )
    return [memoryview(len(text).to_bytes(_LENGTH, "little") + text), *contents]


class _Entry(NamedTuple):
    """Where a tensor is in a file, counted from the end of the header."""

    begin: int
    end: int
    name: str
    dtype: str
    shape: list[int]

    @classmethod
    def read(cls, name: str, said: Any) -> _Entry:
        if not isinstance(said, dict) or {*said} != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r:.80} is not described as a tensor is")
        dtype, shape, place = said["dtype"], said["shape"], said["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise ValueError(f"{name!r:.80} is of an unknown type, {dtype!r:.80}")
        if not all(isinstance(each, list) and all(type(n) is int and n >= 0 for n in each) for each in (shape, place)):
            raise ValueError(f"{name!r:.80} has a size or a place that cannot be")
        taken = prod(shape) * _DTYPES[dtype].itemsize
        if not _is_bearable(shape) or len(place) != 2 or place[1] - place[0] != taken:
            raise ValueError(f"{name!r:.80} takes another room than its numbers do")
        return cls(place[0], place[1], name, dtype, shape)

    def read_numbers(self, file: IO[bytes]) -> Tensor:
        tensor = torch.empty(self.shape, dtype=_DTYPES[self.dtype], device="cpu")
        content, first = tensor_content(tensor), 0
        for part in _pieces(file, self.end - self.begin):
            content[first : first + len(part)] = part
            first += len(part)
        return tensor


def read_tensors(file: IO[bytes], size: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the texts of a file of so many bytes, or say why it is not one."""
    length = int.from_bytes(b"".join(_pieces(file, _LENGTH)), "little")
    if length > min(size - _LENGTH, _MOST_HEADER):
        raise ValueError("its header is too long")
    header = plain_json(b"".join(_pieces(file, length)).decode())
    if not isinstance(header, dict):
        raise ValueError("its header is none")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its header has something else than texts")
    entries = sorted(_Entry.read(name, said) for name, said in header.items())
    ends = [0, *(entry.end for entry in entries)]
    if ends != [*(entry.begin for entry in entries), size - _LENGTH - length]:
        raise ValueError("its tensors are not as long as it is")
    return {entry.name: entry.read_numbers(file) for entry in entries}, metadata


def _pieces(file: IO[bytes], count: int) -> Iterator[bytes]:
    """Read so many bytes, a part at a time."""
    while count:
        part = file.read(min(count, _PART))
        if not part:
            raise ValueError("it ends too soon")
        count -= len(part)
        yield part
