"""One image file in, pixels of one size out; or a reason why not. Imports neither torch nor, before it is needed, Pillow."""

from __future__ import annotations

import io
import os
import stat
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cldnet.data.images.jpeg import MAX_SCANS, MAX_SEGMENTS, count_scans, read_frame

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FORMATS", "MAX_PIXELS", "MAX_READS", "BadImage", "cut_from", "decode", "is_quick", "pillow"]

#: What is read, told by a file's content and not by its name.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
#: Pixels that may be held at once; an image with more is refused before it is decoded.
MAX_PIXELS = 64_000_000
#: Times that a decoder may read from one file. Photos take a few hundred; a large PNG in pieces of 8 kB takes 100,000.
MAX_READS = 1_000_000

#: Bytes of a file that is quick to decode whatever is in it (a JPEG aside), within `MAX_PIXELS`.
_SMALL = 1 << 16
#: Scans × pixels of a JPEG that is quick to decode: it takes a second or two.
_QUICK_PIXELS = 200_000_000
#: A JPEG is decoded at a lower scale as long as that leaves this many times the sides that are wanted.
_DRAFT_GAP = 2
_ORIENTATION = 0x0112
_REASON_LENGTH = 120


@dataclass(frozen=True)
class BadImage:
    """A file that could not be read, and why in a few words.

    ``passing`` says that the reason is not in the file's content, such as a lack of permission: another day it may be gone.
    """

    path: str
    reason: str
    passing: bool = False


class _Refused(Exception):
    """A reason of our own."""


def pillow() -> ModuleType:
    """Return ``PIL.Image``, or say how to install it."""
    try:
        from PIL import Image  # noqa: PLC0415  (an optional dependency)
    except (ImportError, RuntimeError) as error:
        raise ImportError('Reading images needs Pillow: pip install "cldnet[images]".') from error
    return Image


def cut_from(side: int) -> int:
    """The shorter side that a photo is brought to before a square is cut out of its middle, as ImageNet's nets are tested.

    Examples
    --------
    >>> cut_from(224)
    256
    """
    return round(side * 8 / 7)


def decode(path: str, size: int, resize: int) -> NDArray[np.uint8] | BadImage:
    """Read an image as ``(3, size, size)`` numbers from 0 to 255: its shorter side brought to ``resize``, its centre cut out.

    The first picture of an animation is taken; it is turned as its EXIF orientation says; grey, palette and CMYK become RGB
    and 16 bits become 8; transparency is dropped, which uncovers the colours that lie beneath it. The resize is bicubic,
    antialiased, and done only for what the crop keeps, so a long strip takes no more memory than a square.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where both sides stay at least twice as long as wanted. The limit of
    `MAX_PIXELS` is for the size after that, but for the full size where a JPEG has to be held whole (progressive ones). Refused
    are also a JPEG of more than `MAX_SCANS` scans and a file that takes more than `MAX_READS` reads. Nothing that is in a file
    raises: the answer is a `BadImage` then. There is no limit of time here: see `cldnet.data.images.workers.decode_into`.

    Examples
    --------
    >>> decode("no-such-file.jpg", 16, 18)
    BadImage(path='no-such-file.jpg', reason='No such file or directory', passing=True)
    """
    pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images and odd metadata
            with open(path, "rb", buffering=0, opener=_open_at_once) as raw, _Metered(raw) as file:
                return _decode(file, size, resize)
    except Exception as error:  # hostile files make Pillow raise nearly anything
        passing = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)
        return BadImage(path, _reason(error), passing)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting, in case that it has become a pipe to which nobody writes."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_quick(path: str) -> bool:
    """Tell, without decoding a file, whether `decode` is certain to take no more than a second or two.

    That is so for a JPEG with few scans × pixels, and for a small file of another format. Everything else is better decoded in
    a process that can be ended.

    Examples
    --------
    >>> is_quick("no-such-file.jpg")
    True
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                return True
            if file.read(2) != b"\xff\xd8":
                return about.st_size <= _SMALL
            frame = read_frame(file)
            if frame is None:
                return False
            scans = 1 if frame.one_scan else count_scans(file)
            return scans * frame.width * frame.height <= _QUICK_PIXELS
    except OSError:
        return True


class _Metered(io.BufferedReader):
    """A file that may be read from `MAX_READS` times: it bounds what a header of many small pieces costs."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self._left = MAX_READS

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _Refused(f"takes more than {MAX_READS:,} reads to decode")
        return super().read(size)


