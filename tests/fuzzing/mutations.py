"""Changes of bytes that know nothing of a format, files of other kinds, and values that no honest file has."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

Change = tuple[bytes, str]

#: Sizes of blocks that disks and people have.
_BLOCKS = (1, 8, 64, 512, 4096)
#: Values that a manifest may have anywhere, if a stranger wrote it.
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        5,
        7,
        255,
        2**26,
        2**31 - 1,
        2**31,
        10**9,
        10**12,
        2**62,
        2**63,
        -(2**63),
        10**30,
    ),
    *(0.0, -0.0, 0.5, 1.0, 2.5, -1e-9, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *(
        "",
        "0",
        "auto",
        "cpu",
        "cuda",
        "mlp",
        "cnn",
        "patches",
        "random-relu",
        "random-fourier",
        "full",
        "diagonal",
        "gcv",
    ),
    *("exact", "hbo", "float64", "float16", "int", "str", "none", "../../x", "\0", "\ud800", "𝔘nicode ☃ ‮", "a" * 5000),
    *(
        [],
        {},
        [[]],
        [None],
        [0],
        [1, 2, 3],
        [-1],
        [1, "a"],
        [True, 2],
        ["a", "a"],
        [2**40, 2**40],
        [10**9],
        {"kind": "model"},
    ),
    *([2**13, 2**13], [1, 2**13, 2**13], [2**26], {"": 0}, {"a": {"b": {"c": []}}}, [[[[[[[[[[]]]]]]]]]]),
)


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Payload:
    """Code that leaves a mark, if anybody should unpickle it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (f"touch {self.mark}",)


def spoil(content: bytes, draw: random.Random) -> Change:
    """Change bytes as disks, networks and people do."""
    kind = draw.choice((_flip, _flip, _truncate, _extend, _swap, _fill, _repeat, _drop))
    return kind(content, draw) if content else (b"?", "something for nothing")


def _flip(content: bytes, draw: random.Random) -> Change:
    spoiled = bytearray(content)
    # The beginning of a file is where its sizes are.
    places = [
        draw.randrange(8 * min(len(content), draw.choice((64, 4096, 1 << 40))))
        for _ in range(draw.choice((1, 1, 2, 8)))
    ]
    for place in places:
        spoiled[place // 8] ^= 1 << place % 8
    return bytes(spoiled), f"bits {places} flipped"


def _truncate(content: bytes, draw: random.Random) -> Change:
    length = draw.choice(
        (0, 1, 7, 8, len(content) - 1, draw.randrange(len(content)), draw.randrange(min(300, len(content))))
    )
    return content[: max(0, length)], f"cut to {length} bytes"


def _extend(content: bytes, draw: random.Random) -> Change:
    length = draw.choice((1, 8, 512, 100_000))
    more = draw.choice((bytes(length), draw.randbytes(length), content))
    return content + more, f"{len(more)} bytes more"


def _span(content: bytes, draw: random.Random) -> tuple[int, int]:
    length = min(draw.choice(_BLOCKS), len(content))
    return draw.randrange(len(content) - length + 1), length


def _swap(content: bytes, draw: random.Random) -> Change:
    (first, length), (second, _) = _span(content, draw), _span(content, draw)
    one, other = content[first : first + length], content[second : second + length]
    spoiled = bytearray(content)
    spoiled[first : first + len(other)], spoiled[second : second + len(one)] = other, one
    return bytes(spoiled), f"{length} bytes at {first} and {second} swapped"


def _fill(content: bytes, draw: random.Random) -> Change:
    first, length = _span(content, draw)
    what = draw.choice((b"\0", b"\xff", b" ", draw.randbytes(1)))
    return content[:first] + what * length + content[first + length :], f"{length} bytes at {first} all {what!r}"


def _repeat(content: bytes, draw: random.Random) -> Change:
    first, length = _span(content, draw)
    return content[: first + length] + content[first:], f"{length} bytes at {first} repeated"


def _drop(content: bytes, draw: random.Random) -> Change:
    first, length = _span(content, draw)
    return content[:first] + content[first + length :], f"{length} bytes at {first} dropped"


def foreign(draw: random.Random, mark: Path) -> Change:
    """Make a file of another kind, some with code in it that would leave a mark."""
    name = draw.choice(sorted(_foreign_files(mark)))
    return _foreign_files(mark)[name], f"a foreign file: {name}"


@cache
def _foreign_files(mark: Path) -> dict[str, bytes]:
    import torch

    saved, zipped = io.BytesIO(), io.BytesIO()
    torch.save({"weight": torch.zeros(3), "code": Payload(mark)}, saved)
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("../../x", "outside")
    return {
        "empty": b"",
        "text": b"Dear diary, this is not a model.\n" * 9,
        "zip": zipped.getvalue(),
        "pickle": pickle.dumps(Payload(mark)),
        "pickle of protocol 0": pickle.dumps({"data": Payload(mark)}, protocol=0),
        "torch.save": saved.getvalue(),
        "zeros": bytes(5000),
        "PNG": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "gzip bomb": gzip_bomb(),
        "JSON without end": b'{"a":' * 200_000,
    }


@cache
def gzip_bomb(megabytes: int = 512) -> bytes:
    """Zeros, as many members of one file, so that it is made quickly."""
    return gzip.compress(bytes(32 << 20)) * (megabytes // 32)


@cache
def zlib_bomb(megabytes: int) -> bytes:
    """Zeros in one stream."""
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(megabytes)) + packer.flush()


def misplace(path: Path, draw: random.Random) -> str:
    """Put a folder, or a link to somewhere, in a file's place; links to the file itself are honest."""
    content = path.read_bytes()
    path.unlink()
    kind = draw.choice(
        ("a folder", "a link to itself", "a link to nowhere", "a link to a folder", "a link to it", "a pipe")
    )
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a link to it":
        path.with_name("elsewhere").write_bytes(content)
        path.symlink_to("elsewhere")
    else:
        path.symlink_to(
            {"a link to itself": path.name, "a link to nowhere": "nowhere", "a link to a folder": "/"}[kind]
        )
    return kind
