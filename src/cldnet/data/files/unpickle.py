"""CIFAR's pickles, read without pickle: a machine that knows how to build data and has nothing that could call code."""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cldnet.data.files.regular import check_file

__all__ = ["safe_unpickle"]

_LARGEST = 1 << 30
#: CIFAR-100's largest file takes about 300,000; a bound on them bounds the memory that a hostile file can take.
_MOST_STEPS = 5_000_000
_MARK = object()
_PLAIN = (dict, list, tuple, bytes, str, bool, int, float, np.ndarray, type(None))


def safe_unpickle(path: Path) -> Any:
    """Read a pickle of dicts, lists, tuples, text, bytes, numbers and numpy arrays of whole numbers.

    A pickle is a programme for a small machine that can call any function. Ours has no instruction for that: names such
    as numpy's ``_reconstruct`` are compared as text and never looked up, and any other name, and any instruction that
    such data do not need, is refused: by a ValueError. Text of Python 2 comes as bytes; arrays cannot be written to.

    Examples
    --------
    >>> import pickle, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "batch"
    >>> _ = path.write_bytes(pickle.dumps({"data": np.arange(3, dtype=np.uint8)}, protocol=2))
    >>> safe_unpickle(path)
    {'data': array([0, 1, 2], dtype=uint8)}
    >>> _ = path.write_bytes(pickle.dumps(print))
    >>> safe_unpickle(path)
    Traceback (most recent call last):
    ...
    ValueError: ...batch is no pickle of plain data: it asks for 'builtins.print'. Nothing was executed...
    >>> folder.cleanup()
    """
    check_file(path, "Check the path, or get the data with 'cldnet data get'.")
    try:
        if path.stat().st_size > _LARGEST:
            raise _Refused(f"it is larger than {_LARGEST:,} bytes")
        code = path.read_bytes()
        return _Machine(len(code)).run(code)
    except Exception as error:  # a malformed file can make its readers raise nearly anything
        what = str(error) if isinstance(error, _Refused) else f"it is damaged ({type(error).__name__}: {error})"
        raise ValueError(
            f"{path} is no pickle of plain data: {what:.300}. Nothing was executed. "
            "Get the official file, for example with 'cldnet data get cifar-10'."
        ) from error


class _Refused(ValueError):
    """What a pickle asked for, in words that follow its name."""


@dataclass(frozen=True)
class _Name:
    """A name that the file asked for: text, and nothing behind it."""

    text: str


@dataclass(eq=False)
class _Unbuilt:
    """An array of numpy, or a type with its letters, between its two instructions, and where the memo holds it."""

    letters: str | None = None
    places: list[int] = field(default_factory=list)