def _decode(file: BinaryIO, size: int, resize: int) -> NDArray[np.uint8]:
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        raise _Refused("not a regular file")
    if about.st_size == 0:
        raise _Refused("an empty file")
    module = pillow()
    with module.open(file, formats=FORMATS) as image:
        pixels = _pixels_to_hold(image, file, resize)
        if pixels > MAX_PIXELS:
            raise _Refused(f"{pixels / 1e6:,.0f} million pixels, more than the {MAX_PIXELS / 1e6:.0f} allowed")
        image.load()
        upright = _rgb(_turned(image))
        small = upright.resize((size, size), module.Resampling.BICUBIC, box=_box(*upright.size, size, resize))
    return np.ascontiguousarray(np.asarray(small, dtype=np.uint8).transpose(2, 0, 1))


def _pixels_to_hold(image: Image, file: BinaryIO, resize: int) -> int:
    """Choose the scale of a JPEG, and count the pixels that decoding will hold in memory."""
    width, height = image.size
    if image.format not in ("JPEG", "MPO"):
        return width * height
    here = file.tell()
    frame = read_frame(file)
    row_by_row = frame is not None and frame.one_scan
    if not row_by_row and count_scans(file) > MAX_SCANS:
        raise _Refused(f"more than {MAX_SCANS} scans or {MAX_SEGMENTS:,} segments")
    file.seek(here)
    short, wanted = min(width, height), _DRAFT_GAP * resize
    image.draft(None, (-(-wanted * width // short), -(-wanted * height // short)))
    return image.size[0] * image.size[1] if row_by_row else width * height


def _turned(image: Image) -> Image:
    """Turn or mirror an image as its EXIF orientation says; one that makes no sense is left out of account."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # damaged metadata do not make a picture unreadable
        return image
    turns = pillow().Transpose
    methods = {
        2: turns.FLIP_LEFT_RIGHT,
        3: turns.ROTATE_180,
        4: turns.FLIP_TOP_BOTTOM,
        5: turns.TRANSPOSE,
        6: turns.ROTATE_270,
        7: turns.TRANSVERSE,
        8: turns.ROTATE_90,
    }
    known = isinstance(orientation, int) and orientation in methods
    return image.transpose(methods[orientation]) if known else image


def _rgb(image: Image) -> Image:
    """Bring any kind of pixels to RGB; 16 bits are scaled, which Pillow's own conversion would clip."""
    if image.mode == "F":
        raise _Refused("numbers with a fraction, of no known range")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise _Refused("numbers of 32 bits, of no known range")
        scaled = np.minimum(values, 65535 - 128).astype(np.uint16)  # so that nothing runs over
        scaled += 128
        scaled //= 257  # v · 255 / 65535, to the nearest whole number
        image = pillow().fromarray(scaled.astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def _box(width: int, height: int, size: int, resize: int) -> tuple[float, float, float, float]:
    """Return which part of an image, in its own pixels, is left after a resize and a crop."""
    short = min(width, height)
    edges = []
    for side in (width, height):
        resized = resize * side // short
        first = round((resized - size) / 2)
        edges.append((first * side / resized, min(side, (first + size) * side / resized)))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def _reason(error: Exception) -> str:
    if isinstance(error, pillow().UnidentifiedImageError):
        return f"not an image ({', '.join(FORMATS)})"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:_REASON_LENGTH]
