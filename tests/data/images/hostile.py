"""Photos that are made to cost more than they should."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image


def many_scans(times: int, side: int = 40) -> bytes:
    """A progressive JPEG of a few scans, the last of them repeated: decoding takes as long as scans × pixels."""
    file = io.BytesIO()
    Image.new("L", (side, side)).save(file, format="JPEG", progressive=True, quality=30)
    jpeg = file.getvalue()
    scan = jpeg[jpeg.rindex(b"\xff\xda") : -2]
    return jpeg[:-2] + times * scan + jpeg[-2:]


def slow_jpeg() -> bytes:
    """A file that takes some seconds to decode, with fewer scans than are refused."""
    return many_scans(90, side=7_990)


def long_comment(size: int) -> bytes:
    """A PPM of one pixel with a comment in its header."""
    return b"P6\n#" + b"x" * size + b"\n1 1\n255\n\0\0\0"


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """A black PNG of 4 × 4 pixels with other chunks before its pixels."""
    every = [
        (b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)),
        *chunks,
        (b"IDAT", zlib.compress(4 * bytes(5))),
        (b"IEND", b""),
    ]
    written = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in every
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)