class _Machine:
    """The stack and the memo of one pickle, and what each admitted instruction does to them."""

    def __init__(self, size: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left_to_encode = size

    def run(self, code: bytes) -> Any:
        for step, (instruction, argument, position) in enumerate(pickletools.genops(code)):
            action = _ACTIONS.get(instruction.name)
            if action is None:
                asked = f" for {argument.replace(' ', '.')!r}" if isinstance(argument, str) else ""
                raise _Refused(f"it uses the instruction {instruction.name}{asked} at byte {position:,}")
            if step >= _MOST_STEPS:
                raise _Refused(f"it has more than {_MOST_STEPS:,} instructions")
            action(self, _IMPLIED.get(instruction.name, argument))
        if position != len(code) - 1:
            raise _Refused("there is something behind its end")
        (result,) = self.stack
        _check_plain(result)
        return result

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop_to_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def pop(self, count: int) -> list[Any]:
        return [self.stack.pop() for _ in range(count)][::-1]

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise _Refused("it appends to what is no list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any], *new: dict[Any, Any]) -> None:
        self.stack.extend(new)
        # No keys of other types: to hash a tuple nested a million deep would overflow the interpreter's own stack.
        if type(self.stack[-1]) is not dict or not all(type(key) in (bytes, str) for key in items[::2]):
            raise _Refused("it has a dict with keys other than text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def put(self, place: int) -> None:
        self.memo[place] = self.stack[-1]
        if type(self.stack[-1]) is _Unbuilt:
            self.stack[-1].places.append(place)

    def name(self, module_and_name: str) -> None:
        if module_and_name not in _CALLS and module_and_name != _NDARRAY:
            raise _Refused(f"it asks for {module_and_name.replace(' ', '.')!r}")
        self.push(_Name(module_and_name))

    def reduce(self) -> None:
        called, arguments = self.pop(2)
        if type(called) is not _Name or called.text not in _CALLS or type(arguments) is not tuple:
            raise _Refused("it calls what is no function")
        self.push(_CALLS[called.text](self, *arguments))

    def build(self) -> None:
        unbuilt, state = self.pop(2)
        if type(unbuilt) is not _Unbuilt or type(state) is not tuple:
            raise _Refused("it builds what is no array")
        built = _array(*state) if unbuilt.letters is None else _dtype(unbuilt.letters, *state)
        self.push(built)
        for place in unbuilt.places:
            if self.memo[place] is unbuilt:
                self.memo[place] = built

    def array_of_buffer(self, raw: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
        return _array(1, shape, dtype, {"C": False, "F": True}[_text(order)], raw)

    def encode(self, text: Any, encoding: Any) -> bytes:
        # Whoever wrote an honest file encoded every string once; again and again, a small file could fill the memory.
        self.left_to_encode -= len(text)
        if type(text) is not str or _text(encoding) != "latin1" or self.left_to_encode < 0:
            raise _Refused("it encodes what is no text of bytes")
        return text.encode("latin-1")


def _text(value: Any) -> str:
    if type(value) not in (bytes, str):
        raise _Refused("it describes an array by something other than text")
    return value.decode("ascii") if type(value) is bytes else str(value)


def _unbuilt_array(_: _Machine, kind: Any, shape: Any, letter: Any) -> _Unbuilt:
    if kind != _Name(_NDARRAY) or shape != (0,) or _text(letter) != "b":
        raise _Refused("it makes an array of an unknown kind")
    return _Unbuilt()


def _unbuilt_dtype(_: _Machine, letters: Any, *__: Any) -> _Unbuilt:
    if re.fullmatch("[iu][1248]", _text(letters)) is None:
        raise _Refused(f"it has an array of type {_text(letters)!r}, which is no type of whole numbers")
    return _Unbuilt(_text(letters))


def _dtype(letters: str, version: Any, order: Any, *rest: Any) -> np.dtype[Any]:
    if version != 3 or _text(order) not in ("<", ">", "|") or rest[:3] != (None, None, None):
        raise _Refused("it has an array of a type that is more than a number")
    return np.dtype(f"{_text(order)}{letters}")


def _array(version: Any, shape: Any, dtype: Any, fortran: Any, raw: Any) -> NDArray[Any]:
    """Make an array of what a pickle says of it, without a copy."""
    if (version, fortran) not in ((1, False), (1, True)) or not isinstance(dtype, np.dtype) or type(raw) is not bytes:
        raise _Refused("it has an array in an unknown form")
    sides = shape if type(shape) is tuple and len(shape) <= 8 else (None,)
    if not all(type(side) is int and 0 <= side <= _LARGEST for side in sides):
        raise _Refused("it has an array with an absurd shape")
    if math.prod(shape) * dtype.itemsize != len(raw):
        raise _Refused(f"it has an array of shape {shape} and type {dtype} with {len(raw):,} bytes")
    return np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")


def _check_plain(value: Any) -> None:
    """Refuse names and unbuilt arrays left in the result. No recursion: a file may nest without end, or in a circle."""
    waiting, met = [value], set()
    while waiting:
        value = waiting.pop()
        if type(value) not in _PLAIN:
            raise _Refused("its instructions leave something unfinished")
        if type(value) in (dict, list, tuple) and id(value) not in met:
            met.add(id(value))
            waiting.extend(value.values() if type(value) is dict else value)


_NDARRAY = "numpy ndarray"
#: What stands for the functions that such files name.
_CALLS: dict[str, Callable[..., Any]] = {
    **{f"numpy.{core}.multiarray _reconstruct": _unbuilt_array for core in ("core", "_core")},
    **{f"numpy.{core}.numeric _frombuffer": _Machine.array_of_buffer for core in ("core", "_core")},
    "numpy dtype": _unbuilt_dtype,
    "_codecs encode": _Machine.encode,
}
#: Arguments that lie in the instruction itself.
_IMPLIED = dict(NONE=None, NEWTRUE=True, NEWFALSE=False, EMPTY_TUPLE=(), MARK=_MARK, TUPLE1=1, TUPLE2=2, TUPLE3=3)
_PUSHED = (
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT BINBYTES SHORT_BINBYTES BINBYTES8 "
    "UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 NONE NEWTRUE NEWFALSE EMPTY_TUPLE MARK"
)
#: Every instruction that is admitted. The lexer has decoded strings of Python 2 byte by byte, so they are turned back.
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda m, _: None),
    **dict.fromkeys(_PUSHED.split(), _Machine.push),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), lambda m, text: m.push(text.encode("latin-1"))),
    "BYTEARRAY8": lambda m, value: m.push(bytes(value)),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "LIST": lambda m, _: m.push(m.pop_to_mark()),
    "DICT": lambda m, _: m.update(m.pop_to_mark(), {}),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_to_mark())),
    **dict.fromkeys(("TUPLE1", "TUPLE2", "TUPLE3"), lambda m, count: m.push(tuple(m.pop(count)))),
    "APPEND": lambda m, _: m.extend([m.stack.pop()]),
    "APPENDS": lambda m, _: m.extend(m.pop_to_mark()),
    "SETITEM": lambda m, _: m.update(m.pop(2)),
    "SETITEMS": lambda m, _: m.update(m.pop_to_mark()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.put),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, place: m.push(m.memo[place])),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": lambda m, _: m.name(" ".join(m.pop(2))),
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
}
