"""What the markers of a JPEG say about the work of decoding it, read without decoding anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

__all__ = ["MAX_SCANS", "MAX_SEGMENTS", "Frame", "count_scans", "read_frame"]

#: Scans that a JPEG may have. Encoders write about ten; decoding takes time in proportion to scans × pixels.
MAX_SCANS = 100
#: Segments that are looked at. Photos have some twenty, and one for every 64 kB of a colour profile or of XMP data.
MAX_SEGMENTS = 1000

_START = b"\xff\xd8"
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
_SOF = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # frame headers; these three are tables
_SEQUENTIAL = (0xC0, 0xC1)
#: The start of a segment, or the end of the picture: not a stuffed byte, a restart or a fill byte.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]", re.DOTALL)
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Frame:
    """The frame header of a JPEG, and whether its first scan holds the whole picture."""

    width: int
    height: int
    one_scan: bool


def read_frame(file: BinaryIO) -> Frame | None:
    """Read a JPEG's header up to its first scan, or return None if it is not as encoders write it.

    With `Frame.one_scan` a decoder reads that scan, row by row, and ignores all others. A second EXIF block or a second frame
    header gives None: decoders may differ in what they make of it.
    """
    file.seek(0)
    if file.read(2) != _START:
        return None
    frames, exif = [], 0
    for marker, content in islice(_segments(file), MAX_SEGMENTS):
        if marker in _SOF:
            frames.append((marker, content))
        exif += marker == _APP1 and content.startswith(b"Exif")
        if marker == _SOS:
            if len(frames) != 1 or exif > 1 or len(frames[0][1]) < 6 or not content:
                return None
            kind, frame = frames[0]
            width, height = int.from_bytes(frame[3:5]), int.from_bytes(frame[1:3])
            return Frame(width, height, kind in _SEQUENTIAL and content[0] == frame[5])
    return None


def count_scans(file: BinaryIO) -> int:
    """Count the scans of a JPEG, up to one more than `MAX_SCANS`. More than `MAX_SEGMENTS` segments count as too many scans."""
    file.seek(len(_START))
    scans = 0
    for _ in range(MAX_SEGMENTS):
        if scans > MAX_SCANS or not _skip_to_marker(file):
            return scans
        marker, _ = next(_segments(file), (_EOI, b""))
        if marker == _EOI:
            return scans
        scans += marker == _SOS
    return MAX_SCANS + 1


def _segments(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield markers with their contents, as long as one segment follows the other."""
    while len(start := file.read(4)) == 4:
        marker, size = start[1], int.from_bytes(start[2:]) - 2
        if not _MARKER.match(start) or marker == _EOI or size < 0:
            return
        content = file.read(size)
        if len(content) < size:
            return
        yield marker, content


def _skip_to_marker(file: BinaryIO) -> bool:
    """Move to the next marker, past compressed data and fill bytes; say whether there is one."""
    start = file.tell()
    while block := file.read(_BLOCK):
        if found := _MARKER.search(block):
            file.seek(start + found.start())
            return True
        start += max(1, len(block) - 1)  # a marker may lie across two blocks
        file.seek(start)
    return False
